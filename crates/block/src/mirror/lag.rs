//! Whether a write may be issued now, and which legs are left behind: the bound of the lag as
//! decisions. Pure: no I/O, no time.
//!
//! The bound holds for legs whose image is *promised*: a legal one, of a moment not longer ago than
//! the lag. While a leg is being caught up its image is none, and only the memory of the log is
//! bounded: then writes wait, whatever is configured, since leaving such a leg behind would begin
//! its catch-up anew. For the same reason they wait while a leg that has all but the log is
//! *nearing*: its image is promised once what waits for it is well within the lag.

use std::time::Duration;

use super::config::{Config, Lag, OnLag, OnLoss};
use super::epoch::Backlog;

/// A leg that gets the log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// Its number.
    pub(crate) leg: usize,
    /// How far it is behind.
    pub(crate) backlog: Backlog,
    /// Its image is a legal one of a moment within the lag.
    pub(crate) promised: bool,
    /// It will be, as soon as what waits for it is [well within](Self::is_well_within) the lag.
    pub(crate) nearing: bool,
    /// It has not answered for so long; None while it is connected.
    pub(crate) silent: Option<Duration>,
    /// Bytes that get there within the lag, as far as is known.
    pub(crate) carried: u64,
}

impl Standing {
    /// With `bytes` more the leg would not have everything within the lag, although nothing is
    /// older yet. What a leg out of reach can take is not known.
    fn cannot_take(&self, bytes: u64) -> bool {
        let waiting = self.backlog.bytes;
        self.silent.is_none() && waiting > 0 && waiting + bytes > self.carried
    }

    /// With `bytes` more it would have everything in time, and half of both bounds is left for what
    /// is written from then on: with less it would be over them again a moment later.
    pub(crate) fn is_well_within(&self, lag: Lag, bytes: u64) -> bool {
        let is_young = self.backlog.age < lag.age / 2;
        let is_small = self.backlog.bytes + bytes <= lag.bytes / 2;
        self.backlog.epochs == 0 || (is_young && is_small && !self.cannot_take(bytes))
    }
}

/// What becomes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is issued.
    Go,
    /// It waits.
    Wait,
    /// It is issued once these legs get nothing more of the log.
    LeaveBehind(Vec<usize>),
    /// It fails, since this leg is too far behind.
    Stop(usize),
}

/// What becomes of a write that takes `bytes` of memory, where `held_bytes` are taken.
pub(crate) fn admit(config: &Config, bytes: u64, held_bytes: u64, legs: &[Standing]) -> Verdict {
    // One that is larger than the bound goes alone.
    let full = held_bytes > 0 && held_bytes + bytes > config.lag.bytes;
    let furthest = legs.iter().map(|leg| leg.backlog.bytes).max().unwrap_or_default();
    let is_over = |leg: &&Standing| {
        let is_furthest = full && leg.backlog.epochs > 0 && leg.backlog.bytes == furthest;
        let slows = config.lag.on == OnLag::Slow && leg.cannot_take(bytes);
        leg.promised && (is_furthest || leg.backlog.age >= config.lag.age || slows)
    };
    let over: Vec<usize> = legs.iter().filter(is_over).map(|leg| leg.leg).collect();
    let holds = |leg: &Standing| leg.nearing && !leg.is_well_within(config.lag, bytes);
    match (config.lag.on, over.first()) {
        (_, None) if full || legs.iter().any(holds) => Verdict::Wait,
        (_, None) => Verdict::Go,
        (OnLag::Slow, Some(_)) => Verdict::Wait,
        (OnLag::FallBehind, Some(_)) => Verdict::LeaveBehind(over),
        (OnLag::Stop, Some(leg)) => Verdict::Stop(*leg),
    }
}

/// What is due without a write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Legs that get nothing more of the log.
    pub(crate) leave_behind: Vec<usize>,
    /// A leg that is so far behind that writes fail from now on.
    pub(crate) stop: Option<usize>,
    /// When to look again, from now.
    pub(crate) next: Option<Duration>,
}

/// What is due now; `waiting`: a write waits.
pub(crate) fn due(config: &Config, waiting: bool, legs: &[Standing]) -> Due {
    let mut due = Due::default();
    for leg in legs.iter().filter(|leg| leg.promised && leg.backlog.epochs > 0) {
        let left = config.lag.age.saturating_sub(leg.backlog.age);
        let next = match config.lag.on {
            OnLag::FallBehind if left.is_zero() => {
                due.leave_behind.push(leg.leg);
                continue;
            }
            OnLag::Stop if left.is_zero() => {
                due.stop.get_or_insert(leg.leg);
                continue;
            }
            OnLag::FallBehind | OnLag::Stop => left,
            // What waits for a leg that does not answer waits as long as it takes to be sure.
            OnLag::Slow => match leg.silent {
                Some(silent) if waiting && config.on_loss == OnLoss::Continue => {
                    let left = config.remote_timeout.saturating_sub(silent);
                    if left.is_zero() {
                        due.leave_behind.push(leg.leg);
                        continue;
                    }
                    left
                }
                _ => continue,
            },
        };
        due.next = Some(due.next.map_or(next, |known| known.min(next)));
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn config(on: OnLag) -> Config {
        Config { lag: Lag { age: 5000 * MS, bytes: 1000, on }, ..Config::default() }
    }

    fn leg(leg: usize, bytes: u64, age_ms: u32) -> Standing {
        let epochs = u64::from(bytes > 0);
        let backlog = Backlog { bytes, age: MS * age_ms, epochs };
        Standing { backlog, leg, promised: true, carried: u64::MAX, ..Standing::default() }
    }

    #[test]
    fn at_either_bound_what_was_configured_happens() {
        let near = [leg(0, 10, 100)];
        let old = [leg(0, 10, 5000), leg(1, 10, 4999)];
        let large = [leg(0, 990, 10), leg(1, 400, 10)];
        for on in [OnLag::Slow, OnLag::FallBehind, OnLag::Stop] {
            assert_eq!(admit(&config(on), 990, 10, &near), Verdict::Go);
            assert_eq!(admit(&config(on), 5000, 0, &[leg(0, 0, 0)]), Verdict::Go, "alone");
        }
        let verdicts = [Verdict::Wait, Verdict::LeaveBehind(vec![0]), Verdict::Stop(0)];
        for (on, verdict) in [OnLag::Slow, OnLag::FallBehind, OnLag::Stop].into_iter().zip(verdicts)
        {
            assert_eq!(admit(&config(on), 1, 20, &old), verdict);
            assert_eq!(admit(&config(on), 11, 990, &large), verdict);
        }
    }

    #[test]
    fn a_leg_that_is_caught_up_bounds_memory_alone_and_is_not_left_behind_for_it() {
        let catching_up = [Standing { promised: false, ..leg(0, 900, 90_000) }];
        for on in [OnLag::Slow, OnLag::FallBehind, OnLag::Stop] {
            assert_eq!(admit(&config(on), 100, 900, &catching_up), Verdict::Go);
            assert_eq!(admit(&config(on), 101, 900, &catching_up), Verdict::Wait);
            assert_eq!(due(&config(on), true, &catching_up), Due::default());
        }
    }

    #[test]
    fn a_leg_that_nears_holds_writes_up_until_half_of_the_lag_is_left() {
        let nearing = |leg| Standing { promised: false, nearing: true, ..leg };
        for on in [OnLag::Slow, OnLag::FallBehind, OnLag::Stop] {
            let look = |leg| admit(&config(on), 10, 100, &[nearing(leg)]);
            assert_eq!(look(leg(0, 100, 2499)), Verdict::Go);
            assert_eq!(look(leg(0, 100, 2500)), Verdict::Wait, "and it is not left behind");
            assert_eq!(look(Standing { carried: 109, ..leg(0, 100, 10) }), Verdict::Wait);
            assert_eq!(look(leg(0, 490, 10)), Verdict::Go);
            assert_eq!(look(leg(0, 491, 10)), Verdict::Wait);
            assert_eq!(look(leg(0, 0, 9000)), Verdict::Go, "nothing waits for it");
            assert_eq!(due(&config(on), true, &[nearing(leg(0, 100, 9000))]), Due::default());
        }
    }

    #[test]
    fn what_is_admitted_and_not_issued_yet_leaves_nobody_behind() {
        let idle = [leg(0, 0, 0)];
        assert_eq!(admit(&config(OnLag::FallBehind), 600, 600, &idle), Verdict::Wait);
    }

    #[test]
    fn writes_that_wait_take_no_more_than_gets_there_within_the_lag() {
        let slow = Standing { carried: 500, ..leg(0, 400, 10) };
        let look = |on, bytes, leg| admit(&config(on), bytes, 400, &[leg]);
        assert_eq!(look(OnLag::Slow, 100, slow), Verdict::Go);
        assert_eq!(look(OnLag::Slow, 101, slow), Verdict::Wait);
        assert_eq!(look(OnLag::FallBehind, 101, slow), Verdict::Go, "until it is too old");
        assert_eq!(look(OnLag::Stop, 101, slow), Verdict::Go, "until it is too old");
        assert_eq!(look(OnLag::Slow, 600, Standing { carried: 500, ..leg(0, 0, 0) }), Verdict::Go);
        assert_eq!(look(OnLag::Slow, 101, Standing { promised: false, ..slow }), Verdict::Go);
        let away = Standing { silent: Some(MS), ..slow };
        assert_eq!(look(OnLag::Slow, 101, away), Verdict::Go, "nothing is known of it");
    }

    #[test]
    fn age_is_bounded_without_writes() {
        let legs = [leg(0, 10, 4000), leg(1, 0, 0)];
        let look = |on, legs: &[Standing]| due(&config(on), false, legs);
        assert_eq!(look(OnLag::FallBehind, &legs).next, Some(1000 * MS));
        assert_eq!(look(OnLag::FallBehind, &[leg(2, 1, 5000)]).leave_behind, [2]);
        assert_eq!(look(OnLag::Stop, &[leg(2, 1, 5000)]).stop, Some(2));
        assert_eq!(look(OnLag::Slow, &[leg(2, 1, 5000)]), Due::default(), "nothing waits for it");
    }

    #[test]
    fn writes_wait_for_a_silent_leg_until_it_is_lost() {
        let silent = |ms| [Standing { silent: Some(MS * ms), ..leg(0, 10, 6000) }];
        let mut config = config(OnLag::Slow);
        assert_eq!(due(&config, true, &silent(4000)).next, Some(6000 * MS));
        assert_eq!(due(&config, true, &silent(10_000)).leave_behind, [0]);
        assert_eq!(
            due(&config, false, &silent(10_000)),
            Due::default(),
            "nobody waits: it may come back"
        );
        config.on_loss = OnLoss::Stop;
        assert_eq!(due(&config, true, &silent(10_000)), Due::default(), "a person decides");
    }
}
