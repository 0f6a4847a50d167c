//! Data and status to the initiator (RFC 7143 §11.7, §11.4, §4.2.5.3).
//!
//! Data-In PDUs are made one by one as the socket takes them, so that a long read costs no queue
//! and every PDU carries the command window of the moment it leaves.

use bytes::Bytes;

use super::session::{ConnId, Session};
use crate::connection::Transmit;
use crate::ids::{Itt, Ttt};
use crate::pdu::{DataIn, DataInStatus, Residual, ResponseCode, ScsiResponse, encode_sense};
use crate::serial::StatSn;

/// SCSI status GOOD (SAM-5 §5.3.1).
const GOOD: u8 = 0;

impl Session {
    /// The next PDU of the oldest task that has something to send on `conn`.
    pub(super) fn transmit_response(&mut self, conn: ConnId) -> Option<Transmit> {
        loop {
            let itt = *self.connections.get(&conn)?.responding.front()?;
            let Some(task) = self.tasks.get(&itt) else {
                self.pop_responding(conn);
                continue;
            };
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
        let task = self.tasks.get_mut(&itt)?;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
        //# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using
        //# continuously non-decreasing sequence offsets (R2T buffer offset for writes, or the
        //# smallest SCSI Data-In buffer offset within a read data sequence).
        let offset = task.sent;
        let left = task.read_length() - offset;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.1
        //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent,
        //# and the total of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed
        //# MaxBurstLength (or FirstBurstLength for unsolicited data).
        let len = left.min(segment_max.max(1)).min(burst_max - task.burst_sent);
        let payload = task.completion.data_in.slice(offset as usize..(offset + len) as usize);
        task.sent += len;
        task.burst_sent += len;
        let is_last = len == left;
        let is_final = is_last || task.burst_sent >= burst_max;
        if is_final {
            task.burst_sent = 0;
        }
        let data_sn = task.take_data_sn();
        let (lun, residual) = (task.lun(), task.residual());
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
        //# If the command is completed with an error, then the response and sense data MUST be sent
        //# in a SCSI Response PDU (i.e., MUST NOT be sent in a SCSI data packet).
        // Status may ride on the last Data-In only when there is no sense to go with it.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
        //# For bidirectional commands, the status MUST be sent in a SCSI Response PDU.
        let with_status = is_last
            && task.completion.status == GOOD
            && task.completion.sense.is_empty()
            && !task.command.write;
        let status = with_status.then_some(DataInStatus { status: GOOD, residual });
        if with_status {
            self.finish(conn, itt);
        }
        let stat_sn = if with_status { self.take_stat_sn(conn)? } else { StatSn::default() };
        let (exp_cmd_sn, max_cmd_sn) = self.command_window();
        let pdu = DataIn {
            is_final,
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
            //# The target MUST NOT set to 1 the A bit for sessions with ErrorRecoveryLevel=0.
            acknowledge: false,
            status,
            lun,
            itt,
            ttt: Ttt::NONE,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            data_sn,
            buffer_offset: offset,
        };
        Some(Transmit { header: pdu.encode(len), payload })
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
    //# A target command response or Data-In PDU with status MUST NOT precede the command
    //# acknowledgment.
    fn transmit_status(&mut self, conn: ConnId, itt: Itt) -> Option<Transmit> {
        let task = self.tasks.get_mut(&itt)?;
        let residual = task.residual();
        let status = task.completion.status;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.8
        //# This field MUST be 0 if the response code is not Command Completed at Target or the
        //# target sent no Data-In PDUs for the command.
        // R2Ts share the series; without Data-In there is nothing that the initiator could miss.
        let exp_data_sn = if task.sent > 0 { task.next_data_sn } else { 0 };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
        //# "Autosense" refers to the automatic return of sense data to the initiator in cases where
        //# a command did not complete successfully. iSCSI initiators and targets MUST support and
        //# use Autosense.
        let sense = std::mem::take(&mut task.completion.sense);
        self.finish(conn, itt);
        let stat_sn = self.take_stat_sn(conn)?;
        let (exp_cmd_sn, max_cmd_sn) = self.command_window();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.6.1.2
        //# The use of Autosense ([SAM2]) is REQUIRED by iSCSI.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
        //# iSCSI targets MUST support and enable Autosense.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
        //# If Status is CHECK CONDITION (0x02), then the data segment MUST contain sense data for
        //# the failed command.
        let payload = if sense.is_empty() { Bytes::new() } else { encode_sense(&sense) };
        let pdu = ScsiResponse {
            response: ResponseCode::COMPLETED,
            status,
            residual,
            bidi_read_residual: Residual::None,
            itt,
            snack_tag: 0,
            stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn,
        };
        Some(Transmit { header: pdu.encode(segment_length(&payload)), payload })
    }

    /// The task's last PDU is made: it no longer counts against the command window, which that
    /// very PDU announces.
    fn finish(&mut self, conn: ConnId, itt: Itt) {
        self.pop_responding(conn);
        self.remove_task(itt);
    }

    fn pop_responding(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.responding.pop_front();
        }
    }
}

/// Length of a segment we built ourselves, far below the 24-bit limit of the field.
pub(super) fn segment_length(payload: &Bytes) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
