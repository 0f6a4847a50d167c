//! Comparing a leg with the local disk.

use std::sync::Arc;
use std::time::Duration;

use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays, OpKind, StatsLayer};
use crate::mirror::engine::verify::{Plan, compare_all};
use crate::mirror::{LegState, Mode, ResyncRate, VerifyOptions};
use crate::{BlockDevice, WriteFlags};

#[tokio::test(start_paused = true)]
async fn verify_finds_a_flipped_byte_and_heals_it() {
    let world = World::in_sync(1).await;
    world.device().write(0, pattern(1 << 20, 1), WriteFlags::NONE).await.unwrap();
    let clean = world.mirror().verify(0, VerifyOptions::default()).await.unwrap();
    assert_eq!((clean.bytes, clean.mismatches), (SIZE, 0));
    let mut block = pattern(4096, 1).to_vec();
    block[77] ^= 1;
    world.legs[0].device().write(0, block.into(), WriteFlags::NONE).await.unwrap();
    let found = world.mirror().verify(0, VerifyOptions { heal: true, ..Default::default() }).await;
    let found = found.unwrap();
    assert_eq!((found.mismatches, found.healed, found.offsets), (1, 1, vec![0]));
    world.wait("it is healed", |mirror| mirror.status().legs[0].dirty_bytes == 0).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_only_a_verification_waits_for_in_vain_is_lost_all_the_same() {
    let mut world = World::blank(1);
    world.config.mode = Mode::Async;
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Hangs);
    let replaced = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        world.legs[0].replace(memory(LEG_SIZE), "another");
        world.legs[0].set_way(Way::Open);
    };
    let verified = world.mirror().verify(0, VerifyOptions::default());
    let (verified, ()) = tokio::join!(verified, replaced);
    assert!(verified.is_err(), "{verified:?}");
    world.wait_state(0, LegState::Unrelated).await;
}

/// What differed is told until the leg has another image, and not until the next verification.
#[tokio::test(start_paused = true)]
async fn what_a_verification_found_is_told_no_more_when_all_was_copied_again() {
    let mut world = World::in_sync(2).await;
    world.write(0, 1 << 20, 1).await.unwrap();
    for leg in 0..2 {
        world.legs[leg].device().write(0, pattern(4096, 9), WriteFlags::NONE).await.unwrap();
        world.mirror().verify(leg, VerifyOptions::default()).await.unwrap();
    }
    let told = |world: &World, leg: usize| {
        world.mirror().status().legs[leg].verified.map(|verdict| verdict.mismatches)
    };
    assert_eq!((told(&world, 0), told(&world, 1)), (Some(1), Some(1)));
    world.mirror().resync(0, false).await.unwrap();
    world.settled().await;
    assert_eq!(told(&world, 0), Some(1), "nothing was copied");
    world.mirror().resync(0, true).await.unwrap();
    assert_eq!(told(&world, 0), Some(1), "it differs still");
    world.settled().await;
    assert_eq!((told(&world, 0), told(&world, 1)), (None, Some(1)));
    let clean = world.mirror().verify(0, VerifyOptions::default()).await.unwrap();
    assert_eq!(clean.mismatches, 0);
    // It is written down.
    world.mirror().resync(1, true).await.unwrap();
    world.settled().await;
    world.kill();
    world.open().await;
    world.settled().await;
    assert_eq!((told(&world, 0), told(&world, 1)), (Some(0), None));
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn verify_beside_writes_raises_no_false_alarm() {
    let world = World::in_sync(1).await;
    let device = world.device();
    let writer = tokio::spawn(async move {
        for round in 0..100u64 {
            let at = round * 7919 % (SIZE / 4096) * 4096;
            device.write(at, pattern(4096, round as u8), WriteFlags::NONE).await.unwrap();
            tokio::task::yield_now().await;
        }
    });
    let mut rounds = 0;
    while !writer.is_finished() {
        let report = world.mirror().verify(0, VerifyOptions::default()).await.unwrap();
        assert_eq!(report.mismatches, 0, "{report:?}");
        tokio::task::yield_now().await;
        rounds += 1;
    }
    writer.await.unwrap();
    assert!(rounds > 0);
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_hole_of_both_is_not_read_and_what_is_none_there_is_found() {
    let world = World::in_sync(1).await;
    world.write(1 << 20, 4096, 1).await.unwrap();
    let counted = Arc::new(StatsLayer::new(world.legs[0].device()));
    world.legs[0].replace(counted.clone(), "id of leg 0");
    let clean = world.mirror().verify(0, VerifyOptions::default()).await.unwrap();
    assert_eq!((clean.bytes, clean.mismatches), (SIZE, 0));
    let read = counted.snapshot().of(OpKind::Read).bytes;
    assert!((4096..SIZE / 4).contains(&read), "{read} bytes were read");
    // Nothing is there here; there somebody else wrote.
    counted.write(3 << 20, pattern(4096, 2), WriteFlags::NONE).await.unwrap();
    let found = world.mirror().verify(0, VerifyOptions::default()).await.unwrap();
    assert_eq!((found.bytes, found.mismatches), (SIZE, 1));
    assert_eq!(found.offsets, [3 << 20]);
}

/// Its parts end in any order: what is behind the place where it stops is compared again later, and
/// counts then.
#[tokio::test(start_paused = true)]
async fn what_is_told_where_it_stops_is_what_was_found_before_that() {
    const PARTS: u64 = SIZE / (256 << 10);
    let world = World::in_sync(1).await;
    world.device().write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    for part in 0..PARTS {
        let at = part * (256 << 10);
        world.legs[0].device().write(at, vec![9; 4096].into(), WriteFlags::NONE).await.unwrap();
    }
    let delay = Delay::Uniform(Duration::from_millis(1), Duration::from_millis(100));
    let slow = DelayLayer::new(world.legs[0].device(), Delays::all(delay), 1);
    world.legs[0].replace(Arc::new(slow), "id of leg 0");
    let shared = &world.mirror().shared;
    let session = shared.legs().session(0).unwrap();
    let (mut from, mut bytes, mut mismatches, mut stopped) = (0, 0, 0, 0);
    loop {
        let mut asked = 0;
        let plan = Plan { from, rate: ResyncRate::Max, heal: false, parts: 8 };
        let compared = compare_all(shared, 0, &session, plan, |_, _| {
            asked += 1;
            asked < 5
        });
        let (report, stops) = compared.await.unwrap();
        (bytes, mismatches) = (bytes + report.bytes, mismatches + report.mismatches);
        let Some(next) = stops else { break };
        assert_eq!(bytes, next * 4096);
        (from, stopped) = (next, stopped + 1);
    }
    assert_eq!((bytes, mismatches), (SIZE, PARTS));
    assert!(stopped > 2);
}
