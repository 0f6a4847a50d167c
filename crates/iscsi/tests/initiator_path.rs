//! The number of connections changes while data flows: connections of one session, and sessions of
//! one connection each. What is written and read meanwhile is compared byte by byte, no operation
//! fails, and the disk's sessions are never set up again.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::backend::MemoryDevice;
use block::layer::delay::{Delay, DelayLayer, Delays};
use block::{BlockDevice, Buf, Bytes, Device, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk, Share, Url};
use iscsi::target::{Server, ServerConfig};
use path::PolicyConfig;
use scsi::{LunOptions, Target, TargetConfig};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

const IQN: &str = "iqn.2026-11.org.example:path";
/// Bytes that each of the workers has for itself, and of one operation.
const AREA: u64 = 1 << 20;
const LEN: usize = 64 << 10;
const WORKERS: u64 = 16;
/// Limit of every wait: whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A target for the length of a test.
struct Serving {
    url: Url,
    _stop: oneshot::Sender<()>,
}

fn serve(change: impl FnOnce(&mut ServerConfig)) -> Serving {
    serve_device(Arc::new(MemoryDevice::new(WORKERS * AREA, 512).unwrap()), change)
}

fn serve_device(device: Device, change: impl FnOnce(&mut ServerConfig)) -> Serving {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let mut config = ServerConfig::new(IQN).unwrap();
    config.offer.session.default_time2wait = 0;
    change(&mut config);
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let url = format!("iscsi://{}/{IQN}/0", server.local_addrs()[0]).parse().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(async { drop(stopped.await) }));
    Serving { url, _stop: stop }
}

/// Writes and reads back until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    workers: JoinSet<()>,
}

impl Load {
    fn start(disk: &RemoteDisk) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let (disk, stop, rounds) = (disk.clone(), stop.clone(), rounds.clone());
            workers.spawn(async move {
                for round in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let at = worker * AREA + (round % (AREA / LEN as u64)) * LEN as u64;
                    let data = Bytes::from(vec![(worker * 31 + round) as u8; LEN]);
                    disk.write(at, data.clone(), WriteFlags::NONE).await.unwrap();
                    if round % 16 == 0 {
                        disk.flush().await.unwrap();
                    }
                    let back = disk.read(at, Buf::new(LEN)).await.unwrap();
                    assert!(back[..] == data[..], "worker {worker}, round {round}");
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { stop, rounds, workers }
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(worker) = self.workers.join_next().await {
            worker.unwrap();
        }
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Goes through these numbers of connections under load, with some traffic at each.
async fn change_number(disk: &RemoteDisk, numbers: &[u32]) {
    let load = Load::start(disk);
    for number in numbers {
        disk.set_policy(PolicyConfig::Fixed(*number));
        until(&format!("{number} connections"), || {
            let path = disk.path();
            path.connections_open == *number && path.connections.len() == *number as usize
        })
        .await;
        let before = load.rounds.load(Ordering::Relaxed);
        until("traffic", || load.rounds.load(Ordering::Relaxed) >= before + 50).await;
    }
    load.end().await;
    assert_eq!(disk.incarnations(), 1, "the sessions were set up again");
}

fn adaptive() -> Config {
    Config::default().policy(PolicyConfig::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_a_session_come_and_go_under_load() {
    for level in [0, 2] {
        let serving = serve(|config| config.offer.session.error_recovery_level = level);
        let config = adaptive().error_recovery_level(level);
        let disk = RemoteDisk::connect(serving.url.clone(), config).await.unwrap();
        change_number(&disk, &[9, 1, 16, 2, 64, 3]).await;
        let sessions = disk.sessions();
        assert_eq!(sessions.len(), 1);
        drop(sessions);
        let path = disk.path();
        let wanted: Vec<u32> = path.changes.iter().map(|change| change.wanted).collect();
        assert!(wanted.ends_with(&[3, 3]) || wanted.ends_with(&[3]), "{wanted:?}");
        let changes = path.changes.iter();
        assert!(changes.clone().any(|c| c.why == "connections were opened"), "{path:?}");
        assert!(changes.clone().any(|c| c.why == "connections were closed"), "{path:?}");
        assert!(!changes.clone().any(|c| c.why == "connections were lost"), "{path:?}");
        disk.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_come_and_go_where_each_may_have_one_connection() {
    let serving = serve(|config| config.offer.session.max_connections = 1);
    let disk = RemoteDisk::connect(serving.url.clone(), adaptive()).await.unwrap();
    assert_eq!(disk.sessions().len(), 4);
    change_number(&disk, &[7, 1, 12, 2]).await;
    until("2 sessions", || disk.sessions().len() == 2).await;
    disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_grants_fewer_connections_caps_the_number_and_it_is_told() {
    let serving = serve(|config| config.offer.session.max_connections = 3);
    let disk = RemoteDisk::connect(serving.url.clone(), adaptive()).await.unwrap();
    let load = Load::start(&disk);
    disk.set_policy(PolicyConfig::Fixed(8));
    until("3 connections and the reason", || {
        let path = disk.path();
        path.connections_open == 3
            && path.ceiling.as_deref() == Some("the target grants MaxConnections=3")
    })
    .await;
    load.end().await;
    assert_eq!(disk.incarnations(), 1);
}

/// Those that take no more commands, but have some to end, are connections to the target still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_wait_for_those_that_leave_where_no_more_are_granted() {
    let read = Delay::Fixed(Duration::from_millis(400));
    let device = Arc::new(MemoryDevice::new(WORKERS * AREA, 512).unwrap());
    let slow = DelayLayer::new(device, Delays { read, ..Delays::default() }, 1);
    let serving = serve_device(Arc::new(slow), |config| config.offer.session.max_connections = 8);
    let config = adaptive().policy(PolicyConfig::Fixed(8));
    let disk = RemoteDisk::connect(serving.url.clone(), config).await.unwrap();
    let load = Load::start(&disk);
    for number in [8, 2, 8, 3, 8] {
        disk.set_policy(PolicyConfig::Fixed(number));
        until(&format!("{number} connections"), || {
            let path = disk.path();
            assert_eq!(path.ceiling, None, "{number}");
            path.connections_open == number
        })
        .await;
    }
    load.end().await;
    assert_eq!(disk.incarnations(), 1, "the sessions were set up again");
    disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_refuses_logins_caps_the_number_without_an_error() {
    let serving = serve(|config| {
        config.offer.session.max_connections = 1;
        config.limits.sessions_per_initiator_max = 3;
    });
    let disk = RemoteDisk::connect(serving.url.clone(), adaptive()).await.unwrap();
    let load = Load::start(&disk);
    disk.set_policy(PolicyConfig::Fixed(8));
    until("3 sessions and the reason", || {
        let path = disk.path();
        path.connections_open == 3 && path.ceiling.is_some()
    })
    .await;
    let reason = disk.path().ceiling.unwrap();
    assert!(reason.contains("refused the login"), "{reason}");
    load.end().await;
    assert_eq!(disk.incarnations(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_is_kept_whatever_the_number_of_connections() {
    let serving = serve(|_| {});
    let rate = 8e6;
    let config = adaptive().share(Some(Share::Rate(rate)));
    let disk = RemoteDisk::connect(serving.url.clone(), config).await.unwrap();
    until("the first sample", || disk.path().max_rate == Some(rate)).await;
    let begin = Instant::now();
    let reads: Vec<JoinHandle<()>> = (0..16)
        .map(|n| {
            let disk = disk.clone();
            tokio::spawn(async move {
                drop(disk.read(n * AREA, Buf::new(AREA as usize)).await.unwrap());
            })
        })
        .collect();
    for read in reads {
        read.await.unwrap();
    }
    let seconds = begin.elapsed().as_secs_f64();
    // The last megabyte is asked for when its turn comes and arrives at once.
    let least = (15 * AREA) as f64 / rate - 0.05;
    assert!(seconds > least, "{seconds} s instead of {least}");
    assert_eq!(disk.path().connections_open, 4, "nothing was to be gained");
}
