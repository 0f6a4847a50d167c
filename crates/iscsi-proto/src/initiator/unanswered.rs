//! Requests that may be lost without a trace: task management, text and pings are immediate, so
//! they leave no hole in CmdSN, and §7.2.1 allows no retry for anything else. A ping is made anew;
//! for the others the connection is given up when their answer is late, and their owner gets one
//! (`failover`, or the end of the session).

use super::event::ConnectionError;
use super::task::{Kind, Task};
use super::{ConnectionId, Session, Timer};
use crate::ids::Itt;
use crate::time::Instant;

impl<T> Session<T> {
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
