//! Holds commands back so that they carry no more than a rate: a bucket whose level is the time at
//! which the next command may go. Both directions count, because a read's data is asked for here.

use std::time::Duration;

use iscsi_proto::time::Instant;

/// What may go at once after a pause, as time at the rate: long enough that a timer's slack does
/// not cost throughput, short enough not to fill a queue of the path.
const BURST: Duration = Duration::from_millis(20);

/// A limit on what commands carry.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    bytes_per_s: Option<f64>,
    free_at: Instant,
    /// A command waits for `free_at`.
    holding: bool,
    /// Since when one has waited, and how long others did before.
    since: Option<Instant>,
    waited: Duration,
}

impl Throttle {
    /// Sets the limit; none lets everything pass.
    pub(super) fn set_rate(&mut self, bytes_per_s: Option<f64>, now: Instant) {
        if self.bytes_per_s.is_some() != bytes_per_s.is_some() {
            self.free_at = now;
        }
        self.bytes_per_s = bytes_per_s.filter(|rate| *rate > 0.0);
    }

    /// The next command has to wait; [`Self::free_at`] tells until when.
    pub(super) fn holds(&mut self, now: Instant) -> bool {
        self.holding = self.bytes_per_s.is_some() && self.free_at > now;
        if self.holding {
            self.since.get_or_insert(now);
        }
        self.holding
    }

    /// There is a limit: whoever comes now goes behind those that wait.
    pub(super) fn is_set(&self) -> bool {
        self.bytes_per_s.is_some()
    }

    /// What goes is to be [spent](Self::spend): there is a limit, or one was waited for.
    pub(super) fn counts(&self) -> bool {
        self.is_set() || self.since.is_some()
    }

    /// When the command that was held back may go.
    pub(super) fn free_at(&self) -> Option<Instant> {
        self.holding.then_some(self.free_at)
    }

    /// That time has come, or nobody waits any more.
    pub(super) fn let_go(&mut self) {
        self.holding = false;
    }

    /// Time in which a command has waited for the rate, all in all.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        self.waited + self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A command with so much payload goes.
    pub(super) fn spend(&mut self, bytes: u64, now: Instant) {
        self.waited = self.waited(now);
        self.since = None;
        let Some(rate) = self.bytes_per_s else { return };
        let earliest = Instant(now.0.saturating_sub(BURST));
        let cost = Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        self.free_at = Instant(self.free_at.max(earliest).0.saturating_add(cost));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_rate_passes_and_a_pause_earns_little() {
        let at = |ms: u64| Instant(Duration::from_millis(ms));
        let mut throttle = Throttle::default();
        throttle.spend(1 << 30, at(0));
        assert!(!throttle.holds(at(0)), "no limit");
        throttle.set_rate(Some(1e6), at(0));
        let mut passed = 0;
        for ms in 0..1000 {
            while !throttle.holds(at(ms)) {
                throttle.spend(1000, at(ms));
                passed += 1000;
            }
        }
        assert!((1_000_000..=1_030_000).contains(&passed), "{passed}");
        // There was always one that waited.
        let waited = throttle.waited(at(1000));
        assert!(
            waited > Duration::from_millis(950) && waited <= Duration::from_secs(1),
            "{waited:?}"
        );
        let mut burst = 0;
        while !throttle.holds(at(60_000)) {
            throttle.spend(1000, at(60_000));
            burst += 1000;
        }
        assert!((20_000..=21_000).contains(&burst), "{burst}");
        assert!(throttle.holds(at(60_000)) && throttle.free_at() > Some(at(60_000)));
        throttle.let_go();
        assert_eq!(throttle.free_at(), None);
        throttle.set_rate(None, at(60_000));
        assert!(!throttle.holds(at(60_000)));
    }
}
