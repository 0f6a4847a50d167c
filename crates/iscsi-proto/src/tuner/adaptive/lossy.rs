//! How much a path loses, whoever uses it, and how many connections that takes: each step of a search
//! on such a path costs a slow start and its losses, so the number is computed and tried at once.

use super::super::{CongestionControl, Connection, Sample};
use super::constants::*;
use crate::plan::{PathPlan, SEGMENT_BYTES};

/// Segments sent and lost while no queue could have lost them; older ones count less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lossy {
    segments: f64,
    lost: f64,
    /// When a queue was last seen. What it loses is sent again a few round trips later.
    crowded_s: f64,
    /// Since when their share is known.
    known_s: Option<f64>,
}

impl Default for Lossy {
    fn default() -> Self {
        Self { segments: 0.0, lost: 0.0, crowded_s: f64::NEG_INFINITY, known_s: None }
    }
}

impl Lossy {
    /// Takes an interval.
    pub(super) fn handle_sample(&mut self, sample: &Sample, interval_s: f64) {
        let rtt_us = sample.typical(|tcp| tcp.rtt_us);
        let Some((rtt_us, least_us)) = rtt_us.zip(sample.least_rtt_us()) else { return };
        let queue_s = (rtt_us - least_us) / 1e6;
        let (rtt_s, least_s) = (rtt_us / 1e6, least_us / 1e6);
        let retransmits = |c: &Connection| c.tcp.retransmits.filter(|count| count.is_finite());
        let lost: f64 = sample.connections.iter().filter_map(retransmits).sum();
        let segments = sample.bytes_per_s * interval_s / SEGMENT_BYTES;
        let many = lost > LOSSY_LOST_MIN.max(LOSSY_SHARE_MAX * segments);
        if many || queue_s > LOSSY_QUEUE_S.max(LOSSY_QUEUE_SHARE * least_s) {
            self.crowded_s = sample.t_s;
        }
        if sample.t_s - self.crowded_s < LOSSY_CLEAR_S.max(LOSSY_CLEAR_ROUND_TRIPS * rtt_s) {
            return;
        }
        let kept = (-interval_s / LOSSY_MEMORY_S).exp();
        self.segments = kept * self.segments + segments;
        self.lost = kept * self.lost + lost;
        let known = self.lost >= LOSSY_LOST_MIN && self.segments > self.lost;
        self.known_s = known.then(|| self.known_s.unwrap_or(sample.t_s));
    }

    /// There are losses that are no queue's.
    pub(super) fn is_known(&self) -> bool {
        self.known_s.is_some()
    }

    /// The share of segments that is lost at least, but for one standard error of their count: few
    /// losses ask for few connections, and for more of them when they go on.
    fn share(&self) -> f64 {
        (self.lost - self.lost.sqrt()) / self.segments
    }

    /// Connections that fill a gigabit, or what was carried if that is more, with these losses; none if
    /// there are too few to tell, or a congestion control that bears them will be there in a moment.
    pub(super) fn connections(
        &self,
        sample: &Sample,
        available: &[CongestionControl],
    ) -> Option<u32> {
        let for_s = sample.t_s - self.known_s?;
        let known = |c: &Connection| c.tcp.congestion_control;
        let control = sample.connections.iter().find_map(known).or(sample.tcp.congestion_control);
        let may_change = available.iter().any(|one| control.is_some_and(|control| *one > control))
            && for_s < LOSSY_CHANGE_S;
        if may_change {
            return None;
        }
        let bytes_per_s = GUESS_BYTES_PER_S.max(sample.bytes_per_s);
        let (rtt_s, loss) = (sample.least_rtt_us()? / 1e6, self.share());
        let path = PathPlan {
            bits_per_s: 8.0 * bytes_per_s,
            rtt_s,
            loss,
            queue_packets: None,
            wmem_bytes: f64::INFINITY,
            rmem_bytes: f64::INFINITY,
            streams: None,
        };
        let cubic = path.outcome(CongestionControl::Cubic);
        // What the other end sends with, is seen by how it bears the losses.
        let one = sample.bytes_per_s / f64::from(sample.connections_open.max(1));
        let bears = control.is_none() && one > LOSSY_BORNE * cubic.one_bytes_per_s;
        if bears || control == Some(CongestionControl::Bbr) {
            // It keeps its rate, but a round trip long a connection repairs what it has lost.
            let lost = bytes_per_s / SEGMENT_BYTES * loss * rtt_s;
            return Some((lost / REPAIRING_SHARE).ceil() as u32);
        }
        Some(control.map_or(cubic.connections, |control| path.outcome(control).connections))
    }
}
