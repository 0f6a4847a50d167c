//! Data from the initiator: immediate, unsolicited and solicited (RFC 7143 §4.2.5.2, §11.7, §11.8).

use super::event::{ConnId, Recovery, SessionError};
use super::sequence::{Rules, Sequence, Verdict};
use super::session::Session;
use super::task::{Phase, Task, TransferFault};
use super::transmit::Reply;
use crate::connection::Placement;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{DataOut, Header, R2t, RejectReason, ScsiCommand};
use crate::serial::{R2tSn, StatSn};

/// Times that lost data is asked for without any of it coming. A path that damages everything
/// must not be asked for ever.
pub(super) const RECOVERIES_MAX: u32 = 8;

impl Session {
    /// Is the data that comes with (or is announced by) a command allowed?
    pub(super) fn unsolicited_fault(
        &self,
        command: &ScsiCommand,
        data_len: u32,
    ) -> Option<TransferFault> {
        let expected = if command.write { command.expected_data_transfer_length } else { 0 };
        let limit = expected.min(self.params.first_burst_length);
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
        //# If ImmediateData is set to No and InitialR2T is set to Yes, then the initiator MUST NOT
        //# send unsolicited data and the target MUST reject unsolicited data with the corresponding
        //# response code.
        let announced = !command.is_final && self.params.initial_r2t;
        if announced || data_len > 0 && !(command.write && self.params.immediate_data) {
            Some(TransferFault::UnexpectedUnsolicited)
        } else if data_len > limit {
            Some(TransferFault::IncorrectAmount)
        } else {
            None
        }
    }

    /// Opens the unsolicited sequence or starts to solicit, after the command PDU is complete.
    pub(super) fn start_data_out(&mut self, itt: Itt) {
        let first_burst = self.params.first_burst_length;
        let now = self.clock;
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if !task.command.write {
            return;
        }
        task.last_data = now;
        task.solicited_to = task.immediate_length;
        if !task.command.is_final {
            let limit = task.command.expected_data_transfer_length.min(first_burst);
            let from = task.immediate_length;
            task.unsolicited = Some(Sequence::new(Ttt::NONE, R2tSn(0), from, limit.max(from)));
            let conn = task.conn;
            return self.arm_data_timer(conn);
        }
        self.solicit(itt);
    }

    /// Bytes of data the write `itt` brings along: the size of its buffer.
    pub fn write_length(&self, itt: Itt) -> u32 {
        self.tasks.get(&itt).map_or(0, Task::write_length)
    }

    /// Bytes that the buffer of the write `itt` needs now: all of it once the session's memory is
    /// promised to it; before that only what may come unasked.
    pub fn buffer_length(&self, itt: Itt) -> u32 {
        let Some(task) = self.tasks.get(&itt) else { return 0 };
        match task.granted {
            0 => task.write_length().min(self.params.first_burst_length),
            _ => task.write_length(),
        }
    }

    fn rules(&self) -> Rules {
        Rules { in_order: self.params.data_pdu_in_order, recovers: self.recovers() }
    }

    /// Checks a Data-Out PDU before its payload is read.
    pub(super) fn handle_data_out(
        &mut self,
        conn: ConnId,
        pdu: &DataOut,
        len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        let (rules, now) = (self.rules(), self.clock);
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.last_data = now;
        }
        let Some(task) = self.tasks.get_mut(&pdu.itt) else {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-10.7
            //# However, the data transfers logically MUST be silently discarded by the target iSCSI
            //# layer in all cases.
            // Data of a task that was aborted may still be on its way.
            return self.ignore(conn, len);
        };
        if task.conn != conn {
            return Err(self.format_error(conn, pdu.itt, "Data-Out on a foreign connection"));
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.3
        //# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI
        //# initiator and target MUST verify that all other fields used in task-related PDUs have
        //# values that are consistent with the values used at the task instantiation, based on the
        //# Initiator Task Tag (e.g., the LUN used in an R2T PDU MUST be the same as the one used in
        //# the SCSI Command PDU used to instantiate the task).
        if pdu.ttt != Ttt::NONE && pdu.lun != task.lun() {
            return Err(self.format_error(conn, pdu.itt, "Data-Out for another unit"));
        }
        task.last_data = now;
        if task.fault.is_some() {
            // What was under way before it learns of the fault.
            if pdu.is_final {
                self.end_damaged_sequence(pdu.itt, pdu.ttt);
            }
            return self.ignore(conn, len);
        }
        if !task.command.write || task.phase != Phase::Collecting && !rules.recovers {
            return self.reject(conn, RejectReason::INVALID_PDU_FIELD, header);
        }
        let too_long = task.too_long;
        let sequence = match pdu.ttt {
            Ttt::NONE => task.unsolicited.as_ref(),
            ttt => task.bursts.iter().find(|burst| burst.ttt == ttt),
        };
        let checked = match sequence {
            Some(sequence) => sequence.check(pdu, len, rules),
            // Late data of a sequence that was given up and asked for anew.
            None if rules.recovers && (pdu.ttt != Ttt::NONE || !task.command.is_final) => {
                Ok(Verdict::Duplicate)
            }
            None if pdu.ttt == Ttt::NONE => Err(TransferFault::UnexpectedUnsolicited),
            None => {
                let what = "Data-Out for a transfer tag that is not outstanding";
                return Err(self.format_error(conn, pdu.itt, what));
            }
        };
        match checked {
            Ok(Verdict::Take) => {}
            Ok(Verdict::Duplicate) => return self.ignore(conn, len),
            Err(fault) => {
                self.fail_transfer(pdu.itt, fault);
                if pdu.is_final {
                    self.end_damaged_sequence(pdu.itt, pdu.ttt);
                }
                return self.ignore(conn, len);
            }
        }
        self.expect_data_out(conn, pdu, len);
        Ok(match len {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.7
            //# The sending of 0-length data segments should be avoided, but initiators and targets
            //# MUST be able to properly receive 0-length data segments.
            0 => Placement::None,
            _ if too_long => Placement::Discard,
            _ => Placement::Task { itt: pdu.itt, offset: pdu.buffer_offset },
        })
    }

    /// The payload of a checked Data-Out PDU has arrived, whole or not.
    pub(super) fn data_out_received(&mut self, pdu: &DataOut, len: u32, intact: bool) {
        let Some(task) = self.tasks.get_mut(&pdu.itt) else { return };
        let sequence = match pdu.ttt {
            Ttt::NONE => task.unsolicited.as_mut(),
            ttt => task.bursts.iter_mut().find(|burst| burst.ttt == ttt),
        };
        let Some(sequence) = sequence else { return };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
        //# The target MUST address these implied digest errors as described in Section 7.8.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
        //# When a data PDU is rejected and its DataSN can be ascertained, a target MUST advance the
        //# ExpDataSN for the current data burst if a recovery R2T is being generated.
        sequence.take(pdu.data_sn, pdu.buffer_offset, len, intact);
        if intact && len > 0 {
            task.fruitless = 0;
        }
        if pdu.is_final {
            self.end_sequence(pdu.itt, pdu.ttt);
        }
    }

    /// A sequence is over: what it left out is asked for again, then what comes behind it.
    fn end_sequence(&mut self, itt: Itt, ttt: Ttt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let missing = if ttt == Ttt::NONE {
            let Some(sequence) = task.unsolicited.take() else { return };
            task.solicited_to = sequence.frontier();
            if task.too_long { Vec::new() } else { sequence.holes() }
        } else {
            let Some(index) = task.bursts.iter().position(|burst| burst.ttt == ttt) else { return };
            task.bursts.remove(index).map(Sequence::rest).unwrap_or_default()
        };
        if missing.is_empty() || self.ask_again(itt, missing) {
            self.solicit(itt);
        }
        self.execute_if_complete(itt);
    }

    /// Data is missing. False: it was asked for often enough.
    pub(super) fn ask_again(&mut self, itt: Itt, missing: Vec<(u32, u32)>) -> bool {
        let Some(task) = self.tasks.get_mut(&itt) else { return false };
        task.fruitless += 1;
        if task.fruitless > RECOVERIES_MAX {
            self.damage(itt); // other sequences may be under way: they are waited for (§7.8)
            return false;
        }
        task.lost.extend(missing);
        true
    }

    /// The last PDU of a sequence whose command has failed: the answer may go when no more comes.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# If the target chooses to implement this option, it MUST wait to receive all the data
    //# (signaled by a data PDU with the Final bit set for all outstanding R2Ts) before sending the
    //# SCSI Response PDU.
    fn end_damaged_sequence(&mut self, itt: Itt, ttt: Ttt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if ttt == Ttt::NONE {
            task.unsolicited = None;
        } else {
            task.bursts.retain(|burst| burst.ttt != ttt);
        }
        self.execute_if_complete(itt);
    }

    /// Reserves the memory of a write whose first data comes with the command, if there is room and
    /// none waits for it. Without that it gets a small buffer first ([`Self::buffer_length`]), as
    /// it does where it may be held back: others could use the memory meanwhile.
    pub(super) fn grant_early(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let wanted = task.write_length();
        if !self.holds
            && wanted > self.params.first_burst_length
            && self.waiting_for_buffer.is_empty()
            && self.granted_bytes + u64::from(wanted) <= self.config.buffered_bytes_max
        {
            task.granted = wanted;
            self.granted_bytes += u64::from(wanted);
        }
    }

    /// Sends R2Ts for what is missing, up to MaxOutstandingR2T, once the write may have memory.
    pub(super) fn solicit(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get(&itt) else { return };
        if task.has_asked_for_all() || task.fault.is_some() {
            return;
        }
        let is_granted = task.granted > 0;
        if !self.is_admitted(itt) {
            return;
        }
        if !is_granted {
            // Behind those that wait already; grant_waiting takes it from there if it may go on.
            if !self.waiting_for_buffer.contains(&itt) {
                self.waiting_for_buffer.push_back(itt);
            }
            return self.grant_waiting();
        }
        self.send_r2ts(itt);
    }

    /// R2Ts that may be outstanding for a command. A lost sequence could not be asked for again in
    /// order if others had been asked for behind it.
    fn r2t_limit(&self) -> usize {
        if self.recovers() && self.params.data_sequence_in_order {
            1 // §13.19
        } else {
            usize::from(self.params.max_outstanding_r2t)
        }
    }

    fn send_r2ts(&mut self, itt: Itt) {
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.4
        //# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
        let (limit, burst_max, now) = (self.r2t_limit(), self.params.max_burst_length, self.clock);
        while let Some(task) = self.tasks.get_mut(&itt)
            && task.bursts.len() < limit
        {
            let end = task.write_length();
            let again = task.lost.pop_front();
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
            //# If DataSequenceInOrder is Yes, then consecutive R2Ts MUST refer to continuous
            //# non-overlapping ranges, except for Recovery-R2Ts.
            let (from, to) = again.unwrap_or((task.solicited_to, end));
            if from >= to {
                return;
            }
            let len = burst_max.min(to - from);
            if again.is_none() {
                task.solicited_to += len;
            } else if from + len < to {
                task.lost.push_front((from + len, to));
            }
            task.last_data = now;
            let (conn, lun, r2t_sn) = (task.conn, task.lun(), task.take_r2t_sn());
            let ttt = self.take_ttt();
            let burst = Sequence::new(ttt, r2t_sn, from, from + len);
            let r2t = burst.r2t(itt, lun);
            if let Some(task) = self.tasks.get_mut(&itt) {
                task.bursts.push_back(burst);
            }
            if again.is_some() {
                self.note(conn, Recovery::RecoveryR2t { itt, offset: from, len });
            }
            self.push_reply(conn, Reply::R2t(r2t));
            self.arm_data_timer(conn);
        }
    }

    /// Lets writes that wait for memory go on: oldest first, as long as there is some.
    pub(super) fn grant_waiting(&mut self) {
        while let Some(index) = self.next_to_grant() {
            let Some(itt) = self.waiting_for_buffer.remove(index) else { return };
            if let Some(task) = self.tasks.get_mut(&itt) {
                task.granted = task.write_length();
                self.granted_bytes += u64::from(task.granted);
                self.send_r2ts(itt);
            }
        }
    }

    /// Position of the waiting write that may have memory now.
    fn next_to_grant(&self) -> Option<usize> {
        let first = self.tasks.get(self.waiting_for_buffer.front()?)?;
        let wanted = self.granted_bytes + u64::from(first.write_length());
        if self.granted_bytes == 0 || wanted <= self.config.buffered_bytes_max {
            return Some(0);
        }
        // Memory may be held by writes that came early on other connections and wait for the turn
        // of one that waits for memory here. A write whose turn it is therefore never waits for
        // those behind it: one at a time may go beyond the limit.
        // (Those of a connection that is lost go on only when they are taken over.)
        let active = |task: &Task| task.granted > 0 && task.in_order && !self.is_lost(task.conn);
        if self.tasks.values().any(active) {
            return None;
        }
        let in_order = |itt: &Itt| self.tasks.get(itt).is_some_and(|task| task.in_order);
        self.waiting_for_buffer.iter().position(in_order)
    }

    /// The write's memory is free again.
    pub(super) fn release(&mut self, itt: Itt) {
        if let Some(task) = self.tasks.get_mut(&itt) {
            let granted = std::mem::take(&mut task.granted);
            self.granted_bytes -= u64::from(granted);
            if granted > 0 {
                self.grant_waiting();
            }
        }
    }
}

impl Sequence {
    /// The R2T that asks for it.
    pub(super) fn r2t(&self, itt: Itt, lun: Lun) -> R2t {
        R2t {
            lun,
            itt,
            ttt: self.ttt,
            stat_sn: StatSn(0), // stamped when sent, as the command window is
            exp_cmd_sn: Default::default(),
            max_cmd_sn: Default::default(),
            r2t_sn: self.r2t_sn,
            buffer_offset: self.offset,
            desired_data_transfer_length: self.len(),
        }
    }
}
