//! Batches of many epochs through the redo log: a guest that flushes more often than a long way has
//! round trips.

use std::sync::Arc;
use std::time::Duration;

use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays};
use crate::mirror::engine::tail;
use crate::mirror::layout::LegLayout;
use crate::mirror::promote::WAY_MAX;
use crate::mirror::superblock::Consistency;
use crate::mirror::{Lag, LegState, LegStatus, Mode, OnLag};

/// From here to the leg and back.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// A mirror whose leg is a long way off, and in sync.
async fn far_away(redo_bytes: u64, on: OnLag) -> World {
    let mut world = World::blank(1);
    world.config.mode = Mode::Async;
    world.config.redo_bytes = Some(redo_bytes);
    world.config.lag = Lag { age: Duration::from_secs(3), bytes: 64 << 20, on };
    let way = Delays::all(Delay::Fixed(ROUND_TRIP));
    let far = Arc::new(DelayLayer::new(memory(LEG_SIZE), way, 1));
    world.legs[0] = TestLeg::new("far", far);
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    // Batches wait so long after a mirror has begun.
    tokio::time::sleep(WAY_MAX).await;
    world
}

/// A data base commits 8 KiB, and has something else to do for 5 ms.
async fn commit(world: &World, number: u64) {
    world.write(number % 500 * 8192, 8192, number as u8).await.unwrap();
    world.device().flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// It does so for six seconds of its own, if it can: the time that it takes, the largest lag, and
/// where the leg stands then.
async fn two_hundred_commits_a_second(redo_bytes: u64) -> (Duration, Duration, LegStatus, World) {
    let world = far_away(redo_bytes, OnLag::Slow).await;
    let (begin, mut lag_max) = (tokio::time::Instant::now(), Duration::ZERO);
    for number in 0..1200 {
        commit(&world, number).await;
        lag_max = lag_max.max(world.mirror().status().legs[0].lag);
    }
    let took = begin.elapsed();
    let leg = world.mirror().status().legs[0].clone();
    (took, lag_max, leg, world)
}

#[tokio::test(start_paused = true)]
async fn two_hundred_commits_a_second_are_not_slowed_by_a_long_way() {
    let (took, lag_max, leg, world) = two_hundred_commits_a_second(1 << 20).await;
    assert!(took < Duration::from_millis(6300), "{took:?} for 6 s; {leg:?}");
    assert!(lag_max <= 3 * ROUND_TRIP + Duration::from_secs(1), "{lag_max:?}; {leg:?}");
    assert!(leg.batches > 5, "{leg:?}");
    world.wait("all of it is there", |mirror| mirror.status().legs[0].epochs == 0).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_redo_log_they_wait_for_its_round_trips() {
    let (took, _, leg, _) = two_hundred_commits_a_second(0).await;
    assert!(took > Duration::from_secs(30), "{took:?} for 6 s; {leg:?}");
    assert_eq!(leg.batches, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_wanted_when_the_line_was_cut_is_not_waited_for_by_a_copy() {
    let world = far_away(1 << 20, OnLag::FallBehind).await;
    let mut number = 0;
    while !world.mirror().shared.legs().wants_batch(0) {
        commit(&world, number).await;
        number += 1;
    }
    world.legs[0].set_way(Way::Cut);
    // More than its redo log holds, so that the leg is caught up in place.
    for number in number..number + 300 {
        commit(&world, number).await;
    }
    let left_behind = |leg: &LegStatus| leg.state == LegState::Lost && leg.epochs == 0;
    world.wait("it is left behind", |mirror| left_behind(&mirror.status().legs[0])).await;
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.wait("all of it is there", |mirror| mirror.status().legs[0].epochs == 0).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_silence_a_batch_waits_until_a_promotion_would_have_been_seen() {
    // Whoever has taken the mirror for gone meanwhile writes his superblock from before the batch,
    // and would take half of it for a moment. The log is kept for the leg, or has been given up.
    for (on, commits) in [(OnLag::Slow, 40), (OnLag::FallBehind, 700)] {
        let world = far_away(1 << 20, on).await;
        let (device, layout) = (world.legs[0].device(), LegLayout::new(LEG_SIZE, 0).unwrap());
        let superblock = async || tail::read(&*device, &layout).await.unwrap().unwrap();
        world.legs[0].set_way(Way::Cut);
        for number in 0..commits {
            commit(&world, number % 20).await;
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        let before = superblock().await.sequence;
        world.legs[0].set_way(Way::Open);
        let (mut signed, mut named) = (None, None);
        while named.is_none() {
            let (now, found) = (tokio::time::Instant::now(), superblock().await);
            if found.sequence > before {
                signed.get_or_insert(now);
            }
            if matches!(found.consistency, Consistency::Applying(_)) {
                named = Some(now);
            }
            let leg = world.mirror().status().legs[0].clone();
            assert!(leg.epochs > 0 || leg.state != LegState::InSync, "no batch: {on:?}, {leg:?}");
        }
        let waited = named.zip(signed).map(|(named, signed)| named - signed);
        assert!(waited >= Some(WAY_MAX - ROUND_TRIP), "{on:?}: {waited:?}");
        world.settled().await;
        world.wait("all of it is there", |mirror| mirror.status().legs[0].epochs == 0).await;
        world.assert_equal().await;
    }
}
