//! What becomes of commands whose session is lost before they are answered.

use std::sync::atomic::{AtomicBool, Ordering};

use block::mirror::Mode;
use block::mirror::layout::LegLayout;
use block::{BlockDevice, Bytes, WriteFlags};

use super::*;
use crate::mirror::content::SECTOR;
use crate::mirror::disk::LocalDisk;
use crate::mirror::executor::Step;
use crate::mirror::scenario::DATA_BYTES;

/// Longer than any operation of the leg takes, and any command lingers.
const LONG: Duration = Duration::from_secs(20);

struct Ways {
    executor: Executor,
    first: Leg,
    second: Leg,
}

const KIND: Kind = Kind {
    bytes: DATA_BYTES + TAIL_BYTES,
    block_bytes: 512,
    can_fua: true,
    can_zero: true,
    can_extents: false,
    ordered: true,
    latency_us: (1000, 2000),
};

/// Two ways to one disk.
fn ways(seed: u64) -> Ways {
    let mut rng = Rng::new(seed);
    let executor = Executor::new(rng.fork());
    let points = Points::new(Vec::new(), false);
    let kind = KIND;
    let store = Arc::new(Mutex::new(Store::new(rng.fork())));
    let mut leg = |way: u64| {
        let line = Line::new(LegLayout::new(kind.bytes, 0).unwrap(), Mode::Sync);
        let (executor, points, store) = (executor.clone(), points.clone(), store.clone());
        Leg::over(way as usize, kind, store, way, executor, points, line, rng.fork())
    };
    let (first, second) = (leg(0), leg(1));
    Ways { executor, first, second }
}

/// The first sector as the guest has written it.
fn sector(version: u32) -> Bytes {
    let mut data = [0; SECTOR];
    Content::Guest(version).fill(0, &mut data);
    Bytes::copy_from_slice(&data)
}

/// One write over the first way, whose link is cut when that was carried out and before it is
/// answered; long after that a flush over the second way, if `flushed`, and a power cut.
fn left_of_a_write(seed: u64, flushed: bool) -> Content {
    let Ways { executor, first, second } = ways(seed);
    let write = first.clone();
    executor.host().spawn(Box::pin(async move {
        let leg = write.connect().await.unwrap();
        let written = leg.device.write(0, sector(7), WriteFlags::default());
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

/// Two writes with a barrier between them over the first way, whose link is cut before any of them
/// is answered; then so much time that nothing of them is under way any more.
fn cut_around_a_barrier(seed: u64) -> Ways {
    let ways = ways(seed);
    let (way, asked) = (ways.first.clone(), Arc::new(AtomicBool::new(false)));
    let (host, all) = (ways.executor.host(), asked.clone());
    host.clone().spawn(Box::pin(async move {
        let leg = way.connect().await.unwrap();
        let ordered = leg.ordered.unwrap();
        let first = leg.device.write(0, sector(7), WriteFlags::default());
        let barrier = ordered.barrier();
        let second = leg.device.write(0, sector(8), WriteFlags::default());
        all.store(true, Ordering::Relaxed);
        // Some hear of it, others never.
        assert!(second.await.is_err() && barrier.await.is_err() && first.await.is_err());
    }));
    while !asked.load(Ordering::Relaxed) {
        assert_eq!(ways.executor.step(), Step::Done);
    }
    ways.first.cut_link(LONG * 2);
    ways.executor.host().spawn(Box::pin(async move { host.sleep(LONG).await }));
    while ways.executor.step() == Step::Done {}
    ways
}

#[test]
fn nothing_of_a_lost_session_waits_for_a_barrier_for_ever() {
    let mut seen = Vec::new();
    for seed in 0..200 {
        let first = cut_around_a_barrier(seed).first;
        let mut store = lock(first.store());
        let before = store.visible(0);
        assert_eq!(store.flying(&(0..1)), [], "seed {seed}");
        // The process of whoever has the disk by then ends.
        store.interrupt();
        assert_eq!(store.visible(0), before, "seed {seed}");
        seen.push(before);
    }
    for content in [Content::Zero, Content::Guest(7), Content::Guest(8)] {
        assert!(seen.contains(&content), "never {content:?}");
    }
}

#[test]
fn what_a_lost_session_has_written_around_a_barrier_is_covered_by_the_flush_of_another() {
    for seed in 0..200 {
        let Ways { executor, second, .. } = cut_around_a_barrier(seed);
        let before = lock(second.store()).visible(0);
        let way = second.clone();
        executor.host().spawn(Box::pin(async move {
            way.connect().await.unwrap().device.flush().await.unwrap();
        }));
        while executor.step() == Step::Done {}
        second.cut_power(Duration::ZERO);
        assert_eq!(lock(second.store()).visible(0), before, "seed {seed}");
    }
}

/// A host that has taken a leg over asks for it as its own disk, on the way of its lost login.
#[test]
fn what_a_host_asks_of_its_own_disk_is_not_forgotten_with_a_lost_session() {
    let Ways { executor, first, .. } = ways(0);
    let (store, points) = (first.0.store.clone(), first.0.points.clone());
    let slow = LONG.as_micros() as u64;
    let kind = Kind { latency_us: (slow, slow + 1), ..KIND };
    let (way, clock) = (first.way(), executor.clone());
    let disk = LocalDisk::over("far", kind, store, way, clock, points, Rng::new(1));
    let (way, written) = (first.clone(), Arc::new(AtomicBool::new(false)));
    let done = written.clone();
    executor.host().spawn(Box::pin(async move {
        way.connect().await.unwrap();
        // As many starts of the host as there were logins.
        disk.stop(false);
        let write = disk.opened().write(0, sector(7), WriteFlags::default());
        way.cut_link(Duration::ZERO);
        write.await.unwrap();
        done.store(true, Ordering::Relaxed);
    }));
    while executor.step() == Step::Done {}
    assert!(written.load(Ordering::Relaxed));
    assert_eq!(lock(first.store()).visible(0), Content::Guest(7));
}
