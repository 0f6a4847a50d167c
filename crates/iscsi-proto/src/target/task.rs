//! A SCSI command under way: what it was asked, what has arrived, what has been sent.

use std::collections::VecDeque;

use bytes::Bytes;

use super::admission::{Admission, Standing};
use super::event::ConnId;
use super::receipt::Receipt;
use super::sequence::Sequence;
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{Residual, ScsiCommand, TaskAttribute};
use crate::serial::{CmdSn, DataSn, R2tSn, StatSn};
use crate::time::Instant;

/// A command whose turn has come and whose data is all there.
#[derive(Clone, Debug)]
pub struct Execute {
    /// The task; also names its data buffer.
    pub itt: Itt,
    /// Logical unit, as on the wire.
    pub lun: Lun,
    /// First 16 bytes of the CDB.
    pub cdb: [u8; 16],
    /// The rest of a longer CDB.
    pub extended_cdb: Bytes,
    /// Ordering attribute.
    pub attribute: TaskAttribute,
    /// Task priority, 1 the highest, 0 for none given (RFC 7144 §5.1.1).
    pub priority: u8,
    /// Bytes the initiator expects to move, in the direction of the command.
    pub expected_data_transfer_length: u32,
    /// Data flows to the initiator.
    pub read: bool,
    /// Data flows from the initiator.
    pub write: bool,
    /// The write is longer than the session takes: answer with an error, there is no data.
    pub too_long: bool,
    /// Not to be executed: it ends with CHECK CONDITION and this sense data. Said of commands with
    /// NACA alone, since the device server has to know that one has failed (SAM-5 §5.9).
    pub failed: Option<Bytes>,
}

/// How a command ended.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// SCSI status (SAM-5 §5.3.1).
    pub status: u8,
    /// More about the status (RFC 7144 §5.2.1, SAM-5 §5.3.2); sent where that was agreed on.
    // RFC 7144 §5.2.1:
    // Compliant senders MUST NOT set this field to a value other than zero unless the
    // iSCSIProtocolLevel text key with a value of "2" as defined in Section 7.1.1 was negotiated
    // on the session.
    pub status_qualifier: u16,
    /// Sense data, empty without.
    pub sense: Bytes,
    /// Data for the initiator; sent up to the expected length.
    pub data_in: Bytes,
    /// Bytes the command itself would have moved; the residual is its difference to the
    /// expected length.
    pub wanted_length: u64,
    /// The shell wants to know whether the initiator has this answer:
    /// [`Session::poll_delivery`](super::Session::poll_delivery).
    pub receipt: Option<Receipt>,
}

/// What was wrong with a command's data, with the sense that says so (RFC 7143 §11.4.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferFault {
    /// Data that was not asked for and not agreed on.
    UnexpectedUnsolicited,
    /// More or less than announced.
    IncorrectAmount,
    /// A PDU is missing or its digest is wrong.
    Damaged,
    /// Data-In was lost, and is not sent again.
    SnackRejected,
}

impl TransferFault {
    /// Sense in fixed format: ABORTED COMMAND with the additional sense of §11.4.7.2.
    pub(super) fn sense(self) -> Bytes {
        const ABORTED_COMMAND: u8 = 0x0b;
        let additional = match self {
            Self::UnexpectedUnsolicited => [0x0c, 0x0c],
            Self::IncorrectAmount => [0x0c, 0x0d],
            Self::Damaged => [0x47, 0x05],
            Self::SnackRejected => [0x11, 0x13],
        };
        fixed_sense(ABORTED_COMMAND, additional)
    }
}

/// Current sense in fixed format (SPC-4 §4.5.3), with additional sense code and qualifier.
pub(super) fn fixed_sense(key: u8, [code, qualifier]: [u8; 2]) -> Bytes {
    const CURRENT_FIXED: u8 = 0x70;
    let mut sense = vec![0; 18];
    sense[0] = CURRENT_FIXED;
    sense[2] = key;
    sense[7] = 10; // bytes that follow the first eight
    sense[12] = code;
    sense[13] = qualifier;
    Bytes::from(sense)
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Data or the command's turn is still awaited.
    Collecting,
    /// Handed out with [`super::Event::Execute`], `complete` is awaited.
    Running,
    /// Data-In and status are being sent.
    Responding,
}

/// How Data-In PDUs are cut: from which number and offset on, into what. It changes when data is
/// sent again on a connection that takes other segments (§7.2.2, §11.16.3).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    /// Longest segment; 0: nothing has been cut yet.
    pub(super) segment_max: u32,
}

/// The data of one Data-In PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
    /// The last of its sequence.
    pub(super) is_final: bool,
    /// The last of the command.
    pub(super) is_last: bool,
}

#[derive(Debug)]
pub(super) struct Task {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
    //# For any iSCSI request issued over a TCP connection, the corresponding response and/or other
    //# related PDU(s) MUST be sent over the same connection.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
    //# Thus, if an initiator issues a read command, the target MUST send the requested data, if
    //# any, followed by the status, to the initiator over the same TCP connection that was used to
    //# deliver the SCSI command.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
    //# The target MUST return Ready To Transfer (R2T), if any, and the status over the same TCP
    //# connection that was used to deliver the SCSI command.
    pub(super) conn: ConnId,
    pub(super) command: ScsiCommand,
    pub(super) phase: Phase,
    /// Everything before it in CmdSN order has been delivered.
    pub(super) in_order: bool,
    /// No response may be sent any more.
    pub(super) aborted: bool,
    pub(super) too_long: bool,
    /// The transfer went wrong: the command is answered with this and never executed.
    pub(super) fault: Option<TransferFault>,
    /// Bytes of immediate data that came with the command.
    pub(super) immediate_length: u32,
    /// That data is still coming in, though the command counts as received.
    pub(super) arriving: bool,
    /// The unsolicited sequence, while that is open.
    pub(super) unsolicited: Option<Sequence>,
    /// Everything before this offset has been asked for or was sent unsolicited.
    pub(super) solicited_to: u32,
    /// Sequences asked for with R2Ts.
    pub(super) bursts: VecDeque<Sequence>,
    /// What was lost and has to be asked for again: from, to.
    pub(super) lost: VecDeque<(u32, u32)>,
    /// Times that lost data was asked for since some last came.
    pub(super) fruitless: u32,
    /// Others took the place of R2Ts that were not answered in time.
    pub(super) replaced_r2ts: bool,
    /// When it was last asked for data or brought some.
    pub(super) last_data: Instant,
    /// Does the shell let it go on?
    pub(super) standing: Standing,
    /// Bytes of the session's memory for writes that are reserved for it; 0: not yet.
    pub(super) granted: u32,
    /// Bytes of the session's memory for reads that it holds.
    pub(super) reading: u32,
    /// R2Ts and Data-In PDUs share one series (§4.2.2.3).
    pub(super) next_data_sn: u32,
    pub(super) completion: Completion,
    /// Bytes of Data-In sent.
    pub(super) sent: u32,
    pub(super) cut: Cut,
    /// Data-In before this number is acknowledged, and where the data behind it begins.
    pub(super) acked_data_sn: u32,
    pub(super) acked_offset: u32,
    /// Names the task in a DataACK, once one was asked for.
    pub(super) ack_ttt: Option<Ttt>,
    /// StatSN of its status on `conn`, once that was sent.
    pub(super) stat_sn: Option<StatSn>,
    /// The status was sent with the last Data-In.
    pub(super) collapsed: bool,
    /// Of the last R-Data SNACK, or 0.
    pub(super) snack_tag: u32,
}

impl Task {
    pub(super) fn new(
        conn: ConnId,
        command: ScsiCommand,
        immediate_length: u32,
        too_long: bool,
    ) -> Self {
        Self {
            conn,
            command,
            phase: Phase::Collecting,
            in_order: false,
            aborted: false,
            too_long,
            fault: None,
            immediate_length,
            arriving: false,
            unsolicited: None,
            solicited_to: 0,
            bursts: VecDeque::new(),
            lost: VecDeque::new(),
            fruitless: 0,
            replaced_r2ts: false,
            last_data: Instant::default(),
            standing: Standing::default(),
            granted: 0,
            reading: 0,
            next_data_sn: 0,
            completion: Completion::default(),
            sent: 0,
            cut: Cut::default(),
            acked_data_sn: 0,
            acked_offset: 0,
            ack_ttt: None,
            stat_sn: None,
            collapsed: false,
            snack_tag: 0,
        }
    }

    /// Gives back the memory that it has beside its own.
    pub(super) fn give_back(&mut self) {
        self.command.extended_cdb = Bytes::new();
        self.completion = Completion::default();
        self.unsolicited = None;
        (self.bursts, self.lost) = (VecDeque::new(), VecDeque::new());
    }

    pub(super) fn cmd_sn(&self) -> CmdSn {
        self.command.cmd_sn
    }

    /// Does a function for a unit, or for all, with this CmdSN, or with any, act on it?
    pub(super) fn is_affected(&self, lun: Option<Lun>, cmd_sn: Option<CmdSn>) -> bool {
        lun.is_none_or(|lun| self.lun() == lun)
            && cmd_sn.is_none_or(|sn| self.command.immediate || self.cmd_sn().is_before(sn))
    }

    /// Bytes the initiator has to send.
    pub(super) fn write_length(&self) -> u32 {
        if self.takes_data() { self.command.expected_data_transfer_length } else { 0 }
    }

    /// What the initiator sends for it is not thrown away.
    pub(super) fn takes_data(&self) -> bool {
        self.command.write && !self.too_long && self.fault.is_none()
    }

    /// Bytes that the initiator has room for.
    pub(super) fn read_room(&self) -> u32 {
        if self.command.write {
            self.command.bidi_read_length.unwrap_or(0)
        } else if self.command.read {
            self.command.expected_data_transfer_length
        } else {
            0
        }
    }

    /// Bytes of Data-In that will be sent: never more than expected.
    pub(super) fn read_length(&self) -> u32 {
        let expected = self.read_room();
        u32::try_from(self.completion.data_in.len()).map_or(expected, |len| len.min(expected))
    }

    pub(super) fn has_all_data(&self) -> bool {
        !self.arriving && !self.awaits_data() && (self.fault.is_some() || self.has_asked_for_all())
    }

    /// A sequence of Data-Out is open. The answer to a damaged one waits for its end (§7.8).
    pub(super) fn awaits_data(&self) -> bool {
        self.unsolicited.is_some() || !self.bursts.is_empty()
    }

    /// No R2T is left to be sent.
    pub(super) fn has_asked_for_all(&self) -> bool {
        self.lost.is_empty() && self.solicited_to >= self.write_length()
    }

    /// The data of the Data-In with this number, if there is one.
    pub(super) fn piece(&self, data_sn: u32, burst_max: u32) -> Option<Piece> {
        let n = u64::from(data_sn.wrapping_sub(self.cut.data_sn));
        let burst_max = u64::from(burst_max.max(1));
        let segment_max = u64::from(self.cut.segment_max.max(1)).min(burst_max);
        let per_burst = burst_max.div_ceil(segment_max);
        let in_burst = n % per_burst * segment_max;
        let offset = u64::from(self.cut.offset) + n / per_burst * burst_max + in_burst;
        let end = u64::from(self.read_length());
        if offset >= end {
            return None;
        }
        let len = segment_max.min(burst_max - in_burst).min(end - offset);
        let is_last = offset + len == end;
        let is_final = is_last || in_burst + len == burst_max;
        // Both are at most `end`, which is 32 bits.
        Some(Piece { offset: offset as u32, len: len as u32, is_final, is_last })
    }

    /// Where the data of the Data-In with this number begins, or would.
    pub(super) fn offset_of(&self, data_sn: u32, burst_max: u32) -> u32 {
        self.piece(data_sn, burst_max).map_or_else(|| self.read_length(), |piece| piece.offset)
    }

    /// Sends its data anew from what is acknowledged on, cut as `segment_max` says.
    pub(super) fn rewind(&mut self, segment_max: u32) {
        let (data_sn, offset) = (self.acked_data_sn, self.acked_offset);
        self.cut = Cut { data_sn, offset, segment_max };
        (self.next_data_sn, self.sent) = (data_sn, offset);
        self.collapsed = false;
    }

    pub(super) fn take_r2t_sn(&mut self) -> R2tSn {
        R2tSn(self.take_data_sn().0)
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
    //# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
    pub(super) fn take_data_sn(&mut self) -> DataSn {
        let this = self.next_data_sn;
        self.next_data_sn = this.wrapping_add(1);
        DataSn(this)
    }

    /// §11.4.5: what the command wanted against what the initiator expected.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
    //# If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled in the SCSI Response PDU as
    //# specified in Section 11.4.5.1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
    //# The Residual Count MUST be set to the numerical value of (SPDTL - EDTL).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
    //# If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled in the SCSI Response PDU as
    //# specified in Section 11.4.5.1.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
    //# The Residual Count MUST be set to the numerical value of (EDTL - SPDTL).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
    //# If all of the LU inventory data presented to the iSCSI layer -- i.e., the data remaining
    //# after any SCSI truncation -- is transferred to the initiator by the iSCSI layer, an iSCSI
    //# Residual Overflow has not occurred and the iSCSI (O) bit MUST NOT be set in the SCSI
    //# Response or final SCSI Data-Out PDU.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
    //# However, if the iSCSI EDTL is larger than the ALLOCATION LENGTH in this scenario, note that
    //# the iSCSI Underflow MUST be signaled in the SCSI Response PDU.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
    //# An iSCSI Underflow MUST also be signaled when the iSCSI EDTL is equal to the ALLOCATION
    //# LENGTH but the LU inventory data presented to the iSCSI layer is smaller than the ALLOCATION
    //# LENGTH.
    pub(super) fn residual(&self) -> Residual {
        let expected = u64::from(self.command.expected_data_transfer_length);
        let wanted = self.completion.wanted_length;
        let clamp = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        match wanted.cmp(&expected) {
            std::cmp::Ordering::Equal => Residual::None,
            std::cmp::Ordering::Greater => Residual::Overflow(clamp(wanted - expected)),
            std::cmp::Ordering::Less => Residual::Underflow(clamp(expected - wanted)),
        }
    }

    pub(super) fn execute(&self, itt: Itt) -> Execute {
        Execute {
            itt,
            lun: self.lun(),
            cdb: self.command.cdb,
            extended_cdb: self.command.extended_cdb.clone(),
            attribute: self.command.attribute,
            priority: self.command.priority,
            expected_data_transfer_length: self.command.expected_data_transfer_length,
            read: self.command.read,
            write: self.command.write,
            too_long: self.too_long,
            failed: None,
        }
    }

    /// What the shell is asked before anything is spent on it.
    pub(super) fn admission(&self, itt: Itt) -> Admission {
        let (cdb, lun) = (self.command.cdb, self.lun());
        let moves = self.command.read || self.command.write;
        let one_way = if moves { self.command.expected_data_transfer_length } else { 0 };
        let other_way = self.command.bidi_read_length.unwrap_or(0);
        let bytes = u64::from(one_way) + u64::from(other_way);
        Admission { itt, lun, cdb, bytes }
    }

    /// NACA of the CONTROL byte, whose place the group of the opcode tells (SAM-5 §5.2).
    pub(super) fn naca(&self) -> bool {
        let cdb = &self.command.cdb;
        let control = match cdb[0] >> 5 {
            0 => 5,
            1 | 2 => 9,
            4 => 15,
            5 => 11,
            _ => return false,
        };
        cdb[control] & 0x04 != 0
    }

    pub(super) fn lun(&self) -> Lun {
        self.command.lun
    }
}
