//! A SCSI command as seen on the wire: which data has gone which way.

use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::keys::SessionParams;
use iscsi_proto::pdu::{DataIn, DataOut, R2t, Residual, ScsiCommand};
use iscsi_proto::serial::CmdSn;

use super::{Verdict, ensure};
use crate::net::Link;

/// A sequence of Data-Out PDUs.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    ttt: Ttt,
    next_sn: u32,
    next_offset: u32,
    end: u32,
}

#[derive(Debug)]
pub(super) struct TaskCheck {
    pub(super) link: Link,
    pub(super) lun: Lun,
    pub(super) cmd_sn: CmdSn,
    read: bool,
    write: bool,
    expected: u32,
    unsolicited: Option<Sequence>,
    asked: Vec<Sequence>,
    /// End of what was sent unasked or asked for.
    asked_to: u32,
    had_unsolicited: bool,
    next_target_sn: u32,
    /// Bytes of Data-In, and in the sequence that is open.
    data_in: u32,
    burst: u32,
    is_final: bool,
    /// A task management function is on its way that may end it: its buffer may be free already.
    pub(super) ending: bool,
    /// Status was sent, or a task management function has ended it.
    pub(super) over: bool,
    /// The initiator has been told so.
    pub(super) end_is_known: bool,
}

impl TaskCheck {
    pub(super) fn new(
        link: Link,
        command: &ScsiCommand,
        data_len: u32,
        params: &SessionParams,
    ) -> Result<Self, String> {
        let expected = command.expected_data_transfer_length;
        let first = expected.min(params.first_burst_length);
        ensure!(data_len == 0 || command.write, "immediate data without a write");
        ensure!(data_len == 0 || params.immediate_data, "immediate data although ImmediateData=No");
        ensure!(
            data_len <= first,
            "immediate data beyond FirstBurstLength or the command's length"
        );
        ensure!(command.is_final || command.write, "F bit 0 without a write");
        ensure!(command.is_final || !params.initial_r2t, "F bit 0 although InitialR2T=Yes");
        ensure!(command.is_final || data_len < first, "F bit 0 although nothing may follow");
        let sequence = Sequence { ttt: Ttt::NONE, next_sn: 0, next_offset: data_len, end: first };
        Ok(Self {
            link,
            lun: command.lun,
            cmd_sn: command.cmd_sn,
            read: command.read,
            write: command.write,
            expected,
            unsolicited: (!command.is_final).then_some(sequence),
            asked: Vec::new(),
            asked_to: if command.is_final { data_len } else { first },
            had_unsolicited: !command.is_final,
            next_target_sn: 0,
            data_in: 0,
            burst: 0,
            is_final: true,
            ending: false,
            over: false,
            end_is_known: false,
        })
    }

    /// The command was not complete with its first PDU.
    pub(super) fn needed_more_data(&self) -> bool {
        self.had_unsolicited || self.next_target_sn > 0 && self.write
    }

    pub(super) fn data_out(&mut self, pdu: &DataOut, len: u32) -> Verdict {
        ensure!(!self.end_is_known, "data of a task that has ended, as the initiator knows");
        let sequence = match pdu.ttt {
            Ttt::NONE => self.unsolicited.as_mut().ok_or("unsolicited data not announced")?,
            ttt => {
                let asked = self.asked.iter_mut().find(|sequence| sequence.ttt == ttt);
                asked.ok_or("no R2T with this tag is outstanding")?
            }
        };
        ensure!(pdu.ttt == Ttt::NONE || pdu.lun == self.lun, "LUN of the command is {}", self.lun);
        ensure!(pdu.data_sn.0 == sequence.next_sn, "DataSN, expected {}", sequence.next_sn);
        let offset = sequence.next_offset;
        ensure!(pdu.buffer_offset == offset, "offset, expected {offset}");
        ensure!(len > 0 && len <= sequence.end - offset, "sequence ends at {}", sequence.end);
        sequence.next_sn += 1;
        sequence.next_offset += len;
        let complete = sequence.next_offset == sequence.end;
        ensure!(pdu.is_final == complete, "F bit does not fit the end of the sequence");
        if complete && pdu.ttt == Ttt::NONE {
            self.unsolicited = None;
        }
        self.asked.retain(|sequence| sequence.next_offset < sequence.end);
        Ok(())
    }

    pub(super) fn r2t(&mut self, pdu: &R2t, params: &SessionParams) -> Verdict {
        self.is_live()?;
        ensure!(self.write, "R2T for a command that does not write");
        ensure!(self.unsolicited.is_none(), "R2T before the end of unsolicited data");
        ensure!(pdu.r2t_sn.0 == self.next_target_sn, "R2TSN, expected {}", self.next_target_sn);
        self.next_target_sn += 1;
        let len = pdu.desired_data_transfer_length;
        ensure!(len > 0 && len <= params.max_burst_length, "length 0 or beyond MaxBurstLength");
        ensure!(pdu.buffer_offset == self.asked_to, "offset, expected {}", self.asked_to);
        ensure!(len <= self.expected - self.asked_to, "beyond the command's {}", self.expected);
        ensure!(pdu.ttt != Ttt::NONE, "reserved tag");
        ensure!(self.asked.iter().all(|sequence| sequence.ttt != pdu.ttt), "tag is in use");
        let outstanding = usize::from(params.max_outstanding_r2t);
        ensure!(self.asked.len() < outstanding, "more R2Ts than MaxOutstandingR2T");
        self.asked_to += len;
        let (ttt, next_offset) = (pdu.ttt, pdu.buffer_offset);
        self.asked.push(Sequence { ttt, next_sn: 0, next_offset, end: self.asked_to });
        Ok(())
    }

    pub(super) fn data_in(&mut self, pdu: &DataIn, len: u32, params: &SessionParams) -> Verdict {
        self.is_live()?;
        ensure!(self.read, "Data-In for a command that does not read");
        ensure!(pdu.data_sn.0 == self.next_target_sn, "DataSN, expected {}", self.next_target_sn);
        self.next_target_sn += 1;
        ensure!(pdu.buffer_offset == self.data_in, "offset, expected {}", self.data_in);
        ensure!(len <= self.expected - self.data_in, "beyond the command's {}", self.expected);
        self.data_in += len;
        self.burst += len;
        ensure!(self.burst <= params.max_burst_length, "sequence beyond MaxBurstLength");
        self.is_final = pdu.is_final;
        if pdu.is_final {
            self.burst = 0;
        }
        if let Some(status) = pdu.status {
            self.status(status.status, status.residual)?;
        }
        Ok(())
    }

    pub(super) fn response(&mut self, status: u8, residual: Residual, exp_data_sn: u32) -> Verdict {
        self.is_live()?;
        // R2Ts share the series; without Data-In there is nothing that could be missed.
        let sent = if self.data_in > 0 { self.next_target_sn } else { 0 };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.8
        //= type=test
        //# This field MUST be 0 if the response code is not Command Completed at Target or the
        //# target sent no Data-In PDUs for the command.
        ensure!(exp_data_sn == sent, "ExpDataSN, {sent} for the Data-In PDUs that were sent");
        self.status(status, residual)
    }

    fn status(&mut self, status: u8, residual: Residual) -> Verdict {
        self.over = true;
        ensure!(self.is_final, "status after a sequence of Data-In that has not ended");
        let incomplete = self.unsolicited.is_some() || !self.asked.is_empty();
        ensure!(!incomplete, "status while data is outstanding");
        if status != 0 {
            return Ok(());
        }
        let moved = if self.write { self.asked_to } else { self.data_in };
        let fits = match residual {
            Residual::None => moved == self.expected,
            Residual::Overflow(count) => moved == self.expected && count > 0,
            Residual::Underflow(count) => {
                count > 0 && moved.checked_add(count) == Some(self.expected)
            }
        };
        ensure!(fits, "{moved} of {} bytes moved, residual {residual:?}", self.expected);
        Ok(())
    }

    /// An R2T with this tag is outstanding.
    pub(super) fn is_asked(&self, ttt: Ttt) -> bool {
        self.asked.iter().any(|sequence| sequence.ttt == ttt)
    }

    /// Bytes asked for that have not been sent.
    pub(super) fn outstanding(&self) -> u64 {
        self.asked.iter().map(|sequence| u64::from(sequence.end - sequence.next_offset)).sum()
    }

    fn is_live(&self) -> Verdict {
        ensure!(!self.over, "the task is over");
        Ok(())
    }
}

/// Tags that name no task.
pub(super) fn check_tag(itt: Itt) -> Verdict {
    ensure!(itt != Itt::NONE, "reserved task tag");
    Ok(())
}
