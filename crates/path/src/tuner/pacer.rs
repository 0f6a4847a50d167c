//! How fast all connections together may send and ask: just what the line carries.
//!
//! Without this, N windows of the kernel's size offer a long path more than it holds; its queue
//! runs over, all connections lose at once, and because a session's commands are delivered in order
//! (RFC 7143 §4.2.2.1) everything waits for the one that recovers last. With congestion windows
//! alone that happens again and again. So as soon as a queue shows in the round trip (or losses
//! that come with the load), the whole disk gets a rate: lowered until the queue is gone, then
//! raised slowly near the rate at which it came, and faster and faster beyond, where the path has
//! changed.
//!
//! A round trip that doubles at once may be that of a longer path, which is asked first
//! (`stretch`). A queue that stays although the rate fell by a fifth is not ours: others
//! fill it. Against those TCP's own rules are the fair ones, so the rate is set free.
//!
//! What tells of the line is a matter of its own (`evidence`): what an application carries that
//! pauses is no reason to lower anything.
//!
//! What it is not: it does not choose connections, and holds nothing back itself.

mod begin;
mod constants;
mod evidence;
mod rise;

use constants::*;
use evidence::Demand;
pub use evidence::{part, part_in_background, sending};

use super::limit::limit_of;
use super::recent::{Interval, Recent};
use super::stretch::{Answer, Stretch};
use super::{LONG_RTT_S, LOSING_S, Sample, rise_share};

/// What the pacer wants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Payload of all connections together, in bytes a second; none leaves it to TCP.
    pub bytes_per_s: Option<f64>,
    /// The line's rate is still being looked for: what is carried now says little.
    pub seeking: bool,
    /// It is this rate that limits, that is, the line.
    pub binds: bool,
    /// The line seems to have become faster, but what is carried stays far behind the rate.
    pub lags: bool,
    /// Round trip of the empty path in seconds, where the path has become longer than the kernel's
    /// minimum (Linux keeps that for five minutes, `tcp_min_rtt_wlen`).
    pub base_rtt_s: Option<f64>,
    /// The queue that began this was none of the line's: the path is to be filled like a new one.
    pub opens_again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Capped {
    bytes_per_s: f64,
    seeking: bool,
    /// Since when what was carried tells of the line that is sought.
    since_s: f64,
    /// The rate at which the queue came.
    ceiling: f64,
    /// The rate at the first of the cuts in a row.
    cut_from: Option<f64>,
    /// Times in a row that the queue was left to empty.
    empties: u32,
    /// The sample before showed a queue.
    crowded: bool,
    /// The last change was one upwards.
    risen: bool,
    /// It would be raised further, were not what is carried far behind it.
    lags: bool,
    /// The next step beyond the ceiling.
    step: f64,
    hold_until_s: f64,
    /// Samples that begin before this do not show the present rate.
    settled_s: f64,
    /// The round trip has doubled, and what that means is being found out; the rate before.
    stretch: Option<(Stretch, f64)>,
}

impl Capped {
    /// A rate that is known, of a line without a queue.
    fn new(bytes_per_s: f64, ceiling: f64, since_s: f64, settled_s: f64) -> Self {
        Self {
            bytes_per_s,
            seeking: false,
            since_s,
            ceiling,
            cut_from: None,
            empties: 0,
            crowded: false,
            risen: false,
            lags: false,
            step: STEP_MIN,
            hold_until_s: 0.0,
            settled_s,
            stretch: None,
        }
    }

    fn at_least(self, floor: f64) -> Self {
        Self { bytes_per_s: self.bytes_per_s.max(floor), ..self }
    }
}

/// Finds the rate of the line from samples.
#[derive(Clone, Debug)]
pub struct Pacer {
    capped: Option<Capped>,
    /// Round trip of the empty path, and whether it is ours because the kernel's is out of date.
    base_s: f64,
    base_is_ours: bool,
    free_until_s: f64,
    free_s: f64,
    t_last_s: Option<f64>,
    /// Connections in the last sample.
    open: u32,
    /// The first sample, and the first of those in a row that show a queue.
    t_first_s: Option<f64>,
    crowded_s: Option<f64>,
    /// The last sample with something in the queue, and the last that lost something.
    waited_s: f64,
    lost_s: f64,
    /// Share of the time in which commands waited for the rate, smoothed.
    held_share: f64,
    /// The connections' windows are full.
    fills_windows: bool,
    /// Payload under way: the more of the last two samples, and the last.
    outstanding: f64,
    outstanding_last: f64,
    /// What the sender had to send in the last interval.
    demand: Demand,
    /// The rate with which the path was opened again, and whether that was now.
    opened_again: f64,
    opens_again: bool,
    recent: Recent,
}

impl Default for Pacer {
    fn default() -> Self {
        Self {
            capped: None,
            base_s: f64::INFINITY,
            base_is_ours: false,
            free_until_s: 0.0,
            free_s: FREE_S,
            t_last_s: None,
            open: 0,
            t_first_s: None,
            crowded_s: None,
            waited_s: f64::NEG_INFINITY,
            lost_s: f64::NEG_INFINITY,
            held_share: 0.0,
            fills_windows: false,
            outstanding: 0.0,
            outstanding_last: 0.0,
            demand: Demand::default(),
            opened_again: 0.0,
            opens_again: false,
            recent: Recent::default(),
        }
    }
}

/// One sample as the pacer sees it.
struct Seen {
    from_s: f64,
    t_s: f64,
    bytes_per_s: f64,
    rtt_s: f64,
    /// The queue's length, as a part of one that counts.
    queue: f64,
    /// Packets are lost, more than by chance.
    lost: bool,
}

impl Seen {
    fn is_crowded(&self) -> bool {
        self.queue > 1.0 || self.lost
    }
}

impl Pacer {
    /// Takes one sample and answers how fast it may go. Samples come in the order of their time.
    pub fn handle_sample(&mut self, sample: &Sample) -> Pace {
        self.held_share += HELD_SMOOTHING * (sample.held_share - self.held_share);
        let from_s = self.t_last_s.replace(sample.t_s).unwrap_or(sample.t_s);
        self.t_first_s.get_or_insert(sample.t_s);
        let limit = limit_of(sample);
        self.demand = self.demand.after(sample, limit);
        if self.capped.is_some() && sample.typical(|tcp| tcp.rtt_us).is_none() {
            return self.pace(); // nothing was acknowledged: there is nothing to learn
        }
        let Some(seen) = self.look(sample, from_s) else {
            self.capped = None;
            return Pace::default();
        };
        let since_s = self.crowded_s.unwrap_or(seen.t_s);
        self.crowded_s = seen.is_crowded().then_some(since_s);
        if seen.queue > FLAT {
            self.waited_s = seen.t_s;
        }
        let outstanding = sample.outstanding_bytes.unwrap_or(0.0);
        self.outstanding =
            outstanding.max(std::mem::replace(&mut self.outstanding_last, outstanding));
        self.fills_windows = limit.is_per_connection();
        self.capped = match self.capped {
            None => self.begin(&seen, limit),
            Some(capped) => self.go_on(capped, &seen),
        };
        let floor = self.floor();
        self.capped = self.capped.map(|capped| capped.at_least(floor));
        self.pace()
    }

    fn pace(&mut self) -> Pace {
        let base_rtt_s = self.base_is_ours.then_some(self.base_s);
        let opens_again = std::mem::take(&mut self.opens_again);
        let free = Pace { base_rtt_s, opens_again, ..Pace::default() };
        self.capped.map_or(free, |capped| Pace {
            bytes_per_s: Some(capped.bytes_per_s),
            seeking: capped.seeking,
            binds: !capped.lags && self.binds(&capped),
            lags: capped.lags,
            ..free
        })
    }

    /// Begins with a rate that a new path was seen to carry without a queue.
    pub fn begin_with(&mut self, bytes_per_s: f64) -> Pace {
        if self.capped.is_none() && self.base_s.is_finite() {
            self.capped = Some(self.known_now(bytes_per_s, SETTLE_ROUND_TRIPS));
        }
        self.pace()
    }

    /// Forgets the rate, because far more connections will carry more than those that it was seen
    /// with.
    pub fn look_again(&mut self) {
        self.capped = None;
    }

    /// Keeps to a rate that the line was found to carry before, while new connections grow to it.
    pub fn keep_to(&mut self, bytes_per_s: f64) {
        let capped = self.known_now(bytes_per_s, SETTLE_NEW_ROUND_TRIPS);
        self.capped = Some(Capped { hold_until_s: capped.since_s + HOLD_S, ..capped });
    }

    /// A rate that the line carries; samples show it after so many round trips.
    fn known_now(&self, bytes_per_s: f64, round_trips: f64) -> Capped {
        let now_s = self.t_last_s.unwrap_or(0.0);
        let base_s = if self.base_s.is_finite() { self.base_s } else { 0.0 };
        let settled_s = now_s + SETTLE_S + round_trips * base_s;
        Capped::new(bytes_per_s, bytes_per_s, now_s, settled_s).at_least(self.floor())
    }

    /// None where the path is short or its round trip unknown.
    fn look(&mut self, sample: &Sample, from_s: f64) -> Option<Seen> {
        let t_s = sample.t_s;
        let fewer =
            sample.connections_open < std::mem::replace(&mut self.open, sample.connections_open);
        // What those carried that were closed is missing in the interval.
        let mean = if fewer { self.recent.mean(LINE_SPAN, self.base_s) } else { 0.0 };
        let bytes_per_s = sample.bytes_per_s.max(mean);
        let rtt_s = sample.typical(|tcp| tcp.rtt_us)? / 1e6;
        let least_s = sample.typical(|tcp| tcp.min_rtt_us).map_or(rtt_s, |us| us / 1e6);
        if least_s < LONG_RTT_S || !bytes_per_s.is_finite() || t_s < from_s {
            return None;
        }
        let known_s = if self.base_is_ours { rtt_s } else { least_s.min(rtt_s) };
        self.base_s = self.base_s.min(known_s);
        let base_s = self.base_s;
        let keep_s = BEST_S.max(BEST_ROUND_TRIPS * base_s);
        let believed = self.capped.map_or(bytes_per_s, |capped| capped.bytes_per_s);
        let full = self.fills(believed);
        self.recent.push(Interval { t_s, bytes_per_s, rtt_s, full }, keep_s);
        let retransmits: f64 = sample.connections.iter().filter_map(|c| c.tcp.retransmits).sum();
        if retransmits > 0.0 {
            self.lost_s = t_s;
        }
        let segments = bytes_per_s * (t_s - from_s) / SEGMENT_BYTES;
        let lost = retransmits > (LOSS_SHARE * segments).max(1.0);
        let queue = (rtt_s - base_s) / self.counts_s();
        Some(Seen { from_s, t_s, bytes_per_s, rtt_s, queue, lost })
    }

    /// A queue counts from this time on.
    fn counts_s(&self) -> f64 {
        QUEUE_MIN_S.max(QUEUE_SHARE * self.base_s)
    }

    /// The most that was carried since a time.
    fn best(&self, since_s: f64) -> f64 {
        let ends = self.recent.since(since_s).map(|interval| interval.t_s);
        ends.map(|end_s| self.recent.mean_until(end_s, BEST_SPAN, self.base_s)).fold(0.0, f64::max)
    }

    fn seek(
        &self,
        bytes_per_s: f64,
        ceiling: f64,
        seen: &Seen,
        since_s: f64,
        settle_s: f64,
    ) -> Capped {
        let cut_from = Some(bytes_per_s);
        let capped = Capped::new(bytes_per_s, ceiling, since_s, seen.t_s + settle_s);
        Capped { seeking: true, cut_from, crowded: true, ..capped }
    }

    /// The round trip has doubled: gives the line less until it is clear what that means.
    fn ask(&self, capped: Capped, seen: &Seen, carried: f64) -> Capped {
        let stretch = Stretch::new(self.base_s, seen.rtt_s, carried, seen.t_s);
        let bytes_per_s = stretch.bytes_per_s();
        let stretch = Some((stretch, capped.bytes_per_s));
        Capped { bytes_per_s, seeking: true, stretch, ..capped }
    }

    /// Goes on where the question that [`Self::ask`] asked is answered.
    fn answered(&mut self, capped: Capped, seen: &Seen) -> Capped {
        let Some((mut stretch, before)) = capped.stretch else { return capped };
        let &Seen { t_s, bytes_per_s, rtt_s, .. } = seen;
        let Some(answer) =
            stretch.handle(Interval { t_s, bytes_per_s, rtt_s, full: true }, &self.recent)
        else {
            return Capped { stretch: Some((stretch, before)), ..capped };
        };
        let settle_s = SETTLE_S + SETTLE_ROUND_TRIPS * rtt_s;
        // Without a queue it is what we give that comes now.
        let stands = seen.queue > 1.0;
        let now = self.recent.mean_of_full(LINE_SPAN, self.base_s).filter(|_| stands);
        let now = now.unwrap_or(f64::INFINITY);
        let line = stretch.line(now);
        let found = self.seek(line, before, seen, seen.t_s - settle_s, settle_s);
        match answer {
            // As if it had just been lowered below what the line carries.
            Answer::Queue => Capped { bytes_per_s: CUT * line, ceiling: line, ..found },
            Answer::Unclear => found,
            Answer::Path => {
                (self.base_s, self.base_is_ours) = (rtt_s, true);
                self.recent.clear();
                let (seeking, cut_from) = (false, None);
                let (bytes_per_s, ceiling, crowded) = (before, capped.ceiling, false);
                Capped { bytes_per_s, ceiling, seeking, cut_from, crowded, ..found }
            }
        }
    }

    fn is_losing(&self, seen: &Seen) -> bool {
        seen.t_s - self.lost_s <= LOSING_S
    }

    /// Losses keep what is carried below the rate, and a short queue is none of it: lowered for
    /// that, it would soon be the rate that limits.
    fn losses_hold(&self, capped: &Capped, seen: &Seen) -> bool {
        let losing = self.is_losing(seen) && !seen.lost;
        let short = seen.queue <= QUEUE_SHORT;
        losing && short && !self.binds(capped) && !self.holds()
    }

    /// Round trips go up and down by more than a line can fill and empty a queue between two
    /// samples.
    fn is_jittery(&self, seen: &Seen) -> bool {
        let (rises, falls) = self.recent.jumps(JITTER * self.counts_s());
        rises.min(falls) >= JITTER_SHARE && seen.t_s - self.lost_s > BEST_S
    }

    /// With the queue that has been there all the time lately.
    fn standing(&self, seen: &Seen) -> Seen {
        let lately = self.recent.since(seen.t_s - STANDING_S).map(|one| one.rtt_s);
        let rtt_s = lately.fold(seen.rtt_s, f64::min);
        Seen { rtt_s, queue: (rtt_s - self.base_s) / self.counts_s(), ..*seen }
    }

    /// The next rate; none sets it free.
    fn go_on(&mut self, mut capped: Capped, seen: &Seen) -> Option<Capped> {
        if capped.stretch.is_some() {
            return Some(self.answered(capped, seen));
        }
        capped.lags = false;
        let standing = self.standing(seen);
        let seen =
            if capped.seeking || seen.lost || !self.is_jittery(seen) { seen } else { &standing };
        let before = std::mem::replace(&mut capped.crowded, seen.is_crowded());
        let long = QUEUE_SHARE * self.base_s > QUEUE_MIN_S;
        let sure = before || long || seen.lost || seen.rtt_s - self.base_s > QUEUE_SURE_S;
        // What comes of a rise is met at once: soon there is no room for it any more.
        let risen = capped.risen && seen.is_crowded() && sure;
        if seen.bytes_per_s <= 0.0 || (seen.from_s < capped.settled_s && !risen) {
            return Some(capped);
        }
        if seen.is_crowded() {
            if (!sure || self.losses_hold(&capped, seen)) && !capped.seeking {
                return Some(capped);
            }
            if !seen.lost && !self.fills(capped.bytes_per_s) && !self.holds() {
                // What does not hold anything back has made no queue. It is a burst after a pause,
                // or somebody else's; neither tells what the line carries.
                (capped.seeking, capped.cut_from) = (false, None);
                return Some(capped);
            }
            let settled_s = seen.t_s + SETTLE_S + SETTLE_ROUND_TRIPS * self.base_s;
            let drain_s = (DRAIN_FACTOR * (seen.rtt_s - self.base_s)).clamp(0.0, DRAIN_S_MAX);
            let settled_s = settled_s + drain_s;
            return self
                .lower(capped, seen)
                .map(|lower| Capped { settled_s: lower.settled_s.max(settled_s), ..lower });
        }
        if capped.seeking {
            self.free_s = FREE_S;
            if capped.cut_from == Some(capped.bytes_per_s) {
                // It has gone by itself, a burst of slow starts perhaps: the line is elsewhere.
                if self.is_to_open_again(&capped, seen) {
                    (self.opened_again, self.opens_again) = (capped.bytes_per_s, true);
                    return None;
                }
                capped.step = ELSEWHERE_SHARE * rise_share(capped.bytes_per_s, self.base_s);
            }
        }
        (capped.seeking, capped.cut_from, capped.empties) = (false, None, 0);
        Some(self.raise(capped, seen))
    }

    /// Lowers the rate, because there is a queue.
    fn lower(&mut self, mut capped: Capped, seen: &Seen) -> Option<Capped> {
        // Without a queue it is the losses that hold it up.
        let queued = seen.queue > 1.0;
        // Behind a queue that stands, what is carried is what the line carries; unless losses are
        // being repaired, as after the queue that began it.
        let line = match capped.seeking {
            true => self.best(capped.since_s),
            false => match self.recent.mean_of_full(LINE_SPAN, self.base_s) {
                Some(mean) => mean.max(seen.bytes_per_s),
                None => capped.bytes_per_s,
            },
        };
        // With pauses of the application in it, that is less; what goes between them goes at the
        // rate.
        let pauses = self.holds() || !self.fills(capped.bytes_per_s);
        let line = if pauses { line.max(capped.bytes_per_s) } else { line };
        let slower = line < SLOWER_SHARE * capped.bytes_per_s;
        let known = queued && !seen.lost;
        if known && capped.bytes_per_s < EMPTIES_SHARE * line && capped.empties < EMPTIES_MAX {
            (capped.ceiling, capped.empties) = (line, capped.empties + 1);
            return Some(capped);
        }
        let asks = !capped.seeking && self.fills(capped.bytes_per_s);
        if queued && asks && Stretch::is_worth_it(seen.rtt_s, self.base_s) {
            // Neither what comes through a hole is a rate, nor what is acknowledged when it is
            // filled.
            let mean = self.recent.mean(LINE_SPAN, self.base_s);
            let stalled = seen.bytes_per_s < STALLED_SHARE * mean;
            let carried = mean.min(seen.bytes_per_s);
            return Some(if stalled { capped } else { self.ask(capped, seen, carried) });
        }
        if queued && slower && !capped.seeking {
            let since_s = seen.t_s - SETTLE_S - 2.0 * SETTLE_ROUND_TRIPS * self.base_s;
            let settle_s = SETTLE_FIRST_ROUND_TRIPS * seen.rtt_s;
            let best = self.best(since_s);
            return Some(self.seek(best, capped.bytes_per_s, seen, since_s, settle_s));
        }
        if capped.bytes_per_s <= self.floor() {
            return self.set_free(seen);
        }
        let (cut, least) = match capped.seeking {
            true => (CUT_SEEKING, NOT_OURS_SEEKING),
            false => (CUT, NOT_OURS),
        };
        let from = *capped.cut_from.get_or_insert(capped.bytes_per_s);
        // By little too fast: then the rate itself is the better measure of the line.
        let far = known && (capped.seeking || capped.bytes_per_s > FAR_SHARE * line);
        capped.ceiling = if far { line } else { capped.bytes_per_s };
        capped.bytes_per_s *= cut;
        if far {
            capped.bytes_per_s = capped.bytes_per_s.min(CUT * line);
        }
        (capped.step, capped.hold_until_s, capped.risen) = (STEP_MIN, 0.0, false);
        if capped.bytes_per_s >= least * from {
            return Some(capped);
        }
        self.set_free(seen)
    }

    /// The queue is none that a rate of ours could empty.
    fn set_free(&mut self, seen: &Seen) -> Option<Capped> {
        self.free_until_s = seen.t_s + self.free_s;
        self.free_s = (self.free_s * 2.0).min(FREE_S_MAX);
        // What is left with so much less of us is the path itself, as far as we can know.
        let left = self.recent.since(seen.t_s - LEFT_S).map(|interval| interval.rtt_s);
        (self.base_s, self.base_is_ours) = (left.fold(seen.rtt_s, f64::min), true);
        None
    }
}
