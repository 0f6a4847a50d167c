//! How fast initiators may go, and how fast a logical unit: [`Limit`] says it, a [`Bucket`] holds
//! commands back, [`Limiters`] are all buckets of a server, [`Throttle`] those of one session.
//!
//! A command waits before anything is spent on it: a write before its data is asked for, a read
//! before it has memory. Counted are commands that use the medium (`scsi::uses_medium`), in bytes
//! what they move over the network; nothing else ever waits.

mod bucket;
mod fair;
mod held;
mod limiters;

use std::time::Duration;

pub(super) use held::{Held, Wait};
pub(super) use limiters::{Limiters, Throttle};

/// What may be saved up unless told otherwise: timers are late by up to some milliseconds, and a
/// client with one command at a time cannot make up for that.
pub const BURST_DEFAULT: Duration = Duration::from_millis(20);

/// Longest burst: a limit that can be exceeded for longer is none.
pub const BURST_MAX: Duration = Duration::from_secs(3600);

/// Least rate, in bytes per second: a command of 1 MiB takes four minutes there, and initiators
/// give up earlier.
pub const BYTES_PER_S_MIN: u64 = 4 << 10;

/// Most that one initiator may use of a target, or all together of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// Bytes read and written together, per second.
    pub bytes_per_s: Option<u64>,
    /// Commands that use the medium, per second.
    pub iops: Option<u64>,
    /// How much of what was not used may be used later at once: what the limit allows within this
    /// time.
    pub burst: Duration,
}

impl Default for Limit {
    fn default() -> Self {
        Self { bytes_per_s: None, iops: None, burst: BURST_DEFAULT }
    }
}

impl Limit {
    /// So many bytes and commands per second, each unlimited for `None`.
    pub fn new(bytes_per_s: Option<u64>, iops: Option<u64>) -> Self {
        let bytes_per_s = bytes_per_s.map(|rate| rate.max(BYTES_PER_S_MIN));
        Self { bytes_per_s, iops: iops.map(|rate| rate.max(1)), ..Self::default() }
    }

    /// With another burst.
    pub fn with_burst(mut self, burst: Duration) -> Self {
        self.burst = burst.min(BURST_MAX);
        self
    }

    /// Does it limit anything?
    pub fn is_some(&self) -> bool {
        self.bytes_per_s.is_some() || self.iops.is_some()
    }
}

/// What a command uses of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Bytes that it moves.
    pub(super) bytes: u64,
}

/// A limit at one moment, and what it has done so far.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LimitView {
    /// The target.
    pub target_name: String,
    /// Whose limit it is; `None`: that of a logical unit.
    pub initiator_name: Option<String>,
    /// The logical unit; `None`: the limit of an initiator.
    pub lun: Option<u16>,
    /// The limit.
    pub limit: Limit,
    /// Commands that wait now.
    pub waiting: usize,
    /// Commands that were let through so far.
    pub commands: u64,
    /// Bytes that these move.
    pub bytes: u64,
    /// Those among them that had to wait.
    pub delayed: u64,
    /// How long they waited, all together.
    pub waited: Duration,
}
