//! The cache as a whole: against the contract of a device, and each promise by itself. `seeds`
//! holds all of them against a model at once.

mod disk;
mod history;
mod seeds;

use std::collections::BTreeMap;
use std::time::Duration;

use super::shared::PERMIT_BYTES;
use super::*;
use crate::backend::MemoryDevice;
use crate::layer::{Delay, DelayLayer, Delays, OpKind, Random, StatsLayer};
use crate::{BlockError, testing};
use disk::{BLOCK, BLOCKS, Disk, blocks, versions};

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

fn paused() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
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

/// A device without space until some of it is trimmed.
struct Full(MemoryDevice, std::sync::atomic::AtomicBool);

impl BlockDevice for Full {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        match self.1.load(std::sync::atomic::Ordering::SeqCst) {
            true => Io::err(BlockError::NoSpace),
            false => self.0.write(offset, data, flags),
        }
    }
    fn flush(&self) -> Io<()> {
        self.0.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.1.store(false, std::sync::atomic::Ordering::SeqCst);
        self.0.trim(offset, len)
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.0.zero(offset, len, flags)
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.0.extents(offset, len)
    }
}

/// A full device: a trim gets space back, and the flush after it still says what had failed.
#[tokio::test(start_paused = true)]
async fn a_trim_frees_space_past_an_error_that_is_still_reported() {
    let memory = MemoryDevice::new(1 << 20, 512).unwrap();
    let full = Arc::new(Full(memory, true.into()));
    let cache = CacheLayer::new(full.clone(), config(CacheMode::WriteBack));
    // The middle of what has failed is trimmed, its ends stay acknowledged writes.
    cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(matches!(cache.flush().await, Err(BlockError::NoSpace)));
    cache.trim(2 * BLOCK, 4 * BLOCK).await.unwrap();
    let expected = [1, 1, 0, 0, 0, 0, 1, 1];
    let seen = versions(&cache.read(0, Buf::new(4096)).await.unwrap());
    assert_eq!(seen, expected);
    assert_eq!(cache.stats().dirty_bytes, 4 * BLOCK);
    cache.flush().await.unwrap(); // it was reported above, and has gone well this time
    assert_eq!(versions(&full.read(0, Buf::new(4096)).await.unwrap()), expected);

    full.1.store(true, std::sync::atomic::Ordering::SeqCst);
    cache.write(65536, blocks(2, 8), WriteFlags::NONE).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    cache.trim(65536, 4096).await.unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
    assert!(matches!(cache.flush().await, Err(BlockError::NoSpace)), "nobody heard of it");
    cache.flush().await.unwrap();
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

/// Part of the reads that were answered from memory, in per cent.
fn hit_per_cent(stats: &CacheStats) -> u64 {
    stats.hits * 100 / (stats.hits + stats.misses)
}

#[tokio::test(start_paused = true)]
async fn interleaved_readers_are_all_read_ahead_of() {
    let cache = CacheLayer::new(far(50), CacheConfig::default());
    for step in 0..400u64 {
        for reader in 0..4 {
            let at = reader * (64 << 20) + step * 65536;
            cache.read(at, Buf::new(65536)).await.unwrap();
        }
        // Backwards, too.
        cache.read((255 << 20) - step * 4096, Buf::new(4096)).await.unwrap();
    }
    let stats = cache.stats();
    assert!(hit_per_cent(&stats) >= 98, "{stats:?}");
    assert_eq!(stats.streams, 5);
}

#[tokio::test(start_paused = true)]
async fn a_strided_reader_is_read_ahead_of() {
    let cache = CacheLayer::new(far(50), CacheConfig::default());
    let start = tokio::time::Instant::now();
    for step in 0..1000u64 {
        cache.read(step * 65536, Buf::new(8192)).await.unwrap();
    }
    let (stats, round_trips) = (cache.stats(), start.elapsed().as_millis() / 50);
    assert!(hit_per_cent(&stats) >= 98 && round_trips < 50, "{round_trips}, {stats:?}");
}

#[tokio::test(start_paused = true)]
async fn random_reads_in_a_small_place_waste_little() {
    let cache = CacheLayer::new(far(1), CacheConfig::default());
    let mut random = Random(3);
    for _ in 0..20_000 {
        cache.read(random.below(4096) * 4096, Buf::new(4096)).await.unwrap();
    }
    // Runs come up by chance, and then the place is soon in memory: that may be, for less than what
    // was asked for.
    let stats = cache.stats();
    assert!(stats.read_ahead_bytes <= 20_000 * 4096, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn short_runs_waste_at_most_what_their_windows_allow() {
    let cache = CacheLayer::new(far(1), CacheConfig::default());
    let mut random = Random(5);
    for _ in 0..100 {
        let start = random.below(2000) * 131_072;
        for step in 0..8 {
            cache.read(start + step * 4096, Buf::new(4096)).await.unwrap();
        }
    }
    // The smallest window is two chunks, and a third is touched.
    let stats = cache.stats();
    assert!(stats.read_ahead_bytes <= 100 * 3 * (256 << 10), "{stats:?}");
    // Pairs of long ones: what the first four eager windows cost.
    let cache = CacheLayer::new(far(1), CacheConfig::default());
    for pair in 0..30u64 {
        for step in 0..2 {
            let at = (pair * 7 % 30 * 8 + step) << 20;
            cache.read(at, Buf::new(1 << 20)).await.unwrap();
        }
    }
    let stats = cache.stats();
    assert_eq!(stats.read_ahead_bytes, 4 * (2 << 20), "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_memory_and_is_counted() {
    let config = CacheConfig::default().mode(CacheMode::WriteBack).bytes_max(4 << 20);
    let cache = CacheLayer::new(far(50), config);
    let writes = (0..64).map(|n| cache.write(n << 17, blocks(n, 256), WriteFlags::NONE));
    let all = futures_util::future::join_all(writes);
    tokio::pin!(all);
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut all).await.is_err());
    let stats = cache.stats();
    assert_eq!((stats.dirty_bytes, stats.writes_waited), (2 << 20, 48));
    assert!(all.await.iter().all(Result::is_ok));
    cache.flush().await.unwrap();
    let stats = cache.stats();
    assert_eq!((stats.dirty_bytes, stats.flushes), (0, 1));
    assert!(stats.flush_wait_us >= 50_000, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn forced_writes_reach_the_device_as_such() {
    let below = far(50);
    let cache = CacheLayer::new(below.clone(), CacheConfig::default().mode(CacheMode::WriteBack));
    cache.write(0, blocks(1, 8), WriteFlags::NONE).await.unwrap();
    cache.write(0, blocks(2, 8), WriteFlags::FUA).await.unwrap();
    assert_eq!(below.snapshot().of(OpKind::Write).operations, 2);
    assert_eq!(cache.stats().dirty_bytes, 0);
    let below_now = versions(&below.read(0, Buf::new(4096)).await.unwrap());
    assert_eq!(below_now, [2; 8]);
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

/// Three reads in a row at random places look like a stream each time, and none is one.
#[tokio::test(start_paused = true)]
async fn random_io_that_looks_like_streams_does_not_fill_the_line() {
    const READ_MAX: u64 = 4 << 20;
    const SIZE: u64 = 1 << 30;
    let memory = MemoryDevice::new(SIZE, 512).unwrap();
    let config = config(CacheMode::Read).bytes_max(READ_MAX);
    let cache = CacheLayer::new(Arc::new(memory), config);
    let mut random = Random(1);
    let rounds = 2000;
    for _ in 0..rounds {
        let at = random.below(SIZE / 8192 - 3) * 8192;
        for step in 0..3 {
            cache.read(at + step * 8192, Buf::new(8192)).await.unwrap();
        }
    }
    let (stats, asked_for) = (cache.stats(), rounds * 3 * 8192);
    assert!(stats.read_ahead_bytes <= READ_MAX + asked_for / 10, "{stats:?}");
    // A stream among it is found as before.
    for step in 0..2048 {
        cache.read(step * 65536, Buf::new(65536)).await.unwrap();
    }
    let used = cache.stats().read_ahead_used_bytes - stats.read_ahead_used_bytes;
    assert!(used > 2048 * 65536 / 4 * 3, "{used} of {}", 2048 * 65536);
}
