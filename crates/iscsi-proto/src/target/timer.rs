//! What time does to a session: silence, data and acknowledgements that do not come, and the end
//! of the time in which tasks of a lost connection can be taken over (RFC 7143 §7.9, §7.13).

use std::time::Duration;

use super::data_out::RECOVERIES_MAX;
use super::event::{ConnId, Event};
use super::receive::Receiving;
use super::session::{Connection, Session};
use super::state::ConnectionState;
use super::task::{Phase, Task};
use crate::ids::Itt;
use crate::time::Instant;

/// A sequence is taken as lost on a connection that brings other data all the time only after so
/// many times `data_timeout`: an initiator on a slow path may have much to send before.
const BUSY_FACTOR: u32 = 12;

impl Session {
    /// When `handle_timeout` wants to be called for `conn`. Look again after everything that
    /// happened on the connection; at error recovery level 2 also after it was lost
    /// ([`is_recoverable`](Self::is_recoverable)), until this is `None`.
    pub fn poll_timeout(&self, conn: ConnId) -> Option<Instant> {
        let connection = self.connections.get(&conn)?;
        if let Some(waiting) = &connection.recovery {
            return waiting.detached.then_some(waiting.deadline);
        }
        if connection.state == ConnectionState::Free {
            return None;
        }
        let ping = self.ping_due(connection);
        let acknowledge = self.acknowledge_due(conn, connection);
        let drain = self.drain_due(conn, connection);
        [acknowledge, connection.data_timer, drain].into_iter().flatten().chain([ping]).min()
    }

    /// When aborted tasks of `conn` wait no longer for data.
    fn drain_due(&self, conn: ConnId, connection: &Connection) -> Option<Instant> {
        let since = self.drains_since?.max(connection.last_data);
        let waits = |task: &Task| task.conn == conn && task.is_draining();
        self.tasks.values().any(waits).then(|| since + self.config.drain_timeout)
    }

    fn stop_draining(&mut self, conn: ConnId) {
        let draining = |(_, task): &(&Itt, &Task)| task.conn == conn && task.is_draining();
        let itts: Vec<Itt> = self.tasks.iter().filter(draining).map(|(itt, _)| *itt).collect();
        for itt in itts {
            self.abort_task(itt);
        }
        self.settle();
    }

    /// An aborted task waits for data: [`poll_timeout`](Self::poll_timeout) matters at level 0,
    /// too.
    pub fn is_draining(&self) -> bool {
        self.drains_since.is_some()
    }

    fn ping_due(&self, connection: &Connection) -> Instant {
        match connection.ping_sent {
            None => connection.last_heard + self.config.ping_after,
            Some(sent) => sent + self.config.ping_timeout,
        }
    }

    fn acknowledge_due(&self, conn: ConnId, connection: &Connection) -> Option<Instant> {
        let since = connection.ack_asked?;
        self.waits_for_acknowledgement(conn).then(|| since + self.config.acknowledge_after)
    }

    /// Time has passed. Returns false when the connection has to be given up.
    pub fn handle_timeout(&mut self, conn: ConnId, now: Instant) -> bool {
        self.clock = self.clock.max(now);
        if self.poll_timeout(conn).is_none_or(|due| now < due) {
            return true;
        }
        let Some(connection) = self.connections.get(&conn) else { return true };
        if connection.recovery.is_some() {
            self.give_up_recovery(conn);
            return true;
        }
        let ping_due = self.ping_due(connection) <= now;
        if ping_due && connection.ping_sent.is_some() {
            return false;
        }
        if self.acknowledge_due(conn, connection).is_some_and(|due| due <= now) {
            self.ping(conn);
        }
        if self
            .connections
            .get(&conn)
            .and_then(|c| self.drain_due(conn, c))
            .is_some_and(|due| due <= now)
        {
            self.stop_draining(conn);
        }
        if connection_data_due(self.connections.get(&conn), now) {
            self.look_for_lost_data(conn, now);
        }
        if ping_due && let Some(connection) = self.connections.get_mut(&conn) {
            connection.ping_sent = Some(now);
            self.ping(conn);
        }
        true
    }

    /// Bytes moved on `conn` without completing a PDU: a slow link is not a dead one.
    pub fn note_progress(&mut self, conn: ConnId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.last_heard = now;
            // Pings say nothing about data, and may be more frequent than its timer.
            let receives = matches!(
                connection.receiving,
                Receiving::DataOut { .. } | Receiving::Command { .. } | Receiving::Immediate(_)
            );
            if receives || connection.sends_data {
                connection.last_data = now;
            }
            if connection.ping_sent.is_some() {
                connection.ping_sent = Some(now);
            }
        }
    }

    /// The peer's TCP has acknowledged bytes of `conn`, or brought some that nobody has read yet. A
    /// NOP-In behind the data of large reads is answered after them: a connection that carries them
    /// is alive. It is asked all the same, because the host that acknowledges may have a process
    /// that hangs.
    pub fn note_acknowledged(&mut self, conn: ConnId, now: Instant) {
        if let Some(connection) = self.connections.get_mut(&conn)
            && connection.ping_sent.is_some()
        {
            connection.ping_sent = Some(now);
        }
    }

    /// Data was asked for on `conn`: looks later whether it has come.
    pub(super) fn arm_data_timer(&mut self, conn: ConnId) {
        let due = self.clock + self.config.data_timeout;
        if self.recovers()
            && let Some(connection) = self.connections.get_mut(&conn)
            && connection.data_timer.is_none()
        {
            connection.data_timer = Some(due);
        }
    }

    /// Ends sequences that have been silent for too long and asks for what they did not bring.
    fn look_for_lost_data(&mut self, conn: ConnId, now: Instant) {
        let timeout = self.config.data_timeout;
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        connection.data_timer = None;
        let open = |task: &Task| {
            task.conn == conn && task.phase == Phase::Collecting && task.awaits_data()
        };
        let open: Vec<(Itt, Duration)> = self
            .tasks
            .iter()
            .filter(|(_, task)| open(task))
            .map(|(itt, task)| (*itt, now.since(task.last_data)))
            .collect();
        if open.is_empty() {
            return;
        }
        let idle = now.since(connection.last_data);
        let lost = |silence: Duration| {
            silence >= timeout && (idle >= timeout || silence >= timeout * BUSY_FACTOR)
        };
        connection.data_timer = Some(now + (timeout - idle.min(timeout / 2)));
        for (itt, silence) in open {
            if lost(silence) {
                self.give_up_sequences(itt, now);
            }
        }
    }

    /// The sequence reception timeout (§7.1.4.1): what is missing is asked for with recovery R2Ts.
    /// Where not even damaged data comes in answer, nothing that is sent gets through, and neither
    /// would the end of the command: the connection is given up (§7.14).
    fn give_up_sequences(&mut self, itt: Itt, now: Instant) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        task.last_data = now;
        if task.fruitless >= RECOVERIES_MAX && task.fault.is_none() {
            let (conn, reason) = (task.conn, "data that was asked for again does not come");
            return self.push_event(conn, Event::Close { reason, at_once: true });
        }
        task.replaced_r2ts |= !task.bursts.is_empty();
        let missing = task.close_sequences();
        if task.fault.is_some() {
            return self.execute_if_complete(itt);
        }
        if missing.is_empty() || self.ask_again(itt, missing) {
            self.solicit(itt);
        }
        self.execute_if_complete(itt);
    }
}

fn connection_data_due(connection: Option<&Connection>, now: Instant) -> bool {
    connection.and_then(|c| c.data_timer).is_some_and(|due| due <= now)
}

impl Task {
    /// It is aborted, and waits for data that was asked for.
    pub(super) fn is_draining(&self) -> bool {
        self.aborted && self.phase == Phase::Collecting
    }

    /// Ends all open sequences; returns what they asked for and did not bring.
    pub(super) fn close_sequences(&mut self) -> Vec<(u32, u32)> {
        let mut missing = Vec::new();
        if let Some(sequence) = self.unsolicited.take() {
            self.solicited_to = sequence.frontier();
            if !self.too_long {
                missing.extend(sequence.holes());
            }
        }
        missing.extend(self.bursts.drain(..).flat_map(super::sequence::Sequence::rest));
        missing
    }
}
