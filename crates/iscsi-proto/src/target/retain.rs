//! What was sent and is not acknowledged: kept from error recovery level 1 on, so that it can be
//! sent again (RFC 7143 §4.2.2.2, §11.16). At level 0 nothing is kept.
//!
//! Every PDU that uses up a StatSN has an entry, in order. The task of a SCSI response stays whole,
//! with its data, and its memory goes on counting as that of a read. Whatever a peer leaves
//! unacknowledged is limited: responses are held back, other answers end the connection.

use super::event::{ConnId, Event};
use super::session::{Connection, Session};
use super::task::{Phase, Task};
use super::transmit::Reply;
use crate::ids::{Itt, Lun};
use crate::serial::StatSn;
use bytes::Bytes;

/// Answers other than SCSI responses that may be unacknowledged on a connection. An initiator
/// acknowledges with whatever it sends; one that never does wants our memory.
const UNACKNOWLEDGED_MAX: usize = 4096;

/// Bytes of data in them: pings and texts.
const UNACKNOWLEDGED_BYTES_MAX: usize = 8 << 20;

/// What a StatSN was used for.
#[derive(Clone, Debug)]
pub(super) enum Numbered {
    /// The status of a task.
    Response(Itt),
    /// Any other answer.
    Reply(Reply),
    /// Something that is never sent again.
    Nothing,
}

impl Connection {
    /// StatSN of the oldest PDU that is kept.
    fn first_unacknowledged(&self) -> StatSn {
        // At most a few thousand entries.
        StatSn(self.next_stat_sn.0.wrapping_sub(self.sent.len() as u32))
    }

    /// What this StatSN was used for, if it is not acknowledged.
    pub(super) fn numbered(&self, stat_sn: StatSn) -> Option<&Numbered> {
        let index = stat_sn.since(self.first_unacknowledged());
        self.sent.get(usize::try_from(index).ok()?)
    }
}

impl Session {
    /// Lost PDUs are asked for and sent again.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
    //# When a defined value of ErrorRecoveryLevel is returned by a responder in a text negotiation,
    //# the responder MUST support the functionality corresponding to the ErrorRecoveryLevel it is
    //# accepting.
    pub(super) fn recovers(&self) -> bool {
        self.params.error_recovery_level >= 1
    }

    /// Tasks outlive their connection.
    pub(super) fn reassigns(&self) -> bool {
        self.params.error_recovery_level >= 2
    }

    /// The next StatSN, with what it is for.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
    //# Initiators and targets MUST support the response-numbering scheme.
    pub(super) fn take_stat_sn(&mut self, conn: ConnId, numbered: Numbered) -> Option<StatSn> {
        let recovers = self.recovers();
        let connection = self.connections.get_mut(&conn)?;
        if recovers {
            if let Numbered::Reply(reply) = &numbered {
                connection.sent_bytes += reply.payload_len();
            }
            connection.sent.push_back(numbered);
            if connection.sent.len() > UNACKNOWLEDGED_MAX
                || connection.sent_bytes > UNACKNOWLEDGED_BYTES_MAX
            {
                let reason = "answers are not acknowledged";
                connection.events.push_back(Event::Close { reason, at_once: false });
                self.wakes.push_back(conn);
            }
        }
        Some(self.connections.get_mut(&conn)?.next_stat_sn.take())
    }

    /// A task's last PDU is made: it is over, unless it may have to be sent again.
    pub(super) fn retain_answer(&mut self, conn: ConnId, itt: Itt, task: Box<Task>) {
        if !self.recovers() {
            self.release_read(conn, task.reading);
            return self.tasks.recycle(task);
        }
        let acknowledged = |c: &Connection| {
            task.stat_sn.is_some_and(|stat_sn| stat_sn.is_before(c.first_unacknowledged()))
        };
        if self.connections.get(&conn).is_some_and(acknowledged) {
            return self.release_read(conn, task.reading);
        }
        self.answered.insert(itt, task);
        self.ask_for_acknowledgement(conn);
    }

    /// The initiator has everything before `exp_stat_sn`.
    pub(super) fn acknowledge(&mut self, conn: ConnId, exp_stat_sn: StatSn) {
        let mut freed = 0;
        while let Some(connection) = self.connections.get_mut(&conn)
            && connection.first_unacknowledged().is_before(exp_stat_sn)
            && let stat_sn = connection.first_unacknowledged()
            && let Some(numbered) = connection.sent.pop_front()
        {
            connection.ack_asked = None;
            match numbered {
                Numbered::Reply(reply) => connection.sent_bytes -= reply.payload_len(),
                Numbered::Response(itt) => {
                    let same = |task: &Task| task.conn == conn && task.stat_sn == Some(stat_sn);
                    if self.answered.get(&itt).map(Box::as_ref).is_some_and(same)
                        && let Some(task) = self.answered.remove(&itt)
                    {
                        freed += task.reading;
                        self.tasks.recycle(task);
                    }
                }
                Numbered::Nothing => {}
            }
        }
        self.release_read(conn, freed);
    }

    /// Forgets an answer before it is acknowledged: its tag is used again, so it has arrived.
    pub(super) fn forget_answer(&mut self, itt: Itt) {
        if let Some(task) = self.answered.remove(&itt) {
            self.release_read(task.conn, task.reading);
            self.tasks.recycle(task);
        }
    }

    /// A task of `conn` whose data or status is being sent or was sent.
    pub(super) fn find_answer(&self, conn: ConnId, itt: Itt) -> Option<&Task> {
        let responding = self.tasks.get(&itt).filter(|task| task.phase == Phase::Responding);
        responding
            .or_else(|| self.answered.get(&itt).map(Box::as_ref))
            .filter(|task| task.conn == conn)
    }

    /// Are there so many unacknowledged answers that no more responses may be sent?
    pub(super) fn holds_responses(&self, conn: ConnId) -> bool {
        let max = self.config.unacknowledged_max;
        self.connections.get(&conn).is_some_and(|c| c.sent.len() >= max)
    }

    /// Does something wait on `conn` for answers to be acknowledged?
    pub(super) fn waits_for_acknowledgement(&self, conn: ConnId) -> bool {
        let Some(connection) = self.connections.get(&conn) else { return false };
        if connection.sent.is_empty() {
            return false;
        }
        if !self.fences.is_empty() {
            return true;
        }
        let reads = !connection.waiting_to_read.is_empty() && connection.responding.is_empty();
        reads || self.holds_responses(conn)
    }

    /// An initiator that is idle does not acknowledge: a NOP-In that wants an answer makes it.
    pub(super) fn ask_for_acknowledgement(&mut self, conn: ConnId) {
        let asked = self.connections.get(&conn).is_none_or(|c| c.ack_asked.is_some());
        if !asked && self.waits_for_acknowledgement(conn) {
            self.ping(conn);
        }
    }

    /// Asks for a sign of life, which acknowledges as well.
    pub(super) fn ping(&mut self, conn: ConnId) {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
        //# Otherwise, when a target sends a NOP-In that is not a response to a NOP-Out received
        //# from the initiator, the Initiator Task Tag MUST be set to 0xffffffff, and the data
        //# segment MUST NOT contain any data (DataSegmentLength MUST be 0).
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.19.3
        //# A LUN MUST be set to a correct value when the Target Transfer Tag is valid (not the
        //# reserved value 0xffffffff).
        let ttt = self.take_ttt();
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.ack_asked = Some(self.clock);
        }
        self.push_reply(conn, Reply::Nop { itt: Itt::NONE, lun: Lun(0), ttt, data: Bytes::new() });
    }
}
