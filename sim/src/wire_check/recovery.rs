//! What recovery allows beyond the ordinary course: PDUs again, and why (RFC 7143 §7.2, §11.16).

use std::collections::BTreeMap;

use iscsi_proto::ids::{Itt, Ttt};
use iscsi_proto::pdu::{BHS_LEN, Pdu, SnackKind, SnackRequest};
use iscsi_proto::serial::StatSn;

use super::{LinkCheck, SessionCheck, Sight, Verdict, ensure};
use crate::coverage::Coverage;

/// What of a PDU has to be the same when it comes again: a checksum over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image(u32);

impl Image {
    /// `bytes` begin with the header.
    pub(super) fn new(pdu: &Pdu, bytes: &[u8], data: &[u8]) -> Self {
        let mut bhs = [0; BHS_LEN];
        bhs.copy_from_slice(&bytes[..BHS_LEN]);
        // Fields that carry current values (§11.16).
        let current: &[(usize, usize)] = match pdu {
            Pdu::ScsiResponse(_) => &[(28, 40)],
            Pdu::R2t(_) => &[(24, 36)],
            Pdu::DataIn(_)
            | Pdu::NopIn(_)
            | Pdu::TaskManagementResponse(_)
            | Pdu::TextResponse(_)
            | Pdu::LogoutResponse(_)
            | Pdu::AsyncMessage(_)
            | Pdu::Reject(_) => &[(28, 36)],
            // ExpStatSN of a request.
            _ => &[(28, 32)],
        };
        for (from, to) in current {
            bhs[*from..*to].fill(0);
        }
        Self(crc32c::crc32c_append(crc32c::crc32c(&bhs), data))
    }
}

/// Numbers that were asked for again, and how often.
#[derive(Debug, Default)]
pub(super) struct Asked(BTreeMap<u32, u32>);

impl Asked {
    pub(super) fn ask(&mut self, from: u32, to: u32) {
        let mut sn = from;
        while sn != to {
            *self.0.entry(sn).or_default() += 1;
            sn = sn.wrapping_add(1);
        }
    }

    /// One of them comes. False if nobody asked.
    pub(super) fn answer(&mut self, sn: u32) -> bool {
        let Some(count) = self.0.get_mut(&sn) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&sn);
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Longest run of statuses that anybody would ask for here.
const RUN_MAX: u32 = 1 << 20;

pub(super) fn snack(
    sight: Sight,
    check: &mut LinkCheck,
    session: &mut SessionCheck,
    pdu: &SnackRequest,
    coverage: &mut Coverage,
) -> Verdict {
    ensure!(session.recovers(), "SNACK at error recovery level 0");
    match pdu.kind {
        SnackKind::STATUS => {
            coverage.hit("pdu: status SNACK");
            status_snack(sight, check, pdu)
        }
        SnackKind::DATA_OR_R2T => {
            let task = session.tasks.get_mut(&pdu.itt).ok_or("no such task")?;
            coverage.hit(if task.is_write() { "pdu: R2T SNACK" } else { "pdu: data SNACK" });
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
            //= type=test
            //# Retransmission requests (SNACK PDUs), and the data and status that they generate,
            //# MUST also use the same connection.
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.4
            //= type=test
            //# In all other cases, the Initiator Task Tag field MUST be set to the Initiator Task
            //# Tag of the referenced command.
            ensure!(task.link == sight.link, "the task belongs to {}", task.link);
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
            //= type=test
            //# In all other cases, the Target Transfer Tag field MUST be set to the reserved value
            //# 0xffffffff.
            ensure!(pdu.ttt_or_snack_tag == Ttt::NONE.0, "tag of a SNACK that has none");
            let acked = task.stat_sn.is_some_and(|stat_sn| stat_sn.is_before(check.exp_stat_sn));
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.1
            //= type=test
            //# Data/R2T SNACK, Status SNACK, or R-Data SNACK for a command MUST precede status
            //# acknowledgment for the given command.
            ensure!(!acked, "after the acknowledgement of the command's status");
            check.snacked.insert(pdu.itt);
            if task.ending {
                check.late_snacks += 1;
            }
            if task.over_by_management {
                return Ok(());
            }
            // The target may have given up an R2T in favour of a recovery R2T.
            check.late_snacks += u32::from(task.has_superseded());
            task.data_snack(pdu.beg_run, pdu.run_length, sight.intact)
        }
        SnackKind::DATA_ACK => {
            coverage.hit("pdu: DataACK");
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.4
            //= type=test
            //# For a Status SNACK and DataACK, the Initiator Task Tag MUST be set to the reserved
            //# value 0xffffffff.
            ensure!(pdu.itt == Itt::NONE, "task tag in a DataACK");
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.7
            //= type=test
            //# The RunLength MUST also be 0 for a DataACK SNACK in addition to a R-Data SNACK.
            ensure!(pdu.run_length == 0, "RunLength in a DataACK");
            let ttt = Ttt(pdu.ttt_or_snack_tag);
            let named = session.tasks.iter_mut().find(|(_, task)| task.asks_ack(ttt));
            let (itt, task) = named.ok_or("no Data-In with the A bit had this tag")?;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
            //= type=test
            //# For DataACK, the Target Transfer Tag MUST contain a copy of the Target Transfer Tag
            //# and LUN provided with the SCSI Data-In PDU with the A bit set to 1.
            ensure!(task.lun == pdu.lun, "LUN of the command is {}", task.lun);
            check.snacked.insert(*itt);
            if task.ending || task.over {
                check.late_snacks += 1;
            }
            task.data_ack(pdu.beg_run, sight.intact)
        }
        SnackKind::R_DATA => {
            coverage.hit("pdu: R-Data SNACK");
            let task = session.tasks.get_mut(&pdu.itt).ok_or("no such task")?;
            ensure!(task.link == sight.link, "the task belongs to {}", task.link);
            ensure!(pdu.beg_run == 0 && pdu.run_length == 0, "run in an R-Data SNACK");
            let tag = pdu.ttt_or_snack_tag;
            ensure!(tag != 0 && tag != u32::MAX, "SNACK Tag is reserved");
            Err("the initiator does not change what it declared".into())
        }
        other => Err(format!("no such SNACK: {other}")),
    }
}

fn status_snack(sight: Sight, check: &mut LinkCheck, pdu: &SnackRequest) -> Verdict {
    ensure!(pdu.itt == Itt::NONE, "task tag in a status SNACK");
    ensure!(pdu.ttt_or_snack_tag == Ttt::NONE.0, "transfer tag in a status SNACK");
    let next = check.next_stat_sn.ok_or("no login on this connection")?;
    let all = pdu.beg_run == 0 && pdu.run_length == 0;
    let from = if all { check.exp_stat_sn } else { StatSn(pdu.beg_run) };
    let to = if pdu.run_length == 0 { next } else { from.plus(pdu.run_length) };
    ensure!(!from.is_before(check.exp_stat_sn), "status SNACK for what was acknowledged");
    ensure!(!next.is_before(to), "status SNACK for what was never sent: {next} is next");
    ensure!(to.since(from).unsigned_abs() <= RUN_MAX, "run of statuses is too long");
    if sight.intact {
        check.status_asked.ask(from.0, to.0);
    }
    Ok(())
}
