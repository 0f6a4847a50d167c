//! Commands handed out evenly: as many workers as connections, one command each, and no connection
//! ever has two, however unequal the connections are; by expected completion, one that is quick
//! gets a second one instead.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use block::backend::MemoryDevice;
use block::layer::{Delay, DelayLayer, Delays, Queueing};
use block::{BlockDevice, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use iscsi::initiator::{Config, RemoteDisk, Url};
use iscsi::target::{Server, ServerConfig};
use path::PolicyConfig;
use scsi::{LunOptions, Target, TargetConfig};
use tokio::sync::oneshot;
use tokio::task::{self, JoinSet};

const IQN: &str = "iqn.2026-11.org.example:hand-out";
const CONNECTIONS: u16 = 4;
const LEN: usize = 64 << 10;
/// Reads of each worker: seconds on the slow connection, so that the path controller judges often.
const READS: u64 = 40;
/// Limit of the whole test: whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A disk that takes ten times as long for the connection that asked first.
struct Unequal {
    slow: DelayLayer,
    quick: DelayLayer,
    first: Mutex<Option<task::Id>>,
}

impl BlockDevice for Unequal {
    fn info(&self) -> DeviceInfo {
        self.quick.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let caller = task::id(); // each connection is a task
        let first = *self.first.lock().unwrap().get_or_insert(caller);
        let disk = if first == caller { &self.slow } else { &self.quick };
        disk.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.quick.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        self.quick.flush()
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.quick.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.quick.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.quick.extents(offset, len)
    }
}

fn serve() -> (Url, oneshot::Sender<()>) {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let layer = |ms| {
        let delays = Delays { read: Delay::Fixed(Duration::from_millis(ms)), ..Delays::default() };
        DelayLayer::new(memory.clone(), delays, 1).with_queueing(Queueing::PerCaller)
    };
    let device = Unequal { slow: layer(100), quick: layer(10), first: Mutex::default() };
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, Arc::new(device), LunOptions::default()).unwrap();
    let config = ServerConfig::new(IQN).unwrap();
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let url = format!("iscsi://{}/{IQN}/0", server.local_addrs()[0]).parse().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(async { drop(stopped.await) }));
    (url, stop)
}

/// The most commands that a connection ever had, as often as one may look.
async fn most_under_way(evenly: bool) -> u32 {
    let (url, _stop) = serve();
    let mut config = Config::default().policy(PolicyConfig::Fixed(CONNECTIONS.into()));
    config.hand_out_evenly = evenly;
    let disk = RemoteDisk::connect(url, config).await.unwrap();
    let begin = Instant::now();
    while disk.connections_open() < usize::from(CONNECTIONS) {
        assert!(begin.elapsed() < PATIENCE, "{} connections", disk.connections_open());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let watching = {
        let (disk, stop) = (disk.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut most = 0;
            while !stop.load(Ordering::Relaxed) {
                let sessions = disk.sessions();
                let connections = sessions.iter().flat_map(|session| &session.connections);
                most = connections.map(|each| each.in_flight).fold(most, u32::max);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            most
        })
    };
    let mut workers = JoinSet::new();
    for worker in 0..u64::from(CONNECTIONS) {
        let disk = disk.clone();
        workers.spawn(async move {
            for _ in 0..READS {
                disk.read(worker * LEN as u64, Buf::new(LEN)).await.unwrap();
            }
        });
    }
    tokio::time::timeout(PATIENCE, workers.join_all()).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let most = watching.await.unwrap();
    disk.close().await.unwrap();
    most
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_commands_as_connections_are_one_on_each() {
    assert_eq!(most_under_way(true).await, 1);
    assert!(most_under_way(false).await > 1, "this test could not tell");
}
