//! First copies, catch-ups and clean ends: what is copied, what is not, and what a copy survives.

use std::sync::Arc;
use std::time::Duration;

use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays, LogLayer, log::Change};
use crate::mirror::{BLOCK_BYTES, CreateOptions, LegState, Mirror, ResyncRate};
use crate::{Device, WriteFlags, ZeroFlags, testing};

/// A local medium with data, written zeroes and holes.
async fn with_data() -> Device {
    let local = memory(SIZE);
    local.write(0, pattern(300 << 10, 1), WriteFlags::NONE).await.unwrap();
    local.write(1 << 20, vec![0; 512 << 10].into(), WriteFlags::NONE).await.unwrap();
    local.write(SIZE - 512, pattern(512, 2), WriteFlags::NONE).await.unwrap();
    local
}

/// A leg of which everything but the metadata's place was used before.
async fn used_leg() -> Device {
    let leg = memory(LEG_SIZE);
    leg.write(0, vec![0xee; SIZE as usize].into(), WriteFlags::NONE).await.unwrap();
    leg
}

#[tokio::test(start_paused = true)]
async fn the_first_copy_brings_data_and_zeroes_and_sends_only_data() {
    let mut world = World::over(with_data().await, 2);
    let used = Arc::new(LogLayer::new(used_leg().await));
    world.legs[1] = TestLeg::new("used", used.clone());
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 4);
    world.create().await.unwrap();
    world.open().await;
    world.wait_state(0, LegState::Copying).await;
    assert!(!world.mirror().status().legs[0].consistent);
    world.settled().await;
    world.assert_equal().await;
    assert!(world.mirror().status().legs.iter().all(|leg| leg.consistent));
    let data = |entry: &crate::layer::log::Entry| match &entry.change {
        Change::Write(at, data) if *at < SIZE => data.len() as u64,
        _ => 0,
    };
    let sent: u64 = used.log().entries().iter().map(data).sum();
    assert!(sent <= (300 << 10) + 2 * (64 << 10), "{sent} bytes of data were sent");
}

#[tokio::test(start_paused = true)]
async fn without_a_first_copy_a_leg_is_in_sync_at_once() {
    let mut world = World::blank(1);
    let options = CreateOptions { skip_initial_copy: true, force: false };
    Mirror::create(&world.parts(), &world.config, options).await.unwrap();
    world.open().await;
    world.settled().await;
    assert_eq!(world.mirror().status().legs[0].copied_bytes, 0);
    world.write(0, 8192, 3).await.unwrap();
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_end_nothing_is_copied() {
    let mut world = World::in_sync(2).await;
    world.write(4096, 1 << 20, 4).await.unwrap();
    let generation = world.mirror().status().generation;
    world.mirror.take().unwrap().close().await.unwrap();
    world.assert_equal().await;
    world.open().await;
    world.settled().await;
    let status = world.mirror().status();
    assert_eq!(status.legs.iter().map(|leg| leg.copied_bytes).sum::<u64>(), 0);
    assert_eq!(status.generation, generation);
}

#[tokio::test(start_paused = true)]
async fn a_closed_mirror_admits_nothing() {
    let mut world = World::in_sync(1).await;
    let device = world.device();
    world.mirror.take().unwrap().close().await.unwrap();
    assert!(device.write(0, pattern(512, 1), WriteFlags::NONE).await.is_err());
    assert!(device.flush().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_first_copy_goes_on_where_it_was_killed() {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 60);
    world.create().await.unwrap();
    world.open().await;
    world
        .wait("half of it is copied", |mirror| mirror.status().legs[0].copied_bytes >= SIZE / 2)
        .await;
    world.kill();
    world.config.resync_rate = ResyncRate::Max;
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
    let copied = world.mirror().status().legs[0].copied_bytes;
    // Half of it, and what was copied in the last ten seconds.
    assert!(copied <= SIZE / 2 + SIZE / 5, "{copied} of {SIZE} bytes");
}

/// A mebibyte of data, then nothing but a hole.
async fn mostly_hole() -> World {
    let local = memory(SIZE);
    local.write(0, pattern(1 << 20, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    world.config.resync_rate = ResyncRate::BytesPerS((1 << 20) / 5);
    world.create().await.unwrap();
    world.open().await;
    world.wait_state(0, LegState::Copying).await;
    world
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_the_rate_is_for_what_is_sent() {
    let begin = tokio::time::Instant::now();
    let world = mostly_hole().await;
    world.settled().await;
    world.assert_equal().await;
    let took = begin.elapsed().as_secs_f64();
    assert!((4.0..8.0).contains(&took), "{took} s for 5 s of data; the hole alone would take 15 s");
}

#[tokio::test(start_paused = true)]
async fn a_hole_that_is_written_during_a_copy_does_not_hold_it_up() {
    let begin = tokio::time::Instant::now();
    let world = mostly_hole().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.write(SIZE - (64 << 10), 4096, 2).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
    let took = begin.elapsed().as_secs_f64();
    assert!(took < 8.0, "{took} s for 5 s of data and a block");
}

#[tokio::test(start_paused = true)]
async fn a_mirror_is_closed_at_once_in_the_middle_of_a_copy_which_goes_on_later() {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 3600);
    world.create().await.unwrap();
    world.open().await;
    world.wait_state(0, LegState::Copying).await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    let leg = world.mirror().status().legs[0].clone();
    let rate = leg.copy_bytes_per_s as f64 / (SIZE / 3600) as f64;
    assert!((0.5..1.5).contains(&rate), "{rate} of the rate allowed");
    let left = leg.copy_time_left.unwrap();
    assert!((900..3600).contains(&left.as_secs()), "{left:?}");
    let start = tokio::time::Instant::now();
    world.mirror.take().unwrap().close().await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    world.config.resync_rate = ResyncRate::Max;
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
    let copied = world.mirror().status().legs[0].copied_bytes;
    assert!(copied <= SIZE * 6 / 10, "{copied} of {SIZE} bytes");
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_while_everything_is_written_over_and_over() {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    let delays = Delays::all(Delay::Fixed(Duration::from_millis(50)));
    world.legs[0] = TestLeg::new("far", Arc::new(DelayLayer::new(memory(LEG_SIZE), delays, 1)));
    world.create().await.unwrap();
    world.open().await;
    let device = world.device();
    let writers: Vec<_> = (0..8u64)
        .map(|writer| {
            let device = device.clone();
            tokio::spawn(async move {
                for round in 0.. {
                    let block = (round * 7919 + writer * 131) % (SIZE / BLOCK_BYTES);
                    let data = pattern(4096, (round + writer) as u8);
                    if device.write(block * BLOCK_BYTES, data, WriteFlags::NONE).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        })
        .collect();
    world.settled().await;
    let closed = world.mirror.take().unwrap().close().await;
    closed.unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_lost_again_and_again_keeps_what_was_copied() {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 100);
    world.create().await.unwrap();
    world.open().await;
    let mut left = SIZE;
    for _ in 0..4 {
        world.wait_state(0, LegState::Copying).await;
        tokio::time::sleep(Duration::from_secs(25)).await;
        world.legs[0].set_way(Way::Cut);
        world.wait_state(0, LegState::Lost).await;
        let now = world.mirror().status().legs[0].dirty_bytes;
        assert!(now < left, "{now} of {left} bytes are left");
        left = now;
        world.legs[0].set_way(Way::Open);
    }
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn everything_can_be_copied_again() {
    let world = World::in_sync(1).await;
    world.write(0, 65536, 5).await.unwrap();
    // What nobody could know.
    let leg = world.legs[0].device();
    leg.zero(4096, 4096, ZeroFlags::default()).await.unwrap();
    world.mirror().resync(0, true).await.unwrap();
    world
        .wait("it was copied again", |mirror| {
            let leg = &mirror.status().legs[0];
            leg.state == LegState::InSync && leg.copied_bytes == SIZE
        })
        .await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn it_is_a_block_device() {
    let world = World::in_sync(2).await;
    testing::conformance(&*world.device()).await;
    world.device().flush().await.unwrap();
    world.assert_equal().await;
}
