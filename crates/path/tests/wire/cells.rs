//! Many lines at once, for whoever changes a number: what each carries in its first ten seconds and
//! afterwards, and what its queue drops. Two states of the model are compared cell by cell.

use ::path::Config;

use crate::flow::Law;
use crate::link::Line;
use crate::transfer::{Scenario, Transfer};
use crate::{lines, of_seed};

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
