//! How `adaptive` chooses its first number, waits for the connections that it asked for, and what
//! it takes for a refusal.

use super::super::{Decision, Sample, Why};
use super::constants::*;
use super::{Adaptive, Refusal, State};

impl Adaptive {
    /// The first sample.
    pub(super) fn begin(&mut self, sample: &Sample) {
        // Reserve for the time before the first change.
        (self.settled_s, self.moved_s, self.shrink_s) = (sample.t_s, sample.t_s, sample.t_s);
        self.guessed = self.config.window_bytes > 0 && self.rtt_known;
        if let Some(connections) = self.guess(sample) {
            self.move_to(connections, sample.t_s, State::Measure, Why::LongPath);
        }
    }

    /// More connections than the first number, if the windows fill a gigabit over this round trip
    /// only with more. A search that begins too low takes a slow start for each step.
    pub(super) fn guess(&self, sample: &Sample) -> Option<u32> {
        let rtt_s = sample.typical(|tcp| tcp.min_rtt_us.or(tcp.rtt_us))? / 1e6;
        let windows = GUESS_SPARE * GUESS_BYTES_PER_S * rtt_s / self.config.window_bytes as f64;
        let wanted = if windows.is_finite() { windows.ceil() as u32 } else { 0 };
        let wanted = wanted.min(GUESS_MAX).min(self.connections_max());
        (wanted > self.connections).then_some(wanted)
    }

    /// Waits for connections that were asked for; takes what is there when no more come.
    pub(super) fn opening(&mut self, sample: &Sample) -> Decision {
        let (t_s, open) = (sample.t_s, sample.connections_open);
        let late = self.refusal.is_some_and(|r| r.granted == self.connections && open > r.granted);
        if late && open <= self.config.connections_max {
            // They were slow, not refused.
            self.refusal = None;
            self.move_to(open, t_s, State::Measure, Why::Measuring);
        }
        // As long as some arrive, more may.
        let waited_s = t_s - self.moved_s.max(self.open.1);
        let patience_s = if self.rtt_known { REFUSED_S_MIN } else { REFUSED_UNKNOWN_S };
        let patience_s = patience_s.max(REFUSED_WINDOWS * self.window_s);
        if open < self.connections && waited_s > patience_s {
            let granted = open.max(1);
            self.refusal = Some(Refusal { granted, until_s: t_s + self.refusal_pause_s });
            self.refusal_pause_s = (self.refusal_pause_s * 2.0).min(REFUSAL_PAUSE_S_MAX);
            self.short = None;
            self.enough = None;
            self.look_again_s = t_s + self.look_pause_s;
            self.hold(granted, sample.bytes_per_s, t_s, Why::Refused);
            return self.decision(sample, None, Why::Refused);
        }
        self.settled_s = t_s + self.window_s;
        self.windows.clear();
        self.decision(sample, None, Why::Opening)
    }
}
