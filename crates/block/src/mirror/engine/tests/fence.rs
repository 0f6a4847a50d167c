//! Rows of the failure matrix in which a reservation keeps somebody from writing: another host from
//! the leg, or us once another host has it.

use std::sync::atomic::Ordering;

use super::reserved::Reservations;
use super::world::*;
use crate::mirror::engine::signal::lock;
use crate::mirror::{
    CreateOptions, Discard, Guard, LegState, Mirror, MirrorError, PromoteOptions, ResyncRate,
    TokioHost, promote, promoted_device,
};
use crate::{BlockDevice, Buf, WriteFlags};

/// A mirror whose legs know reservations.
async fn reserved(legs: usize) -> World {
    let mut world = World::blank(legs);
    for leg in &world.legs {
        *lock(&leg.reservations) = Some(Reservations::default());
    }
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world
}

fn holder(world: &World, leg: usize) -> Option<u64> {
    lock(&world.legs[leg].reservations).as_ref().and_then(Reservations::holder)
}

async fn whole(device: &dyn BlockDevice) -> Vec<u8> {
    device.read(0, Buf::new(device.info().size as usize)).await.unwrap().to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_leg_is_reserved_before_the_first_write_and_stays_so() {
    let mut world = reserved(2).await;
    let keys = [holder(&world, 0).unwrap(), holder(&world, 1).unwrap()];
    assert_ne!(keys[0], keys[1]);
    let status = world.mirror().status();
    assert!(status.legs.iter().all(|leg| leg.guard == Guard::Reservation), "{status:#?}");
    world.write(0, 65536, 1).await.unwrap();
    // A lost link, a killed process, an end in order: it is the same key, and nobody is kept out.
    world.legs[0].set_way(Way::Cut);
    world.write(4096, 4096, 2).await.unwrap();
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.kill();
    world.open().await;
    world.settled().await;
    world.mirror.take().unwrap().close().await.unwrap();
    assert_eq!([holder(&world, 0).unwrap(), holder(&world, 1).unwrap()], keys);
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn the_next_write_finds_that_the_leg_was_taken_over_and_is_the_last() {
    let world = reserved(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.device().flush().await.unwrap();
    let elsewhere = world.legs[0].elsewhere();
    promote(elsewhere, &TokioHost::current(), PromoteOptions::default()).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    let start = tokio::time::Instant::now();
    world.write(0, 65536, 2).await.unwrap();
    assert_eq!(world.mirror().status().legs[0].state, LegState::Fenced);
    assert_eq!(start.elapsed(), std::time::Duration::ZERO, "found by the write, not by a look");
    for at in 0..64 {
        world.write(at * 4096, 4096, 3).await.unwrap();
    }
    world.device().flush().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    assert!(whole(&*world.legs[0].device()).await == before, "a promoted leg was written to");
    assert_eq!(world.mirror().status().legs[0].state, LegState::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_catch_up_that_is_overtaken_by_a_promotion_ends() {
    let mut world = World::blank(1);
    *lock(&world.legs[0].reservations) = Some(Reservations::default());
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 100);
    world.local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    world.create().await.unwrap();
    world.open().await;
    world.wait("a part is copied", |mirror| mirror.status().legs[0].copied_bytes > 0).await;
    let elsewhere = world.legs[0].elsewhere();
    let force = PromoteOptions { force: true, ..PromoteOptions::default() };
    promote(elsewhere, &TokioHost::current(), force).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    world.wait_state(0, LegState::Fenced).await;
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(whole(&*world.legs[0].device()).await == before);
}

#[tokio::test(start_paused = true)]
async fn another_host_keeps_what_it_has_reserved() {
    let mut world = reserved(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.mirror.take().unwrap().close().await.unwrap();
    // Somebody who is no mirror takes it: the superblock says nothing of that.
    let other = world.legs[0].elsewhere();
    other.fence.as_ref().unwrap().take(77).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    world.open().await;
    world.wait_state(0, LegState::Fenced).await;
    let message = world.mirror().status().legs[0].message.clone().unwrap();
    assert!(message.contains("0x000000000000004d"), "{message}");
    world.write(0, 65536, 2).await.unwrap();
    assert!(whole(&*world.legs[0].device()).await == before);
    assert_eq!(holder(&world, 0), Some(77));
    // A person takes it back.
    world.mirror().resolve(Discard::Leg(0)).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
    let image = promoted_device(other.device.clone()).unwrap();
    assert_eq!(image.info().size, LEG_SIZE - (64 << 10));
    assert_ne!(holder(&world, 0), Some(77));
}

#[tokio::test(start_paused = true)]
async fn what_another_host_has_reserved_becomes_a_leg_by_force_only() {
    let world = World::blank(1);
    *lock(&world.legs[0].reservations) = Some(Reservations::default());
    world.legs[0].elsewhere().fence.unwrap().take(77).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, MirrorError::Reserved { .. }), "{error}");
    assert!(whole(&*world.legs[0].device()).await == before);
    assert_eq!(holder(&world, 0), Some(77));
    let force = CreateOptions { force: true, ..CreateOptions::default() };
    Mirror::create(&world.parts(), &world.config, force).await.unwrap();
    assert_ne!(holder(&world, 0), Some(77));
}

#[tokio::test(start_paused = true)]
async fn a_target_without_reservations_is_used_unless_they_are_asked_for() {
    let mut world = World::in_sync(1).await;
    assert_eq!(world.mirror().status().legs[0].guard, Guard::Superblock);
    world.mirror.take().unwrap().close().await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    // It says that it knows them, and refuses: as asked for, and as not.
    world.legs[0].requires_reservation.store(true, Ordering::SeqCst);
    world.open().await;
    world.wait_state(0, LegState::Failed).await;
    let message = world.mirror().status().legs[0].message.clone().unwrap();
    assert!(message.contains("fence = \"none\""), "{message}");
    assert!(whole(&*world.legs[0].device()).await == before);
}
