//! What `adaptive` does on its plateau: it looks for a changed path and for probes that are due.

use super::super::{Sample, Why};
use super::constants::*;
use super::{Adaptive, Point, State};
use crate::limit::Bottleneck;

impl Adaptive {
    /// Looks for a change of the path, then for a probe that is due.
    pub(super) fn watch(&mut self, level: f64, fresh: bool, t_s: f64, limit: Bottleneck) {
        let count = self.windows.count();
        self.windows.learn_noise();
        if let Some(factor) = self.changed(level) {
            self.path_changed(factor, t_s, limit);
            return;
        }
        if self.line_bytes_per_s.is_some()
            && limit != Bottleneck::LineRate
            && limit != Bottleneck::Application
            && self.misses_the_line()
        {
            let level = self.windows.recent(LEVEL_WINDOWS).unwrap_or(level);
            self.probe_more(level, t_s, Why::Limited(limit));
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
        if self.falls_short()
            && self.connections < self.connections_max()
            && limit != Bottleneck::LineRate
        {
            let level = self.windows.recent(DRIFT_WINDOWS).unwrap_or(level);
            // What the trial shows is the plateau: this one was a guess.
            let known = self.plateau.take().unwrap_or(level);
            self.short = Some(self.here(level));
            self.shrink_s = t_s;
            self.probe_more(level, t_s, Why::FewerLose(level / known));
            return;
        }
        let now = self.windows.recent(DRIFT_WINDOWS).unwrap_or(level);
        // Two per cent are given away once, not with every search; and what is above by chance is
        // no new plateau.
        let known = self.plateau.unwrap_or(now);
        let plateau = if now > known * (1.0 + GAIN_MIN) { now } else { known };
        if t_s >= self.shrink_s && self.enough.is_some_and(|enough| enough > 1) {
            self.shrink_pause_s = (self.shrink_pause_s * 2.0).min(PAUSE_MAX_S);
            self.shrink_s = t_s + self.shrink_pause_s;
            self.enough = Some(self.connections);
            // What failed by little may have been bad luck.
            if let Some(short) = &mut self.short {
                short.settled &= short.bytes_per_s < FLAT_SHARE * plateau;
            }
            self.start_shrink(plateau, t_s);
        } else if t_s >= self.look_again_s
            && limit != Bottleneck::LineRate
            && self.connections < self.connections_max()
        {
            self.look_again_s = t_s + self.look_pause_s;
            self.probe_more(now, t_s, Why::LookAgain);
        }
    }

    /// The line has become faster, but the windows that filled the slower one grow by little in a
    /// round trip; those of new connections double. True if more are tried now: as many as hold
    /// what is missing.
    pub(super) fn answer_lag(&mut self, sample: &Sample, limit: Bottleneck) -> bool {
        let (t_s, carried) = (sample.t_s, sample.bytes_per_s);
        // While the rate goes up in steps, it may be reached for a moment.
        let memory_s = LAGS_MEMORY_WINDOWS * self.window_s;
        let lately = self.lags_s.filter(|(_, last_s)| t_s - last_s < memory_s);
        let since_s = lately.map_or(t_s, |(since_s, _)| since_s);
        self.lags_s = if sample.pace.lags { Some((since_s, t_s)) } else { lately };
        let long = sample.pace.lags && t_s - since_s >= self.window_s;
        let holds = matches!(self.state, State::Hold { .. }) && limit.is_per_connection();
        let more = self.connections < self.connections_max();
        let Some(rate) = sample.pace.bytes_per_s.filter(|_| long && holds && more) else {
            return false;
        };
        self.lags_s = None;
        let missing = (rate - carried) * self.least_rtt_s / self.config.window_bytes as f64;
        let missing = (missing.ceil() as u32).clamp(1, self.connections);
        let base = Point { connections: self.connections, bytes_per_s: carried, settled: false };
        self.start_grow(base, base.connections + missing, t_s, Why::Limited(limit));
        true
    }

    /// Connections that carry the rate of the line, where it is known, if each carries what they do
    /// now.
    pub(super) fn for_the_line(&self, value: f64) -> u32 {
        let missing = self.line_bytes_per_s.map_or(f64::INFINITY, |line| line / value.max(1.0));
        (f64::from(self.connections) * missing * LINE_MARGIN).ceil() as u32
    }

    /// The present number, whose level is known.
    fn here(&self, level: f64) -> Point {
        Point { connections: self.connections, bytes_per_s: level, settled: true }
    }

    /// Tries a quarter more.
    fn probe_more(&mut self, level: f64, t_s: f64, why: Why) {
        let more = self.connections + (self.connections / 4).max(1);
        self.start_grow(self.here(level), more, t_s, why);
    }

    /// Whether what is held, after as many windows as make that sure, is not the plateau: the trial
    /// that ended the search was lucky. Asked once in a hold.
    pub(super) fn falls_short(&self) -> bool {
        let level = self.windows.recent(DRIFT_WINDOWS).unwrap_or(f64::INFINITY);
        let known = self.plateau.unwrap_or(0.0);
        self.windows.count() == DRIFT_WINDOWS && level < (PLATEAU_SHARE - LEVEL_ERROR_MAX) * known
    }

    /// Whether they have carried less than the line does for a while: it was full with them once,
    /// but their windows have become too small for it.
    fn misses_the_line(&self) -> bool {
        let most = LINE_SHARE * self.line_bytes_per_s.unwrap_or(0.0);
        let below = |back| self.windows.last(back).is_some_and(|value| value < most);
        // What still rises, repairs its losses.
        let half = DRIFT_WINDOWS / 2;
        let rises =
            self.windows.recent(half) > self.windows.last(half).map(|v| v * (1.0 + DRIFT_MIN));
        self.windows.count() >= DRIFT_WINDOWS && (0..DRIFT_WINDOWS).all(below) && !rises
    }

    /// The least sudden change that is none of the noise.
    pub(super) fn sudden(&self) -> f64 {
        CHANGE_MIN.max(2.0 * SIGMAS * self.windows.noise())
    }

    /// Several windows in a row lie far below a level.
    pub(super) fn dropped(&self, level: f64) -> bool {
        let low = level * (1.0 - self.sudden());
        (0..CHANGE_WINDOWS).all(|back| self.windows.last(back).is_some_and(|value| value < low))
    }

    /// The factor by which the level has changed, if that is beyond the noise.
    pub(super) fn changed(&self, level: f64) -> Option<f64> {
        let beyond = |value: f64, least: f64| (value / level.max(1.0) - 1.0).abs() > least;
        let sudden = self.sudden();
        let up = |value: f64| value > level;
        let falls = self.windows.last(0).is_some_and(|value| !up(value));
        let least = if falls && self.losses { FALL_WINDOWS } else { CHANGE_WINDOWS };
        let recent: Vec<f64> = (0..least).filter_map(|back| self.windows.last(back)).collect();
        let one_side = recent.iter().all(|&v| up(v)) || recent.iter().all(|&v| !up(v));
        if recent.len() == least && one_side && recent.iter().all(|&v| beyond(v, sudden)) {
            return recent.first().map(|value| value / level.max(1.0));
        }
        if self.windows.count() < LEVEL_WINDOWS + DRIFT_WINDOWS {
            return None;
        }
        let drift = self.windows.recent(DRIFT_WINDOWS)?;
        let least = DRIFT_MIN.max(2.0 * SIGMAS * self.error(LEVEL_WINDOWS));
        beyond(drift, least).then(|| drift / level.max(1.0))
    }

    pub(super) fn path_changed(&mut self, factor: f64, t_s: f64, limit: Bottleneck) {
        let why = if factor < 1.0 { Why::Fell(factor) } else { Why::Rose(factor) };
        let value = self.windows.last(0).unwrap_or(0.0);
        let falls_short = |line: f64| limit != Bottleneck::LineRate && value < LINE_SHARE * line;
        let narrow = self.losses || self.rtt_s > STRETCHED * self.held_rtt_s;
        if self.line_bytes_per_s.is_some_and(|line| !(narrow && falls_short(line))) {
            // The rate follows the line by itself, and goes up and down with it. But what losses
            // keep below it, or windows made for a shorter path, more connections may bring.
            self.windows.clear();
            self.plateau = Some(value);
            self.hold(self.connections, value, t_s, why);
            return;
        }
        self.foreseen = 0;
        self.short = None;
        self.weak = None;
        self.enough = None;
        // The queue that so many overran is there still, as a rule; what falls is often its losses.
        self.overload = self.overload.filter(|_| self.rtt_s <= STRETCHED * self.held_rtt_s);
        self.plateau = None;
        self.one_bytes_per_s = 0.0;
        self.look_pause_s = LOOK_AGAIN_S;
        self.shrink_pause_s = LOOK_AGAIN_S;
        self.shrink_s = t_s + SHRINK_AFTER_CHANGE_S;
        self.look_again_s = t_s + self.look_pause_s;
        self.windows.clear();
        if limit == Bottleneck::Application {
            self.hold(self.connections, value, t_s, Why::Application);
            return;
        }
        let base = Point { connections: self.connections, bytes_per_s: value, settled: false };
        self.start_grow(base, base.connections.saturating_mul(2), t_s, why);
    }
}
