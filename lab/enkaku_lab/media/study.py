"""Goes through ways and lines, clicks, seeks and waits; what is seen is kept at once, one record for each number."""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from enkaku_lab import wan
from enkaku_lab.experiment import Link
from enkaku_lab.media import browser, videos, ways
from enkaku_lab.media.browser import Browser, NotSeen, Viewer
from enkaku_lab.media.videos import VIEWERS, Videos
from enkaku_lab.media.ways import EVERY, Place, Served, Way
from enkaku_lab.peers import enkaku
from enkaku_lab.process import LabError, peer, run
from enkaku_lab.progress import say

RATE, QUEUE_PACKETS = "100mbit", 1000
"""Linux's own queue before a network card is as long."""
START, WATCH, TOGETHER = "start", "watch", "viewers"
PARTS = (START, WATCH, TOGETHER)
COLD, WARM, CONNECT, PLAYS, SEEK = "cold", "warm", "connect", "plays cold", "seek"
STALLS, STALLED, LAST, BEHIND, DROPPED, RATIO = "stalls", "stalled", "last stall", "behind", "dropped", "line / file"
"""What is told: the first five in milliseconds, then numbers of stalls, seconds, shares."""
SAME, DIFFERENT = "8 times the same", "8 different"
"""In place of a video's name."""
PAUSE_S = (0.3, 1.0)
"""What was sought for is looked at for so long; the next seek comes while more of it is on its way."""
SETTLE_S = 1.0
"""After a video is closed, until nothing of it is under way."""
WATCH_RTT_MS = 100.0
ANSWER_SPARE_S = 30.0
SHORT_SPARE_S = 30.0
"""So much longer than it is may a video take that several watch."""


@dataclass(frozen=True)
class Pace:
    repeat: int
    seeks: int
    other_seeks: int
    """In videos of other containers."""
    watch_s: float
    watches: int


@dataclass(frozen=True)
class Plan:
    """What is gone through."""

    pace: Pace
    parts: Sequence[str]
    ways: Sequence[str]
    rtts_ms: Sequence[float]
    loss: float
    """Beside none."""
    lossy: Sequence[str]
    """Ways that are also taken with loss."""


@dataclass
class Line:
    """What the emulator has carried to the server, and how long it was to run and had no processor."""

    carried: int
    waited_s: float
    at_s: float

    @classmethod
    def of(cls, lab: wan.Lab) -> "Line":
        shown = enkaku.report("wan", "show", lab.name)
        tasks = Path(f"/proc/{shown['pid']}/task").glob("*/schedstat")
        waited_s = sum(int(task.read_text().split()[1]) for task in tasks) / 1e9
        return cls(shown["far_to_near"]["bytes"], waited_s, time.monotonic())


class Session:
    """One server that was started for this, on one line; what is seen gets the same head."""

    def __init__(self, study: "Study", served: Served, head: dict):
        self.served = served
        self._study, self._head = study, head

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        with self._study.browser.viewer(ways.BLANK) as viewer:
            yield viewer

    def keep(self, video: str, what: str, value: float | None) -> None:
        """`None`: it did not come in time."""
        self._study.keep({**self._head, "video": video, "what": what, "value": value})

    def click(self, viewer: Viewer, video: str, what: str) -> bool:
        """Whether it plays."""
        try:
            said = viewer.play(self.served.url(video))
        except NotSeen:
            self.keep(video, what, None)
            return False
        # A mount is made before the click here; whoever clicks waits for one that is not there yet.
        before_ms = self.served.connect_ms if what == COLD else 0.0
        self.keep(video, what, before_ms + said["frame_ms"])
        if what == COLD:
            self.keep(video, CONNECT, before_ms)
            self.keep(video, PLAYS, before_ms + said["plays_ms"])
        return True

    def seeks(self, viewer: Viewer, video: str, places_s: Sequence[float]) -> None:
        for to_s in places_s:
            try:
                self.keep(video, SEEK, viewer.seek(to_s))
            except NotSeen:
                self.keep(video, SEEK, None)
                return
            time.sleep(random.Random(to_s).uniform(*PAUSE_S))

    def watched(self, viewer: Viewer, number: int, video: str, seconds: float) -> None:
        """What was begun under that number, for so long at most."""
        try:
            said = viewer.result(number, seconds + ANSWER_SPARE_S)
        except NotSeen:
            self.keep(video, STALLS, None)
            return
        self.keep(video, STALLS, said["stalls"])
        self.keep(video, STALLED, said["stalled_ms"] / 1e3)
        if said["stalls"]:
            self.keep(video, LAST, said["last_s"])
        self.keep(video, BEHIND, max(said["took_s"] - said["played_s"], 0.0))
        self.keep(video, DROPPED, said["dropped"] / max(said["frames"], 1))


class Study:
    def __init__(self, plan: Plan, place: Place, opened: Browser, keep: Callable[[dict], None]):
        self.plan, self.place, self.browser, self.keep = plan, place, opened, keep

    def go(self) -> None:
        for repetition in range(self.plan.pace.repeat):
            if START in self.plan.parts:
                self._starts(repetition)
            if repetition < self.plan.pace.watches:
                self._watches(repetition)

    def _starts(self, repetition: int) -> None:
        for rtt_ms in self.plan.rtts_ms:
            for loss in dict.fromkeys((0.0, self.plan.loss)):
                link = Link(rtt_ms, loss, RATE, QUEUE_PACKETS)
                for name in _turned(self._over(loss), repetition):
                    self._attempt(name, link, repetition, self._start)
        for name in self.plan.ways:
            if not EVERY[name].over_line:
                self._attempt(name, Link(0.0, 0.0, RATE, QUEUE_PACKETS), repetition, self._start)

    def _watches(self, repetition: int) -> None:
        tasks = [task for part, task in ((WATCH, self._watch), (TOGETHER, self._together)) if part in self.plan.parts]
        for loss in dict.fromkeys((0.0, self.plan.loss)):
            link = Link(WATCH_RTT_MS, loss, RATE, QUEUE_PACKETS)
            for name in _turned(self._over(loss), repetition):
                for task in tasks:
                    self._attempt(name, link, repetition, task)

    def _over(self, loss: float) -> list[str]:
        """Ways that are taken over such a line."""
        return [name for name in self.plan.ways if EVERY[name].over_line and (not loss or name in self.plan.lossy)]

    def _attempt(self, name: str, link: Link, repetition: int, task: Callable) -> None:
        """What fails is told; the others go on."""
        way = EVERY[name]
        say(f"{repetition + 1}: {task.__name__.strip('_')}, {name}, RTT {link.rtt_ms:g} ms, loss {link.loss:g}")
        try:
            self.place.lab.become(link)
            task(way, link, repetition)
        except LabError as error:
            say(f"   failed: {error}")

    @contextmanager
    def session(self, way: Way, link: Link, repetition: int) -> Iterator[Session]:
        head = {"way": way.name, "rtt_ms": link.rtt_ms, "loss": link.loss, "repetition": repetition}
        before, kept = Line.of(self.place.lab), []
        keep, self.keep = self.keep, kept.append
        try:
            with way.serve(self.place) as served:
                yield Session(self, served, head)
        finally:
            self.keep = keep
            after, load = Line.of(self.place.lab), os.getloadavg()[0]
            late = (after.waited_s - before.waited_s) / (after.at_s - before.at_s)
            for record in kept:
                keep({**record, "load": round(load, 2), "late": round(late, 5)})

    def _start(self, way: Way, link: Link, repetition: int) -> None:
        made, pace = self.place.videos, self.plan.pace
        with self.session(way, link, repetition) as session, session.viewer() as viewer:
            if session.click(viewer, videos.FILM, COLD):
                viewer.stop()
                time.sleep(SETTLE_S)
                if session.click(viewer, videos.OTHER, WARM):
                    session.seeks(viewer, videos.OTHER, _places(made, videos.OTHER, pace.seeks, repetition))
        if not way.over_line:
            return
        others = [videos.END, videos.WEBM, videos.MKV] if way.name == "enkaku" else [videos.END]
        for video in others:
            with self.session(way, link, repetition) as session, session.viewer() as viewer:
                if session.click(viewer, video, COLD) and way.name == "enkaku":
                    session.seeks(viewer, video, _places(made, video, pace.other_seeks, repetition))

    def _watch(self, way: Way, link: Link, repetition: int) -> None:
        """One video that needs 70 % of the line."""
        seconds = self.plan.pace.watch_s
        with self.session(way, link, repetition) as session, session.viewer() as viewer:
            if not session.click(viewer, videos.FASTEST, COLD):
                session.keep(videos.FASTEST, STALLS, None)
                return
            session.watched(viewer, viewer.begin_watching(seconds), videos.FASTEST, seconds)

    def _together(self, way: Way, link: Link, repetition: int) -> None:
        """Eight who watch the same, and eight who watch different ones, a second after each other."""
        for files in ([videos.short(0)] * VIEWERS, [videos.short(number) for number in range(VIEWERS)]):
            with self.session(way, link, repetition) as session:
                self._viewers(session, files)

    def _viewers(self, session: Session, files: list[str]) -> None:
        made, told = self.place.videos, SAME if len(set(files)) == 1 else DIFFERENT
        seconds = max(made.seconds[name] for name in files) + SHORT_SPARE_S
        with ExitStack() as pages:
            viewers = [pages.enter_context(session.viewer()) for _ in files]
            before, watching = Line.of(self.place.lab), []
            for viewer, name in zip(viewers, files, strict=True):
                begin = time.monotonic()
                try:
                    viewer.play(session.served.url(name))
                except NotSeen:
                    session.keep(told, STALLS, None)
                    return
                watching.append((viewer, viewer.begin_watching(seconds)))
                time.sleep(max(0.0, begin + 1.0 - time.monotonic()))
            for viewer, number in watching:
                session.watched(viewer, number, told, seconds)
            carried = Line.of(self.place.lab).carried - before.carried
            session.keep(told, RATIO, carried / sum(made.bytes[name] for name in set(files)))


@contextmanager
def prepared(plan: Plan, made: Videos, folder: Path, keep: Callable[[dict], None]) -> Iterator[Study]:
    """A line, a browser beside its near end, and the addresses of our page's videos."""
    folder.mkdir(parents=True, exist_ok=True)
    with wan.up(Link(0.0, 0.0, RATE, QUEUE_PACKETS), folder) as lab:
        place = replace(Place(lab, made, folder, {}), paths=_paths(lab, made, folder))
        with browser.browser(folder / "browser", lambda argv: lab.exec("near", argv), made.warm_up) as opened:
            yield Study(plan, place, opened, keep)


def _paths(lab: wan.Lab, made: Videos, folder: Path) -> dict[str, str]:
    """They are made of a home's name and a path, so every run of the server has the same."""
    catalogue = ways.write_catalogue(folder / "catalogue.toml", made.disk, list(made.seconds))
    argv = [enkaku.binary(), "media", "serve", catalogue, "--listen", f"127.0.0.1:{ways.PORT}"]
    with peer(lab.exec("near", argv), folder / "paths.log") as serving:
        serving.wait_for_output(ways.ORIGIN)
        url = f"{ways.ORIGIN}/api/videos?limit=100"
        code = f"import urllib.request as u; print(u.urlopen({url!r}).read().decode())"
        found = json.loads(run(lab.exec("near", [sys.executable, "-c", code])).stdout)["videos"]
    paths = {one["title"]: one["src"] for one in found}
    if paths.keys() != made.seconds.keys():
        raise LabError("the page does not have all the videos")
    return paths


def _turned(names: Sequence[str], repetition: int) -> list[str]:
    """Nobody is always the first."""
    at = repetition % max(len(names), 1)
    return [*names[at:], *names[:at]]


def _places(made: Videos, name: str, count: int, repetition: int) -> list[float]:
    """Seconds in a video, one in each of as many equal parts of it, in any order; the same for all ways."""
    chance = random.Random(f"{name} {repetition}")
    part_s = (made.seconds[name] - 10) / count
    places = [round((number + chance.uniform(0.2, 0.8)) * part_s + 5, 2) for number in range(count)]
    chance.shuffle(places)
    return places
