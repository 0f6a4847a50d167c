//! What a policy sees: one interval of a transfer, with as much of TCP_INFO as the system gives.

pub use crate::{CongestionControl, Connection, ConnectionId, Tcp};

use super::pacer::Pace;
use super::windows::median;

/// What was measured from the sample before to this one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// End of the interval, in seconds of any steady clock.
    pub t_s: f64,
    /// Connections open during the interval.
    pub connections_open: u32,
    /// Payload of all connections together, the mean over the interval.
    pub bytes_per_s: f64,
    /// What is known of the path as a whole; used where `connections` says nothing.
    pub tcp: Tcp,
    /// What is known of each connection; may be empty.
    pub connections: Vec<Connection>,
    /// Share of the interval in which commands waited for the rate that the pacer had set (0–1).
    pub held_share: f64,
    /// Payload of the commands that are under way at its end.
    pub outstanding_bytes: Option<f64>,
    /// Commands that are under way or wait for that, at its end.
    pub commands: Option<usize>,
    /// What the pacer says of the interval.
    pub pace: Pace,
}

impl Sample {
    /// The median of a field over the connections that know it, or what is known of the path.
    pub(super) fn typical(&self, field: impl Fn(&Tcp) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self
            .connections
            .iter()
            .filter_map(|c| field(&c.tcp))
            .filter(|v| v.is_finite())
            .collect();
        median(&mut values).or_else(|| field(&self.tcp).filter(|v| v.is_finite()))
    }

    /// Round trip of the empty path, as far as it is known.
    pub(super) fn least_rtt_us(&self) -> Option<f64> {
        let known = self.pace.base_rtt_s.map(|base_s| base_s * 1e6);
        known.or_else(|| self.typical(|tcp| tcp.min_rtt_us))
    }
}
