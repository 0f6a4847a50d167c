//! SNACK: PDUs again, and data acknowledged (RFC 7143 §11.16).
//!
//! What is to be sent again is queued as runs of numbers, not as PDUs: a run costs the same
//! whether it names one PDU or a million.

use super::event::{ConnId, Event, Recovery, SessionError};
use super::receive::CHECK_CONDITION;
use super::retain::Numbered;
use super::session::Session;
use super::task::{Completion, Phase, Task, TransferFault};
use super::transmit::Reply;
use crate::connection::{Placement, Transmit};
use crate::ids::Itt;
use crate::pdu::{Header, R2t, RejectReason, SnackKind, SnackRequest};
use crate::serial::{R2tSn, StatSn};

/// Runs that may wait on a connection; more are rejected, to be asked for again. An initiator asks
/// once for each gap that it finds.
const RUNS_MAX: usize = 64;

/// PDUs to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Data-In of a task: from `next` on, before `end`.
    Data { itt: Itt, next: u32, end: u32 },
    /// Numbered answers: from `next` on, before `end`.
    Status { next: StatSn, end: StatSn },
}

/// Why a SNACK is rejected, and the next number the target would send (§11.17.2).
type Refusal = (RejectReason, u32);

const PROTOCOL_ERROR: Refusal = (RejectReason::PROTOCOL_ERROR, 0);
const INVALID_FIELD: Refusal = (RejectReason::INVALID_PDU_FIELD, 0);

impl Session {
    pub(super) fn snack(
        &mut self,
        conn: ConnId,
        snack: &SnackRequest,
        header: &Header,
    ) -> Result<Placement, SessionError> {
        if !self.recovers() {
            return self.reject(conn, RejectReason::SNACK_REJECT, header);
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
        //# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all
        //# SNACK types.
        let result = match snack.kind {
            SnackKind::DATA_OR_R2T => self.snack_data(conn, snack),
            SnackKind::STATUS => self.snack_status(conn, snack),
            SnackKind::DATA_ACK => self.data_ack(conn, snack),
            SnackKind::R_DATA => self.snack_r_data(conn, snack),
            _ => Err(INVALID_FIELD),
        };
        if let Err((reason, data_sn)) = result {
            let quoted = header.bhs.to_vec().into();
            self.push_reply(conn, Reply::Reject { reason, data_sn, header: quoted });
        }
        self.ignore(conn, header.data_segment_length())
    }

    /// Data-In or R2T PDUs of one command. Both share one series of numbers.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# In response to the SNACK, the target MUST either resend the data PDU or reject the SNACK
    //# with a Reject PDU with a reason code of "SNACK reject", in which case:
    fn snack_data(&mut self, conn: ConnId, snack: &SnackRequest) -> Result<(), Refusal> {
        let itt = snack.itt;
        if let Some(task) = self.tasks.get(&itt)
            && task.conn == conn
            && task.phase == Phase::Collecting
        {
            return self.snack_r2t(conn, snack);
        }
        let task = self.find_answer(conn, itt).ok_or(PROTOCOL_ERROR)?;
        let sent = task.next_data_sn;
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
        //# Any SNACK that requests a numbered response, data, or R2T that was not sent by the
        //# target or was already acknowledged by the initiator MUST be rejected with a reason code
        //# of "Protocol Error".
        // What was not sent, or is acknowledged, may not be asked for.
        let end = run_end(snack, sent);
        let first = task.acked_data_sn.max(task.cut.data_sn);
        if !is_part(snack.beg_run, end, (first, sent)) {
            return Err((RejectReason::PROTOCOL_ERROR, sent));
        }
        let run = Run::Data { itt, next: snack.beg_run, end };
        if let Err(refusal) = self.queue_run(conn, run) {
            self.end_refused(itt);
            return Err(refusal);
        }
        let pdus = end.wrapping_sub(snack.beg_run);
        self.note(conn, Recovery::DataAgain { itt, data_sn: snack.beg_run, pdus });
        Ok(())
    }

    /// Data of a read was asked for and will not be sent again: without it the read has failed.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
    //# If the status has not already been sent for the command, the target MUST terminate the
    //# command with a CHECK CONDITION Status and an iSCSI Condition of "SNACK rejected" (Section
    //# 11.4.7.2).
    fn end_refused(&mut self, itt: Itt) {
        if let Some(task) = self.tasks.get_mut(&itt).filter(|task| task.stat_sn.is_none()) {
            let (status, sense) = (CHECK_CONDITION, TransferFault::SnackRejected.sense());
            let wanted_length = task.sent.into();
            let failed = Completion { status, sense, wanted_length, ..Completion::default() };
            let unsent = std::mem::replace(&mut task.completion, failed);
            self.lose_answer(&unsent);
        }
    }

    /// R2Ts that are not answered yet, as they were.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
    //# R2T(s)requested by SNACK MUST also carry the current value of the StatSN.
    fn snack_r2t(&mut self, conn: ConnId, snack: &SnackRequest) -> Result<(), Refusal> {
        let task = self.tasks.get(&snack.itt).ok_or(PROTOCOL_ERROR)?;
        let sent = task.next_data_sn;
        let end = run_end(snack, sent);
        let count = end.wrapping_sub(snack.beg_run);
        let asked = |sn: R2tSn| sn.0.wrapping_sub(snack.beg_run) < count;
        let open = task.bursts.iter().filter(|burst| asked(burst.r2t_sn));
        let r2ts: Vec<R2t> = open.map(|burst| burst.r2t(snack.itt, task.lun())).collect();
        let beyond = (sent.wrapping_sub(end) as i32) < 0;
        if r2ts.is_empty() && !beyond && task.replaced_r2ts {
            return Ok(()); // what it asked for is asked for by another one
        }
        if r2ts.is_empty() || beyond {
            return Err((RejectReason::PROTOCOL_ERROR, sent));
        }
        if self.reply_backlog(conn) >= RUNS_MAX {
            return Err((RejectReason::SNACK_REJECT, 0));
        }
        for r2t in r2ts {
            self.note(conn, Recovery::R2tAgain { itt: snack.itt, r2t_sn: r2t.r2t_sn.0 });
            self.push_reply(conn, Reply::R2t(r2t));
        }
        Ok(())
    }

    fn snack_status(&mut self, conn: ConnId, snack: &SnackRequest) -> Result<(), Refusal> {
        let connection = self.connections.get(&conn).ok_or(PROTOCOL_ERROR)?;
        let next_stat_sn = connection.next_stat_sn;
        let unacknowledged = connection.sent.len() as u32; // limited
        let first = StatSn(next_stat_sn.0.wrapping_sub(unacknowledged));
        let all = snack.beg_run == 0 && snack.run_length == 0;
        let next = if all { first } else { StatSn(snack.beg_run) };
        let end = if all { next_stat_sn } else { StatSn(run_end(snack, next_stat_sn.0)) };
        if all && unacknowledged == 0 {
            return Ok(()); // everything that was sent has arrived
        }
        if !is_part(next.0, end.0, (first.0, next_stat_sn.0)) {
            return Err(PROTOCOL_ERROR);
        }
        self.queue_run(conn, Run::Status { next, end })?;
        let pdus = end.0.wrapping_sub(next.0);
        self.note(conn, Recovery::StatusAgain { stat_sn: next.0, pdus });
        Ok(())
    }

    /// Data up to BegRun has arrived: it will not be asked for again.
    fn data_ack(&mut self, conn: ConnId, snack: &SnackRequest) -> Result<(), Refusal> {
        let refusal = (RejectReason::INVALID_DATA_ACK, 0);
        let burst_max = self.params.max_burst_length;
        let named = |task: &Task| {
            task.conn == conn && task.ack_ttt.is_some_and(|ttt| ttt.0 == snack.ttt_or_snack_tag)
        };
        let task = self.tasks.iter_mut().map(|(_, task)| task).find(|task| named(task));
        let mut answered = self.answered.values_mut().map(|task| &mut **task);
        let task = task.or_else(|| answered.find(|task| named(task)));
        let task = task.ok_or(refusal)?;
        let ahead = snack.beg_run.wrapping_sub(task.acked_data_sn) as i32;
        let unsent = snack.beg_run.wrapping_sub(task.next_data_sn) as i32 > 0;
        if snack.lun != task.lun() || snack.run_length != 0 || ahead < 0 || unsent {
            return Err(refusal);
        }
        task.acked_offset = task.offset_of(snack.beg_run, burst_max);
        task.acked_data_sn = snack.beg_run;
        Ok(())
    }

    /// All unacknowledged data of a command, cut for the segments the initiator takes now, and the
    /// status behind it (§11.16.3).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.3
    //# A target that has received a R-Data SNACK MUST return a SCSI Response that contains a copy
    //# of the SNACK Tag field from the R-Data SNACK in the SCSI Response SNACK Tag field as its
    //# last or only Response.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
    //# This value MUST be copied by the iSCSI target in the last or only SCSI Response PDU it
    //# issues for the command.
    fn snack_r_data(&mut self, conn: ConnId, snack: &SnackRequest) -> Result<(), Refusal> {
        let (itt, tag) = (snack.itt, snack.ttt_or_snack_tag);
        if snack.beg_run != 0 || snack.run_length != 0 || tag == 0 || tag == u32::MAX {
            return Err(INVALID_FIELD);
        }
        let task = self.find_answer(conn, itt).ok_or(PROTOCOL_ERROR)?;
        if task.next_data_sn == task.acked_data_sn {
            return Err((RejectReason::PROTOCOL_ERROR, task.next_data_sn));
        }
        let connection = self.connections.get_mut(&conn).ok_or(PROTOCOL_ERROR)?;
        let segment_max = connection.params.max_send_data_segment_length.max(1);
        connection.runs.retain(|run| !matches!(run, Run::Data { itt: of, .. } if *of == itt));
        if let Some(task) = self.answered.remove(&itt) {
            connection.responding.push_back(itt);
            self.tasks.insert(itt, task);
        }
        if let Some(task) = self.tasks.get_mut(&itt) {
            task.rewind(segment_max);
            task.snack_tag = tag;
        }
        self.note(conn, Recovery::DataRecut { itt });
        Ok(())
    }

    fn queue_run(&mut self, conn: ConnId, run: Run) -> Result<(), Refusal> {
        let connection = self.connections.get_mut(&conn).ok_or(PROTOCOL_ERROR)?;
        if connection.runs.contains(&run) {
            return Ok(()); // it is on its way
        }
        if connection.runs.len() >= RUNS_MAX {
            return Err((RejectReason::SNACK_REJECT, 0));
        }
        connection.runs.push_back(run);
        Ok(())
    }

    /// The next PDU that is sent again on `conn`.
    pub(super) fn transmit_again(&mut self, conn: ConnId) -> Option<Transmit> {
        loop {
            let connection = self.connections.get_mut(&conn)?;
            let run = connection.runs.front_mut()?;
            let this = *run;
            let more = match run {
                Run::Data { next, end, .. } => {
                    *next = next.wrapping_add(1);
                    *next != *end
                }
                Run::Status { next, end } => {
                    *next = next.next();
                    *next != *end
                }
            };
            if !more {
                connection.runs.pop_front();
            }
            let transmit = match this {
                Run::Data { itt, next, .. } => self.data_in_again(conn, itt, next),
                Run::Status { next, .. } => self.numbered_again(conn, next),
            };
            match (transmit, this) {
                (Some(transmit), _) => return Some(transmit),
                // The task was acknowledged or aborted: so is the rest of its run.
                (None, Run::Data { .. }) if more => {
                    self.connections.get_mut(&conn)?.runs.pop_front();
                }
                (None, _) => {}
            }
        }
    }

    fn numbered_again(&mut self, conn: ConnId, stat_sn: StatSn) -> Option<Transmit> {
        match self.connections.get(&conn)?.numbered(stat_sn)?.clone() {
            Numbered::Response(itt) => {
                let task = self.find_answer(conn, itt)?;
                // One whose data is being sent anew gets its status at the end of that.
                let sent = task.stat_sn == Some(stat_sn) && self.answered.contains_key(&itt);
                sent.then(|| self.status_again(conn, itt)).flatten()
            }
            Numbered::Reply(reply) => Some(self.encode_reply(reply, stat_sn)),
            Numbered::Nothing => None,
        }
    }

    pub(super) fn note(&mut self, conn: ConnId, recovery: Recovery) {
        self.push_event(conn, Event::Recovery(recovery));
    }
}

/// End of the run that a SNACK names, `sent` being the end of all there is.
fn run_end(snack: &SnackRequest, sent: u32) -> u32 {
    match snack.run_length {
        0 => sent,
        length => snack.beg_run.wrapping_add(length),
    }
}

/// Is this a run of at least one number, all from `first` on and before `sent`? In serial
/// arithmetic a run of more than half of all numbers would seem to end before it begins.
fn is_part(begin: u32, end: u32, (first, sent): (u32, u32)) -> bool {
    let there = sent.wrapping_sub(first);
    let (from, to) = (begin.wrapping_sub(first), end.wrapping_sub(first));
    from < to && to <= there
}
