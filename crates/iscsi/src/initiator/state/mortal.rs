//! A disk that dies with its sessions ([`AfterLoss::Die`]), for whom an old write that lands late
//! is worse than none: a leg of a mirror.
//!
//! * Nothing goes out twice that may have been carried out. Whatever a session has when it ends
//!   fails, and so does what waits; no other session follows. TASK REASSIGN (error recovery level
//!   2) is no second time: the task is the same one. A command that the core gives back instead
//!   ends the disk.
//! * A target that has dropped commands ends the disk, whoever made it do so: it was powered on,
//!   reset (29h), cleared (2Fh), or told that a command was aborted. Others may have been dropped
//!   with it, and their owner has to look what is there.
//! * A command that the target has refused unread goes out again while its caller waits: BUSY, TASK
//!   SET FULL, NOT READY, a unit attention that tells of something else. None of it was carried
//!   out.
//! * Nothing is kept, so nothing is written again, and there is no flush of our own. One would do
//!   no harm to the order of writes: it makes more stable, and nothing newer.

use iscsi_proto::initiator::{Command, TaskOutcome};

use super::{Batch, Phase, State};
use crate::initiator::config::AfterLoss;
use crate::initiator::op::Task;
use crate::initiator::sense::{Sense, status};

impl State {
    /// The disk ends with its sessions.
    pub(in crate::initiator) fn dies(&self) -> bool {
        self.limits.after_loss == AfterLoss::Die
    }

    /// The sessions have ended for this reason, and with them the disk.
    pub(super) fn die(&mut self, reason: &str, batch: &mut Batch) {
        if self.phase != Phase::Closed {
            self.give_up(Phase::Unreachable(reason.into()), reason, batch);
        }
    }

    /// A session that lives has given commands back: only sending them again would go on.
    pub(super) fn is_fatal_to_return(&self, returned: &[(Command, Task, bool)]) -> bool {
        self.dies() && returned.iter().any(|(_, task, _)| task.origin.is_user())
    }

    /// Why this answer is the disk's end, if it is.
    pub(super) fn is_fatal_to_end(&self, task: &Task, outcome: &TaskOutcome) -> Option<String> {
        if !self.dies() || !task.origin.is_user() {
            return None;
        }
        if self.breaks_order(outcome) {
            return Some("a command was not carried out, and others behind it may be".to_string());
        }
        let is_fatal = match outcome {
            TaskOutcome::Completed { status: status::TASK_ABORTED, .. } => true,
            TaskOutcome::Completed { status: status::CHECK_CONDITION, sense, .. } => {
                Sense::parse(sense).is_aborted()
            }
            TaskOutcome::Completed { .. } | TaskOutcome::Rejected(_) => false,
            _ => true, // ended by somebody's reset, or not delivered by the target
        };
        is_fatal.then(|| "the target aborted a command".to_string())
    }

    /// Why this unit attention is the disk's end, if it is. While the sessions are set up it is
    /// none: what was dropped then was asked of another disk.
    pub(super) fn is_fatal_to_hear(&self, sense: Sense) -> Option<String> {
        let is_fatal = self.dies() && self.phase == Phase::Up && sense.is_dropping();
        is_fatal.then(|| format!("the target dropped commands: {sense}"))
    }
}
