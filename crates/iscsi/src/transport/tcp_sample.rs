//! The kernel's numbers of a connection in the tuner's terms.

use std::time::Duration;

use path::tuner::Tcp;

use super::tcp_info::TcpStats;

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

impl TcpStats {
    /// What both ends know: the round trip.
    pub(crate) fn round_trip(&self) -> Tcp {
        Tcp {
            rtt_us: Some(micros(self.rtt)).filter(|us| *us > 0.0),
            min_rtt_us: self.min_rtt.map(micros),
            ..Tcp::default()
        }
    }

    /// What the end that sends knows, over an interval of so many seconds (more than 0) that began
    /// with `before`.
    pub(crate) fn sending_since(&self, before: &Self, interval_s: f64) -> Tcp {
        let share = |before: Option<Duration>, now: Option<Duration>| {
            let spent = now?.saturating_sub(before?).as_secs_f64();
            Some((spent / interval_s).min(1.0))
        };
        let segment = f64::from(self.segment_bytes);
        Tcp {
            cwnd_bytes: Some(f64::from(self.congestion_window) * segment),
            in_flight_bytes: Some(f64::from(self.unacked) * segment),
            delivery_rate_bytes_per_s: self.delivery_rate.map(|rate| rate as f64),
            busy_share: share(before.busy, self.busy),
            rwnd_limited_share: share(before.peer_window_limited, self.peer_window_limited),
            sndbuf_limited_share: share(before.send_buffer_limited, self.send_buffer_limited),
            retransmits: Some(self.retransmits.saturating_sub(before.retransmits) as f64),
            app_limited: Some(self.app_limited),
            ..self.round_trip()
        }
    }
}
