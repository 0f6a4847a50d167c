//! How many connections: N = ⌈R / w⌉ with a margin, where R is what the line carries and w what
//! one connection carries where the line does not limit.
//!
//! Where R is not known, N grows while a step brings what it could; where w is not known, because
//! the first level was full already, N is halved until a level is not. Then it holds, and looks
//! whether what is carried stays. What changed twice beyond the noise begins again, with R or w as
//! they were before. It opens and closes nothing itself.
//!
//! Where losses that no load explains keep the windows small, what a step brings proves nothing:
//! windows swing for seconds, and new ones have overrun first. But more connections lose no larger
//! share there, while behind a policer they lose the more the more they are. So steps are added up
//! until there are three times as many, and the share decides. A number that holds is tried again
//! now and then.

use std::collections::VecDeque;

use super::law::{CUBIC_BETA, WIRE_BYTES};
use super::memory::Remembered;
use super::model::{
    ASK_AGAIN_S, Estimate, FULL_ROUNDS, LATELY_S, MEASURE, PATIENCE_S, TARGET_SHARE,
};
use super::rate::{HALF_GAIN, STARTUP_GAIN};
use super::tcp::{INITIAL_WINDOW_SEGMENTS, MORE, OTHER_SHARE, SAMPLE_S, SEGMENT_BYTES, median};
use super::why::Why;

/// Connections that a transfer begins with (iSCSI-APT, 2009), and what a target grants.
pub const CONNECTIONS: (u32, u32) = (4, 64);
/// A path is taken for a gigabit's until something is known: payload in bytes a second.
const ASSUMED_BANDWIDTH: f64 = 1e9 / 8.0 * SEGMENT_BYTES / WIRE_BYTES;
/// A step multiplies N as slow start does a window, and by half of that growth where sockets tell
/// their windows: then no more is opened than half as many again as are needed.
const STEPS: (f64, f64) = (STARTUP_GAIN, HALF_GAIN);
/// A step brought all that it could above this share of it: what is left of windows that have each
/// been cut once by the time that they are measured. Below a quarter it brought nothing.
const GAIN_SHARE: f64 = CUBIC_BETA;
/// Where losses limit, steps are judged together until so many times as many as there were are
/// added, and are in vain if losses are so many times what they were. Behind a policer three times
/// as many lose 4.3 times as often with cubic (RFC 9438 §5.1: windows go with p^-0.75), and 9
/// times with Reno.
const LOSSES_STEP: f64 = STEPS.0;
/// N carries R with this margin: windows hold the queue that cruising aims at, too.
const MARGIN: f64 = 1.0 + TARGET_SHARE;
/// New connections need round trips for TCP, login and slow start; those that are left are known
/// after [`FULL_ROUNDS`].
const SETTLE_ROUND_TRIPS: f64 = 8.0;
/// A level is the mean over seconds, longer where samples are noisy; and the noise of such a mean,
/// half of the margin.
const LEVEL_S: (f64, f64) = (2.0 * SAMPLE_S, MEASURE.0);
const LEVEL_NOISE: f64 = TARGET_SHARE / 2.0;
/// Held: two means over the longest of these in a row are another path's by their share
/// ([`OTHER_SHARE`]) and by so many standard errors.
const CHANGED_ERRORS: f64 = 4.0;

/// What a number of connections has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    n: u32,
    /// Bytes a second of all.
    carried: f64,
    /// Share of segments lost.
    loss: f64,
    /// Bytes a second of one, at the last step.
    each: f64,
}

/// What the count is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    /// Nothing is known of any number.
    #[default]
    First,
    /// More are tried; what is known of fewer.
    Grow { below: Level },
    /// Fewer are tried; what was full, and the fewest that carried it.
    Down { full: f64, above: u32 },
    /// The number that the arithmetic gave is checked once against what it is to carry.
    Verify { full: f64 },
    /// Nothing is tried; what is carried is watched.
    Hold { level: f64, off: i32 },
}

/// Chooses the number of connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count {
    /// The number wanted.
    pub(crate) n: u32,
    max: u32,
    /// What it may ask for where the peer grants it.
    allowed: u32,
    mode: Mode,
    pub(crate) why: Why,
    /// What one connection carries where the line does not limit, and the line, as measured last.
    per_connection: Option<f64>,
    line: f64,
    /// Since when that number is open, and since when it was asked for.
    open_s: Option<f64>,
    /// Not fewer than these are held: they carried more before the path changed.
    least: u32,
    asked_s: Option<f64>,
    refused: Option<(u32, f64)>,
    /// Where losses limit: since when a number has been held, and the pause before the next try,
    /// each twice as long, up to [`ASK_AGAIN_S`], unless more were worth it.
    tried_s: f64,
    pause_s: f64,
    /// Ends and rates of the last intervals with enough to send.
    rates: VecDeque<(f64, f64)>,
    watched_s: f64,
}

impl Count {
    /// Begins with a number, and asks for no more than another.
    pub(crate) fn new(initial: u32, max: u32) -> Self {
        let (max, pause_s) = (max.max(1), LATELY_S);
        let n = initial.clamp(1, max);
        Self { n, max, allowed: max, least: 1, pause_s, ..Self::default() }
    }

    /// The number that a round trip asks for before anything is measured, with what the kernel lets
    /// a socket have under way: so many windows hold a gigabit, and slow start fills them in time.
    /// Where the path is remembered, as many as carried it. More would fill it sooner, since each
    /// brings an initial window, but those that are closed then take what their windows have grown
    /// to with them.
    pub(crate) fn first(&mut self, rtt_s: f64, window_bytes: f64, known: Option<&Remembered>) {
        let bandwidth = match known {
            Some(known) if known.measured => known.bandwidth,
            Some(known) => known.bandwidth.max(ASSUMED_BANDWIDTH),
            None => ASSUMED_BANDWIDTH,
        };
        // Slow start doubles in each of these but the first.
        let grown = INITIAL_WINDOW_SEGMENTS * SEGMENT_BYTES * (SETTLE_ROUND_TRIPS - 1.0).exp2();
        let windows = ceil(bandwidth * rtt_s / window_bytes.clamp(SEGMENT_BYTES, grown));
        let carried = known.filter(|known| known.connections > 0);
        let needed = carried.map_or(windows, |known| known.connections).min(self.max);
        if needed > self.n {
            (self.n, self.why, self.asked_s) = (needed, Why::RoundTrip, None);
        }
    }

    /// The peer grants no more than these.
    pub(crate) fn grant(&mut self, most: u32) {
        self.max = self.allowed.min(most.max(1));
        if self.n > self.max {
            (self.n, self.why, self.asked_s) = (self.max, Why::AtMost, None);
            self.measure_anew();
        }
    }

    /// A number is being looked for.
    pub(crate) fn is_searching(&self) -> bool {
        !matches!(self.mode, Mode::Hold { .. })
    }

    /// Searches again from the present number.
    pub(crate) fn restart(&mut self) {
        self.mode = Mode::First;
        (self.refused, self.per_connection, self.line, self.least) = (None, None, 0.0, 1);
        self.measure_anew();
    }

    /// Takes what is known now; `filling` while the path's startup tells nothing of a level.
    pub(crate) fn handle(&mut self, now: &Estimate, filling: bool) {
        if filling {
            self.measure_anew();
            self.why = if self.why == Why::RoundTrip { self.why } else { Why::Filling };
            return;
        }
        if !self.are_open(now) {
            return;
        }
        if !now.full {
            if self.rates.is_empty() || now.bytes_per_s <= 0.0 {
                self.measure_anew();
            }
            self.why = Why::Application;
            return;
        }
        if self.refused.is_some_and(|(_, again_s)| now.t_s >= again_s) {
            return self.restart();
        }
        self.rates.push_back((now.t_s, now.bytes_per_s));
        self.rates.retain(|(t_s, _)| now.t_s - t_s <= 2.0 * LEVEL_S.1);
        self.per_connection = self.per_connection.map(|each| now.lasting(each));
        if let Mode::Hold { level, off } = self.mode {
            self.watch(now, level, off);
        } else if let Some(level) = self.level(now) {
            self.judge(now, level);
        }
    }

    /// As many are open as were asked for; those that do not come for long are taken for refused,
    /// and asked for again later.
    fn are_open(&mut self, now: &Estimate) -> bool {
        let asked_s = *self.asked_s.get_or_insert(now.t_s);
        if now.connections >= self.n {
            self.open_s.get_or_insert(now.t_s);
            self.refused.take_if(|(open, _)| now.connections > *open);
            return true;
        }
        if let Some((_, again_s)) = self.refused.filter(|(open, _)| *open == self.n) {
            return now.t_s < again_s;
        }
        let patience_s = PATIENCE_S.0.max(SETTLE_ROUND_TRIPS * rtt_s(now));
        if now.t_s - asked_s > patience_s && now.connections > 0 {
            self.refused = Some((now.connections, now.t_s + PATIENCE_S.1));
            self.go_to(now.connections, Why::Refused);
            self.mode = Mode::Verify { full: 0.0 };
        }
        false
    }

    fn measure_anew(&mut self) {
        self.open_s = None;
        self.rates.clear();
    }

    fn go_to(&mut self, n: u32, why: Why) {
        let most = self.refused.map_or(self.max, |(open, _)| open.min(self.max));
        let n = n.clamp(1, most);
        self.why = if n == most && n == self.n && why != Why::Holds { Why::AtMost } else { why };
        if n != self.n {
            (self.n, self.asked_s) = (n, None);
            self.measure_anew();
        }
    }

    /// What the present number carries, once that can be told.
    fn level(&self, now: &Estimate) -> Option<f64> {
        let open_s = self.open_s?;
        let fewer = matches!(self.mode, Mode::Down { .. });
        let round_trips = if fewer { FULL_ROUNDS } else { SETTLE_ROUND_TRIPS };
        let settled_s = open_s + round_trips * rtt_s(now);
        let most_s = if self.mode == Mode::First { LEVEL_S.0 } else { LEVEL_S.1 };
        let span_s = (SAMPLE_S * (self.noise() / LEVEL_NOISE).powi(2)).clamp(LEVEL_S.0, most_s);
        let lately = self.mean(now.t_s - whole_rounds(span_s, now));
        // What a step was to bring is there before all windows have grown.
        if let Mode::Grow { below: Level { n, carried, .. } } = self.mode {
            let could = f64::from(self.n) / f64::from(n) - 1.0;
            let lately = self.mean(now.t_s - whole_rounds(LEVEL_S.0, now))?;
            if lately >= carried * (1.0 + GAIN_SHARE * could) && !now.line {
                return Some(lately.max(carried * (1.0 + could)));
            }
        }
        if now.t_s - settled_s < span_s - SAMPLE_S / 2.0 { None } else { lately }
    }

    fn mean(&self, since_s: f64) -> Option<f64> {
        let inside = self.rates.iter().filter(|(t_s, _)| *t_s > since_s + SAMPLE_S / 2.0);
        let (sum, count) = inside.fold((0.0, 0_u32), |(sum, n), (_, rate)| (sum + rate, n + 1));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// Standard deviation of one sample, as a share: from second differences of neighbours, which a
    /// rise does not move, and their median, which a step does not.
    fn noise(&self) -> f64 {
        let rates: Vec<f64> = self.rates.iter().map(|(_, rate)| *rate).collect();
        let bends = rates.windows(3).map(|w| (w[0] - 2.0 * w[1] + w[2]).abs());
        let mean = self.mean(f64::NEG_INFINITY).unwrap_or(0.0);
        // The median of |a − 2b + c| of three normal values is 0.674 √6 deviations.
        let deviation = median(&mut bends.collect::<Vec<_>>()).unwrap_or(0.0) / 1.652;
        if mean > 0.0 { deviation / mean } else { 0.0 }
    }

    /// A level of the search is known.
    fn judge(&mut self, now: &Estimate, carried: f64) {
        let each = carried / f64::from(self.n);
        let carries = |full: f64| carried >= (2.0 - MARGIN) * full;
        match self.mode {
            Mode::First if now.line => self.plateau(carried, now, None, self.n),
            Mode::First => {
                if let Some(known) = self.per_connection.filter(|known| each < 0.5 * known) {
                    // So few are needed if it is the line that became slower; more were in vain.
                    self.line = self.line.max(known * f64::from(self.n));
                }
                self.grow(now, carried);
            }
            Mode::Grow { below } if now.losses_limit => self.judge_lossy(now, carried, below),
            Mode::Grow { below } => {
                let could = f64::from(self.n) / f64::from(below.n) - 1.0;
                let share = (carried / below.carried - 1.0) / could;
                if share < MORE - 1.0 {
                    self.n_before(below.n, carried, now);
                } else if now.line || share < GAIN_SHARE {
                    self.plateau(carried, now, Some(below.each), self.n);
                } else {
                    self.per_connection = Some(each);
                    self.grow(now, carried);
                }
            }
            Mode::Down { full, .. } if carries(full) && self.n > self.least => {
                self.mode = Mode::Down { full, above: self.n };
                self.go_to(self.n / 2, Why::Fewer);
            }
            Mode::Down { full, above } if !carries(full) => {
                self.per_connection = Some(each);
                let needed = needed(full, each).clamp(self.n + 1, above);
                self.mode = Mode::Verify { full };
                self.go_to(needed, Why::Needed(full, each));
            }
            Mode::Verify { full } if !carries(full) && !now.line => {
                self.hold(full);
                self.go_to(needed(full, each).min(2 * self.n), Why::Needed(full, each));
            }
            Mode::Down { .. } | Mode::Verify { .. } | Mode::Hold { .. } => self.hold(carried),
        }
    }

    /// A level where losses limit each connection.
    fn judge_lossy(&mut self, now: &Estimate, carried: f64, below: Level) {
        let could = f64::from(self.n) / f64::from(below.n) - 1.0;
        if self.n == self.max {
            self.hold(carried);
        } else if could < LOSSES_STEP && below.loss > 0.0 {
            self.step(now, carried, below);
        } else if now.loss_lately <= LOSSES_STEP * below.loss || below.loss <= 0.0 {
            self.pause_s = LATELY_S;
            self.grow(now, carried);
        } else {
            self.n_before(below.n, carried, now);
        }
    }

    /// Fewer carried as much: the line is full.
    fn n_before(&mut self, n: u32, full: f64, now: &Estimate) {
        let each = self.per_connection;
        if each.or(now.per_connection()).is_some() {
            self.plateau(full, now, each, n);
        } else if n > self.least {
            self.line = full;
            self.mode = Mode::Down { full, above: n };
            self.go_to(n / 2, Why::Fewer);
        } else {
            self.hold(full);
            self.go_to(n, Why::Holds);
        }
    }

    /// The line is full: N from what it carries and what a connection carried below that. Windows
    /// tell only what a connection might carry, so for their sake none is closed.
    fn plateau(&mut self, full: f64, now: &Estimate, each: Option<f64>, most: u32) {
        self.line = full;
        let needed = each.map_or(most, |each| needed(full, each)).max(self.least);
        self.per_connection = each.or(self.per_connection);
        let shown = each.or(now.per_connection()).unwrap_or(full / f64::from(self.n));
        if needed < self.n {
            self.mode = Mode::Verify { full };
            self.go_to(needed, Why::Needed(full, shown));
        } else {
            self.hold(full);
        }
    }

    /// More are tried: as many as what is known of the line asks for, else a step.
    fn grow(&mut self, now: &Estimate, carried: f64) {
        let (n, loss, each) = (self.n, now.loss_lately, now.lasting(carried / f64::from(self.n)));
        self.step(now, carried, Level { n, carried, loss, each });
    }

    /// One step, which is judged by what `below` carried.
    fn step(&mut self, now: &Estimate, carried: f64, below: Level) {
        let each = now.lasting(carried / f64::from(self.n));
        let seen = now.window_bytes.is_some();
        let step = ceil(f64::from(self.n) * if seen { STEPS.1 } else { STEPS.0 });
        let lacks = |line: f64| (line > (1.0 + OTHER_SHARE) * carried).then(|| needed(line, each));
        let line = now.measured_bandwidth().and_then(lacks);
        // What the same path carried a moment ago is worth a jump; the line of a new one bounds a
        // step.
        let n = match lacks(self.line) {
            Some(before) => before.max(self.n + 1),
            None => step.min(line.map_or(step, |line| line.max(self.n + 1))),
        };
        let n = n.min(now.commands.map_or(n, |commands| (commands as u32).max(self.n)));
        if n.min(self.max) <= self.n {
            return self.hold(carried);
        }
        self.mode = Mode::Grow { below: Level { each, ..below } };
        self.line = 0.0;
        self.go_to(n, Why::Limited(now.limits));
    }

    fn hold(&mut self, level: f64) {
        self.mode = Mode::Hold { level, off: 0 };
        self.why = if self.n == self.max { Why::AtMost } else { Why::Holds };
        (self.watched_s, self.tried_s) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
    }

    /// Holds, and looks whether what is carried stays.
    fn watch(&mut self, now: &Estimate, level: f64, off: i32) {
        self.why = if self.n == self.max { Why::AtMost } else { Why::Holds };
        if self.watched_s == f64::NEG_INFINITY {
            self.watched_s = now.t_s;
            self.rates.clear();
            return;
        }
        if now.t_s - self.watched_s < whole_rounds(LEVEL_S.1, now) - SAMPLE_S / 2.0 {
            return;
        }
        let Some(mean) = self.mean(self.watched_s) else { return };
        self.watched_s = now.t_s;
        let error = self.noise() * (SAMPLE_S / LEVEL_S.1).sqrt();
        let limit = OTHER_SHARE.max(CHANGED_ERRORS * error);
        let change = mean / level - 1.0;
        let sign = i32::from(change > limit) - i32::from(change < -limit);
        let off = if sign == off.signum() { off + sign } else { sign };
        // A level follows what is measured as slowly as noise averages out.
        let level = if off == 0 { level + OTHER_SHARE * (mean - level) } else { level };
        self.mode = Mode::Hold { level, off };
        // Less than the line is known to carry, or it is not known.
        let lacks = now.measured_bandwidth().is_none_or(|line| MORE * level < line);
        if !(now.losses_limit && lacks) || self.tried_s == f64::NEG_INFINITY {
            self.tried_s = now.t_s;
        }
        if now.t_s - self.tried_s >= self.pause_s && self.n < self.max {
            self.pause_s = (2.0 * self.pause_s).min(ASK_AGAIN_S.1);
            self.least = self.n;
            return self.grow(now, mean);
        }
        if off.abs() < 2 {
            return;
        }
        if now.line {
            // The line is another one; these fill it.
            return self.hold(mean);
        }
        (self.line, self.least) = (if change < 0.0 { level } else { 0.0 }, self.n);
        self.mode = Mode::First;
        self.rates.retain(|(t_s, _)| now.t_s - t_s < LEVEL_S.1);
        self.judge(now, mean);
        if self.is_searching() {
            self.why = Why::Changed(1.0 + change);
        }
    }
}

/// Connections that carry a rate, with the margin.
fn needed(rate: f64, each: f64) -> u32 {
    ceil(MARGIN * rate / each.max(1.0)).max(1)
}

/// As a number of connections; what is a hair above a whole number is that number.
fn ceil(value: f64) -> u32 {
    (value - 1e-6).ceil().clamp(0.0, 1e6) as u32
}

/// Seconds of a mean, up to whole round trips where a sample is shorter than one: what windows let
/// go at once comes once in each.
fn whole_rounds(span_s: f64, now: &Estimate) -> f64 {
    let rtt_s = now.rtt_s.filter(|rtt_s| *rtt_s > SAMPLE_S).unwrap_or(span_s);
    (span_s / rtt_s - 1e-2).ceil() * rtt_s
}

/// The round trip as it is now, with whatever queue: windows grow by that one. Where none is known,
/// it is one that samples do not show, shorter than one by half.
fn rtt_s(now: &Estimate) -> f64 {
    now.rtt_s.map_or(SAMPLE_S / 2.0, |rtt_s| rtt_s + now.queue_now_s)
}
