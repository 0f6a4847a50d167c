//! Rows of the failure matrix: where both sides have written, the local one is given up.

use std::sync::Arc;

use super::world::*;
use crate::layer::{Fault, OpKind};
use crate::mirror::{
    LegState, Mirror, MirrorError, PromoteOptions, RestoreProgress, Stopped, TokioHost, promote,
    promoted_device, restore_local,
};
use crate::{BlockError, WriteFlags};

const FORCE: PromoteOptions = PromoteOptions { force: true, release: false };

/// Both have written since they parted, and the mirror was stopped.
async fn parted() -> World {
    let mut world = World::in_sync(1).await;
    world.device().write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    world.legs[0].set_way(Way::Cut);
    world.write(1 << 20, 16384, 8).await.unwrap();
    world.wait_state(0, LegState::Lost).await;
    promote(world.legs[0].elsewhere(), &TokioHost::current(), FORCE).await.unwrap();
    let image = promoted_device(world.legs[0].device()).unwrap();
    image.write(2 << 20, pattern(8192, 2), WriteFlags::NONE).await.unwrap();
    world.legs[0].set_way(Way::Open);
    world.wait_state(0, LegState::Diverged).await;
    world.mirror.take().unwrap().close().await.unwrap();
    world
}

fn stopped(world: &World) -> Stopped {
    let host = Arc::new(TokioHost::current());
    Stopped { local: world.local.clone(), metadata: world.metadata.clone(), host }
}

async fn restore(world: &World) -> Result<RestoreProgress, MirrorError> {
    restore_local(&stopped(world), 0, world.legs[0].elsewhere(), &mut |_| ()).await
}

#[tokio::test(start_paused = true)]
async fn a_person_decides_to_give_up_what_was_written_here() {
    let mut world = parted().await;
    let there = content(&*world.legs[0].device()).await;
    let done = restore(&world).await.unwrap();
    assert_eq!((done.compared_bytes, done.left_bytes), (SIZE, 0));
    assert_eq!(done.written_bytes, 16384 + 8192, "what differs, and no more");
    assert!(content(&*world.local).await == there);
    world.open().await;
    world.settled().await;
    assert!(
        content(&*world.local).await == there && there == content(&*world.legs[0].device()).await
    );
    world.write(0, 65536, 5).await.unwrap();
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_local_disk_that_has_half_of_a_legs_image_is_none_and_goes_on() {
    let mut world = parted().await;
    let there = content(&*world.legs[0].device()).await;
    // The second of the two places that differ cannot be written at first.
    let broken = || BlockError::Medium(std::io::Error::other("broken"));
    world.local.inject(Fault::on(OpKind::Write, broken).in_range(2 << 20..SIZE).times(1));
    restore(&world).await.unwrap_err();
    let refused = Mirror::open(world.parts(), world.config).await.err().unwrap().to_string();
    assert!(refused.contains("resolve --discard local"), "{refused}");
    restore(&world).await.unwrap();
    assert!(content(&*world.local).await == there);
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_no_image_of_this_mirror_replaces_nothing() {
    let world = parted().await;
    let other = World::in_sync(1).await;
    let before = content(&*world.local).await;
    let foreign = restore_local(&stopped(&world), 0, other.legs[0].elsewhere(), &mut |_| ()).await;
    let said = foreign.unwrap_err().to_string();
    assert!(said.contains("not this leg"), "{said}");
    let none = restore_local(&stopped(&world), 1, world.legs[0].elsewhere(), &mut |_| ()).await;
    assert!(matches!(none, Err(MirrorError::NoSuchLeg { .. })), "{none:?}");
    assert!(content(&*world.local).await == before);
}
