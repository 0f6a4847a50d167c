//! What TCP_INFO says limits a connection, and what follows for buffers and congestion control.

use std::fmt;

use super::{CongestionControl, Sample};

/// Share of the time from which a cause counts as the limiting one: more often than not.
const SHARE_DOMINANT: f64 = 0.5;
/// A window this full is a limit: the last segments never fit exactly.
const WINDOW_FULL_SHARE: f64 = 0.85;
/// A round trip this many times the shortest one means that packets wait in a queue of the path.
const QUEUE_RTT_FACTOR: f64 = 1.25;
/// A buffer holds this many times bandwidth × delay: half of it is in flight, half is waiting.
const BUFFER_DELAYS: f64 = 2.0;
/// A buffer is worth a change if it grows by this factor.
const BUFFER_CHANGE_FACTOR: f64 = 1.25;

/// What limits the typical connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limit {
    /// Nothing is known.
    Unknown,
    /// There is not enough to send.
    Application,
    /// The window that the peer announces.
    PeerWindow,
    /// The send buffer.
    SendBuffer,
    /// The congestion window, which losses keep small.
    CongestionLoss,
    /// The congestion window, without losses: it is still growing, or something bounds it.
    CongestionWindow,
    /// The line: packets wait in the queue before it.
    Line,
}

impl Limit {
    /// What limits the connections of a sample.
    pub fn of(sample: &Sample) -> Self {
        // Held at the rate that the line was found to carry.
        if sample.pace.binds {
            return Self::Line;
        }
        let share = |value: Option<f64>| value.is_some_and(|share| share >= SHARE_DOMINANT);
        let typical = |field: fn(&super::Tcp) -> Option<f64>| sample.typical(field);
        let idle = typical(|tcp| tcp.busy_share).is_some_and(|busy| busy < SHARE_DOMINANT);
        let app = typical(|tcp| tcp.app_limited.map(|app| f64::from(u8::from(app))));
        // A rate-limited flow is "application limited" to the kernel whenever the send buffer or
        // the peer's window holds it up, so those causes are looked at first.
        if share(typical(|tcp| tcp.rwnd_limited_share)) {
            return Self::PeerWindow;
        }
        if share(typical(|tcp| tcp.sndbuf_limited_share)) {
            return Self::SendBuffer;
        }
        if idle || share(app) {
            return Self::Application;
        }
        let rtt = typical(|tcp| tcp.rtt_us).zip(sample.least_rtt_us());
        if rtt.is_some_and(|(rtt, min)| rtt > QUEUE_RTT_FACTOR * min) {
            return Self::Line;
        }
        let in_flight = typical(|tcp| tcp.in_flight_bytes);
        let fills = |window: Option<f64>| {
            in_flight.zip(window).is_some_and(|(used, all)| used >= WINDOW_FULL_SHARE * all)
        };
        if fills(typical(|tcp| tcp.peer_window_bytes)) {
            return Self::PeerWindow;
        }
        if fills(typical(|tcp| tcp.cwnd_bytes)) {
            let lost = typical(|tcp| tcp.retransmits).is_some_and(|count| count > 0.0);
            return if lost { Self::CongestionLoss } else { Self::CongestionWindow };
        }
        Self::Unknown
    }

    /// Windows or buffers: more connections have more of them.
    pub(super) fn is_window(self) -> bool {
        use Limit::{CongestionLoss, CongestionWindow, PeerWindow, SendBuffer};
        matches!(self, CongestionLoss | CongestionWindow | PeerWindow | SendBuffer)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "an unknown cause",
            Self::Application => "the application",
            Self::PeerWindow => "the peer's window",
            Self::SendBuffer => "the send buffer",
            Self::CongestionLoss => "losses, which keep the congestion window small",
            Self::CongestionWindow => "the congestion window",
            Self::Line => "the line",
        })
    }
}

/// Buffers that would hold what a connection may have in flight, if the present ones limit it.
pub(super) fn buffer_wanted(sample: &Sample, bytes_per_s: f64, bytes_max: u64) -> Option<u64> {
    let limit = Limit::of(sample);
    if !matches!(limit, Limit::PeerWindow | Limit::SendBuffer) {
        return None;
    }
    let rtt_s = sample.least_rtt_us().or(sample.typical(|tcp| tcp.rtt_us))? / 1e6;
    let present = sample.typical(|tcp| tcp.send_buffer_bytes)?;
    // The rate is what the small buffer allowed: at least double, and see.
    let share = bytes_per_s / f64::from(sample.connections_open.max(1));
    let wanted = (BUFFER_DELAYS * share * rtt_s).max(2.0 * present).min(bytes_max as f64);
    (wanted > BUFFER_CHANGE_FACTOR * present).then_some(wanted as u64)
}

/// Another congestion control, if losses are the limit, or are known to be the path's own, and one that
/// bears them is at hand.
pub(super) fn control_wanted(
    sample: &Sample,
    available: &[CongestionControl],
    lossy: bool,
) -> Option<CongestionControl> {
    let of_connections = sample.connections.iter().find_map(|c| c.tcp.congestion_control);
    let present = of_connections.or(sample.tcp.congestion_control)?;
    let better = available.iter().copied().max().filter(|&best| best > present)?;
    (lossy || Limit::of(sample) == Limit::CongestionLoss).then_some(better)
}

#[cfg(test)]
mod tests {
    use super::super::Tcp;
    use super::*;

    fn sample(tcp: Tcp) -> Sample {
        let connections = Vec::new();
        Sample {
            t_s: 1.0,
            connections_open: 2,
            bytes_per_s: 2e6,
            tcp,
            connections,
            ..Sample::default()
        }
    }

    #[test]
    fn each_cause_is_told_from_the_others() {
        let base = Tcp {
            rtt_us: Some(50_000.0),
            min_rtt_us: Some(50_000.0),
            cwnd_bytes: Some(1e5),
            in_flight_bytes: Some(9.5e4),
            ..Tcp::default()
        };
        let of = |change: fn(&mut Tcp)| {
            let mut tcp = base;
            change(&mut tcp);
            Limit::of(&sample(tcp))
        };
        assert_eq!(of(|_| ()), Limit::CongestionWindow);
        assert_eq!(of(|tcp| tcp.retransmits = Some(3.0)), Limit::CongestionLoss);
        assert_eq!(of(|tcp| tcp.rtt_us = Some(90_000.0)), Limit::Line);
        assert_eq!(of(|tcp| tcp.app_limited = Some(true)), Limit::Application);
        assert_eq!(of(|tcp| tcp.rwnd_limited_share = Some(0.8)), Limit::PeerWindow);
        assert_eq!(of(|tcp| tcp.sndbuf_limited_share = Some(0.8)), Limit::SendBuffer);
        assert_eq!(of(|tcp| tcp.in_flight_bytes = Some(1.0)), Limit::Unknown);
        assert_eq!(Limit::of(&sample(Tcp::default())), Limit::Unknown);
    }

    #[test]
    fn buffers_and_congestion_control_change_only_where_they_limit() {
        let mut tcp = Tcp {
            rtt_us: Some(1e5),
            sndbuf_limited_share: Some(0.9),
            send_buffer_bytes: Some(65536.0),
            congestion_control: Some(CongestionControl::Cubic),
            ..Tcp::default()
        };
        assert_eq!(buffer_wanted(&sample(tcp), 2e6, 1 << 24), Some(200_000));
        assert_eq!(buffer_wanted(&sample(tcp), 2e6, 65_536), None);
        let all = [CongestionControl::Cubic, CongestionControl::Bbr];
        assert_eq!(control_wanted(&sample(tcp), &all, false), None);
        assert_eq!(control_wanted(&sample(tcp), &all, true), Some(CongestionControl::Bbr));
        tcp.sndbuf_limited_share = None;
        assert_eq!(buffer_wanted(&sample(tcp), 2e6, 1 << 24), None);
        tcp.cwnd_bytes = Some(1e4);
        tcp.in_flight_bytes = Some(1e4);
        tcp.retransmits = Some(1.0);
        assert_eq!(control_wanted(&sample(tcp), &all, false), Some(CongestionControl::Bbr));
        assert_eq!(control_wanted(&sample(tcp), &all[..1], true), None);
    }
}
