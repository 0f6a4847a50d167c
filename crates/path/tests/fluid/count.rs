//! The number of connections: how fast the plateau is reached, how few do, and whether it keeps
//! still.

use ::path::{Config, Controller};

use crate::path::{Law, Path, Transfer};

const MAX: u32 = ::path::CONNECTIONS.1;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=20;
/// Of twenty seeds, those that may lie a little beyond a limit that the others keep.
const UNLUCKY_MAX: usize = 1;

/// Paths of up to 50 ms, each with the reason why one connection is not enough (or is).
fn paths() -> Vec<(&'static str, Path)> {
    let path = Path::default();
    let long = Path { rtt_s: 0.05, ..path };
    vec![
        ("one connection is enough", Path { rtt_s: 0.01, buffer_bytes: 4e6, ..path }),
        ("small buffers, 10 ms", Path { rtt_s: 0.01, buffer_bytes: 65536.0, ..path }),
        ("small buffers, 20 ms", Path { buffer_bytes: 256e3, ..path }),
        ("default buffers, 50 ms", Path { buffer_bytes: 2e6, ..long }),
        ("small buffers, 50 ms", Path { buffer_bytes: 256e3, ..long }),
        ("reno, loss 1e-4, 20 ms", Path { law: Law::Reno, loss: 1e-4, ..path }),
        ("reno, loss 1e-4, 50 ms", Path { law: Law::Reno, loss: 1e-4, ..long }),
        ("bbr, loss 1e-3, 50 ms", Path { law: Law::Bbr, loss: 1e-3, buffer_bytes: 8e6, ..long }),
    ]
}

fn cases(noises: &[f64]) -> Vec<(String, Path)> {
    let mut cases = Vec::new();
    for (name, path) in paths() {
        for with_tcp in [false, true] {
            for &noise in noises {
                let name = format!("{name}, tcp {with_tcp}, noise {noise}");
                cases.push((name, Path { noise, with_tcp, ..path }));
            }
        }
    }
    cases
}

/// The largest value but for the unlucky ones, and the largest of all.
fn worst(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() - 1 - UNLUCKY_MAX], values[values.len() - 1])
}

/// The count alone: this model of a path knows no pace.
fn controller() -> Controller {
    Controller::new(Config { paces: false, ..Config::default() })
}

fn run(path: Path, seed: u64, t_s: f64) -> Transfer {
    let mut transfer = Transfer::new(path, 4, seed);
    transfer.run(&mut controller(), t_s);
    transfer
}

#[test]
fn the_plateau_is_reached_within_three_and_a_half_seconds() {
    // Six steps of a half each, so that no more are opened than half as many again, take longer
    // than four doublings.
    for (name, path) in cases(&[0.01, 0.03]) {
        let (best, _) = path.best(MAX);
        for seed in SEEDS {
            let reached = run(path, seed, 10.0).reaches(0.95 * best, 0.0);
            let limit_s = if path.with_tcp { 3.85 } else { 3.4 };
            assert!(reached.is_some_and(|t| t <= limit_s), "{name}, seed {seed}: {reached:?}");
        }
    }
}

#[test]
fn a_minute_costs_little_against_the_fewest_connections() {
    for (name, path) in cases(&[0.01, 0.03]) {
        let (_, fewest) = path.best(MAX);
        let cost = |seed| {
            let (connections_initial, connections_max) = (fewest, fewest);
            let config =
                Config { paces: false, connections_initial, connections_max, ..Config::default() };
            let mut fixed = Transfer::new(path, fewest, seed);
            fixed.run(&mut Controller::new(config), 60.0);
            1.0 - run(path, seed, 60.0).mean(0.0, 60.0) / fixed.mean(0.0, 60.0)
        };
        let (usual, all) = worst(SEEDS.map(cost).collect());
        // Where TCP's fields are there, steps are small, so that no more are opened than are
        // needed.
        assert!(usual <= 0.06 && all <= 0.065, "{name}: {usual:.3}, {all:.3}");
    }
}

#[test]
fn about_the_fewest_connections_are_held() {
    for (name, path) in cases(&[0.01, 0.03]) {
        let (best, fewest) = path.best(MAX);
        let held: Vec<u32> = SEEDS.map(|seed| run(path, seed, 60.0).usual(30.0, 60.0)).collect();
        let (_, most) = worst(held.iter().map(|n| f64::from(*n)).collect());
        // Four are what it begins with; where one does, nothing says so.
        let limit = (1.3 * f64::from(fewest)).max(5.0);
        assert!(most <= limit, "{name}: {most} of {fewest}");
        let short = held.iter().map(|n| 1.0 - path.steady(*n) / best).collect();
        let (usual, all) = worst(short);
        assert!(usual <= 0.045 && all <= 0.06, "{name}: {usual:.3}, {all:.3}");
    }
}

#[test]
fn it_does_not_move_after_the_first_minute() {
    for (name, path) in cases(&[0.03, 0.1]) {
        for seed in SEEDS {
            let transfer = run(path, seed, 120.0);
            let late: Vec<_> = transfer.moves.iter().filter(|(t, _)| *t > 60.0).collect();
            assert!(late.is_empty(), "{name}, seed {seed}: {late:?}");
        }
    }
}

#[test]
fn no_more_are_opened_than_half_as_many_again_where_sockets_tell_their_windows() {
    for (name, path) in cases(&[0.01, 0.03]).into_iter().filter(|(_, path)| path.with_tcp) {
        for seed in SEEDS {
            let transfer = run(path, seed, 60.0);
            let most = transfer.moves.iter().map(|m| m.1).max().unwrap_or(4);
            let end = transfer.connections();
            assert!(
                f64::from(most) <= 1.5 * f64::from(end) + 0.5,
                "{name}, seed {seed}: {most} for {end}"
            );
        }
    }
}

/// A path, and what it is between the two changes.
fn steps() -> Vec<(&'static str, Path, Path)> {
    let base = Path { buffer_bytes: 256e3, ..Path::default() };
    let near = Path { rtt_s: 0.01, buffer_bytes: 512e3, ..base };
    let clean = Path { law: Law::Reno, ..base };
    vec![
        ("rate", base, Path { line_bytes_per_s: 0.3 * base.line_bytes_per_s, ..base }),
        ("round trip", near, Path { rtt_s: 0.08, ..near }),
        ("loss", clean, Path { loss: 1e-3, ..clean }),
    ]
}

#[test]
fn a_path_that_changes_is_filled_again_within_five_seconds() {
    for (name, path, changed) in steps() {
        for (with_tcp, noise) in [(false, 0.01), (false, 0.03), (true, 0.01), (true, 0.03)] {
            let with = |path: Path| Path { noise, with_tcp, ..path };
            let best = [changed.best(MAX).0, path.best(MAX).0];
            let mut short = [Vec::new(), Vec::new()];
            for seed in SEEDS {
                let mut transfer = Transfer::new(with(path), 4, seed);
                transfer.changes = vec![(20.0, with(changed)), (40.0, with(path))];
                transfer.run(&mut controller(), 60.0);
                for (change, from_s) in [20.0, 40.0].into_iter().enumerate() {
                    let back = transfer.reaches(0.95 * best[change], from_s).map(|t| t - from_s);
                    let case = format!("{name}, tcp {with_tcp}, noise {noise}, seed {seed}");
                    let moves = &transfer.moves;
                    assert!(back.is_some_and(|s| s <= 5.0), "{case}: {back:?} {moves:.1?}");
                    let mean = transfer.mean(from_s + 5.0, from_s + 20.0);
                    short[change].push(1.0 - mean / best[change]);
                }
            }
            for short in short {
                let (usual, all) = worst(short);
                assert!(usual <= 0.05 && all <= 0.06, "{name}: {usual:.3}, {all:.3}");
            }
        }
    }
}

/// Numbers over time, for whoever changes the count: `-- --ignored --nocapture`.
#[test]
#[ignore = "a table to read"]
fn table() {
    for (name, path) in cases(&[0.01, 0.03]) {
        let transfer = run(path, 1, 60.0);
        let (best, fewest) = path.best(MAX);
        let reached = transfer.reaches(0.95 * best, 0.0);
        println!("{name}: {fewest} suffice, full after {reached:.1?}: {:.1?}", transfer.moves);
    }
}
