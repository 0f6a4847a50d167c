//! How `adaptive` looks for fewer connections that do as well: trials against the plateau's level.

use super::super::Why;
use super::super::pacer::Pace;
use super::constants::*;
use super::{Adaptive, Point, State};

impl Adaptive {
    /// Tries the number at which the plateau's edge should be, or ends the search.
    pub(super) fn start_shrink(&mut self, plateau: f64, t_s: f64) {
        let enough = self.enough.unwrap_or(self.connections);
        self.enough = Some(enough);
        self.plateau = Some(plateau);
        let proven = self.short.filter(|point| point.settled);
        let proven = proven.map_or(0, |point| point.connections);
        let short = proven.max(self.too_few(plateau)).min(enough - 1);
        let Some(next) = self.fewer(short, enough, plateau) else {
            self.end_shrink(enough, plateau, t_s, Why::Plateau);
            return;
        };
        self.move_to(next, t_s, State::Shrink { plateau }, Why::TryFewer);
    }

    /// The number to try between one that is too few and one that suffices; none if that is not
    /// worth it.
    pub(super) fn fewer(&self, short: u32, enough: u32, plateau: f64) -> Option<u32> {
        if enough - short <= (enough / 16).max(1) {
            return None;
        }
        if self.line_bytes_per_s.is_some() || (self.foreseen > 0 && short == 0) {
            // Each connection that is closed and opened again costs more than one that is spare.
            // And what one carried before its first losses predicts nothing.
            return Some((enough - (enough / 4).max(1)).max(short + 1)).filter(|n| *n < enough);
        }
        let middle = short + (enough - short) / 2;
        let Some(point) = self.short.filter(|point| point.bytes_per_s > 0.0) else {
            return Some(middle);
        };
        let of_point = point.bytes_per_s / f64::from(point.connections.max(1));
        // What an overload has delayed may still be missing there.
        let known = point.settled && self.overload.is_none();
        let one = if known { of_point } else { of_point.max(self.one_bytes_per_s) };
        let edge = EDGE_MARGIN * PLATEAU_SHARE * plateau / one;
        // Steps smaller than what ends the search would creep.
        let edge = edge.max(f64::from(short + (enough / 16).max(1)));
        let edge = edge.ceil().min(f64::from(enough)) as u32;
        if edge < enough {
            return Some(edge.clamp(short + 1, enough - 1));
        }
        // What is proven and predicts that all of them are needed, ends the search. What is not
        // proven gets a cheap trial.
        (!point.settled).then(|| (enough - (enough / 6).max(1)).clamp(short + 1, enough - 1))
    }

    /// Connections whose buffers, as the kernel makes them, cannot hold the plateau: trying them
    /// would make every command wait to learn what can be computed.
    fn too_few(&self, plateau: f64) -> u32 {
        if self.config.window_bytes == 0 {
            return 0;
        }
        let margin = if self.receives { WINDOW_MARGIN_RECEIVING } else { WINDOW_MARGIN };
        let most = margin * self.config.window_bytes as f64;
        let needed = PLATEAU_SHARE * plateau * self.least_rtt_s / most;
        (needed.ceil() as u32).saturating_sub(1)
    }

    pub(super) fn end_shrink(&mut self, connections: u32, plateau: f64, t_s: f64, why: Why) {
        self.weak = None;
        self.note_filled(connections, t_s);
        self.shrink_s = t_s + self.shrink_pause_s;
        self.look_again_s = t_s + self.look_pause_s;
        self.hold(connections, plateau, t_s, why);
    }

    /// What an interval says of the connections. In a trial of fewer that carry all that the rate
    /// lets through, that is the plateau, as far as they follow the rate: by chance it may be a low
    /// one. None while it is so low that nothing follows from it.
    pub(super) fn judged(&self, bytes_per_s: f64, pace: Pace) -> Option<f64> {
        let (State::Shrink { plateau }, Some(rate), true) =
            (self.state, pace.bytes_per_s, pace.binds)
        else {
            return Some(bytes_per_s);
        };
        let share = (bytes_per_s / rate).min(1.0);
        (rate >= LINE_SHARE * plateau).then_some(bytes_per_s.max(share * plateau))
    }

    pub(super) fn shrink(&mut self, plateau: f64, value: f64, t_s: f64) {
        let count = self.windows.count();
        let level = self.windows.recent(count).unwrap_or(value);
        let share = level / plateau.max(1.0);
        let error = SIGMAS * self.error(count);
        let here = Point { connections: self.connections, bytes_per_s: level, settled: true };
        if let Some((plateau, enough)) = self.flat(here, plateau, count) {
            self.short = None;
            self.weak = None;
            self.enough = Some(enough);
            self.start_shrink(plateau, t_s);
            return;
        }
        if count >= VERDICT_WINDOWS_MIN && share > 1.0 + GAIN_MIN.max(error) {
            // What is between this number and that of the plateau, may carry still more.
            self.overload = self.enough;
            self.short = self.short.filter(|point| point.settled);
            let wanted = here.connections + (here.connections / 4).max(1);
            self.start_grow(here, wanted, t_s, Why::Overload(share));
            return;
        }
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
            self.weak = self.weak.or(Some(here));
            self.give_back(plateau, t_s, share);
        }
    }

    /// More than `base` carry far less. After a large step they may have overrun the path, and
    /// fewer of them help; a small one does no such harm: the path has changed under the probe, and
    /// back at
    /// `base` that shows at once.
    pub(super) fn back_down(&mut self, base: Point, t_s: f64, factor: f64) {
        let more = base.connections + (base.connections / 4).max(1);
        self.enough = Some(base.connections);
        if more < self.connections {
            self.overload = Some(self.connections);
            self.start_grow(base, more, t_s, Why::NoGain(factor));
        } else {
            self.hold(base.connections, base.bytes_per_s, t_s, Why::NoGain(factor));
        }
        // What was overrun still waits for its timeouts.
        self.settled_s = self.settled_s.max(t_s + TIMEOUTS_S);
    }

    /// Of the `wanted` connections those that are tried: below a number that was seen to be too
    /// many, a quarter more than `base` at most.
    pub(super) fn below_overload(&self, base: Point, wanted: u32) -> u32 {
        let step = (base.connections / 4).max(1);
        match self.overload {
            Some(overload) if base.connections < overload => wanted.min(base.connections + step),
            _ => wanted,
        }
    }

    /// Whether more connections than the last trial's bring nothing: then both lie on the plateau,
    /// and its level was overestimated. The level and the fewer connections, if so.
    pub(super) fn flat(&self, here: Point, plateau: f64, count: usize) -> Option<(f64, u32)> {
        let proven = self.short.filter(|short| short.settled);
        let fewer = self.weak.or(proven).filter(|fewer| fewer.connections > 0)?;
        let step = f64::from(here.connections) / f64::from(fewer.connections) - 1.0;
        let gain = here.bytes_per_s / fewer.bytes_per_s.max(1.0) - 1.0;
        let near = fewer.bytes_per_s >= FLAT_SHARE * plateau;
        let least = (FLAT_GAIN_SHARE * step).min(FLAT_GAIN_MAX);
        let told = self.level_error(count) < 0.5 * least && count > VERDICT_WINDOWS_MIN;
        let flat = step >= FLAT_STEP_MIN && near && told && gain < least;
        flat.then(|| (here.bytes_per_s.max(fewer.bytes_per_s), fewer.connections))
    }

    /// Too few: what is between is tried at once, or the last number that sufficed comes back.
    pub(super) fn give_back(&mut self, plateau: f64, t_s: f64, share: f64) {
        self.start_shrink(plateau, t_s);
        if matches!(self.state, State::Hold { .. }) {
            self.why = Why::FewerLose(share);
        }
    }
}
