//! Limits and times of a session. Plain values; the defaults are for a LAN and for a path of up to
//! 300 ms alike, because every timeout here yields to data that moves.

use std::time::Duration;

/// What the owner of a session can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// After this long without anything received, ask for a sign of life (NOP-Out).
    pub keepalive_interval: Duration,
    /// After this long without an answer *and* without data moving, the connection is dead.
    pub ping_timeout: Duration,
    /// How long a Logout Response may take.
    pub logout_timeout: Duration,
    /// At error recovery level 1 and 2: how long a PDU that was asked for again, or the
    /// acknowledgement of a command, may take before it is asked for once more.
    pub repair_timeout: Duration,
    /// How long a task management function or a piece of text may wait for its answer before its
    /// connection is given up. Data that moves does not put this off.
    pub answer_timeout: Duration,
    /// Longest text response that is collected, in bytes.
    pub text_len_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(10),
            logout_timeout: Duration::from_secs(5),
            // What was asked for comes behind what the target had queued: seconds on a slow path.
            repair_timeout: Duration::from_secs(5),
            // Functions wait at the target for commands and their data; both directions may have
            // megabytes in socket buffers before them.
            answer_timeout: Duration::from_secs(60),
            // SendTargets of a target with thousands of names; a hostile one must end somewhere.
            text_len_max: 1 << 20,
        }
    }
}
