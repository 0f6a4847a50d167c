//! Data from the initiator: immediate, unsolicited and solicited (RFC 7143 §4.2.5.2, §11.7, §11.8).

use super::session::{ConnId, Session, SessionError};
use super::task::{Burst, Phase, Task, TransferFault};
use super::transmit::Reply;
use crate::connection::Placement;
use crate::ids::{Itt, Ttt};
use crate::pdu::{DataOut, Header, R2t, RejectReason, ScsiCommand};
use crate::serial::{DataSn, StatSn};

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
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if !task.command.write || task.fault.is_some() {
            return;
        }
        task.unsolicited_length = task.immediate_length;
        task.solicited_to = task.immediate_length;
        if !task.command.is_final {
            task.unsolicited = Some(DataSn(0));
            return;
        }
        self.solicit(itt);
    }

    /// Checks a Data-Out PDU before its payload is read.
    pub(super) fn handle_data_out(
        &mut self,
        conn: ConnId,
        pdu: &DataOut,
        len: u32,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        let Some(task) = self.tasks.get_mut(&pdu.itt) else {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-10.7
            //# However, the data transfers logically MUST be silently discarded by the target iSCSI
            //# layer in all cases.
            // Data of a task that was aborted may still be on its way.
            return self.ignore(conn, len);
        };
        if task.conn != conn {
            return Err(self.error(conn, pdu.itt, "Data-Out on a foreign connection"));
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.3
        //# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI
        //# initiator and target MUST verify that all other fields used in task-related PDUs have
        //# values that are consistent with the values used at the task instantiation, based on the
        //# Initiator Task Tag (e.g., the LUN used in an R2T PDU MUST be the same as the one used in
        //# the SCSI Command PDU used to instantiate the task).
        if pdu.ttt != Ttt::NONE && pdu.lun != task.lun() {
            return Err(self.error(conn, pdu.itt, "Data-Out for another unit than its command's"));
        }
        if task.fault.is_some() {
            return self.ignore(conn, len); // what was under way before it learns of the fault
        }
        if task.phase != Phase::Collecting || !task.command.write {
            return self.reject(conn, RejectReason::INVALID_PDU_FIELD, header);
        }
        let too_long = task.too_long;
        let checked = if pdu.ttt == Ttt::NONE {
            check_unsolicited(task, pdu, len, self.params.first_burst_length)
        } else {
            check_solicited(task, pdu, len)
        };
        match checked {
            Ok(()) => {}
            Err(Some(fault)) => {
                self.fail_transfer(pdu.itt, fault);
                return self.ignore(conn, len);
            }
            Err(None) => {
                let what = "Data-Out for a transfer tag that is not outstanding";
                return Err(self.error(conn, pdu.itt, what));
            }
        }
        self.expect_data_out(conn, pdu.itt, pdu.ttt, len, pdu.is_final);
        Ok(match len {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.7
            //# The sending of 0-length data segments should be avoided, but initiators and targets
            //# MUST be able to properly receive 0-length data segments.
            0 => Placement::None,
            _ if too_long => Placement::Discard,
            _ => Placement::Task { itt: pdu.itt, offset: pdu.buffer_offset },
        })
    }

    /// The payload of a checked Data-Out PDU has arrived.
    pub(super) fn data_out_received(&mut self, itt: Itt, ttt: Ttt, len: u32, is_final: bool) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        if ttt == Ttt::NONE {
            task.unsolicited_length += len;
            task.solicited_to = task.unsolicited_length;
            task.unsolicited = task.unsolicited.map(DataSn::next);
            if is_final {
                task.unsolicited = None;
                self.solicit(itt);
            }
        } else {
            if let Some(burst) = task.bursts.iter_mut().find(|burst| burst.ttt == ttt) {
                burst.received += len;
                burst.data_sn = burst.data_sn.next();
            }
            task.bursts.retain(|burst| burst.received < burst.len);
            self.solicit(itt);
        }
        self.execute_if_complete(itt);
    }

    /// Reserves the memory of a write whose first data comes with the command, if there is room and
    /// none waits for it. Without that it gets a small buffer first ([`Self::buffer_length`]).
    pub(super) fn grant_early(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let wanted = task.write_length();
        if wanted > self.params.first_burst_length
            && self.waiting_for_buffer.is_empty()
            && self.granted_bytes + u64::from(wanted) <= self.config.buffered_bytes_max
        {
            task.granted = wanted;
            self.granted_bytes += u64::from(wanted);
        }
    }

    /// Sends R2Ts for what is missing, up to MaxOutstandingR2T, once the write may have memory.
    fn solicit(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get(&itt) else { return };
        if task.solicited_to >= task.write_length() {
            return;
        }
        if task.granted == 0 {
            // Behind those that wait already; grant_waiting takes it from there if it may go on.
            self.waiting_for_buffer.push_back(itt);
            return self.grant_waiting();
        }
        self.send_r2ts(itt);
    }

    fn send_r2ts(&mut self, itt: Itt) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let end = task.write_length();
        let mut r2ts = Vec::new();
        while task.solicited_to < end
            && task.bursts.len() < usize::from(self.params.max_outstanding_r2t)
        {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.4
            //# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
            let len = self.params.max_burst_length.min(end - task.solicited_to);
            let ttt = Ttt(self.next_ttt);
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.5
            //# There is no protocol rule about the Target Transfer Tag except that the value
            //# 0xffffffff is reserved and MUST NOT be sent by a target in an R2T.
            self.next_ttt = (self.next_ttt + 1) % u32::MAX; // never Ttt::NONE

            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
            //# If DataSequenceInOrder is Yes, then consecutive R2Ts MUST refer to continuous
            //# non-overlapping ranges, except for Recovery-R2Ts.
            let offset = task.solicited_to;
            task.bursts.push_back(Burst { ttt, offset, len, received: 0, data_sn: DataSn(0) });
            task.solicited_to += len;
            r2ts.push(r2t(task, itt, ttt, offset, len));
        }
        let conn = task.conn;
        for r2t in r2ts {
            self.push_reply(conn, Reply::R2t(r2t));
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
        if self.tasks.values().any(|task| task.granted > 0 && task.in_order) {
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

fn r2t(task: &mut Task, itt: Itt, ttt: Ttt, offset: u32, len: u32) -> R2t {
    R2t {
        lun: task.lun(),
        itt,
        ttt,
        stat_sn: StatSn(0), // stamped when sent, as the command window is
        exp_cmd_sn: Default::default(),
        max_cmd_sn: Default::default(),
        r2t_sn: task.take_r2t_sn(),
        buffer_offset: offset,
        desired_data_transfer_length: len,
    }
}

/// Is this the next PDU of the unsolicited sequence?
fn check_unsolicited(
    task: &Task,
    pdu: &DataOut,
    len: u32,
    first_burst_length: u32,
) -> Result<(), Option<TransferFault>> {
    let data_sn = task.unsolicited.ok_or(Some(TransferFault::UnexpectedUnsolicited))?;
    let limit = task.command.expected_data_transfer_length.min(first_burst_length);
    if pdu.data_sn != data_sn || pdu.buffer_offset != task.unsolicited_length {
        Err(Some(TransferFault::Damaged))
    } else if pdu.buffer_offset.checked_add(len).is_none_or(|end| end > limit) {
        Err(Some(TransferFault::IncorrectAmount))
    } else {
        Ok(())
    }
}

/// Is this the next PDU of a burst we asked for? `Err(None)`: of none.
fn check_solicited(task: &Task, pdu: &DataOut, len: u32) -> Result<(), Option<TransferFault>> {
    let burst = task.bursts.iter().find(|burst| burst.ttt == pdu.ttt).ok_or(None)?;
    let left = burst.len - burst.received;
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
    //# The target MUST address these implied digest errors as described in Section 7.8.
    if pdu.data_sn != burst.data_sn || pdu.buffer_offset != burst.offset + burst.received {
        Err(Some(TransferFault::Damaged))
    } else if len > left || pdu.is_final != (len == left) {
        Err(Some(TransferFault::IncorrectAmount))
    } else {
        Ok(())
    }
}
