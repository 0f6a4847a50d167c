//! The order of commands, for a disk that somebody has asked for a barrier (`initiator::ordered`):
//! from then on they are sent in the order in which they were asked for, and one that is not carried
//! out ends the disk, because those behind it are.

use block::BlockError;
use iscsi_proto::initiator::TaskOutcome;

use super::{Batch, State, is_done};

impl State {
    /// Begins, or goes on, to keep the order.
    ///
    /// # Errors
    /// There are several connections. It is none for one that was asked for before.
    pub(in crate::initiator) fn begin_order(&mut self, batch: &mut Batch) -> block::Result<()> {
        if self.is_ordered {
            return Ok(());
        }
        if self.connections_open() + self.connections_opening() > 1 {
            return Err(BlockError::Unsupported("an order over several connections"));
        }
        self.is_ordered = true;
        if !self.resting.is_empty() {
            self.end("a command was put off that a barrier would overtake".into(), batch);
        }
        Ok(())
    }

    /// Commands go out in order, so over one connection.
    pub(in crate::initiator) fn is_in_order(&self) -> bool {
        self.is_ordered
    }

    /// Others behind this one may have been carried out, and it was not.
    pub(super) fn breaks_order(&self, outcome: &TaskOutcome) -> bool {
        self.is_ordered && !is_done(outcome)
    }
}
