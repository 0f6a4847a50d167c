//! Mistakes made on purpose in the initiator's shell: the oracle has to find each.

use iscsi_proto::initiator::durability::Effect;

use super::super::*;
use crate::durability::sabotage::Sabotage;

impl Shell {
    /// Sabotage: what the initiator has noted of a command is lost.
    pub(super) fn sabotage_done(&mut self, env: &Env, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let doubtful = matches!(task.effect, Effect::Volatile(..));
        if env.has(Sabotage::MarkTakenLate) || doubtful && env.has(Sabotage::DoubtForgotten) {
            self.keeper.sent(&task.effect, &mut task.ticket);
        }
        if env.has(Sabotage::GoodNotHeld) {
            self.keeper.undone(&mut task.ticket);
        }
    }

    /// Sabotage: what was lost with its session is taken for done.
    pub(in crate::durability::shell) fn sabotage_lost(
        &mut self,
        env: &mut Env,
        id: u64,
    ) -> Outcomes {
        let Some(Task { origin: Origin::User(op), effect, .. }) = self.tasks.get(&id) else {
            return Ok(());
        };
        let taken = match effect {
            Effect::Flushed => env.has(Sabotage::LostFlushIsGood),
            Effect::Volatile(..) => env.has(Sabotage::LostWriteIsGood),
            _ => false,
        };
        if taken {
            let op = *op;
            self.requeued.retain(|requeued| *requeued != id);
            return self.settle_op(env, id, op);
        }
        Ok(())
    }
}
