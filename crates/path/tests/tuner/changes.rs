//! `adaptive` when the path changes under a transfer: how soon it is back, and that it stays.

use ::path::tuner::PolicyConfig;

use crate::path::{Law, Path, Transfer};
use crate::{MAX, SEEDS, worst};

/// Times of the first and the second change, and of the end.
const CHANGES_S: [f64; 3] = [20.0, 40.0, 60.0];

/// A path, and what it is between the two changes.
fn steps() -> Vec<(&'static str, Path, Path)> {
    let base = Path { buffer_bytes: 256e3, ..Path::default() };
    let near = Path { rtt_s: 0.01, buffer_bytes: 512e3, ..base };
    let clean = Path { law: Law::Reno, ..base };
    vec![
        ("rate", base, Path { line_bytes_per_s: 0.3 * base.line_bytes_per_s, ..base }),
        ("round trip", near, Path { rtt_s: 0.08, ..near }),
        ("loss", clean, Path { loss: 1e-3, ..clean }),
        ("competitors", base, Path { competitors: 8.0, ..base }),
    ]
}

fn transfer(path: Path, changed: Path, seed: u64) -> Transfer {
    let mut transfer = Transfer::new(path, 4, seed);
    transfer.changes = vec![(CHANGES_S[0], changed), (CHANGES_S[1], path)];
    transfer.run(PolicyConfig::default().build().as_mut(), CHANGES_S[2]);
    transfer
}

/// Calls with the name of the case, of each seed its transfer, and the best rate between each two
/// of the times.
fn each(check: impl Fn(&str, &[Transfer], [f64; 2])) {
    for (name, path, changed) in steps() {
        for with_tcp in [false, true] {
            for noise in [0.01, 0.03] {
                let with = |path: Path| Path { noise, with_tcp, ..path };
                let name = format!("{name}, tcp {with_tcp}, noise {noise}");
                let run = |seed| transfer(with(path), with(changed), seed);
                let transfers: Vec<_> = SEEDS.map(run).collect();
                check(&name, &transfers, [changed.best(MAX).0, path.best(MAX).0]);
            }
        }
    }
}

#[test]
fn it_is_back_at_the_optimum_within_five_seconds() {
    each(|name, transfers, best| {
        for (change, best) in best.into_iter().enumerate() {
            let from_s = CHANGES_S[change];
            for (transfer, seed) in transfers.iter().zip(SEEDS) {
                let back = transfer.reaches(0.95 * best, from_s).map(|t| t - from_s);
                let case = format!("{name}, change {change}, seed {seed}");
                assert!(back.is_some_and(|s| s <= 5.0), "{case}: {back:?} {:?}", transfer.moves);
            }
        }
    });
}

#[test]
fn it_stays_there() {
    each(|name, transfers, best| {
        for (change, best) in best.into_iter().enumerate() {
            let (from_s, to_s) = (CHANGES_S[change] + 5.0, CHANGES_S[change + 1]);
            let short = transfers.iter().map(|t| 1.0 - t.mean(from_s, to_s) / best).collect();
            let (usual, all) = worst(short);
            assert!(usual <= 0.04 && all <= 0.05, "{name}, change {change}: {usual:.3}, {all:.3}");
        }
    });
}

#[test]
fn it_does_not_oscillate() {
    each(|name, transfers, _| {
        for (change, from_s) in CHANGES_S[..2].iter().enumerate() {
            let to_s = CHANGES_S[change + 1];
            let moves = |t: &Transfer| {
                t.moves.iter().filter(|(at_s, _)| at_s > from_s && *at_s <= to_s).count()
            };
            let count = |t| moves(t) as f64;
            let (usual, all) = worst(transfers.iter().map(count).collect());
            assert!(usual <= 8.0 && all <= 10.0, "{name}, change {change}: {usual}, {all}");
        }
    });
}

#[test]
fn what_timeouts_take_for_a_moment_is_no_other_path() {
    let path = Path { buffer_bytes: 256e3, law: Law::Bbr, with_tcp: true, ..Path::default() };
    let stalled = Path { line_bytes_per_s: 0.5 * path.line_bytes_per_s, loss: 2e-5, ..path };
    for seed in SEEDS {
        let mut transfer = Transfer::new(path, 4, seed);
        // Not at the same place of a window each time.
        let begin_s = 20.0 + 0.05 * seed as f64;
        transfer.changes = vec![(begin_s, stalled), (begin_s + 0.7, path)];
        transfer.run(PolicyConfig::default().build().as_mut(), 24.0);
        let moved: Vec<_> = transfer.moves.iter().filter(|m| m.0 > begin_s).collect();
        assert!(moved.is_empty(), "seed {seed}: {moved:?}");
    }
}
