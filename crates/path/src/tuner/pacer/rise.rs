//! How the pacer raises a rate that has no queue, and when it lets that be.

use super::super::rise_share;
use super::constants::*;
use super::{Capped, Pacer, Seen};

impl Pacer {
    /// All that is sent waits for the rate, without pauses.
    pub(super) fn binds(&self, capped: &Capped) -> bool {
        let mean = self.recent.mean(BINDS_SPAN, self.base_s);
        if self.held_share < ALWAYS_SHARE {
            return mean > 0.0 && mean >= BINDS_SHARE * capped.bytes_per_s;
        }
        // While the rate rises fast, the mean lags behind.
        let latest = self.recent.mean(LATEST_SPAN, self.base_s).max(mean);
        latest > 0.0 && latest >= FOLLOWS_SHARE * capped.bytes_per_s
    }

    /// Commands wait for the rate.
    pub(super) fn holds(&self) -> bool {
        self.held_share >= HELD_SHARE
    }

    /// The share of the rate that is carried, where the last step beyond the ceiling brought less
    /// than half of itself, and it is no pause of the application: what waits in the sockets
    /// instead of before them shows no faster line, and another step would only put more there. Not
    /// where something is lost: what is carried goes up and down then, below a rate that must not
    /// hold it.
    fn outruns(&self, capped: &Capped, seen: &Seen) -> Option<f64> {
        if self.is_losing(seen) {
            return None;
        }
        let step = capped.step / 2.0;
        let share = self.recent.mean(LATEST_SPAN, self.base_s) / capped.bytes_per_s;
        // A path that carries the rate holds no more than that (Little's law).
        let holds = capped.bytes_per_s * (self.base_s + OUTRUN_BURST_S);
        let waits = self.held_share >= ALWAYS_SHARE
            || self.fills_windows
            || self.outstanding > OUTRUN_FACTOR * holds;
        (waits && share < 1.0 - OUTRUN_SHARE * step - OUTRUN_ERROR).then_some(share)
    }

    /// Raises the rate, if it is what limits and there is no queue.
    pub(super) fn raise(&self, mut capped: Capped, seen: &Seen) -> Capped {
        // With pauses in it, what is sent does not tell at once what the line makes of the rate.
        let flows = self.binds(&capped);
        let flat = flows && seen.t_s - self.waited_s >= FLAT_S;
        let held = seen.t_s < capped.hold_until_s && !flat;
        let queue_s = seen.rtt_s - self.base_s;
        let filling = queue_s > QUEUE_SOME_S.max(QUEUE_SOME_SHARE * self.base_s);
        if !(flows || self.holds()) || held || filling {
            return capped;
        }
        let below = BELOW * capped.ceiling;
        let missing = below / capped.bytes_per_s - 1.0;
        if missing > STEP_MIN {
            capped.bytes_per_s *= 1.0 + (missing / 2.0).clamp(STEP_MIN, STEP_MAX);
        } else if missing > 0.0 {
            capped.bytes_per_s = below;
            capped.hold_until_s = seen.t_s + HOLD_S;
        } else {
            if let Some(share) = self.outruns(&capped, seen) {
                let beyond = capped.bytes_per_s > LAGS_BEYOND * capped.ceiling;
                return Capped { lags: beyond || share < LAGS_SHARE, ..capped };
            }
            capped.bytes_per_s *= 1.0 + capped.step;
            capped.step = (2.0 * capped.step).min(rise_share(capped.bytes_per_s, self.base_s));
        }
        let settle_s = match flows {
            true => SETTLE_RISEN_S + SETTLE_RISEN_ROUND_TRIPS * self.base_s,
            false => SETTLE_S + SETTLE_ROUND_TRIPS * self.base_s,
        };
        Capped { settled_s: seen.t_s + settle_s, risen: true, ..capped }
    }
}
