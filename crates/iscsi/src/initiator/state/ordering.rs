//! The order of commands, for a disk that somebody has asked for a barrier (`initiator::ordered`):
//! from then on they are numbered in the order in which they were asked for, and one that is not
//! carried out ends the disk: nothing behind it is.

use block::BlockError;
use iscsi_proto::initiator::TaskOutcome;

use super::{Batch, State, is_done};

impl State {
    /// Begins, or goes on, to keep the order.
    ///
    /// # Errors
    /// There are several sessions. It is none for one that was asked for before.
    pub(in crate::initiator) fn begin_order(&mut self, batch: &mut Batch) -> block::Result<()> {
        if self.is_ordered {
            return Ok(());
        }
        let several = self.connections_open() + self.connections_opening() > 1;
        if several && self.granted() == 1 {
            return Err(BlockError::Unsupported("an order over several sessions"));
        }
        self.is_ordered = true;
        self.members.iter_mut().for_each(|member| member.session.keep_order());
        if !self.resting.is_empty() {
            self.end("a command was put off that a barrier would overtake".into(), batch);
        }
        Ok(())
    }

    /// Commands are numbered in order, so all in one session.
    pub(in crate::initiator) fn is_in_order(&self) -> bool {
        self.is_ordered
    }

    /// Others behind this one may have been carried out, and it was not.
    pub(super) fn breaks_order(&self, outcome: &TaskOutcome) -> bool {
        self.is_ordered && !is_done(outcome)
    }
}
