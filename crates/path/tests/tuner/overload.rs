//! A path that many connections fill less than fewer do: their windows together overrun its queue.

use ::path::tuner::PolicyConfig;

use crate::path::{Path, Transfer};
use crate::{SEEDS, worst};

/// The APT study's parameters on real TCP: 64 KB windows, storage of 35 ms for a MB, a queue for
/// 30.
fn paths() -> impl Iterator<Item = Path> {
    let path = Path {
        rtt_s: 0.01,
        buffer_bytes: 64e3,
        storage_s_per_byte: 35e-9,
        queue_connections: 30.0,
        ..Path::default()
    };
    let noises = [0.01, 0.03];
    let with = move |with_tcp| noises.map(|noise| Path { noise, with_tcp, ..path });
    [false, true].into_iter().flat_map(with)
}

#[test]
fn what_carries_more_than_the_plateau_leads_back_up() {
    for path in paths() {
        let (best, _) = path.best(64);
        let short = |seed| {
            let mut transfer = Transfer::new(path, 4, seed);
            transfer.run(PolicyConfig::default().build().as_mut(), 60.0);
            1.0 - transfer.mean(20.0, 60.0) / best
        };
        let (usual, all) = worst(SEEDS.map(short).collect());
        assert!(usual <= 0.04, "{path:?}: {usual:.3}, {all:.3}");
    }
}
