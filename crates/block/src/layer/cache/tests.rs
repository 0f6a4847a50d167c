//! The cache as a whole: against the contract of a device, against a model over a device that
//! delays, fails and loses power, and under concurrency.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::backend::MemoryDevice;
use crate::layer::{Delay, DelayLayer, Delays, OpKind, Random, StatsLayer};
use crate::{BlockError, testing};

const BLOCK: u64 = 512;
const BLOCKS: u64 = 2048;

fn config(mode: CacheMode) -> CacheConfig {
    let config = CacheConfig::default().mode(mode).bytes_max(1 << 20);
    config.read_chunk_bytes(64 << 10).write_chunk_bytes(64 << 10)
}

fn memory() -> Device {
    Arc::new(MemoryDevice::new(1 << 20, 512).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_conforms() {
    for mode in [CacheMode::None, CacheMode::Read, CacheMode::WriteBack] {
        testing::conformance(&CacheLayer::new(memory(), config(mode))).await;
    }
}

#[test]
fn every_mode_is_an_array() {
    // Made before the model's own runtime, the layers work in this one.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    for mode in [CacheMode::Read, CacheMode::WriteBack] {
        testing::random_operations(|| CacheLayer::new(memory(), config(mode)));
    }
}

#[tokio::test]
async fn write_back_says_that_it_is_volatile() {
    assert!(!CacheLayer::new(memory(), config(CacheMode::Read)).info().volatile_cache);
    assert!(CacheLayer::new(memory(), config(CacheMode::WriteBack)).info().volatile_cache);
}

/// A disk whose operations take their time, may fail, and which forgets some of what was not
/// flushed when power is cut. A block holds its version in its first bytes.
struct Disk {
    info: DeviceInfo,
    state: Arc<Mutex<DiskState>>,
}

struct DiskState {
    random: Random,
    current: Vec<u64>,
    /// Versions since the last flush, older first; the first one is stable.
    volatile: BTreeMap<u64, Vec<u64>>,
    fail_per_cent: u64,
    cut: bool,
}

impl DiskState {
    fn put(&mut self, block: u64, version: u64) {
        let before = self.current[block as usize];
        self.volatile.entry(block).or_insert_with(|| vec![before]).push(version);
        self.current[block as usize] = version;
    }

    /// What is left after a power cut.
    fn cut(&mut self) -> Vec<u64> {
        self.cut = true;
        for (block, versions) in std::mem::take(&mut self.volatile) {
            let kept = self.random.below(versions.len() as u64) as usize;
            self.current[block as usize] = versions[kept];
        }
        self.current.clone()
    }
}

impl Disk {
    fn new(seed: u64, fail_per_cent: u64) -> Self {
        let mut info = DeviceInfo::new(BLOCKS * BLOCK, 512);
        info.can_fua = true;
        let current = vec![0; BLOCKS as usize];
        let volatile = BTreeMap::new();
        let random = Random(seed);
        let state = DiskState { random, current, volatile, fail_per_cent, cut: false };
        Self { info, state: Arc::new(Mutex::new(state)) }
    }

    /// Waits, may fail, and takes effect in between.
    fn operate<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut DiskState) -> T + Send + 'static,
        fails: bool,
    ) -> Io<T> {
        let (before, after, failing) = {
            let mut state = self.state.lock().unwrap();
            let per_cent = state.fail_per_cent;
            let failing = fails && state.random.below(100) < per_cent;
            (state.random.below(60), state.random.below(60), failing)
        };
        let state = self.state.clone();
        Io::later(async move {
            tokio::time::sleep(Duration::from_millis(before)).await;
            let result = {
                let mut state = state.lock().unwrap();
                let cut = state.cut;
                // Half of the failures have an effect that nobody is told of.
                let silent = failing && state.random.below(2) == 0;
                if cut || silent { None } else { Some(effect(&mut state)) }
            };
            tokio::time::sleep(Duration::from_millis(after)).await;
            result.filter(|_| !failing).ok_or_else(|| BlockError::Unreachable("gone".into()))
        })
    }
}

fn versions(data: &[u8]) -> Vec<u64> {
    let version = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
    data.chunks(BLOCK as usize).map(version).collect()
}

fn blocks(version: u64, count: u64) -> Bytes {
    let mut data = vec![0; (count * BLOCK) as usize];
    data.chunks_mut(BLOCK as usize).for_each(|b| b[..8].copy_from_slice(&version.to_le_bytes()));
    data.into()
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }
    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        let first = (offset / BLOCK) as usize;
        let read = move |state: &mut DiskState| {
            for (index, block) in buf.chunks_mut(BLOCK as usize).enumerate() {
                block.fill(0);
                block[..8].copy_from_slice(&state.current[first + index].to_le_bytes());
            }
            buf
        };
        self.operate(read, true)
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let write = move |state: &mut DiskState| {
            for (block, version) in (offset / BLOCK..).zip(versions(&data)) {
                state.put(block, version);
                if flags.fua {
                    state.volatile.remove(&block);
                }
            }
        };
        self.operate(write, true)
    }
    fn flush(&self) -> Io<()> {
        // Stable is what was complete at the call at least: all of it, here.
        self.operate(|state| state.volatile.clear(), false)
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.zero(offset, len, ZeroFlags::default())
    }
    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Io<()> {
        self.write(offset, blocks(0, len / BLOCK), WriteFlags::NONE)
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::ok(vec![Extent { offset, len, hole: false }])
    }
}

/// What each block may hold.
struct Model {
    /// As the cache shows it: several after a change that failed.
    now: Vec<Vec<u64>>,
    /// After a power cut: what was there at the last flush, and everything since.
    after_cut: Vec<Vec<u64>>,
}

impl Model {
    fn new() -> Self {
        Self { now: vec![vec![0]; BLOCKS as usize], after_cut: vec![vec![0]; BLOCKS as usize] }
    }

    fn change(&mut self, block: u64, count: u64, version: u64, done: bool, stable: bool) {
        for block in block as usize..(block + count) as usize {
            if done {
                self.now[block].clear();
            }
            self.now[block].push(version);
            if done && stable {
                self.after_cut[block].clear();
            }
            self.after_cut[block].push(version);
        }
    }
}

/// One client's random operations over `disk` until power is cut.
async fn run(seed: u64, fail_per_cent: u64, mode: CacheMode) {
    let disk = Disk::new(seed, fail_per_cent);
    let state = disk.state.clone();
    let cache = CacheLayer::new(Arc::new(disk), config(mode));
    let mut model = Model::new();
    let mut random = Random(seed ^ 0xcafe);
    let mut sequential = 0;
    for step in 1..=40 + random.below(80) {
        let longest = if random.below(8) == 0 { 300 } else { 24 };
        let count = 1 + random.below(longest);
        let mut block = random.below(BLOCKS - count);
        let (offset, len) = (block * BLOCK, count * BLOCK);
        match random.below(12) {
            0..=3 => {
                let fua = random.below(4) == 0;
                let result = cache.write(offset, blocks(step, count), WriteFlags { fua }).await;
                model.change(block, count, step, result.is_ok(), fua);
            }
            4 => {
                let result = cache.zero(offset, len, ZeroFlags::default()).await;
                model.change(block, count, 0, result.is_ok(), false);
            }
            5 => {
                let result = cache.trim(offset, len).await;
                model.change(block, count, 0, result.is_ok(), false);
            }
            6 => {
                if cache.flush().await.is_ok() {
                    model.after_cut.clone_from(&model.now);
                }
            }
            7 => tokio::time::sleep(Duration::from_millis(random.below(100))).await,
            kind => {
                if kind >= 9 {
                    (block, sequential) = (sequential, (sequential + count) % (BLOCKS - 600));
                }
                let buf = Buf::new(len as usize);
                if let Ok(buf) = cache.read(block * BLOCK, buf).await {
                    for (at, version) in (block..).zip(versions(&buf)) {
                        let allowed = &model.now[at as usize];
                        assert!(
                            allowed.contains(&version),
                            "seed {seed}, step {step}, block {at}: {version} is not of {allowed:?}"
                        );
                    }
                }
            }
        }
    }
    let left = state.lock().unwrap().cut();
    for (block, version) in left.into_iter().enumerate() {
        let allowed = &model.after_cut[block];
        assert!(
            allowed.contains(&version),
            "seed {seed}, block {block}: {version} is left, not one of {allowed:?}"
        );
    }
}

fn paused() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

#[test]
fn reads_are_the_latest_and_flushes_survive_a_power_cut() {
    for seed in 1..=400 {
        let mode = if seed % 4 == 0 { CacheMode::Read } else { CacheMode::WriteBack };
        paused().block_on(run(seed, 0, mode));
    }
}

#[test]
fn also_when_the_device_fails_now_and_then() {
    for seed in 1..=400 {
        let mode = if seed % 4 == 0 { CacheMode::Read } else { CacheMode::WriteBack };
        paused().block_on(run(seed, 5, mode));
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_reported_refuses_writes_and_is_kept() {
    let disk = Disk::new(1, 100);
    let state = disk.state.clone();
    let cache = CacheLayer::new(Arc::new(disk), config(CacheMode::WriteBack));
    cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    cache.write(0, blocks(2, 8), WriteFlags::NONE).await.unwrap_err();
    let back = cache.read(0, Buf::new(4096)).await.unwrap();
    assert_eq!(versions(&back), [1; 8]);
    cache.flush().await.unwrap_err();
    assert_eq!(cache.stats().dirty_bytes, 4096);
    state.lock().unwrap().fail_per_cent = 0;
    cache.flush().await.unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
    cache.write(0, blocks(3, 8), WriteFlags::NONE).await.unwrap();
    cache.close().await.unwrap();
    assert_eq!(state.lock().unwrap().cut()[..8], [3; 8]);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_a_second_attempt_cures_is_reported_once() {
    let disk = Disk::new(1, 100);
    let state = disk.state.clone();
    let cache = CacheLayer::new(Arc::new(disk), config(CacheMode::WriteBack));
    cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    state.lock().unwrap().fail_per_cent = 0;
    cache.flush().await.unwrap_err();
    cache.flush().await.unwrap();
    assert_eq!(state.lock().unwrap().cut()[..8], [1; 8]);
}

#[tokio::test(start_paused = true)]
async fn writers_without_room_hear_of_an_error() {
    let cache = CacheLayer::new(Arc::new(Disk::new(1, 100)), config(CacheMode::WriteBack));
    let writes = (0..32).map(|i| cache.write(i * 32768, blocks(1, 64), WriteFlags::NONE));
    let results = futures_util::future::join_all(writes).await;
    assert!(results.iter().any(Result::is_ok) && results.iter().any(Result::is_err));
}

#[test]
fn a_write_beside_a_zeroing_ends_the_same_here_and_on_the_device() {
    for seed in 1..=50 {
        paused().block_on(async {
            let disk = Disk::new(seed, 0);
            let state = disk.state.clone();
            let cache = CacheLayer::new(Arc::new(disk), config(CacheMode::WriteBack));
            let zeroing = tokio::spawn(cache.zero(0, 4096, ZeroFlags::default()));
            tokio::time::sleep(Duration::from_millis(1)).await;
            cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
            zeroing.await.unwrap().unwrap();
            let seen = versions(&cache.read(0, Buf::new(4096)).await.unwrap());
            cache.flush().await.unwrap();
            assert_eq!(state.lock().unwrap().current[..8], seen, "seed {seed}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_layer_still_writes_out() {
    let disk = Disk::new(1, 0);
    let state = disk.state.clone();
    let cache = CacheLayer::new(Arc::new(disk), config(CacheMode::WriteBack));
    cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
    drop(cache);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(state.lock().unwrap().cut()[..8], [1; 8]);
}

fn far(delay_ms: u64) -> Arc<StatsLayer> {
    let device: Device = Arc::new(MemoryDevice::new(256 << 20, 512).unwrap());
    let delays = Delays::all(Delay::Fixed(Duration::from_millis(delay_ms)));
    Arc::new(StatsLayer::new(Arc::new(DelayLayer::new(device, delays, 1))))
}

#[tokio::test(start_paused = true)]
async fn a_sequential_reader_waits_for_few_round_trips() {
    let cache = CacheLayer::new(far(50), CacheConfig::default());
    let start = tokio::time::Instant::now();
    for index in 0..1024 {
        cache.read(index * 131_072, Buf::new(131_072)).await.unwrap();
    }
    // 1024 round trips one by one; on a virtual clock this is no question of the machine's speed.
    let round_trips = start.elapsed().as_millis() / 50;
    assert!(round_trips < 32, "{round_trips} round trips");
}

#[tokio::test(start_paused = true)]
async fn random_reads_pass_as_they_are() {
    let below = far(1);
    let cache = CacheLayer::new(below.clone(), CacheConfig::default());
    let mut random = Random(3);
    for _ in 0..1000 {
        cache.read(random.below(65536) * 4096, Buf::new(4096)).await.unwrap();
    }
    assert_eq!(cache.stats().read_ahead_bytes, 0);
    assert_eq!(below.snapshot().of(OpKind::Read).bytes, 4096 * 1000);
}

#[tokio::test(start_paused = true)]
async fn small_sequential_writes_become_few_large_ones_in_bounded_memory() {
    let below = far(50);
    let config = CacheConfig::default().mode(CacheMode::WriteBack).bytes_max(16 << 20);
    let cache = CacheLayer::new(below.clone(), config);
    for index in 0..8192 {
        cache.write(index * 4096, blocks(index, 8), WriteFlags::NONE).await.unwrap();
        assert!(cache.stats().dirty_bytes <= 8 << 20);
    }
    cache.flush().await.unwrap();
    assert!(cache.stats().coalescing_ratio() >= 64.0, "{:?}", cache.stats());
    assert_eq!(below.snapshot().of(OpKind::Write).bytes, 32 << 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_share_chunks_do_not_disturb_each_other() {
    let delays = Delays::all(Delay::Uniform(Duration::ZERO, Duration::from_millis(2)));
    let below: Device = Arc::new(DelayLayer::new(memory(), delays, 1));
    let cache = Arc::new(CacheLayer::new(below.clone(), config(CacheMode::WriteBack)));
    let client = |client: u64| {
        let cache = cache.clone();
        async move {
            let mut mine = BTreeMap::new();
            let mut random = Random(client);
            for step in 1..=300 {
                let block = random.below(BLOCKS / 4) * 4 + client;
                let flags = WriteFlags { fua: random.below(16) == 0 };
                let version = step << 8 | client;
                cache.write(block * BLOCK, blocks(version, 1), flags).await.unwrap();
                mine.insert(block, version);
                if random.below(20) == 0 {
                    cache.flush().await.unwrap();
                }
                let first = random.below(BLOCKS - 64);
                let buf = cache.read(first * BLOCK, Buf::new(64 * 512)).await.unwrap();
                for (block, version) in (first..).zip(versions(&buf)) {
                    if block % 4 == client {
                        assert_eq!(mine.get(&block).copied().unwrap_or(0), version);
                    }
                }
            }
            mine
        }
    };
    let clients: Vec<_> = (0..4).map(|number| tokio::spawn(client(number))).collect();
    let mut all = BTreeMap::new();
    for client in clients {
        all.extend(client.await.unwrap());
    }
    cache.close().await.unwrap();
    let buf = below.read(0, Buf::new(1 << 20)).await.unwrap();
    for (block, version) in (0..).zip(versions(&buf)) {
        assert_eq!(all.get(&block).copied().unwrap_or(0), version, "block {block}");
    }
}
