//! What becomes of commands whose session is lost before they are answered.

use block::mirror::Mode;
use block::mirror::layout::LegLayout;

use super::*;
use crate::mirror::content::SECTOR;
use crate::mirror::executor::Step;
use crate::mirror::scenario::DATA_BYTES;

/// Longer than any operation of the leg takes, and any command lingers.
const LONG: Duration = Duration::from_secs(20);

struct Ways {
    executor: Executor,
    first: Leg,
    second: Leg,
}

/// Two ways to one disk.
fn ways(seed: u64) -> Ways {
    let mut rng = Rng::new(seed);
    let executor = Executor::new(rng.fork());
    let points = Points::new(Vec::new(), false);
    let kind = Kind {
        bytes: DATA_BYTES + TAIL_BYTES,
        block_bytes: 512,
        can_fua: true,
        can_zero: true,
        can_extents: false,
        ordered: false,
        latency_us: (1000, 2000),
    };
    let store = Arc::new(Mutex::new(Store::new(rng.fork())));
    let mut leg = |way: u64| {
        let line = Line::new(LegLayout::new(kind.bytes, 0).unwrap(), Mode::Sync);
        let (executor, points, store) = (executor.clone(), points.clone(), store.clone());
        Leg::over(way as usize, kind, store, way, executor, points, line, rng.fork())
    };
    let (first, second) = (leg(0), leg(1));
    Ways { executor, first, second }
}

/// One write over the first way, whose link is cut when that was carried out and before it is
/// answered; long after that a flush over the second way, if `flushed`, and a power cut.
fn left_of_a_write(seed: u64, flushed: bool) -> Content {
    let Ways { executor, first, second } = ways(seed);
    let write = first.clone();
    executor.host().spawn(Box::pin(async move {
        let leg = write.connect().await.unwrap();
        let mut data = [0; SECTOR];
        Content::Guest(7).fill(0, &mut data);
        let written = leg.device.write(0, Bytes::copy_from_slice(&data), WriteFlags::default());
        assert!(written.await.is_err(), "the link was cut before its answer");
    }));
    while lock(first.store()).visible(0) == Content::Zero {
        assert_eq!(executor.step(), Step::Done);
    }
    first.cut_link(LONG);
    let (way, host) = (second.clone(), executor.host());
    host.clone().spawn(Box::pin(async move {
        host.sleep(LONG).await;
        let leg = way.connect().await.unwrap();
        if flushed {
            leg.device.flush().await.unwrap();
        }
    }));
    while executor.step() == Step::Done {}
    second.cut_power(Duration::ZERO);
    lock(second.store()).visible(0)
}

/// "SYNCHRONIZE CACHE … ensure that the specified logical blocks have their most recent data
/// values recorded on the medium" (SBC-4): whoever wrote them, and whether he heard of it.
#[test]
fn what_a_lost_session_has_written_is_stable_behind_the_flush_of_another() {
    for seed in 0..100 {
        assert_eq!(left_of_a_write(seed, true), Content::Guest(7), "seed {seed}");
    }
}

#[test]
fn without_a_flush_it_may_be_lost() {
    let lost = (0..100).filter(|seed| left_of_a_write(*seed, false) == Content::Zero).count();
    assert!((1..100).contains(&lost), "{lost} of 100");
}
