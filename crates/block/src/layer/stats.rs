//! [`StatsLayer`]: counts operations, bytes, errors and latencies. Costs two clock reads and a few
//! atomic additions per operation, and no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::OpKind;
use crate::{
    BlockDevice, BlockError, Buf, Compared, Device, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};

/// Histogram buckets per doubling of the latency: an error of at most 25 %.
const BUCKETS_PER_DOUBLING: u64 = 4;
/// Up to 2⁴⁰ ns (18 minutes); what is longer counts there.
const BUCKETS: usize = 40 * BUCKETS_PER_DOUBLING as usize;

#[derive(Default)]
struct Counters {
    operations: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_ns: AtomicU64,
    latency_max_ns: AtomicU64,
    histogram: Histogram,
}

struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

/// Bucket of a latency: its highest bit and the two bits below.
fn bucket(ns: u64) -> usize {
    if ns < BUCKETS_PER_DOUBLING {
        return ns as usize;
    }
    let doubling = u64::from(ns.ilog2());
    let fraction = (ns >> (doubling - 2)) & (BUCKETS_PER_DOUBLING - 1);
    (((doubling - 1) * BUCKETS_PER_DOUBLING + fraction) as usize).min(BUCKETS - 1)
}

/// Largest latency that falls into a bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < BUCKETS_PER_DOUBLING {
        return bucket;
    }
    let doubling = bucket / BUCKETS_PER_DOUBLING + 1;
    let fraction = bucket % BUCKETS_PER_DOUBLING + BUCKETS_PER_DOUBLING;
    ((fraction + 1) << (doubling - 2)) - 1
}

/// What the operations of one kind came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpStats {
    /// Operations finished, well or badly. Abandoned ones do not count.
    pub operations: u64,
    /// Those that failed.
    pub errors: u64,
    /// Bytes of those that did not fail.
    pub bytes: u64,
    /// Sum of all latencies.
    pub latency_total: Duration,
    /// Longest latency.
    pub latency_max: Duration,
    histogram: Vec<u64>,
}

impl OpStats {
    /// Latency that `fraction` (0 to 1) of the operations did not exceed, rounded up by at most a
    /// quarter. Zero without operations.
    pub fn latency_quantile(&self, fraction: f64) -> Duration {
        let total: u64 = self.histogram.iter().sum();
        let wanted = ((total as f64 * fraction).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        for (index, count) in self.histogram.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(bucket_end_ns(index)).min(self.latency_max);
            }
        }
        Duration::ZERO
    }
}

impl OpStats {
    /// How many operations took no longer than each of `bounds`, which ascend. A latency is known
    /// to a quarter, rounded up.
    pub fn cumulative(&self, bounds: &[Duration]) -> Vec<u64> {
        let mut buckets = self.histogram.iter().enumerate().peekable();
        let mut seen = 0;
        let up_to = |bound: &Duration| {
            let ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
            while let Some((_, count)) = buckets.next_if(|(index, _)| bucket_end_ns(*index) <= ns) {
                seen += count;
            }
            seen
        };
        bounds.iter().map(up_to).collect()
    }
}

/// A copy of the counters at one moment, by kind of operation. Kinds are read one after the other,
/// not at the same instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats([OpStats; OpKind::ALL.len()]);

impl Stats {
    /// Those of one kind.
    pub fn of(&self, kind: OpKind) -> &OpStats {
        &self.0[kind as usize]
    }
}

/// A device whose operations are counted.
pub struct StatsLayer {
    device: Device,
    counters: Arc<[Counters; OpKind::ALL.len()]>,
    /// The last operation failed for the storage's own reasons.
    failing: Arc<AtomicBool>,
}

impl StatsLayer {
    /// Starts counting at zero.
    pub fn new(device: Device) -> Self {
        Self { device, counters: Arc::default(), failing: Arc::default() }
    }

    /// The counters as of now.
    pub fn snapshot(&self) -> Stats {
        Stats(OpKind::ALL.map(|kind| {
            let counters = &self.counters[kind as usize];
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            OpStats {
                operations: load(&counters.operations),
                errors: load(&counters.errors),
                bytes: load(&counters.bytes),
                latency_total: Duration::from_nanos(load(&counters.latency_ns)),
                latency_max: Duration::from_nanos(load(&counters.latency_max_ns)),
                histogram: counters.histogram.0.iter().map(load).collect(),
            }
        }))
    }

    /// The last operation that ended failed because of the medium or the way there, not because of
    /// what was asked.
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    fn observe<T: Send + Unpin + 'static>(
        &self,
        kind: OpKind,
        bytes: u64,
        operation: impl FnOnce(&Device) -> Io<T>,
    ) -> Io<T> {
        let start = Instant::now();
        match operation(&self.device).try_ready() {
            Ok(result) => {
                self.counters[kind as usize].record(start, bytes, &result);
                note(&self.failing, &result);
                Io::done(result)
            }
            Err(io) => {
                let (counters, failing) = (self.counters.clone(), self.failing.clone());
                Io::later(async move {
                    let result = io.await;
                    counters[kind as usize].record(start, bytes, &result);
                    note(&failing, &result);
                    result
                })
            }
        }
    }
}

/// Remembers how the storage does. It is written to only when that changes.
fn note<T>(failing: &AtomicBool, result: &Result<T>) {
    let bad = match result {
        Ok(_) => false,
        Err(BlockError::Medium(_) | BlockError::Fenced | BlockError::Unreachable(_)) => true,
        Err(_) => return,
    };
    if failing.load(Ordering::Relaxed) != bad {
        failing.store(bad, Ordering::Relaxed);
    }
}

impl Counters {
    fn record<T>(&self, start: Instant, bytes: u64, result: &Result<T>) {
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.latency_ns.fetch_add(ns, Ordering::Relaxed);
        self.latency_max_ns.fetch_max(ns, Ordering::Relaxed);
        self.histogram.0[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(_) => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.errors.fetch_add(1, Ordering::Relaxed),
        };
    }
}

impl BlockDevice for StatsLayer {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let bytes = buf.len() as u64;
        self.observe(OpKind::Read, bytes, |device| device.read(offset, buf))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let bytes = data.len() as u64;
        self.observe(OpKind::Write, bytes, |device| device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.observe(OpKind::Flush, 0, |device| device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.observe(OpKind::Trim, len, |device| device.trim(offset, len))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.observe(OpKind::Zero, len, |device| device.zero(offset, len, flags))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.observe(OpKind::Extents, len, |device| device.extents(offset, len))
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        let bytes = new.len() as u64;
        self.observe(OpKind::Write, bytes, |device| device.compare_and_write(offset, expected, new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryDevice;
    use crate::layer::{Delay, DelayLayer, Delays};
    use crate::testing;

    fn memory() -> Device {
        Arc::new(MemoryDevice::new(1 << 20, 512).unwrap())
    }

    #[tokio::test]
    async fn conforms() {
        testing::conformance(&StatsLayer::new(memory())).await;
    }

    #[tokio::test]
    async fn counts_operations_bytes_and_errors() {
        let layer = StatsLayer::new(memory());
        for index in 0..10 {
            let data = Bytes::from(vec![0; 4096]);
            layer.write(index * 4096, data, WriteFlags::NONE).await.unwrap();
        }
        layer.read(0, Buf::new(512)).await.unwrap();
        layer.read(1 << 20, Buf::new(512)).await.unwrap_err();
        layer.flush().await.unwrap();
        let stats = layer.snapshot();
        let counts = |kind| {
            let stats = stats.of(kind);
            (stats.operations, stats.errors, stats.bytes)
        };
        assert_eq!(counts(OpKind::Write), (10, 0, 40960));
        assert_eq!(counts(OpKind::Read), (2, 1, 512));
        assert_eq!(counts(OpKind::Flush), (1, 0, 0));
        assert_eq!(counts(OpKind::Trim), (0, 0, 0));
        assert_eq!(stats.of(OpKind::Trim).latency_quantile(0.99), Duration::ZERO);
    }

    #[tokio::test]
    async fn latency_includes_the_wait() {
        let delays = Delays::all(Delay::Fixed(Duration::from_millis(5)));
        let layer = StatsLayer::new(Arc::new(DelayLayer::new(memory(), delays, 1)));
        layer.read(0, Buf::new(512)).await.unwrap();
        let read = layer.snapshot().of(OpKind::Read).clone();
        assert!(read.latency_max >= Duration::from_millis(5), "{read:?}");
        assert_eq!(read.latency_quantile(0.5), read.latency_max.min(read.latency_quantile(1.0)));
    }

    #[tokio::test]
    async fn cumulative_counts_end_with_all() {
        let layer = StatsLayer::new(memory());
        for _ in 0..7 {
            layer.read(0, Buf::new(512)).await.unwrap();
        }
        let bounds = [Duration::ZERO, Duration::from_secs(3600)];
        assert_eq!(layer.snapshot().of(OpKind::Read).cumulative(&bounds), [0, 7]);
    }

    #[test]
    fn buckets_are_contiguous_and_close() {
        let mut last = 0;
        for ns in (0..10_000).chain((14..45).map(|shift| (1 << shift) - 1)) {
            let bucket = bucket(ns);
            assert!(bucket >= last, "{ns}");
            if bucket < BUCKETS - 1 {
                assert!(bucket_end_ns(bucket) >= ns, "{ns}");
                assert!(bucket_end_ns(bucket) <= ns + ns / 4 + 1, "{ns}");
            }
            last = bucket;
        }
    }
}
