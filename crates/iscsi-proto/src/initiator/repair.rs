//! Error recovery within a connection (RFC 7143 §7.1.4.1, §7.1.4.2, §11.16; level 1): asks again
//! for PDUs that came damaged or did not come, acknowledges data when asked to, and sends a command
//! again that the target has dropped. What cannot be repaired ends the connection.

use super::event::{ConnectionError, Event, Recovery};
use super::inbound::Run;
use super::task::{Kind, Task};
use super::transmit::{Control, Snack};
use super::{ConnectionId, Session, Timer};
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{RejectReason, SnackKind};
use crate::serial::{CmdSn, StatSn};
use crate::time::Instant;

/// Requests that wait for a connection's transport. More are not queued but asked for by the timer:
/// a link that damages everything must not make us hold requests without end.
const REQUESTS_MAX: usize = 256;

/// How often missing PDUs are asked for before the connection is given up. TCP loses no request, so
/// a target that did not answer twice will not answer at all.
const REPAIR_ATTEMPTS_MAX: u8 = 3;

/// How often one command is sent again after the target dropped it.
const RETRIES_MAX: u8 = 4;

/// Tasks that only fill holes in CmdSN and were not answered. One for each command that a target
/// refuses; a target that refuses so many and answers none is not one.
const PLUGS_MAX: usize = 256;

/// A command was sent again on a connection, where the copy may be on its way for a long time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retried {
    pub(super) connection: ConnectionId,
    cmd_sn: CmdSn,
    /// The next new command there: when that is acknowledged, the copy has come before it.
    behind: Option<CmdSn>,
}

impl Retried {
    /// A new command goes out on a connection.
    pub(super) fn note_new(&mut self, connection: ConnectionId, cmd_sn: CmdSn) {
        if self.connection == connection {
            self.behind.get_or_insert(cmd_sn);
        }
    }
}

impl<T> Session<T> {
    /// PDUs that are missing can be asked for.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
    //# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text
    //# negotiation, the originator MUST support the functionality defined for the proposed value
    //# and, additionally, functionality corresponding to any defined value numerically less than
    //# the proposed value.
    pub(super) const fn repairs(&self) -> bool {
        self.params.error_recovery_level >= 1
    }

    pub(super) fn report(&mut self, id: ConnectionId, what: Recovery) {
        if let Some(cid) = self.connection(id).map(super::Connection::cid) {
            self.events.push_back(Event::Recovery { connection: id, cid, what });
        }
    }

    /// Asks for answers again, from one StatSN on.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.4
    //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved value
    //# 0xffffffff.
    pub(super) fn ask_for_status(&mut self, id: ConnectionId, first: StatSn, length: u32) {
        self.report(id, Recovery::StatusSnack { first, length });
        self.ask(
            id,
            Snack {
                kind: SnackKind::STATUS,
                lun: Lun(0),
                itt: Itt::NONE,
                tag: Ttt::NONE,
                run: (first.0, length),
            },
        );
    }

    /// Asks for Data-In again.
    pub(super) fn ask_for_data(&mut self, id: ConnectionId, itt: Itt, run: Run) {
        let length = run.1 - run.0;
        self.report(id, Recovery::DataSnack { itt, first: run.0, length });
        self.ask_by_number(id, itt, run);
    }

    /// Asks for R2Ts again.
    pub(super) fn ask_for_r2t(&mut self, id: ConnectionId, itt: Itt, run: Run) {
        self.report(id, Recovery::R2tSnack { itt, first: run.0, length: run.1 - run.0 });
        self.ask_by_number(id, itt, run);
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.4
    //# In all other cases, the Initiator Task Tag field MUST be set to the Initiator Task Tag of
    //# the referenced command.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
    //# In all other cases, the Target Transfer Tag field MUST be set to the reserved value
    //# 0xffffffff.
    fn ask_by_number(&mut self, id: ConnectionId, itt: Itt, run: Run) {
        let Some(lun) = self.tasks.command_mut(itt).map(|task| task.command.lun) else { return };
        let (kind, tag) = (SnackKind::DATA_OR_R2T, Ttt::NONE);
        self.ask(id, Snack { kind, lun, itt, tag, run: (run.0, run.1 - run.0) });
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
    //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all
    //# SNACK types.
    // R-Data is for a MaxRecvDataSegmentLength that has changed. Ours never does.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
    //# Retransmission requests (SNACK PDUs), and the data and status that they generate, MUST also
    //# use the same connection.
    fn ask(&mut self, id: ConnectionId, snack: Snack) {
        let due = self.now + self.config.repair_timeout;
        if self.is_leaving(id) {
            return; // nothing new may be sent; the answer to the logout has a time limit
        }
        let Some(c) = self.connection_mut(id).filter(|c| c.closing.is_none()) else { return };
        if !c.timers.is_set(Timer::Repair) {
            c.timers.set(Timer::Repair, due);
        }
        if c.queues.control.len() < REQUESTS_MAX {
            c.queues.control.push_back(Control::Snack(snack));
        }
        self.wake(id);
    }

    /// A Data-In of a command with missing data has come, or one that is to be acknowledged.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
    //# If the initiator has detected holes in the read data prior to that Data-In PDU, it MUST
    //# postpone issuing the SNACK of type DataACK until the holes are filled.
    pub(super) fn data_repaired(
        &mut self,
        id: ConnectionId,
        itt: Itt,
        gap: Option<Run>,
        ack: Option<(Ttt, Lun)>,
    ) {
        if let Some(run) = gap {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
            //# The initiator MUST address these implied digest errors as described in Section 7.8.
            self.ask_for_data(id, itt, run);
        }
        let rules = self.rules();
        let Some(task) = self.tasks.command_mut(itt) else { return };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
        //# However, if the initiator has detected holes in the input sequence, it MUST postpone
        //# issuing the SNACK of type DataACK until the holes are filled.
        let asked = ack.and_then(|(tag, lun)| task.inbound.ask_ack(tag, lun, rules));
        let due = task.inbound.due_ack(rules);
        let held = task.inbound.release();
        if let Some((tag, lun, next)) = asked.or(due) {
            self.acknowledge_data(id, tag, lun, next);
        }
        if let Some(c) = self.connection_mut(id) {
            c.repair_attempts = 0;
            if let Some(stat_sn) = held.as_ref().and_then(|held| held.stat_sn) {
                c.status.done(stat_sn);
            }
        }
        if let Some(held) = held {
            self.finish_with(itt, held.ending);
        }
    }

    /// Answers the A bit (§11.16.2). A request that waits to be sent is brought up to date, so that
    /// a target that sets the bit on every PDU gets one answer.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
    //# On receiving a Data-In PDU with the A bit set to 1 on a session with ErrorRecoveryLevel
    //# greater than 0, if there are no holes in the read data until that Data-In PDU, the initiator
    //# MUST issue a SNACK of type DataACK, except when it is able to acknowledge the status for the
    //# task immediately via the ExpStatSN on other outbound PDUs if the status for the task is also
    //# received.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
    //# If an initiator operates at ErrorRecoveryLevel 1 or higher, it MUST issue a SNACK of type
    //# DataACK after receiving a Data-In PDU with the A bit set to 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
    //# For DataACK, the Target Transfer Tag MUST contain a copy of the Target Transfer Tag and LUN
    //# provided with the SCSI Data-In PDU with the A bit set to 1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.7
    //# The RunLength MUST also be 0 for a DataACK SNACK in addition to a R-Data SNACK.
    fn acknowledge_data(&mut self, id: ConnectionId, tag: Ttt, lun: Lun, next: u32) {
        let Some(c) = self.connection_mut(id) else { return };
        let waiting = c.queues.control.iter_mut().rev().find_map(|control| match control {
            Control::Snack(snack) if snack.kind == SnackKind::DATA_ACK && snack.tag == tag => {
                Some(snack)
            }
            _ => None,
        });
        if let Some(snack) = waiting {
            snack.run.0 = next;
        } else if c.queues.control.len() < REQUESTS_MAX {
            let (kind, itt, run) = (SnackKind::DATA_ACK, Itt::NONE, (next, 0));
            c.queues.control.push_back(Control::Snack(Snack { kind, lun, itt, tag, run }));
        }
        self.wake(id);
    }

    /// Asks again for everything that is missing on a connection, or gives it up.
    pub(super) fn repair_expired(&mut self, id: ConnectionId, now: Instant) {
        let tasks: Vec<(Itt, Option<Run>, Option<Run>)> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.connection == id)
            .filter_map(|(itt, task)| match &task.kind {
                Kind::Command(command) => {
                    let data = command.inbound.missing().first().copied();
                    let r2t = command.r2t_missing.first().copied();
                    (data.is_some() || r2t.is_some()).then_some((itt, data, r2t))
                }
                _ => None,
            })
            .collect();
        let Some(c) = self.connection_mut(id) else { return };
        let status = c.status.missing().next();
        if tasks.is_empty() && status.is_none() {
            c.repair_attempts = 0;
            return;
        }
        c.repair_attempts += 1;
        let cid = c.cid;
        if c.repair_attempts >= REPAIR_ATTEMPTS_MAX {
            return self.fail(id, ConnectionError::NotRepaired { cid });
        }
        self.now = now;
        if let Some((first, length)) = status {
            self.ask_for_status(id, first, length);
        }
        for (itt, data, r2t) in tasks {
            if let Some(run) = data {
                self.ask_for_data(id, itt, run);
            }
            if let Some(run) = r2t {
                self.ask_for_r2t(id, itt, run);
            }
        }
    }

    /// The target refuses to send something again (§7.8 a).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# The initiator in this case MUST wait for the status to be received and then discard it, so
    //# as to internally signal the completion with CHECK CONDITION Status and an iSCSI Condition of
    //# "Protocol Service CRC error" (Section 11.4.7.2).
    // Our signal is `TaskRequeue`: what its owner would do about that condition.
    pub(super) fn snack_rejected(&mut self, id: ConnectionId, bhs: &[u8], reason: RejectReason) {
        let word = |at: usize| u32::from_be_bytes([bhs[at], bhs[at + 1], bhs[at + 2], bhs[at + 3]]);
        let (kind, itt, first) = (SnackKind(bhs[1] & 0x0f), Itt(word(16)), word(40));
        let Some(c) = self.connection(id) else { return };
        let cid = c.cid;
        match kind {
            SnackKind::DATA_OR_R2T => {
                let Some(task) = self.tasks.command_mut(itt) else { return };
                if !task.r2t_missing.is_empty() {
                    return self.fail(id, ConnectionError::NotRepaired { cid });
                }
                if task.inbound.is_complete() {
                    return; // it was asked for twice, and has come
                }
                tracing::debug!(%cid, %itt, %reason, "data is not sent again");
                // The command's status follows, or has come; the command is done again then.
                task.unrecoverable = true;
                let held = task.inbound.give_up();
                let Some(held) = held else { return };
                if let (Some(stat_sn), Some(c)) = (held.stat_sn, self.connection_mut(id)) {
                    c.status.done(stat_sn);
                }
                self.requeue(itt);
            }
            SnackKind::STATUS if c.status.is_missing(StatSn(first)) => {
                self.fail(id, ConnectionError::NotRepaired { cid });
            }
            _ => {}
        }
    }

    /// Gives a command back to be sent anew: it is over at the target, and how it ended is lost.
    pub(super) fn requeue(&mut self, itt: Itt) {
        if self.tasks.command_mut(itt).is_some() {
            self.retire(itt);
            let connection = self.tasks.get(itt).map(|task| task.connection);
            self.give_back(itt);
            if let Some(connection) = connection {
                self.logout_if_drained(connection);
            }
            self.close_if_idle();
        }
    }

    /// Remembers a tag whose PDUs may still be under way.
    pub(super) fn retire(&mut self, itt: Itt) {
        if self.retired.len() == super::RETIRED_TAGS_KEPT {
            self.retired.pop_front();
        }
        self.retired.push_back(itt);
    }

    /// The target has dropped a command: it goes out again as it was (§7.2.1). False if it has been
    /// sent too often.
    pub(super) fn retry(&mut self, itt: Itt) -> bool {
        let Some(Task { connection, kind: Kind::Command(task), .. }) = self.tasks.get_mut(itt)
        else {
            return false;
        };
        if task.retries >= RETRIES_MAX {
            return false;
        }
        task.restart();
        task.retries += 1;
        let id = *connection;
        if let Some(c) = self.connection_mut(id) {
            c.queues.data.retain(|burst| burst.itt != itt);
            if !c.queues.retries.contains(&itt) {
                c.queues.retries.push_back(itt);
            }
        }
        self.report(id, Recovery::CommandRetry { itt });
        self.wake(id);
        true
    }

    /// A command is being sent again.
    pub(super) fn note_retry(&mut self, connection: ConnectionId, itt: Itt) {
        let Some(cmd_sn) = self.tasks.get(itt).and_then(|task| task.cmd_sn) else { return };
        match self.retried.iter_mut().find(|retried| retried.connection == connection) {
            Some(retried) => {
                let first = if cmd_sn.is_before(retried.cmd_sn) { cmd_sn } else { retried.cmd_sn };
                (retried.cmd_sn, retried.behind) = (first, None);
            }
            None => self.retried.push(Retried { connection, cmd_sn, behind: None }),
        }
    }

    /// Makes way for the next CmdSN. Half of all numbers later the copy of a command would be taken
    /// for a new one: a copy that is not known to be out of the way by then costs its connection.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# If an initiator issues a command retry for a command with CmdSN R on a connection when the
    //# session CmdSN value is Q, it MUST NOT advance the CmdSN past R + 2**31 - 1 unless
    // the connection is gone, or a later command on it is acknowledged.
    pub(super) fn end_late_retries(&mut self) {
        let (next, acknowledged) = (self.cmd_sn, self.exp_cmd_sn);
        self.retried.retain(|r| r.behind.is_none_or(|behind| !behind.is_before(acknowledged)));
        let late = |retried: &&Retried| next.since(retried.cmd_sn) == i32::MAX;
        while let Some(Retried { connection, .. }) = self.retried.iter().find(late).copied() {
            self.retried.retain(|retried| retried.connection != connection);
            if let Some(cid) = self.connection(connection).map(super::Connection::cid) {
                self.fail(connection, ConnectionError::NotRepaired { cid });
            }
        }
    }

    /// The target has this command, or counts it as received: sent again it would be ignored, while
    /// its data phases would begin anew here, in the middle.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
    //# Retry MUST NOT be used for reasons other than plugging command sequence gaps and, in
    //# particular, cannot be used for requesting PDU retransmissions from a target.
    pub(super) fn is_taken(&self, itt: Itt) -> bool {
        let Some(Task { cmd_sn, kind: Kind::Command(task), .. }) = self.tasks.get(itt) else {
            return true;
        };
        cmd_sn.is_none_or(|sn| sn.is_before(self.exp_cmd_sn)) || task.has_begun()
    }

    /// Fills the hole in CmdSN that a refused command leaves, with a NOP-Out.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
    //# Upon receiving the Reject, the initiator MUST plug the CmdSN gap in order to continue to use
    //# the session.
    pub(super) fn plug(&mut self, id: ConnectionId, cmd_sn: CmdSn) {
        if cmd_sn.is_before(self.exp_cmd_sn) {
            return; // the target has taken it nevertheless
        }
        let open = self.tasks.iter().filter(|(_, task)| matches!(task.kind, Kind::Plug)).count();
        if open >= PLUGS_MAX {
            let Some(cid) = self.connection(id).map(super::Connection::cid) else { return };
            return self.fail(id, ConnectionError::NotRepaired { cid });
        }
        let plug = self.add_request(id, Kind::Plug).and_then(|itt| self.tasks.get_mut(itt));
        if let Some(task) = plug {
            task.cmd_sn = Some(cmd_sn);
        }
    }

    /// A command was sent: looks after a while whether the target has taken it.
    pub(super) fn watch_commands(&mut self, id: ConnectionId, now: Instant) {
        let due = now + self.config.repair_timeout;
        let repairs = self.repairs();
        if let Some(c) = self.connection_mut(id).filter(|_| repairs)
            && !c.timers.is_set(Timer::Retry)
        {
            c.timers.set(Timer::Retry, due);
        }
    }

    /// The first command that the target has not acknowledged is still the one it was a while ago:
    /// a NOP-Out behind it will tell whether it has arrived.
    pub(super) fn retry_expired(&mut self, id: ConnectionId, now: Instant) {
        let (first, last) = (self.exp_cmd_sn, self.cmd_sn);
        if first == last {
            return; // all are acknowledged; armed again by the next one
        }
        let here = self.unacknowledged(id, first).is_some();
        let due = now + self.config.repair_timeout;
        let Some(c) = self.connection_mut(id) else { return };
        c.timers.set(Timer::Retry, due);
        let Some((_, since)) = c.oldest_unacknowledged.filter(|(oldest, _)| *oldest == first)
        else {
            c.oldest_unacknowledged = Some((first, now));
            return;
        };
        // A ping that was sent before the command tells nothing about it.
        let early = self.tasks.iter().any(|(_, task)| match task.kind {
            Kind::Ping { sent_at: Some(at) } => task.connection == id && at < since,
            _ => false,
        });
        if here && !early {
            if let Some(c) = self.connection_mut(id) {
                c.probing = Some(first);
            }
            self.ping(id);
        }
    }

    /// The answer to a ping: what was sent before it has arrived by now, or was dropped.
    pub(super) fn probed(&mut self, id: ConnectionId, exp_cmd_sn: CmdSn) {
        let Some(asked) = self.connection_mut(id).and_then(|c| c.probing.take()) else { return };
        if asked != exp_cmd_sn || self.exp_cmd_sn != exp_cmd_sn {
            return;
        }
        if let Some(itt) = self.unacknowledged(id, asked).filter(|itt| !self.is_taken(*itt)) {
            self.retry(itt);
        }
    }

    fn unacknowledged(&self, id: ConnectionId, cmd_sn: CmdSn) -> Option<Itt> {
        let mut tasks = self.tasks.iter();
        let found = tasks.find(|(_, task)| {
            let is_command = matches!(task.kind, Kind::Command(_));
            task.connection == id && task.cmd_sn == Some(cmd_sn) && is_command
        });
        found.map(|(itt, _)| itt)
    }
}
