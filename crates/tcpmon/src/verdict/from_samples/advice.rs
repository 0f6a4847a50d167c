//! What the numbers of samples mean for the advice: the situation, and the throughput to expect.

use super::Whole;
use crate::verdict::Bottleneck;
use crate::verdict::words::{Situation, WORTH};

/// The share of a line that a tuned transfer reaches.
const REACHED: f64 = 0.95;

/// Throughput after the change.
pub(super) fn expected(cause: Bottleneck, whole: &Whole) -> Option<f64> {
    let possible = match cause {
        Bottleneck::LineRate | Bottleneck::Application => return None,
        // Without the silences, the rest of the time carries the same bytes.
        Bottleneck::Storage => whole.bytes_per_s / (1.0 - whole.silences().0).max(0.05),
        // What comes between two losses says little of the line.
        Bottleneck::CongestionLoss => whole.line_bytes_per_s? * REACHED,
        _ => capacity(whole) * REACHED,
    };
    let limit = whole.line_bytes_per_s.unwrap_or(f64::INFINITY);
    let possible = possible.min(limit);
    (possible > whole.bytes_per_s * WORTH).then_some(possible)
}

/// What the path can carry as far as is known: said, or seen for a moment.
fn capacity(whole: &Whole) -> f64 {
    let seen = whole.mean.peak_bytes_per_s.max(whole.bytes_per_s);
    whole.line_bytes_per_s.unwrap_or(seen)
}

/// The numbers for the sentences.
pub(super) fn situation(cause: Bottleneck, whole: &Whole) -> Situation {
    let mean = &whole.mean;
    let (target_share, application_share) = whole.silences();
    let (window, sent) = if whole.sends {
        (mean.send_window_bytes, Some(mean))
    } else {
        (mean.receive_window_bytes, None)
    };
    Situation {
        writes: whole.writes(),
        connections: whole.connections,
        rtt_us: mean.base_rtt_us,
        bytes_per_s: whole.bytes_per_s,
        capacity_bytes_per_s: capacity(whole),
        expected_bytes_per_s: expected(cause, whole),
        in_flight_bytes: mean.in_flight_bytes_max,
        send_buffer_bytes: sent.map(|mean| mean.send_buffer_bytes),
        window_bytes: window,
        cwnd_bytes: sent.map(|mean| mean.cwnd_bytes),
        loss: whole.loss(),
        burst_bytes: mean.burst_bytes * whole.connections,
        outstanding: None,
        r2ts: None,
        target_share,
        application_share,
        own_initiator: whole.own_initiator,
        line_can_be_said: whole.line_bytes_per_s.is_none(),
    }
}
