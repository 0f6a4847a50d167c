// Feeds a player what the server remuxes: fragments of MP4 with the times of the video itself (Media
// Source Extensions). So the player's own bar, subtitles and the place where one has stopped are as
// with any other video; to seek where nothing is yet is to ask the server for another beginning.
"use strict";

// So much is fetched ahead; where the server has ended an answer that nobody took, more is fetched
// when less than this is left.
const AHEAD_S = 30;
const AGAIN_S = 10;
// A server that does not answer is asked again after this time, as long as there is this much left.
const AGAIN_MS = 2000;
const DRY_S = 0.5;
// What is older makes room, where there is none.
const BEHIND_S = 20;
// A hole that is no longer than a frame or two is none.
const HOLE_S = 0.2;

const MediaSourceHere = window.ManagedMediaSource ?? window.MediaSource;

// Why the server sends nothing.
class Refusal extends Error {
  constructor(status, said) {
    super(said);
    this.status = status;
  }
}

// Waits for one of these events, or until the signal says that nobody does any more.
function next(target, names, signal) {
  return new Promise((resolve) => {
    const gone = new AbortController();
    const done = () => {
      gone.abort();
      resolve();
    };
    if (signal?.aborted) return done();
    for (const name of names) target.addEventListener(name, done, { signal: gone.signal });
    signal?.addEventListener("abort", done, { signal: gone.signal });
  });
}

class Feed {
  // `refused` is told a status of HTTP, or 0, and what the server says to it.
  constructor(video, one, position, refused) {
    Object.assign(this, { video, one, refused, target: position });
    this.buffer = null;
    this.isCut = false;
    // What there is, is of somewhere else, and goes when something comes from where it is wanted.
    this.isStale = false;
    this.fetching = null;
    this.filling = Promise.resolve();
    this.life = new AbortController();
    if (!MediaSourceHere) {
      queueMicrotask(() => refused(415, ""));
      return;
    }
    const { signal } = this.life;
    video.addEventListener("seeking", () => this.seek(), { signal });
    // All that came may have come before the player knew what it is of, and whether that is where
    // it is to begin.
    for (const name of ["timeupdate", "waiting", "play", "loadedmetadata"]) {
      video.addEventListener(name, () => this.look(), { signal });
    }
    this.source = new MediaSourceHere();
    video.disableRemotePlayback = true; // which iPhones ask for
    const url = URL.createObjectURL(this.source);
    const begin = () => {
      URL.revokeObjectURL(url);
      if (one.duration_s) this.source.duration = one.duration_s;
      this.fill(position, false);
    };
    this.source.addEventListener("sourceopen", begin, { once: true, signal });
    video.src = url;
    if (position > 0) video.currentTime = position;
  }

  stop() {
    this.life.abort();
    this.fetching?.abort();
  }

  // Fetches from there on, when what went before has ended.
  fill(from, isElsewhere) {
    this.fetching?.abort();
    const fetching = new AbortController();
    this.fetching = fetching;
    this.isCut = false;
    this.isStale ||= isElsewhere;
    const before = this.filling;
    this.filling = (async () => {
      await before;
      if (fetching.signal.aborted) return;
      let bytes = 0;
      try {
        await this.take(from, fetching.signal, (some) => (bytes += some));
      } catch (error) {
        if (fetching.signal.aborted || this.video.error) return; // the player tells of its own
        this.failed(error, bytes);
      }
    })();
  }

  // What came is played; more is asked for when that is needed.
  failed(error, bytes) {
    if (!bytes && this.ahead() < DRY_S) {
      const isRefusal = error instanceof Refusal;
      return this.refused(isRefusal ? error.status : 0, isRefusal ? error.message : "");
    }
    const again = () => {
      if (this.life.signal.aborted || this.fetching !== mine) return;
      this.isCut = true;
      this.look();
    };
    const mine = this.fetching;
    setTimeout(again, bytes ? 0 : AGAIN_MS);
  }

  async take(from, signal, count) {
    const query = new URLSearchParams({ t: from.toFixed(3) });
    const response = await fetch(`${this.one.remux.src}?${query}`, { cache: "no-store", signal });
    if (!response.ok) throw new Refusal(response.status, await refusal(response));
    const kind = response.headers.get("Content-Type");
    if (!MediaSourceHere.isTypeSupported(kind)) throw new Refusal(415, "");
    this.buffer ??= this.source.addSourceBuffer(kind);
    if (this.source.readyState === "open") this.buffer.abort(); // half a fragment is forgotten
    if (this.isStale) await this.remove(0, Infinity);
    this.isStale = false;
    const reader = response.body.getReader();
    for (;;) {
      await this.room(signal);
      const { done, value } = await reader.read();
      if (signal.aborted) return;
      if (done) break;
      count(value.length);
      await this.append(value, signal);
      this.leap();
    }
    if (this.source.readyState === "open") this.source.endOfStream();
  }

  async append(bytes, signal) {
    while (!signal.aborted) {
      try {
        this.buffer.appendBuffer(bytes);
        return await next(this.buffer, ["updateend"]);
      } catch (error) {
        if (error.name !== "QuotaExceededError") throw error;
      }
      const old = this.video.currentTime - BEHIND_S;
      if (old > 0) await this.remove(0, old);
      await next(this.video, ["timeupdate", "seeking"], signal);
    }
  }

  async remove(begin, end) {
    this.buffer.remove(begin, end);
    await next(this.buffer, ["updateend"]);
  }

  async room(signal) {
    while (this.ahead() > AHEAD_S && !signal.aborted) {
      await next(this.video, ["timeupdate", "seeking"], signal);
    }
  }

  // What there is, as beginnings and ends.
  parts() {
    const ranges = (!this.isStale && this.buffer?.buffered) || { length: 0 };
    return Array.from(ranges, (_, number) => [ranges.start(number), ranges.end(number)]);
  }

  ahead() {
    const parts = this.parts();
    if (!parts.length) return 0;
    return parts.at(-1)[1] - Math.max(this.video.currentTime, parts[0][0]);
  }

  holds(second) {
    return this.parts().some(([begin, end]) => begin - HOLE_S <= second && second <= end);
  }

  seek() {
    const to = this.video.currentTime;
    if (this.holds(to) || Math.abs(to - this.target) < 0.01) return;
    this.target = to;
    this.fill(to, true);
  }

  // What was sought may be a little before the first picture that stands for itself.
  leap() {
    const now = this.video.currentTime;
    if (!this.video.readyState) return;
    const parts = this.parts();
    const isThere = parts.some(([begin, end]) => begin - HOLE_S <= now && now < end - HOLE_S);
    const later = parts.find(([begin]) => begin > now);
    // Whoever seeks there again may find nothing. But what is before it may come first, and then the
    // player tells that it seeks there only now.
    if (isThere || later) this.target = NaN;
    if (!isThere && later) this.video.currentTime = later[0] + 0.01;
  }

  // Where an answer has ended early, as when one has paused for long, it is asked for the rest.
  look() {
    this.leap();
    if (!this.isCut || this.ahead() > AGAIN_S) return;
    const end = this.parts().at(-1)?.[1];
    this.fill(end ?? this.video.currentTime, false);
  }
}
