//! How a mirror behaves.

use std::time::Duration;

use super::layout::{redo_default, redo_room};

/// When a write is told complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// When it is at the local device and at every leg in sync.
    Sync,
    /// When it is at the local device; the legs follow within [`Lag`].
    Async,
}

/// What happens to writes that would exceed the lag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnLag {
    /// They wait.
    Slow,
    /// They go on; the leg is left behind, and caught up later.
    FallBehind,
    /// They fail, until a person decides.
    Stop,
}

/// What happens when a leg is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// Writes go on without it; what changes is noted.
    Continue,
    /// Writes wait until it is back or a person decides.
    Stop,
}

/// How far a leg may be behind in [`Mode::Async`]: the oldest write that is not stable there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Age of that write at most.
    pub age: Duration,
    /// Bytes that are not stable at the leg at most; as many are held in memory.
    pub bytes: u64,
    /// What happens at either bound.
    pub on: OnLag,
}

/// How fast copies may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResyncRate {
    /// As fast as they can.
    #[default]
    Max,
    /// Bytes a second.
    BytesPerS(u64),
    /// A percentage of the most that the line has been seen to carry for copies in the last
    /// minutes.
    Percent(u8),
}

/// When a mirror that runs compares its legs by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyEvery {
    /// From the end of one verification of a leg to the begin of the next.
    pub every: Duration,
    /// How fast; a percentage is one of what the verification itself has been seen to compare.
    pub rate: ResyncRate,
}

/// All of it. The defaults are those of a leg some 50 ms away over 1 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// When a write is told complete.
    pub mode: Mode,
    /// Bound of the lag, for [`Mode::Async`].
    pub lag: Lag,
    /// What the loss of a leg does.
    pub on_loss: OnLoss,
    /// A leg that does not answer for so long is lost.
    pub remote_timeout: Duration,
    /// Pause between attempts to reach a lost leg, at first and at most.
    pub retry: (Duration, Duration),
    /// Bytes of a copy or a resync that are under way at once, at most. The default is what 1
    /// Gbit/s carries in half a second: where packets are lost, some answers take several round
    /// trips, and what waits for them must not hold up the rest.
    pub resync_window_bytes: u64,
    /// How fast copies and resyncs may go.
    pub resync_rate: ResyncRate,
    /// Bytes of the redo log of a leg at most, 0 for none; `None`: as is sensible for the image and
    /// the lag. A leg gets what room there is behind its image.
    pub redo_bytes: Option<u64>,
    /// Legs are compared with the local device from time to time.
    pub verify: Option<VerifyEvery>,
}

impl Config {
    /// Bytes of the redo log on a leg of `leg_bytes` with an image of `size` bytes.
    pub fn redo_bytes_on(&self, leg_bytes: u64, size: u64) -> u64 {
        let wanted = self.redo_bytes.unwrap_or_else(|| redo_default(size, self.lag.bytes));
        redo_room(leg_bytes, size, wanted)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Async,
            lag: Lag { age: Duration::from_secs(5), bytes: 256 << 20, on: OnLag::Slow },
            on_loss: OnLoss::Continue,
            remote_timeout: Duration::from_secs(10),
            retry: (Duration::from_millis(500), Duration::from_secs(15)),
            resync_window_bytes: 64 << 20,
            resync_rate: ResyncRate::Max,
            redo_bytes: None,
            verify: None,
        }
    }
}
