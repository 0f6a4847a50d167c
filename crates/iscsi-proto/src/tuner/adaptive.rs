//! `adaptive`: the fewest connections that reach the plateau, found quickly and then left alone.
//!
//! It grows by factors while each step clearly helps, and does not wait for the end of a slow start
//! that already shows it. Behind the plateau's edge it predicts the edge from the rate that one
//! connection had below it, and tries that. From then on it watches: a level that leaves the noise
//! is a changed path and starts the search again; probes that failed come back ever more rarely.
//!
//! What it is not: it does not measure a round trip; where samples carry none, windows are longer.

mod constants;

use constants::*;

use super::limit::{Limit, buffer_wanted, control_wanted};
use super::windows::Windows;
use super::{CONNECTIONS_INITIAL, CONNECTIONS_MAX, CongestionControl};
use super::{Decision, Phase, Policy, Sample, Why};

/// What `adaptive` can be told. The defaults are for a disk across a wide area network.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveConfig {
    /// The first number of connections.
    pub connections_initial: u32,
    /// The most connections.
    pub connections_max: u32,
    /// The largest socket buffer that the system allows (`net.core.wmem_max` and the like).
    pub socket_buffer_bytes_max: u64,
    /// What the kernel has; none means that the choice is not ours.
    pub congestion_controls: Vec<CongestionControl>,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self {
            connections_initial: CONNECTIONS_INITIAL,
            connections_max: CONNECTIONS_MAX,
            socket_buffer_bytes_max: 0,
            congestion_controls: Vec::new(),
        }
    }
}

/// Connections and the level they had.
#[derive(Clone, Copy, Debug)]
struct Point {
    connections: u32,
    bytes_per_s: f64,
    /// False if it was left before the slow start's end was seen: then it may have become more.
    settled: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The level at the present number is not known yet.
    Measure,
    /// More than `base` are tried.
    Grow { base: Point },
    /// Fewer than `enough` are tried; `plateau` is to be kept.
    Shrink { plateau: f64 },
    /// Nothing is tried. The level is that of the plateau at first (so that a change in the midst of
    /// a search is seen), then a fresh one.
    Hold { level: f64, fresh: bool },
}

/// Our policy.
#[derive(Clone, Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    state: State,
    connections: u32,
    /// The most connections known not to suffice, with their level: the lower end of the search.
    short: Option<Point>,
    /// The fewest connections known to suffice: its upper end.
    enough: Option<u32>,
    /// The most that one connection had on average: what it has where the line does not limit.
    one_bytes_per_s: f64,
    /// The level of the plateau as the last search found it; none since the path has changed.
    plateau: Option<f64>,
    windows: Windows,
    window_s: f64,
    t_last_s: Option<f64>,
    /// Samples before this are ramp-up.
    settled_s: f64,
    moved_s: f64,
    /// The peer refused more than this.
    granted_max: u32,
    look_again_s: f64,
    look_pause_s: f64,
    shrink_s: f64,
    shrink_pause_s: f64,
    why: Why,
}

impl Adaptive {
    /// A policy that has seen nothing.
    pub fn new(config: AdaptiveConfig) -> Self {
        let connections = config.connections_initial.clamp(1, config.connections_max.max(1));
        Self {
            config,
            state: State::Measure,
            connections,
            short: None,
            enough: None,
            one_bytes_per_s: 0.0,
            plateau: None,
            windows: Windows::default(),
            window_s: WINDOW_UNKNOWN_S,
            t_last_s: None,
            settled_s: 0.0,
            moved_s: 0.0,
            granted_max: u32::MAX,
            look_again_s: 0.0,
            look_pause_s: LOOK_AGAIN_S,
            shrink_s: 0.0,
            shrink_pause_s: LOOK_AGAIN_S,
            why: Why::Measuring,
        }
    }

    fn connections_max(&self) -> u32 {
        self.config.connections_max.min(self.granted_max).max(1)
    }

    fn move_to(&mut self, connections: u32, t_s: f64, state: State, why: Why) {
        if connections != self.connections {
            self.connections = connections;
            self.moved_s = t_s;
            self.settled_s = t_s + self.window_s;
            self.windows.clear();
        }
        self.state = state;
        self.why = why;
    }

    fn hold(&mut self, connections: u32, level: f64, t_s: f64, why: Why) {
        self.move_to(connections, t_s, State::Hold { level, fresh: false }, why);
    }

    /// Error of a comparison of two medians of `count` windows each.
    fn error(&self, count: usize) -> f64 {
        MEDIAN_ERROR * self.windows.noise() * (2.0 / count.max(1) as f64).sqrt()
    }

    /// The level has stopped rising: the last window is not above the one before, but for noise.
    fn is_settled(&self) -> bool {
        let (Some(last), Some(before)) = (self.windows.last(0), self.windows.last(1)) else {
            return false;
        };
        last <= before * (1.0 + GAIN_MIN.max(self.windows.noise()))
    }

    fn on_window(&mut self, value: f64, t_s: f64, limit: Limit) {
        match self.state {
            State::Measure => self.measure(value, t_s, limit),
            State::Grow { base } => self.grow(base, value, t_s),
            State::Shrink { plateau } => self.shrink(plateau, value, t_s),
            State::Hold { level, fresh } => self.watch(level, fresh, t_s, limit),
        }
    }

    /// The first level: one window will do if the limit is each connection's own, because the next
    /// step shows whether that was right.
    fn measure(&mut self, value: f64, t_s: f64, limit: Limit) {
        if limit == Limit::Line {
            if self.is_settled() && self.windows.count() > VERDICT_WINDOWS_MIN {
                let plateau = self.windows.recent(VERDICT_WINDOWS_MIN).unwrap_or(value);
                self.start_shrink(plateau, t_s);
            }
            return;
        }
        let base = Point { connections: self.connections, bytes_per_s: value, settled: false };
        let factor = if limit == Limit::Unknown { 2 } else { 4 };
        self.start_grow(base, base.connections.saturating_mul(factor), t_s, Why::Limited(limit));
    }

    fn start_grow(&mut self, base: Point, wanted: u32, t_s: f64, why: Why) {
        let target = wanted.min(self.connections_max());
        if target <= base.connections {
            self.enough = Some(base.connections);
            self.start_shrink(base.bytes_per_s, t_s);
            if matches!(self.state, State::Hold { .. }) {
                self.why = Why::AtMost;
            }
            return;
        }
        self.move_to(target, t_s, State::Grow { base }, why);
    }

    fn grow(&mut self, base: Point, value: f64, t_s: f64) {
        let one = value / f64::from(self.connections);
        self.one_bytes_per_s = self.one_bytes_per_s.max(one);
        let step = f64::from(self.connections) / f64::from(base.connections) - 1.0;
        let gain_now = value / base.bytes_per_s.max(1.0) - 1.0;
        let here = Point { connections: self.connections, bytes_per_s: value, settled: false };
        let beyond_noise = gain_now > SIGMAS * self.error(1);
        if gain_now >= GAIN_CLEAR_SHARE * step && beyond_noise {
            self.short = Some(base);
            let factor = if gain_now >= GAIN_LINEAR_SHARE * step { 4 } else { 2 };
            let wanted = here.connections.saturating_mul(factor);
            self.start_grow(here, wanted, t_s, Why::Helped(gain_now + 1.0));
            return;
        }
        let count = self.windows.count();
        if count < VERDICT_WINDOWS_MIN || (!self.is_settled() && count < VERDICT_WINDOWS_MAX) {
            return;
        }
        let seen = count.min(VERDICT_WINDOWS_MAX);
        // The first window after a move still holds some of the slow start.
        let level = self.windows.recent((seen - 1).max(1)).unwrap_or(value);
        let gain = level / base.bytes_per_s.max(1.0) - 1.0;
        let error = SIGMAS * self.error(seen);
        // Undecided: the gain is neither clearly worth it nor clearly not.
        if (gain - GAIN_MIN).abs() < error && count < VERDICT_WINDOWS_MAX {
            return;
        }
        if gain <= GAIN_MIN.max(error) {
            self.enough = Some(base.connections);
            self.look_pause_s = (self.look_pause_s * 2.0).min(PAUSE_MAX_S);
            self.finish_growth(base, level, t_s, Why::NoGain(gain + 1.0));
            return;
        }
        self.look_pause_s = LOOK_AGAIN_S;
        self.short = Some(base);
        let here = Point { bytes_per_s: level, settled: true, ..here };
        // Less than half of what the step could bring: the edge lies between, or close above.
        let wanted = here.connections.saturating_mul(2);
        self.start_grow(here, wanted, t_s, Why::Helped(gain + 1.0));
    }

    /// The plateau is reached with `base`; a search that has no lower end yet waits if the path
    /// has just changed.
    fn finish_growth(&mut self, base: Point, level: f64, t_s: f64, why: Why) {
        let plateau = level.max(base.bytes_per_s).max(self.plateau.unwrap_or(0.0));
        if t_s >= self.shrink_s {
            self.start_shrink(plateau, t_s);
            if matches!(self.state, State::Shrink { .. }) {
                return;
            }
        }
        self.hold(base.connections, plateau, t_s, why);
    }

    /// Tries the number at which the plateau's edge should be, or ends the search.
    fn start_shrink(&mut self, plateau: f64, t_s: f64) {
        let enough = self.enough.unwrap_or(self.connections);
        self.enough = Some(enough);
        self.plateau = Some(plateau);
        let proven = self.short.filter(|point| point.settled);
        let short = proven.map_or(0, |point| point.connections).min(enough - 1);
        let Some(next) = self.fewer(short, enough, plateau) else {
            self.end_shrink(enough, plateau, t_s, Why::Plateau);
            return;
        };
        self.move_to(next, t_s, State::Shrink { plateau }, Why::TryFewer);
    }

    /// The number to try between one that is too few and one that suffices; none if that is not
    /// worth it.
    fn fewer(&self, short: u32, enough: u32, plateau: f64) -> Option<u32> {
        if enough - short <= (enough / 16).max(1) {
            return None;
        }
        let middle = short + (enough - short) / 2;
        let Some(point) = self.short.filter(|point| point.bytes_per_s > 0.0) else {
            return Some(middle);
        };
        let of_point = point.bytes_per_s / f64::from(point.connections.max(1));
        let one = if point.settled { of_point } else { of_point.max(self.one_bytes_per_s) };
        let edge = EDGE_MARGIN * PLATEAU_SHARE * plateau / one;
        // Steps smaller than what ends the search would creep.
        let edge = edge.max(f64::from(short + (enough / 16).max(1)));
        let edge = edge.ceil().min(f64::from(enough)) as u32;
        if edge < enough {
            return Some(edge.clamp(short + 1, enough - 1));
        }
        // What is proven and predicts that all of them are needed, ends the search. What is not
        // proven gets a cheap trial.
        (!point.settled).then(|| (enough - enough / 4).clamp(short + 1, enough - 1))
    }

    fn end_shrink(&mut self, connections: u32, plateau: f64, t_s: f64, why: Why) {
        self.shrink_s = t_s + self.shrink_pause_s;
        self.look_again_s = t_s + self.look_pause_s;
        self.hold(connections, plateau, t_s, why);
    }

    fn shrink(&mut self, plateau: f64, value: f64, t_s: f64) {
        let count = self.windows.count();
        let level = self.windows.recent(count).unwrap_or(value);
        let share = level / plateau.max(1.0);
        let error = SIGMAS * self.error(count);
        let here = Point { connections: self.connections, bytes_per_s: level, settled: true };
        // One window is enough to see that it is far too little: it costs throughput.
        if share < PLATEAU_SHARE - error.max(0.02) {
            self.short = Some(here);
            self.shrink_pause_s = (self.shrink_pause_s * 2.0).min(PAUSE_MAX_S);
            self.give_back(plateau, t_s, share);
            return;
        }
        let undecided = share < PLATEAU_SHARE + error && count < TRIAL_WINDOWS_MAX;
        if count < VERDICT_WINDOWS_MIN || undecided {
            return;
        }
        if share >= PLATEAU_SHARE {
            // What was left in its slow start has been refuted as a bound, or has served.
            self.short = self.short.filter(|point| point.settled);
            self.enough = Some(self.connections);
            self.start_shrink(plateau, t_s);
            if matches!(self.state, State::Hold { .. }) {
                self.why = Why::FewerDo(share);
            }
        } else {
            self.short = Some(here);
            self.give_back(plateau, t_s, share);
        }
    }

    /// Too few: what is between is tried at once, or the last number that sufficed comes back.
    fn give_back(&mut self, plateau: f64, t_s: f64, share: f64) {
        self.start_shrink(plateau, t_s);
        if matches!(self.state, State::Hold { .. }) {
            self.why = Why::FewerLose(share);
        }
    }

    /// Looks for a change of the path, then for a probe that is due.
    fn watch(&mut self, level: f64, fresh: bool, t_s: f64, limit: Limit) {
        let count = self.windows.count();
        self.windows.learn_noise();
        if let Some(factor) = self.changed(level) {
            self.path_changed(factor, t_s, limit);
            return;
        }
        if !fresh {
            if count >= LEVEL_WINDOWS && self.is_settled() {
                let level = self.windows.recent(LEVEL_WINDOWS).unwrap_or(level);
                self.state = State::Hold { level, fresh: true };
            }
            return;
        }
        self.why = Why::Plateau;
        let now = self.windows.recent(DRIFT_WINDOWS).unwrap_or(level);
        // Two per cent are given away once, not with every search.
        let plateau = self.plateau.unwrap_or(now).max(now);
        if t_s >= self.shrink_s && self.enough.is_some_and(|enough| enough > 1) {
            self.shrink_pause_s = (self.shrink_pause_s * 2.0).min(PAUSE_MAX_S);
            self.shrink_s = t_s + self.shrink_pause_s;
            self.enough = Some(self.connections);
            self.start_shrink(plateau, t_s);
        } else if t_s >= self.look_again_s && limit != Limit::Line {
            self.look_again_s = t_s + self.look_pause_s;
            let base = Point { connections: self.connections, bytes_per_s: now, settled: true };
            let more = base.connections + (base.connections / 4).max(1);
            self.start_grow(base, more, t_s, Why::LookAgain);
        }
    }

    /// The factor by which the level has changed, if that is beyond the noise.
    fn changed(&self, level: f64) -> Option<f64> {
        let beyond = |value: f64, least: f64| (value / level.max(1.0) - 1.0).abs() > least;
        let noise = self.windows.noise();
        let sudden = CHANGE_MIN.max(2.0 * SIGMAS * noise);
        let up = |value: f64| value > level;
        let recent: Vec<f64> =
            (0..CHANGE_WINDOWS).filter_map(|back| self.windows.last(back)).collect();
        let one_side = recent.iter().all(|&v| up(v)) || recent.iter().all(|&v| !up(v));
        if recent.len() == CHANGE_WINDOWS && one_side && recent.iter().all(|&v| beyond(v, sudden)) {
            return recent.first().map(|value| value / level.max(1.0));
        }
        if self.windows.count() < LEVEL_WINDOWS + DRIFT_WINDOWS {
            return None;
        }
        let drift = self.windows.recent(DRIFT_WINDOWS)?;
        let least = DRIFT_MIN.max(2.0 * SIGMAS * self.error(LEVEL_WINDOWS));
        beyond(drift, least).then(|| drift / level.max(1.0))
    }

    fn path_changed(&mut self, factor: f64, t_s: f64, limit: Limit) {
        let why = if factor < 1.0 { Why::Fell(factor) } else { Why::Rose(factor) };
        let value = self.windows.last(0).unwrap_or(0.0);
        self.short = None;
        self.enough = None;
        self.plateau = None;
        self.one_bytes_per_s = 0.0;
        self.look_pause_s = LOOK_AGAIN_S;
        self.shrink_pause_s = LOOK_AGAIN_S;
        self.shrink_s = t_s + SHRINK_AFTER_CHANGE_S;
        self.look_again_s = t_s + self.look_pause_s;
        self.windows.clear();
        if limit == Limit::Application {
            self.hold(self.connections, value, t_s, Why::Application);
            return;
        }
        let base = Point { connections: self.connections, bytes_per_s: value, settled: false };
        self.start_grow(base, base.connections.saturating_mul(2), t_s, why);
    }

    fn learn_window(&mut self, sample: &Sample) {
        let rtt_s = sample.typical(|tcp| tcp.rtt_us.or(tcp.min_rtt_us)).map(|us| us / 1e6);
        let window_s = rtt_s.map_or(WINDOW_UNKNOWN_S, |rtt_s| WINDOW_ROUND_TRIPS * rtt_s);
        self.window_s = window_s.clamp(WINDOW_MIN_S, WINDOW_MAX_S);
    }

    fn decision(&self, sample: &Sample, phase: Option<Phase>, why: Why) -> Decision {
        let phase = phase.unwrap_or(match self.state {
            State::Measure => Phase::Measure,
            State::Grow { .. } => Phase::Grow,
            State::Shrink { .. } => Phase::Shrink,
            State::Hold { .. } => Phase::Hold,
        });
        let mut decision = Decision::new(sample, self.connections, phase, why);
        let most = self.config.socket_buffer_bytes_max;
        decision.socket_buffer_bytes = buffer_wanted(sample, sample.bytes_per_s, most);
        decision.congestion_control = control_wanted(sample, &self.config.congestion_controls);
        decision
    }

    /// The peer does not open what was asked for: that many it is, then.
    fn refused(&mut self, sample: &Sample) -> Decision {
        self.granted_max = sample.connections_open.max(1);
        self.short = None;
        self.enough = None;
        self.hold(self.granted_max, sample.bytes_per_s, sample.t_s, Why::Refused);
        self.decision(sample, None, Why::Refused)
    }
}

impl Policy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn handle_sample(&mut self, sample: &Sample) -> Decision {
        let t_s = sample.t_s;
        let interval_s = t_s - self.t_last_s.unwrap_or(t_s);
        if !(interval_s >= 0.0 && sample.bytes_per_s.is_finite() && sample.bytes_per_s >= 0.0) {
            return self.decision(sample, None, Why::BadSample);
        }
        if self.t_last_s.is_none() {
            self.settled_s = t_s;
            self.moved_s = t_s;
            // Reserve for the time before the first change.
            self.shrink_s = t_s;
        }
        self.t_last_s = Some(t_s);
        self.learn_window(sample);
        if sample.connections_open != self.connections {
            let waited_s = t_s - self.moved_s;
            let fewer = sample.connections_open < self.connections;
            if fewer && waited_s > REFUSED_WINDOWS * self.window_s {
                return self.refused(sample);
            }
            self.settled_s = t_s + self.window_s;
            self.windows.clear();
            return self.decision(sample, None, Why::Opening);
        }
        let limit = Limit::of(sample);
        if sample.bytes_per_s == 0.0 {
            self.windows.clear();
            return self.decision(sample, Some(Phase::Idle), Why::NoTraffic);
        }
        if limit == Limit::Application {
            self.windows.clear();
            return self.decision(sample, Some(Phase::Idle), Why::Application);
        }
        // An interval that began before the ramp-up's end belongs to it.
        let in_ramp = t_s - interval_s < self.settled_s - 1e-9;
        if in_ramp || interval_s == 0.0 {
            return self.decision(sample, None, self.why);
        }
        if let Some(value) = self.windows.push(sample.bytes_per_s, interval_s, self.window_s) {
            self.on_window(value, t_s, limit);
        }
        self.decision(sample, None, self.why)
    }

    fn restart(&mut self) {
        self.state = State::Measure;
        self.short = None;
        self.enough = None;
        self.plateau = None;
        self.one_bytes_per_s = 0.0;
        self.granted_max = u32::MAX;
        self.look_pause_s = LOOK_AGAIN_S;
        self.shrink_pause_s = LOOK_AGAIN_S;
        self.shrink_s = self.t_last_s.unwrap_or(0.0);
        self.windows.clear();
        self.why = Why::Measuring;
    }
}
