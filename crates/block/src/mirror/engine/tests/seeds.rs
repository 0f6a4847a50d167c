//! Random writes, flushes, losses and kills, seed by seed: in the end every leg holds what is here,
//! and what is here is what was written last.

use std::time::Duration;

use super::world::*;
use crate::mirror::{BLOCK_BYTES, Lag, Mode, OnLag};
use crate::{WriteFlags, ZeroFlags};

const SEEDS: u64 = 60;
const STEPS: u64 = 60;

#[tokio::test(start_paused = true)]
async fn whatever_happens_the_legs_are_equal_in_the_end() {
    for seed in 0..SEEDS {
        run(seed, Mode::Sync).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_happens_the_legs_are_equal_in_the_end_in_the_asynchronous_mode() {
    for seed in 0..2 * SEEDS {
        run(seed, Mode::Async).await;
    }
}

fn lag(random: &mut Random) -> Lag {
    let on = [OnLag::Slow, OnLag::FallBehind][random.below(2) as usize];
    let bytes = [64 << 10, 1 << 20][random.below(2) as usize];
    Lag { age: Duration::from_millis([300, 20_000][random.below(2) as usize]), bytes, on }
}

async fn run(seed: u64, mode: Mode) {
    let mut random = Random(seed);
    let legs = 1 + random.below(3) as usize;
    let mut world = World::blank(legs);
    world.config.mode = mode;
    world.config.lag = lag(&mut random);
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    let mut model = vec![0u8; SIZE as usize];
    let mut under_way = Vec::new();
    for step in 0..STEPS {
        let offset = random.below(SIZE / 512) * 512;
        let len = ((1 + random.below(40)) * 512).min(SIZE - offset);
        let range = offset as usize..(offset + len) as usize;
        match random.below(20) {
            0..=9 => {
                let data = pattern(len as usize, step as u8);
                model[range].copy_from_slice(&data);
                let flags = if random.below(4) == 0 { WriteFlags::FUA } else { WriteFlags::NONE };
                under_way.push(world.device().write(offset, data, flags));
            }
            10 => {
                model[range].fill(0);
                let flags = ZeroFlags::new(false, true);
                under_way.push(world.device().zero(offset, len, flags));
            }
            11 | 12 => under_way.push(world.device().flush()),
            13..=15 => {
                let leg = random.below(legs as u64) as usize;
                let ways = [Way::Open, Way::Open, Way::Cut, Way::Hangs, Way::Mute];
                world.legs[leg].set_way(ways[random.below(5) as usize]);
            }
            16 | 17 => tokio::time::sleep(Duration::from_millis(random.below(20_000))).await,
            18 => {
                for io in under_way.drain(..) {
                    io.await.unwrap();
                }
                world.kill();
                world.open().await;
            }
            _ => {
                let block = offset / BLOCK_BYTES * BLOCK_BYTES;
                let back = world.device().read(block, crate::Buf::new(4096));
                drop(back.await.unwrap());
            }
        }
        // Overlapping writes have an order only if one waits for the other.
        for io in under_way.drain(..) {
            io.await.unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
        }
    }
    for leg in &world.legs {
        leg.set_way(Way::Open);
    }
    world.settled().await;
    world
        .wait("all legs have everything", |mirror| {
            mirror.status().legs.iter().all(|leg| leg.epochs == 0 && leg.dirty_bytes == 0)
        })
        .await;
    world.assert_equal().await;
    assert!(content(&*world.local).await == model, "seed {seed}: not what was written last");
    world.mirror.take().unwrap().close().await.unwrap();
}
