//! Who may write: the part of [`Legs`] that keeps the lag within its bound.
//!
//! A write takes its place before it takes anything else that a sender or a copy could wait for.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::epoch::PIECE_OVERHEAD_BYTES;
use super::super::super::lag::{self, Standing, Verdict};
use super::super::super::leg::LegEvent;
use super::super::super::status::LegState;
use super::super::session::Session;
use super::super::shared::{Phase, Shared};
use super::super::signal::{Teller, answer, either};
use super::Legs;
use super::logged::Journaled;
use super::one::Leg;
use crate::{BlockError, Result};

/// A write may be issued, or why it may not.
type Admitted = std::result::Result<(), String>;

/// A write that waits.
pub(super) struct Waiting {
    bytes: u64,
    teller: Teller<Admitted>,
}

/// Room for a write in the log, until dropped: by then it is in the log, or never will be.
pub(crate) struct Room {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared.legs().give_room_back(self.bytes);
    }
}

/// Waits until a write of so many bytes may be issued.
///
/// # Errors
/// A leg is too far behind, or the mirror is at its end.
pub(crate) async fn enter(shared: &Arc<Shared>, data_bytes: u64) -> Result<Room> {
    let bytes = data_bytes + PIECE_OVERHEAD_BYTES;
    let since = shared.host().now();
    let asked = shared.legs().ask_for_room(bytes);
    let admitted = match asked {
        Asked::Is(admitted) => admitted,
        Asked::Waits(answer) => {
            let admitted = answer.await;
            shared.count_lag_wait(shared.host().now().saturating_sub(since));
            admitted.unwrap_or_else(|| Err("the mirror is closed".to_owned()))
        }
    };
    match admitted {
        Ok(()) => Ok(Room { shared: shared.clone(), bytes }),
        Err(why) => Err(BlockError::Unreachable(why)),
    }
}

/// Keeps the bounds that hold without a write, until the mirror is closed.
pub(crate) async fn watch(shared: Arc<Shared>) {
    let _task = shared.task();
    loop {
        let change = shared.legs().log_changed();
        if shared.phase() == Phase::Ending {
            shared.legs().refuse_all();
            return;
        }
        match shared.legs().look_at_lag() {
            Some(next) => {
                either(change, shared.host().sleep(next)).await;
            }
            None => change.await,
        }
    }
}

enum Asked {
    Is(Admitted),
    Waits(super::super::signal::Answer<Admitted>),
}

impl Legs {
    fn ask_for_room(&self, bytes: u64) -> Asked {
        let now = self.host.now();
        loop {
            let legs = self.lock();
            let mut state = self.journal.lock();
            if let Some((_, why)) = &state.stopped {
                return Asked::Is(Err(why.clone()));
            }
            let verdict = match state.queue.is_empty() {
                true => self.verdict(bytes, &legs, &state, now),
                false => Verdict::Wait,
            };
            match verdict {
                Verdict::Go => {
                    state.reserved += bytes;
                    return Asked::Is(Ok(()));
                }
                Verdict::Wait => {
                    let (teller, answer) = answer();
                    state.queue.push_back(Waiting { bytes, teller });
                    // What fills the log is to be sent now.
                    state.log.close_early(now);
                    drop((legs, state));
                    self.wake_log();
                    return Asked::Waits(answer);
                }
                Verdict::LeaveBehind(which) => {
                    drop((legs, state));
                    which.into_iter().for_each(|leg| self.leave_behind(leg));
                }
                Verdict::Stop(leg) => return Asked::Is(Err(stop(&legs, &mut state, leg, now))),
            }
        }
    }

    fn verdict(&self, bytes: u64, legs: &[Leg], state: &Journaled, now: Duration) -> Verdict {
        let held_bytes = state.log.held_bytes() + state.reserved;
        let standings = standings(legs, state, now, self.config.lag.age);
        lag::admit(&self.config, bytes, held_bytes, &standings)
    }

    /// Lets those in that may be by now.
    pub(super) fn serve_queue(&self, legs: &[Leg], state: &mut Journaled, now: Duration) {
        while let Some(first) = state.queue.front() {
            let admitted = match &state.stopped {
                Some((_, why)) => Err(why.clone()),
                None if self.verdict(first.bytes, legs, state, now) == Verdict::Go => Ok(()),
                None => return,
            };
            let Some(first) = state.queue.pop_front() else { return };
            state.reserved += if admitted.is_ok() { first.bytes } else { 0 };
            first.teller.tell(admitted);
        }
    }

    fn give_room_back(&self, bytes: u64) {
        let now = self.host.now();
        let legs = self.lock();
        let mut state = self.journal.lock();
        state.reserved = state.reserved.saturating_sub(bytes);
        self.serve_queue(&legs, &mut state, now);
    }

    /// Keeps the bounds. Returns when to look again.
    fn look_at_lag(&self) -> Option<Duration> {
        let now = self.host.now();
        loop {
            let legs = self.lock();
            let mut state = self.journal.lock();
            self.serve_queue(&legs, &mut state, now);
            let first = state.queue.front().map(|waiting| waiting.bytes);
            let standings = standings(&legs, &state, now, self.config.lag.age);
            let mut due = lag::due(&self.config, first.is_some(), &standings);
            match first.map(|bytes| self.verdict(bytes, &legs, &state, now)) {
                Some(Verdict::LeaveBehind(which)) => due.leave_behind.extend(which),
                Some(Verdict::Stop(leg)) => due.stop = Some(leg),
                Some(Verdict::Go | Verdict::Wait) | None => {}
            }
            if let Some(leg) = due.stop.filter(|_| state.stopped.is_none()) {
                stop(&legs, &mut state, leg, now);
                continue;
            }
            if due.leave_behind.is_empty() {
                return due.next;
            }
            drop((legs, state));
            due.leave_behind.into_iter().for_each(|leg| self.leave_behind(leg));
        }
    }

    /// The leg has all but the log, and gets that. Until it is told to be in sync, writes wait for
    /// what would be too old then. A leg that was within the lag all the time is left alone.
    pub(crate) fn nears(&self, leg: usize, session: &Arc<Session>) {
        let mut legs = self.lock();
        if let Some(leg) = legs[leg].used_by(session) {
            leg.nearing = leg.is_logged() && !leg.is_promised();
        }
    }

    /// The leg has been caught up with, and what waits for it in the log is well within the lag.
    pub(crate) fn has_neared(&self, number: usize) -> bool {
        let now = self.host.now();
        let legs = self.lock();
        if !matches!(legs[number].state, LegState::Copying | LegState::CatchingUp) {
            return false;
        }
        let lag = self.config.lag;
        let standings = standings(&legs, &self.journal.lock(), now, lag.age);
        let holds = |each: &Standing| each.nearing && !each.is_well_within(lag, 0);
        !standings.iter().any(|each| each.leg == number && holds(each))
    }

    /// The leg gets nothing more of the log, and is caught up later.
    fn leave_behind(&self, number: usize) {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[number];
        if !leg.is_logged() {
            return;
        }
        let backlog = self.journal.backlog(number, now);
        let lag = &self.config.lag;
        let message = format!(
            "left behind: {:.1} s and {} bytes behind, where {:.1} s and {} bytes are allowed",
            backlog.age.as_secs_f64(),
            backlog.bytes,
            lag.age.as_secs_f64(),
            lag.bytes
        );
        tracing::warn!(leg = %leg.name, %message, "a leg is left behind");
        leg.step(LegEvent::Lost, Some(message.clone()), now);
        let session = self.give_up(number, leg);
        self.serve_queue(&legs, &mut self.journal.lock(), now);
        drop(legs);
        if let Some(session) = session {
            session.end(&message);
        }
        self.wake();
        self.wake_log();
    }

    /// Nobody who waits is let in any more.
    fn refuse_all(&self) {
        self.journal.lock().queue.clear();
    }
}

/// What is admitted and not in the log yet counts as on its way.
fn standings(legs: &[Leg], state: &Journaled, now: Duration, lag: Duration) -> Vec<Standing> {
    let standing = |(number, leg): (usize, &Leg)| {
        let mut backlog = state.log.backlog(number, now)?;
        backlog.bytes += state.reserved;
        let silent = leg.silent_since.map(|since| now.saturating_sub(since));
        let carried = state.carried[number].within(lag);
        let (promised, nearing) = (leg.is_promised(), leg.nearing);
        Some(Standing { leg: number, backlog, promised, nearing, silent, carried })
    };
    legs.iter().enumerate().filter_map(standing).collect()
}

/// Writes fail from now on. Returns what they are told.
fn stop(legs: &[Leg], state: &mut Journaled, leg: usize, now: Duration) -> String {
    let backlog = state.log.backlog(leg, now).unwrap_or_default();
    let why = format!(
        "leg {} is {:.1} s and {} bytes behind, and writes stop at that (lag.on = \"stop\"): \
         `enkaku mirror resume` has them go on, `enkaku mirror pause` without this leg",
        legs[leg].name,
        backlog.age.as_secs_f64(),
        backlog.bytes
    );
    tracing::error!(leg = %legs[leg].name, "{why}");
    state.stopped = Some((leg, why.clone()));
    why
}
