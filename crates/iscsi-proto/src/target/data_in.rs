//! Data and status to the initiator (RFC 7143 §11.7, §11.4, §4.2.5.3).
//!
//! Data-In PDUs are made one by one as the socket takes them, so that a long read costs no queue
//! and every PDU carries the command window of the moment it leaves. How a read is cut follows
//! from a few numbers ([`super::task::Cut`]), so that any PDU can be made again.

use bytes::Bytes;

use super::event::ConnId;
use super::retain::Numbered;
use super::session::Session;
use super::task::{Cut, Piece, Task};
use crate::connection::Transmit;
use crate::ids::{Itt, Ttt};
use crate::pdu::{DataIn, DataInStatus, Residual, ResponseCode, ScsiResponse, encode_sense};
use crate::serial::{CmdSn, DataSn, StatSn};

/// SCSI status GOOD (SAM-5 §5.3.1).
const GOOD: u8 = 0;

impl Session {
    /// The next PDU of the oldest task that has something to send on `conn`.
    pub(super) fn transmit_response(&mut self, conn: ConnId) -> Option<Transmit> {
        if self.recovers() && self.holds_responses(conn) {
            return None;
        }
        loop {
            let itt = *self.connections.get(&conn)?.responding.front()?;
            let Some(task) = self.tasks.get(&itt) else {
                self.pop_responding(conn);
                continue;
            };
            if !self.passes_fences(itt) {
                return None;
            }
            let data_done = task.sent >= task.read_length();
            return if data_done {
                self.transmit_status(conn, itt)
            } else {
                self.transmit_data(conn, itt)
            };
        }
    }

    fn transmit_data(&mut self, conn: ConnId, itt: Itt) -> Option<Transmit> {
        let segment_max = self.connections.get(&conn)?.params.max_send_data_segment_length;
        let burst_max = self.params.max_burst_length;
        let recovers = self.recovers();
        let task = self.tasks.get_mut(&itt)?;
        if task.cut.segment_max == 0 {
            // R2Ts of a bidirectional command came before.
            let data_sn = task.next_data_sn;

            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.1
            //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is
            //# sent, and the total of all the DataSegmentLength of all PDUs in a sequence MUST NOT
            //# exceed MaxBurstLength (or FirstBurstLength for unsolicited data).
            task.cut = Cut { data_sn, offset: 0, segment_max: segment_max.max(1) };
            task.acked_data_sn = data_sn;
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
        //# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using
        //# continuously non-decreasing sequence offsets (R2T buffer offset for writes, or the
        //# smallest SCSI Data-In buffer offset within a read data sequence).
        let piece = task.piece(task.next_data_sn, burst_max)?;
        task.sent = piece.offset + piece.len;
        let data_sn = task.take_data_sn();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
        //# If the command is completed with an error, then the response and sense data MUST be sent
        //# in a SCSI Response PDU (i.e., MUST NOT be sent in a SCSI data packet).
        // Status may ride on the last Data-In only when there is no sense to go with it, and no
        // SNACK tag that a response has to carry.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
        //# For bidirectional commands, the status MUST be sent in a SCSI Response PDU.
        task.collapsed = piece.is_last
            && task.completion.status == GOOD
            && task.completion.sense.is_empty()
            && !task.command.write
            && task.snack_tag == 0
            && task.stat_sn.is_none();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
        //# The target should use the A bit moderately; it MAY only set the A bit to 1 once every
        //# MaxBurstLength bytes, or on the last Data-In PDU that concludes the entire requested
        //# read data transfer for the task from the target's perspective, and it MUST NOT do so
        //# more frequently.
        if recovers && piece.is_final && !piece.is_last && task.ack_ttt.is_none() {
            let ttt = self.take_ttt();
            self.tasks.get_mut(&itt)?.ack_ttt = Some(ttt);
        }
        let task = self.tasks.get(&itt)?;
        if !task.collapsed {
            let window = self.order.window(self.tasks.len());
            return Some(data_in(task, itt, data_sn, piece, recovers, window));
        }
        let (task, window) = self.answer(conn, itt)?;
        let transmit = data_in(&task, itt, data_sn, piece, recovers, window);
        self.retain_answer(conn, itt, task);
        Some(transmit)
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# A target command response or Data-In PDU with status MUST NOT precede the command
    //# acknowledgment.
    fn transmit_status(&mut self, conn: ConnId, itt: Itt) -> Option<Transmit> {
        let (task, window) = self.answer(conn, itt)?;
        let transmit = scsi_response(&task, itt, window);
        self.retain_answer(conn, itt, task);
        Some(transmit)
    }

    /// The task's last PDU is being made: it no longer counts against the command window, which
    /// that very PDU announces.
    fn answer(&mut self, conn: ConnId, itt: Itt) -> Option<(Box<Task>, (CmdSn, CmdSn))> {
        self.pop_responding(conn);
        let mut task = self.take_task(itt)?;
        if task.stat_sn.is_none() {
            let numbered =
                if self.recovers() { Numbered::Response(itt) } else { Numbered::Nothing };
            let stat_sn = self.take_stat_sn(conn, numbered)?;
            task.stat_sn = Some(stat_sn);
            if let Some(receipt) = task.completion.receipt {
                self.expect_receipt(conn, stat_sn, receipt);
            }
        }
        self.fenced_sent(conn, itt, task.stat_sn.unwrap_or_default());
        Some((task, self.command_window()))
    }

    /// A Data-In again, exactly as it was but for the command window.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
    //# The numbered Data-In PDUs requested by a Data SNACK MUST be delivered as exact replicas of
    //# the ones that the target transmitted originally, except for the fields ExpCmdSN and
    //# MaxCmdSN, which MUST carry the current values; and except for resegmentation (see Section
    //# 11.16.3).
    pub(super) fn data_in_again(&mut self, conn: ConnId, itt: Itt, sn: u32) -> Option<Transmit> {
        let window = self.command_window();
        let task = self.find_answer(conn, itt)?;
        if sn.wrapping_sub(task.next_data_sn) as i32 >= 0 {
            return None; // it was rewound meanwhile
        }
        let piece = task.piece(sn, self.params.max_burst_length)?;
        Some(data_in(task, itt, DataSn(sn), piece, true, window))
    }

    /// A task's status again: the PDU that carried it.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.9
    //# In the case of responses sent due to a retransmission request, the StatSN MUST be the same
    //# as the first time the PDU was sent, unless the connection has since been restarted.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
    //# The numbered response(s) or R2T(s) requested by a SNACK MUST be delivered as exact replicas
    //# of the ones that the target transmitted originally, except for the fields ExpCmdSN,
    //# MaxCmdSN, and ExpDataSN, which MUST carry the current values.
    pub(super) fn status_again(&mut self, conn: ConnId, itt: Itt) -> Option<Transmit> {
        let task = self.find_answer(conn, itt)?;
        if task.collapsed {
            let last = task.next_data_sn.wrapping_sub(1);
            return self.data_in_again(conn, itt, last);
        }
        let window = self.command_window();
        Some(scsi_response(self.find_answer(conn, itt)?, itt, window))
    }

    fn pop_responding(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.responding.pop_front();
        }
    }
}

/// The A bit belongs to error recovery levels 1 and 2, and asks once every MaxBurstLength bytes
/// (§11.7.2); the last bytes are acknowledged with the status.
fn data_in(
    task: &Task,
    itt: Itt,
    data_sn: DataSn,
    piece: Piece,
    recovers: bool,
    (exp_cmd_sn, max_cmd_sn): (CmdSn, CmdSn),
) -> Transmit {
    let Piece { offset, len, is_final, is_last } = piece;
    let with_status = is_last && task.collapsed;
    let status = with_status
        .then(|| DataInStatus { status: task.completion.status, residual: task.residual() });
    let stat_sn = if with_status { task.stat_sn.unwrap_or_default() } else { StatSn::default() };
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
    //# The target MUST NOT set to 1 the A bit for sessions with ErrorRecoveryLevel=0.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.4
    //# On incoming data, the Target Transfer Tag and LUN MUST be provided by the target if the A
    //# bit is set to 1; otherwise, they are reserved.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.4
    //# If the Target Transfer Tag is provided, then the LUN field MUST hold a valid value and be
    //# consistent with whatever was specified with the command; otherwise, the LUN field is
    //# reserved.
    let acknowledge = recovers && is_final && !is_last && task.ack_ttt.is_some();
    let pdu = DataIn {
        is_final,
        acknowledge,
        status,
        lun: task.lun(),
        itt,
        ttt: if acknowledge { task.ack_ttt.unwrap_or(Ttt::NONE) } else { Ttt::NONE },
        stat_sn,
        exp_cmd_sn,
        max_cmd_sn,
        data_sn,
        buffer_offset: offset,
    };
    let payload = task.completion.data_in.slice(offset as usize..(offset + len) as usize);
    Transmit { header: pdu.encode(len), payload }
}

fn scsi_response(task: &Task, itt: Itt, (exp_cmd_sn, max_cmd_sn): (CmdSn, CmdSn)) -> Transmit {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.6.1.2
    //# The use of Autosense ([SAM2]) is REQUIRED by iSCSI.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
    //# "Autosense" refers to the automatic return of sense data to the initiator in cases where a
    //# command did not complete successfully. iSCSI initiators and targets MUST support and use
    //# Autosense.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
    //# iSCSI targets MUST support and enable Autosense.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
    //# If Status is CHECK CONDITION (0x02), then the data segment MUST contain sense data for the
    //# failed command.
    let payload = encode_sense(&task.completion.sense);
    let pdu = ScsiResponse {
        response: ResponseCode::COMPLETED,
        status: task.completion.status,
        status_qualifier: task.completion.status_qualifier,
        residual: task.residual(),
        bidi_read_residual: Residual::None,
        itt,
        snack_tag: task.snack_tag,
        stat_sn: task.stat_sn.unwrap_or_default(),
        exp_cmd_sn,
        max_cmd_sn,
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.8
        //# This field MUST be 0 if the response code is not Command Completed at Target or the
        //# target sent no Data-In PDUs for the command.
        // R2Ts share the series; without Data-In there is nothing that the initiator could miss.
        exp_data_sn: if task.sent > 0 { task.next_data_sn } else { 0 },
    };
    Transmit { header: pdu.encode(segment_length(&payload)), payload }
}

/// Length of a segment we built ourselves, far below the 24-bit limit of the field.
pub(super) fn segment_length(payload: &Bytes) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
