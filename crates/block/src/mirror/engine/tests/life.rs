//! Rows of the failure matrix about taking over where no reservation decides: a mirror that lives
//! is seen by what it writes to its legs, whatever the clocks of the two sides say.

use std::time::Duration;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::clock::HostWithClock;
use super::world::*;
use crate::mirror::engine::tail;
use crate::mirror::layout::LegLayout;
use crate::mirror::superblock::RemoteSuperblock;
use crate::mirror::{
    Host, LegState, MirrorError, OpenLeg, PromoteOptions, Promoted, ResyncRate, promote,
};
use crate::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

const HOUR: Duration = Duration::from_secs(3600);

/// The other site takes over, whose clock is ahead of ours by this time.
async fn promote_with(world: &World, ahead: Duration) -> Result<Promoted, MirrorError> {
    promote_leg(world.legs[0].elsewhere(), ahead).await
}

async fn promote_leg(leg: OpenLeg, ahead: Duration) -> Result<Promoted, MirrorError> {
    let site = HostWithClock::new("the other site", move |host| host.wall_clock() + ahead);
    promote(leg, &site, PromoteOptions::default()).await
}

async fn superblock(world: &World) -> RemoteSuperblock {
    let device = world.legs[0].device();
    let layout = LegLayout::new(device.info().size, 0).unwrap();
    tail::read(&*device, &layout).await.unwrap().unwrap()
}

/// A leg as the other site has it, where something happens just before its first write, which is
/// that of the superblock.
struct LastMoment {
    device: Device,
    writes: AtomicU64,
    happens: Arc<dyn Fn() -> Io<()> + Send + Sync>,
}

impl LastMoment {
    fn of(world: &World, happens: impl Fn() -> Io<()> + Send + Sync + 'static) -> OpenLeg {
        let (device, writes) = (world.legs[0].device(), AtomicU64::new(0));
        OpenLeg::of(Arc::new(Self { device, writes, happens: Arc::new(happens) }))
    }
}

impl BlockDevice for LastMoment {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.device.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        if self.writes.fetch_add(1, Ordering::SeqCst) > 0 {
            return self.device.write(offset, data, flags);
        }
        let (device, happens) = (self.device.clone(), self.happens.clone());
        Io::later(async move {
            happens().await?;
            device.write(offset, data, flags).await
        })
    }
    fn flush(&self) -> Io<()> {
        self.device.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.device.trim(offset, len)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.device.zero(offset, len, flags)
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}

/// A mirror whose leg is out of reach, and that has missed nothing there.
async fn cut_off() -> World {
    let world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.legs[0].set_way(Way::Cut);
    world.wait_state(0, LegState::Lost).await;
    world
}

async fn whole(world: &World) -> Vec<u8> {
    let device = world.legs[0].device();
    device.read(0, Buf::new(device.info().size as usize)).await.unwrap().to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_leg_of_a_mirror_that_lives_is_not_taken_over_by_mistake() {
    for ahead in [Duration::ZERO, HOUR] {
        let world = World::in_sync(1).await;
        let start = tokio::time::Instant::now();
        let refused = promote_with(&world, ahead).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let said = refused.to_string();
        let own = format!("process {}", std::process::id());
        assert!(said.contains("lives") && said.contains(&own), "who it is: {said}");
        assert!(said.contains("--force"), "what decides: {said}");
        assert_eq!(world.mirror().status().legs[0].state, LegState::InSync);
        world.write(0, 65536, 1).await.unwrap();
        world.assert_equal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_of_a_mirror_that_is_gone_is_taken_over_within_fifteen_seconds() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    let image = content(&*world.local).await;
    world.kill();
    let start = tokio::time::Instant::now();
    assert!(promote_with(&world, HOUR).await.unwrap().consistent);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    assert!(whole(&world).await[..image.len()] == image);
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_ended_in_order_has_said_so() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.mirror.take().unwrap().close().await.unwrap();
    let start = tokio::time::Instant::now();
    promote_with(&world, Duration::ZERO).await.unwrap();
    // Somebody may have started it again in that moment.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_comes_back_in_the_last_moment_of_a_promotion_keeps_its_leg() {
    let world = cut_off().await;
    let leg = world.legs[0].clone();
    let happens = move || {
        leg.set_way(Way::Open);
        Io::later(async {
            // It signs, and is in sync again.
            tokio::time::sleep(Duration::from_secs(4)).await;
            Ok(())
        })
    };
    let refused = promote_leg(LastMoment::of(&world, happens), HOUR).await.unwrap_err();
    assert!(matches!(refused, MirrorError::WrittenMeanwhile { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains(&format!("process {}", std::process::id())), "who it is: {said}");
    assert!(!said.contains("--force"), "nothing would be different then: {said}");
    world.settled().await;
    world.write(0, 65536, 2).await.unwrap();
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_promotion_is_told_when_a_mirror_that_came_back_writes_nothing_any_more() {
    let world = cut_off().await;
    let before = superblock(&world).await.sequence;
    let leg = world.legs[0].clone();
    let happens = move || {
        leg.set_way(Way::Open);
        let (device, leg) = (leg.device(), leg.clone());
        Io::later(async move {
            // It is told in the last moment of all: the next superblock is there, and then ours.
            let layout = LegLayout::new(device.info().size, 0).unwrap();
            loop {
                let found = tail::read(&*device, &layout).await?.unwrap();
                if found.sequence > before {
                    assert_eq!(found.sequence, before + 1, "{}", leg.name());
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let promoting = promote_leg(LastMoment::of(&world, happens), HOUR);
    let user = async {
        // What it had missed would be brought by a catch-up, which tells the leg more.
        world.wait("it is back", |mirror| mirror.status().legs[0].state == LegState::InSync).await;
        for number in 0.. {
            world.write(number % 8 * 4096, 4096, number as u8).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let promoted = tokio::select! { promoted = promoting => promoted, () = user => unreachable!() };
    promoted.unwrap();
    let image = whole(&world).await;
    for number in 0..100 {
        world.write(number % 8 * 4096, 4096, 100).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(whole(&world).await == image, "a promoted leg was written to");
    assert_eq!(world.mirror().status().legs[0].state, LegState::Fenced);
}

/// A mirror that has much to copy to its leg, slowly.
async fn copying(redo: bool) -> World {
    let mut world = World::blank(1);
    // Its redo log has room for several records: the first one is sent at once.
    world.legs[0].replace(memory(2 * SIZE), "id of leg 0");
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 30);
    world.config.redo_bytes = Some(if redo { SIZE / 2 + SIZE / 4 } else { 0 });
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    world.write(0, SIZE as usize / 2, 1).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    world.legs[0].set_way(Way::Open);
    world.wait_state(0, LegState::CatchingUp).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_mirror_that_catches_up_for_long_gives_signs_of_life_all_the_time() {
    let world = copying(true).await;
    let image = superblock(&world).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = promote_with(&world, HOUR).await.unwrap_err();
    assert!(refused.to_string().contains("lives"), "{refused}");
    assert_eq!(world.mirror().status().legs[0].state, LegState::CatchingUp);
    let now = superblock(&world).await;
    assert!(now.sequence > image.sequence);
    assert_eq!((now.lease, now.consistency), (image.lease, image.consistency), "it is no newer");
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_catch_up_ends_before_a_promotion_is_told_without_a_reservation_too() {
    for redo in [false, true] {
        let world = copying(redo).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let force = PromoteOptions { force: true, ..PromoteOptions::default() };
        let site = HostWithClock::new("the other site", Host::wall_clock);
        promote(world.legs[0].elsewhere(), &site, force).await.unwrap();
        let image = whole(&world).await;
        assert_eq!(world.mirror().status().legs[0].state, LegState::Fenced, "redo: {redo}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(whole(&world).await == image, "a promoted leg was written to; redo: {redo}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_without_anything_to_do_gives_signs_of_life() {
    let world = World::in_sync(1).await;
    for _ in 0..3 {
        let before = whole(&world).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(whole(&world).await != before, "no sign for 6 s");
        assert_eq!(world.mirror().status().legs[0].state, LegState::InSync);
    }
}
