// The page of `enkaku media serve`: search as you type, a player that goes on where one has stopped,
// and what to do when the storage is off. What comes from a catalogue becomes text, never markup.
"use strict";

const BATCH = 60;
const TYPING_MS = 150;
const LOOK_MS = 4000;
const SAVE_MS = 5000;
// Who has seen less has not begun; who has less left is through.
const BEGUN_S = 20;
const LEFT_S = 30;
// A video that cannot be played is begun again so often, and after this time.
const TRIES_MAX = 2;
const TRY_AGAIN_MS = 1000;
// Where all places are taken, it is asked again after this time.
const BUSY_MS = 5000;

const grid = at("grid");
const search = at("search");
const sort = at("sort");
const video = at("video");
const videos = new Map();
let homes = new Map();
let shown = { query: null, sort: null, total: 0, count: 0, loading: false };
let asked = 0;
let current = null;
let waiting = null;
// Feeds the player where the server has to put a video into another container; whether it has to,
// shows when it is tried.
let feed = null;
let isRemuxed = false;
// A link to one video begins all addresses; otherwise nothing does.
const base = location.pathname.match(/^\/s\/[\w-]+/)?.[0] ?? "";
let me = { name: null, is_owner: false, accounts: false };

// Where one has stopped. A browser may have no storage to remember it in.
const memory = {
  key: (id) => `enkaku position ${id}`,
  get(id) {
    if (me.name) return videos.get(id)?.position_s ?? 0;
    try {
      const seconds = Number(localStorage.getItem(this.key(id)));
      return Number.isFinite(seconds) && seconds > 0 ? seconds : 0;
    } catch {
      return 0;
    }
  },
  set(id, seconds) {
    if (me.name) return this.send(id, seconds);
    try {
      if (seconds > 0) localStorage.setItem(this.key(id), seconds.toFixed(1));
      else localStorage.removeItem(this.key(id));
    } catch {
      // It begins at the start the next time.
    }
  },
  // With an account, the server remembers it, for other devices too.
  send(id, seconds) {
    const one = videos.get(id);
    if (one) one.position_s = seconds > 0 ? seconds : null;
    const body = JSON.stringify({ position_s: Number(seconds.toFixed(1)) });
    const headers = { "Content-Type": "application/json" };
    // Also while the page is being left.
    fetch(`/api/position/${id}`, { method: "PUT", headers, body, keepalive: true }).catch(() => {
      // The next one, some seconds later, says where it is.
    });
  },
};

const clock = (seconds) => {
  if (!Number.isFinite(seconds)) return "";
  const two = (number) => String(number).padStart(2, "0");
  const all = Math.round(seconds);
  const [h, m, s] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
};

// As people say it: 740 kB, 1.5 GB.
const size = (bytes) => {
  if (bytes === null) return "";
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let [number, unit] = [bytes, 0];
  while (number >= 999.5 && unit < units.length - 1) [number, unit] = [number / 1000, unit + 1];
  return `${unit && number < 9.95 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
};

const day = (time) => (time ? new Date(time).toLocaleDateString() : "");

// In which order videos are shown is this browser's to remember, if it has a storage.
const order = {
  key: "enkaku order",
  restore() {
    try {
      const kept = localStorage.getItem(this.key);
      if ([...sort.options].some((option) => option.value === kept)) sort.value = kept;
    } catch {
      // By title.
    }
  },
  keep() {
    try {
      localStorage.setItem(this.key, sort.value);
    } catch {
      // Until the page is left.
    }
  },
};

// ── all videos ──────────────────────────────────────────────────────────────────────────────────

async function find(query) {
  const turn = ++asked;
  shown = { query, sort: sort.value, total: 0, count: 0, loading: true };
  try {
    const part = { q: query, sort: shown.sort, limit: BATCH };
    const found = await get(`${base}/api/videos?${new URLSearchParams(part)}`);
    if (turn !== asked) return; // somebody has typed on
    grid.replaceChildren();
    add(found);
    show(at("note"), found.total ? "" : query ? "Nothing is called so." : "There are no videos yet.");
  } catch (error) {
    if (turn === asked) show(at("note"), `The server does not answer: ${error.message}`);
  }
  if (turn === asked) loaded();
}

// A tall window has room for more at once.
function loaded() {
  shown.loading = false;
  if (at("more").getBoundingClientRect().top < innerHeight + 600) more();
}

async function more() {
  if (shown.loading || shown.count >= shown.total) return;
  const turn = asked;
  shown.loading = true;
  try {
    const part = { q: shown.query, sort: shown.sort, limit: BATCH, offset: shown.count };
    const found = await get(`${base}/api/videos?${new URLSearchParams(part)}`);
    if (turn !== asked) return;
    add(found);
    loaded();
  } catch {
    shown.loading = false; // the next look at the end of the page asks again
  }
}

function add(found) {
  grid.append(...found.videos.map(card));
  shown.total = found.total;
  shown.count += found.videos.length;
  at("count").textContent = found.total === 1 ? "1 video" : `${found.total} videos`;
  markHomes();
}

function card(one) {
  videos.set(one.id, one);
  const item = at("card").content.firstElementChild.cloneNode(true);
  item.dataset.id = one.id;
  item.dataset.home = one.home;
  item.querySelector(".name").textContent = one.title;
  item.querySelector(".length").textContent = one.duration_s ? clock(one.duration_s) : "";
  if (one.poster) {
    const picture = item.querySelector("img");
    picture.src = one.poster;
    picture.hidden = false;
    picture.addEventListener("error", () => (picture.hidden = true));
  }
  markPosition(item, one);
  item.querySelector("button").addEventListener("click", () => open(one.id));
  return item;
}

function markPosition(item, one) {
  const position = memory.get(one.id);
  const progress = item.querySelector("progress");
  progress.hidden = !(position && one.duration_s);
  if (!progress.hidden) progress.value = Math.min(1, position / one.duration_s);
}

// ── storage ─────────────────────────────────────────────────────────────────────────────────────

const isOff = (home) => home && ["off", "damaged", "away", "edited"].includes(home.state);

function told(home) {
  const since = home.since ? ` since ${new Date(home.since).toLocaleString()}` : "";
  if (home.state === "away") return `The owner of the storage “${home.name}” has it${since}.`;
  if (home.state === "edited") return `The storage “${home.name}” is being edited${since}.`;
  return home.state === "damaged"
    ? `The storage “${home.name}” cannot be read${since}.`
    : `The storage “${home.name}” is off${since}.`;
}

const briefly = { away: "is with its owner", edited: "is being edited" };
const brief = (home) => `“${home.name}” ${briefly[home.state] ?? "is off"}`;

function markHomes() {
  for (const item of grid.children) {
    const home = homes.get(item.dataset.home);
    item.classList.toggle("off", Boolean(isOff(home)));
    const one = videos.get(item.dataset.id);
    const about = [day(one.recorded), one.tags.join(", ")].filter(Boolean).join(" · ");
    item.querySelector(".where").textContent = isOff(home) ? brief(home) : about;
  }
}

async function look() {
  try {
    const answer = await get(`${base}/api/homes`);
    homes = new Map(answer.homes.map((home) => [home.name, home]));
    const off = answer.homes.filter(isOff);
    const few = off.slice(0, 3).map(told).join(" ");
    show(at("storage"), off.length > 3 ? `${few} And ${off.length - 3} more.` : few);
    markHomes();
    const isBack = current && !isOff(homes.get(current.home));
    if (waiting?.isOff && isBack) resume();
    else if (waiting?.isOff && current) show(at("trouble"), `${told(homes.get(current.home))} It goes on when it is back.`);
  } catch {
    show(at("storage"), "The server does not answer.");
  }
}

function keepLooking() {
  const next = () => setTimeout(keepLooking, LOOK_MS);
  if (document.hidden && !current) next();
  else look().finally(next);
}

// ── the player ──────────────────────────────────────────────────────────────────────────────────

async function open(id) {
  if (!videos.has(id)) {
    show(at("note"), "This video is not in the list: look for it.");
    return;
  }
  current = videos.get(id);
  location.hash = id;
  show(at("trouble"), "");
  waiting = null;
  isRemuxed = Boolean(current.remux?.is_only_way);
  at("title").textContent = current.title;
  at("download").href = current.src;
  const kind = [current.container, current.video_codec, current.audio_codec].filter(Boolean);
  const about = [current.home, ...current.tags, day(current.recorded), size(current.bytes), kind.join(" ")];
  at("about").textContent = about.filter(Boolean).join(" · ");
  at("player").hidden = false;
  document.body.classList.add("playing");
  load(memory.get(id));
  video.focus();
}

function load(position) {
  video.replaceChildren(
    ...current.subtitles.map((one, number) => {
      const track = document.createElement("track");
      track.kind = "subtitles";
      track.src = one.src;
      if (one.language) track.srclang = one.language;
      track.label = one.label || one.language || `Subtitles ${number + 1}`;
      track.default = number === 0;
      return track;
    }),
  );
  if (current.poster) video.poster = current.poster;
  else video.removeAttribute("poster");
  begin(position > BEGUN_S ? position : 0);
}

// Also again: then what was played goes on there.
function begin(position) {
  feed?.stop();
  feed = null;
  if (isRemuxed) {
    const one = current;
    const told = (status, said) => current === one && refused(one, status, said);
    feed = new Feed(video, one, position, told);
  } else {
    video.src = current.src;
    if (position > 0) {
      video.addEventListener("loadedmetadata", () => (video.currentTime = position), { once: true });
    }
  }
  video.play().catch(() => {
    // Some browsers want to be asked with a click.
  });
}

function close() {
  if (!current) return;
  remember();
  const id = current.id;
  current = null;
  waiting = null;
  feed?.stop();
  feed = null;
  video.pause();
  video.removeAttribute("src");
  video.replaceChildren();
  video.load(); // which ends what is being read
  at("player").hidden = true;
  document.body.classList.remove("playing");
  if (document.fullscreenElement) document.exitFullscreen();
  if (location.hash) history.replaceState(null, "", location.pathname);
  const item = [...grid.children].find((one) => one.dataset.id === id);
  if (item) {
    markPosition(item, videos.get(id));
    item.querySelector("button").focus();
  }
}

function remember() {
  if (!current || waiting || !video.duration) return;
  const isSeen = video.currentTime > BEGUN_S && video.duration - video.currentTime > LEFT_S;
  memory.set(current.id, isSeen ? video.currentTime : 0);
}

// The player says no more than that it cannot; the server knows why.
async function trouble() {
  if (!current || !video.getAttribute("src")) return;
  const one = current;
  if (feed) {
    feed.stop(); // what it was fed is none that this browser plays
    return refused(one, 415, "");
  }
  const isForeign = video.error?.code === MediaError.MEDIA_ERR_SRC_NOT_SUPPORTED
    || video.error?.code === MediaError.MEDIA_ERR_DECODE;
  let status = 0;
  try {
    status = (await fetch(one.src, { method: "HEAD", cache: "no-store" })).status;
  } catch {
    // No answer at all is treated as storage that is off: both may come back.
  }
  if (current !== one) return;
  if (status !== 200) return refused(one, status, "");
  const position = reached();
  if (one.remux && isForeign) {
    isRemuxed = true;
    return begin(position);
  }
  // Once more, later: it may have been a connection that was lost.
  const tries = (waiting?.tries ?? 0) + 1;
  if (tries > TRIES_MAX) return refused(one, 415, "");
  waiting = { position, tries, isOff: false };
  setTimeout(() => current === one && waiting?.tries === tries && resume(), TRY_AGAIN_MS);
}

const reached = () => Math.max(video.currentTime, waiting?.position ?? 0, 0);

// Tells why a video does not play, or does not play on, and has it go on if it may.
function refused(one, status, said) {
  const say = (text) => show(at("trouble"), text);
  const kind = [one.container, one.video_codec, one.audio_codec].filter(Boolean).join(", ");
  if (status === 401) {
    location.assign(`/login${location.hash}`);
  } else if (status === 404) {
    say("The storage has no such file any more.");
  } else if (status === 415) {
    say(`This browser cannot play it${kind ? ` (${kind})` : ""}. It can be downloaded.`);
  } else if (status === 501) {
    say(`This browser cannot play it${kind ? ` (${kind})` : ""}: ${said}. It can be downloaded.`);
  } else if (status === 500) {
    say(said ? `It cannot be played: ${said}.` : "The file cannot be read: it is damaged.");
  } else if (status === 429) {
    waiting = { position: reached(), tries: 0, isOff: false };
    const mine = waiting;
    say("Too many videos are put into another container now. It begins when there is a place.");
    setTimeout(() => current === one && waiting === mine && resume(), BUSY_MS);
  } else {
    waiting = { position: reached(), tries: 0, isOff: true };
    const mine = waiting;
    say("The storage does not answer. It goes on when it is back.");
    // Not at once: where it is said to be there, the next try may fail as soon as this one.
    setTimeout(() => current === one && waiting === mine && look(), TRY_AGAIN_MS);
  }
}

function resume() {
  const position = reached();
  waiting.isOff = false;
  show(at("trouble"), "");
  begin(position);
}

// ── what one can press ──────────────────────────────────────────────────────────────────────────

function move(key) {
  const buttons = [...grid.querySelectorAll("button")];
  const now = buttons.indexOf(document.activeElement);
  if (now < 0) return buttons[0]?.focus();
  const top = (button) => button.getBoundingClientRect().top;
  const columns = buttons.filter((button) => top(button) === top(buttons[0])).length || 1;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  buttons[now + step]?.focus();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === sort) return; // its keys are its own
  const key = event.key;
  const isTyping = event.target === search;
  if (current) {
    if (key === "Escape" && !document.fullscreenElement) close();
    else if (event.target.closest?.("button, a")) return;
    else if (key === "f") document.fullscreenElement ? document.exitFullscreen() : video.requestFullscreen?.();
    else if (key === "m") video.muted = !video.muted;
    else if (key === "k" || (key === " " && event.target !== video)) video.paused ? video.play() : video.pause();
    else if (key === "j" || (key === "ArrowLeft" && event.target !== video)) video.currentTime -= 10;
    else if (key === "l" || (key === "ArrowRight" && event.target !== video)) video.currentTime += 10;
    else return;
  } else if (isTyping) {
    if (key === "Escape") search.value = "";
    else if (key !== "ArrowDown") return;
    if (key === "ArrowDown") move(key);
    else find("");
  } else if (key === "/") {
    search.focus();
  } else if (key.startsWith("Arrow") && (grid.contains(event.target) || key === "ArrowDown")) {
    move(key);
  } else {
    return;
  }
  event.preventDefault();
}

let typing = 0;
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => find(search.value.trim()), TYPING_MS);
});
sort.addEventListener("change", () => {
  order.keep();
  find(search.value.trim());
});
document.addEventListener("keydown", pressed);
at("back").addEventListener("click", close);
video.addEventListener("error", trouble);
video.addEventListener("pause", remember);
video.addEventListener("playing", () => {
  waiting = null;
  show(at("trouble"), "");
});
video.addEventListener("ended", () => {
  if (current) memory.set(current.id, 0);
});
setInterval(() => {
  if (!video.paused) remember();
}, SAVE_MS);
addEventListener("pagehide", remember);
addEventListener("hashchange", () => {
  const id = location.hash.slice(1);
  if (!id) close();
  else if (current?.id !== id && videos.has(id)) open(id);
});
new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && more(), {
  rootMargin: "600px",
}).observe(at("more"));

async function leave() {
  await post("/api/logout", {}).catch(() => {});
  location.assign("/login");
}

async function greet() {
  try {
    me = await get(`${base}/api/me`);
  } catch {
    return; // the videos tell what is wrong
  }
  at("name-shown").textContent = me.name ?? "";
  at("leave").hidden = !me.name;
  at("to-owner").hidden = !me.is_owner;
  at("who").hidden = !me.name && !me.is_owner;
}

at("leave").addEventListener("click", leave);
document.body.classList.toggle("shared", Boolean(base));
order.restore();
greet()
  .then(() => find(""))
  .then(() => {
    const id = location.hash.slice(1);
    if (videos.has(id)) open(id);
  });
keepLooking();
