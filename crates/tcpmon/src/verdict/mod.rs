//! What limits a transfer, why we say so, and what to change.

pub mod from_packets;
pub mod from_samples;

use std::collections::BTreeMap;

use serde::Serialize;

/// The one thing that, changed, makes the transfer faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The sender waits for memory of its send buffer (S0's finding).
    SendBuffer,
    /// The window that the receiver announces is full.
    ReceiveWindow,
    /// Losses keep the congestion window small.
    CongestionLoss,
    /// The congestion window is full without losses: it is still growing, or it is bounded.
    CongestionWindow,
    /// Data wait for the target's R2Ts (RFC 7143 §11.8).
    R2t,
    /// Too few commands are outstanding for the path: one round trip each.
    QueueDepth,
    /// The target's medium is what takes the time.
    Storage,
    /// The line is full: there is nothing to gain.
    LineRate,
    /// The initiator's application does not ask for more.
    Application,
}

impl Cause {
    /// Its name in JSON, metrics and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SendBuffer => "send_buffer",
            Self::ReceiveWindow => "receive_window",
            Self::CongestionLoss => "congestion_loss",
            Self::CongestionWindow => "congestion_window",
            Self::R2t => "r2t",
            Self::QueueDepth => "queue_depth",
            Self::Storage => "storage",
            Self::LineRate => "line_rate",
            Self::Application => "application",
        }
    }
}

/// The answer of `enkaku diagnose`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What limits the transfer.
    pub cause: Cause,
    /// The measured numbers that say so, by name; the unit ends the name (`rtt_us`, `window_bytes`).
    pub evidence: BTreeMap<&'static str, f64>,
    /// What to change and what to expect of it, one or two sentences with numbers.
    pub advice: String,
    /// Throughput to expect after the change; absent where nothing is to be gained or known.
    pub expected_bytes_per_s: Option<f64>,
}
