// The page that asks for a name and a password. Who is logged in already goes on at once: a browser
// that comes from another site's link shows its cookie only to the page's own requests.
"use strict";

const at = (id) => document.getElementById(id);

// What comes behind # is the video that one wanted to see.
const goOn = () => location.replace(`/${location.hash}`);

function say(text) {
  at("trouble").textContent = text;
  at("trouble").hidden = !text;
}

async function enter(event) {
  event.preventDefault();
  say("");
  at("enter").disabled = true;
  try {
    const response = await fetch("/api/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ name: at("name").value, password: at("password").value }),
      signal: AbortSignal.timeout(30000),
    });
    if (response.ok) return goOn();
    if (response.status === 401) {
      say("Name or password is wrong.");
      at("password").select();
    } else if (response.status === 429) {
      const seconds = Number(response.headers.get("Retry-After")) || 60;
      say(`Too many attempts. Try again in ${seconds} seconds.`);
    } else {
      say((await response.text()).trim() || `HTTP ${response.status}`);
    }
  } catch {
    say("The server does not answer.");
  }
  at("enter").disabled = false;
}

at("login").addEventListener("submit", enter);
fetch("/api/me", { cache: "no-store" }).then((response) => response.ok && goOn(), () => {});
