//! Batches of many epochs through the redo log: a guest that flushes more often than a long way has
//! round trips.

use std::sync::Arc;
use std::time::Duration;

use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays};
use crate::mirror::{Lag, LegStatus, Mode, OnLag};

/// From here to the leg and back.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// A data base that commits 8 KiB every 5 ms, if it can, for six seconds of its own: the time that
/// it takes, the largest lag, and where the leg stands then.
async fn two_hundred_commits_a_second(redo_bytes: u64) -> (Duration, Duration, LegStatus, World) {
    let mut world = World::blank(1);
    world.config.mode = Mode::Async;
    world.config.redo_bytes = Some(redo_bytes);
    world.config.lag = Lag { age: Duration::from_secs(3), bytes: 64 << 20, on: OnLag::Slow };
    let way = Delays::all(Delay::Fixed(ROUND_TRIP));
    let far = Arc::new(DelayLayer::new(memory(LEG_SIZE), way, 1));
    world.legs[0] = TestLeg::new("far", far);
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    let (begin, mut lag_max) = (tokio::time::Instant::now(), Duration::ZERO);
    for commit in 0..1200u64 {
        let at = commit % 500 * 8192;
        world.write(at, 8192, commit as u8).await.unwrap();
        world.device().flush().await.unwrap();
        lag_max = lag_max.max(world.mirror().status().legs[0].lag);
        tokio::time::sleep(Duration::from_millis(5)).await;
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
