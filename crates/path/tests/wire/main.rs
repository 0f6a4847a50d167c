//! The model against lines that nothing in it was tuned on: packet by packet, with senders of TCP,
//! other queues, policers, jitter and rates. It shares no code with the fluid models.

mod background;
mod cells;
mod flow;
mod holes;
mod link;
mod memory;
mod neighbours;
#[allow(dead_code)] // the fluid models draw normal values, too
#[path = "../models/random.rs"]
mod random;
mod transfer;

use ::path::Config;

use flow::Law;
use link::Line;
use transfer::{COMMAND_BYTES, Scenario, Transfer};

const GIGABIT: f64 = 117e6;

fn run(scenario: Scenario, seed: u64, to_s: f64) -> Transfer {
    let scenario = of_seed(scenario, seed);
    let mut transfer = Transfer::new(scenario, Config::default(), seed);
    transfer.run(to_s);
    transfer
}

fn plain(scenario: Scenario, flows: usize, seed: u64, to_s: f64) -> Transfer {
    let mut transfer = Transfer::plain(scenario, flows, seed);
    transfer.run(to_s);
    transfer
}

/// The end that receives has the even seeds.
fn of_seed(scenario: Scenario, seed: u64) -> Scenario {
    Scenario { reads: seed.is_multiple_of(2), ..scenario }
}

/// Seeds that were looked at while the model was made, and those that were held back until its end.
const SEEDS: [u64; 4] = [1, 2, 101, 102];

/// The least share of what eight plain flows carry through a policer.
const POLICED_LEAST: f64 = 0.88;

/// Least share of what plain flows carry, where packets are lost by lot: a packet that is sent at
/// another time draws another lot.
const LOSSY_LEAST: f64 = 0.9;

#[test]
fn a_new_path_is_full_soon_after_its_first_command() {
    // The login takes nine round trips here, as it did before the unit was asked beside it; slow
    // start seven to ten.
    for (rtt_ms, queue_packets, least) in [
        (1.0, 250, 0.99),
        (10.0, 250, 0.98),
        (10.0, 2000, 0.99),
        (20.0, 2000, 0.985),
        (50.0, 2000, 0.96),
        (100.0, 2000, 0.94),
        (100.0, 8000, 0.95),
        (200.0, 2000, 0.74),
        (200.0, 8000, 0.90),
    ] {
        for seed in SEEDS {
            let rtt_s = rtt_ms / 1e3;
            let line = Line { rtt_s, queue_packets, ..Line::default() };
            let transfer = run(Scenario { line, ..Scenario::default() }, seed, 20.0);
            let share = transfer.mean(0.0, 20.0) * 20.0 / (20.0 - 9.0 * rtt_s) / GIGABIT;
            assert!(share >= least, "{rtt_ms} ms, queue {queue_packets}, seed {seed}: {share:.3}");
        }
    }
}

#[test]
fn a_path_is_as_full_as_with_eight_plain_flows() {
    for (at, (name, scenario)) in lines().into_iter().enumerate() {
        let Scenario { pauses_s: None, other: None, .. } = scenario else {
            continue;
        };
        for seed in SEEDS {
            let (_, scenario) = lines().swap_remove(at);
            let ours = run(scenario, seed, 40.0);
            let (_, scenario) = lines().swap_remove(at);
            let mut theirs = Transfer::plain(scenario, 8, seed);
            theirs.run(40.0);
            // What changes at 20 s has five seconds; eight flows are much slower over the longer
            // way.
            let [ours_, theirs_] = [&ours, &theirs].map(|transfer| transfer.mean(25.0, 40.0));
            let moves = &ours.moves;
            let share = ours_ / theirs_;
            let least = match name {
                _ if name.contains("policer") => POLICED_LEAST,
                _ if name.contains("loss") => LOSSY_LEAST,
                _ => 0.96,
            };
            assert!(share >= least, "{name}, seed {seed}: {share:.3} of theirs, {moves:.1?}");
        }
    }
}

#[test]
fn policers_are_as_full_as_with_eight_plain_flows_in_the_middle() {
    // What a policer does to two senders that differ by one packet is as good as drawn by lot.
    let lines = || {
        [30e6, 45e6, 58e6, 80e6].into_iter().flat_map(|rate| {
            [1e6, 5e6].map(|burst| Line { policer: Some((rate, burst)), ..Line::default() })
        })
    };
    for rtt_s in [0.02, 0.05] {
        for seed in [1, 2] {
            let scenario = |line| Scenario { line: Line { rtt_s, ..line }, ..Scenario::default() };
            let share = |line| {
                let ours = run(scenario(line), seed, 40.0);
                let theirs = plain(of_seed(scenario(line), seed), 8, seed, 40.0);
                ours.mean(25.0, 40.0) / theirs.mean(25.0, 40.0)
            };
            let mut shares: Vec<f64> = lines().map(share).collect();
            shares.sort_by(f64::total_cmp);
            let (least, middle) = (shares[0], (shares[3] + shares[4]) / 2.0);
            assert!(
                least >= POLICED_LEAST && middle >= 0.95,
                "{rtt_s} s, seed {seed}: {shares:.2?}"
            );
        }
    }
}

#[test]
fn bbr_with_losses_is_as_full_as_with_eight_plain_flows_in_the_middle() {
    let scenario = || Scenario {
        law: Law::Bbr,
        line: Line { loss: 1e-3, ..Line::default() },
        ..Scenario::default()
    };
    let mut shares = (1..=20)
        .map(|seed| {
            let theirs = plain(of_seed(scenario(), seed), 8, seed, 40.0);
            run(scenario(), seed, 40.0).mean(25.0, 40.0) / theirs.mean(25.0, 40.0)
        })
        .collect::<Vec<f64>>();
    shares.sort_by(f64::total_cmp);
    let middle = (shares[9] + shares[10]) / 2.0;
    assert!(shares[0] >= LOSSY_LEAST && shares[2] >= 0.95 && middle >= 0.98, "{shares:.2?}");
}

#[test]
fn bursts_of_which_some_is_lost_show_no_line() {
    // What comes when a hole is filled comes all at once, and leaves the application without enough
    // under way: that was taken for bursts which the line carries at the pace, and no number was
    // looked for beside a line believed to be wider than it is (0.25 with reno in place of 0.68).
    for (law, least) in [(Law::Reno, 0.6), (Law::Cubic, 0.7), (Law::Bbr, 0.75)] {
        for seed in [2, 4, 102, 104] {
            let line = Line { rtt_s: 0.3, loss: 1e-4, ..Line::default() };
            let scenario = Scenario { law, line, ..Scenario::default() };
            let share = run(scenario, seed, 40.0).mean(10.0, 40.0) / GIGABIT;
            assert!(share >= least, "{:?}, seed {seed}: {share:.3}", law.name());
        }
    }
}

#[test]
fn jitter_is_not_taken_for_a_full_line() {
    // HyStart takes it for a queue, and windows are a twentieth of what fills the line then.
    let line = Line { rtt_s: 0.02, jitter_s: 0.01, ..Line::default() };
    let run = |seed| run(Scenario { line, ..Scenario::default() }, seed, 20.0);
    let runs: Vec<Transfer> = (11..=22).map(run).collect();
    let share = |from_s: f64, to_s: f64| {
        let mut shares: Vec<f64> =
            runs.iter().map(|run| run.mean(from_s, to_s) / GIGABIT).collect();
        shares.sort_by(f64::total_cmp);
        shares
    };
    let (first, then) = (share(0.0, 10.0), share(10.0, 20.0));
    assert!(first[0] >= 0.24 && first[6] >= 0.7 && then[0] >= 0.75, "{first:.2?}, {then:.2?}");
}

#[test]
fn a_number_is_found_although_losses_come_after_the_search() {
    // At the end that sends, which counts them; a window of slow start lasts for some seconds.
    let line = Line { loss: 1e-4, ..Line::default() };
    let share = |seed| run(Scenario { line, ..Scenario::default() }, seed, 20.0).mean(0.0, 20.0);
    let mut shares: Vec<f64> = (0..11).map(|n| share(2 * n + 11) / GIGABIT).collect();
    shares.sort_by(f64::total_cmp);
    assert!(shares[5] >= 0.87, "{shares:.2?}");
}

#[test]
fn a_full_path_keeps_its_connections() {
    let still = |name: &str| !name.contains("loss") && !name.contains("policer");
    for (at, (name, scenario)) in lines().into_iter().enumerate().filter(|(_, l)| still(l.0)) {
        let changes = !scenario.changes.is_empty() || scenario.line.queue_packets <= 250;
        let Scenario { other: None, .. } = scenario else {
            continue;
        };
        let (_, scenario) = lines().swap_remove(at);
        let transfer = run(scenario, 102, 120.0);
        let late = transfer.moves.iter().filter(|(t_s, _)| *t_s > 60.0).count();
        assert!(changes || late == 0, "{name}: {:.1?}", transfer.moves);
    }
}

#[test]
fn an_application_that_pauses_finds_the_path_as_it_left_it() {
    for (at, (name, scenario)) in lines().into_iter().enumerate() {
        let Some(span_s) = scenario.pauses_s else {
            continue;
        };
        for seed in SEEDS {
            let (_, scenario) = lines().swap_remove(at);
            let transfer = run(scenario, seed, 41.0 * span_s);
            // It is silent half of the time; what is under way when a pause begins still comes.
            let share = transfer.mean(20.0 * span_s, 40.0 * span_s) / GIGABIT;
            assert!(share >= 0.48, "{name}, seed {seed}: {share:.3}");
        }
    }
}

/// They are no full line: what is carried then tells nothing of it.
#[test]
fn a_few_commands_at_a_time_are_carried_as_without_a_pace() {
    for rtt_s in [0.02, 0.05, 0.1] {
        for (commands, reads) in [(1.0, false), (1.0, true), (2.0, false), (4.0, false)] {
            let carried = |paces: bool| {
                let line = Line { rtt_s, ..Line::default() };
                let depth_bytes = commands * COMMAND_BYTES;
                let scenario = Scenario { line, reads, depth_bytes, ..Scenario::default() };
                let mut run = Transfer::new(scenario, Config { paces, ..Config::default() }, 1);
                run.run(20.0);
                run.mean(5.0, 20.0)
            };
            let (paced, free) = (carried(true), carried(false));
            assert!(
                paced >= 0.98 * free,
                "{rtt_s} s, {commands}, {reads}: {paced:.0} of {free:.0}"
            );
        }
    }
}

#[test]
fn jitter_on_both_ways_wears_no_line_down() {
    // Round trips that are longer by more than the target, on average, were a queue of a full line:
    // each measure was a little lower than the one before, down to 0.6 of the line.
    for (rtt_ms, jitter_ms) in [(10.0, 10.0), (50.0, 5.0), (50.0, 10.0), (100.0, 10.0)] {
        for seed in SEEDS {
            let (rtt_s, jitter_s) = (rtt_ms / 1e3, jitter_ms / 1e3);
            let line = Line { rtt_s, jitter_s, jitter_back: true, ..Line::default() };
            let transfer = run(Scenario { line, ..Scenario::default() }, seed, 120.0);
            let share = transfer.mean(60.0, 120.0) / GIGABIT;
            assert!(share >= 0.95, "{rtt_ms} ms, jitter {jitter_ms} ms, seed {seed}: {share:.3}");
        }
    }
}

#[test]
fn another_flow_is_not_driven_out() {
    for (at, (name, scenario)) in lines().into_iter().enumerate() {
        if scenario.other.is_none() {
            continue;
        }
        for seed in SEEDS {
            let (_, scenario) = lines().swap_remove(at);
            let transfer = run(scenario, seed, 60.0);
            let theirs = transfer.mean_of_others(30.0, 60.0) / GIGABIT;
            let ours = transfer.mean(30.0, 60.0) / GIGABIT;
            // Eight plain flows leave a cubic one 0.03 to 0.24 of this line.
            assert!(theirs >= 0.05 && ours >= 0.4, "{name}, seed {seed}: {ours:.2}, {theirs:.2}");
        }
    }
}

/// A line that carries nothing for a while, from 30 s on.
fn cut(line: Line, cut_s: f64) -> Scenario {
    let changes = vec![(30.0, Line { loss: 1.0, ..line }), (30.0 + cut_s, line)];
    Scenario { line, changes, ..Scenario::default() }
}

/// The shares of the line of a transfer and of eight plain flows for five seconds, once timeouts
/// have let them try again; and the numbers of connections before and then.
fn after_cut(line: Line, cut_s: f64, seed: u64) -> ([f64; 2], [u32; 2]) {
    // The last timeout may begin just before the line is back, and be as long as the cut.
    let (from_s, to_s) = (30.0 + 3.0 * cut_s + 0.5, 35.5 + 3.0 * cut_s);
    let ours = run(cut(line, cut_s), seed, to_s);
    let theirs = plain(of_seed(cut(line, cut_s), seed), 8, seed, to_s);
    let number = |at_s: f64| {
        let found = ours.moves.iter().rev().find(|(t_s, _)| *t_s <= at_s);
        found.map_or(0, |(_, number)| *number)
    };
    let shares = [&ours, &theirs].map(|transfer| transfer.mean(from_s, to_s) / GIGABIT);
    (shares, [number(30.0), number(to_s)])
}

#[test]
fn a_line_that_was_cut_is_what_it_was() {
    // What is sent again afterwards is no sign of a slower line, nor of one that loses.
    for rtt_s in [0.02, 0.05, 0.1] {
        for cut_s in [0.5, 2.0, 8.0] {
            for seed in SEEDS {
                let line = Line { rtt_s, ..Line::default() };
                let ([ours, theirs], numbers) = after_cut(line, cut_s, seed);
                let what = format!("{rtt_s} s, cut of {cut_s} s, seed {seed}: {ours:.2}");
                assert!(ours >= (0.97 * theirs).min(0.97), "{what}, {theirs:.2}");
                assert!(numbers[0] == numbers[1], "{what}, {numbers:?}");
            }
        }
    }
}

#[test]
#[ignore = "a table to read"]
fn table_of_cuts() {
    for rtt_s in [0.02, 0.05, 0.1, 0.2] {
        for loss in [0.0, 1e-4, 1e-3] {
            for cut_s in [0.0, 0.5, 2.0, 8.0] {
                let line = Line { rtt_s, loss, ..Line::default() };
                let found = SEEDS.map(|seed| after_cut(line, cut_s, seed));
                println!("{rtt_s} s, loss {loss:.0e}, cut of {cut_s} s: {found:.2?}");
            }
        }
    }
}

#[test]
#[ignore = "a table to read"]
fn table_of_starts() {
    for rtt_ms in [1.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0] {
        for queue_packets in [250, 2000, 8000] {
            let line = Line { rtt_s: rtt_ms / 1e3, queue_packets, ..Line::default() };
            let scenario = || Scenario { line, ..Scenario::default() };
            let ours = run(scenario(), 1, 30.0);
            let theirs = plain(scenario(), 16, 1, 30.0);
            let (eight, four) = (plain(scenario(), 8, 1, 30.0), plain(scenario(), 4, 1, 30.0));
            println!(
                "rtt {rtt_ms:4} queue {queue_packets:5}: 0-20 s {:.3} (P16 {:.3} P8 {:.3} P4 {:.3})  20-30 s {:.3} (P16 {:.3} P8 {:.3}) moves {:.1?}",
                ours.mean(0.0, 20.0) / GIGABIT,
                theirs.mean(0.0, 20.0) / GIGABIT,
                eight.mean(0.0, 20.0) / GIGABIT,
                four.mean(0.0, 20.0) / GIGABIT,
                ours.mean(20.0, 30.0) / GIGABIT,
                theirs.mean(20.0, 30.0) / GIGABIT,
                eight.mean(20.0, 30.0) / GIGABIT,
                ours.moves
            );
        }
    }
}

/// Lines that nothing was tuned on, by name.
fn lines() -> Vec<(&'static str, Scenario)> {
    let base = Line::default();
    let of = |line: Line| Scenario { line, ..Scenario::default() };
    let fast = |bytes_per_s: f64, rtt_s: f64, packet_bytes: f64, depth_bytes: f64| Scenario {
        line: Line {
            bytes_per_s,
            rtt_s,
            queue_packets: (0.025 * bytes_per_s / packet_bytes) as usize,
            ..base
        },
        packet_bytes,
        depth_bytes,
        ..Scenario::default()
    };
    vec![
        (
            "100 Mbit/s, 20 ms",
            of(Line { bytes_per_s: 11.7e6, rtt_s: 0.02, queue_packets: 250, ..base }),
        ),
        (
            "100 Mbit/s, 200 ms",
            of(Line { bytes_per_s: 11.7e6, rtt_s: 0.2, queue_packets: 250, ..base }),
        ),
        ("10 Gbit/s, 20 ms", fast(1.17e9, 0.02, 9000.0, 268e6)),
        ("10 Gbit/s, 100 ms", fast(1.17e9, 0.1, 9000.0, 1e9)),
        ("100 Gbit/s, 10 ms", fast(11.7e9, 0.01, 65536.0, 1e9)),
        ("jitter 5 ms, 10 ms", of(Line { rtt_s: 0.01, jitter_s: 0.005, ..base })),
        ("jitter 10 ms, 20 ms", of(Line { rtt_s: 0.02, jitter_s: 0.01, ..base })),
        ("jitter 10 ms, 50 ms", of(Line { jitter_s: 0.01, ..base })),
        ("policer, 20 ms", of(Line { rtt_s: 0.02, policer: Some((58e6, 1.5e6)), ..base })),
        ("policer, 50 ms", of(Line { policer: Some((58e6, 3e6)), ..base })),
        ("reno, 50 ms", Scenario { law: Law::Reno, ..of(base) }),
        (
            "reno, 20 ms, queue 250",
            Scenario { law: Law::Reno, ..of(Line { rtt_s: 0.02, queue_packets: 250, ..base }) },
        ),
        ("bbr, 50 ms", Scenario { law: Law::Bbr, ..of(base) }),
        ("bbr, loss 1e-3, 50 ms", Scenario { law: Law::Bbr, ..of(Line { loss: 1e-3, ..base }) }),
        ("cubic, loss 1e-4, 20 ms", of(Line { rtt_s: 0.02, loss: 1e-4, ..base })),
        ("cubic, loss 1e-4, 50 ms", of(Line { loss: 1e-4, ..base })),
        ("cubic, loss 1e-3, 50 ms", of(Line { loss: 1e-3, ..base })),
        ("pauses of 2 s, 50 ms", Scenario { pauses_s: Some(2.0), ..of(base) }),
        (
            "pauses of 0.3 s, 20 ms",
            Scenario { pauses_s: Some(0.3), ..of(Line { rtt_s: 0.02, ..base }) },
        ),
        ("one cubic flow, 50 ms", Scenario { other: Some((10.0, Law::Cubic)), ..of(base) }),
        (
            "one bbr flow, 20 ms",
            Scenario { other: Some((10.0, Law::Bbr)), ..of(Line { rtt_s: 0.02, ..base }) },
        ),
        (
            "slower at 20 s, 20 ms",
            Scenario {
                changes: vec![(20.0, Line { rtt_s: 0.02, bytes_per_s: 35e6, ..base })],
                ..of(Line { rtt_s: 0.02, ..base })
            },
        ),
        (
            "longer at 20 s, 20 ms",
            Scenario {
                changes: vec![(20.0, Line { rtt_s: 0.08, ..base })],
                ..of(Line { rtt_s: 0.02, ..base })
            },
        ),
    ]
}

#[test]
#[ignore = "a table to read"]
fn table_of_lines() {
    for (at, (name, scenario)) in lines().into_iter().enumerate() {
        let line = scenario.line;
        let mut ours = Transfer::new(scenario, Config::default(), 1);
        ours.run(40.0);
        let (_, scenario) = lines().swap_remove(at);
        let mut theirs = Transfer::plain(scenario, 8, 1);
        theirs.run(40.0);
        let rate = line.bytes_per_s;
        let shares = |t: &Transfer| {
            [(0.0, 10.0), (10.0, 20.0), (20.0, 30.0), (30.0, 40.0)]
                .map(|(a, b)| t.mean(a, b) / rate)
        };
        println!(
            "{name:26} {:.2?}  plain 8: {:.2?} others {:.2} moves {:.1?}",
            shares(&ours),
            shares(&theirs),
            ours.mean_of_others(20.0, 40.0) / rate,
            ours.moves
        );
    }
}

/// What a line of [`lines`] has of eight plain flows with many seeds: `CASE=NAME`.
#[test]
#[ignore = "a table to read"]
fn table_of_seeds() {
    let case = std::env::var("CASE").unwrap_or_default();
    for (at, (name, _)) in lines().into_iter().enumerate().filter(|(_, line)| line.0 == case) {
        let mut shares: Vec<(f64, u64)> = (1..=20)
            .map(|seed| {
                let (_, scenario) = lines().swap_remove(at);
                let ours = run(scenario, seed, 40.0).mean(25.0, 40.0);
                let (_, scenario) = lines().swap_remove(at);
                (ours / plain(scenario, 8, seed, 40.0).mean(25.0, 40.0), seed)
            })
            .collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        println!("{name}: {shares:.3?}");
    }
}

/// One run to look at: `TRACE=1 CASE="rtt_ms queue to_s" … one_run -- --ignored --nocapture`; or
/// `CASE` is "cut rtt_ms loss cut_s", or the name of one of [`lines`], with `SEED`.
#[test]
#[ignore = "a run to read"]
fn one_run() {
    let case = std::env::var("CASE").unwrap_or_default();
    if let Some((_, scenario)) = lines().into_iter().find(|(name, _)| *name == case) {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        run(scenario, seed.unwrap_or(1), 40.0);
        return;
    }
    if let Some(words) = case.strip_prefix("cut ") {
        let n: Vec<f64> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [rtt_ms, loss, cut_s] = n[..] else { return };
        let line = Line { rtt_s: rtt_ms / 1e3, loss, ..Line::default() };
        run(cut(line, cut_s), 1, 60.0);
        return;
    }
    let n: Vec<f64> = case.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [rtt_ms, queue, to_s] = n[..] else { return };
    let line = Line { rtt_s: rtt_ms / 1e3, queue_packets: queue as usize, ..Line::default() };
    run(Scenario { line, ..Scenario::default() }, 1, to_s);
}
