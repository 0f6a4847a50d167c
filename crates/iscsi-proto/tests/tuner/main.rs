//! The tuner's policies against modelled paths in virtual time: how fast they reach the plateau,
//! how few connections they keep and whether they keep still.

mod path;

use iscsi_proto::tuner::{GoldenConfig, Policy, PolicyConfig};
use path::{Law, Path, Transfer};

/// The most connections that the policies ask for by default.
const MAX: u32 = iscsi_proto::tuner::CONNECTIONS_MAX;

fn run(mut policy: Box<dyn Policy>, path: Path, seed: u64, t_s: f64) -> Transfer {
    let mut transfer = Transfer::new(path, 4, seed);
    transfer.run(policy.as_mut(), t_s);
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

#[test]
fn adaptive_reaches_the_plateau_in_five_seconds_and_keeps_still() {
    for (name, path) in paths() {
        let (best, _) = path.best(MAX);
        for with_tcp in [false, true] {
            for noise in [0.01, 0.03] {
                for seed in 1..=10 {
                    let path = Path { noise, with_tcp, ..path };
                    let transfer = run(PolicyConfig::default().build(), path, seed, 60.0);
                    let case = format!("{name}, tcp {with_tcp}, noise {noise}, seed {seed}");
                    let reached = transfer.reaches(0.95 * best, 0.0);
                    assert!(reached.is_some_and(|t| t <= 5.0), "{case}: {reached:?}");
                    let end = path.steady(transfer.connections());
                    assert!(end >= 0.95 * best, "{case}: {}", transfer.connections());
                    let late = transfer.moves.iter().filter(|(t, _)| *t > 20.0).count();
                    assert!(late <= 10, "{case}: {:?}", transfer.moves);
                }
            }
        }
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
