// The owner's page: storage that he takes away and brings back, who watches what, links to single
// videos. What comes from a catalogue becomes text, never markup.
"use strict";

const LOOK_MS = 3000;
const VIDEOS_MAX = 500;

async function send(what, body) {
  const response = await post(`/api/owner/${what}`, body);
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

// What a button does; what goes wrong is said.
const press = (button, act) =>
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await act();
      say("");
    } catch (error) {
      say(error.message);
    }
    await look();
  });

const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; bytes >= 1000 && unit < units.length - 1; unit += 1) bytes /= 1000;
  return `${bytes.toFixed(unit && bytes < 100 ? 1 : 0)} ${units[unit]}`;
};

const when = (time) => new Date(time).toLocaleString();

function row(name, where, word, act) {
  const item = at("row").content.firstElementChild.cloneNode(true);
  item.querySelector(".name").textContent = name;
  item.querySelector(".where").textContent = where;
  const button = item.querySelector("button");
  if (act) {
    button.textContent = word;
    button.setAttribute("aria-label", `${word}: ${name}`);
    press(button, act);
  } else {
    button.remove();
  }
  return item;
}

const states = {
  on: "in use",
  ready: "there, and not in use",
  unknown: "not looked for yet",
  off: "off",
  damaged: "there, and cannot be read",
  away: "can be unplugged",
  edited: "being edited: nothing is sent of it until nobody writes any more",
};

function home(one) {
  const since = one.since ? ` since ${when(one.since)}` : "";
  const where = `${states[one.state] ?? one.state}${since}`;
  const body = { home: one.name };
  return one.state === "away"
    ? row(one.name, where, "It is back", () => send("back", body))
    : row(one.name, where, "Unplug safely", () => send("unplug", body));
}

function viewer(one) {
  const where = `${one.title ?? one.video} · ${one.address} · since ${when(one.since)} · ${size(one.bytes)}`;
  return row(one.name, where);
}

function link(one) {
  const where = `until ${when(one.until)}`;
  return row(one.title ?? "?", where, "Take back", () => send("unshare", { link: one.link }));
}

// Somebody who is about to press a button of the list keeps it.
function fill(id, rows) {
  const list = at(id);
  const text = (items) => items.map((item) => item.textContent).join("\n");
  if (text([...list.children]) !== text(rows)) list.replaceChildren(...rows);
  else list.querySelectorAll("button:disabled").forEach((button) => (button.disabled = false));
}

async function look() {
  try {
    const seen = await get("/api/owner");
    fill("homes", seen.homes.map(home));
    fill("watching", seen.watching.map(viewer));
    at("nobody").hidden = seen.watching.length > 0;
    at("sharing").hidden = !seen.can_share;
    fill("links", seen.links.map(link));
  } catch (error) {
    say(`The server does not answer: ${error.message}`);
  }
}

async function offer() {
  const found = await get(`/api/videos?limit=${VIDEOS_MAX}`);
  at("video").replaceChildren(
    ...found.videos.map((one) => {
      const option = document.createElement("option");
      option.value = one.id;
      option.textContent = one.title;
      return option;
    }),
  );
}

async function share(event) {
  event.preventDefault();
  try {
    const body = { video: at("video").value, time_s: Number(at("time").value) };
    const made = await send("share", body);
    at("address").textContent = location.origin + made.path;
    at("made").hidden = false;
    say("");
  } catch (error) {
    say(error.message);
  }
  await look();
}

at("share").addEventListener("submit", share);
at("copy").addEventListener("click", () => {
  const done = navigator.clipboard?.writeText(at("address").textContent);
  done?.then(() => (at("copy").textContent = "Copied"), () => getSelection().selectAllChildren(at("address")));
  if (!done) getSelection().selectAllChildren(at("address"));
});
offer().catch((error) => say(error.message));
const keepLooking = () => look().finally(() => setTimeout(keepLooking, LOOK_MS));
keepLooking();
