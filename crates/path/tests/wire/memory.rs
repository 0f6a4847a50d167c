//! A path that was seen before: it is full sooner and not overrun, and one that has become slower
//! is not harmed.

use ::path::{Config, Remembered};

use crate::link::Line;
use crate::transfer::{LOGIN_ROUND_TRIPS, Scenario, Transfer};
use crate::{GIGABIT, of_seed};

/// Nothing is drawn on these lines: one for either end.
const SEEDS: [u64; 2] = [1, 2];

fn start(line: Line, remembered: Option<Remembered>, seed: u64, to_s: f64) -> Transfer {
    let depth_bytes = 33554432.0_f64.max(4.0 * line.bytes_per_s * line.rtt_s);
    // Jumbo frames, or a simulated second takes one.
    let packet_bytes = if line.bytes_per_s > GIGABIT { 9000.0 } else { 1448.0 };
    let scenario = Scenario { line, depth_bytes, packet_bytes, ..Scenario::default() };
    let mut transfer = Transfer::new(of_seed(scenario, seed), Config::default(), seed);
    transfer.remember(remembered);
    transfer.run(to_s);
    transfer
}

/// A line of so many gigabits, milliseconds and packets of queue.
fn line(gigabits: f64, rtt_ms: f64, queue_packets: usize) -> Line {
    let (bytes_per_s, rtt_s) = (gigabits * GIGABIT, rtt_ms / 1e3);
    Line { bytes_per_s, rtt_s, queue_packets, ..Line::default() }
}

/// Lines of a gigabit from 10 to 200 ms.
fn gigabits() -> Vec<Line> {
    [(10.0, 2000), (20.0, 2000), (50.0, 500), (50.0, 2000), (100.0, 2000), (200.0, 2000)]
        .map(|(rtt_ms, queue_packets)| line(1.0, rtt_ms, queue_packets))
        .to_vec()
}

/// Faster ones, where a new path takes long to be full.
fn fast() -> [Line; 2] {
    [line(10.0, 50.0, 3000), line(10.0, 100.0, 3000)]
}

/// What a first transfer over this line leaves for the next.
fn left_by(line: Line, seed: u64) -> Remembered {
    start(line, None, seed, 25.0).remembered().expect("a line that was full")
}

/// Round trips from the first command until 0.9 of the line are carried in an interval.
fn full_after(transfer: &Transfer) -> f64 {
    let Line { rtt_s, bytes_per_s, .. } = transfer.line();
    let begin_s = LOGIN_ROUND_TRIPS * rtt_s;
    let full = |(at_s, rate): &&(f64, f64)| *at_s > begin_s && *rate >= 0.9 * bytes_per_s;
    transfer.rates.iter().find(full).map_or(f64::INFINITY, |(at_s, _)| (at_s - begin_s) / rtt_s)
}

/// Share of the line that the first seconds after the login are full of.
fn share(transfer: &Transfer, span_s: f64) -> f64 {
    let Line { rtt_s, bytes_per_s, .. } = transfer.line();
    let begin_s = LOGIN_ROUND_TRIPS * rtt_s;
    transfer.mean(begin_s, begin_s + span_s) / bytes_per_s
}

#[test]
fn a_fast_path_that_is_remembered_is_full_in_the_time_of_slow_start() {
    for line in fast() {
        for seed in SEEDS {
            let saved = left_by(line, seed);
            let (cold, warm) = (start(line, None, seed, 6.0), start(line, Some(saved), seed, 6.0));
            let (before, now) = (full_after(&cold), full_after(&warm));
            let name = format!("{line:?}, seed {seed}: {before:.0} round trips, then {now:.0}");
            // Slow start takes nine from ten segments to a window; samples come on top.
            assert!(now <= 18.0 && now < before / 3.0, "{name}, {saved:?}");
            assert!(share(&warm, 3.0) >= 1.5 * share(&cold, 3.0), "{name}");
        }
    }
}

#[test]
fn a_gigabit_that_is_remembered_is_as_full_and_overrun_less() {
    for line in gigabits() {
        for seed in SEEDS {
            let saved = left_by(line, seed);
            let (cold, warm) = (start(line, None, seed, 5.0), start(line, Some(saved), seed, 5.0));
            let (before, now) = (share(&cold, 3.0), share(&warm, 3.0));
            let name = format!("{line:?}, seed {seed}: {before:.3}, then {now:.3}");
            // A round trip or two of slow start behind losses, in either.
            assert!(now >= before - 0.05, "{name}");
            let (before, now) = (cold.dropped(), warm.dropped());
            assert!(now <= before, "{name}; dropped {before}, then {now}");
        }
    }
}

#[test]
fn a_path_that_has_become_a_tenth_is_not_harmed() {
    for was in [
        line(1.0, 10.0, 2000),
        line(1.0, 50.0, 500),
        line(1.0, 50.0, 2000),
        line(1.0, 100.0, 2000),
        line(10.0, 50.0, 3000),
        line(10.0, 100.0, 3000),
    ] {
        for seed in SEEDS {
            let saved = left_by(was, seed);
            let line = Line { bytes_per_s: was.bytes_per_s / 10.0, ..was };
            let (cold, warm) =
                (start(line, None, seed, 12.0), start(line, Some(saved), seed, 12.0));
            let name = format!("{line:?}, seed {seed}, {saved:?}");
            let (before, now) = (cold.dropped(), warm.dropped());
            // Once, and by no more than the queue holds.
            let most = before + was.queue_packets as u64;
            assert!(now <= most, "{name}; dropped {before}, then {now}");
            let (before, now) = (cold.queue_s(5.0, 12.0), warm.queue_s(5.0, 12.0));
            // The two ends of one new line differ by as much.
            assert!(now <= before + 0.035, "{name}; queue {before:.3} s, then {now:.3} s");
            let (before, now) = (cold.mean(3.0, 12.0), warm.mean(3.0, 12.0));
            // A new path may keep the line full by 200 ms of queue, which this one has not.
            assert!(now >= 0.9 * before, "{name}; {before:.0} bytes/s, then {now:.0}");
        }
    }
}

#[test]
#[ignore = "a table to read"]
fn table_of_memory() {
    let more = [line(1.0, 200.0, 8000), line(0.1, 50.0, 500)];
    for was in gigabits().into_iter().chain(more).chain(fast()) {
        for seed in SEEDS {
            let Some(saved) = start(was, None, seed, 25.0).remembered() else {
                println!("{was:?}, seed {seed}: nothing is remembered");
                continue;
            };
            println!("{was:?}, seed {seed}: {saved:?}");
            for factor in [1.0, 0.1] {
                let line = Line { bytes_per_s: factor * was.bytes_per_s, ..was };
                for known in [None, Some(saved)] {
                    let run = start(line, known, seed, 12.0);
                    println!(
                        "  {factor:3} {:5}: full after {:5.1} round trips, 3 s {:.3}, 3-12 s {:.3}, dropped {:5}, queue 5-12 s {:4.0} ms, {:.1?}",
                        if known.is_some() { "known" } else { "new" },
                        full_after(&run),
                        share(&run, 3.0),
                        run.mean(3.0, 12.0) / line.bytes_per_s,
                        run.dropped(),
                        1e3 * run.queue_s(5.0, 12.0),
                        run.moves
                    );
                }
            }
        }
    }
}

/// One run to look at, with what is remembered where `BEFORE` is another line:
/// `TRACE=1 CASE="gigabits rtt_ms queue seed" …`.
#[test]
#[ignore = "a run to read"]
fn one_warm_run() {
    let case = std::env::var("CASE").unwrap_or_default();
    let n: Vec<f64> = case.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [gigabits, rtt_ms, queue, factor, seed] = n[..] else { return };
    let was = line(gigabits, rtt_ms, queue as usize);
    let saved = left_by(was, seed as u64);
    println!("NOW {saved:?}");
    start(Line { bytes_per_s: factor * was.bytes_per_s, ..was }, Some(saved), seed as u64, 12.0);
}
