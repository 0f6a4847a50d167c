//! The tuner's policies against modelled paths in virtual time: how fast they reach the plateau,
//! how few connections they keep and whether they keep still.

mod changes;
mod control;
mod flushes;
#[path = "../models/line.rs"]
mod line;
mod losses;
mod overload;
mod pacer;
#[path = "../models/path.rs"]
mod path;
mod peer;
#[path = "../models/random.rs"]
mod random;
mod table;
mod trials;

use ::path::tuner::{
    AdaptiveConfig, CongestionControl, Connection, ConnectionId, Decision, GoldenConfig, Policy,
    PolicyConfig, Sample, Tcp,
};
use path::{Law, Path, Transfer};

/// The most connections that the policies ask for by default.
const MAX: u32 = ::path::tuner::CONNECTIONS_MAX;

fn run(mut policy: Box<dyn Policy>, path: Path, seed: u64, t_s: f64) -> Transfer {
    begun(policy.as_mut(), path, 4, seed, t_s)
}

/// A transfer that begins with as many connections.
fn begun(policy: &mut dyn Policy, path: Path, n: u32, seed: u64, t_s: f64) -> Transfer {
    let mut transfer = Transfer::new(path, n, seed);
    transfer.run(policy, t_s);
    transfer
}

/// Paths of up to 50 ms, each with the reason why one connection is not enough (or is).
fn paths() -> Vec<(&'static str, Path)> {
    let path = Path::default();
    let long = Path { rtt_s: 0.05, ..path };
    vec![
        ("one connection is enough", Path { rtt_s: 0.01, buffer_bytes: 4e6, ..path }),
        ("small buffers, 10 ms", Path { rtt_s: 0.01, buffer_bytes: 65536.0, ..path }),
        ("default buffers, 50 ms", Path { buffer_bytes: 2e6, ..long }),
        ("small buffers, 50 ms", Path { buffer_bytes: 256e3, ..long }),
        ("reno, loss 1e-4, 20 ms", Path { law: Law::Reno, loss: 1e-4, ..path }),
        ("reno, loss 1e-4, 50 ms", Path { law: Law::Reno, loss: 1e-4, ..long }),
        ("bbr, loss 1e-3, 50 ms", Path { law: Law::Bbr, loss: 1e-3, buffer_bytes: 8e6, ..long }),
    ]
}

/// Seeds of each case.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;
/// Of twenty seeds, those that may lie a little beyond a limit that the others keep: with noise,
/// every verdict is wrong now and then, and a test that says never would only choose its seeds.
const UNLUCKY_MAX: usize = 1;

/// The largest value but for the unlucky ones, and the largest of all.
fn worst(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() - 1 - UNLUCKY_MAX], values[values.len() - 1])
}

/// Every path, with and without TCP's own fields, at two levels of noise.
fn cases() -> Vec<(String, Path)> {
    let mut cases = Vec::new();
    for (name, path) in paths() {
        for with_tcp in [false, true] {
            for noise in [0.01, 0.03] {
                let name = format!("{name}, tcp {with_tcp}, noise {noise}");
                cases.push((name, Path { noise, with_tcp, ..path }));
            }
        }
    }
    cases
}

fn adaptive(path: Path, seed: u64, t_s: f64) -> Transfer {
    run(PolicyConfig::default().build(), path, seed, t_s)
}

#[test]
fn adaptive_reaches_the_plateau_in_five_seconds() {
    for (name, path) in cases() {
        let (best, _) = path.best(MAX);
        for seed in SEEDS {
            let reached = adaptive(path, seed, 10.0).reaches(0.95 * best, 0.0);
            assert!(reached.is_some_and(|t| t <= 5.0), "{name}, seed {seed}: {reached:?}");
        }
    }
}

#[test]
fn adaptive_costs_at_most_three_per_cent_of_a_minute() {
    for (name, path) in cases() {
        let (_, fewest) = path.best(MAX);
        let cost = |seed| {
            let mut fixed = PolicyConfig::Fixed(fewest).build();
            let fixed = begun(fixed.as_mut(), path, fewest, seed, 60.0);
            1.0 - adaptive(path, seed, 60.0).mean(0.0, 60.0) / fixed.mean(0.0, 60.0)
        };
        let (usual, all) = worst(SEEDS.map(cost).collect());
        assert!(usual <= 0.03 && all <= 0.04, "{name}: {usual:.3}, {all:.3}");
    }
}

#[test]
fn adaptive_holds_the_fewest_connections_of_the_plateau() {
    for (name, path) in cases() {
        let (best, fewest) = path.best(MAX);
        let (mut held, mut lost) = (Vec::new(), Vec::new());
        for seed in SEEDS {
            let usual = adaptive(path, seed, 60.0).usual(30.0, 60.0);
            held.push(f64::from(usual));
            lost.push(1.0 - path.steady(usual) / best);
        }
        let middle = {
            held.sort_by(f64::total_cmp);
            held[held.len() / 2]
        };
        // Up to 16 are opened so that losses are repaired beside each other, of which this model of
        // BBR knows nothing; not all of them are closed again within this minute.
        let repairs = if path.law == Law::Bbr && path.loss > 0.0 { 12 } else { 0 };
        let fewest = f64::from(fewest.max(repairs));
        assert!(middle <= 1.12 * fewest, "{name}: {middle} of {fewest}");
        let (usual, all) = worst(held);
        assert!(usual <= 1.3 * fewest && all <= 1.45 * fewest + 2.0, "{name}: {usual}, {all}");
        let (usual, all) = worst(lost);
        assert!(usual <= 0.03 && all <= 0.06, "{name}: {usual:.3}, {all:.3}");
    }
}

#[test]
fn numbers_whose_buffers_cannot_hold_the_plateau_are_not_tried() {
    // Three buffers hold what a gigabit has under way, two hold 75 % of it.
    let path = Path { rtt_s: 0.05, buffer_bytes: 2.2e6, with_tcp: true, ..Path::default() };
    let config = AdaptiveConfig { window_bytes: 2_200_000, ..AdaptiveConfig::default() };
    for seed in SEEDS {
        let transfer = run(PolicyConfig::Adaptive(config.clone()).build(), path, seed, 60.0);
        let fewest = transfer.moves.iter().map(|(_, n)| *n).min();
        assert_eq!(fewest, Some(3), "seed {seed}: {:?}", transfer.moves);
    }
}

#[test]
fn bursts_a_round_trip_apart_are_a_rate() {
    // Over 300 ms windows of 16 MiB are sent in a moment: two of three samples see nothing. 32 of
    // them fill the line.
    let mut policy = PolicyConfig::default().build();
    let mut connections = 4;
    for tick in 0..200_u32 {
        let burst = f64::from(connections.min(32)) * 16e6;
        let bytes_per_s = if tick % 3 == 0 { burst / 0.1 } else { 0.0 };
        let (t_s, connections_open) = (0.1 * f64::from(tick), connections);
        let sample = Sample { t_s, connections_open, bytes_per_s, ..Sample::default() };
        connections = policy.handle_sample(&sample).connections;
    }
    assert!((30..=36).contains(&connections), "{connections}");
}

#[test]
fn adaptive_keeps_still() {
    for (name, path) in cases() {
        let (mut moves, mut away) = (Vec::new(), Vec::new());
        for seed in SEEDS {
            let transfer = adaptive(path, seed, 120.0);
            let late = transfer.moves.iter().filter(|(t, _)| *t > 60.0);
            moves.push(late.count() as f64);
            away.push(transfer.away(60.0, 120.0));
        }
        let (usual, all) = worst(moves);
        assert!(usual <= 8.0 && all <= 10.0, "{name}: {usual}, {all}");
        let (usual, all) = worst(away);
        // No target: a bound on what its trials and probes take today, which is too much.
        assert!(usual <= 0.5 && all <= 0.6, "{name}: {usual:.2}, {all:.2} of the time");
    }
}

#[test]
fn golden_finds_the_plateau_of_the_paper_in_about_twelve_moves() {
    // The APT study: 64 KB buffers, 10 ms, 35 ms of storage for each MB.
    let path = Path {
        rtt_s: 0.01,
        buffer_bytes: 65536.0,
        storage_s_per_byte: 35e-9,
        noise: 0.0,
        ..Path::default()
    };
    let config = GoldenConfig { connections_max: 128, ..GoldenConfig::default() };
    let transfer = run(PolicyConfig::Golden(config).build(), path, 1, 150.0);
    let (best, _) = path.best(128);
    assert!(path.steady(transfer.connections()) >= 0.95 * best, "{:?}", transfer.moves);
    assert!((6..=16).contains(&transfer.moves.len()), "{:?}", transfer.moves);
}
