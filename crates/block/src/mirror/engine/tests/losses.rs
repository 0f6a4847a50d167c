//! Rows of the failure matrix: what is lost, and what is left then, in sync mode.

use std::time::Duration;

use super::world::*;
use crate::layer::{Fault, OpKind};
use crate::mirror::{BLOCK_BYTES, LegState, Mirror, OnLoss};
use crate::{BlockError, Buf, WriteFlags};

const KIB: usize = 1024;

fn medium() -> BlockError {
    BlockError::Medium(std::io::Error::other("bad sector"))
}

#[tokio::test(start_paused = true)]
async fn writes_are_at_every_leg_when_they_complete() {
    let world = World::in_sync(3).await;
    world.write(0, 64 * KIB, 1).await.unwrap();
    world.write(512, 1024, 2).await.unwrap();
    world.device().zero(8192, 4096, Default::default()).await.unwrap();
    world.device().trim(16384, 8192).await.unwrap();
    world.assert_equal().await;
    world.device().write(4096, pattern(4096, 3), WriteFlags::FUA).await.unwrap();
    world.device().flush().await.unwrap();
    world.assert_equal().await;
    assert_eq!(world.mirror().status().written_bytes, (64 + 1 + 4 + 8 + 4) * 1024);
}

#[tokio::test(start_paused = true)]
async fn a_cut_link_holds_writes_up_no_longer_than_the_timeout_and_is_caught_up_by_what_changed() {
    for way in [Way::Cut, Way::Hangs, Way::Mute] {
        let world = World::in_sync(2).await;
        world.write(0, 64 * KIB, 1).await.unwrap();
        world.device().flush().await.unwrap();
        let before = world.mirror().status().generation;
        world.legs[0].set_way(way);
        let start = tokio::time::Instant::now();
        world.write(32 * KIB as u64, 4096, 2).await.unwrap();
        assert!(start.elapsed() <= world.config.remote_timeout, "{way:?}: {:?}", start.elapsed());
        let status = world.mirror().status();
        assert_eq!(status.legs[0].state, LegState::Lost, "{way:?}");
        assert_eq!(status.legs[1].state, LegState::InSync, "{way:?}");
        assert_ne!(status.generation, before, "what the leg misses has a name of its own");
        world.write(1 << 20, 4096, 3).await.unwrap();
        world.device().flush().await.unwrap();
        world.legs[0].set_way(Way::Open);
        world.settled().await;
        world.assert_equal().await;
        let copied = world.mirror().status().legs[0].copied_bytes;
        assert!(copied <= 4 * BLOCK_BYTES, "{way:?}: {copied} bytes were copied");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_leg_lets_every_waiting_operation_go() {
    let world = World::in_sync(1).await;
    world.legs[0].set_way(Way::Hangs);
    let device = world.device();
    let mut waiting = Vec::new();
    for at in 0..64u64 {
        let data = pattern(4096, at as u8);
        waiting.push(device.write(at * 8192, data, WriteFlags::NONE));
        waiting.push(device.flush());
    }
    let start = tokio::time::Instant::now();
    for io in waiting {
        io.await.unwrap();
    }
    assert!(start.elapsed() <= world.config.remote_timeout, "{:?}", start.elapsed());
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn with_stop_writes_wait_until_the_leg_is_back() {
    let mut world = World::blank(1);
    world.config.on_loss = OnLoss::Stop;
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    let device = world.device();
    let write = tokio::spawn(device.write(0, pattern(8192, 5), WriteFlags::NONE));
    world.wait_state(0, LegState::Lost).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(!write.is_finished(), "the write is told complete without the leg");
    world.legs[0].set_way(Way::Open);
    write.await.unwrap().unwrap();
    world.assert_equal().await;
    assert!(world.mirror().status().guest_wait >= Duration::from_secs(300));
}

#[tokio::test(start_paused = true)]
async fn with_stop_a_person_can_let_the_writes_go() {
    let mut world = World::blank(1);
    world.config.on_loss = OnLoss::Stop;
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.legs[0].set_way(Way::Cut);
    let device = world.device();
    let write = tokio::spawn(device.write(0, pattern(8192, 5), WriteFlags::NONE));
    world.wait_state(0, LegState::Lost).await;
    world.mirror().pause(0).await.unwrap();
    write.await.unwrap().unwrap();
    world.legs[0].set_way(Way::Open);
    world.mirror().resume(0).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_leg_without_space_has_failed_and_is_taken_up_again_by_a_person() {
    let mut world = World::blank(0);
    let full = std::sync::Arc::new(crate::layer::FaultLayer::new(memory(LEG_SIZE), 1));
    world.legs.push(TestLeg::new("thin", full.clone()));
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    full.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).in_range(0..SIZE));
    world.write(4096, 4096, 7).await.unwrap();
    let leg = world.mirror().status().legs[0].clone();
    assert_eq!(leg.state, LegState::Failed);
    assert!(leg.message.unwrap().contains("no space"));
    world.write(65536, 4096, 8).await.unwrap();
    full.heal();
    world.mirror().resume(0).await.unwrap();
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_here_costs_a_copy_of_what_was_in_the_log() {
    let mut world = World::in_sync(2).await;
    world.write(0, 4096, 1).await.unwrap();
    world.device().flush().await.unwrap();
    // Under way when the power goes: it is at one of the legs and perhaps here.
    world.legs[1].set_way(Way::Hangs);
    let under_way = world.device().write(3 << 20, pattern(65536, 2), WriteFlags::NONE);
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.kill();
    drop(under_way);
    world.legs[1].set_way(Way::Open);
    world.open().await;
    world.settled().await;
    world.assert_equal().await;
    for leg in world.mirror().status().legs {
        assert!(leg.copied_bytes <= 2 << 20, "{} bytes were copied", leg.copied_bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_power_cut_nothing_completes_without_a_leg_that_may_be_promoted() {
    let mut world = World::in_sync(1).await;
    world.write(0, 4096, 1).await.unwrap();
    let before = world.mirror().status().generation;
    world.kill();
    world.legs[0].set_way(Way::Cut);
    world.open().await;
    world.write(4096, 4096, 2).await.unwrap();
    assert_ne!(world.mirror().status().generation, before);
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
}

#[tokio::test(start_paused = true)]
async fn a_block_that_cannot_be_read_here_comes_from_a_leg_and_is_healed() {
    let world = World::in_sync(2).await;
    world.device().write(0, pattern(65536, 4), WriteFlags::NONE).await.unwrap();
    world.local.inject(Fault::on(OpKind::Read, medium).in_range(8192..12288).times(1));
    let back = world.device().read(4096, Buf::new(16384)).await.unwrap();
    assert!(back[..] == pattern(65536, 4)[4096..20480]);
    world.assert_equal().await;
    // Where no leg has it either, the failure is told.
    for leg in &world.legs {
        leg.set_way(Way::Cut);
    }
    world.local.inject(Fault::on(OpKind::Read, medium).in_range(8192..12288).times(1));
    let error = world.device().read(4096, Buf::new(16384)).await.map(drop);
    assert!(matches!(error, Err(BlockError::Medium(_))), "{error:?}");
}

/// Both legs hold `0..65536` of this byte, and zeroes behind it.
async fn assert_legs_hold(world: &World, byte: u8) {
    for leg in &world.legs {
        let there = content(&*leg.device()).await;
        assert!(
            there[..65536].iter().all(|b| *b == byte) && there[65536..].iter().all(|b| *b == 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_device_that_does_not_write_is_gone_on_without() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let mut world = World::in_sync(2).await;
        world.write(0, 65536, 1).await.unwrap();
        world.device().flush().await.unwrap();
        let generation = world.mirror().status().generation;
        world.local.inject(Fault::on(kind, medium));
        world.write(0, 65536, 2).await.unwrap();
        world.device().flush().await.unwrap();
        let status = world.mirror().status();
        assert!(status.local_failure.unwrap().contains("bad sector"));
        assert_ne!(status.generation, generation, "what it misses has a name of its own");
        world.local.heal(); // It would answer again, with what it had before.
        let back = world.device().read(0, Buf::new(65536)).await.unwrap();
        assert!(back.iter().all(|byte| *byte == 2), "{kind:?}");
        world.write(0, 65536, 3).await.unwrap();
        world.device().flush().await.unwrap();
        assert_legs_hold(&world, 3).await;
        world.kill();
        let error = Mirror::open(world.parts(), world.config).await.err().unwrap();
        assert!(error.to_string().contains("legs went on without it"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_local_device_a_leg_that_was_lost_is_caught_up_from_another() {
    let world = World::in_sync(2).await;
    world.legs[1].set_way(Way::Cut);
    world.write(0, 65536, 1).await.unwrap();
    world.local.inject(Fault::on(OpKind::Write, medium));
    world.write(0, 65536, 2).await.unwrap();
    world.legs[1].set_way(Way::Open);
    world.settled().await;
    assert_legs_hold(&world, 2).await;
    // One of the two is enough, none is not.
    world.legs[0].set_way(Way::Cut);
    world.write(0, 65536, 3).await.unwrap();
    let back = world.device().read(0, Buf::new(65536)).await.unwrap();
    assert!(back.iter().all(|byte| *byte == 3));
    world.legs[1].set_way(Way::Cut);
    let error = world.write(0, 65536, 4).await.unwrap_err();
    assert!(error.to_string().contains("no leg is in sync"), "{error}");
    assert!(world.device().read(0, Buf::new(4096)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_failed_is_never_a_success_later() {
    let world = World::in_sync(1).await;
    world.legs[0].set_way(Way::Cut);
    world.write(0, 65536, 1).await.unwrap();
    world.local.inject(Fault::on(OpKind::Flush, medium).times(1));
    for _ in 0..2 {
        assert!(matches!(world.device().flush().await, Err(BlockError::Medium(_))));
    }
    assert!(world.write(0, 4096, 2).await.is_err());
    let back = world.device().read(0, Buf::new(65536)).await.unwrap();
    assert!(back.iter().all(|byte| *byte == 1));
}

#[tokio::test(start_paused = true)]
async fn with_stop_a_local_device_that_does_not_write_stops_the_mirror() {
    let mut world = World::blank(1);
    world.config.on_loss = OnLoss::Stop;
    world.create().await.unwrap();
    world.open().await;
    world.settled().await;
    world.local.inject(Fault::on(OpKind::Write, medium).times(1));
    assert!(matches!(world.write(0, 65536, 2).await, Err(BlockError::Medium(_))));
    world.write(0, 65536, 3).await.unwrap();
    world.assert_equal().await;
    world.local.inject(Fault::on(OpKind::Flush, medium).times(1));
    assert!(world.device().flush().await.is_err());
    assert!(world.device().flush().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_finds_no_space_here_fails_and_the_legs_are_as_here() {
    let world = World::in_sync(2).await;
    world.write(0, 65536, 1).await.unwrap();
    world.local.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).times(1));
    let error = world.write(8192, 8192, 2).await;
    assert!(matches!(error, Err(BlockError::NoSpace)), "{error:?}");
    world
        .wait("nothing differs", |mirror| {
            mirror.status().legs.iter().all(|leg| leg.dirty_bytes == 0)
        })
        .await;
    world.assert_equal().await;
    world.write(8192, 8192, 3).await.unwrap();
    world.assert_equal().await;
    // Also a write to blocks that were not yet brought to the legs again.
    for flags in [WriteFlags::NONE, WriteFlags::FUA] {
        world.local.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).times(1));
        let failing = world.device().write(8192, pattern(8192, 4), flags);
        let behind = world.device().write(8704, pattern(512, 5), flags);
        assert!(failing.await.is_err());
        behind.await.unwrap();
        world.assert_equal().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_caller_is_gone_is_carried_through() {
    let world = World::in_sync(1).await;
    drop(world.device().write(0, pattern(65536, 9), WriteFlags::NONE));
    world.write(65536, 4096, 1).await.unwrap();
    world.device().flush().await.unwrap();
    world.wait("both are there", |mirror| mirror.status().written_bytes == 65536 + 4096).await;
    world.assert_equal().await;
    assert_eq!(content(&*world.local).await[..4096], pattern(65536, 9)[..4096]);
}

#[tokio::test(start_paused = true)]
async fn metadata_that_cannot_be_written_stops_writes_not_reads() {
    let world = World::in_sync(1).await;
    world.write(0, 4096, 6).await.unwrap();
    world.metadata.inject(Fault::on(OpKind::Write, medium));
    world.metadata.inject(Fault::on(OpKind::Flush, medium));
    world.legs[0].set_way(Way::Cut);
    let error = world.write(2 << 20, 4096, 7).await.unwrap_err();
    assert!(error.to_string().contains("metadata"), "{error}");
    let back = world.device().read(0, Buf::new(4096)).await.unwrap();
    assert!(back.iter().all(|byte| *byte == 6));
}
