//! The round trip has doubled: is it a queue, or is the path longer now? Under way is the same in
//! either case, and so is what is carried, at first. But a queue empties when it is given less than
//! the line carries, and a longer path stays as long as it is.

use super::recent::{Interval, Recent};

/// A rise of this part of the round trip and of this time is worth the question; a smaller one, or
/// a queue that was met late, costs less than that.
const RISE_SHARE: f64 = 1.0;
const RISE_S: f64 = 0.015;
/// While it is asked, this part of what was carried is given.
const GIVEN: f64 = 0.5;
/// More than is given by this factor comes from a queue.
const ADDED: f64 = 1.1;
/// It is given so little from when on this part is carried: what was asked for before comes first.
const REACHED: f64 = 0.7;
/// A queue that is given half empties in twice its own length, which shows a round trip later.
const EMPTIES: f64 = 2.0;
const SHOWS: f64 = 1.5;
const SHOWS_S: f64 = 0.1;
/// A rise that has become larger by this factor was met in its midst: it is asked about anew.
const GROWN: f64 = 1.25;
/// A queue has lost this part of itself by then.
const GONE: f64 = 0.25;
/// A longer path varies by less than this part of the rise; what others fill varies by more.
const STEADY: f64 = 0.05;
/// Storage or reads that were asked for long ago may hide the answer.
const PATIENCE_S: f64 = 3.0;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A queue: it empties.
    Queue,
    /// The path: nothing changes.
    Path,
    /// Neither for sure.
    Unclear,
}

/// The question, being asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    base_s: f64,
    rtt_s: f64,
    /// What was carried before.
    carried: f64,
    begun_s: f64,
    reached_s: Option<f64>,
}

impl Stretch {
    /// Is a round trip so long that the question is worth asking?
    pub(super) fn is_worth_it(rtt_s: f64, base_s: f64) -> bool {
        rtt_s - base_s > RISE_S.max(RISE_SHARE * base_s)
    }

    /// Begins to ask.
    pub(super) fn new(base_s: f64, rtt_s: f64, carried: f64, now_s: f64) -> Self {
        Self { base_s, rtt_s, carried, begun_s: now_s, reached_s: None }
    }

    /// What the line carries: what was carried before, or what comes now, if that is less although
    /// a queue still adds to it.
    pub(super) fn line(&self, now: f64) -> f64 {
        if now > ADDED * self.bytes_per_s() { self.carried.min(now) } else { self.carried }
    }

    /// The rate to keep to meanwhile, in bytes a second.
    pub(super) fn bytes_per_s(&self) -> f64 {
        GIVEN * self.carried
    }

    /// Takes the newest of the intervals; the answer, if it is there.
    pub(super) fn handle(&mut self, seen: Interval, recent: &Recent) -> Option<Answer> {
        let rise_s = self.rtt_s - self.base_s;
        if seen.rtt_s - self.base_s > GROWN * rise_s {
            (self.rtt_s, self.begun_s, self.reached_s) = (seen.rtt_s, seen.t_s, None);
            return None;
        }
        if self.rtt_s - seen.rtt_s > GONE * rise_s {
            return Some(Answer::Queue);
        }
        if seen.bytes_per_s <= REACHED * self.carried {
            self.reached_s.get_or_insert(seen.t_s);
        }
        let late = seen.t_s - self.begun_s > PATIENCE_S;
        let Some(reached_s) = self.reached_s else { return late.then_some(Answer::Unclear) };
        if seen.t_s < reached_s + EMPTIES * rise_s + SHOWS * self.rtt_s + SHOWS_S {
            return None;
        }
        let since = recent.since(reached_s).map(|interval| interval.rtt_s);
        let (least_s, most_s) = since.fold((f64::INFINITY, 0.0_f64), |(least, most), rtt_s| {
            (least.min(rtt_s), most.max(rtt_s))
        });
        Some(if most_s - least_s <= STEADY * rise_s { Answer::Path } else { Answer::Unclear })
    }
}
