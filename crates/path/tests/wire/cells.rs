//! Many lines at once, for whoever changes a number: what each carries in its first ten seconds and
//! afterwards, and what its queue drops. Two states of the model are compared cell by cell.

use ::path::Config;

use crate::flow::Law;
use crate::link::Line;
use crate::transfer::{Scenario, Transfer};
use crate::{lines, of_seed, plain, run};

const SEEDS: [u64; 2] = [1, 2];
const END_S: f64 = 40.0;

fn of(line: Line) -> Scenario {
    Scenario { line, ..Scenario::default() }
}

/// Round trips and queues, losses and jitters under each congestion control, policers, and the
/// lines of [`lines`].
fn cells() -> Vec<(String, Scenario)> {
    let mut cells: Vec<_> =
        lines().into_iter().map(|(name, scenario)| (name.to_owned(), scenario)).collect();
    let base = Line::default();
    for rtt_ms in [1.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0] {
        let line = Line { rtt_s: rtt_ms / 1e3, ..base };
        for queue_packets in [250, 2000, 8000] {
            let name = format!("{rtt_ms} ms, queue {queue_packets}");
            cells.push((name, of(Line { queue_packets, ..line })));
        }
        for jitter_s in [0.001, 0.01].into_iter().filter(|_| rtt_ms >= 10.0) {
            cells.push((format!("{rtt_ms} ms, jitter {jitter_s}"), of(Line { jitter_s, ..line })));
        }
        for loss in [1e-5, 1e-4, 1e-3] {
            for law in [Law::Cubic, Law::Reno, Law::Bbr] {
                let name = format!("{rtt_ms} ms, loss {loss:.0e}, {:?}", law.name());
                cells.push((name, Scenario { law, ..of(Line { loss, ..line }) }));
            }
        }
    }
    for rate in [30e6, 45e6, 80e6] {
        for (burst, rtt_s) in [(1e6, 0.02), (5e6, 0.02), (1e6, 0.05), (5e6, 0.05)] {
            let name = format!("policer {rate:.0e}, burst {burst:.0e}, {rtt_s} s");
            cells.push((name, of(Line { policer: Some((rate, burst)), rtt_s, ..base })));
        }
    }
    cells
}

#[test]
#[ignore = "a table to read"]
fn table_of_cells() {
    let mut sums = [0.0; 3];
    let count = cells().len() * SEEDS.len();
    for at in 0..cells().len() {
        for seed in SEEDS {
            let (name, scenario) = cells().swap_remove(at);
            let rate = scenario.line.bytes_per_s;
            let mut run = Transfer::new(of_seed(scenario, seed), Config::default(), seed);
            run.run(END_S);
            let (first, then) = (run.mean(0.0, 10.0) / rate, run.mean(10.0, END_S) / rate);
            let number = run.moves.last().map_or(0, |(_, number)| *number);
            println!("{name}, {seed}: {first:.3} {then:.3} dropped {} n {number}", run.dropped());
            for (sum, value) in sums.iter_mut().zip([first, then, run.dropped() as f64]) {
                *sum += value / count as f64;
            }
        }
    }
    println!("{count} runs, on average: {:.4} {:.4} dropped {:.0}", sums[0], sums[1], sums[2]);
}

/// Shares of the line in the first 20 s, from then to a minute and in the second one; the least of
/// ten seconds after the first twenty; the queue of the second minute; and the number. `PLAIN=1`:
/// of sixteen plain flows. `LOSS=1e-4`: with losses.
#[test]
#[ignore = "a table to read"]
fn table_of_jitters() {
    let mut shares_of_all = Vec::new();
    for rtt_s in [0.01, 0.02, 0.05, 0.1, 0.2] {
        for (jitter_s, jitter_back) in jitters(2.0 * rtt_s) {
            let line = Line { rtt_s, jitter_s, jitter_back, ..Line::default() };
            let rows = [1, 2, 3, 4].map(|seed| {
                let transfer = jittered(line, seed);
                let share = |from_s, to_s| transfer.mean(from_s, to_s) / line.bytes_per_s;
                let shares = [share(0.0, 20.0), share(20.0, 60.0), share(60.0, 120.0)];
                shares_of_all.push(shares);
                let tens =
                    (2..12).map(|ten| share(10.0 * f64::from(ten), 10.0 * f64::from(ten + 1)));
                let least = tens.fold(f64::INFINITY, f64::min);
                let number = transfer.moves.last().map_or(0, |(_, number)| *number);
                let queue_ms = 1e3 * transfer.queue_s(60.0, 120.0);
                format!("{shares:.2?} {least:.2}, {queue_ms:4.1} ms, n {number}")
            });
            let ways = if jitter_back { 2 } else { 1 };
            println!("{} ms, {ways} × {} ms: {}", 1e3 * rtt_s, 1e3 * jitter_s, rows.join(" | "));
        }
    }
    let count = shares_of_all.len() as f64;
    let mean = |at: usize| shares_of_all.iter().map(|shares| shares[at]).sum::<f64>() / count;
    println!("on average {:.4} {:.4} {:.4}", mean(0), mean(1), mean(2));
}

/// Up to so many seconds, one way and both.
fn jitters(most_s: f64) -> impl Iterator<Item = (f64, bool)> {
    let both = |jitter_s| [(jitter_s, false), (jitter_s, true)];
    let all = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.04].into_iter();
    let jitters = all.filter(move |jitter_s| *jitter_s <= most_s).flat_map(both);
    std::iter::once((0.0, false)).chain(jitters)
}

fn jittered(line: Line, seed: u64) -> Transfer {
    let loss = std::env::var("LOSS").map_or(0.0, |loss| loss.parse().expect("a share"));
    let scenario = of(Line { loss, ..line });
    match std::env::var_os("PLAIN") {
        Some(_) => plain(of_seed(scenario, seed), 16, seed, 120.0),
        None => run(scenario, seed, 120.0),
    }
}
