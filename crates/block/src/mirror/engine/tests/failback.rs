//! Rows of the failure matrix: the way back. The old local disk gets what differs, and no more.

use std::sync::Arc;

use super::world::*;
use crate::mirror::failback::bytes_needed;
use crate::mirror::{
    BLOCK_BYTES, HandedBack, LegState, Mirror, MirrorError, OpenLeg, PromoteOptions, ResyncRate,
    TokioHost, hand_back, primary_of_leg, promote, promoted_device,
};
use crate::{BlockDevice, Buf, Device, WriteFlags};

const FORCE: PromoteOptions = PromoteOptions { force: true, release: false };

/// A larger device with this content at its begin, as a file that is made longer.
async fn grown(device: &dyn BlockDevice) -> Device {
    let larger = memory(bytes_needed(SIZE).max(device.info().size));
    let whole = device.read(0, Buf::new(device.info().size as usize)).await.unwrap();
    larger.write(0, whole.freeze(), WriteFlags::NONE).await.unwrap();
    larger
}

/// The other site, where the leg is the local disk of a mirror; its own leg is out of reach yet.
async fn other_site(leg: Device) -> World {
    let mut site = World::over(leg.clone(), 1);
    site.legs[0].set_way(Way::Cut);
    let metadata: Device = site.metadata.clone();
    let host = TokioHost::current();
    primary_of_leg(OpenLeg::of(leg), &metadata, &host, "leg 0", FORCE).await.unwrap();
    site.open().await;
    site
}

/// The old site gives its disk back. The disk is longer from then on.
async fn give_back(site: &World) -> (Device, HandedBack) {
    let disk = grown(&*site.local).await;
    let metadata: Device = site.metadata.clone();
    let host = Arc::new(TokioHost::current());
    let given = hand_back(&disk, &metadata, host, 0).await.unwrap();
    (disk, given)
}

async fn blocks_that_differ(one: &dyn BlockDevice, other: &dyn BlockDevice) -> u64 {
    let (one, other) = (content(one).await, content(other).await);
    let blocks = one.chunks(BLOCK_BYTES as usize).zip(other.chunks(BLOCK_BYTES as usize));
    blocks.filter(|(a, b)| a != b).count() as u64
}

/// The disk comes back to the site that has taken over; what is sent to it is what differs.
async fn returns_by_difference(site: &World, disk: Device) {
    let differ = blocks_that_differ(&*site.local, &*disk).await;
    let before = site.mirror().status().legs[0].sent_bytes;
    site.legs[0].replace(disk, "");
    site.legs[0].set_way(Way::Open);
    site.settled().await;
    site.assert_equal().await;
    let sent = site.mirror().status().legs[0].sent_bytes - before;
    assert!(sent <= differ * BLOCK_BYTES * 11 / 10, "{sent} bytes sent for {differ} blocks");
    assert!(differ > 0);
}

/// A mirror that has worked, lost its leg, worked on, and is gone.
async fn failed_over() -> World {
    let mut near = World::in_sync(1).await;
    near.device().write(0, pattern(1 << 20, 1), WriteFlags::NONE).await.unwrap();
    near.device().flush().await.unwrap();
    near.legs[0].set_way(Way::Cut);
    near.device().write(2 << 20, pattern(64 << 10, 2), WriteFlags::NONE).await.unwrap();
    near.wait_state(0, LegState::Lost).await;
    near.kill();
    near
}

#[tokio::test(start_paused = true)]
async fn what_differs_is_sent_back_and_no_more_there_and_back_again() {
    let near = failed_over().await;
    let far = other_site(near.legs[0].device()).await;
    far.device().write(3 << 20, pattern(32 << 10, 3), WriteFlags::NONE).await.unwrap();
    far.device().write(512, pattern(512, 4), WriteFlags::FUA).await.unwrap();
    let (disk, given) = give_back(&near).await;
    assert!(given.differing_bytes >= 64 << 10 && given.differing_bytes < SIZE, "{given:?}");
    returns_by_difference(&far, disk.clone()).await;
    far.write(1 << 20, 8192, 5).await.unwrap();
    far.assert_equal().await;

    // The roles change again: now the far site gives back, and next to nothing differs.
    let mut far = far;
    far.mirror.take().unwrap().close().await.unwrap();
    let near = other_site(disk).await;
    near.write(2 << 20, 4096, 6).await.unwrap();
    let (leg, given) = give_back(&far).await;
    assert_eq!(given.differing_bytes, 0);
    returns_by_difference(&near, leg).await;
}

#[tokio::test(start_paused = true)]
async fn where_nobody_knows_what_differs_all_is_compared_and_the_difference_sent() {
    let near = failed_over().await;
    // Promoted by itself, and written to without a mirror that would know of it.
    let leg = near.legs[0].device();
    promote(OpenLeg::of(leg.clone()), &TokioHost::current(), FORCE).await.unwrap();
    let image = promoted_device(leg.clone()).unwrap();
    image.write(3 << 20, pattern(32 << 10, 3), WriteFlags::NONE).await.unwrap();
    let far = other_site(leg).await;
    let (disk, _) = give_back(&near).await;
    returns_by_difference(&far, disk).await;
    assert_eq!(far.mirror().status().legs[0].copied_bytes, SIZE);
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_was_put_back_before_it_was_promoted_is_not_taken_for_what_it_was() {
    let mut near = World::in_sync(1).await;
    let older_leg = grown(&*near.legs[0].device()).await;
    near.device().write(1 << 20, pattern(256 << 10, 7), WriteFlags::NONE).await.unwrap();
    near.device().flush().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(12)).await;
    near.mirror.take().unwrap().close().await.unwrap();
    let far = other_site(older_leg).await;
    let (disk, given) = give_back(&near).await;
    assert_eq!(given.differing_bytes, 0, "the old site knows of no difference");
    returns_by_difference(&far, disk).await;
}

#[tokio::test(start_paused = true)]
async fn a_way_back_that_is_cut_off_goes_on() {
    let near = failed_over().await;
    let mut far = other_site(near.legs[0].device()).await;
    far.device().write(0, pattern(2 << 20, 8), WriteFlags::NONE).await.unwrap();
    far.config.resync_rate = ResyncRate::BytesPerS(SIZE / 20);
    far.kill();
    far.legs[0].set_way(Way::Cut);
    far.open().await;
    let (disk, _) = give_back(&near).await;
    far.legs[0].replace(disk, "");
    far.legs[0].set_way(Way::Open);
    far.wait("a part is there", |mirror| mirror.status().legs[0].copied_bytes > SIZE / 10).await;
    let error = {
        let leg = far.legs[0].elsewhere();
        promote(leg, &TokioHost::current(), PromoteOptions::default()).await.unwrap_err()
    };
    assert!(matches!(error, MirrorError::NotPromotable { .. }), "{error}");
    far.kill();
    far.config.resync_rate = ResyncRate::Max;
    far.open().await;
    far.settled().await;
    far.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_was_given_back_is_no_primary_any_more() {
    let near = failed_over().await;
    let (disk, given) = give_back(&near).await;
    let error = Mirror::open(near.parts(), near.config).await.err().unwrap().to_string();
    assert!(error.contains("failback") && error.contains("--from-leg"), "{error}");
    // Again, as after a power cut in the middle.
    let metadata: Device = near.metadata.clone();
    let again = hand_back(&disk, &metadata, Arc::new(TokioHost::current()), 0).await.unwrap();
    assert_eq!(again, given);
    // Without room behind the image it says what is needed.
    let small = memory(SIZE);
    let refused = hand_back(&small, &metadata, Arc::new(TokioHost::current()), 0).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains(&bytes_needed(SIZE).to_string()), "{refused}");
}
