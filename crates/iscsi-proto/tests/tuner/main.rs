//! The tuner's policies against modelled paths in virtual time: how fast they reach the plateau,
//! what the search costs, how they follow changes and whether they keep still.

mod path;

use iscsi_proto::tuner::{AdaptiveConfig, GoldenConfig, Policy, PolicyConfig};
use path::{GIGABIT, Law, Path, Transfer};

/// Connections that the policies may ask for here: enough for every path below.
const MAX: u32 = 128;

fn adaptive() -> Box<dyn Policy> {
    let config = AdaptiveConfig { connections_max: MAX, ..AdaptiveConfig::default() };
    PolicyConfig::Adaptive(config).build()
}

fn run(mut policy: Box<dyn Policy>, path: Path, seed: u64, t_s: f64) -> Transfer {
    let mut transfer = Transfer::new(path, 4, seed);
    transfer.run(policy.as_mut(), t_s);
    transfer
}

/// Bytes of the best fixed number over the same time.
fn best_fixed(path: Path, t_s: f64) -> f64 {
    let rate = |n: u32| {
        let mut transfer = Transfer::new(Path { noise: 0.0, ..path }, n, 1);
        transfer.run(PolicyConfig::Fixed(n).build().as_mut(), t_s);
        transfer.mean(0.0, t_s)
    };
    (1..=MAX).map(rate).fold(0.0, f64::max)
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
        ("cubic, loss 1e-3, 50 ms", Path { law: Law::Cubic, loss: 1e-3, ..long }),
        ("bbr, loss 1e-3, 50 ms", Path { law: Law::Bbr, loss: 1e-3, buffer_bytes: 8e6, ..long }),
        ("a competing flow", Path { competitors: 1.0, buffer_bytes: 4e6, ..path }),
    ]
}

#[test]
fn probe() {
    for (name, path) in paths() {
        let (best, fewest) = path.best(MAX);
        let fixed = best_fixed(path, 60.0);
        for with_tcp in [false, true] {
            for noise in [0.01, 0.03, 0.1] {
                let (mut worst_reach, mut worst_cost, mut moves, mut late) =
                    (0.0_f64, 0.0_f64, 0, 0);
                let (mut lo, mut hi, mut share) = (999, 0, 9.0_f64);
                for seed in 1..=10 {
                    let t = run(adaptive(), Path { noise, with_tcp, ..path }, seed, 60.0);
                    worst_reach = worst_reach.max(t.reaches(0.95 * best, 0.0).unwrap_or(99.0));
                    worst_cost = worst_cost.max(1.0 - t.mean(0.0, 60.0) / fixed);
                    moves = moves.max(t.moves.len());
                    late = late.max(t.moves.iter().filter(|m| m.0 > 20.0).count());
                    lo = lo.min(t.connections());
                    hi = hi.max(t.connections());
                    share = share.min(path.steady(t.connections()) / best);
                    if std::env::var("TRACE").is_ok() && seed == 1 {
                        println!("{:.1?}", t.moves);
                    }
                }
                println!(
                    "{name:26} tcp={with_tcp:5} noise={noise:.2} fewest={fewest:3} end={lo}..{hi} \
                  share={share:.3} reach={worst_reach:.1} cost={:.1}% moves={moves} late={late}",
                    worst_cost * 100.0
                );
            }
        }
    }
}
