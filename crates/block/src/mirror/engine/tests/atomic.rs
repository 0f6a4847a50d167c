//! Catch-ups through the redo log: the image at the leg at every moment, with a power cut there at
//! each, and what becomes of what does not fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::inside::Copying;
use super::reserved::alone;
use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays, LogLayer};
use crate::mirror::engine::signal::lock;
use crate::mirror::layout::TAIL_BYTES;
use crate::mirror::{
    Inspection, Lag, LegState, LegStatus, Mode, OnLag, PromoteOptions, ResyncRate, TokioHost,
    Way as Caught, inspect, promote,
};
use crate::{BlockDevice, Buf, Bytes, Device, WriteFlags, ZeroFlags};

const KIB: usize = 1024;
/// All of the room that there is.
const LOG: u64 = LEG_SIZE - SIZE - TAIL_BYTES;

/// One leg, in sync, with room for a log of this size.
pub(super) async fn in_sync(mode: Mode, redo_bytes: u64, rate: ResyncRate) -> World {
    let mut world = World::blank(1);
    world.config.mode = mode;
    world.config.redo_bytes = Some(redo_bytes);
    world.config.resync_rate = rate;
    // In the asynchronous mode a leg is lost when it is left behind, and gets the log else.
    world.config.lag = Lag { bytes: 64 << 10, on: OnLag::FallBehind, ..world.config.lag };
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world
}

/// The leg is lost, and these blocks change meanwhile, some of them to zeroes.
pub(super) async fn changed_while_lost(world: &World) {
    world.legs[0].set_way(Way::Cut);
    world.write(0, 4 * KIB, 1).await.unwrap();
    world.device().flush().await.unwrap();
    for number in 0..8 {
        let data = pattern(64 * KIB, number as u8 + 2);
        world.device().write(number * 100 * 1024, data, WriteFlags::NONE).await.unwrap();
    }
    world.device().zero(200 * 1024, 8192, Default::default()).await.unwrap();
    world.wait("the leg is given up", |mirror| mirror.status().legs[0].dirty_bytes > 0).await;
}

async fn all_of(device: &Device) -> Vec<u8> {
    device.read(0, Buf::new(device.info().size as usize)).await.unwrap().to_vec()
}

async fn promoted(image: Vec<u8>) -> Vec<u8> {
    let device = memory(LEG_SIZE);
    device.write(0, Bytes::from(image), WriteFlags::NONE).await.unwrap();
    let leg = alone(device.clone());
    // It gives no sign of life that counts: time stands still here, and it is young.
    let options = PromoteOptions { force: true, release: false };
    let taken = promote(leg, &TokioHost::current(), options).await.unwrap();
    assert!(taken.consistent, "{taken:?}");
    content(&*device).await
}

#[tokio::test(start_paused = true)]
async fn a_catch_up_through_the_redo_log_leaves_an_image_at_every_moment() {
    for mode in [Mode::Sync, Mode::Async] {
        image_at_every_moment(mode, None).await;
    }
}

/// A leg is caught up with, and its power cut at every moment of that. Returns the world after it,
/// how many bytes were owed, and how many were sent for them.
pub(super) async fn image_at_every_moment(
    mode: Mode,
    copying: Option<Copying>,
) -> (World, u64, u64) {
    let world = in_sync(mode, LOG, ResyncRate::Max).await;
    let before = content(&*world.local).await;
    changed_while_lost(&world).await;
    let lost = world.mirror().status().legs[0].clone();
    let base = all_of(&world.legs[0].device()).await;
    let watched = Arc::new(LogLayer::new(world.legs[0].device()));
    world.legs[0].replace(watched.clone(), "id of leg 0");
    *lock(&world.legs[0].copying) = copying;
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    let after = content(&*world.local).await;
    let (old, new) = images(&watched, &base, [&before, &after]).await;
    assert!(old > 10 && new > 10, "{mode:?}: {old} images of before, {new} of after");
    let leg = &world.mirror().status().legs[0];
    assert_eq!((leg.redo_bytes, leg.fallbacks, leg.way), (LOG, 0, Caught::Unset));
    let sent = leg.sent_bytes - lost.sent_bytes;
    (world, lost.dirty_bytes, sent)
}

/// How many of the images that power cuts leave of what was written over `base`, at every moment,
/// are that of before, and how many that of after. There are no others.
async fn images(watched: &LogLayer, base: &[u8], [before, after]: [&Vec<u8>; 2]) -> (usize, usize) {
    let (mut old, mut new) = (0, 0);
    let log = watched.log();
    for moment in 0..=log.moments() {
        let cut = log.cut(moment, 512);
        for choice in cut.choose(3, moment) {
            let mut image = base.to_vec();
            cut.image(choice, &mut image);
            let there = promoted(image).await;
            assert!(there == *before || there == *after, "a cut after {moment}");
            *if there == *before { &mut old } else { &mut new } += 1;
        }
    }
    (old, new)
}

#[tokio::test(start_paused = true)]
async fn after_a_power_cut_here_what_differs_is_looked_for_and_there_is_an_image_at_every_moment() {
    for mode in [Mode::Sync, Mode::Async] {
        let mut world = in_sync(mode, 256 << 10, ResyncRate::Max).await;
        for extent in 0..SIZE >> 20 {
            world.write(extent << 20, 4 * KIB, 1).await.unwrap();
        }
        world.device().flush().await.unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.assert_equal().await;
        world.kill();
        // It was on its way when the power failed here.
        let lost = pattern(64 * KIB, 2);
        world.local.write(1 << 20, lost, WriteFlags::NONE).await.unwrap();
        let (before, after) =
            (content(&*world.legs[0].device()).await, content(&*world.local).await);
        let base = all_of(&world.legs[0].device()).await;
        let watched = Arc::new(LogLayer::new(world.legs[0].device()));
        world.legs[0].replace(watched.clone(), "id of leg 0");
        world.open().await;
        let owed = world.mirror().status().legs[0].dirty_bytes;
        assert_eq!(owed, SIZE, "{mode:?}: all that was under way may differ");
        world.settled().await;
        world.assert_equal().await;
        let (old, new) = images(&watched, &base, [&before, &after]).await;
        assert!(old > 10 && new > 10, "{mode:?}: {old} images of before, {new} of after");
        let leg = world.mirror().status().legs[0].clone();
        assert_eq!((leg.fallbacks, leg.way, leg.dirty_bytes), (0, Caught::Unset, 0), "{mode:?}");
        // Into its log, and home.
        assert!(leg.sent_bytes <= 160 << 10, "{mode:?}: {} bytes were sent", leg.sent_bytes);
    }
}

/// A mirror whose power failed here while something of each extent was under way, and which may go
/// as fast as `rate` when it is opened again. Its leg takes `way` for each command. All of it
/// is `byte`; zeroes are a hole here, and none there.
async fn to_be_looked_through(bytes: u64, rate: ResyncRate, way: Duration, byte: u8) -> World {
    let mut world = World::over(memory(bytes), 1);
    world.config.mode = Mode::Sync;
    world.config.redo_bytes = Some(256 << 10);
    let far = DelayLayer::new(memory(2 * bytes), Delays::all(Delay::Fixed(way)), 1);
    world.legs[0] = TestLeg::new("far", Arc::new(far));
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    for extent in 0..bytes >> 20 {
        world.write(extent << 20, 1 << 20, byte).await.unwrap();
    }
    world.kill();
    if byte == 0 {
        world.local.zero(0, bytes, ZeroFlags::new(true, false)).await.unwrap();
    }
    world.config.resync_rate = rate;
    world.open().await;
    world
}

#[tokio::test(start_paused = true)]
async fn what_is_looked_through_goes_as_fast_as_copies_may() {
    let (ms, rate) = (Duration::from_millis(1), ResyncRate::BytesPerS(SIZE / 20));
    for byte in [1, 0] {
        let world = to_be_looked_through(SIZE, rate, ms, byte).await;
        let start = tokio::time::Instant::now();
        world.settled().await;
        assert_near(start.elapsed(), 20);
        world.assert_equal().await;
    }
}

/// What comes from the leg to be compared is what the line carries, as what goes there is.
#[tokio::test(start_paused = true)]
async fn a_percentage_of_the_line_is_known_from_what_is_looked_through() {
    const LARGE: u64 = 128 << 20;
    // 64 pieces of 256 KiB each half second: 4 s without a limit, 2 of which are not limited.
    let way = Duration::from_millis(500);
    let world = to_be_looked_through(LARGE, ResyncRate::Percent(50), way, 1).await;
    let start = tokio::time::Instant::now();
    world.settled().await;
    let took = start.elapsed().as_secs_f64();
    // Beside the round trips around it. The floor of 1 MiB/s would be a minute and more.
    assert!((5.0..25.0).contains(&took), "{took} s");
    world.assert_equal().await;
}

fn assert_near(took: Duration, seconds: u64) {
    let wanted = Duration::from_secs(seconds);
    assert!(took.abs_diff(wanted) * 6 <= wanted, "{took:?}, wanted {wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_the_redo_log_is_caught_up_in_place_and_said_first() {
    for (mode, redo_bytes) in [(Mode::Sync, 64 << 10), (Mode::Async, 64 << 10), (Mode::Sync, 0)] {
        let world = in_sync(mode, redo_bytes, ResyncRate::BytesPerS(10_000)).await;
        changed_while_lost(&world).await;
        world.legs[0].set_way(Way::Open);
        world.wait_state(0, LegState::CatchingUp).await;
        world.wait("something is copied", |mirror| mirror.status().legs[0].copied_bytes > 0).await;
        let leg = world.mirror().status().legs[0].clone();
        assert_eq!((leg.way, leg.consistent), (Caught::InPlace, false), "{mode:?}");
        let open = world.legs[0].elsewhere();
        let refused = promote(open, &TokioHost::current(), PromoteOptions::default()).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("no legal one"), "{error}");
        world.settled().await;
        world.assert_equal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_writes_on_is_caught_up_with_and_what_it_writes_is_there() {
    for mode in [Mode::Sync, Mode::Async] {
        let world = in_sync(mode, LOG, ResyncRate::Max).await;
        changed_while_lost(&world).await;
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(100)));
        let far = DelayLayer::new(world.legs[0].device(), delays, 1);
        world.legs[0].replace(Arc::new(far), "id of leg 0");
        world.legs[0].set_way(Way::Open);
        world.wait_state(0, LegState::CatchingUp).await;
        assert_eq!(world.mirror().status().legs[0].way, Caught::Atomic);
        let mut round = 0;
        while world.mirror().status().legs[0].state != LegState::InSync {
            round += 1;
            let at = u64::from(round % 8) * 100 * 1024;
            world.write(at, 4 * KIB, round).await.unwrap();
            world.device().flush().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(round > 5, "{round} rounds");
        let leg = world.mirror().status().legs[0].clone();
        assert_eq!(leg.fallbacks, 0, "{leg:?}");
        world.wait("all of it is there", |mirror| mirror.status().legs[0].epochs == 0).await;
        world.assert_equal().await;
    }
}

/// At every moment of a catch-up, what is told that a promotion would lose is what it would lose,
/// and no more is told of what is left than there is.
#[tokio::test(start_paused = true)]
async fn what_a_promotion_would_lose_is_told_at_every_moment_of_a_catch_up() {
    for (mode, writes) in
        [Mode::Sync, Mode::Async].into_iter().flat_map(|mode| [(mode, false), (mode, true)])
    {
        let world = in_sync(mode, LOG, ResyncRate::Max).await;
        changed_while_lost(&world).await;
        let owed = world.mirror().status().legs[0].dirty_bytes;
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(100)));
        let there = world.legs[0].device();
        let far = DelayLayer::new(there.clone(), delays, 1);
        world.legs[0].replace(Arc::new(far), "id of leg 0");
        world.legs[0].set_way(Way::Open);
        world.wait_state(0, LegState::CatchingUp).await;
        let (mut seen, mut done) = (Seen::default(), 0);
        for round in (0..=u8::MAX).cycle() {
            let leg = world.mirror().status().legs[0].clone();
            if leg.state == LegState::InSync {
                break;
            }
            assert_eq!(leg.way, Caught::Atomic, "{leg:?}");
            seen.compare(&world, &there, &leg).await;
            assert!(leg.done_bytes() >= done, "{mode:?}: {leg:?}");
            done = leg.done_bytes();
            if writes && round % 5 == 0 {
                let (device, at) = (world.device().clone(), u64::from(round / 5 % 10) * 88 * 1024);
                let (data, unanswered) = (pattern(4 * KIB, round), seen.unanswered.clone());
                unanswered.fetch_add(1, Ordering::Relaxed);
                drop(tokio::spawn(async move {
                    let written = device.write(at, data, WriteFlags::NONE).await;
                    unanswered.fetch_sub(u64::from(written.is_ok()), Ordering::Relaxed);
                }));
            }
            if !writes {
                assert_eq!(done + leg.left_bytes, 2 * owed, "{mode:?}: {leg:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(seen.log_is_lost && seen.log_is_kept, "{mode:?}: {seen:?}");
        assert!(writes || done == 2 * owed, "{mode:?}: {done} of twice {owed}");
    }
}

/// What was seen of a catch-up.
#[derive(Debug, Default)]
struct Seen {
    /// Writes of a block each that were not told complete: nobody has promised anything of them.
    unanswered: Arc<AtomicU64>,
    /// All of it was in the log, and a promotion would have lost it.
    log_is_lost: bool,
    /// It was not home, and a promotion would have had it.
    log_is_kept: bool,
}

impl Seen {
    async fn compare(&mut self, world: &World, there: &Device, told: &LegStatus) {
        let there = promoted(all_of(there).await).await;
        let here = content(&*world.local).await;
        let blocks = here.chunks(4 * KIB).zip(there.chunks(4 * KIB));
        let lost = blocks.filter(|(here, there)| here != there).count() as u64 * 4096;
        let claimed = told.dirty_bytes + told.lag_bytes;
        let unanswered = self.unanswered.load(Ordering::Relaxed) * 4096;
        assert!(claimed + unanswered >= lost, "{lost} bytes would be lost: {told:?}");
        let in_log = told.copied_bytes - told.home_bytes;
        self.log_is_lost |= in_log > 256 << 10 && lost >= in_log / 2;
        self.log_is_kept |= in_log > 256 << 10 && claimed < 64 << 10;
    }
}

/// The mirror is killed when the leg names a batch, with some of it at its place or nothing.
#[tokio::test(start_paused = true)]
async fn a_batch_that_was_committed_is_copied_home_by_the_mirror_that_finds_it() {
    for mode in [Mode::Sync, Mode::Async] {
        let mut world = in_sync(mode, LOG, ResyncRate::Max).await;
        changed_while_lost(&world).await;
        let after = content(&*world.local).await;
        let base = all_of(&world.legs[0].device()).await;
        let watched = Arc::new(LogLayer::new(world.legs[0].device()));
        world.legs[0].replace(watched.clone(), "id of leg 0");
        world.legs[0].set_way(Way::Open);
        world.settled().await;
        world.kill();
        let log = watched.log();
        let moment = (0..=log.moments()).find(|moment| {
            let mut image = base.clone();
            let cut = log.cut(*moment, 512);
            cut.image(cut.choose(1, 0)[0], &mut image);
            names_batch(&image)
        });
        let mut image = base.clone();
        let cut = log.cut(moment.expect("a batch was named"), 512);
        cut.image(cut.choose(1, 0)[0], &mut image);
        let device = memory(LEG_SIZE);
        device.write(0, Bytes::from(image), WriteFlags::NONE).await.unwrap();
        let open = alone(device);
        let Inspection::Leg(found) = inspect(&open.device).await.unwrap() else { panic!() };
        let batch = found.batch.expect("a batch is named");
        assert!(batch.bytes > 64 << 10 && (batch.epoch > 0) == (mode == Mode::Async), "{batch:?}");
        let options = PromoteOptions { force: true, release: false };
        let taken = promote(open.clone(), &TokioHost::current(), options).await.unwrap();
        assert!(taken.applied_bytes > 0 && taken.consistent, "{taken:?}");
        assert!(content(&*open.device).await == after);
    }
}

fn names_batch(image: &[u8]) -> bool {
    use crate::mirror::layout::LegLayout;
    use crate::mirror::superblock::{BYTES, Consistency, RemoteSuperblock, newest};
    let layout = LegLayout::new(LEG_SIZE, 0).unwrap();
    let copy = |number: u64| {
        let at = layout.superblock(number) as usize;
        *image[at..].first_chunk::<BYTES>().unwrap()
    };
    let found = newest::<RemoteSuperblock>(&copy(0), &copy(1)).unwrap();
    matches!(found.consistency, Consistency::Applying(_))
}

/// Eight round trips of a batch, in which more is written than a batch may have for which the user
/// waits whatever the leg is like.
#[tokio::test(start_paused = true)]
async fn two_thousand_writes_a_second_over_a_long_way_do_not_make_it_a_catch_up_in_place() {
    const LARGE: u64 = 64 << 20;
    let mut world = World::over(memory(LARGE), 1);
    world.config.mode = Mode::Sync;
    world.config.redo_bytes = Some(LARGE / 2);
    let way = Delays::all(Delay::Fixed(Duration::from_millis(50)));
    let far = Arc::new(DelayLayer::new(memory(2 * LARGE), way, 1));
    world.legs[0] = TestLeg::new("far", far);
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    for at in (0..LARGE / 8).step_by(1 << 20) {
        world.write(at, 1 << 20, 1).await.unwrap();
    }
    world.wait("the leg is given up", |mirror| mirror.status().legs[0].dirty_bytes > 0).await;
    world.legs[0].set_way(Way::Open);
    let mut random = Random(1);
    let mut writes = Vec::new();
    while world.mirror().status().legs[0].state != LegState::InSync {
        assert!(writes.len() < 60_000, "{:?}", world.mirror().status().legs[0]);
        let (device, at) = (world.device(), random.below(LARGE / 4096) * 4096);
        let data = pattern(4096, writes.len() as u8);
        writes.push(tokio::spawn(async move { device.write(at, data, WriteFlags::NONE).await }));
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
    for write in writes {
        write.await.unwrap().unwrap();
    }
    let leg = world.mirror().status().legs[0].clone();
    assert_eq!(leg.fallbacks, 0, "{leg:?}");
    world.settled().await;
    world.assert_equal().await;
}
