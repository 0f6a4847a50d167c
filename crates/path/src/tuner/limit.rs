//! What TCP_INFO says limits a connection, and what follows for buffers and congestion control.

use super::{CongestionControl, Sample, Tcp};
use crate::limit::Bottleneck;

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

/// What limits the connections of a sample, by the thresholds that the policies beside the model
/// were tuned with. Reports name causes by [`crate::limit`].
pub fn limit_of(sample: &Sample) -> Bottleneck {
    // Held at the rate that the line was found to carry.
    if sample.pace.binds {
        return Bottleneck::LineRate;
    }
    let share = |value: Option<f64>| value.is_some_and(|share| share >= SHARE_DOMINANT);
    let typical = |field: fn(&Tcp) -> Option<f64>| sample.typical(field);
    let idle = typical(|tcp| tcp.busy_share).is_some_and(|busy| busy < SHARE_DOMINANT);
    let app = typical(|tcp| tcp.app_limited.map(|app| f64::from(u8::from(app))));
    // A rate-limited flow is "application limited" to the kernel whenever the send buffer or
    // the peer's window holds it up, so those causes are looked at first.
    if share(typical(|tcp| tcp.rwnd_limited_share)) {
        return Bottleneck::ReceiveWindow;
    }
    if share(typical(|tcp| tcp.sndbuf_limited_share)) {
        return Bottleneck::SendBuffer;
    }
    if idle || share(app) {
        return Bottleneck::Application;
    }
    let rtt = typical(|tcp| tcp.rtt_us).zip(sample.least_rtt_us());
    if rtt.is_some_and(|(rtt, min)| rtt > QUEUE_RTT_FACTOR * min) {
        return Bottleneck::LineRate;
    }
    let in_flight = typical(|tcp| tcp.in_flight_bytes);
    let fills = |window: Option<f64>| {
        in_flight.zip(window).is_some_and(|(used, all)| used >= WINDOW_FULL_SHARE * all)
    };
    if fills(typical(|tcp| tcp.peer_window_bytes)) {
        return Bottleneck::ReceiveWindow;
    }
    if fills(typical(|tcp| tcp.cwnd_bytes)) {
        let lost = typical(|tcp| tcp.retransmits).is_some_and(|count| count > 0.0);
        return if lost { Bottleneck::CongestionLoss } else { Bottleneck::CongestionWindow };
    }
    Bottleneck::Unknown
}

/// Buffers that would hold what a connection may have in flight, if the present ones limit it.
pub(super) fn buffer_wanted(sample: &Sample, bytes_per_s: f64, bytes_max: u64) -> Option<u64> {
    let limit = limit_of(sample);
    if !matches!(limit, Bottleneck::ReceiveWindow | Bottleneck::SendBuffer) {
        return None;
    }
    let rtt_s = sample.least_rtt_us().or(sample.typical(|tcp| tcp.rtt_us))? / 1e6;
    let present = sample.typical(|tcp| tcp.send_buffer_bytes)?;
    // The rate is what the small buffer allowed: at least double, and see.
    let share = bytes_per_s / f64::from(sample.connections_open.max(1));
    let wanted = (BUFFER_DELAYS * share * rtt_s).max(2.0 * present).min(bytes_max as f64);
    (wanted > BUFFER_CHANGE_FACTOR * present).then_some(wanted as u64)
}

/// Another congestion control, if losses are the limit, or are known to be the path's own, and one
/// that bears them is at hand.
pub(super) fn control_wanted(
    sample: &Sample,
    available: &[CongestionControl],
    lossy: bool,
) -> Option<CongestionControl> {
    let of_connections = sample.connections.iter().find_map(|c| c.tcp.congestion_control);
    let present = of_connections.or(sample.tcp.congestion_control)?;
    let better = available.iter().copied().max().filter(|&best| best > present)?;
    (lossy || limit_of(sample) == Bottleneck::CongestionLoss).then_some(better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::tests::full_window;

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
        let of = |change: fn(&mut Tcp)| {
            let mut tcp = full_window();
            change(&mut tcp);
            limit_of(&sample(tcp))
        };
        assert_eq!(of(|_| ()), Bottleneck::CongestionWindow);
        assert_eq!(of(|tcp| tcp.retransmits = Some(3.0)), Bottleneck::CongestionLoss);
        assert_eq!(of(|tcp| tcp.rtt_us = Some(90_000.0)), Bottleneck::LineRate);
        assert_eq!(of(|tcp| tcp.app_limited = Some(true)), Bottleneck::Application);
        assert_eq!(of(|tcp| tcp.rwnd_limited_share = Some(0.8)), Bottleneck::ReceiveWindow);
        assert_eq!(of(|tcp| tcp.sndbuf_limited_share = Some(0.8)), Bottleneck::SendBuffer);
        assert_eq!(of(|tcp| tcp.in_flight_bytes = Some(1.0)), Bottleneck::Unknown);
        assert_eq!(limit_of(&sample(Tcp::default())), Bottleneck::Unknown);
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
