//! `adaptive`: the fewest connections that reach the plateau, found quickly and then left alone.
//!
//! It grows by factors while each step clearly helps, and does not wait for the end of a slow start
//! that already shows it. Behind the plateau's edge it predicts the edge from the rate that one
//! connection had below it, and tries that. From then on it watches: a level that leaves the noise
//! is a changed path and starts the search again; probes that failed come back ever more rarely.
//!
//! What it is not: it does not measure a round trip; where samples carry none, windows are longer.

mod constants;
mod losses;
mod lossy;
mod opening;
mod shrink;
mod watch;

use constants::*;
use losses::{Commands, Filled, Renewal};
use lossy::Lossy;

use super::limit::{buffer_wanted, control_wanted, limit_of};
use super::windows::Windows;
use super::{Bottleneck, CONNECTIONS_INITIAL, CONNECTIONS_MAX, CongestionControl, Line};
use super::{Connection, Decision, Phase, Policy, Sample, Why};

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
    /// What one connection keeps under way with the buffers that the kernel gives it by itself; 0
    /// if that is not known.
    pub window_bytes: u64,
}

impl Default for AdaptiveConfig {
    fn default() -> Self {
        Self {
            connections_initial: CONNECTIONS_INITIAL,
            connections_max: CONNECTIONS_MAX,
            socket_buffer_bytes_max: 0,
            congestion_controls: Vec::new(),
            window_bytes: 0,
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
    /// New connections are to take the place of those that lost something: as many as filled the
    /// line,
    /// `wanted` with the others.
    Renew { wanted: u32, filled: Line },
    /// Nothing is tried. The level is that of the plateau at first (so that a change in the midst
    /// of a search is seen), then a fresh one.
    Hold { level: f64, fresh: bool },
}

/// The peer did not open what was asked for.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    granted: u32,
    until_s: f64,
}

/// Our policy.
#[derive(Clone, Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    state: State,
    connections: u32,
    /// The most connections known not to suffice, with their level: the lower end of the search.
    short: Option<Point>,
    /// The first trial of this search that failed by no more than an error of measurement may be.
    weak: Option<Point>,
    /// The fewest connections known to suffice: its upper end.
    enough: Option<u32>,
    /// The number of connections that overran the path and carried less than fewer did: below it a
    /// search goes up in small steps.
    overload: Option<u32>,
    /// The most that one connection had on average: what it has where the line does not limit.
    one_bytes_per_s: f64,
    /// The level of the plateau as the last search found it; none since the path has changed.
    plateau: Option<f64>,
    windows: Windows,
    window_s: f64,
    /// The line's rate, if it is known and kept to.
    line_bytes_per_s: Option<f64>,
    /// The first number was chosen for the round trip.
    guessed: bool,
    rtt_known: bool,
    t_last_s: Option<f64>,
    /// Intervals without traffic just before, together: a burst a round trip leaves some empty.
    silent_s: f64,
    /// Something was lost since the last move.
    losses: bool,
    /// What the path loses, and the number that followed from it in this search, or 0.
    lossy: Lossy,
    foreseen: u32,
    /// The line when last nothing was lost.
    filled: Option<Filled>,
    commands: Commands,
    renewal: Renewal,
    /// The round trip, that of the empty path, and what it was when the present hold began.
    rtt_s: f64,
    least_rtt_s: f64,
    held_rtt_s: f64,
    /// The data come in.
    receives: bool,
    /// Since when what is carried has lagged behind a rate that rises, and when it last did.
    lags_s: Option<(f64, f64)>,
    /// Samples before this are ramp-up.
    settled_s: f64,
    moved_s: f64,
    /// What the peer refused to go beyond, and when it may be asked again.
    refusal: Option<Refusal>,
    refusal_pause_s: f64,
    /// Connections open in the last sample, and since when so many.
    open: (u32, f64),
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
            weak: None,
            enough: None,
            overload: None,
            one_bytes_per_s: 0.0,
            plateau: None,
            windows: Windows::default(),
            window_s: WINDOW_UNKNOWN_S,
            line_bytes_per_s: None,
            guessed: false,
            rtt_known: false,
            t_last_s: None,
            silent_s: 0.0,
            losses: false,
            lossy: Lossy::default(),
            foreseen: 0,
            filled: None,
            commands: Commands::default(),
            renewal: Renewal::default(),
            rtt_s: 0.0,
            least_rtt_s: 0.0,
            receives: false,
            lags_s: None,
            held_rtt_s: 0.0,
            settled_s: 0.0,
            moved_s: 0.0,
            refusal: None,
            refusal_pause_s: REFUSAL_PAUSE_S,
            open: (0, 0.0),
            look_again_s: 0.0,
            look_pause_s: LOOK_AGAIN_S,
            shrink_s: 0.0,
            shrink_pause_s: LOOK_AGAIN_S,
            why: Why::Measuring,
        }
    }

    fn connections_max(&self) -> u32 {
        let granted = self.refusal.map_or(u32::MAX, |refusal| refusal.granted);
        self.config.connections_max.min(granted).max(1)
    }

    fn move_to(&mut self, connections: u32, t_s: f64, state: State, why: Why) {
        if connections != self.connections {
            // Of far more, some may have lost whole windows, and wait for their timeouts.
            let by_load = self.losses && !self.lossy.is_known();
            let overrun = by_load && 4 * connections < 3 * self.connections;
            let ramp_s = if overrun { TIMEOUTS_S.max(self.window_s) } else { self.window_s };
            self.connections = connections;
            self.moved_s = t_s;
            self.settled_s = t_s + ramp_s;
            self.windows.clear();
            self.losses = false;
        }
        self.state = state;
        self.why = why;
    }

    fn hold(&mut self, connections: u32, level: f64, t_s: f64, why: Why) {
        self.held_rtt_s = self.rtt_s;
        self.move_to(connections, t_s, State::Hold { level, fresh: false }, why);
    }

    /// Error of a comparison of two medians of `count` windows each.
    fn error(&self, count: usize) -> f64 {
        MEDIAN_ERROR * self.windows.noise() * (2.0 / count.max(1) as f64).sqrt()
    }

    /// Error of one level, the median of `count` windows of which the first does not count.
    fn level_error(&self, count: usize) -> f64 {
        MEDIAN_ERROR * self.windows.noise() / (count.saturating_sub(1).max(1) as f64).sqrt()
    }

    /// The level has stopped rising: the last window is not above the one before, but for noise.
    fn is_settled(&self) -> bool {
        let (Some(last), Some(before)) = (self.windows.last(0), self.windows.last(1)) else {
            return false;
        };
        last <= before * (1.0 + GAIN_MIN.max(self.windows.noise()))
    }

    fn on_window(&mut self, value: f64, t_s: f64, limit: Bottleneck) {
        let fills = self.line_bytes_per_s.is_some() && limit == Bottleneck::LineRate;
        match self.state {
            State::Measure => self.measure(value, t_s, limit),
            State::Grow { .. } if fills => self.fill(value, t_s),
            State::Grow { base } => self.grow(base, value, t_s, limit),
            State::Shrink { plateau } => self.shrink(plateau, value, t_s),
            State::Renew { .. } => {}
            State::Hold { level, fresh } => self.watch(level, fresh, t_s, limit),
        }
    }

    /// The first level: one window will do if the limit is each connection's own, because the next
    /// step shows whether that was right.
    fn measure(&mut self, value: f64, t_s: f64, limit: Bottleneck) {
        if self.line_bytes_per_s.is_some() {
            // These have filled the line. Whether fewer would, is asked when it has settled; more
            // of them now would only meet those that repair their losses.
            self.fill(value, t_s);
            return;
        }
        // Chosen for this round trip, they have earned the end of their slow start.
        if self.guessed && !self.is_settled() && self.windows.count() < VERDICT_WINDOWS_MAX {
            return;
        }
        if limit == Bottleneck::LineRate {
            if self.is_settled() && self.windows.count() > VERDICT_WINDOWS_MIN {
                let plateau = self.windows.recent(VERDICT_WINDOWS_MIN).unwrap_or(value);
                self.start_shrink(plateau, t_s);
            }
            return;
        }
        let base = Point { connections: self.connections, bytes_per_s: value, settled: false };
        let factor = if limit == Bottleneck::Unknown { 2 } else { 4 };
        self.start_grow(base, base.connections.saturating_mul(factor), t_s, Why::Limited(limit));
    }

    /// The present number fills the line.
    fn fill(&mut self, value: f64, t_s: f64) {
        self.enough = Some(self.connections);
        self.note_filled(self.connections, t_s);
        self.plateau = Some(value);
        self.shrink_s = t_s + SHRINK_AFTER_CHANGE_S;
        self.look_again_s = t_s + self.look_pause_s;
        self.hold(self.connections, value, t_s, Why::LineFull);
    }

    fn start_grow(&mut self, base: Point, wanted: u32, t_s: f64, why: Why) {
        let target = self.below_overload(base, wanted).min(self.connections_max());
        if target <= base.connections {
            self.enough = Some(base.connections);
            self.finish_growth(base, base.bytes_per_s, t_s, Why::AtMost);
            if matches!(self.state, State::Hold { .. }) {
                self.why = Why::AtMost;
            }
            return;
        }
        self.move_to(target, t_s, State::Grow { base }, why);
    }

    fn grow(&mut self, base: Point, value: f64, t_s: f64, limit: Bottleneck) {
        let one = value / f64::from(self.connections);
        self.one_bytes_per_s = self.one_bytes_per_s.max(one);
        let step = f64::from(self.connections) / f64::from(base.connections) - 1.0;
        let gain_now = value / base.bytes_per_s.max(1.0) - 1.0;
        let here = Point { connections: self.connections, bytes_per_s: value, settled: false };
        // Taken while windows grew that losses have cut since: such a level bounds nothing. Nor
        // does it below the number that the losses ask for.
        let young = !base.settled || self.connections <= self.foreseen;
        let inflated = self.losses && young && limit != Bottleneck::LineRate;
        if self.dropped(base.bytes_per_s) && !inflated {
            self.back_down(base, t_s, gain_now + 1.0);
            return;
        }
        // After a probe it is close above as a rule, and far more would only make all wait.
        let after = |factor: u32| match step < PROBE_STEP_MAX {
            true => here.connections + 2 * (here.connections - base.connections),
            false => here.connections.saturating_mul(factor),
        };
        let beyond_noise = gain_now > SIGMAS * self.error(1);
        if gain_now >= GAIN_CLEAR_SHARE * step && beyond_noise {
            self.short = Some(base);
            let factor = if gain_now >= GAIN_LINEAR_SHARE * step { 4 } else { 2 };
            let wanted = after(factor).min(self.for_the_line(value));
            self.start_grow(here, wanted, t_s, Why::Helped(gain_now + 1.0));
            return;
        }
        let count = self.windows.count();
        // A probe that shows nothing is not worth the time of a search.
        let windows_max =
            if step < PROBE_STEP_MAX { TRIAL_WINDOWS_MAX } else { VERDICT_WINDOWS_MAX };
        if count < VERDICT_WINDOWS_MIN || (!self.is_settled() && count < windows_max) {
            return;
        }
        let seen = count.min(windows_max);
        // The first window after a move still holds some of the slow start.
        let level = self.windows.recent((seen - 1).max(1)).unwrap_or(value);
        let gain = level / base.bytes_per_s.max(1.0) - 1.0;
        let error = SIGMAS * self.error(seen);
        // Undecided: the gain is neither clearly worth it nor clearly not; or it is not, but the
        // level, which all trials of fewer will be held against, is not known well enough.
        let vague = gain <= GAIN_MIN && self.level_error(seen) > LEVEL_ERROR_MAX;
        if ((gain - GAIN_MIN).abs() < error || vague) && count < windows_max {
            return;
        }
        if gain <= GAIN_MIN.max(error) && inflated {
            // Without a queue more connections do no harm: the search goes on, from this level.
            let here = Point { bytes_per_s: level, settled: true, ..here };
            self.start_grow(here, here.connections.saturating_mul(2), t_s, Why::Limited(limit));
            return;
        }
        if gain < -self.sudden() {
            self.back_down(base, t_s, gain + 1.0);
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
        // Not settled: some of its slow start may be in it, so it bounds nothing.
        let here = Point { bytes_per_s: level, ..here };
        // Less than half of what the step could bring: the edge lies between, or close above.
        self.start_grow(here, after(2), t_s, Why::Helped(gain + 1.0));
    }

    /// The plateau is reached with `base`; a search that has no lower end yet waits if the path
    /// has just changed.
    fn finish_growth(&mut self, base: Point, level: f64, t_s: f64, why: Why) {
        let plateau = level.max(base.bytes_per_s).max(self.plateau.unwrap_or(0.0));
        if self.overload.is_some() {
            // Neither what too many carried nor a short look at fewer is the plateau's level.
            self.plateau = None;
            self.shrink_s = self.shrink_s.max(t_s + DRIFT_WINDOWS as f64 * self.window_s);
        }
        if t_s >= self.shrink_s {
            self.start_shrink(plateau, t_s);
            if matches!(self.state, State::Shrink { .. }) {
                return;
            }
        }
        self.hold(base.connections, plateau, t_s, why);
    }

    fn learn_window(&mut self, sample: &Sample) {
        let rtt_s = sample.typical(|tcp| tcp.rtt_us.or(tcp.min_rtt_us)).map(|us| us / 1e6);
        self.rtt_known = rtt_s.is_some();
        self.rtt_s = rtt_s.unwrap_or(0.0);
        self.least_rtt_s = sample.least_rtt_us().map_or(0.0, |us| us / 1e6);
        self.receives = sample.typical(|tcp| tcp.cwnd_bytes).is_none();
        let window_s = rtt_s.map_or(WINDOW_UNKNOWN_S, |rtt_s| WINDOW_ROUND_TRIPS * rtt_s);
        self.window_s = window_s.clamp(WINDOW_MIN_S, WINDOW_MAX_S);
    }

    fn decision(&self, sample: &Sample, phase: Option<Phase>, why: Why) -> Decision {
        let phase = phase.unwrap_or(match self.state {
            State::Measure => Phase::Measure,
            State::Grow { .. } | State::Renew { .. } => Phase::Grow,
            State::Shrink { .. } => Phase::Shrink,
            State::Hold { .. } => Phase::Hold,
        });
        let mut decision = Decision::new(sample, self.connections, phase, why);
        let most = self.config.socket_buffer_bytes_max;
        decision.socket_buffer_bytes = buffer_wanted(sample, sample.bytes_per_s, most);
        if why == Why::LossesEnded {
            decision.renewed = self.filled.map(|filled| filled.line);
            decision = decision.closing(sample);
        }
        let lossy = self.lossy.is_known();
        if !sample.pace.seeking || lossy {
            // What is lost while the line's rate is looked for, its queue has lost, as a rule.
            let available = &self.config.congestion_controls;
            decision.congestion_control = control_wanted(sample, available, lossy);
        }
        decision
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
        self.learn_window(sample);
        if self.t_last_s.replace(t_s).is_none() {
            self.begin(sample);
        }
        if sample.connections_open != self.open.0 {
            self.open = (sample.connections_open, t_s);
        }
        self.refusal = self.refusal.filter(|refusal| t_s < refusal.until_s);
        if sample.connections_open != self.connections {
            return self.opening(sample);
        }
        let limit = limit_of(sample);
        if sample.bytes_per_s == 0.0 {
            self.silent_s += interval_s;
            if limit != Bottleneck::Application && self.silent_s <= SILENT_WINDOWS * self.window_s {
                return self.decision(sample, None, self.why);
            }
            self.windows.clear();
            return self.decision(sample, Some(Phase::Idle), Why::NoTraffic);
        }
        let silent_s = std::mem::take(&mut self.silent_s);
        if limit == Bottleneck::Application {
            self.windows.clear();
            return self.decision(sample, Some(Phase::Idle), Why::Application);
        }
        self.line_bytes_per_s = sample.pace.bytes_per_s;
        self.losses |= sample.connections.iter().any(Connection::loses);
        self.commands.handle_sample(sample, interval_s);
        let losses_ended = self.lossy.handle_sample(sample, interval_s);
        if self.answer_losses(sample, losses_ended) || self.answer_lag(sample, limit) {
            return self.decision(sample, None, self.why);
        }
        if sample.pace.seeking {
            self.windows.clear();
            return self.decision(sample, None, Why::Seeking);
        }
        // An interval that began before the ramp-up's end belongs to it.
        let in_ramp = t_s - interval_s < self.settled_s - 1e-9;
        if in_ramp || interval_s == 0.0 {
            return self.decision(sample, None, self.why);
        }
        // After a longer silence it begins anew.
        let silent_s = if silent_s <= SILENT_WINDOWS * self.window_s { silent_s } else { 0.0 };
        let span_s = interval_s + silent_s;
        let bytes_per_s = sample.bytes_per_s * interval_s / span_s;
        let Some(bytes_per_s) = self.judged(bytes_per_s, sample.pace) else {
            return self.decision(sample, None, self.why);
        };
        if let Some(value) = self.windows.push(bytes_per_s, span_s, self.window_s) {
            self.on_window(value, t_s, limit);
        }
        self.decision(sample, None, self.why)
    }

    fn restart(&mut self) {
        self.state = State::Measure;
        (self.lossy, self.foreseen) = (Lossy::default(), 0);
        self.short = None;
        self.weak = None;
        self.enough = None;
        self.overload = None;
        self.plateau = None;
        self.one_bytes_per_s = 0.0;
        self.refusal = None;
        self.refusal_pause_s = REFUSAL_PAUSE_S;
        self.look_pause_s = LOOK_AGAIN_S;
        self.shrink_pause_s = LOOK_AGAIN_S;
        self.shrink_s = self.t_last_s.unwrap_or(0.0);
        self.windows.clear();
        self.why = Why::Measuring;
    }
}
