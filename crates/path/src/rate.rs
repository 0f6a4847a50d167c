//! How fast all connections together may send and ask: from the [`Estimate`] alone.
//!
//! The states have BBR's names. *Startup* doubles what was carried in each round until three of
//! them bring no quarter more; behind a queue, or losses, it grows by a quarter. After that one law
//! holds: the pace is the bandwidth, less what the queue is too long by, more what it is too short
//! by, over the time that a change needs to be seen. *Drain*, *cruise* and *probe* are what that
//! law does with a long queue, with the queue it aims at, and with none, where it adds a step that
//! doubles while it is followed. A standing queue of a few milliseconds keeps the line busy, and
//! makes what is carried the measure of the line; so nothing has to be probed while it stands (FAST
//! TCP, ToN 2006; COPA, NSDI 2018).

use super::background::Background;
use super::model::{Estimate, FULL_ROUNDS, LONG, TARGET_S, TARGET_SHARE};
use super::tcp::{ERROR_SHARE, MORE, SEGMENT_BYTES, SHORT_RTT_S};

/// Startup: what was carried grows by this factor in a round (slow start's, RFC 5681 §3.1); behind
/// a queue, or losses, by [`MORE`] (conservative slow start, RFC 9406 §4.2), and less than that is
/// no growth.
pub(crate) const STARTUP_GAIN: f64 = 2.0;
/// Half of that growth, where what it brings is seen a round late, or what is too much of it costs
/// others something.
pub(crate) const HALF_GAIN: f64 = (1.0 + STARTUP_GAIN) / 2.0;
/// A queue as long as this part of the round trip, within 4 and 16 ms, which are two targets, ends
/// the doubling (HyStart++, RFC 9406 §4.2: an eighth). Growth by [`MORE`] that falls evenly to
/// none while a queue grows to this length builds just that queue in a round.
const HYSTART: f64 = OFF_MOST / 2.0;
/// The longest command that is made by default, in bytes. Each open connection may have one under
/// way in startup before anything was measured: more than six doublings of the initial window, so
/// that the kernel's slow start is what limits. No pace is lower than one in a second.
pub(crate) const COMMAND_BYTES: f64 = 1048576.0;
/// All together may have so many under way then: what the first connections were given is not to
/// wait when the others come.
const FIRST_COMMANDS: f64 = 16.0;
/// Queues are corrected over this many times the time until a change is seen: a delayed loop is
/// stable beyond π/2 and has no overshoot beyond e.
pub(crate) const RESPONSE: f64 = 2.7;
/// A probe begins with a step that puts a quarter of the target into a queue in a round trip, and
/// may always put all of it there.
const PROBE_STEPS: (f64, f64) = (TARGET_SHARE / 4.0, TARGET_SHARE);
/// By this part the pace differs from the bandwidth at most.
const OFF_MOST: f64 = MORE - 1.0;
/// A step may put this time into a queue before it is seen: most queues of lines hold more.
pub(crate) const PROBE_QUEUE_S: f64 = 0.02;
/// No pace is lower than TCP's smallest windows, in segments (RFC 5681 §3.1).
pub(crate) const WINDOW_LEAST_SEGMENTS: f64 = 2.0;

/// What the rate is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Nothing is held back: the path is short, its round trip unknown, or others fill its queue,
    /// against which TCP's own rules are the fair ones.
    #[default]
    Free,
    /// A new path fills.
    Startup,
    /// A queue is too long.
    Drain,
    /// The pace is the line's.
    Cruise,
    /// No queue: does the path carry more?
    Probe,
    /// In the background: less goes for a round, so that everybody sees the empty path.
    Slowdown,
}

/// What may go.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pacing {
    /// Payload of all connections together in bytes a second; none leaves it to TCP.
    pub bytes_per_s: Option<f64>,
    /// Payload under way, in bytes; none sets no limit.
    pub window_bytes: Option<f64>,
}

/// Finds the pace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    pub(crate) state: State,
    /// What may go now.
    pub(crate) pacing: Pacing,
    begun: bool,
    /// Losses have shown in startup: the line runs over.
    near: bool,
    /// A queue stands in startup: from a length on, until half of that is left (RFC 9406 §4.2
    /// resumes slow start as well where a queue was none).
    queued: bool,
    /// The most that was carried in startup, what it was when it last grew by a quarter, and rounds
    /// since.
    best: f64,
    grown: f64,
    rounds: f64,
    round_ends_s: f64,
    /// What is added to the bandwidth, as a part of it.
    step: f64,
    /// What the line of a path that fills is believed to carry, in bytes a second
    /// ([`super::memory`]).
    pub(crate) belief: Option<f64>,
    /// The law of a transfer in the background, in place of all that.
    background: Option<Background>,
}

impl Rate {
    /// One that has seen nothing, of a transfer that may be one that takes what others leave.
    pub(crate) fn new(background: bool) -> Self {
        Self { background: background.then(Background::new), ..Self::default() }
    }

    /// What is carried now tells nothing of a level: the path fills, or others are let go first.
    pub(crate) fn is_passing(&self) -> bool {
        self.background.as_ref().map_or(self.state == State::Startup, Background::is_passing)
    }

    /// What may go before anything was measured.
    pub(crate) fn first(&mut self, rtt_s: Option<f64>, connections: u32) {
        if let Some(background) = &mut self.background {
            self.pacing.bytes_per_s = Some(background.first(rtt_s));
            self.state = background.state;
            return;
        }
        let rtt_s = rtt_s.filter(|rtt_s| *rtt_s >= SHORT_RTT_S);
        self.pacing = rtt_s.map_or_else(Pacing::default, |s| self.startup(s, connections, 0.0));
    }

    /// The path was filled with too much: goes on from this rate, carefully.
    pub(crate) fn retreat(&mut self, bytes_per_s: f64) {
        (self.best, self.near) = (bytes_per_s, true);
    }

    /// Takes what is known now.
    pub(crate) fn handle(&mut self, now: &Estimate) {
        if let Some(background) = &mut self.background {
            self.pacing.bytes_per_s = Some(background.handle(now));
            self.state = background.state;
            return;
        }
        let Some(rtt_s) = now.rtt_s.filter(|rtt_s| *rtt_s >= SHORT_RTT_S) else {
            // Before a round trip was sampled, what is remembered of the login's stays.
            if self.belief.is_none() || now.rtt_s.is_some() {
                *self = Self::default();
            }
            return;
        };
        if !std::mem::replace(&mut self.begun, true) {
            (self.state, self.round_ends_s) = (State::Startup, now.t_s + now.round_s());
        }
        self.pacing = match (self.state, now.bandwidth) {
            (State::Startup, _) if !self.is_full_pipe(now) => {
                self.startup(rtt_s, now.connections, now.queue_now_s)
            }
            _ if now.shared => {
                (self.state, self.step) = (State::Free, 0.0);
                Pacing::default()
            }
            (_, Some(bandwidth)) => self.cruise(now, rtt_s, bandwidth),
            (_, None) => Pacing::default(),
        };
        let floor = f64::from(now.connections) * WINDOW_LEAST_SEGMENTS * SEGMENT_BYTES / rtt_s;
        let least = |pace: f64| pace.max(floor).max(COMMAND_BYTES);
        self.pacing.bytes_per_s = self.pacing.bytes_per_s.map(least);
    }

    /// Startup has found what the path carries.
    fn is_full_pipe(&mut self, now: &Estimate) -> bool {
        self.best = self.best.max(now.carried);
        self.near |= now.lossy;
        if now.t_s < self.round_ends_s {
            return false;
        }
        self.round_ends_s = now.t_s + now.round_s();
        if !now.full {
            let burst = now.bandwidth.filter(|_| now.held).unwrap_or(0.0);
            self.best = self.best.max(burst);
            return false;
        }
        if self.best >= MORE * self.grown {
            (self.grown, self.rounds) = (self.best, 0.0);
        } else {
            self.rounds += 1.0;
        }
        self.rounds >= FULL_ROUNDS
    }

    fn startup(&mut self, rtt_s: f64, connections: u32, queue_s: f64) -> Pacing {
        self.state = State::Startup;
        let near_s = (HYSTART * rtt_s).clamp(LONG * TARGET_S.0, LONG * TARGET_S.1);
        self.queued = queue_s > if self.queued { near_s / 2.0 } else { near_s };
        let most = if self.near || self.queued { MORE } else { STARTUP_GAIN };
        let gain = (most - (most - 1.0) * queue_s / near_s).max(1.0);
        let first = COMMAND_BYTES * f64::from(connections).clamp(1.0, FIRST_COMMANDS);
        let line = self.belief.unwrap_or(f64::INFINITY);
        // More than the path held never needs to be under way.
        let first = first.min((line * rtt_s).max(COMMAND_BYTES));
        // Nothing is doubled beyond what the line carried.
        let rate = (first / rtt_s).max(gain * self.best).min(line.max(MORE * self.best));
        let window = first.max(STARTUP_GAIN * self.best * rtt_s);
        Pacing { bytes_per_s: Some(rate), window_bytes: Some(window) }
    }

    fn cruise(&mut self, now: &Estimate, rtt_s: f64, bandwidth: f64) -> Pacing {
        let response_s = RESPONSE * now.round_s();
        let error = (now.queue_target_s - now.queue_s) / response_s;
        // What is asked about goes within a round, beside what an error may hide.
        let error = if now.asks { -ERROR_SHARE - now.queue_s / now.round_s() } else { error };
        if !now.shown && !now.saturated && now.loss <= 0.0 || now.losses_limit {
            // Windows limit, and nothing has shown of the line: they are to grow.
            self.step = OFF_MOST;
        } else if now.queue_s > now.queue_target_s / 2.0 || now.lossy {
            self.step /= 2.0;
            self.round_ends_s = now.t_s + now.round_s();
        } else if now.queue_now_s > now.queue_target_s {
            // A burst, or what stands from the next sample on: no step is added to it.
        } else if (now.full || now.held) && now.t_s >= self.round_ends_s {
            let most = (PROBE_QUEUE_S / (rtt_s + now.round_s())).clamp(PROBE_STEPS.1, OFF_MOST);
            let followed = now.carried >= (1.0 - ERROR_SHARE) * bandwidth || !now.full;
            self.step = match followed {
                true => (2.0 * self.step).clamp(PROBE_STEPS.0, most),
                false => self.step.min(PROBE_STEPS.0),
            };
            self.round_ends_s = now.t_s + now.round_s();
        }
        self.state = match now.queue_s {
            queue_s if queue_s > LONG * now.queue_target_s => State::Drain,
            _ if self.step > 0.0 => State::Probe,
            _ => State::Cruise,
        };
        let gain = 1.0 + error.clamp(-OFF_MOST, OFF_MOST) + self.step;
        Pacing { bytes_per_s: Some(gain * bandwidth), window_bytes: None }
    }
}
