//! Requests that may be lost without a trace: task management, text and pings are immediate, so
//! they leave no hole in CmdSN, and §7.2.1 allows no retry for anything else. A ping is made anew;
//! for the others the connection is given up when their answer is late, and their owner gets one
//! (`failover`, or the end of the session). What counts as a sign of life of a connection stands
//! here, too (§11.18: NOP-Out "is used by the initiator as a ping request").

use super::event::ConnectionError;
use super::task::{Kind, Task};
use super::{Connection, ConnectionId, Session, Timer};
use crate::ids::Itt;
use crate::time::Instant;

impl<T> Session<T> {
    /// Connections whose silence is about to be judged: at the latest before
    /// [`Self::handle_timeout`] the owner may look whether their transport still moves bytes, and
    /// say so with [`Self::note_acknowledged`].
    pub fn suspects(&self, now: Instant) -> impl Iterator<Item = ConnectionId> + '_ {
        let timers = [Timer::Keepalive, Timer::Ping];
        let is_due = move |c: &&Connection| timers.iter().any(|one| c.timers.is_due(*one, now));
        let ids = (0..self.connections.len()).map(|index| ConnectionId(index as u8));
        ids.filter(move |id| self.connection(*id).as_ref().is_some_and(is_due))
    }

    /// The peer's TCP has acknowledged bytes of a connection, or brought some that nobody has read
    /// yet. A ping behind megabytes that a slow path takes seconds to carry is answered after them:
    /// a connection that carries them is alive. It is asked all the same, because the host that
    /// acknowledges may have a process that hangs.
    pub fn note_acknowledged(&mut self, id: ConnectionId, now: Instant) {
        if let Some(c) = self.connection_mut(id) {
            c.transmitted_at = c.transmitted_at.max(now);
        }
    }

    /// A function or a piece of text was sent: its answer is due some time.
    pub(super) fn await_answer(&mut self, id: ConnectionId, itt: Itt, now: Instant) {
        let due = now + self.config.answer_timeout;
        if let Some(task) = self.tasks.get_mut(itt) {
            task.asked_at = Some(now);
        }
        if let Some(c) = self.connection_mut(id)
            && !c.timers.is_set(Timer::Answer)
        {
            c.timers.set(Timer::Answer, due);
        }
    }

    /// Gives the connection up if a request on it has waited for too long.
    pub(super) fn answer_expired(&mut self, id: ConnectionId, now: Instant) {
        let asked = |(itt, task): (Itt, &Task<T>)| Some((task.asked_at?, itt));
        let here = self.tasks.iter().filter(|(_, task)| task.connection == id);
        let Some((at, itt)) = here.filter_map(asked).min() else { return };
        let due = at + self.config.answer_timeout;
        let Some(c) = self.connection_mut(id) else { return };
        if due > now {
            c.timers.set(Timer::Answer, due);
            return;
        }
        let cid = c.cid;
        self.fail(id, ConnectionError::NotAnswered { cid, itt });
    }

    /// Data has moved since, and a ping has no answer for as long as it may take: it may have been
    /// lost (§7.8), and who waits for it would wait for ever. Its answer is welcome all the same.
    pub(super) fn ping_again(&mut self, id: ConnectionId, now: Instant) {
        let late = self.config.ping_timeout;
        let lost = self.tasks.iter().find_map(|(itt, task)| match task.kind {
            Kind::Ping { sent_at: Some(at) } if task.connection == id => {
                (at + late <= now).then_some(itt)
            }
            _ => None,
        });
        let Some(itt) = lost.filter(|_| self.repairs()) else { return };
        self.tasks.remove(itt);
        self.retire(itt);
        if let Some(c) = self.connection_mut(id) {
            c.pinging = false;
        }
        self.ping(id);
    }
}
