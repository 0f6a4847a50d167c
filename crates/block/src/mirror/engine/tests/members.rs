//! Rows of the failure matrix: a mirror that does not run gets another leg, loses one, or grows.

use std::sync::Arc;

use super::world::*;
use crate::mirror::{
    CreateOptions, Inspection, LegState, Mirror, MirrorError, PromoteOptions, Stopped, TokioHost,
    grow, inspect, promote, remove_leg,
};
use crate::{BlockDevice, Buf, Device, WriteFlags};

fn stopped(world: &World) -> Stopped {
    let host = Arc::new(TokioHost::current());
    Stopped { local: world.local.clone(), metadata: world.metadata.clone(), host }
}

async fn close(world: &mut World) {
    world.mirror.take().unwrap().close().await.unwrap();
}

async fn add(world: &mut World) -> Result<(), MirrorError> {
    let number = world.legs.len();
    let leg = TestLeg::new(&format!("leg {number} of later"), memory(LEG_SIZE));
    let before = world.parts();
    world.legs.push(leg);
    let source = world.parts().legs.pop().unwrap();
    Mirror::add_leg(&before, &world.config, &*source, CreateOptions::default()).await
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_is_added_gets_its_copy_and_the_others_none() {
    let mut world = World::in_sync(1).await;
    world.device().write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    close(&mut world).await;
    add(&mut world).await.unwrap();
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
    let status = world.mirror().status();
    assert_eq!([status.legs[0].copied_bytes, status.legs[1].copied_bytes], [0, SIZE]);
    close(&mut world).await;
    add(&mut world).await.unwrap();
    let error = add(&mut world).await.unwrap_err();
    assert!(matches!(error, MirrorError::Legs { .. }), "{error}");
}

/// What each leg lacks stays what it lacks, whichever leg goes.
#[tokio::test(start_paused = true)]
async fn a_leg_that_is_removed_is_a_plain_image_and_the_others_keep_their_bits() {
    for gone in 0..3usize {
        let mut world = World::in_sync(3).await;
        world.device().write(0, pattern(1 << 20, 1), WriteFlags::NONE).await.unwrap();
        world.device().flush().await.unwrap();
        // Each of them lacks another part.
        for leg in 0..3u64 {
            world.legs[leg as usize].set_way(Way::Cut);
            world.write(leg << 20, 8192, 10 + leg as u8).await.unwrap();
            world.wait_state(leg as usize, LegState::Lost).await;
        }
        close(&mut world).await;
        let image = content(&*world.legs[gone].device()).await;
        let leg = world.legs[gone].elsewhere();
        let removed = remove_leg(&stopped(&world), gone, Some(leg)).await.unwrap();
        assert_eq!(removed.name, format!("leg {gone}"));
        let plain = removed.image.unwrap();
        assert!(plain.consistent && plain.size > 0, "{plain:?}");
        let former = world.legs.remove(gone);
        assert!(content(&*former.device()).await == image, "its image stays");
        assert_eq!(inspect(&former.device()).await.unwrap(), Inspection::Nothing);
        world.legs.iter().for_each(|leg| leg.set_way(Way::Open));
        world.open().await;
        world.settled().await;
        world.assert_equal().await;
        for leg in world.mirror().status().legs {
            let copied = leg.copied_bytes;
            assert!(copied > 0 && copied <= 6 * 4096, "{}: {copied} bytes copied", leg.name);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_leg_stays_and_one_that_was_promoted_is_left_alone() {
    let mut world = World::in_sync(2).await;
    close(&mut world).await;
    let leg = world.legs[0].elsewhere();
    promote(leg, &TokioHost::current(), PromoteOptions::default()).await.unwrap();
    let before = world.legs[0].device().read(0, Buf::new(LEG_SIZE as usize)).await.unwrap();
    let removed = remove_leg(&stopped(&world), 0, Some(world.legs[0].elsewhere())).await.unwrap();
    assert_eq!(removed.image, None);
    let after = world.legs[0].device().read(0, Buf::new(LEG_SIZE as usize)).await.unwrap();
    assert!(before[..] == after[..], "a promoted leg was written to");
    let error = remove_leg(&stopped(&world), 0, None).await.unwrap_err();
    assert!(matches!(error, MirrorError::Legs { .. }), "{error}");
}

/// A larger device with this content at its begin.
async fn larger(device: &dyn BlockDevice, bytes: u64) -> Device {
    let made = memory(bytes);
    let whole = device.read(0, Buf::new(device.info().size as usize)).await.unwrap();
    made.write(0, whole.freeze(), WriteFlags::NONE).await.unwrap();
    made
}

const GROWN: u64 = SIZE + (3 << 20);

#[tokio::test(start_paused = true)]
async fn a_mirror_grows_and_only_what_is_new_or_differed_is_copied() {
    let mut world = World::in_sync(2).await;
    world.device().write(0, pattern(SIZE as usize, 1), WriteFlags::NONE).await.unwrap();
    world.device().flush().await.unwrap();
    world.legs[1].set_way(Way::Cut);
    world.write(2 << 20, 8192, 9).await.unwrap();
    world.wait_state(1, LegState::Lost).await;
    close(&mut world).await;
    world.legs[1].set_way(Way::Open);
    let mirror = stopped(&world);
    let opened = || world.legs.iter().map(TestLeg::elsewhere).collect::<Vec<_>>();
    let metadata = memory(8 << 20);
    let refused = grow(&mirror, &metadata, opened()).await.unwrap_err().to_string();
    assert!(refused.contains("make it larger first"), "{refused}");
    let local = larger(&*world.local, GROWN).await;
    let mirror = Stopped { local: local.clone(), ..mirror };
    let refused = grow(&mirror, &metadata, opened()).await.unwrap_err().to_string();
    assert!(refused.contains("leg 0") && refused.contains("make it larger"), "{refused}");
    for leg in &world.legs {
        let device = larger(&*leg.device(), GROWN + (1 << 20)).await;
        leg.replace(device, &format!("id of {}", leg.name()));
    }
    let opened = || world.legs.iter().map(TestLeg::elsewhere).collect::<Vec<_>>();
    let size = grow(&mirror, &metadata, opened()).await.unwrap();
    // Again, as after a power cut before the new metadata took its place.
    assert_eq!(grow(&mirror, &metadata, opened()).await.unwrap(), size);
    assert_eq!(size, GROWN);
    let mut grown = World::over(local, 0);
    grown.metadata = Arc::new(crate::layer::FaultLayer::new(metadata, 1));
    grown.legs = std::mem::take(&mut world.legs);
    grown.open().await;
    assert_eq!(grown.device().info().size, GROWN);
    grown.settled().await;
    grown.write(GROWN - 8192, 8192, 3).await.unwrap();
    for (number, leg) in grown.legs.iter().enumerate() {
        let here = grown.local.read(0, Buf::new(GROWN as usize)).await.unwrap();
        let there = leg.device().read(0, Buf::new(GROWN as usize)).await.unwrap();
        assert!(here[..] == there[..], "leg {number} differs");
        let copied = grown.mirror().status().legs[number].copied_bytes;
        let most = GROWN - SIZE + number as u64 * 16384;
        assert!(copied <= most, "leg {number}: {copied} bytes copied, {most} differ");
    }
}
