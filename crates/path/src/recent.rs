//! The last intervals of a transfer, and means over them. Arithmetic only; what an interval proves
//! is decided in [`super::model`].

use std::collections::VecDeque;

use super::model::PATIENCE_S;
use super::tcp::{SEGMENT_BYTES, median};

/// What lies between two samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    /// Its end, and how long it lasted, in seconds.
    pub(crate) t_s: f64,
    pub(crate) dt_s: f64,
    /// Payload of all connections.
    pub(crate) bytes_per_s: f64,
    /// Typical round trip; none where nothing was acknowledged.
    pub(crate) rtt_s: Option<f64>,
    /// Segments sent again.
    pub(crate) retransmits: f64,
    /// Congestion windows that were cut for that.
    pub(crate) cuts: f64,
    /// The sender had enough to fill the line.
    pub(crate) full: bool,
    /// What the line was believed to carry when it began.
    pub(crate) believed: f64,
}

/// A base delay is the shortest of so many minima, each over seconds (`BASE_HISTORY`, RFC 6817
/// §3.4.2: ten minutes).
const MINIMA: (usize, f64) = (10, PATIENCE_S.1);

/// The least of the last minutes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Minima(VecDeque<(f64, f64)>);

impl Minima {
    /// Adds a value, if there is one, and answers the least.
    pub(crate) fn note(&mut self, t_s: f64, value: Option<f64>) -> Option<f64> {
        match self.0.back_mut().filter(|(began_s, _)| t_s - *began_s < MINIMA.1) {
            Some((_, least)) => *least = value.map_or(*least, |value| least.min(value)),
            None => self.0.extend(value.map(|value| (t_s, value))),
        }
        if self.0.len() > MINIMA.0 {
            self.0.pop_front();
        }
        self.0.iter().map(|(_, least)| *least).reduce(f64::min)
    }
}

/// The last intervals, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent(VecDeque<Interval>);

impl Recent {
    /// Adds one and forgets what ended longer than `keep_s` before it.
    pub(crate) fn push(&mut self, interval: Interval, keep_s: f64) {
        self.0.push_back(interval);
        while self.0.front().is_some_and(|first| interval.t_s - first.t_s > keep_s) {
            self.0.pop_front();
        }
    }

    /// Those that began at `t_s` or later, to within the jitter of a timer.
    pub(crate) fn since(&self, t_s: f64) -> impl Iterator<Item = &Interval> {
        self.0.iter().filter(move |one| one.t_s - 0.6 * one.dt_s >= t_s)
    }

    /// What was carried since a time, in bytes a second; none without an interval.
    pub(crate) fn mean(&self, since_s: f64) -> Option<f64> {
        mean(self.since(since_s))
    }

    /// The most that was carried over a span that ended since a time.
    pub(crate) fn most(&self, since_s: f64, span_s: f64) -> f64 {
        let ends = self.since(since_s).map(|one| one.t_s);
        let over = |end_s: f64| mean(self.since(end_s - span_s).filter(|one| one.t_s <= end_s));
        ends.filter_map(over).fold(0.0, f64::max)
    }

    /// The shortest round trip since a time.
    pub(crate) fn least_rtt_s(&self, since_s: f64) -> Option<f64> {
        self.since(since_s).filter_map(|one| one.rtt_s).reduce(f64::min)
    }

    /// By what round trips differ from one interval to the next since a time, in the middle: not by
    /// what a queue does that fills or empties now and then.
    pub(crate) fn jitter_s(&self, since_s: f64) -> f64 {
        let rtts: Vec<f64> = self.since(since_s).filter_map(|one| one.rtt_s).collect();
        let mut steps: Vec<f64> = rtts.windows(2).map(|pair| (pair[1] - pair[0]).abs()).collect();
        median(&mut steps).unwrap_or(0.0)
    }

    /// Segments sent again since a time, as a share of all.
    pub(crate) fn loss(&self, since_s: f64) -> f64 {
        let (lost, sent) = self.sums(since_s, |one| one.retransmits);
        if lost > 0.0 { lost / (sent + lost) } else { 0.0 }
    }

    /// The sum of a count since a time, and that of the segments that came.
    pub(crate) fn sums(&self, since_s: f64, count: fn(&Interval) -> f64) -> (f64, f64) {
        self.since(since_s).fold((0.0, 0.0), |(sum, sent), one| {
            (sum + count(one), sent + one.bytes_per_s * one.dt_s / SEGMENT_BYTES)
        })
    }
}

/// What was carried in these, in bytes a second; none without one.
pub(crate) fn mean<'a>(intervals: impl Iterator<Item = &'a Interval>) -> Option<f64> {
    let (bytes, seconds) = intervals.fold((0.0, 0.0), |(bytes, seconds), one| {
        (bytes + one.bytes_per_s * one.dt_s, seconds + one.dt_s)
    });
    (seconds > 0.0).then(|| bytes / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenth(t_s: f64, bytes_per_s: f64, rtt_s: f64, full: bool) -> Interval {
        Interval {
            t_s,
            dt_s: 0.1,
            bytes_per_s,
            rtt_s: Some(rtt_s),
            retransmits: bytes_per_s * 0.1 / SEGMENT_BYTES,
            cuts: 0.0,
            full,
            believed: 0.0,
        }
    }

    #[test]
    fn means_weigh_time_and_forget() {
        let mut recent = Recent::default();
        for n in 1..=10 {
            let rate = f64::from(n) * 1e6;
            recent.push(tenth(f64::from(n) / 10.0, rate, 0.05 + rate * 1e-9, n % 2 == 0), 0.5);
        }
        assert_eq!(recent.mean(0.8), Some(9.5e6));
        assert_eq!(mean(recent.since(0.8).filter(|one| one.full)), Some(10e6));
        assert_eq!(recent.mean(1.0), None);
        assert_eq!(recent.most(0.0, 0.2), 9.5e6);
        assert_eq!(recent.least_rtt_s(0.0), Some(0.055), "what is older is forgotten");
        assert!((recent.loss(0.9) - 0.5).abs() < 1e-9);
    }
}
