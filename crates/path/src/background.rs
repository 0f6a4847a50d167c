//! The pace of a background transfer, which takes what others leave: from the [`Estimate`] alone.
//!
//! LEDBAT's law (RFC 6817) with the repairs of LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus), on a
//! pace in place of a window: above the target queueing delay it decreases by a part of itself, by
//! the half at most; below, it increases by a part of the line that puts no more than the target
//! into a queue before that is seen, and now and then it slows down, so that our own queue is never
//! taken for the path's, by nobody. What differs: a window of 1 Gbit/s over 50 ms would take ten
//! minutes to be back at a segment a round trip. What was carried beside the last queue is the line
//! where nobody else was there, because a queue of our own keeps it busy; so the pace goes back to
//! just below that at once, as slow start does up to `ssthresh`, and rises slowly around it and
//! faster beyond (RFC 9438 has that shape).
//!
//! What it is not: it measures nothing, and has no say in the number of connections.

use super::model::{Estimate, FULL_ROUNDS, LONG, PATIENCE_S};
use super::rate::{COMMAND_BYTES, HALF_GAIN, PROBE_QUEUE_S, RESPONSE, STARTUP_GAIN, State};
use super::tcp::{ERROR_SHARE, INITIAL_WINDOW_SEGMENTS, MORE, OTHER_SHARE, SEGMENT_BYTES};

/// Startup makes the pace this multiple of what was carried in each round, less than slow start's
/// double (LEDBAT++, modified slow start), because what is carried is seen a round late.
const STARTUP: f64 = HALF_GAIN;
/// From this part of the target on, three quarters (LEDBAT++), a queue is one: startup ends, and
/// the pace follows what is carried. A step of an increase puts what is left of the room beyond the
/// target into a queue before that is seen.
const NEAR: f64 = 2.0 - MORE;
/// What a decrease takes of the pace at most, once in a round (RFC 6817 §2.4.2, LEDBAT++), and what
/// is let go for a round in a slowdown: as much as slow start brings back in one.
const DECREASE_MOST: f64 = 1.0 / STARTUP_GAIN;
/// The room is the longest queue that was seen, up to 40 ms: what longer buffers hold is for
/// others' bursts, not for ours.
const ROOM_S: f64 = LONG * PROBE_QUEUE_S;
/// When no queue has stood for so many seconds, steps are twice as long, and so on with the square:
/// the pace goes with the cube of that time (RFC 9438). A flow of cubic that has lost is back by
/// then.
const IDLE_S: f64 = PATIENCE_S.0;
/// A slowdown comes after so many rounds, at least nine (LEDBAT++, periodic slowdown): what it
/// costs is within the error of a mean.
const SLOWDOWN_ROUNDS: f64 = 1.0 / ERROR_SHARE;

/// Finds the pace of a transfer in the background.
#[derive(Clone, Debug, Default)]
pub(crate) struct Background {
    pub(crate) state: State,
    /// Payload in bytes a second.
    pace: f64,
    /// The most that was carried.
    line: f64,
    /// What was carried beside the queue that was seen last.
    fits: f64,
    /// A queue has stood, or something was lost.
    filled: bool,
    /// When a queue stood last.
    queued_s: f64,
    /// Rounds of startup that brought no quarter more, and what was carried before them.
    idle_rounds: f64,
    grown: f64,
    round_ends_s: f64,
    slows_at_s: f64,
}

impl Background {
    /// One that has seen nothing.
    pub(crate) fn new() -> Self {
        Self { state: State::Startup, ..Self::default() }
    }

    /// What may go before anything was measured, in bytes a second.
    pub(crate) fn first(&mut self, rtt_s: Option<f64>) -> f64 {
        let window = INITIAL_WINDOW_SEGMENTS * SEGMENT_BYTES;
        let first = rtt_s.filter(|rtt_s| *rtt_s > 0.0).map_or(0.0, |rtt_s| window / rtt_s);
        self.pace = first.max(COMMAND_BYTES);
        self.pace
    }

    /// What is carried tells nothing of how many connections there should be: the path fills, or
    /// the line has been full with these, and what is not ours is let go.
    pub(crate) fn is_passing(&self) -> bool {
        self.state == State::Startup || self.filled
    }

    /// Takes what is known now and answers what may go, in bytes a second.
    pub(crate) fn handle(&mut self, now: &Estimate) -> f64 {
        self.line = self.line.max(now.carried);
        if now.t_s < self.round_ends_s {
            return self.allowed();
        }
        self.round_ends_s = now.t_s + now.round_s();
        let queue = if now.queue_target_s > 0.0 { now.queue_s / now.queue_target_s } else { 0.0 };
        // Lost beside a queue is lost to the load, however few they are.
        let lost = now.lossy || now.loss > 0.0 && queue > 0.5;
        self.filled |= now.full && (lost || queue > 0.5);
        if self.state == State::Startup && !self.is_full_pipe(now, lost) {
            self.pace = self.pace.max(STARTUP * now.carried);
        } else if lost || queue > 1.0 {
            let above = if lost { DECREASE_MOST } else { (queue - 1.0).min(DECREASE_MOST) };
            self.fits = now.carried.max(now.bytes_per_s).min(self.line);
            self.pace = (1.0 - above) * self.pace.min(now.carried);
            (self.state, self.queued_s) = (State::Drain, now.t_s);
        } else if now.t_s >= self.slows_at_s {
            self.slows_at_s = now.t_s + SLOWDOWN_ROUNDS * now.round_s();
            self.state = State::Slowdown;
        } else {
            self.increase(now);
        }
        self.pace = self.pace.max(COMMAND_BYTES);
        self.allowed()
    }

    fn allowed(&self) -> f64 {
        match self.state {
            State::Slowdown => ((1.0 - DECREASE_MOST) * self.pace).max(COMMAND_BYTES),
            _ => self.pace,
        }
    }

    /// Startup has found a queue, or what the path carries.
    fn is_full_pipe(&mut self, now: &Estimate, lost: bool) -> bool {
        if now.carried >= STARTUP.sqrt() * self.grown {
            (self.grown, self.idle_rounds) = (now.carried, 0.0);
        } else if now.full {
            self.idle_rounds += 1.0;
        }
        let queued = now.full && now.queue_now_s > NEAR * now.queue_target_s;
        let is_full = lost || queued || self.idle_rounds >= FULL_ROUNDS;
        if is_full {
            self.fits = now.carried.max(now.bytes_per_s).min(self.line);
            self.pace = self.pace.min(now.carried);
            // The queue that startup built is emptied at once (LEDBAT++, initial slowdown).
            self.slows_at_s = now.t_s;
            (self.state, self.queued_s) = (State::Cruise, now.t_s);
        }
        is_full
    }

    /// There is room below the target: as much as fits at once where nobody else was there, else a
    /// step.
    fn increase(&mut self, now: &Estimate) {
        let near = (1.0 - ERROR_SHARE / 2.0) * self.fits;
        let alone = self.fits >= (1.0 - OTHER_SHARE) * self.line;
        let used = now.held || now.carried >= (1.0 - OTHER_SHARE) * self.pace;
        self.state = State::Cruise;
        if now.queue_now_s > NEAR * now.queue_target_s {
            // What is carried beside a queue is what fits; a little more keeps the queue there.
            let more_s = (now.queue_target_s - now.queue_now_s) / RESPONSE;
            self.pace = self.pace.min((1.0 + more_s / now.round_s()) * now.carried);
            self.queued_s = now.t_s;
        } else if self.pace < near && alone {
            self.pace = near;
        } else if used {
            let seen_s = now.round_s() + now.rtt_s.unwrap_or(0.0);
            let beyond = (self.pace / self.fits - 1.0).abs() > ERROR_SHARE;
            let room_s = now.queue_most_s.min(ROOM_S) - now.queue_target_s;
            let room_s = if beyond { room_s.max(now.queue_target_s) } else { now.queue_target_s };
            let idle = (now.t_s - self.queued_s) / IDLE_S;
            let step = (1.0 - NEAR) * self.line * (1.0 + idle * idle) * room_s / seen_s;
            self.pace += step.min(self.pace);
            self.state = State::Probe;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 100e6;

    /// A round later, with a queue of so many milliseconds.
    fn later(now: &mut Estimate, queue_ms: f64) -> Estimate {
        now.t_s += now.round_s() + 1e-6;
        (now.queue_s, now.queue_now_s) = (queue_ms / 1e3, queue_ms / 1e3);
        now.queue_most_s = now.queue_most_s.max(now.queue_s);
        *now
    }

    /// A transfer that has filled a line of 20 ms, whose slowdown after startup is over.
    fn alone() -> (Background, Estimate) {
        let mut now = Estimate {
            rtt_s: Some(0.02),
            queue_target_s: 0.002,
            carried: LINE,
            bytes_per_s: LINE,
            full: true,
            held: true,
            ..Estimate::default()
        };
        let mut background = Background::new();
        background.first(now.rtt_s);
        for queue_ms in [0.0, 1.9, 0.0, 0.0] {
            background.handle(&later(&mut now, queue_ms));
        }
        assert_ne!(background.state, State::Startup);
        (background, now)
    }

    #[test]
    fn a_queue_takes_a_part_of_the_pace_once_in_a_round_and_half_at_most() {
        let (mut background, mut now) = alone();
        let before = background.handle(&now);
        let quarter = background.handle(&later(&mut now, 2.5));
        assert!((quarter / before.min(LINE) - 0.75).abs() < 0.01, "{before} to {quarter}");
        now.t_s += 0.01;
        assert_eq!(background.handle(&now), quarter, "once in a round");
        let half = background.handle(&later(&mut now, 30.0));
        assert!((half / quarter - 0.5).abs() < 0.01, "{quarter} to {half}");
        for _ in 0..10 {
            background.handle(&later(&mut now, 30.0));
        }
        assert_eq!(background.handle(&now), COMMAND_BYTES);
    }

    #[test]
    fn losses_beside_a_queue_are_of_the_load_and_others_are_not() {
        let (mut background, mut now) = alone();
        now.loss = 1e-4;
        let before = background.handle(&later(&mut now, 0.0));
        let kept = background.handle(&later(&mut now, 0.5));
        assert!(kept >= before, "{before} to {kept}");
        let half = background.handle(&later(&mut now, 1.5));
        assert!(half <= 0.5 * LINE, "{kept} to {half}");
    }

    #[test]
    fn what_was_carried_beside_a_queue_of_our_own_is_there_again_at_once() {
        let (mut background, mut now) = alone();
        background.handle(&later(&mut now, 4.0));
        assert!(background.handle(&later(&mut now, 0.0)) > 0.95 * LINE);
        // Where somebody has half of the line, only by steps.
        (now.carried, now.bytes_per_s) = (LINE / 2.0, LINE / 2.0);
        background.handle(&later(&mut now, 4.0));
        assert!(background.handle(&later(&mut now, 0.0)) < 0.45 * LINE);
    }

    #[test]
    fn it_slows_down_for_a_round_now_and_then() {
        let (mut background, mut now) = alone();
        let slow: Vec<bool> = (0..60)
            .map(|_| {
                background.handle(&later(&mut now, 0.0));
                background.state == State::Slowdown
            })
            .collect();
        let times = slow.iter().filter(|slow| **slow).count();
        assert!((2..=3).contains(&times), "{times} of 60 rounds");
        assert!(slow.windows(2).all(|two| two != [true, true]));
    }

    #[test]
    fn a_pace_that_is_not_used_does_not_rise() {
        let (mut background, mut now) = alone();
        (now.held, now.carried) = (false, LINE / 4.0);
        let before = background.handle(&later(&mut now, 0.0));
        for _ in 0..10 {
            background.handle(&later(&mut now, 0.0));
        }
        assert_eq!(background.pace, before.max(background.pace.min(before)));
    }
}
