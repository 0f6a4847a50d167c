//! Whoever keeps the image of a leg is asked before it is written over in place, and only then;
//! what he answers, and how long it takes him.

use std::sync::Arc;
use std::time::Duration;

use super::world::*;
use crate::mirror::engine::signal::lock;
use crate::mirror::superblock::Consistency;
use crate::mirror::{Inspection, Lag, LegState, Mode, OnLag, ResyncRate, Way as Caught, inspect};
use crate::{BlockDevice, Device};

const KIB: usize = 1024;

/// One leg without a redo log, in sync.
async fn in_sync(mode: Mode) -> World {
    let mut world = World::blank(1);
    world.config.mode = mode;
    world.config.redo_bytes = Some(0);
    world.config.lag = Lag { bytes: 64 << 10, on: OnLag::FallBehind, ..world.config.lag };
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world
}

/// More than the log keeps is written while the leg cannot be reached.
async fn left_behind(world: &World, byte: u8) {
    world.legs[0].set_way(Way::Cut);
    for number in 0..4 {
        world.write(number * 128 * 1024, 64 * KIB, byte).await.unwrap();
        world.device().flush().await.unwrap();
    }
    world.wait("the leg is left behind", |mirror| mirror.status().legs[0].dirty_bytes > 0).await;
}

async fn is_asked(keeper: &Keeper, times: usize) {
    let wait = async {
        while lock(&keeper.asked).len() < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(3600), wait).await.expect("he was never asked");
}

async fn says_consistent(device: &Device) -> bool {
    let Inspection::Leg(leg) = inspect(device).await.unwrap() else { panic!("it is no leg") };
    leg.consistency == Consistency::Consistent
}

#[tokio::test(start_paused = true)]
async fn an_image_is_kept_before_it_is_written_over_and_nobody_waits_for_that() {
    for mode in [Mode::Sync, Mode::Async] {
        let world = in_sync(mode).await;
        world.write(0, 64 * KIB, 7).await.unwrap();
        world.wait("it is there", |mirror| mirror.status().legs[0].epochs == 0).await;
        let before = content(&*world.legs[0].device()).await;
        let keeper = Keeper::of(&world.legs[0], None);
        left_behind(&world, 8).await;
        world.legs[0].set_way(Way::Open);
        is_asked(&keeper, 1).await;
        // A minute in which its user goes on.
        let begun = tokio::time::Instant::now();
        for number in 0..60 {
            world.write(number * 64 * 1024, 4 * KIB, 9).await.unwrap();
            world.device().flush().await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(61), "{mode:?}: {:?}", begun.elapsed());
        let leg = world.mirror().status().legs[0].clone();
        assert_eq!((leg.state, leg.consistent), (LegState::Lost, true), "{mode:?}");
        let message = leg.message.unwrap();
        assert!(message.contains("kept by before_resync") && message.contains("no redo log"));
        assert!(content(&*world.legs[0].device()).await == before, "{mode:?}");
        assert!(says_consistent(&world.legs[0].device()).await);
        keeper.answer.send_replace(Some(Ok(())));
        world.settled().await;
        world.wait("all is there", |mirror| mirror.status().legs[0].epochs == 0).await;
        world.assert_equal().await;
        assert_eq!(lock(&keeper.asked).len(), 1, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_kept_is_not_written_over_and_he_is_asked_more_and_more_seldom() {
    for mode in [Mode::Sync, Mode::Async] {
        let world = in_sync(mode).await;
        let before = content(&*world.legs[0].device()).await;
        let keeper = Keeper::of(&world.legs[0], Some(Err("no room for a snapshot".into())));
        left_behind(&world, 8).await;
        world.legs[0].set_way(Way::Open);
        is_asked(&keeper, 4).await;
        assert_eq!(keeper.asked_at_s(), [0, 15, 45, 105], "{mode:?}");
        let refused = |message: &Option<String>| {
            let expected = "no room for a snapshot; its image stays as it is, and the next attempt \
                            is made in 120 s (`enkaku mirror resync` makes it at once)";
            message.as_deref() == Some(expected)
        };
        world.wait("it is said", |mirror| refused(&mirror.status().legs[0].message)).await;
        let leg = world.mirror().status().legs[0].clone();
        assert_eq!((leg.state, leg.consistent), (LegState::Lost, true), "{mode:?}");
        assert!(content(&*world.legs[0].device()).await == before, "{mode:?}");
        assert!(says_consistent(&world.legs[0].device()).await);
        // A person has made room.
        keeper.answer.send_replace(Some(Ok(())));
        world.mirror().resync(0, false).await.unwrap();
        world.settled().await;
        world.assert_equal().await;
        assert!(*keeper.asked_at_s().last().unwrap() < 110, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_where_no_image_is_lost() {
    for mode in [Mode::Sync, Mode::Async] {
        let mut world = World::blank(1);
        world.config.mode = mode;
        world.config.lag = Lag { bytes: 64 << 10, on: OnLag::FallBehind, ..world.config.lag };
        world.create().await.unwrap();
        let keeper = Keeper::of(&world.legs[0], Some(Err("he is asked".into())));
        world.open().await;
        world.settled().await; // The first copy.
        left_behind(&world, 8).await;
        world.legs[0].set_way(Way::Open);
        world.settled().await; // Through the redo log.
        world.assert_equal().await;
        assert!(lock(&keeper.asked).is_empty(), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_written_over_already_is_not_kept_again() {
    let mut world = in_sync(Mode::Sync).await;
    world.config.resync_rate = ResyncRate::BytesPerS(10_000);
    world.kill();
    world.open().await;
    world.settled().await;
    let keeper = Keeper::of(&world.legs[0], Some(Ok(())));
    left_behind(&world, 8).await;
    world.legs[0].set_way(Way::Open);
    world.wait("something is copied", |mirror| mirror.status().legs[0].copied_bytes > 0).await;
    assert_eq!(world.mirror().status().legs[0].way, Caught::InPlace);
    world.legs[0].set_way(Way::Cut);
    world.wait_state(0, LegState::Lost).await;
    keeper.answer.send_replace(Some(Err("he is asked again".into())));
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    assert_eq!(lock(&keeper.asked).len(), 1);
}

/// After a power cut here the state of the leg is not known yet; writes would wait for it.
#[tokio::test(start_paused = true)]
async fn a_mirror_that_is_opened_again_does_not_wait_until_an_image_is_kept() {
    let mut world = in_sync(Mode::Sync).await;
    world.write(0, 64 * KIB, 7).await.unwrap();
    world.kill();
    let keeper = Keeper::of(&world.legs[0], None);
    world.open().await;
    is_asked(&keeper, 1).await;
    let write = world.write(0, 4 * KIB, 9);
    tokio::time::timeout(Duration::from_secs(1), write).await.expect("it waits").unwrap();
    assert_eq!(world.mirror().status().legs[0].state, LegState::Lost);
    keeper.answer.send_replace(Some(Ok(())));
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_does_not_answer_while_its_image_is_kept_is_not_kept_twice() {
    let world = in_sync(Mode::Sync).await;
    let keeper = Keeper::of(&world.legs[0], None);
    left_behind(&world, 8).await;
    world.legs[0].set_way(Way::Open);
    is_asked(&keeper, 1).await;
    let there: Device = world.legs[0].device();
    let before = content(&*there).await;
    world.legs[0].set_way(Way::Hangs); // As an array may while it makes a snapshot.
    tokio::time::sleep(Duration::from_secs(30)).await;
    keeper.answer.send_replace(Some(Ok(())));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(content(&*there).await == before);
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    assert_eq!(lock(&keeper.asked).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_person_who_pauses_a_leg_whose_image_is_being_kept_does_not_wait_for_that() {
    let world = in_sync(Mode::Sync).await;
    let keeper = Keeper::of(&world.legs[0], None);
    left_behind(&world, 8).await;
    world.legs[0].set_way(Way::Open);
    is_asked(&keeper, 1).await;
    world.mirror().pause(0).await.unwrap();
    let gone = async {
        while keeper.answer.receiver_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), gone).await.expect("he is still asked");
    assert_eq!(world.mirror().status().legs[0].state, LegState::Paused);
    world.mirror().resume(0).await.unwrap();
    is_asked(&keeper, 2).await;
    let mut world = world;
    let closed = world.mirror.take().unwrap().close();
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("closes").unwrap();
    assert_eq!(Arc::strong_count(&keeper), 2, "its own task is gone");
    assert!(world.local.info().size > 0);
}
