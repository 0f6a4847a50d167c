//! A load generator: keeps a number of reads or writes under way and measures each.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use hdrhistogram::Histogram;
use tokio::sync::{mpsc, watch};

use crate::{BlockError, Buf, Device, WriteFlags};

/// Which operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads, from the start again at the end.
    Read,
    /// Sequential writes.
    Write,
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
}

impl Pattern {
    fn writes(self) -> bool {
        matches!(self, Self::Write | Self::RandomWrite)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::RandomRead | Self::RandomWrite)
    }
}

/// How many operations are under way at once; at least one.
#[derive(Clone, Debug)]
pub enum Depth {
    /// So many.
    Fixed(usize),
    /// As many as were last said: more begin at once, and while there are too many, one that ends
    /// is followed by none.
    Following(watch::Receiver<usize>),
}

impl Depth {
    fn now(&self) -> usize {
        match self {
            Self::Fixed(depth) => *depth,
            Self::Following(depth) => *depth.borrow(),
        }
        .max(1)
    }

    /// Until another depth is said.
    async fn changed(&mut self) {
        if let Self::Following(depth) = self
            && depth.changed().await.is_ok()
        {
            return;
        }
        // Whoever said it is gone, or nobody ever says another one.
        std::future::pending().await
    }
}

/// One operation that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// When.
    pub at: Instant,
    /// Time it took.
    pub latency: Duration,
}

/// A load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Operations.
    pub pattern: Pattern,
    /// Bytes per operation, a multiple of the device's block size.
    pub block_size: u32,
    /// Operations under way at once.
    pub depth: Depth,
    /// Not measured: time before the first measured completion may come. With such a time what is
    /// still under way at the end is not measured either: the report is of the steady state.
    pub ramp: Duration,
    /// For how long.
    pub duration: Duration,
    /// Seed of the places and of the data written.
    pub seed: u64,
    /// Is told of every operation, those of the ramp too. A full channel holds the load back.
    pub each: Option<mpsc::Sender<Ended>>,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// From the first operation's start to the last one's end, or the time after the ramp.
    pub elapsed: Duration,
    /// Operations that completed.
    pub operations: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// Latency in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

/// Why a load ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The device holds not even one block.
    #[error("the device of {size} bytes is smaller than one operation of {block_size} bytes")]
    TooSmall {
        /// Capacity in bytes.
        size: u64,
        /// Bytes per operation.
        block_size: u32,
    },
    /// An operation failed.
    #[error("at byte {offset}: {source}")]
    Operation {
        /// First byte.
        offset: u64,
        /// What happened.
        source: BlockError,
    },
}

/// Runs a load. Writes destroy the device's content.
///
/// # Errors
/// The first operation that fails ends the load.
pub async fn run(device: &Device, options: &LoadOptions) -> Result<LoadReport, LoadError> {
    let blocks = device.info().size / u64::from(options.block_size.max(1));
    if blocks == 0 {
        let size = device.info().size;
        return Err(LoadError::TooSmall { size, block_size: options.block_size });
    }
    let mut places = Places { options, blocks, next: 0, state: options.seed | 1 };
    let data = pattern_data(options);
    let begin = Instant::now();
    let start = begin + options.ramp;
    let end = start + options.duration;
    let steady = !options.ramp.is_zero();
    let mut report = LoadReport {
        elapsed: Duration::ZERO,
        operations: 0,
        bytes: 0,
        latency_ns: empty_histogram(),
    };
    let mut depth = options.depth.clone();
    let mut lanes = FuturesUnordered::new();
    let mut spare: Vec<Buf> = Vec::new();
    let mut now = begin;
    loop {
        while now < end && lanes.len() < depth.now() {
            let offset = places.next_offset();
            lanes.push(operation(device, options, offset, &data, spare.pop(), now));
        }
        let done = tokio::select! {
            // The depth is looked at after each operation anyway.
            biased;
            done = lanes.next() => done,
            () = depth.changed(), if now < end => {
                now = Instant::now();
                continue;
            }
        };
        let Some(done) = done else { break };
        let (buf, asked_at) = done?;
        spare.extend(buf);
        // The one look at the clock for an operation: the next one begins when this one is noted.
        now = Instant::now();
        let latency = now - asked_at;
        if let Some(each) = &options.each {
            // Nobody listens any more: the load goes on.
            let _ = each.send(Ended { at: now, latency }).await;
        }
        if !steady || (start..end).contains(&now) {
            report.operations += 1;
            report.latency_ns.saturating_record(latency.as_nanos().try_into().unwrap_or(u64::MAX));
        }
        if options.each.is_some() {
            now = Instant::now(); // it may have held the load back
        }
    }
    report.elapsed = if steady { options.duration } else { begin.elapsed() };
    report.bytes = report.operations * u64::from(options.block_size);
    Ok(report)
}

/// The buffer of a read, and when it was asked for.
type Measured = Result<(Option<Buf>, Instant), LoadError>;

fn operation(
    device: &Device,
    options: &LoadOptions,
    offset: u64,
    data: &Bytes,
    buf: Option<Buf>,
    asked_at: Instant,
) -> impl Future<Output = Measured> + use<> {
    let device = device.clone();
    let writes = options.pattern.writes().then(|| data.clone());
    let size = options.block_size as usize;
    async move {
        let fail = |source| LoadError::Operation { offset, source };
        let buf = match writes {
            Some(data) => {
                device.write(offset, data, WriteFlags::NONE).await.map_err(fail)?;
                None
            }
            None => {
                let buf = buf.unwrap_or_else(|| Buf::new(size));
                Some(device.read(offset, buf).await.map_err(fail)?)
            }
        };
        Ok((buf, asked_at))
    }
}

/// Three significant digits from 1 µs to 1 h.
fn empty_histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    match Histogram::new_with_bounds(1000, HOUR_NS, 3) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants that hdrhistogram accepts"),
    }
}

/// Data that does not compress and is not zero.
fn pattern_data(options: &LoadOptions) -> Bytes {
    let mut buf = Buf::new(options.block_size as usize);
    let mut state = options.seed | 1;
    for chunk in buf.chunks_mut(8) {
        let word = xorshift(&mut state).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    buf.freeze()
}

struct Places<'a> {
    options: &'a LoadOptions,
    blocks: u64,
    next: u64,
    state: u64,
}

impl Places<'_> {
    fn next_offset(&mut self) -> u64 {
        let block = if self.options.pattern.is_random() {
            xorshift(&mut self.state) % self.blocks
        } else {
            let block = self.next % self.blocks;
            self.next += 1;
            block
        };
        block * u64::from(self.options.block_size)
    }
}

/// Marsaglia's xorshift64: good enough to choose places, and costs nothing beside an I/O.
fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;
    use crate::layer::{Delay, DelayLayer, Delays, OpKind, StatsLayer};

    #[tokio::test]
    async fn what_comes_before_the_ramp_is_over_is_done_and_not_measured() {
        let stats = Arc::new(StatsLayer::new(Arc::new(MemoryDevice::new(1 << 20, 512).unwrap())));
        let device = Arc::clone(&stats) as Device;
        let mut options = LoadOptions {
            pattern: Pattern::RandomWrite,
            block_size: 4096,
            depth: Depth::Fixed(4),
            ramp: Duration::from_millis(20),
            duration: Duration::from_millis(20),
            seed: 1,
            each: None,
        };
        let steady = run(&device, &options).await.unwrap();
        let all = stats.snapshot().of(OpKind::Write).operations;
        assert!(steady.operations > 0 && steady.operations < all, "{} of {all}", steady.operations);
        assert_eq!(steady.elapsed, options.duration);
        assert_eq!(steady.latency_ns.len(), steady.operations);
        assert_eq!(steady.bytes, steady.operations * 4096);

        options.ramp = Duration::ZERO;
        let whole = run(&device, &options).await.unwrap();
        assert_eq!(stats.snapshot().of(OpKind::Write).operations, all + whole.operations);
        assert!(whole.elapsed >= options.duration);
    }

    #[tokio::test(start_paused = true)]
    async fn the_depth_follows_what_is_said_and_each_operation_is_told() {
        const READ_MS: u64 = 10;
        let delay = Delay::Fixed(Duration::from_millis(READ_MS));
        let delays = Delays { read: delay, ..Delays::default() };
        let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let device: Device = Arc::new(DelayLayer::new(memory, delays, 1));
        let (say, depth) = watch::channel(2);
        let (each, mut ended) = mpsc::channel(1);
        let options = LoadOptions {
            pattern: Pattern::Read,
            block_size: 4096,
            depth: Depth::Following(depth),
            ramp: Duration::ZERO,
            duration: Duration::from_secs(3600), // of real time: the test ends it
            seed: 1,
            each: Some(each),
        };
        let load = tokio::spawn(async move { run(&device, &options).await });
        // So many end at one instant of the virtual clock as run side by side.
        let mut at_once: Vec<(tokio::time::Instant, usize)> = Vec::new();
        while at_once.len() < 9 {
            ended.recv().await.unwrap();
            let now = tokio::time::Instant::now();
            match at_once.last_mut() {
                Some((instant, count)) if *instant == now => *count += 1,
                _ => {
                    at_once.push((now, 1));
                    match at_once.len() {
                        3 => say.send(5).unwrap(),
                        6 => say.send(1).unwrap(),
                        _ => {}
                    }
                }
            }
        }
        load.abort();
        let span = |pair: &[(tokio::time::Instant, usize)]| pair[1].0 - pair[0].0;
        assert!(at_once.windows(2).all(|pair| span(pair).as_millis() == u128::from(READ_MS)));
        let counts: Vec<_> = at_once.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts[..6], [2, 2, 2, 5, 5, 5]);
        // Whether those that ended before it was said were followed is a matter of scheduling.
        assert_eq!(counts[7..], [1, 1]);
    }
}
