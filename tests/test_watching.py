"""contrib/prometheus and contrib/grafana: they name metrics that there are, and Prometheus takes
them."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from conftest import MIB, empty, noise
from support.daemon import NAME_A, Daemon
from support.daemon import target as served
from support.mirror import TAIL, Mirror

from enkaku_lab import REPOSITORY, board
from enkaku_lab.peers import enkaku, need
from enkaku_lab.process import free_port, peer, run

RULES = REPOSITORY / "contrib/prometheus/rules.yml"
DASHBOARDS = sorted((REPOSITORY / "contrib/grafana").glob("*.json"))
ISNS = "enkaku_isns_"
"""Told where `[isns]` is set; test_isns.py looks at it."""
VERIFIED = "enkaku_mirror_verify_"
"""Told after a verification; a unit test of the daemon looks at it."""
REJECTED = "enkaku_pdus_rejected_total"
"""Told when there was one."""
LINE = "enkaku_volume_line_bytes_per_second"
"""Told once a queue has shown what the line carries."""


def _samples(text: str) -> set[str]:
    return set(re.findall(r"^(enkaku_\w+)[ {]", text, re.MULTILINE))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """Names of all samples that a daemon, a mirror, a volume and a monitor tell while there is something."""
    folder = tmp_path_factory.mktemp("told")
    daemon = Daemon(folder)
    daemon.write(served(NAME_A, "mem:64M", "mem:1M"))
    daemon.start()
    local, leg = noise(folder / "local.img", 4 * MIB), empty(folder / "leg.img", 4 * MIB + TAIL)
    mirror = Mirror(folder, local, [leg])
    mirror.create()
    mirror.start("--nbd", folder / "nbd.sock", "--metrics", "127.0.0.1:0")
    page = free_port()
    watch = [enkaku.binary(), "monitor", "--port", daemon.port, "--plain", "--interval", "200ms"]
    load = ["bench", daemon.url(), "--bs", "4k", "--time", "60s"]
    attach = [enkaku.binary(), "attach", daemon.url(lun=1), "--nbd", folder / "volume.sock"]
    try:
        with (
            peer([*watch, "--prometheus", f"127.0.0.1:{page}"], folder / "monitor.log") as monitor,
            peer([enkaku.binary(), *load], folder / "bench.log"),
            peer([*attach, "--metrics", "127.0.0.1:0"], folder / "attach.log") as attached,
        ):
            attached.wait_for_output("listening on")
            monitor.wait_for_output("metrics on")
            # A CHECK CONDITION, and a login that fails.
            enkaku.command("info", daemon.url(lun=7), check=False)
            enkaku.command("info", daemon.url("iqn.2026-11.org.example:none"), check=False)
            deadline = time.monotonic() + 30
            names: set[str] = set()
            while "enkaku_tcp_limit" not in names or "enkaku_tcp_rtt_seconds" not in names:
                assert time.monotonic() < deadline, names
                with closing(
                    urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=10)
                ) as answer:
                    names = _samples(answer.read().decode())
                time.sleep(0.1)
            names |= _samples(daemon.page("/metrics")[1])
            own = re.search(r"metrics on (\S+)", attached.output())[1]
            while "enkaku_volume_link_rtt_seconds" not in names:
                assert time.monotonic() < deadline, names
                with closing(urllib.request.urlopen(own, timeout=10)) as answer:
                    names |= _samples(answer.read().decode())
            names |= {re.match(r"\w+", sample)[0] for sample in mirror.metrics()}
        yield names
    finally:
        mirror.peer.stop()
        daemon.peer.stop()


def _named(text: str) -> set[str]:
    return set(re.findall(r"\benkaku_\w+", text))


@pytest.mark.parametrize("file", [RULES, *DASHBOARDS], ids=lambda file: file.name)
def test_every_metric_that_is_named_is_told(file: Path, told: set[str]):
    named = _named(file.read_text())
    assert named
    rare = {name for name in named if name.startswith((ISNS, VERIFIED, REJECTED, LINE))}
    assert named - rare <= told, named - rare - told


@pytest.fixture(scope="module")
def promtool() -> str:
    return need("promtool")


@pytest.mark.needs("promtool")
def test_prometheus_takes_the_rules_and_they_come_when_they_should(promtool: str):
    run([promtool, "check", "rules", RULES])
    run([promtool, "check", "config", RULES.with_name("scrape.yml")])
    run([promtool, "test", "rules", RULES.with_name("rules_test.yml")])


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.name)
def test_prometheus_understands_what_the_panels_ask(file: Path, promtool: str, tmp_path: Path):
    """As Grafana asks it, with its variables filled in."""
    board = json.loads(file.read_text())
    questions = [
        re.sub(r"\$\w+", ".*", target["expr"].replace("$__rate_interval", "1m"))
        for panel in board["panels"]
        for target in panel.get("targets", [])
    ]
    assert len(questions) >= 8
    rules = [{"record": f"question:{at}", "expr": expr} for at, expr in enumerate(questions)]
    asked = tmp_path / "asked.yml"
    asked.write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))
    run([promtool, "check", "rules", "--lint=none", asked])


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.name)
def test_panels_have_places_and_names_of_their_own(file: Path):
    board = json.loads(file.read_text())
    variables = {variable["name"] for variable in board["templating"]["list"]}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and board["uid"] == file.stem
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables, target["expr"]


def test_a_panel_asks_and_tells_as_grafana_does():
    asked = board.question('rate(a{instance=~"$instance",m=~"${m}"}[$__rate_interval])')
    assert asked == 'rate(a{instance=~".*",m=~".*"}[10s])'
    assert board.legend("{{mirror}} leg {{leg}}", {"mirror": "vm1"}) == "vm1 leg"
    told = [board.value(*pair) for pair in ((2.5e6, "Bps"), (0.0421, "s"), (0.5, "percentunit"), (1536, "bytes"), (0, "s"))]
    assert told == ["2.5 MB/s", "42.1 ms", "50%", "1.5 KiB", "0 s"]
    units = {panel["fieldConfig"]["defaults"]["unit"] for path in DASHBOARDS
             for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"}
    assert units <= {*board.SCALES, "s", "percentunit"}


class _Answers:
    """A Prometheus that has two series for whatever is asked, but for hits."""

    begin = 1000.0

    def ask(self, question: str) -> list[dict]:
        if "cache_hits" in question:
            return []
        values = [[self.begin + at, str(at * 1e5)] for at in range(60)]
        return [{"metric": {"lun": name, "volume": name}, "values": values} for name in "ab"]


def test_a_dashboard_is_drawn_as_it_is_laid_out(tmp_path: Path):
    dashboard = json.loads(next(path for path in DASHBOARDS if "volume" in path.name).read_text())
    picture = tmp_path / "board.svg"
    with board.plt.rc_context({"svg.fonttype": "none"}):
        board.draw(dashboard, _Answers(), picture)
    text = picture.read_text()
    for panel in dashboard["panels"]:
        assert f">{panel['title']}<" in text, panel["title"]
    assert "— a" in text and "MB/s" in text and text.count("no data") == 1 and "Cache" in text
