//! A mirror that compares its legs by itself: when, how fast, beside what, and what of it is kept.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::clock::HostWithClock;
use super::world::*;
use crate::BlockDevice;
use crate::mirror::{
    Host, LegState, LegStatus, Mirror, ResyncRate, Verdict, VerifyEvery, VerifyOptions,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Opens the mirror at this time of day.
async fn open(world: &mut World, opened_at: SystemTime) {
    let host = std::sync::Arc::new(HostWithClock::new("here", move |host| opened_at + host.now()));
    let parts = crate::mirror::Parts { host, ..world.parts() };
    world.mirror = Some(Mirror::open(parts, world.config).await.unwrap());
    world.settled().await;
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

/// Two legs, full of data, that are compared every hour; one comparison takes `seconds`.
async fn compared_every_hour(seconds: u64) -> World {
    let mut world = World::blank(2);
    let rate = ResyncRate::BytesPerS(SIZE / seconds);
    world.config.verify = Some(VerifyEvery { every: HOUR, rate });
    world.config.redo_bytes = Some(0);
    world.local.write(0, pattern(SIZE as usize, 1), Default::default()).await.unwrap();
    world.create().await.unwrap();
    open(&mut world, at(0)).await;
    world
}

fn leg(world: &World, leg: usize) -> LegStatus {
    world.mirror().status().legs[leg].clone()
}

async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

async fn break_a_block(world: &World, leg: usize, offset: u64) {
    let device = world.legs[leg].device();
    device.write(offset, pattern(4096, 99), Default::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn legs_are_compared_when_it_is_time_one_after_the_other_and_not_healed() {
    let mut world = compared_every_hour(100).await;
    break_a_block(&world, 1, 1 << 20).await;
    after(3500).await;
    assert!((0..2).all(|number| leg(&world, number).verified.is_none()), "an hour later");
    after(150).await;
    let (first, second) = (leg(&world, 0), leg(&world, 1));
    assert_eq!((first.verified, second.verified), (None, None));
    // In the first of its hundred seconds nothing is written down; then once a minute.
    after(30).await;
    let half = leg(&world, 0).verifying.expect("it is under way");
    assert!((SIZE / 4..SIZE).contains(&half), "{half} of {SIZE}");
    assert_eq!(leg(&world, 1).verifying, None, "one after the other");
    after(40).await;
    let Some(Verdict { at: first_at, bytes, mismatches }) = leg(&world, 0).verified else {
        panic!("{:?}", leg(&world, 0))
    };
    assert_eq!((bytes, mismatches, leg(&world, 0).verifying), (SIZE, 0, None));
    let took = first_at.duration_since(at(3600)).unwrap().as_secs();
    // A part is compared at once where it begins, and where it was written down.
    assert!((80..=100).contains(&took), "{took} s");
    after(110).await;
    let verdict = leg(&world, 1).verified.unwrap();
    assert_eq!((verdict.bytes, verdict.mismatches), (SIZE, 1));
    let there = content(&*world.legs[1].device()).await;
    assert!(there[1 << 20..][..4096] == pattern(4096, 99)[..], "it is told, and left as it is");
    // Another time behind it, it does not begin anew.
    world.mirror.take().unwrap().close().await.unwrap();
    open(&mut world, at(4000)).await;
    assert_eq!(leg(&world, 0).verified.unwrap().at, first_at);
    after(3200).await;
    assert_eq!(leg(&world, 0).verified.unwrap().at, first_at);
    after(220).await;
    assert!(leg(&world, 0).verified.unwrap().at > at(7200));
    // A person who has it mended is believed.
    let options = VerifyOptions { heal: true, ..Default::default() };
    assert_eq!(world.mirror().verify(1, options).await.unwrap().healed, 1);
    assert_eq!(leg(&world, 1).verified.unwrap().mismatches, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_cut_off_goes_on_where_it_was() {
    let mut world = compared_every_hour(600).await;
    break_a_block(&world, 0, 0).await;
    after(3600 + 300).await;
    let before = leg(&world, 0).verifying.expect("it is under way");
    assert!(before > SIZE / 4, "{before}");
    world.kill();
    open(&mut world, at(4000)).await;
    break_a_block(&world, 0, 4096).await; // Behind that it does not look.
    after(400).await;
    let verdict = leg(&world, 0).verified.expect("the rest takes less than all");
    assert_eq!((verdict.bytes, verdict.mismatches), (SIZE, 1));
    assert!(verdict.at < at(4000 + 400));
}

#[tokio::test(start_paused = true)]
async fn a_copy_to_any_leg_comes_first_and_a_leg_that_is_lost_is_gone_on_with() {
    let world = compared_every_hour(600).await;
    after(3600 + 200).await;
    assert!(leg(&world, 0).verifying.is_some());
    world.legs[1].set_way(Way::Cut);
    world.write(0, 1 << 20, 5).await.unwrap();
    world.wait_state(1, LegState::Lost).await;
    world.mirror().set_resync_rate(ResyncRate::BytesPerS((1 << 20) / 300));
    world.legs[1].set_way(Way::Open);
    world.wait_state(1, LegState::CatchingUp).await;
    after(10).await;
    let stands = leg(&world, 0).verifying;
    after(120).await;
    assert_eq!(leg(&world, 1).state, LegState::CatchingUp);
    assert_eq!(leg(&world, 0).verifying, stands, "it waits");
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    world.write(0, 4096, 6).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    after(600).await;
    let verdict = leg(&world, 0).verified.expect("it has ended");
    assert_eq!(verdict.mismatches, 0);
    world.assert_equal().await;
}

/// At a rate at which a part is waited for longer than anybody waits for the end.
#[tokio::test(start_paused = true)]
async fn its_user_is_not_held_up_and_closing_does_not_wait_for_it() {
    let mut world = compared_every_hour(6000).await;
    after(3700).await;
    for round in 0..1000_u64 {
        let begun = tokio::time::Instant::now();
        world.write(round * 4096 % SIZE, 4096, round as u8).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    after(1).await;
    let begun = tokio::time::Instant::now();
    world.mirror.take().unwrap().close().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    open(&mut world, at(3800)).await;
    assert!(leg(&world, 0).verifying.is_some(), "how far it was is known");
}

#[tokio::test(start_paused = true)]
async fn a_person_who_compares_meanwhile_has_the_last_word() {
    let world = compared_every_hour(600).await;
    break_a_block(&world, 0, 0).await;
    after(3600 + 300).await;
    assert!(leg(&world, 0).verifying.is_some());
    let options = VerifyOptions { heal: true, ..Default::default() };
    assert_eq!(world.mirror().verify(0, options).await.unwrap().healed, 1);
    let said = leg(&world, 0).verified.expect("that was all of it");
    assert_eq!((said.mismatches, leg(&world, 0).verifying), (0, None));
    after(1200).await;
    assert_eq!(leg(&world, 0).verified, Some(said), "what was found before it does not count");
    assert_eq!(leg(&world, 0).verifying, None);
}
