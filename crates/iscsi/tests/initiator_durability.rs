//! What the initiator does about acknowledged writes that a target may have lost: every way in
//! which a later flush could vouch for data that is gone. The target does what the test has written
//! down, so that each loss happens at the one place where it matters.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod open_target;
mod scripted_unit;

use std::future::Future;
use std::sync::Arc;

use block::{BlockDevice, BlockError, Buf, Bytes, Result, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteDisk};
use scripted_unit::{
    Act, MODE_SENSE, PATIENCE, POWER_ON, READ, READ_CAPACITY16, SYNCHRONIZE_CACHE, TEST_UNIT_READY,
    Unit, WRITE, WRITE_ERROR, connect, start,
};

const LEN: usize = 4096;

async fn rig(config: Config) -> (Arc<Unit>, RemoteDisk) {
    let (unit, address) = start().await;
    let disk = connect(address, config).await;
    assert!(disk.info().volatile_cache);
    (unit, disk)
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

fn write(disk: &RemoteDisk, offset: usize, byte: u8) -> block::Io<()> {
    disk.write(offset as u64, Bytes::from(vec![byte; LEN]), WriteFlags::NONE)
}

async fn flush(disk: &RemoteDisk) -> Result<()> {
    soon("a flush", disk.flush()).await
}

fn assert_stable(unit: &Unit, offset: usize, byte: u8) {
    let inner = unit.lock();
    assert!(
        inner.stable[offset..offset + LEN] == [byte; LEN],
        "after a flush that succeeded, what was acknowledged is not there: {:?}",
        inner.writes
    );
}

/// The power-on is told over a connection that dies before it is used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_on_told_over_a_connection_that_dies_is_not_forgotten() {
    let (unit, disk) = rig(Config::default()).await;
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.lock().attentions.push_back(POWER_ON);
    unit.next(&[(TEST_UNIT_READY, Act::Cut)]);
    unit.lose_power();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 1);
}

/// What has come with one segment is delivered together, but not past a power-on: GOOD of a flush
/// behind it says nothing of what the unit has lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_answered_with_the_same_segment_as_a_power_on_vouches_for_nothing() {
    let (unit, disk) = rig(Config::default()).await;
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.next(&[(READ, Act::LosePower)]);
    let read = disk.read(2 * LEN as u64, Buf::new(LEN));
    let (read, flushed) = soon("both", async { tokio::join!(read, disk.flush()) }).await;
    flushed.unwrap();
    assert_stable(&unit, 0, 1);
    assert_eq!(read.unwrap()[..], [0; LEN]);
}

/// A power-on may be told to any of the questions of what the unit is like, which go together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_on_told_in_place_of_the_capacity_hides_nothing_of_the_unit() {
    let (unit, address) = start().await;
    unit.lock().thin = true;
    unit.next(&[(READ_CAPACITY16, Act::Fail(POWER_ON))]);
    let disk = connect(address, Config::default()).await;
    assert!(disk.info().can_extents);
}

/// There are targets that never tell that they were powered on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_on_that_nobody_tells_loses_nothing() {
    let (unit, disk) = rig(Config::default()).await;
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.lock().refuse = 2;
    unit.lose_power();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 1);
    assert!(unit.lock().flushes >= 2, "one of them before the user's");
}

/// Writing again is cut short, twice, once with another loss of power.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_in_the_middle_of_writing_again_loses_nothing() {
    let (unit, disk) = rig(Config::default()).await;
    for n in 0..4 {
        soon("a write", write(&disk, n * 2 * LEN, n as u8 + 1)).await.unwrap();
    }
    let scripted = [(WRITE, Act::Do), (WRITE, Act::DoAndCut), (SYNCHRONIZE_CACHE, Act::Cut)];
    unit.next(&scripted);
    unit.lose_power();
    unit.until("flushed again", |inner| inner.script.is_empty()).await;
    unit.lose_power();
    flush(&disk).await.unwrap();
    for n in 0..4 {
        assert_stable(&unit, n * 2 * LEN, n as u8 + 1);
    }
}

/// A write that was under way is not overtaken by an older one that is written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_again_does_not_overtake_the_users_writes() {
    let (unit, disk) = rig(Config::default()).await;
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.next(&[(WRITE, Act::Cut)]);
    let newer = write(&disk, 0, 2);
    soon("a newer write", newer).await.unwrap();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 2);
}

/// A flush that the initiator sent by itself fails once, and the target forgets what it could not
/// write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_failure_of_a_flush_of_our_own_is_told_to_the_next_flush() {
    for restart in [false, true] {
        let mut config = Config::default();
        config.unflushed_len_max = 4 * LEN as u64;
        let (unit, disk) = rig(config).await;
        unit.next(&[(SYNCHRONIZE_CACHE, Act::Fail(WRITE_ERROR))]);
        for n in 0..3 {
            soon("a write", write(&disk, n * LEN, 7)).await.unwrap();
        }
        unit.until("asked to flush", |inner| inner.script.is_empty()).await;
        if restart {
            unit.lose_power();
        }
        let told = flush(&disk).await;
        assert!(matches!(told, Err(BlockError::Medium(_))), "{told:?}");
        flush(&disk).await.unwrap();
    }
}

/// As above, and a write with FUA is the first to be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_failure_of_a_flush_of_our_own_is_told_to_a_write_with_fua() {
    let mut config = Config::default();
    config.unflushed_len_max = 4 * LEN as u64;
    let (unit, disk) = rig(config).await;
    unit.next(&[(SYNCHRONIZE_CACHE, Act::Fail(WRITE_ERROR))]);
    for n in 0..3 {
        soon("a write", write(&disk, n * LEN, 7)).await.unwrap();
    }
    unit.until("asked to flush", |inner| inner.script.is_empty()).await;
    let fua = || disk.write(0, Bytes::from(vec![9; LEN]), WriteFlags::FUA);
    // The target's answer may still be under way when the first one is sent.
    let mut told = 0;
    for _ in 0..3 {
        told += usize::from(soon("a write", fua()).await.is_err());
    }
    assert_eq!(told, 1);
    flush(&disk).await.unwrap();
}

/// A unit that cannot flush any more: writes neither hang nor are forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_to_a_unit_that_cannot_flush_fail_when_no_more_can_be_kept() {
    let mut config = Config::default();
    config.unflushed_len_max = 4 * LEN as u64;
    let (unit, disk) = rig(config).await;
    unit.next(&[(SYNCHRONIZE_CACHE, Act::Fail(WRITE_ERROR)); 4]);
    let mut refused = 0;
    for n in 0..16 {
        refused += usize::from(soon("a write", write(&disk, n * LEN, 7)).await.is_err());
        if unit.lock().script.is_empty() {
            break;
        }
    }
    assert!(refused > 0, "{:?}", unit.lock().script);
    assert!(flush(&disk).await.is_err(), "what was acknowledged before is in doubt");
    soon("a write", write(&disk, 0, 8)).await.unwrap();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 8);
}

/// After a power cut the target is started without a write cache, or does not say whether it has
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_a_write_cache_loses_nothing() {
    for says in [Some(false), None] {
        let (unit, disk) = rig(Config::default()).await;
        soon("a write", write(&disk, 0, 1)).await.unwrap();
        match says {
            Some(write_cache) => unit.lock().write_cache = write_cache,
            None => unit.next(&[(MODE_SENSE, Act::Conflict)]),
        }
        unit.lock().attentions.push_back(POWER_ON);
        unit.lose_power();
        flush(&disk).await.unwrap();
        assert_stable(&unit, 0, 1);
        // The next loss finds what was written since, too.
        soon("a write", write(&disk, LEN, 2)).await.unwrap();
        unit.lose_power();
        flush(&disk).await.unwrap();
        assert_stable(&unit, LEN, 2);
    }
}

/// Somebody switches the write cache on with MODE SELECT, and nothing but an attention tells it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_cache_that_is_switched_on_is_noticed() {
    let (unit, address) = start().await;
    unit.lock().write_cache = false;
    let disk = connect(address, Config::default()).await;
    unit.lock().write_cache = true;
    unit.lock().attentions.push_back((0x6, 0x2a, 0x01));
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.lose_power();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 1);
}

/// Another initiator holds the unit when we come back: what it may have written since is not
/// overwritten, then or later, and the next flush is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_initiator_has_reserved_is_not_written_again() {
    let (unit, disk) = rig(Config::default()).await;
    soon("a write", write(&disk, 0, 1)).await.unwrap();
    unit.next(&[(WRITE, Act::Conflict)]);
    unit.lose_power();
    let told = flush(&disk).await;
    assert!(matches!(told, Err(BlockError::Fenced)), "{told:?}");
    unit.lose_power();
    flush(&disk).await.unwrap();
    assert_eq!(unit.lock().writes.len(), 1, "written again");
}

/// A write whose caller has given up is carried out at most once, and never after a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_given_up_on_the_wire_is_not_sent_again() {
    let (unit, disk) = rig(Config::default()).await;
    unit.next(&[(WRITE, Act::Hold)]);
    let given_up = tokio::spawn(write(&disk, 0, 1).into_future());
    unit.until("held", |inner| inner.held == 1).await;
    given_up.abort();
    let _ = given_up.await;
    unit.hang_up();
    flush(&disk).await.unwrap();
    assert_eq!(unit.lock().writes, [], "nobody waits for it");
}

/// A write that has not been sent is withdrawn with its caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_given_up_before_it_was_sent_is_withdrawn() {
    let mut config = Config::default();
    config.commands_max = 1;
    let (unit, disk) = rig(config).await;
    unit.next(&[(WRITE, Act::Hold)]);
    let first = tokio::spawn(write(&disk, 0, 1).into_future());
    unit.until("held", |inner| inner.held == 1).await;
    drop(write(&disk, LEN, 2));
    let third = tokio::spawn(write(&disk, 2 * LEN, 3).into_future());
    unit.release();
    soon("the first", first).await.unwrap().unwrap();
    soon("the third", third).await.unwrap().unwrap();
    let written: Vec<u8> = unit.lock().writes.iter().map(|write| write.byte).collect();
    assert_eq!(written, [1, 3]);
}

/// After quiesce nothing of before can land: what the target still has is ended by the session that
/// comes in the place of the old one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_before_lands_after_quiesce() {
    let mut config = Config::default();
    config.commands_max = 1;
    let (unit, disk) = rig(config).await;
    soon("a write", write(&disk, 4 * LEN, 4)).await.unwrap();
    unit.next(&[(WRITE, Act::Hold)]);
    let under_way = write(&disk, 0, 1);
    unit.until("held", |inner| inner.held == 1).await;
    let waiting = write(&disk, LEN, 2);
    soon("quiesce", disk.quiesce()).await.unwrap();
    for write in [under_way, waiting] {
        let given_up = soon("a write", write).await;
        assert!(matches!(given_up, Err(BlockError::Unreachable(_))), "{given_up:?}");
    }
    {
        let inner = unit.lock();
        assert!(inner.isids.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", inner.isids);
        assert!(inner.stable[4 * LEN..5 * LEN] == [4; LEN], "acknowledged stays so");
    }
    unit.release();
    soon("a newer write", write(&disk, 0, 3)).await.unwrap();
    flush(&disk).await.unwrap();
    assert_stable(&unit, 0, 3);
    assert_stable(&unit, LEN, 0);
}

/// Quiesce of a disk whose target is gone says so when the time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quiesce_without_a_target_fails() {
    let config = Config::default().replacement_timeout(std::time::Duration::from_millis(500));
    let (unit, disk) = rig(config).await;
    unit.lock().refuse = usize::MAX;
    unit.hang_up();
    let result = soon("quiesce", disk.quiesce()).await;
    assert!(matches!(result, Err(BlockError::Unreachable(_))), "{result:?}");
}

/// A process takes the place of its predecessor at the target; one beside it does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stable_isid_is_that_of_the_predecessor() {
    let (unit, address) = start().await;
    let mut config = Config::default();
    config.isid = IsidChoice::Named(format!("test {}", std::process::id()));
    let first = connect(address, config.clone()).await;
    let beside = connect(address, config.clone()).await;
    beside.close().await.unwrap();
    drop((first, beside));
    connect(address, config).await.close().await.unwrap();
    let isids = unit.lock().isids.clone();
    if isids[0] != isids[2] {
        let writable = std::env::var_os("XDG_RUNTIME_DIR").is_some();
        assert!(!writable, "{isids:?}");
        eprintln!("SKIPPED: no directory for locks here (XDG_RUNTIME_DIR)");
        return;
    }
    assert_ne!(isids[0], isids[1]);
}
