//! Rows of the failure matrix in which something is not what it was: another unit, an older state,
//! a leg that somebody has taken over, metadata that is damaged or gone. Nothing is written before
//! it is understood.

use super::world::*;
use crate::mirror::{
    BLOCK_BYTES, CreateOptions, Discard, LegState, Mirror, MirrorError, OpenLeg, PromoteOptions,
    ResyncRate, TokioHost, promote, promoted_device,
};
use crate::{BlockDevice, Buf, Device, WriteFlags};

async fn whole(device: &dyn BlockDevice) -> Vec<u8> {
    device.read(0, Buf::new(device.info().size as usize)).await.unwrap().to_vec()
}

async fn copy_of(device: &dyn BlockDevice) -> Device {
    let copy = memory(device.info().size);
    copy.write(0, whole(device).await.into(), WriteFlags::NONE).await.unwrap();
    copy
}

async fn promote_leg(world: &World, leg: usize) {
    let leg = OpenLeg::of(world.legs[leg].device());
    // The leg has no reservation, and its mirror lives or has just been cut off.
    let force = PromoteOptions { force: true, ..PromoteOptions::default() };
    promote(leg, &TokioHost::current(), force).await.unwrap();
}

/// The leg comes back after it was cut off, and is left alone in that state.
async fn returns_as(world: &World, state: LegState) -> String {
    let before = whole(&*world.legs[0].device()).await;
    world.legs[0].set_way(Way::Open);
    world.wait_state(0, state).await;
    world.write(2 << 20, 4096, 9).await.unwrap();
    assert!(whole(&*world.legs[0].device()).await == before, "something was written there");
    world.mirror().status().legs[0].message.clone().unwrap()
}

async fn lost_by_a_write(world: &World) {
    world.legs[0].set_way(Way::Cut);
    world.write(0, 4096, 8).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
}

#[tokio::test(start_paused = true)]
async fn another_unit_at_the_place_of_a_leg_is_left_alone() {
    let world = World::in_sync(1).await;
    lost_by_a_write(&world).await;
    let used = memory(LEG_SIZE);
    used.write(0, pattern(LEG_SIZE as usize, 7), WriteFlags::NONE).await.unwrap();
    world.legs[0].replace(used, "id of something else");
    let message = returns_as(&world, LegState::Unrelated).await;
    assert!(message.contains("id of something else"), "{message}");
    // Also one that has no identity, by its superblock.
    let other = World::in_sync(1).await;
    lost_by_a_write(&other).await;
    other.legs[0].replace(world.legs[0].device(), "id of leg 0");
    returns_as(&other, LegState::Unrelated).await;
}

#[tokio::test(start_paused = true)]
async fn the_leg_of_another_mirror_is_left_alone() {
    let (world, other) = (World::in_sync(1).await, World::in_sync(1).await);
    lost_by_a_write(&world).await;
    world.legs[0].replace(other.legs[0].device(), "id of leg 0");
    let message = returns_as(&world, LegState::Unrelated).await;
    assert!(message.contains("mirror"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_was_promoted_is_fenced() {
    let world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.device().flush().await.unwrap();
    world.legs[0].set_way(Way::Cut);
    promote_leg(&world, 0).await;
    let image = promoted_device(world.legs[0].device()).unwrap();
    image.write(8192, pattern(4096, 2), WriteFlags::NONE).await.unwrap();
    let message = returns_as(&world, LegState::Fenced).await;
    assert!(message.contains("promoted"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_promoted_while_we_live_is_noticed_without_a_reservation() {
    let world = World::in_sync(1).await;
    promote_leg(&world, 0).await;
    world.wait_state(0, LegState::Fenced).await;
    let before = whole(&*world.legs[0].device()).await;
    world.write(0, 65536, 1).await.unwrap();
    assert!(whole(&*world.legs[0].device()).await == before);
}

#[tokio::test(start_paused = true)]
async fn where_both_have_written_both_stay_as_they_are() {
    let world = World::in_sync(1).await;
    lost_by_a_write(&world).await;
    promote_leg(&world, 0).await;
    let image = promoted_device(world.legs[0].device()).unwrap();
    image.write(8192, pattern(4096, 2), WriteFlags::NONE).await.unwrap();
    let here = content(&*world.local).await;
    let message = returns_as(&world, LegState::Diverged).await;
    assert!(message.contains("both"), "{message}");
    assert!(content(&*world.local).await[..1 << 20] == here[..1 << 20]);
}

#[tokio::test(start_paused = true)]
async fn a_person_decides_to_give_up_what_was_written_at_a_leg() {
    let mut world = World::in_sync(1).await;
    lost_by_a_write(&world).await;
    promote_leg(&world, 0).await;
    let image = promoted_device(world.legs[0].device()).unwrap();
    image.write(8192, pattern(4096, 2), WriteFlags::NONE).await.unwrap();
    let leg = Discard::Leg(0);
    let error = world.mirror().resolve(leg).await.unwrap_err();
    assert!(matches!(error, MirrorError::State { .. }), "{error}");
    world.legs[0].set_way(Way::Open);
    world.wait_state(0, LegState::Diverged).await;
    world.mirror().resolve(leg).await.unwrap();
    world.write(4096, 512, 3).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
    world.kill();
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_was_put_back_to_an_older_state_is_copied_whole() {
    let world = World::in_sync(1).await;
    world.write(0, 1 << 20, 1).await.unwrap();
    let older = copy_of(&*world.legs[0].device()).await;
    // It is lost and comes back: from here on the older state lacks something that no bit tells of.
    lost_by_a_write(&world).await;
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.write(1 << 20, 65536, 2).await.unwrap();
    world.device().flush().await.unwrap();
    lost_by_a_write(&world).await;
    world.legs[0].replace(older, "id of leg 0");
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    assert_eq!(world.mirror().status().legs[0].copied_bytes, SIZE);
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_was_put_back_while_it_was_followed_is_copied_whole() {
    let world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    let older = copy_of(&*world.legs[0].device()).await;
    world.write(1 << 20, 65536, 2).await.unwrap();
    world.device().flush().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    lost_by_a_write(&world).await;
    world.legs[0].replace(older, "id of leg 0");
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    assert_eq!(world.mirror().status().legs[0].copied_bytes, SIZE);
}

#[tokio::test(start_paused = true)]
async fn a_smaller_leg_has_failed() {
    let world = World::in_sync(1).await;
    lost_by_a_write(&world).await;
    world.legs[0].replace(memory(SIZE), "id of leg 0");
    let message = returns_as(&world, LegState::Failed).await;
    assert!(message.contains(&SIZE.to_string()), "{message}");
}

#[tokio::test(start_paused = true)]
async fn one_torn_copy_of_the_superblock_costs_nothing() {
    for copy in 0..2 {
        let mut world = World::in_sync(1).await;
        world.write(0, 65536, 1).await.unwrap();
        lost_by_a_write(&world).await;
        world.kill();
        let torn = pattern(512, 3);
        world.metadata.write(copy * BLOCK_BYTES + 1024, torn, WriteFlags::NONE).await.unwrap();
        world.legs[0].set_way(Way::Open);
        world.open().await;
        world.settled().await;
        world.assert_equal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_metadata_is_never_guessed() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.kill();
    let size = world.metadata.info().size;
    world.metadata.zero(0, size, Default::default()).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    let error = Mirror::open(world.parts(), world.config).await.err().unwrap();
    assert!(matches!(error, MirrorError::Metadata { .. }), "{error}");
    assert!(whole(&*world.legs[0].device()).await == before);
    assert!(whole(&*world.metadata).await.iter().all(|byte| *byte == 0));
}

#[tokio::test(start_paused = true)]
async fn what_holds_a_mirror_is_overwritten_only_by_force() {
    let mut world = World::in_sync(1).await;
    world.write(0, 65536, 1).await.unwrap();
    world.mirror.take().unwrap().close().await.unwrap();
    let (here, there) = (whole(&*world.metadata).await, whole(&*world.legs[0].device()).await);
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, MirrorError::Exists { .. }), "{error}");
    // The leg alone is enough.
    let size = world.metadata.info().size;
    world.metadata.zero(0, size, Default::default()).await.unwrap();
    let error = world.create().await.unwrap_err();
    assert!(matches!(error, MirrorError::Exists { .. }), "{error}");
    assert!(whole(&*world.legs[0].device()).await == there && !here.is_empty());
    let force = CreateOptions { force: true, ..CreateOptions::default() };
    Mirror::create(&world.parts(), &world.config, force).await.unwrap();
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_no_legal_one_is_promoted_only_by_force() {
    let local = memory(SIZE);
    local.write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    let mut world = World::over(local, 1);
    world.config.resync_rate = ResyncRate::BytesPerS(SIZE / 100);
    world.create().await.unwrap();
    world.open().await;
    world.wait("a part is copied", |mirror| mirror.status().legs[0].copied_bytes > 0).await;
    world.kill();
    let host = TokioHost::current();
    let leg = world.legs[0].device();
    let error =
        promote(OpenLeg::of(leg.clone()), &host, PromoteOptions::default()).await.unwrap_err();
    assert!(matches!(error, MirrorError::NotPromotable { .. }), "{error}");
    let force = PromoteOptions { force: true, ..PromoteOptions::default() };
    let promoted = promote(OpenLeg::of(leg), &host, force).await.unwrap();
    assert!(!promoted.consistent);
    assert_eq!(promoted.size, SIZE);
}

#[tokio::test(start_paused = true)]
async fn a_paused_leg_is_sent_nothing_and_is_caught_up_afterwards() {
    let world = World::in_sync(2).await;
    world.mirror().pause(0).await.unwrap();
    let before = whole(&*world.legs[0].device()).await;
    world.write(0, 65536, 1).await.unwrap();
    world.device().flush().await.unwrap();
    assert!(whole(&*world.legs[0].device()).await == before);
    assert!(matches!(world.mirror().resync(0, false).await, Err(MirrorError::State { .. })));
    world.mirror().resume(0).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
}
