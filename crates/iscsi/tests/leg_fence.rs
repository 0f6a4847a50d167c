//! Who may write to the leg of a mirror: persistent reservations over every session of a disk,
//! against our own target and against tgt. What counts is what is on the unit afterwards.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod tgt;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::mirror::{Fence, LegSource, OpenLeg};
use block::{BlockError, Buf, Bytes, Device, Result, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteDisk, RemoteLeg, Url};
use iscsi::target::{Server, ServerConfig};
use late::Late;
use path::PolicyConfig;
use scsi::{FileStore, LunOptions, Target, TargetConfig};
use tgt::Tgt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const IQN: &str = "iqn.2026-11.org.example:fence";
const LEN: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(30);
const NEAR: u64 = 0x6e65_6172;
const FAR: u64 = 0x0066_6172;

struct Serving {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

/// `granted`: connections of one session.
fn serve(device: Device, options: LunOptions, granted: u16) -> Serving {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, options).unwrap();
    let mut config = ServerConfig::new(IQN).unwrap();
    config.offer.session.default_time2wait = 0;
    config.offer.session.max_connections = granted;
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async { drop(stopped.await) }));
    Serving { address, stop: Some(stop), task }
}

fn memory() -> Device {
    Arc::new(MemoryDevice::new(16 << 20, 512).unwrap())
}

impl Serving {
    fn url(&self) -> Url {
        format!("iscsi://{}/{IQN}/0", self.address).parse().unwrap()
    }
}

impl Serving {
    async fn end(mut self) {
        drop(self.stop.take());
        soon("the target's end", &mut self.task).await.unwrap();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Settings of a leg of a host of its own.
fn settings(connections: u16) -> Config {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut config = Config::default().connections(connections);
    config.isid = IsidChoice::Named(format!("fence {number} of test {}", std::process::id()));
    config
}

/// A leg of a host of its own.
fn host(url: &Url, connections: u16) -> RemoteLeg {
    RemoteLeg::new(url.clone(), settings(connections))
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

async fn open(leg: &RemoteLeg) -> (Device, Arc<dyn Fence>) {
    let OpenLeg { device, fence, .. } = soon("connecting", leg.connect()).await.unwrap();
    (device, fence.expect("the target knows persistent reservations"))
}

async fn write(device: &Device, offset: usize, byte: u8) -> Result<()> {
    let data = Bytes::from(vec![byte; LEN]);
    soon("a write", device.write(offset as u64, data, WriteFlags::NONE)).await
}

async fn first_byte(device: &Device, offset: usize) -> u8 {
    soon("a read", device.read(offset as u64, Buf::new(LEN))).await.unwrap()[0]
}

fn assert_fenced<T: std::fmt::Debug>(result: &Result<T>) {
    assert!(matches!(result, Err(BlockError::Fenced)), "{result:?}");
}

/// So many writes at once that every session has its part of them.
async fn write_everywhere(device: &Device, byte: u8) -> Vec<Result<()>> {
    let writes = (0..64).map(|n| write(device, n * LEN, byte));
    futures_util::future::join_all(writes).await
}

/// What two hosts do with one unit, in the order of a failover and of the way back.
/// `keeps`: the target knows a nexus again by its name when it logs in, as it should (SPC-4 §5.12).
async fn one_host_after_the_other(url: &Url, connections: u16, keeps: bool) {
    let (near, far) = (host(url, connections), host(url, connections));
    let (near_disk, near_fence) = open(&near).await;
    let (far_disk, far_fence) = open(&far).await;
    assert_eq!(soon("asking", near_fence.holder()).await.unwrap(), None);
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    assert!(write_everywhere(&near_disk, 1).await.iter().all(Result::is_ok));

    // The other host reads, and does not write, nor get in by asking.
    assert_fenced(&write(&far_disk, 0, 2).await);
    assert_fenced(&soon("holding", far_fence.hold(FAR)).await);
    assert!(write_everywhere(&far_disk, 2).await.iter().all(Result::is_err));
    assert_eq!(first_byte(&far_disk, 0).await, 1);
    assert_eq!(soon("asking", far_fence.holder()).await.unwrap(), Some(NEAR));

    // It takes over, and from then on the first one does not write.
    soon("taking", far_fence.take(FAR)).await.unwrap();
    assert!(write_everywhere(&far_disk, 2).await.iter().all(Result::is_ok));
    for result in write_everywhere(&near_disk, 3).await {
        assert_fenced(&result);
    }
    assert_fenced(&soon("holding", near_fence.hold(NEAR)).await);
    drop((near_disk, near_fence));
    let (near_disk, near_fence) = open(&near).await;
    assert_fenced(&soon("holding", near_fence.hold(NEAR)).await);
    for result in write_everywhere(&near_disk, 3).await {
        assert_fenced(&result);
    }
    assert_eq!(first_byte(&near_disk, 0).await, 2);
    assert_eq!(soon("asking", near_fence.holder()).await.unwrap(), Some(FAR));

    // A login of the holder changes nothing: its sessions have the names that are registered.
    drop((far_disk, far_fence));
    let (far_disk, far_fence) = open(&far).await;
    if keeps {
        assert!(write_everywhere(&far_disk, 4).await.iter().all(Result::is_ok));
    }
    soon("holding", far_fence.hold(FAR)).await.unwrap();
    soon("holding again", far_fence.hold(FAR)).await.unwrap();
    assert!(write_everywhere(&far_disk, 5).await.iter().all(Result::is_ok));
    assert_fenced(&write(&near_disk, 0, 3).await);

    // Given back, it is anybody's.
    soon("releasing", far_fence.release(FAR)).await.unwrap();
    assert_eq!(soon("asking", far_fence.holder()).await.unwrap(), None);
    assert!(write_everywhere(&near_disk, 6).await.iter().all(Result::is_ok));
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    assert_fenced(&write(&far_disk, 0, 7).await);
    assert_eq!(first_byte(&far_disk, 0).await, 6);
    soon("releasing", near_fence.release(NEAR)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_after_the_other_over_one_connection() {
    let serving = serve(memory(), LunOptions::default(), 8);
    one_host_after_the_other(&serving.url(), 1, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_after_the_other_over_several_sessions() {
    let serving = serve(memory(), LunOptions::default(), 1);
    one_host_after_the_other(&serving.url(), 4, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_host_after_the_other_at_tgt() {
    let Some(tgt) = Tgt::start(64 << 20) else { return };
    one_host_after_the_other(&tgt.url().parse().unwrap(), 1, false).await;
}

/// The commands of whoever is preempted have ended when the other one has the unit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_the_preempted_lands_later() {
    let late = Arc::new(Late::new());
    let serving = serve(late.clone(), LunOptions::default(), 8);
    let (near, far) = (host(&serving.url(), 1), host(&serving.url(), 1));
    let (near_disk, near_fence) = open(&near).await;
    let (far_disk, far_fence) = open(&far).await;
    let (_third, watching) = open(&host(&serving.url(), 1)).await;
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    late.shut();
    let old = near_disk.write(0, Bytes::from(vec![1; LEN]), WriteFlags::NONE);
    soon("a write at the storage", late.until_pending(1)).await;
    let taking = tokio::spawn(far_fence.take(FAR).into_future());
    // The storage has it yet, so taking does not end; then it does, and nothing is left.
    soon("the reservation", async {
        while watching.holder().await.unwrap() != Some(FAR) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!taking.is_finished(), "a write of the other host can still land");
    late.open();
    soon("taking", taking).await.unwrap().unwrap();
    assert_eq!(late.pending(), 0);
    drop(old); // nobody answers what was aborted (TAS 0)
    write(&far_disk, 0, 2).await.unwrap();
    assert_eq!(first_byte(&far_disk, 0).await, 2);
    // Not of the range of a write that has no answer: that waits for it.
    assert_fenced(&write(&near_disk, 4 * LEN, 3).await);
    assert_eq!(first_byte(&far_disk, 0).await, 2);
}

/// A session that joins a disk is registered before it carries anything, and not where another host
/// has taken over: registering is open to everybody, to who was preempted, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_joins_later_has_the_rights_of_the_others_and_no_more() {
    let serving = serve(memory(), LunOptions::default(), 1);
    let (near, far) = (host(&serving.url(), 1), host(&serving.url(), 1));
    let (near_disk, near_fence) = open(&near).await;
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    near.disk().unwrap().set_policy(PolicyConfig::Fixed(4));
    soon("joining", async {
        while near.disk().unwrap().connections_open() < 4 {
            assert!(write_everywhere(&near_disk, 1).await.iter().all(Result::is_ok));
        }
    })
    .await;
    assert!(write_everywhere(&near_disk, 1).await.iter().all(Result::is_ok));

    let (far_disk, far_fence) = open(&far).await;
    soon("taking", far_fence.take(FAR)).await.unwrap();
    near.disk().unwrap().set_policy(PolicyConfig::Fixed(6));
    for _ in 0..20 {
        assert!(write_everywhere(&near_disk, 2).await.iter().all(Result::is_err));
    }
    assert_eq!(first_byte(&far_disk, 0).await, 1);
}

/// Where the target can keep reservations, they outlive it; a host that comes back has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reservation_outlives_the_power_of_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let (device, store) = (memory(), folder.path().join("lun0"));
    let options = || LunOptions::default().with_state(FileStore::new(store.clone()));
    let serving = serve(device.clone(), options(), 8);
    let near = settings(1);
    let first = RemoteLeg::new(serving.url(), near.clone());
    let (near_disk, near_fence) = open(&first).await;
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    write(&near_disk, 0, 1).await.unwrap();
    drop((near_disk, near_fence, first));
    serving.end().await;
    // Elsewhere: another test's children may have inherited the old address for a moment.
    let serving = serve(device, options(), 8);
    let far = host(&serving.url(), 1);
    let (far_disk, far_fence) = open(&far).await;
    assert_fenced(&write(&far_disk, 0, 2).await);
    assert_fenced(&soon("holding", far_fence.hold(FAR)).await);
    let again = RemoteLeg::new(serving.url(), near);
    let (near_disk, near_fence) = soon("its name", async {
        // The name is free when the last task of the old disk has been dropped.
        loop {
            if let Ok(OpenLeg { device, fence, .. }) = again.connect().await {
                break (device, fence.unwrap());
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    write(&near_disk, 0, 3).await.unwrap();
    soon("holding", near_fence.hold(NEAR)).await.unwrap();
    write(&near_disk, 0, 4).await.unwrap();
    assert_eq!(first_byte(&far_disk, 0).await, 4);
}

/// Whoever is no leg is told the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_no_leg_is_told_as_well() {
    let serving = serve(memory(), LunOptions::default(), 8);
    let disk: Device =
        Arc::new(RemoteDisk::connect(serving.url(), Config::default()).await.unwrap());
    write(&disk, 0, 1).await.unwrap();
    let (_leg, fence) = open(&host(&serving.url(), 1)).await;
    soon("holding", fence.hold(NEAR)).await.unwrap();
    assert_fenced(&write(&disk, 0, 2).await);
    assert_eq!(first_byte(&disk, 0).await, 1);
    soon("releasing", fence.release(NEAR)).await.unwrap();
    write(&disk, 0, 3).await.unwrap();
}
