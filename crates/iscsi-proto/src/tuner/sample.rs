//! What a policy sees: one interval of a transfer, with as much of TCP_INFO as the system gives.

use std::str::FromStr;

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

/// Names a connection towards the policy; it is whoever takes the samples that gives the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u32);

/// One connection in a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Connection {
    /// Its name.
    pub id: ConnectionId,
    /// Time since it was opened.
    pub age_s: Option<f64>,
    /// Its payload, the mean over the interval.
    pub bytes_per_s: Option<f64>,
    /// What its socket says.
    pub tcp: Tcp,
}

impl Connection {
    /// Some of it was lost within the interval.
    pub fn loses(&self) -> bool {
        self.tcp.retransmits.is_some_and(|count| count > 0.0)
    }
}

/// What a socket says (`tcp_info` of Linux); whatever is absent is unknown, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tcp {
    /// Smoothed round trip.
    pub rtt_us: Option<f64>,
    /// Shortest round trip seen.
    pub min_rtt_us: Option<f64>,
    /// Congestion window.
    pub cwnd_bytes: Option<f64>,
    /// Sent and not acknowledged.
    pub in_flight_bytes: Option<f64>,
    /// Rate at which data was delivered lately.
    pub delivery_rate_bytes_per_s: Option<f64>,
    /// Share of the interval in which there was something to send (0–1).
    pub busy_share: Option<f64>,
    /// Share of the interval in which the peer's window held it up (0–1).
    pub rwnd_limited_share: Option<f64>,
    /// Share of the interval in which the send buffer held it up (0–1).
    pub sndbuf_limited_share: Option<f64>,
    /// Segments sent again within the interval. The end that receives sees only that segments begin to
    /// come out of order, once for as long as that lasts: 0 or 1.
    pub retransmits: Option<f64>,
    /// The application did not fill the window.
    pub app_limited: Option<bool>,
    /// The window that the peer announces.
    pub peer_window_bytes: Option<f64>,
    /// The send buffer.
    pub send_buffer_bytes: Option<f64>,
    /// The congestion control in use.
    pub congestion_control: Option<CongestionControl>,
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

/// A congestion control that Linux has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CongestionControl {
    /// Loss-based, AIMD (RFC 5681).
    Reno,
    /// Loss-based, Linux's default (RFC 9438).
    Cubic,
    /// Model-based; hardly minds random loss.
    Bbr,
}

impl CongestionControl {
    /// The name that the kernel has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reno => "reno",
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
        }
    }
}

/// A congestion control's name that no policy knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not reno, cubic or bbr")]
pub struct UnknownCongestionControl(String);

impl FromStr for CongestionControl {
    type Err = UnknownCongestionControl;

    fn from_str(text: &str) -> Result<Self, UnknownCongestionControl> {
        let known = [Self::Reno, Self::Cubic, Self::Bbr];
        let found = known.into_iter().find(|control| control.as_str() == text);
        found.ok_or_else(|| UnknownCongestionControl(text.to_owned()))
    }
}
