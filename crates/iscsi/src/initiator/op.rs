//! One SCSI command from the caller's side: what travels with it through the session core, and the
//! future that waits for it. Decides nothing about retries.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use block::{BlockError, Buf, Bytes};
use iscsi_proto::ids::Itt;
use iscsi_proto::initiator::durability::{Effect, Ended, Ticket};
use iscsi_proto::serial::CmdSn;
use iscsi_proto::time::Instant;

use super::failure::Failure;
use super::shared::Shared;

/// What a finished command brings back.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// The buffer of a read.
    pub(super) buf: Option<Buf>,
    /// Bytes of it that the target filled.
    pub(super) len: usize,
    /// SCSI status; anything but GOOD only for [`Origin::Session`].
    pub(super) status: u8,
    /// Sense data that came with it.
    pub(super) sense: Bytes,
    /// Its place among the commands of its session.
    pub(super) cmd_sn: Option<CmdSn>,
}

/// How a command ends for its caller.
pub(super) type Outcome = Result<Reply, BlockError>;

/// Who sent a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The disk's user: survives the session, is retried.
    User,
    /// As `User`, for an answer of unknown length.
    UserShort,
    /// Our own probing or replay: ends with the session, passes the gate, and sees every status
    /// instead of a retry.
    Session,
    /// A flush of our own, so that `Unflushed` stays within its limit.
    Trim,
}

impl Origin {
    pub(super) const fn is_user(self) -> bool {
        matches!(self, Self::User | Self::UserShort)
    }
}

/// What the session core carries for us with each command. It goes through a dozen hands, so it
/// stays where it is; its memory is used again (`State::task`).
pub(super) type Task = Box<Asked>;

/// A command as it was asked for, and how far it is.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) slot: Arc<Slot>,
    pub(super) origin: Origin,
    /// A read's buffer; absent while the connection fills it.
    pub(super) buf: Option<Buf>,
    pub(super) effect: Effect,
    pub(super) ticket: Ticket,
    /// What its GOOD is worth to the caller.
    pub(super) ended: Ended<Failure>,
    pub(super) attempts: u32,
    /// When the caller asked for it; the limit of retries counts from here.
    pub(super) asked_at: Instant,
    /// When it was last handed to a session.
    pub(super) submitted_at: Instant,
    /// Its place among the commands of the session in which it ended.
    pub(super) cmd_sn: Option<CmdSn>,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    /// With the failure that it tells, if that one was latched.
    Done(Outcome, Option<Failure>),
    Taken,
    /// The caller has given up.
    Abandoned,
}

/// What a caller leaves behind that goes away.
pub(super) enum Left {
    /// Nothing.
    Nothing,
    /// A command that may be waiting or under way.
    Command,
    /// A failure that was to be told.
    Failure(Failure),
}

/// Where the outcome is left for the caller.
#[derive(Debug)]
pub(super) struct Slot {
    state: Mutex<State>,
    /// What the command changes: offset and length in bytes.
    range: Option<(u64, u64)>,
    /// A session has it. Changed under the disk's lock only.
    under_way: AtomicBool,
    /// Where it can be aborted, if it is a read that may be: session and tag, as [`place`] has
    /// them. Changed under the disk's lock only.
    place: AtomicU64,
}

/// No session and tag.
const NOWHERE: u64 = u64::MAX;

/// A session and a tag in one number.
fn place(session: usize, itt: Itt) -> u64 {
    u32::try_from(session).map_or(NOWHERE, |session| u64::from(session) << 32 | u64::from(itt.0))
}

impl Slot {
    pub(super) fn new(effect: &Effect) -> Arc<Self> {
        let (state, under_way) = (Mutex::new(State::Waiting(None)), AtomicBool::new(false));
        let place = AtomicU64::new(NOWHERE);
        Arc::new(Self { state, range: effect.range(), under_way, place })
    }

    /// Delivers the outcome. The first one counts.
    pub(super) fn complete(&self, outcome: Outcome) {
        self.finish(outcome, None);
    }

    /// Delivers a failure that was latched. False if nobody waits for it.
    pub(super) fn tell(&self, failure: Failure) -> bool {
        self.finish(Err(failure.clone().into()), Some(failure))
    }

    fn finish(&self, outcome: Outcome, told: Option<Failure>) -> bool {
        let mut state = self.lock();
        let State::Waiting(waker) = &mut *state else { return false };
        let waker = waker.take();
        *state = State::Done(outcome, told);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    pub(super) const fn range(&self) -> Option<(u64, u64)> {
        self.range
    }

    pub(super) fn set_under_way(&self, under_way: bool) {
        self.under_way.store(under_way, Ordering::Relaxed);
        self.place.store(NOWHERE, Ordering::Relaxed);
    }

    /// A session has this read under a tag, and it is aborted if its caller gives up.
    pub(super) fn set_place(&self, session: usize, itt: Itt) {
        self.place.store(place(session, itt), Ordering::Relaxed);
    }

    /// Session and tag of a read that may be aborted.
    pub(super) fn place(&self) -> Option<(usize, Itt)> {
        let place = self.place.load(Ordering::Relaxed);
        let itt = Itt(place as u32); // the lower half
        usize::try_from(place >> 32).ok().filter(|_| place != NOWHERE).map(|session| (session, itt))
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(*self.lock(), State::Abandoned)
    }

    /// The caller gives up. Under the disk's lock only, so that what is left is still true there.
    pub(super) fn abandon(&self) -> Left {
        let mut state = self.lock();
        let before = std::mem::replace(&mut *state, State::Abandoned);
        drop(state);
        match before {
            State::Waiting(_) => Left::Command,
            State::Done(_, Some(failure)) => Left::Failure(failure),
            State::Done(..) | State::Taken | State::Abandoned => Left::Nothing,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for one command. What becomes of the command if this is dropped first: `state::abandoned`.
#[must_use]
#[derive(Debug)]
pub(super) struct Pending {
    slot: Arc<Slot>,
    shared: Weak<Shared>,
    /// The outcome has been handed out.
    is_over: bool,
}

impl Pending {
    pub(super) const fn new(slot: Arc<Slot>, shared: Weak<Shared>) -> Self {
        Self { slot, shared, is_over: false }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_over
            && let Some(shared) = self.shared.upgrade()
        {
            shared.with(|state, batch| state.abandon(&self.slot, batch));
        }
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Self { slot, is_over, .. } = self.get_mut();
        let mut state = slot.lock();
        match &mut *state {
            State::Waiting(Some(waker)) if waker.will_wake(context.waker()) => Poll::Pending,
            State::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            State::Done(..) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome, _) => {
                    *is_over = true;
                    Poll::Ready(outcome)
                }
                _ => Poll::Pending, // not reachable: matched above under the same lock
            },
            State::Taken | State::Abandoned => panic!("polled after completion"), // our bug, as for every future
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_waits_for_a_late_caller_and_the_first_one_counts() {
        let slot = Slot::new(&Effect::None);
        let mut pending = Pending::new(slot.clone(), Weak::new());
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut pending).poll(&mut context).is_pending());
        slot.complete(Ok(Reply { len: 7, ..Reply::default() }));
        slot.complete(Err(BlockError::ReadOnly));
        match Pin::new(&mut pending).poll(&mut context) {
            Poll::Ready(Ok(reply)) => assert_eq!(reply.len, 7),
            other => panic!("{other:?}"),
        }
    }
}
