//! How `adaptive` waits for the connections that it asked for, and what it takes for a refusal.

use super::super::{Decision, Sample, Why};
use super::constants::*;
use super::{Adaptive, Refusal, State};

impl Adaptive {
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
