//! What the model sees: one interval of a transfer, with as much of `tcp_info` as the system gives,
//! and how exact that is. Values only; whoever owns the sockets takes them, at either end.

use std::str::FromStr;

/// TCP payload of a packet of MTU 1500: 20 bytes of IPv4 and 32 of TCP with timestamps less.
pub(crate) const SEGMENT_BYTES: f64 = 1448.0;
/// What may be under way before anything was acknowledged, in segments (RFC 6928).
pub(crate) const INITIAL_WINDOW_SEGMENTS: f64 = 10.0;
/// Below this round trip, in seconds, a path is a machine room's: hosts are slower than it.
pub const SHORT_RTT_S: f64 = 0.001;
/// Seconds that a sample takes: what happens is seen that much later than a round trip. Not so
/// short that the scheduler is seen instead of the path, and short enough that a queue which begins
/// on a long path is seen as soon as it can be.
pub(crate) const SAMPLE_S: f64 = 0.1;
/// A rate that is off by a larger part is another path's, not noise.
pub(crate) const OTHER_SHARE: f64 = 0.1;
/// A mean over a second or more is exact to half of that.
pub(crate) const ERROR_SHARE: f64 = OTHER_SHARE / 2.0;
/// This factor is more than noise makes of anything that is seen once (BBR §4.3.1.2: a quarter).
pub(crate) const MORE: f64 = 1.25;

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
    /// Share of the interval in which commands waited for the pace that was set (0–1).
    pub held_share: f64,
    /// Payload of the commands that are under way at its end.
    pub outstanding_bytes: Option<f64>,
    /// Commands that are under way or wait at its end.
    pub commands: Option<usize>,
}

/// Names a connection; whoever takes the samples gives the numbers.
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
    /// Its mean deviation (RTTVAR, RFC 6298 §2).
    pub rtt_var_us: Option<f64>,
    /// Shortest round trip seen.
    pub min_rtt_us: Option<f64>,
    /// Congestion window.
    pub cwnd_bytes: Option<f64>,
    /// Sent and not acknowledged.
    pub in_flight_bytes: Option<f64>,
    /// Written and not yet sent.
    pub not_sent_bytes: Option<f64>,
    /// Share of the interval in which there was something to send (0–1).
    pub busy_share: Option<f64>,
    /// Share of the interval in which the peer's window held it up (0–1).
    pub rwnd_limited_share: Option<f64>,
    /// Share of the interval in which the send buffer held it up (0–1).
    pub sndbuf_limited_share: Option<f64>,
    /// Segments sent again within the interval. The end that receives sees only that segments begin
    /// to come out of order, once for as long as that lasts: 0 or 1.
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
    pub fn typical(&self, field: impl Fn(&Tcp) -> Option<f64>) -> Option<f64> {
        let known = self.connections.iter().filter_map(|c| field(&c.tcp));
        let mut values: Vec<f64> = known.filter(|value| value.is_finite()).collect();
        median(&mut values).or_else(|| field(&self.tcp).filter(|value| value.is_finite()))
    }

    /// Segments sent again, of all connections; none where no socket counts them.
    pub fn retransmits(&self) -> Option<f64> {
        let known = self.connections.iter().filter_map(|c| c.tcp.retransmits);
        known.reduce(|a, b| a + b).or(self.tcp.retransmits)
    }

    /// Congestion windows that were cut: whatever a connection loses within a round trip is one
    /// loss event (RFC 5348 §5.2), and it is repaired at once, within a sample or two.
    pub(crate) fn cuts(&self) -> f64 {
        let lost = self.connections.iter().filter_map(|one| one.tcp.retransmits);
        lost.map(|lost| lost.min(1.0)).sum()
    }
}

/// The middle of some values, the upper one of two.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// A congestion control that Linux has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A congestion control's name that is not known.
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
