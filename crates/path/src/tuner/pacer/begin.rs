//! When the pacer begins: a queue that is ours, on a path that is used. What looks like one in the
//! first round trips of a session, or while windows still double, is none.

use super::constants::*;
use super::{Capped, Pacer, Seen};
use crate::limit::Bottleneck;

impl Pacer {
    pub(super) fn begin(&self, seen: &Seen, limit: Bottleneck) -> Option<Capped> {
        // Little is under way also where commands wait for the rate of a path that is being opened.
        let best = self.best(f64::NEG_INFINITY);
        let starved = limit == Bottleneck::Application || !self.has_enough(best);
        let idle = starved && self.held_share < ALWAYS_SHARE;
        let quiet = seen.bytes_per_s <= 0.0 || idle;
        let ours = seen.is_crowded() && !self.may_be_late(seen) && !self.rises(seen);
        if !ours || quiet || seen.t_s < self.free_until_s {
            return None;
        }
        let settle_s = SETTLE_FIRST_ROUND_TRIPS * seen.rtt_s;
        Some(self.seek(best, best, seen, f64::NEG_INFINITY, settle_s))
    }

    /// The queue may be one late segment of a session that has just begun.
    fn may_be_late(&self, seen: &Seen) -> bool {
        let age_s = seen.t_s - self.t_first_s.unwrap_or(seen.t_s);
        let for_s = seen.t_s - self.crowded_s.unwrap_or(seen.t_s);
        age_s < YOUNG_ROUND_TRIPS * self.base_s && for_s < self.base_s
    }

    /// More is carried with each sample, so it is not the line that is full.
    fn rises(&self, seen: &Seen) -> bool {
        let before = self.recent.since(f64::NEG_INFINITY).filter(|one| one.t_s < seen.t_s);
        let most = before.map(|interval| interval.bytes_per_s).fold(0.0, f64::max);
        !seen.lost && seen.queue <= BURSTS_MAX && seen.bytes_per_s > RISES * most
    }

    /// The session is new, and no higher rate was seen to be too high.
    pub(super) fn is_to_open_again(&self, capped: &Capped, seen: &Seen) -> bool {
        let age_s = seen.t_s - self.t_first_s.unwrap_or(seen.t_s);
        age_s < NEW_S + NEW_ROUND_TRIPS * self.base_s
            && capped.empties == 0
            && capped.ceiling <= capped.bytes_per_s
            && capped.bytes_per_s > OPEN_AGAIN * self.opened_again
    }
}
