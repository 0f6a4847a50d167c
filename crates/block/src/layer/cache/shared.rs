//! State of a cache that its operations and background tasks share. The lock is held for
//! bookkeeping only, never across I/O or a wait.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use super::chunks::Chunks;
use super::config::CacheConfig;
use super::dirty::Dirty;
use super::path::Path;
use super::stats::CacheStats;
use super::streams::Streams;
use super::window::PathView;
use crate::{BlockError, Device};

/// Unit of dirty memory: the smallest block.
pub(super) const PERMIT_BYTES: u64 = 512;

pub(super) struct Shared {
    pub(super) device: Device,
    pub(super) config: CacheConfig,
    pub(super) runtime: Handle,
    pub(super) state: Mutex<State>,
    /// Something was written, failed or let go.
    pub(super) progress: Notify,
    /// Free memory for dirty data, first come, first served.
    pub(super) room: Arc<Semaphore>,
}

pub(super) struct State {
    pub(super) path: Path,
    pub(super) streams: Streams,
    pub(super) chunks: Chunks,
    pub(super) dirty: Dirty,
    /// Ranges that an operation changes on the device itself; what is written to them later waits.
    pub(super) holds: Vec<Hold>,
    pub(super) next_hold: u64,
    pub(super) writes_in_flight: usize,
    pub(super) timer_armed: bool,
    /// An acknowledged write could not be written, and not every such error has been reported, or
    /// its data still wait. The oldest one.
    pub(super) deferred: Option<BlockError>,
    /// Of the deferred errors, those that a flush has reported.
    pub(super) reported_errors: u64,
    pub(super) stats: CacheStats,
}

/// A range in which data newer than `seq` stays in memory.
pub(super) struct Hold {
    pub(super) id: u64,
    pub(super) range: Range<u64>,
    pub(super) seq: u64,
}

impl Shared {
    pub(super) fn new(device: Device, config: CacheConfig) -> Self {
        let state = State {
            path: Path::new(),
            streams: Streams::new(config.read_chunk_bytes),
            chunks: Chunks::new(config.read_chunk_bytes, config.read_bytes_max),
            dirty: Dirty::new(config.write_chunk_bytes).with_mistakes(config.mistakes),
            holds: Vec::new(),
            next_hold: 0,
            writes_in_flight: 0,
            timer_armed: false,
            deferred: None,
            reported_errors: 0,
            stats: CacheStats::default(),
        };
        let permits = (config.write_bytes_max / PERMIT_BYTES) as usize;
        Self {
            device,
            config,
            runtime: Handle::current(),
            state: Mutex::new(state),
            progress: Notify::new(),
            room: Arc::new(Semaphore::new(permits)),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `check` has an answer; it is asked again whenever something has happened.
    pub(super) async fn until<T>(&self, mut check: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if let Some(answer) = check(&mut self.lock()) {
                return answer;
            }
            progress.await;
        }
    }

    pub(super) fn free(&self, bytes: u64) {
        self.room.add_permits((bytes / PERMIT_BYTES) as usize);
    }
}

impl State {
    /// What a stream may reckon with: half of the memory is for what lies ahead, all streams alike.
    pub(super) fn path_view(&self, config: &CacheConfig) -> PathView {
        let share = config.read_bytes_max / 2 / self.streams.established().max(1) as u64;
        PathView {
            rate: self.path.rate(),
            product_bytes: self.path.product_bytes(),
            window_bytes_max: config.read_window_bytes_max.min(share),
        }
    }
}

/// The same error once more, for another who must hear of it.
pub(super) fn copy_error(error: &BlockError) -> BlockError {
    match error {
        BlockError::OutOfRange { offset, len, size } => {
            BlockError::OutOfRange { offset: *offset, len: *len, size: *size }
        }
        BlockError::Misaligned { offset, len, block_size } => {
            BlockError::Misaligned { offset: *offset, len: *len, block_size: *block_size }
        }
        BlockError::ReadOnly => BlockError::ReadOnly,
        BlockError::NoSpace => BlockError::NoSpace,
        BlockError::Fenced => BlockError::Fenced,
        BlockError::Unsupported(what) => BlockError::Unsupported(what),
        BlockError::Medium(error) => {
            BlockError::Medium(std::io::Error::new(error.kind(), error.to_string()))
        }
        BlockError::Unreachable(why) => BlockError::Unreachable(why.clone()),
    }
}
