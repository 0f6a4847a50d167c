//! Power cuts with all of the product in between: target server and `RemoteDisk` over loopback, in
//! half of the runs with a write-back cache above. Users write, force, zero, trim and flush; at one
//! operation of the disk after the other the power is cut, and the target starts again, at the same
//! address, from an image that the log of the disk allows. The users go on as if nothing were, and
//! after a flush everything that was acknowledged is there.
//!
//! Fewer images than in `power_cut`, which has no sockets: `ENKAKU_POWER_CUT_ROUNDS` says how many
//! for each of the two, 300 by default.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

#[path = "power_cut/oracle.rs"]
#[allow(dead_code, unreachable_pub)]
mod oracle;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use block::backend::MemoryDevice;
use block::layer::{CacheConfig, CacheLayer, CacheMode, Log, LogLayer};
use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::target::{Server, ServerConfig};
use oracle::{Oracle, SECTOR, SECTORS, filled};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

const IQN: &str = "iqn.2026-11.org.example:cut";
const ROUNDS: u64 = 300;
/// Users at once.
const USERS: u64 = 4;
/// Operations of the disk between two cuts, at most.
const OPERATIONS_MAX: u64 = 40;
/// Nothing takes as long, on a busy machine either.
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk with a volatile cache, until its power is cut: then nothing comes back from it.
struct Powered {
    logged: LogLayer,
    off: RwLock<bool>,
    /// Operations left before the cut.
    left: AtomicU64,
    is_off: Notify,
}

impl Powered {
    fn new(image: &[u8], operations: u64) -> Self {
        let memory = MemoryDevice::new(SECTORS * SECTOR, 512).unwrap();
        let stored = memory.write(0, Bytes::copy_from_slice(image), WriteFlags::NONE);
        assert!(matches!(stored.try_ready(), Ok(Ok(()))));
        let logged = LogLayer::new(Arc::new(memory));
        let left = AtomicU64::new(operations);
        Self { logged, off: RwLock::new(false), left, is_off: Notify::new() }
    }

    /// Operations of the memory end at once, so none is under way once the power is off.
    fn operate<T: 'static>(
        &self,
        counts: bool,
        operation: impl FnOnce(&LogLayer) -> Io<T>,
    ) -> Io<T> {
        if counts
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_err()
        {
            *self.off.write().unwrap() = true;
            self.is_off.notify_one();
        }
        let off = self.off.read().unwrap();
        if *off { Io::Later(Box::pin(std::future::pending())) } else { operation(&self.logged) }
    }
}

impl BlockDevice for Powered {
    fn info(&self) -> DeviceInfo {
        let mut info = self.logged.info();
        info.volatile_cache = true;
        info
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.operate(false, |device| device.read(offset, buf))
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.operate(true, |device| device.write(offset, data, flags))
    }
    fn flush(&self) -> Io<()> {
        self.operate(true, |device| device.flush())
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.operate(true, |device| device.trim(offset, len))
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.operate(true, |device| device.zero(offset, len, flags))
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.operate(false, |device| device.extents(offset, len))
    }
}

/// A target in a runtime of its own, which takes everything with it when it ends.
struct Life {
    runtime: Option<Runtime>,
    disk: Arc<Powered>,
    log: Log,
    before: Vec<u8>,
    address: SocketAddr,
}

impl Life {
    async fn start(before: Vec<u8>, address: SocketAddr, operations: u64) -> Self {
        let disk = Arc::new(Powered::new(&before, operations));
        let log = disk.logged.log();
        let scsi = Target::new(TargetConfig::new(IQN));
        scsi.add_lun(0, disk.clone(), LunOptions::default()).unwrap();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let start = Instant::now();
        // The address is free when the last one of the life before has let it go.
        let server = loop {
            let bound = {
                let _entered = runtime.enter();
                Server::bind(ServerConfig::new(IQN).unwrap(), scsi.clone(), &[address])
            };
            match bound {
                Ok(server) => break server,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{address}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let address = server.local_addrs()[0];
        runtime.spawn(server.run(std::future::pending()));
        Self { runtime: Some(runtime), disk, log, before, address }
    }

    /// Waits for the cut; gives what is left on the disk.
    async fn end(mut self, seed: u64) -> Vec<u8> {
        let cut = tokio::time::timeout(PATIENCE, self.disk.is_off.notified());
        cut.await.expect("the power is never cut: the users stand still");
        let cut = self.log.cut(self.log.moments(), SECTOR);
        let choices = cut.choose(8, seed);
        let mut image = self.before.clone();
        cut.image(choices[(seed % choices.len() as u64) as usize], &mut image);
        self.runtime.take().unwrap().shutdown_background();
        image
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

struct Users {
    disk: Device,
    oracle: Mutex<Oracle>,
    next: AtomicU32,
    stop: AtomicBool,
}

impl Users {
    async fn work(self: Arc<Self>, seed: u64) {
        let mut random = Random(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let sector = random.below(SECTORS);
            let count = (1 + random.below(4)).min(SECTORS - sector);
            let (offset, len) = (sector * SECTOR, count * SECTOR);
            let begin = |content, replaces| {
                self.oracle.lock().unwrap().begin(number, (sector, count), content, replaces);
            };
            let operation = match random.below(10) {
                0..6 => {
                    begin(number, true);
                    let fua = random.below(4) == 0;
                    let flags = if fua { WriteFlags::FUA } else { WriteFlags::NONE };
                    self.disk.write(offset, filled(number, count).into(), flags)
                }
                6 | 7 => {
                    begin(0, true);
                    let flags = ZeroFlags::new(random.below(2) == 0, random.below(2) == 0);
                    self.disk.zero(offset, len, flags)
                }
                8 => {
                    begin(0, false);
                    self.disk.trim(offset, len)
                }
                _ => self.disk.flush(),
            };
            tokio::time::timeout(PATIENCE, operation).await.expect("hangs").unwrap();
            self.oracle.lock().unwrap().acknowledge(number);
        }
    }

    async fn read(&self) -> Vec<u8> {
        let read = self.disk.read(0, Buf::new((SECTORS * SECTOR) as usize));
        tokio::time::timeout(PATIENCE, read).await.expect("a read hangs").unwrap().to_vec()
    }
}

async fn cuts(with_cache: bool) {
    let rounds = std::env::var("ENKAKU_POWER_CUT_ROUNDS").map_or(ROUNDS, |n| n.parse().unwrap());
    let start = Instant::now();
    let mut random = Random(1 + u64::from(with_cache));
    let empty = vec![0; (SECTORS * SECTOR) as usize];
    let any = "127.0.0.1:0".parse().unwrap();
    let mut life = Life::start(empty, any, random.below(OPERATIONS_MAX)).await;
    let url = format!("iscsi://{}/{IQN}/0", life.address).parse().unwrap();
    let mut disk: Device = Arc::new(RemoteDisk::connect(url, Config::default()).await.unwrap());
    if with_cache {
        disk = Arc::new(CacheLayer::new(disk, CacheConfig::default().mode(CacheMode::WriteBack)));
    }
    let (oracle, next) = (Mutex::default(), AtomicU32::new(1));
    let users = Arc::new(Users { disk, oracle, next, stop: AtomicBool::new(false) });
    for round in 0..rounds {
        users.stop.store(false, Ordering::Relaxed);
        let working: Vec<_> =
            (0..USERS).map(|user| tokio::spawn(users.clone().work(round << 8 | user))).collect();
        let address = life.address;
        let left = life.end(random.below(1 << 40)).await;
        users.oracle.lock().unwrap().check(&left, false).unwrap();
        users.stop.store(true, Ordering::Relaxed);
        // It may also be cut again while it is written again.
        let operations = random.below(OPERATIONS_MAX);
        life = Life::start(left, address, operations).await;
        let mut flushed = Box::pin(async {
            for user in working {
                user.await.unwrap();
            }
            users.disk.flush().await.unwrap();
        });
        loop {
            tokio::select! {
                () = &mut flushed => break,
                () = life.disk.is_off.notified() => {
                    life.disk.is_off.notify_one();
                    let left = life.end(random.below(1 << 40)).await;
                    users.oracle.lock().unwrap().check(&left, false).unwrap();
                    life = Life::start(left, address, OPERATIONS_MAX).await;
                }
            }
        }
        drop(flushed);
        let read = users.read().await;
        let checked = users.oracle.lock().unwrap().check(&read, true);
        checked.unwrap_or_else(|why| panic!("round {round}, cache: {with_cache}: {why}"));
    }
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{rounds} power cuts and more, write-back cache: {with_cache}, {seconds:.1} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_outlives_power_cuts_of_the_target() {
    cuts(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_write_back_cache_has_flushed_outlives_them_too() {
    cuts(true).await;
}
