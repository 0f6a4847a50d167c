//! One SCSI command from the caller's side: what travels with it through the session core, and the
//! future that waits for it. Decides nothing about retries.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use block::{BlockError, Buf, Bytes};
use iscsi_proto::time::Instant;

use super::unflushed::{Content, Mark};

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
}

/// How a command ends for its caller.
pub(super) type Outcome = Result<Reply, BlockError>;

/// What success of the command means for acknowledged but unflushed data.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    /// Nothing.
    None,
    /// This content is at this offset now, perhaps in a volatile cache only.
    Volatile(u64, Content),
    /// This range is stable, or undefined.
    Settled(u64, u64),
    /// Everything acknowledged before the mark is stable.
    Flushed(Option<Mark>),
}

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

/// What the session core carries for us with each command.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) slot: Arc<Slot>,
    pub(super) origin: Origin,
    /// A read's buffer; absent while the connection fills it.
    pub(super) buf: Option<Buf>,
    pub(super) effect: Effect,
    pub(super) attempts: u32,
    /// When the caller asked for it; the limit of retries counts from here.
    pub(super) asked_at: Instant,
    /// When it was last handed to a session.
    pub(super) submitted_at: Instant,
}

#[derive(Debug)]
enum State {
    Waiting(Option<Waker>),
    Done(Outcome),
    Taken,
}

/// Where the outcome is left for the caller.
#[derive(Debug)]
pub(super) struct Slot(Mutex<State>);

impl Slot {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Waiting(None))))
    }

    /// Delivers the outcome. The first one counts.
    pub(super) fn complete(&self, outcome: Outcome) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State::Waiting(waker) = &mut *state else { return };
        let waker = waker.take();
        *state = State::Done(outcome);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for one command.
#[must_use]
#[derive(Debug)]
pub(super) struct Pending(pub(super) Arc<Slot>);

impl Future for Pending {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *state {
            State::Waiting(Some(waker)) if waker.will_wake(context.waker()) => Poll::Pending,
            State::Waiting(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => Poll::Ready(outcome),
                _ => Poll::Pending, // not reachable: matched above under the same lock
            },
            State::Taken => panic!("polled after completion"), // our bug, as for every future
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_waits_for_a_late_caller_and_the_first_one_counts() {
        let slot = Slot::new();
        let mut pending = Pending(slot.clone());
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
