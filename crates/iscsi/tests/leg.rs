//! A logical unit as the leg of a mirror: nothing that was asked of a disk of before lands later,
//! and nothing is sent a second time. The target does what the test has written down, so that each
//! loss happens at the one place where it matters.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod open_target;
mod scripted_unit;
mod tgt;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use block::mirror::{LegSource, OpenLeg};
use block::{BlockError, Buf, Bytes, Device, Io, Result, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use iscsi::target::{Server, ServerConfig};
use late::Late;
use scripted_unit::{
    Act, IQN, PATIENCE, POWER_ON, SYNCHRONIZE_CACHE, TEST_UNIT_READY, Unit, WRITE, Written, start,
};
use scsi::{LunOptions, Target, TargetConfig};
use tgt::Tgt;

const LEN: usize = 4096;
const NEXUS_LOSS: (u8, u8, u8) = (0x6, 0x29, 0x07);
const COMMANDS_CLEARED: (u8, u8, u8) = (0x6, 0x2f, 0x00);
const ABORTED: (u8, u8, u8) = (0xb, 0x00, 0x00);
const MODE_CHANGED: (u8, u8, u8) = (0x6, 0x2a, 0x01);
const BECOMING_READY: (u8, u8, u8) = (0x2, 0x04, 0x01);
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;

/// Settings of a leg that no other test has under its name.
fn settings() -> Config {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut config = Config::default().connections(1);
    config.isid = IsidChoice::Named(format!("leg {number} of test {}", std::process::id()));
    config
}

fn leg_at(address: SocketAddr, config: Config) -> RemoteLeg {
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    RemoteLeg::new(url, config)
}

async fn rig_with(config: Config) -> (Arc<Unit>, RemoteLeg, Device) {
    let (unit, address) = start().await;
    let leg = leg_at(address, config);
    let device = open(&leg).await.device;
    (unit, leg, device)
}

async fn rig() -> (Arc<Unit>, RemoteLeg, Device) {
    rig_with(settings()).await
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

async fn open(leg: &RemoteLeg) -> OpenLeg {
    soon("connecting", leg.connect()).await.unwrap()
}

fn write(device: &Device, offset: usize, byte: u8) -> Io<()> {
    device.write(offset as u64, Bytes::from(vec![byte; LEN]), WriteFlags::NONE)
}

async fn first_byte(device: &Device, offset: usize) -> u8 {
    let buf = soon("a read", device.read(offset as u64, Buf::new(LEN))).await.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "a torn write");
    buf[0]
}

fn assert_unreachable<T: std::fmt::Debug>(result: &Result<T>) {
    assert!(matches!(result, Err(BlockError::Unreachable(_))), "{result:?}");
}

/// Every kind of operation fails, at once.
async fn assert_dead(device: &Device) {
    assert_unreachable(&soon("a write", write(device, 0, 9)).await);
    assert_unreachable(&soon("a read", device.read(0, Buf::new(LEN))).await.map(drop));
    assert_unreachable(&soon("a flush", device.flush()).await);
}

/// The next disk works, and the sessions of all of them have one name.
async fn assert_goes_on(unit: &Unit, leg: &RemoteLeg) -> Device {
    let device = open(leg).await.device;
    soon("a write", write(&device, 8 * LEN, 8)).await.unwrap();
    soon("a flush", device.flush()).await.unwrap();
    assert_eq!(first_byte(&device, 8 * LEN).await, 8);
    let isids = unit.lock().isids.clone();
    // Before the first one, others that a process of that name might have left are ended.
    assert_eq!(isids.first(), isids.last());
    device
}

fn writes_of(unit: &Unit, byte: u8) -> Vec<Written> {
    unit.lock().writes.iter().filter(|written| written.byte == byte).copied().collect()
}

/// A write that is cut off, done or not, fails, and its disk with it. Nothing is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_answered_is_not_sent_again() {
    for (act, done) in [(Act::Cut, 0), (Act::DoAndCut, 1)] {
        let (unit, leg, device) = rig().await;
        let logins = unit.lock().isids.len();
        unit.next(&[(WRITE, act)]);
        assert_unreachable(&soon("a write", write(&device, 0, 1)).await);
        assert_dead(&device).await;
        assert_eq!(unit.lock().isids.len(), logins, "nobody has logged in again");
        let next = assert_goes_on(&unit, &leg).await;
        assert_eq!(writes_of(&unit, 1).len(), done, "{act:?}");
        assert_eq!(first_byte(&next, 0).await, done as u8);
        assert_dead(&device).await;
    }
}

/// What is under way at the end of the sessions fails, and so does what waits for room behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_under_way_fails_with_the_sessions() {
    let mut config = settings();
    config.commands_max = 1;
    let (unit, leg, device) = rig_with(config).await;
    unit.next(&[(WRITE, Act::Hold)]);
    let under_way = write(&device, 0, 1);
    unit.until("held", |inner| inner.held == 1).await;
    let waiting = [write(&device, LEN, 2), device.flush()];
    unit.hang_up();
    assert_unreachable(&soon("a write", under_way).await);
    for io in waiting {
        assert_unreachable(&soon("what waits", io).await);
    }
    assert_dead(&device).await;
    assert_goes_on(&unit, &leg).await;
    assert!(writes_of(&unit, 1).is_empty() && writes_of(&unit, 2).is_empty());
}

/// The disk before is ended by the next one, though nothing is wrong with it: its write that is
/// still with the target does not land on a newer one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_disk_ends_the_one_before_and_its_commands() {
    let (unit, leg, device) = rig().await;
    unit.next(&[(WRITE, Act::Hold)]);
    let old = write(&device, 0, 1);
    unit.until("held", |inner| inner.held == 1).await;
    let next = open(&leg).await.device;
    assert_unreachable(&soon("a write", old).await);
    assert_dead(&device).await;
    soon("a newer write", write(&next, 0, 3)).await.unwrap();
    unit.release();
    unit.until("let go", |inner| inner.held == 0).await;
    assert_eq!(first_byte(&next, 0).await, 3);
    assert!(writes_of(&unit, 1).is_empty());
}

/// A write whose caller has gone, and whose disk has, does not land either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_was_dropped_leaves_nothing() {
    let (unit, leg, device) = rig().await;
    unit.next(&[(WRITE, Act::Hold)]);
    let old = write(&device, 0, 1);
    unit.until("held", |inner| inner.held == 1).await;
    drop((old, device));
    let next = assert_goes_on(&unit, &leg).await;
    soon("a newer write", write(&next, 0, 3)).await.unwrap();
    unit.release();
    unit.until("let go", |inner| inner.held == 0).await;
    assert_eq!(first_byte(&next, 0).await, 3);
}

/// Acknowledged data that was not flushed goes with the power of the target: the mirror knows what
/// it has to send again, and in which order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_unflushed_is_written_again() {
    let (unit, leg, device) = rig().await;
    soon("a write", write(&device, 0, 1)).await.unwrap();
    unit.lock().attentions.push_back(POWER_ON);
    unit.lose_power();
    assert_unreachable(&soon("a flush", device.flush()).await);
    let next = assert_goes_on(&unit, &leg).await;
    assert_eq!(writes_of(&unit, 1).len(), 1, "before the loss");
    assert_eq!(first_byte(&next, 0).await, 0);
}

/// A target that has dropped commands ends the disk: what the others have become is not known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_drops_commands_ends_the_disk() {
    let told = [POWER_ON, NEXUS_LOSS, COMMANDS_CLEARED, ABORTED].map(Act::Fail);
    for act in told.into_iter().chain([Act::Status(TASK_ABORTED)]) {
        for code in [WRITE, SYNCHRONIZE_CACHE] {
            let (unit, leg, device) = rig().await;
            let logins = unit.lock().isids.len();
            unit.next(&[(code, act)]);
            let told = match code {
                WRITE => soon("a write", write(&device, 0, 1)).await,
                _ => soon("a flush", device.flush()).await,
            };
            assert_unreachable(&told);
            assert_dead(&device).await;
            assert!(unit.lock().writes.is_empty(), "{act:?}");
            assert_eq!(unit.lock().isids.len(), logins, "{act:?}");
            assert_goes_on(&unit, &leg).await;
        }
    }
}

/// What was refused unread, and dropped nothing, is put off; it goes out once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_unread_goes_out_later() {
    let refused = [Act::Status(BUSY), Act::Status(TASK_SET_FULL)];
    let told = [MODE_CHANGED, BECOMING_READY].map(Act::Fail);
    for act in refused.into_iter().chain(told) {
        let (unit, _leg, device) = rig().await;
        unit.next(&[(WRITE, act), (WRITE, act)]);
        soon("a write", write(&device, 0, 1)).await.unwrap();
        assert_eq!(writes_of(&unit, 1).len(), 1, "{act:?}");
        assert_eq!(first_byte(&device, 0).await, 1);
    }
}

/// A write that was refused unread is not sent when its caller has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_refused_is_not_sent_for_a_caller_that_has_gone() {
    let (unit, _leg, device) = rig().await;
    unit.next(&[(WRITE, Act::Hold), (WRITE, Act::Fail(BECOMING_READY))]);
    let ahead = write(&device, 4 * LEN, 4);
    unit.until("held", |inner| inner.held == 1).await;
    let old = write(&device, 0, 1); // refused when the one ahead is done
    drop(old);
    unit.release();
    soon("the write ahead", ahead).await.unwrap();
    soon("a newer write", write(&device, 0, 3)).await.unwrap();
    assert_eq!(first_byte(&device, 0).await, 3);
    assert!(writes_of(&unit, 1).is_empty());
}

/// A target may answer a login too early. What it still has of the session before has ended when a
/// command is answered that had to wait for all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_waits_for_older_commands_where_the_target_knows_an_order() {
    for knows_order in [false, true] {
        let (unit, address) = start().await;
        unit.lock().knows_order = knows_order;
        open(&leg_at(address, settings())).await;
        let expected: &[u8] = if knows_order { &[TEST_UNIT_READY] } else { &[] };
        assert_eq!(unit.lock().ordered, expected);
    }
}

/// Where nothing tells of a predecessor (the host was restarted), it may have had a session of each
/// name that a leg can have: a login under each ends it. Once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_tells_of_a_predecessor_whatever_it_may_have_had_is_ended() {
    let (unit, leg, _device) = rig().await;
    let isids = unit.lock().isids.clone();
    let mut names: Vec<u16> = isids.iter().map(|isid| isid.qualifier()).collect();
    names.sort_unstable();
    assert_eq!(names, [0, 1, 2, 3, 4, 5, 6, 7]);
    open(&leg).await;
    assert_eq!(unit.lock().isids.len(), isids.len() + 1);
    assert_eq!(unit.lock().isids.last(), Some(&isids[0]));
}

/// The same leg at tgt, which is killed with a write under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_tgt_is_followed_by_the_next_disk() {
    let Some(mut tgt) = Tgt::start(64 << 20) else { return };
    let leg = RemoteLeg::new(tgt.url().parse().unwrap(), settings());
    let first = open(&leg).await;
    assert!(!first.identity.is_empty());
    soon("a write", write(&first.device, 0, 1)).await.unwrap();
    tgt.kill();
    assert_dead(&first.device).await;
    assert_unreachable(&soon("connecting", leg.connect()).await.map(drop));
    tokio::task::block_in_place(|| tgt.run());
    let next = open(&leg).await;
    assert_eq!(next.identity, first.identity);
    assert_eq!(first_byte(&next.device, 0).await, 1);
    assert_dead(&first.device).await;
}

/// An attempt to connect that fails, or is given up, leaves the leg usable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_fails_is_followed_by_others() {
    let (unit, leg, device) = rig().await;
    unit.next(&[(TEST_UNIT_READY, Act::Cut)]);
    assert_unreachable(&soon("connecting", leg.connect()).await.map(drop));
    assert_dead(&device).await;
    unit.next(&[(TEST_UNIT_READY, Act::Hold)]);
    let given_up = tokio::spawn(leg.connect());
    unit.until("held", |inner| inner.held == 1).await;
    given_up.abort();
    assert_goes_on(&unit, &leg).await;
}

/// One process after the other has the name, and never two at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_has_the_name_of_its_predecessor_and_shares_it_with_nobody() {
    let (unit, address) = start().await;
    let config = settings();
    let first = leg_at(address, config.clone());
    let opened = open(&first).await;
    if !has_locks() {
        eprintln!("SKIPPED: no directory for locks here (XDG_RUNTIME_DIR)");
        return;
    }
    let logins = unit.lock().isids.len();
    let beside = leg_at(address, config.clone());
    let refused = soon("connecting", beside.connect()).await.map(drop);
    assert_unreachable(&refused);
    assert!(refused.unwrap_err().to_string().contains("in use"), "not for another reason");
    assert_eq!(unit.lock().isids.len(), logins, "the target has not seen it");
    soon("a write", write(&opened.device, 0, 1)).await.unwrap();
    drop((first, opened));
    let successor = soon("connecting", async {
        // The lock goes when the last task of the old disk has been dropped.
        loop {
            match beside.connect().await {
                Ok(opened) => break opened,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    assert_eq!(first_byte(&successor.await.device, 0).await, 1);
    let isids = unit.lock().isids.clone();
    assert_eq!(isids[logins], isids[0]);
    assert_eq!(isids.len(), logins + 1, "what the predecessor had is known");
}

/// There is a place for locks; a leg that was connected has made it.
fn has_locks() -> bool {
    std::path::Path::new("/run/enkaku").is_dir() || std::env::var_os("XDG_RUNTIME_DIR").is_some()
}

/// Our own target over storage that hangs: as long as it has a write of before, there is no next
/// disk, and when there is one, nothing of before is left. `connections`: of the leg; each is a
/// session where the target grants one connection for each.
async fn a_write_in_hung_storage(connections: u16, granted: u16) {
    let late = Arc::new(Late::new());
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, late.clone(), LunOptions::default()).unwrap();
    let mut server = ServerConfig::new(IQN).unwrap();
    server.offer.session.default_time2wait = 0;
    server.offer.session.max_connections = granted;
    let server = Server::bind(server, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    let serving = tokio::spawn(server.run(std::future::pending()));

    let mut config = settings().connections(connections);
    config.login_timeout = std::time::Duration::from_millis(500);
    let leg = leg_at(address, config);
    let first = open(&leg).await.device;
    late.shut();
    let writes: Vec<Io<()>> = (0..16).map(|n| write(&first, n * LEN, 1)).collect();
    soon("writes at the storage", late.until_pending(16)).await;
    drop((writes, first));
    // The target cannot end them, so it lets nobody in.
    assert_unreachable(&soon("connecting", leg.connect()).await.map(drop));
    assert_eq!(late.pending(), 16);
    late.open();
    let next = soon("connecting", async {
        loop {
            if let Ok(opened) = leg.connect().await {
                // Nothing has been asked of this one yet.
                assert_eq!(late.pending(), 0, "a write of before can still land");
                break opened.device;
            }
        }
    })
    .await;
    for n in 0..16 {
        soon("a newer write", write(&next, n * LEN, 2)).await.unwrap();
    }
    for n in 0..16 {
        assert_eq!(first_byte(&next, n * LEN).await, 2);
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_in_hung_storage_does_not_land_on_the_next_disk() {
    a_write_in_hung_storage(1, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_several_connections_in_hung_storage_do_not_either() {
    a_write_in_hung_storage(4, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_several_sessions_in_hung_storage_do_not_either() {
    a_write_in_hung_storage(4, 1).await;
}
