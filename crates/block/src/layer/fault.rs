//! [`FaultLayer`]: makes a device fail, for tests. Failures are scripted (the nth operation, every
//! kth, those that touch a range) or drawn from a seed, so that a failing run repeats.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{OpKind, Random};
use crate::{
    BlockDevice, BlockError, Buf, Compared, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags,
};

type MakeError = Arc<dyn Fn() -> BlockError + Send + Sync>;

/// One rule of failure.
#[derive(Clone)]
pub struct Fault {
    kind: OpKind,
    range: Range<u64>,
    first: u64,
    every: u64,
    times: u64,
    per_million: u64,
    tear_bytes: Option<u64>,
    error: MakeError,
    matched: u64,
}

impl Fault {
    /// All operations of one kind fail with what `error` makes.
    pub fn on(kind: OpKind, error: impl Fn() -> BlockError + Send + Sync + 'static) -> Self {
        Self {
            kind,
            range: 0..u64::MAX,
            first: 1,
            every: 1,
            times: u64::MAX,
            per_million: 1_000_000,
            tear_bytes: None,
            error: Arc::new(error),
            matched: 0,
        }
    }

    /// Only those that touch these bytes (flushes touch none, and always count).
    pub fn in_range(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Only the `n`th one, counted from 1, among those that match kind and range.
    pub fn nth(mut self, n: u64) -> Self {
        (self.first, self.every, self.times) = (n, 1, 1);
        self
    }

    /// Only every `k`th one. 0 counts as 1.
    pub fn every(mut self, k: u64) -> Self {
        (self.first, self.every) = (k.max(1), k.max(1));
        self
    }

    /// At most `times` times.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Only with this probability, drawn from the layer's seed.
    pub fn per_million(mut self, per_million: u64) -> Self {
        self.per_million = per_million;
        self
    }

    /// A write is torn: its first `bytes` bytes arrive (whole blocks of them), the rest does not.
    pub fn torn_after(mut self, bytes: u64) -> Self {
        self.tear_bytes = Some(bytes);
        self
    }

    /// Counts an operation; true when it must fail.
    fn hits(&mut self, kind: OpKind, offset: u64, len: u64, random: &mut Random) -> bool {
        let touches = kind == OpKind::Flush
            || (offset < self.range.end && self.range.start < offset.saturating_add(len));
        if kind != self.kind || !touches || self.times == 0 {
            return false;
        }
        self.matched += 1;
        let due =
            self.matched >= self.first && (self.matched - self.first).is_multiple_of(self.every);
        let hit = due && random.below(1_000_000) < self.per_million;
        self.times -= u64::from(hit);
        hit
    }
}

/// A device that fails as its rules say.
pub struct FaultLayer {
    device: Device,
    state: Mutex<State>,
}

struct State {
    faults: Vec<Fault>,
    random: Random,
}

/// What becomes of an operation that fails.
struct Failure {
    error: BlockError,
    tear_bytes: Option<u64>,
}

impl FaultLayer {
    /// Without rules yet; `seed` decides the random ones.
    pub fn new(device: Device, seed: u64) -> Self {
        Self { device, state: Mutex::new(State { faults: Vec::new(), random: Random(seed) }) }
    }

    /// Adds a rule. Where several apply to an operation, the first added one wins.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Removes all rules: the device is well again.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    fn failure(&self, kind: OpKind, offset: u64, len: u64) -> Option<Failure> {
        let State { faults, random } = &mut *self.lock();
        let fault = faults
            .iter_mut()
            .find_map(|fault| fault.hits(kind, offset, len, random).then_some(&*fault))?;
        Some(Failure { error: (fault.error)(), tear_bytes: fault.tear_bytes })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockDevice for FaultLayer {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        match self.failure(OpKind::Read, offset, buf.len() as u64) {
            Some(failure) => Io::err(failure.error),
            None => self.device.read(offset, buf),
        }
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let Some(failure) = self.failure(OpKind::Write, offset, data.len() as u64) else {
            return self.device.write(offset, data, flags);
        };
        let Some(bytes) = failure.tear_bytes else { return Io::err(failure.error) };
        let whole = bytes.min(data.len() as u64) & !u64::from(self.info().block_size - 1);
        let arrives = self.device.write(offset, data.slice(..whole as usize), flags);
        Io::later(async move {
            arrives.await?;
            Err(failure.error)
        })
    }

    fn flush(&self) -> Io<()> {
        match self.failure(OpKind::Flush, 0, 0) {
            Some(failure) => Io::err(failure.error),
            None => self.device.flush(),
        }
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        match self.failure(OpKind::Trim, offset, len) {
            Some(failure) => Io::err(failure.error),
            None => self.device.trim(offset, len),
        }
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        match self.failure(OpKind::Zero, offset, len) {
            Some(failure) => Io::err(failure.error),
            None => self.device.zero(offset, len, flags),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        match self.failure(OpKind::Extents, offset, len) {
            Some(failure) => Io::err(failure.error),
            None => self.device.extents(offset, len),
        }
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        match self.failure(OpKind::Write, offset, new.len() as u64) {
            Some(failure) => Io::err(failure.error),
            None => self.device.compare_and_write(offset, expected, new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryDevice;
    use crate::testing;

    fn layer(seed: u64) -> FaultLayer {
        FaultLayer::new(Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()), seed)
    }

    /// Which of `count` writes of one block, one after the other, fail.
    async fn failing(layer: &FaultLayer, count: u64) -> Vec<u64> {
        let mut failing = Vec::new();
        for index in 0..count {
            let data = Bytes::from(vec![1; 512]);
            if layer.write(index * 512, data, WriteFlags::NONE).await.is_err() {
                failing.push(index);
            }
        }
        failing
    }

    #[tokio::test]
    async fn conforms_when_well() {
        testing::conformance(&layer(1)).await;
    }

    #[tokio::test]
    async fn scripted() {
        let no_space = || Fault::on(OpKind::Write, || BlockError::NoSpace);
        let cases: [(Fault, &[u64]); 5] = [
            (no_space().nth(3), &[2]),
            (no_space().every(4), &[3, 7, 11]),
            (no_space().in_range(1024..2048), &[2, 3]),
            (no_space().times(2), &[0, 1]),
            (no_space().in_range(1024..4096).every(2).times(1), &[3]),
        ];
        for (index, (fault, expected)) in cases.into_iter().enumerate() {
            let layer = layer(1);
            layer.inject(fault);
            assert_eq!(failing(&layer, 12).await, expected, "case {index}");
            layer.read(0, Buf::new(512)).await.unwrap();
            layer.heal();
            assert!(failing(&layer, 12).await.is_empty());
        }
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_failures() {
        let run = async |seed| {
            let layer = layer(seed);
            layer.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).per_million(200_000));
            failing(&layer, 500).await
        };
        let failures = run(1).await;
        assert_eq!(failures, run(1).await);
        assert_ne!(failures, run(2).await);
        assert!((50..150).contains(&failures.len()), "{} of 500 at 20 %", failures.len());
    }

    #[tokio::test]
    async fn a_torn_write_arrives_in_part() {
        let layer = layer(1);
        let power_cut = || BlockError::Unreachable("power cut".into());
        layer.inject(Fault::on(OpKind::Write, power_cut).torn_after(1500));
        let result = layer.write(0, Bytes::from(vec![1; 4096]), WriteFlags::NONE).await;
        assert!(matches!(result, Err(BlockError::Unreachable(_))));
        let back = layer.read(0, Buf::new(4096)).await.unwrap();
        assert!(back[..1024].iter().all(|b| *b == 1) && back[1024..].iter().all(|b| *b == 0));
    }
}
