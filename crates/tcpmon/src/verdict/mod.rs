//! What limits a transfer, why we say so, and what to change.

pub mod from_packets;
pub mod from_samples;
mod words;

use std::collections::BTreeMap;

pub use path::Bottleneck;
use serde::Serialize;

/// What a verdict was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The kernel's counters, again and again.
    Samples,
    /// Packets.
    Capture,
}

impl Source {
    /// Its name, also in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Capture => "capture",
        }
    }
}

/// A cause that would have shown the same to this source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CannotTell {
    /// Which one.
    pub cause: Bottleneck,
    /// Why this source cannot tell it from the cause that was named: a sentence.
    pub why: &'static str,
    /// What can: a command, and where to run it if that is not here.
    pub command: String,
}

/// The verdict with its doubts: the answer of `enkaku diagnose`, whatever its source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// What it was made from.
    pub source: Source,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Causes that the same numbers would have, the likelier first.
    pub not_excluded: Vec<Bottleneck>,
    /// The same causes, why they cannot be told here, and what can.
    pub cannot_tell: Vec<CannotTell>,
    /// Connections that carried the transfer.
    pub connections: usize,
    /// Payload per second of all of them.
    pub bytes_per_s: f64,
    /// How much time it is about.
    pub seconds: f64,
}

impl Judgement {
    /// With its doubts in both forms.
    fn new(
        source: Source,
        verdict: Verdict,
        cannot_tell: Vec<CannotTell>,
        (connections, bytes_per_s, seconds): (f64, f64, f64),
    ) -> Self {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a count of connections that was made from one"
        )]
        let connections = connections as usize;
        let not_excluded = cannot_tell.iter().map(|one| one.cause).collect();
        Self { source, verdict, not_excluded, cannot_tell, connections, bytes_per_s, seconds }
    }
}

/// What limits a transfer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What limits the transfer.
    pub cause: Bottleneck,
    /// The measured numbers that say so, by name; the unit ends the name (`rtt_us`,
    /// `window_bytes`).
    pub evidence: BTreeMap<&'static str, f64>,
    /// What to change and what to expect of it, one or two sentences with numbers.
    pub advice: String,
    /// Throughput to expect after the change; absent where nothing is to be gained or known.
    pub expected_bytes_per_s: Option<f64>,
}
