//! [`Pace`]: how fast a copy goes, and when it will be done. Pure: time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back the rate looks: long enough to be steady, short enough to follow a changed line.
const WINDOW: Duration = Duration::from_secs(10);

/// Time between two samples that are kept.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Least time that a rate is told of.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Bytes done over time.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Moment and bytes done then, oldest first.
    samples: VecDeque<(Duration, u64)>,
}

impl Pace {
    /// So many bytes were done at `now`. Fewer than before begin a new copy.
    pub(crate) fn note(&mut self, now: Duration, done: u64) {
        if self.samples.back().is_some_and(|(_, before)| *before > done) {
            self.samples.clear();
        }
        let last = self.samples.back().map(|(at, _)| *at);
        if last.is_some_and(|at| now < at + SAMPLE_EVERY) {
            return;
        }
        self.samples.push_back((now, done));
        // One sample older than the window stays, so that the window is covered.
        while self.samples.get(1).is_some_and(|(at, _)| *at + WINDOW <= now) {
            self.samples.pop_front();
        }
    }

    /// Bytes a second over the window; `None` before there is something to tell.
    pub(crate) fn bytes_per_s(&self) -> Option<u64> {
        let ((from, before), (to, done)) = (self.samples.front()?, self.samples.back()?);
        let time = to.checked_sub(*from).filter(|time| *time >= TELL_AFTER)?;
        Some(((done - before) as f64 / time.as_secs_f64()) as u64)
    }

    /// Time until `left` more bytes are done at this rate; `None` while none are.
    pub(crate) fn time_left(&self, left: u64) -> Option<Duration> {
        let rate = self.bytes_per_s().filter(|rate| *rate > 0)?;
        Some(Duration::from_secs_f64(left as f64 / rate as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let mut pace = Pace::default();
        assert_eq!(pace.bytes_per_s(), None);
        for second in 0..=20 {
            pace.note(s(second), 1000 * second);
        }
        assert_eq!(pace.bytes_per_s(), Some(1000));
        assert_eq!(pace.time_left(5000), Some(s(5)));
        // It stands still: after the window, nothing is promised any more.
        for second in 21..=40 {
            pace.note(s(second), 20_000);
        }
        assert_eq!(pace.bytes_per_s(), Some(0));
        assert_eq!(pace.time_left(5000), None);
    }

    #[test]
    fn a_new_copy_begins_anew() {
        let mut pace = Pace::default();
        pace.note(s(0), 0);
        pace.note(s(5), 50_000);
        assert_eq!(pace.bytes_per_s(), Some(10_000));
        pace.note(s(6), 0);
        assert_eq!(pace.bytes_per_s(), None);
        pace.note(s(8), 200);
        assert_eq!(pace.bytes_per_s(), Some(100));
    }

    #[test]
    fn many_looks_cost_no_memory() {
        let mut pace = Pace::default();
        for look in 0..100_000_u64 {
            pace.note(Duration::from_millis(look), look);
        }
        assert!(pace.samples.len() < 60, "{}", pace.samples.len());
        assert_eq!(pace.bytes_per_s(), Some(1000));
    }
}
