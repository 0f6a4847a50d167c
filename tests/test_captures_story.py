"""S0's story in numbers: the tables of `python -m enkaku_lab packets` follow the data."""

import json
from pathlib import Path

import pytest

from enkaku_lab import story, table, transfers
from enkaku_lab.transfers import AUTO, HELD, MIB, OURS, Sample, Seen, Segment, Transfer

MSS = 1448
BLOCK = 4 * MIB


def _seen(
    stack: str, rtt_ms: float, ta_ms: float, bursts: int = 1, samples: list[Sample] = ()
) -> Seen:
    """Four writes, 1 s apart; the data of each leave in so many bursts over Ta."""
    commands, segments = [], []
    for number in range(4):
        commands.append(
            {"kind": "write", "at_s": float(number), "bytes": BLOCK, "before_us": 0.0,
             "ta_us": ta_ms * 1e3, "tb_us": 500.0}
        )
        for burst in range(bursts):
            begin = number + burst * ta_ms / 1e3 / max(1, bursts - 1)
            # Ten super-packets close together; the last burst ends with Ta.
            early = 9e-5 if burst == bursts - 1 and bursts > 1 else 0.0
            segments += [
                Segment(begin - early + k * 1e-5, True, BLOCK // bursts // 10, 0, [])
                for k in range(10)
            ]
    report = {"connections": [{"commands": commands, "to_target": {"mss_bytes": MSS}}]}
    return Seen(Transfer(stack, rtt_ms, BLOCK), report, segments, list(samples))


def _row(head: list[str], row: list[str]) -> dict[str, str]:
    return dict(zip(head, row, strict=True))


def test_a_line_through_points():
    line = story.fit([(0, 1.0), (10, 21.0), (20, 41.0)])
    assert (line.slope, line.intercept, line.r2) == pytest.approx((2.0, 1.0, 1.0))
    noisy = story.fit([(0, 0.0), (1, 5.0), (2, 0.0)])
    assert noisy.slope == pytest.approx(0.0) and noisy.r2 == pytest.approx(0.0)
    assert story.fit([(0, 1.0), (1, 2.0)]) is None
    assert story.fit([(5, 1.0), (5, 2.0), (5, 3.0)]) is None


def test_ta_grows_or_stays_flat_as_the_data_say():
    rtts = (0, 10, 20, 50)
    grows = _row(story.TA_HEAD, story.of_ta([_seen(HELD, rtt, 30 + 3 * rtt) for rtt in rtts]))
    assert (grows["Ta"], grows["ms per ms of RTT"]) == ("waits 3.0 RTT", "3.00")
    # A write a second: what is neither Ta nor Tb is Tc.
    assert (grows["R²"], grows["Tb, ms"], grows["Tc, ms"]) == (
        "1.000", "0.5 to 0.5", "819.5 to 969.5",
    )
    flat = _row(story.TA_HEAD, story.of_ta([_seen(OURS, rtt, 34 + 0.1 * rtt) for rtt in rtts]))
    assert (flat["Ta"], flat["ms per ms of RTT"]) == ("stays flat", "0.10")
    assert (flat["Ta, ms (at RTT)"], flat["to (at RTT)"]) == ("34 (0)", "39 (50)")
    assert "too few" in _row(story.TA_HEAD, story.of_ta([_seen(OURS, 0, 30)]))["Ta"]


def test_a_block_over_several_connections_is_one_write_and_the_first_seconds_do_not_count():
    def part(number: float, connection: int) -> dict:
        # A quarter of the block on each connection; the last one ends 40 ms after the first begins.
        return {"kind": "write", "at_s": number + connection * 1e-3, "bytes": BLOCK // 4,
                "before_us": 0.0, "ta_us": 37e3, "tb_us": 50e3}

    times = (0, 3, 6, 7.99, 8, 9, 10)
    connections = [{"commands": [part(at, one) for at in times]} for one in range(4)]
    writes = Seen(Transfer(AUTO, 50, BLOCK), {"connections": connections}, [], []).writes()
    assert [round(one["at_s"]) for one in writes] == [8, 9, 10]
    assert [one["ta_us"] for one in writes] == pytest.approx([40e3] * 3)
    assert [one["tb_us"] for one in writes] == pytest.approx([50e3] * 3)


def test_bursts_are_counted_and_their_distance_is_in_round_trips():
    found = story.bursts(_seen(HELD, 20, 60, bursts=4), MSS)
    assert found.per_write == 4 and found.apart_rtt == pytest.approx(1.0, abs=0.01)
    assert found.packets == pytest.approx(BLOCK / 4 / MSS, rel=0.01)
    four = _row(story.BURSTS_HEAD, story.of_bursts(_seen(HELD, 20, 60, bursts=4), MSS))
    assert (four["bursts a write"], four["MiB"]) == ("4.0", "1.00")
    one = _row(story.BURSTS_HEAD, story.of_bursts(_seen(OURS, 20, 0.09), MSS))
    assert (one["bursts a write"], one["RTTs from one to the next"]) == ("1.0", table.GAP)


def test_what_is_full_while_data_leave_holds_them_back():
    def at(queue: int, not_sent: int, in_flight: int) -> list[Sample]:
        """Every 5 ms; the buffer is 1 MB, the window 2 MB."""
        return [
            Sample(k * 0.005, 2_000_000, in_flight, not_sent, queue, 1_000_000) for k in range(800)
        ]

    held = _seen(HELD, 20, 60, samples=at(900_000, 0, 600_000))
    found = story.hold(held, MSS)
    assert (found.queue_full, found.held, found.window_full) == (1.0, 1.0, 0.0)
    # Two late writes of 60 ms; what was sampled between writes does not count.
    assert found.samples == pytest.approx(24, abs=2)

    def holds(seen: Seen) -> str:
        return _row(story.HOLD_HEAD, story.of_hold(seen, MSS))["what holds the data back"]

    assert _row(story.HOLD_HEAD, story.of_hold(held, MSS))["a second"] == "200"
    assert holds(held) == "send buffer"
    # Full, but what is in it waits to be sent: for the window.
    window = _seen(OURS, 20, 60, samples=at(900_000, 300_000, 1_950_000))
    assert holds(window) == "congestion window"
    line = _seen(OURS, 20, 60, samples=at(900_000, 300_000, 600_000))
    assert holds(line) == "neither"
    assert "no sample" in holds(_seen(OURS, 20, 60))


def test_the_story_has_a_table_for_each_finding():
    seen = [_seen(HELD, rtt, 30 + rtt, bursts=2) for rtt in (0, 10, 20)]
    tables = story.tell(seen, lambda one: MSS)
    assert [one.head for one in tables] == [story.TA_HEAD, story.BURSTS_HEAD, story.HOLD_HEAD]
    assert all(len(one.rows) == 1 and len(one.rows[0]) == len(one.head) for one in tables)


def test_a_transfer_without_iscsi_has_no_part_in_the_story():
    socket = Seen(Transfer(transfers.SOCKET, 20, BLOCK), {"connections": []}, [], [])
    assert socket.writes() == []
    alone = story.tell([_seen(OURS, 20, 0.09)], lambda _seen: MSS)
    assert story.tell([socket, _seen(OURS, 20, 0.09)], lambda _seen: MSS) == alone != []


def test_samples_are_those_of_the_connection_with_the_longest_queue(tmp_path: Path):
    def row(local: str, queue: int, times: list[float]) -> dict:
        series = [
            {"at_unix_s": at, "cwnd_bytes": 1, "in_flight_bytes": 2, "not_sent_bytes": 3,
             "send_memory_bytes": queue, "send_buffer_bytes": 5}
            for at in times
        ]
        return {"local": local, "cookie": 7, "series": series}

    path = tmp_path / "samples"
    lines = [
        {"connections": [row("a:1", 10, [100.0]), row("b:2", 99, [99.5, 100.5])]},
        {"connections": [row("b:2", 0, [101.0])]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = transfers._samples(path, 100.0)
    assert [(one.time_s, one.queue_bytes) for one in found] == [(0.5, 99), (1.0, 0)]
