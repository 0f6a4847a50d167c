//! What a path carried lately: the last intervals, and means over spans of round trips.

use std::collections::VecDeque;

/// The unit of spans, in seconds, where the round trip is shorter.
const SPAN_S_MIN: f64 = 0.1;

/// An interval between two samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Its end.
    pub(super) t_s: f64,
    pub(super) bytes_per_s: f64,
    pub(super) rtt_s: f64,
    /// The sender could have filled the line, as far as that was known.
    pub(super) full: bool,
}

/// Fewer intervals than these tell nothing of jumps.
const JUMPS_OF_MIN: usize = 10;

/// The last intervals, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent(VecDeque<Interval>);

impl Recent {
    /// Adds one and forgets those that ended longer than `keep_s` before it.
    pub(super) fn push(&mut self, interval: Interval, keep_s: f64) {
        self.0.push_back(interval);
        while self.0.front().is_some_and(|first| interval.t_s - first.t_s > keep_s) {
            self.0.pop_front();
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Those that ended since a time.
    pub(super) fn since(&self, t_s: f64) -> impl Iterator<Item = &Interval> {
        self.0.iter().filter(move |interval| interval.t_s >= t_s)
    }

    /// The shares of intervals whose round trip is longer, and shorter, than that of the one before
    /// by more than `least_s`.
    pub(super) fn jumps(&self, least_s: f64) -> (f64, f64) {
        let steps = self.0.iter().zip(self.0.iter().skip(1));
        let steps = steps.map(|(before, after)| after.rtt_s - before.rtt_s);
        let (rises, falls) = steps.fold((0, 0), |(rises, falls), step| {
            (rises + u32::from(step > least_s), falls + u32::from(step < -least_s))
        });
        let count = self.0.len().max(JUMPS_OF_MIN) as f64;
        (f64::from(rises) / count, f64::from(falls) / count)
    }

    /// What was carried lately on average, over a span of round trips.
    pub(super) fn mean(&self, span: f64, rtt_s: f64) -> f64 {
        self.0.back().map_or(0.0, |last| self.mean_until(last.t_s, span, rtt_s))
    }

    /// The same, of those intervals alone in which the sender could have filled the line; none if
    /// there is none.
    pub(super) fn mean_of_full(&self, span: f64, rtt_s: f64) -> Option<f64> {
        let from_s = self.0.back()?.t_s - span * SPAN_S_MIN.max(rtt_s);
        let full = self.0.iter().filter(|one| one.t_s > from_s && one.full);
        let (sum, count) = full.fold((0.0, 0_u32), |(sum, n), one| (sum + one.bytes_per_s, n + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// The same, over the span that ended at a time.
    pub(super) fn mean_until(&self, end_s: f64, span: f64, rtt_s: f64) -> f64 {
        let from_s = end_s - span * SPAN_S_MIN.max(rtt_s);
        let inside = self.0.iter().filter(|one| one.t_s > from_s && one.t_s <= end_s);
        let (sum, count) = inside.fold((0.0, 0), |(sum, n), one| (sum + one.bytes_per_s, n + 1));
        sum / f64::from(count.max(1))
    }
}
