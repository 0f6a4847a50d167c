//! A transfer in the background: alone, and beside a flow of TCP that comes and goes.

use ::path::Config;

use crate::flow::Law;
use crate::link::Line;
use crate::transfer::{Scenario, Transfer};
use crate::{GIGABIT, SEEDS};

fn run(scenario: Scenario, seed: u64, to_s: f64) -> Transfer {
    let scenario = crate::of_seed(scenario, seed);
    let mut transfer = Transfer::new(scenario, Config::in_background(), seed);
    transfer.run(to_s);
    transfer
}

fn line(rtt_ms: f64, queue_packets: usize) -> Line {
    Line { rtt_s: rtt_ms / 1e3, queue_packets, ..Line::default() }
}

const JITTERS_S: [f64; 2] = [0.0, 0.001];
/// When the flow comes, and when it has gone.
const FLOW_S: (f64, f64) = (20.0, 80.0);

/// A flow of cubic with nobody beside it, and one that is there while we are.
fn flows(line: Line, seed: u64) -> (Transfer, Transfer) {
    let other = Some((FLOW_S.0, Law::Cubic));
    let scenario = || Scenario { line, other, ..Scenario::default() };
    let mut alone = Transfer::plain(scenario(), 0, seed);
    alone.run(FLOW_S.1);
    let beside = run(Scenario { other_ends_s: FLOW_S.1, ..scenario() }, seed, FLOW_S.1 + 20.0);
    (alone, beside)
}

#[test]
fn alone_it_takes_nine_tenths_of_the_line() {
    for (rtt_ms, queue_packets) in [
        (1.0, 250),
        (1.0, 2000),
        (1.0, 8000),
        (10.0, 250),
        (10.0, 2000),
        (10.0, 8000),
        (50.0, 2000),
        (50.0, 8000),
        (200.0, 2000),
        (200.0, 8000),
    ] {
        for (jitter_s, seed) in JITTERS_S.into_iter().flat_map(|j| SEEDS.map(|seed| (j, seed))) {
            let line = Line { jitter_s, ..line(rtt_ms, queue_packets) };
            let transfer = run(Scenario { line, ..Scenario::default() }, seed, 60.0);
            let share = transfer.mean(15.0, 60.0) / GIGABIT;
            let case = format!("{rtt_ms} ms, queue {queue_packets}, jitter {jitter_s}, {seed}");
            assert!(share >= 0.90, "{case}: {share:.3}");
        }
    }
}

#[test]
fn a_flow_beside_it_keeps_nine_tenths_of_what_it_has_alone() {
    for (rtt_ms, queue_packets) in
        [(1.0, 250), (1.0, 2000), (1.0, 8000), (10.0, 2000), (10.0, 8000)]
    {
        for (jitter_s, seed) in JITTERS_S.into_iter().flat_map(|j| SEEDS.map(|seed| (j, seed))) {
            let line = Line { jitter_s, ..line(rtt_ms, queue_packets) };
            let (alone, beside) = flows(line, seed);
            let [kept, all] = [&beside, &alone].map(|of| of.mean_of_others(FLOW_S.0, FLOW_S.1));
            let case = format!("{rtt_ms} ms, queue {queue_packets}, jitter {jitter_s}, {seed}");
            assert!(kept >= 0.90 * all, "{case}: {:.3}", kept / all);
            // It has given way three seconds after the flow began.
            let ours = beside.mean(FLOW_S.0 + 3.0, FLOW_S.1) / GIGABIT;
            assert!(ours <= 0.10, "{case}: {ours:.3} beside the flow");
            let back = beside.mean(FLOW_S.1 + 15.0, FLOW_S.1 + 20.0) / GIGABIT;
            assert!(back >= 0.85, "{case}: {back:.3} when the flow has gone");
        }
    }
}

/// Where the way is long a flow's slow start ends in the queue that we leave it, and what cubic
/// takes to fill the line then is longer than this runs.
#[test]
fn over_a_long_way_it_still_takes_far_less_than_a_flow_of_tcp_would() {
    for (rtt_ms, queue_packets) in [(50.0, 2000), (50.0, 8000), (200.0, 8000)] {
        for (jitter_s, seed) in JITTERS_S.into_iter().flat_map(|j| SEEDS.map(|seed| (j, seed))) {
            let line = Line { jitter_s, ..line(rtt_ms, queue_packets) };
            let (alone, beside) = flows(line, seed);
            let [kept, all] = [&beside, &alone].map(|of| of.mean_of_others(FLOW_S.0, FLOW_S.1));
            let case = format!("{rtt_ms} ms, queue {queue_packets}, jitter {jitter_s}, {seed}");
            assert!(kept >= 0.50 * all, "{case}: {:.3}", kept / all);
        }
    }
}

#[test]
#[ignore = "a table to read"]
fn table_of_background() {
    for jitter_s in [0.0, 0.001] {
        for rtt_ms in [1.0, 10.0, 50.0, 200.0] {
            for queue in [250, 2000, 8000] {
                for seed in [1, 2] {
                    let line = Line { jitter_s, ..line(rtt_ms, queue) };
                    let alone = run(Scenario { line, ..Scenario::default() }, seed, 60.0);
                    // A flow that has nobody beside it.
                    let other = Some((20.0, Law::Cubic));
                    let scenario = Scenario { line, other, ..Scenario::default() };
                    let mut plain = Transfer::plain(scenario, 0, seed);
                    plain.run(80.0);
                    let scenario =
                        Scenario { line, other, other_ends_s: 80.0, ..Scenario::default() };
                    let both = run(scenario, seed, 110.0);
                    let before = alone.mean(10.0, 20.0);
                    let yields = (0..300).map(|n| 20.0 + f64::from(n) / 10.0);
                    let yields =
                        yields.into_iter().find(|t| both.mean(*t - 0.5, *t) < 0.2 * before);
                    let back = (0..300).map(|n| 80.5 + f64::from(n) / 10.0);
                    let back = back.into_iter().find(|t| both.mean(*t - 0.5, *t) > 0.9 * GIGABIT);
                    println!(
                        "jitter {jitter_s} rtt {rtt_ms:5} queue {queue:5} seed {seed}: alone {:.3} n {:?} other {:.3} of {:.3} = {:.3}, ours {:.3} yields {:.1} back {:.1}",
                        alone.mean(10.0, 60.0) / GIGABIT,
                        alone.moves.last().map(|m| m.1),
                        both.mean_of_others(20.0, 80.0) / GIGABIT,
                        plain.mean_of_others(20.0, 80.0) / GIGABIT,
                        both.mean_of_others(20.0, 80.0) / plain.mean_of_others(20.0, 80.0),
                        both.mean(20.0, 80.0) / GIGABIT,
                        yields.unwrap_or(f64::NAN) - 20.0,
                        back.unwrap_or(f64::NAN) - 80.0,
                    );
                }
            }
        }
    }
}

/// One run to look at: `TRACE=1 CASE="rtt_ms queue jitter_s begins ends to_s" … one_background --
/// --ignored --nocapture`.
#[test]
#[ignore = "a run to read"]
fn one_background() {
    let case = std::env::var("CASE").unwrap_or_default();
    let n: Vec<f64> = case.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [rtt_ms, queue, jitter_s, begins_s, ends_s, to_s] = n[..] else { return };
    let line = Line { jitter_s, ..line(rtt_ms, queue as usize) };
    let other = Some((begins_s, Law::Cubic));
    run(Scenario { line, other, other_ends_s: ends_s, ..Scenario::default() }, 1, to_s);
}
