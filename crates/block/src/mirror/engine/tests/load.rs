//! The engine with more than one thread and with more extents than its activity log holds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays};
use crate::mirror::{CreateOptions, LegState, Mirror};
use crate::{Buf, WriteFlags};

const WRITERS: u64 = 8;
const WRITES: u64 = 400;

/// Real threads and real time: what the paused clock orders may come in any order here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_on_several_threads_while_legs_come_and_go() {
    let mut world = World::blank(2);
    world.config.remote_timeout = Duration::from_millis(400);
    world.config.retry = (Duration::from_millis(5), Duration::from_millis(20));
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    let device = world.device();
    let writer = |writer: u64| {
        let device = device.clone();
        tokio::spawn(async move {
            let mut random = Random(writer);
            for round in 0..WRITES {
                let at = random.below(SIZE / 512 - 16) * 512;
                let len = (1 + random.below(16)) * 512;
                let flags = if random.below(8) == 0 { WriteFlags::FUA } else { WriteFlags::NONE };
                let data = pattern(len as usize, (round + writer) as u8);
                device.write(at, data, flags).await.unwrap();
                if random.below(16) == 0 {
                    device.flush().await.unwrap();
                }
            }
        })
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    let mut random = Random(99);
    while !writers.iter().all(|writer| writer.is_finished()) {
        let ways = [Way::Open, Way::Open, Way::Cut, Way::Mute];
        world.legs[random.below(2) as usize].set_way(ways[random.below(4) as usize]);
        tokio::time::sleep(Duration::from_millis(random.below(10))).await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    world.legs.iter().for_each(|leg| leg.set_way(Way::Open));
    world.settled().await;
    world.assert_equal().await;
    world.mirror.take().unwrap().close().await.unwrap();
}

/// Extents written; the log holds 1008.
const EXTENTS: u64 = 1500;
const EXTENT: u64 = 1 << 20;

#[tokio::test(start_paused = true)]
async fn a_power_cut_after_more_extents_than_the_log_holds_loses_no_bit() {
    let size = (EXTENTS + 1) * EXTENT;
    let mut world = World::over(memory(size), 1);
    world.legs[0] = TestLeg::new("large", memory(size + EXTENT));
    let options = CreateOptions { skip_initial_copy: true, ..CreateOptions::default() };
    Mirror::create(&world.parts(), &world.config, options).await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    // Far from each other, so that none is entered ahead.
    for n in 0..EXTENTS {
        world.write(n * 7 % EXTENTS * EXTENT, 4096, 1 + n as u8 % 250).await.unwrap();
    }
    world.kill();
    world.legs[0].set_way(Way::Open);
    world.open().await;
    world.settled().await;
    let there = world.legs[0].device();
    for n in 0..EXTENTS {
        let back = there.read(n * 7 % EXTENTS * EXTENT, Buf::new(4096)).await.unwrap();
        assert!(back.iter().all(|byte| *byte == 1 + n as u8 % 250), "extent {n}");
    }
    let leg = world.mirror().status().legs[0].clone();
    assert!(leg.copied_bytes <= 1008 * EXTENT + EXTENTS * 4096, "{} bytes", leg.copied_bytes);
}

/// A round trip to a far leg.
const FAR: Duration = Duration::from_millis(50);

/// A mirror with all of its image to be copied to one far leg, of which so much may be under way.
async fn copying_far(window: u64) -> World {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    let delays = Delays::all(Delay::Fixed(FAR));
    world.legs[0] = TestLeg::new("far", Arc::new(DelayLayer::new(memory(LEG_SIZE), delays, 1)));
    world.config.resync_window_bytes = window;
    world.create().await.unwrap();
    world.open().await;
    world.wait_state(0, LegState::Copying).await;
    world
}

#[tokio::test(start_paused = true)]
async fn the_user_of_a_mirror_whose_leg_is_far_behind_waits_for_neither_the_line_nor_the_copy() {
    let world = copying_far(512 << 10).await;
    // Over and over the same blocks, wherever the copy is.
    for n in 0..64 {
        let begin = Instant::now();
        world.write(n % 16 * (256 << 10), 4096, n as u8).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::ZERO, "write {n}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    assert_eq!(world.mirror().status().legs[0].state, LegState::Copying);
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_although_more_is_written_than_the_line_carries() {
    let world = copying_far(64 << 10).await;
    let device = world.device();
    let writer = tokio::spawn(async move {
        for n in 0_u64.. {
            device
                .write(n * 7 % 64 * (64 << 10), pattern(64 << 10, n as u8), WriteFlags::NONE)
                .await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok::<_, crate::BlockError>(())
    });
    world.wait_state(0, LegState::InSync).await;
    writer.abort();
    world.settled().await;
    world.assert_equal().await;
}
