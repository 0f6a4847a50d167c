//! Flushes of our own, which keep what is unflushed within its limit: when one is sent, and what
//! becomes of it. It ends as a flush of the user does, but for nobody waiting for it.

use super::tellers::Worth;
use super::{Cache, Durability, Stage, Ticket};

/// The one there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnFlush {
    /// None is needed yet.
    Idle,
    /// It was sent.
    UnderWay,
    /// It ended with GOOD, and others that were under way with it have not ended.
    Held(Ticket),
    /// The last one failed: the next one only when there is no more room, so that a unit that
    /// cannot flush is not asked after every write.
    Failed,
}

impl OwnFlush {
    /// A flush of the user has succeeded: so may ours.
    pub(super) const fn after_a_success(self) -> Self {
        match self {
            Self::Failed | Self::Idle => Self::Idle,
            Self::UnderWay | Self::Held(_) => self,
        }
    }

    /// The incarnation has ended.
    pub(super) const fn after_a_loss(self) -> Self {
        match self {
            Self::UnderWay | Self::Held(_) | Self::Idle => Self::Idle,
            Self::Failed => Self::Failed,
        }
    }
}

impl<F: Clone> Durability<F> {
    /// Time to send a flush of our own. `writes_wait`: a write was not admitted.
    pub fn wants_own_flush(&self, writes_wait: bool) -> bool {
        let up = self.stage == Stage::Up;
        match self.own_flush {
            OwnFlush::Idle => up && self.log.wants_flush(),
            OwnFlush::UnderWay | OwnFlush::Held(_) => false,
            OwnFlush::Failed => up && writes_wait && self.log.is_full(),
        }
    }

    /// It is about to be sent, with this ticket and [`super::Effect::Flushed`].
    pub const fn own_flush_sent(&mut self) -> Ticket {
        self.own_flush = OwnFlush::UnderWay;
        self.ask()
    }

    /// It ended with GOOD.
    pub fn own_flush_done(&mut self, mut ticket: Ticket) {
        self.tellers.good(&mut ticket.way);
        self.own_flush = OwnFlush::Held(ticket);
        self.settle_own_flush();
    }

    /// Others have ended, for which it may have been held.
    pub(super) fn settle_own_flush(&mut self) {
        let OwnFlush::Held(ticket) = self.own_flush else { return };
        self.own_flush = match self.tellers.worth(ticket.way) {
            Worth::Unknown => return,
            Worth::Failed | Worth::Lost => OwnFlush::Idle,
            // After a failure of an earlier one this success may be empty: the target may have told
            // its loss. What is kept stays, as long as there is room, until the user knows.
            Worth::All if self.latched.is_none() || self.log.is_full() => {
                self.log.flushed(ticket.mark);
                OwnFlush::Idle
            }
            Worth::All => OwnFlush::Failed,
        };
    }

    /// It failed for good. True: there is no more room, so writes that wait for it fail as well;
    /// waiting for ever is no answer, nor is forgetting.
    pub fn own_flush_failed(&mut self, ticket: &mut Ticket, failure: F) -> bool {
        self.own_flush = OwnFlush::Failed;
        self.tellers.failed(&mut ticket.way);
        self.note_failure(&failure);
        self.latch(failure);
        self.log.is_full()
    }

    /// It was not carried out: the unit was busy, or no session took it.
    pub fn own_flush_undone(&mut self, ticket: &mut Ticket) {
        self.own_flush = OwnFlush::Idle;
        self.tellers.over(&mut ticket.way);
    }

    /// It came back without an answer. True: the incarnation is to be ended, as with
    /// [`Self::unanswered`].
    pub fn own_flush_unanswered(&mut self, ticket: &mut Ticket) -> bool {
        self.own_flush = OwnFlush::Idle;
        self.unanswered(ticket)
    }

    /// The unit has no flush at all: nothing can ever be vouched for, as every flush tells.
    pub fn no_flush(&mut self) {
        self.own_flush = OwnFlush::Idle;
        self.cache = Cache::Unflushable;
        self.log.clear();
    }
}
