//! The asynchronous mode: what completes without a leg, how far a leg may be behind, and what is
//! left of it after losses.

use std::time::Duration;

use super::world::*;
use crate::layer::{Fault, OpKind};
use crate::mirror::{Lag, LegState, Mode, OnLag, OnLoss, PromoteOptions, TokioHost, promote};
use crate::{BlockDevice, BlockError, Buf, WriteFlags};

const KIB: usize = 1024;

async fn in_sync(legs: usize, change: impl FnOnce(&mut World)) -> World {
    let mut world = World::blank(legs);
    world.config.mode = Mode::Async;
    change(&mut world);
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world
}

/// Every leg is in sync and has all of the log.
async fn caught_up(world: &World) {
    world
        .wait("all legs have everything", |mirror| {
            let legs = mirror.status().legs;
            legs.iter().all(|leg| leg.state == LegState::InSync && leg.epochs == 0)
        })
        .await;
}

fn lag(seconds: u64, bytes: u64, on: OnLag) -> Lag {
    Lag { age: Duration::from_secs(seconds), bytes, on }
}

#[tokio::test(start_paused = true)]
async fn writes_and_flushes_wait_for_no_leg_and_get_there_within_the_lag() {
    let world = in_sync(2, |_| {}).await;
    world.legs.iter().for_each(|leg| leg.set_way(Way::Hangs));
    let start = tokio::time::Instant::now();
    world.write(0, 64 * KIB, 1).await.unwrap();
    world.device().write(512, pattern(1024, 2), WriteFlags::FUA).await.unwrap();
    world.device().zero(8192, 4096, Default::default()).await.unwrap();
    world.device().flush().await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    let status = world.mirror().status().legs[0].clone();
    assert!(status.lag_bytes > 64 * 1024 && status.epochs > 0, "{status:?}");
    world.legs.iter().for_each(|leg| leg.set_way(Way::Open));
    caught_up(&world).await;
    world.assert_equal().await;
    let status = world.mirror().status();
    assert_eq!((status.legs[0].lag_bytes, status.legs[0].copied_bytes), (0, SIZE));
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_comes_back_goes_on_behind_its_stamp_and_was_legal_all_the_time() {
    for way in [Way::Cut, Way::Hangs, Way::Mute] {
        let world = in_sync(1, |world| world.config.lag = lag(60, 64 << 20, OnLag::Slow)).await;
        let generation = world.mirror().status().generation;
        world.write(0, 64 * KIB, 1).await.unwrap();
        caught_up(&world).await;
        let copied = world.mirror().status().legs[0].copied_bytes;
        world.legs[0].set_way(way);
        for at in 0..8u64 {
            world.write(at * 8192, 4096, 2).await.unwrap();
            world.device().flush().await.unwrap();
        }
        world.wait_state(0, LegState::Lost).await;
        let status = world.mirror().status().legs[0].clone();
        assert!(status.consistent && status.dirty_bytes == 0 && status.epochs == 8, "{status:?}");
        world.legs[0].set_way(Way::Open);
        caught_up(&world).await;
        world.assert_equal().await;
        let status = world.mirror().status();
        assert_eq!(status.legs[0].copied_bytes, copied, "{way:?}: nothing was copied");
        assert_eq!(status.generation, generation, "{way:?}: it has missed nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn with_slow_writes_wait_at_the_bound_until_the_leg_is_lost() {
    let world = in_sync(1, |world| world.config.lag = lag(2, 128 << 10, OnLag::Slow)).await;
    world.legs[0].set_way(Way::Hangs);
    let start = tokio::time::Instant::now();
    // 31 pieces of 4 KiB and what they cost fit.
    for at in 0..30u64 {
        world.write(at * 8192, 4 * KIB, 1).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    let status = world.mirror().status().legs[0].clone();
    assert!(status.lag_bytes <= 128 << 10, "{status:?}");
    world.write(1 << 20, 4 * KIB, 2).await.unwrap();
    world.write(2 << 20, 4 * KIB, 3).await.unwrap();
    let took = start.elapsed();
    assert!(took > Duration::from_secs(2), "the bound holds: {took:?}");
    assert!(took <= world.config.remote_timeout + Duration::from_secs(1), "{took:?}");
    let status = world.mirror().status();
    assert!(status.lag_wait > Duration::from_secs(2), "{:?}", status.lag_wait);
    assert_eq!((status.legs[0].state, status.legs[0].lag_bytes), (LegState::Lost, 0));
    assert!(status.legs[0].dirty_bytes >= 30 * 4096, "{:?}", status.legs[0]);
    world.legs[0].set_way(Way::Open);
    caught_up(&world).await;
    world.assert_equal().await;
}

/// The largest lag while 8 MiB are written at once to a leg of which nothing is known.
async fn burst(on: OnLag) -> (Duration, LegState) {
    let age = Duration::from_millis(400);
    let world = in_sync(1, |world| world.config.lag = Lag { age, bytes: 64 << 20, on }).await;
    let now = tokio::time::Instant::now();
    *world.legs[0].carries.lock().unwrap() = Some((10_000_000, now));
    let device = world.device();
    let writes = tokio::spawn(async move {
        for at in 0..128u64 {
            let at = at % 64 * 64 * KIB as u64;
            device.write(at, pattern(64 * KIB, at as u8), WriteFlags::NONE).await.unwrap();
        }
    });
    let mut most = Duration::ZERO;
    loop {
        let leg = world.mirror().status().legs[0].clone();
        most = most.max(leg.lag);
        if writes.is_finished() && (leg.epochs == 0 || leg.state != LegState::InSync) {
            return (most, leg.state);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_to_a_leg_of_which_nothing_is_known_is_within_the_lag_too() {
    let (most, state) = burst(OnLag::Slow).await;
    assert!(most <= Duration::from_millis(400), "{most:?}");
    assert_eq!(state, LegState::InSync);
    let (most, state) = burst(OnLag::FallBehind).await;
    assert_ne!(state, LegState::InSync, "no write waits, and 8 MiB take 0.8 s: {most:?}");
}

/// A leg with a slow line gets its first copy while `bytes_per_s` are written. Returns the largest
/// lag while it counted as in sync, and how often it was left behind after that.
async fn copied_while_written(on: OnLag, bytes_per_s: u64) -> (Duration, u32) {
    let mut world = World::blank(1);
    let age = Duration::from_millis(400);
    (world.config.mode, world.config.lag) = (Mode::Async, Lag { age, bytes: 64 << 20, on });
    world.local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    world.create().await.unwrap();
    *world.legs[0].carries.lock().unwrap() = Some((4_000_000, tokio::time::Instant::now()));
    world.open().await;
    let device = world.device();
    let writes = tokio::spawn(async move {
        let pause = Duration::from_secs_f64(32.0 * KIB as f64 / bytes_per_s as f64);
        for at in 0..8 * bytes_per_s / (32 << 10) {
            let at = at * 5 % 128 * 32 * KIB as u64;
            device.write(at, pattern(32 * KIB, at as u8), WriteFlags::NONE).await.unwrap();
            tokio::time::sleep(pause).await;
        }
    });
    let (mut most, mut lost, mut before) = (Duration::ZERO, 0, LegState::Connecting);
    while !writes.is_finished() || before != LegState::InSync {
        let leg = world.mirror().status().legs[0].clone();
        if leg.state == LegState::InSync {
            most = most.max(leg.lag);
        } else if before == LegState::InSync {
            lost += 1;
        }
        before = leg.state;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    caught_up(&world).await;
    world.assert_equal().await;
    (most, lost)
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_was_caught_up_with_is_in_sync_once_it_is_within_the_lag() {
    let age = Duration::from_millis(400);
    let (most, _) = copied_while_written(OnLag::Slow, 10_000_000).await;
    assert!(most <= age, "writes that the line does not carry wait: {most:?}");
    let (most, lost) = copied_while_written(OnLag::FallBehind, 2_000_000).await;
    assert!(most <= age && lost == 0, "half of the line is written: {most:?}, lost {lost} times");
}

#[tokio::test(start_paused = true)]
async fn with_slow_old_writes_hold_up_new_ones() {
    let world = in_sync(1, |world| world.config.lag = lag(2, 64 << 20, OnLag::Slow)).await;
    world.legs[0].set_way(Way::Hangs);
    world.write(0, 4 * KIB, 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let start = tokio::time::Instant::now();
    let device = world.device();
    let write = tokio::spawn(device.write(8192, pattern(4096, 2), WriteFlags::NONE));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!write.is_finished(), "a write is older than the lag");
    write.await.unwrap().unwrap();
    assert!(start.elapsed() < world.config.remote_timeout, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn with_fall_behind_no_write_waits_and_age_is_bounded_without_writes() {
    let world = in_sync(1, |world| world.config.lag = lag(2, 128 << 10, OnLag::FallBehind)).await;
    world.legs[0].set_way(Way::Hangs);
    let start = tokio::time::Instant::now();
    for at in 0..100u64 {
        world.write(at * 8192, 4 * KIB, 1).await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_millis(10), "{:?}", start.elapsed());
    let status = world.mirror().status().legs[0].clone();
    assert!(status.message.as_ref().is_some_and(|why| why.contains("left behind")), "{status:?}");
    world.legs[0].set_way(Way::Open);
    caught_up(&world).await;
    world.assert_equal().await;
    world.legs[0].set_way(Way::Hangs);
    world.write(0, 4 * KIB, 3).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    world.wait("it is left behind", |mirror| mirror.status().legs[0].lag_bytes == 0).await;
}

#[tokio::test(start_paused = true)]
async fn with_stop_writes_fail_until_a_person_decides() {
    let world = in_sync(1, |world| world.config.lag = lag(2, 64 << 10, OnLag::Stop)).await;
    world.legs[0].set_way(Way::Hangs);
    for at in 0..14u64 {
        world.write(at * 8192, 4 * KIB, 1).await.unwrap();
    }
    let refused = loop {
        if let Err(error) = world.write(1 << 20, 8 * KIB, 2).await {
            break error.to_string();
        }
    };
    assert!(refused.contains("behind") && refused.contains("mirror pause"), "{refused}");
    world.legs[0].set_way(Way::Open);
    caught_up(&world).await;
    assert!(world.write(0, 4 * KIB, 3).await.is_err(), "it has come back, and nobody has decided");
    world.mirror().resume(0).await.unwrap();
    world.write(0, 4 * KIB, 3).await.unwrap();
    world.legs[0].set_way(Way::Hangs);
    world.write(0, 4 * KIB, 4).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(world.write(0, 4 * KIB, 5).await.is_err());
    world.mirror().pause(0).await.unwrap();
    world.write(0, 4 * KIB, 5).await.unwrap();
    world.legs[0].set_way(Way::Open);
    world.mirror().resume(0).await.unwrap();
    caught_up(&world).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn with_on_loss_stop_the_log_is_kept_until_the_leg_is_back() {
    let world = in_sync(1, |world| {
        world.config.lag = lag(2, 64 << 20, OnLag::Slow);
        world.config.on_loss = OnLoss::Stop;
    })
    .await;
    world.legs[0].set_way(Way::Cut);
    world.write(0, 4 * KIB, 1).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let device = world.device();
    let write = tokio::spawn(device.write(8192, pattern(4096, 2), WriteFlags::NONE));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!write.is_finished(), "a write goes on without the leg");
    let copied = world.mirror().status().legs[0].copied_bytes;
    world.legs[0].set_way(Way::Open);
    write.await.unwrap().unwrap();
    caught_up(&world).await;
    world.assert_equal().await;
    assert_eq!(world.mirror().status().legs[0].copied_bytes, copied);
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_put_back_to_an_older_state_is_copied_whole() {
    let world = in_sync(1, |_| {}).await;
    world.write(0, 64 * KIB, 1).await.unwrap();
    caught_up(&world).await;
    let device = world.legs[0].device();
    let old = device.read(0, Buf::new(LEG_SIZE as usize)).await.unwrap();
    for byte in 2..5 {
        world.write(0, 4 * KIB, byte).await.unwrap();
        world.device().flush().await.unwrap();
        caught_up(&world).await;
    }
    world.legs[0].set_way(Way::Cut);
    world.write(1 << 20, 4 * KIB, 9).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    device.write(0, old.freeze(), WriteFlags::NONE).await.unwrap();
    world.legs[0].set_way(Way::Open);
    caught_up(&world).await;
    world.assert_equal().await;
    assert_eq!(world.mirror().status().legs[0].copied_bytes, SIZE);
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_at_a_power_cut_is_owed_and_nothing_else() {
    let mut world = in_sync(1, |world| world.config.lag = lag(60, 64 << 20, OnLag::Slow)).await;
    world.write(0, 64 * KIB, 1).await.unwrap();
    caught_up(&world).await;
    world.device().flush().await.unwrap();
    world.legs[0].set_way(Way::Hangs);
    world.write(32 * KIB as u64, 8 * KIB, 2).await.unwrap();
    world.kill();
    world.legs[0].set_way(Way::Open);
    world.open().await;
    caught_up(&world).await;
    world.assert_equal().await;
    let copied = world.mirror().status().legs[0].copied_bytes;
    assert!(copied <= 1 << 20, "{copied} bytes: the extent that was active");
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_is_left_and_opening_again_copies_nothing() {
    let mut world = in_sync(2, |_| {}).await;
    world.write(0, 256 * KIB, 1).await.unwrap();
    world.mirror.take().unwrap().close().await.unwrap();
    world.assert_equal().await;
    let generation = {
        world.open().await;
        world.write(4096, 4 * KIB, 2).await.unwrap(); // before a leg is reached
        world.mirror().status().generation
    };
    caught_up(&world).await;
    world.assert_equal().await;
    let status = world.mirror().status();
    assert_eq!((status.legs[0].copied_bytes, &status.generation), (0, &generation));
    // A leg that cannot be reached is waited for no longer than the timeout, and owed.
    world.legs[0].set_way(Way::Hangs);
    world.write(0, 4 * KIB, 3).await.unwrap();
    let start = tokio::time::Instant::now();
    world.mirror.take().unwrap().close().await.unwrap();
    assert!(start.elapsed() <= world.config.remote_timeout, "{:?}", start.elapsed());
    world.legs[0].set_way(Way::Open);
    world.open().await;
    caught_up(&world).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_bad_sector_here_is_read_from_the_leg_and_from_what_is_on_its_way() {
    let world = in_sync(1, |world| world.config.lag = lag(60, 64 << 20, OnLag::Slow)).await;
    world.write(0, 16 * KIB, 1).await.unwrap();
    caught_up(&world).await;
    // The open epoch is not sent for a while.
    world.write(4096 + 512, 1024, 2).await.unwrap();
    world.device().zero(8192, 512, Default::default()).await.unwrap();
    let medium = || BlockError::Medium(std::io::Error::other("bad sector"));
    world.local.inject(Fault::on(OpKind::Read, medium).times(1));
    let buf = world.device().read(0, Buf::new(16 * KIB)).await.unwrap();
    let mut expected = vec![1; 16 * KIB];
    expected[4096 + 512..4096 + 1536].fill(2);
    expected[8192..8192 + 512].fill(0);
    assert!(buf[..] == expected[..], "an old content was read");
    caught_up(&world).await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_failed_here_is_sent_as_it_is_here() {
    let world = in_sync(1, |_| {}).await;
    world.write(0, 16 * KIB, 1).await.unwrap();
    caught_up(&world).await;
    world.local.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).times(1));
    let error = world.write(4096, 4 * KIB, 2).await.unwrap_err();
    assert!(matches!(error, BlockError::NoSpace), "{error}");
    world
        .wait("the leg has what is here", |mirror| {
            let leg = &mirror.status().legs[0];
            leg.epochs == 0 && leg.dirty_bytes == 0
        })
        .await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    caught_up(&world).await;
    world.assert_equal().await;
    let status = world.mirror().status().legs[0].clone();
    assert!(status.consistent && status.copied_bytes == SIZE, "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_local_device_that_fails_is_not_replaced_by_a_leg_that_is_behind() {
    let world = in_sync(1, |_| {}).await;
    let medium = || BlockError::Medium(std::io::Error::other("dead"));
    world.local.inject(Fault::on(OpKind::Flush, medium));
    world.write(0, 4 * KIB, 1).await.unwrap();
    assert!(world.device().flush().await.is_err(), "nobody has it for good");
}

#[tokio::test(start_paused = true)]
async fn promoting_tells_the_moment_of_the_last_stamp() {
    let mut world = in_sync(1, |world| world.config.lag = lag(60, 64 << 20, OnLag::Slow)).await;
    world.write(0, 64 * KIB, 1).await.unwrap();
    world.device().flush().await.unwrap();
    caught_up(&world).await;
    let first = world.mirror().status().legs[0].image_time;
    assert!(first.is_some());
    world.legs[0].set_way(Way::Hangs);
    world.write(0, 4 * KIB, 2).await.unwrap();
    world.kill();
    world.legs[0].set_way(Way::Open);
    let open = world.parts().legs[0].connect().await.unwrap();
    let host = TokioHost::current();
    // By the real clock it is a moment ago that the mirror was alive.
    let options = PromoteOptions { force: true, ..PromoteOptions::default() };
    let promoted = promote(open, &host, options).await.unwrap();
    assert!(promoted.epoch > 0 && promoted.image_time.is_some(), "{promoted:?}");
    let there = content(&*world.legs[0].device()).await;
    assert!(there[..64 * KIB].iter().all(|byte| *byte == 1), "the image before the last write");
}

#[tokio::test(start_paused = true)]
async fn a_leg_put_back_to_an_earlier_session_is_copied_anew_although_the_log_only_went_on() {
    let mut world = in_sync(1, |world| world.config.lag = lag(60, 64 << 20, OnLag::Slow)).await;
    world.write(0, 64 * KIB, 1).await.unwrap();
    caught_up(&world).await;
    let all = Buf::new(LEG_SIZE as usize);
    let before = world.legs[0].device().read(0, all).await.unwrap().to_vec();
    // The line is away for a moment: nothing but the log goes to the leg since.
    world.legs[0].set_way(Way::Cut);
    world.write(64 << 10, 64 * KIB, 2).await.unwrap();
    world.device().flush().await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    world.legs[0].set_way(Way::Open);
    caught_up(&world).await;
    world.device().flush().await.unwrap();
    world.write(1 << 20, 4 * KIB, 3).await.unwrap();
    caught_up(&world).await;
    // It fails, is put back, and this process ends before it has met it again.
    world.legs[0].set_way(Way::Cut);
    world.wait_state(0, LegState::Lost).await;
    world.mirror.take().unwrap().close().await.unwrap();
    let leg = memory(LEG_SIZE);
    leg.write(0, before.into(), WriteFlags::NONE).await.unwrap();
    world.legs[0].replace(leg, "id of leg 0");
    world.legs[0].set_way(Way::Open);
    world.open().await;
    world.settled().await;
    caught_up(&world).await;
    world.assert_equal().await;
}
