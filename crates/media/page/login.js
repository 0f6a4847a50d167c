// The page that asks for a name and a password. Who is logged in already goes on at once: a browser
// that comes from another site's link shows its cookie only to the page's own requests.
"use strict";

// What comes behind # is the video that one wanted to see.
const goOn = () => location.replace(`/${location.hash}`);

async function enter(event) {
  event.preventDefault();
  say("");
  at("enter").disabled = true;
  try {
    const response = await post("/api/login", { name: at("name").value, password: at("password").value });
    if (response.ok) return goOn();
    if (response.status === 401) {
      say("Name or password is wrong.");
      at("password").select();
    } else if (response.status === 429) {
      const seconds = Number(response.headers.get("Retry-After")) || 60;
      say(`Too many attempts. Try again in ${seconds} seconds.`);
    } else {
      say(await refusal(response));
    }
  } catch {
    say("The server does not answer.");
  }
  at("enter").disabled = false;
}

at("login").addEventListener("submit", enter);
fetch("/api/me", { cache: "no-store" }).then((response) => response.ok && goOn(), () => {});
