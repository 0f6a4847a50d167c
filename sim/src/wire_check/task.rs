//! A SCSI command as seen on the wire: which data has gone which way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::keys::SessionParams;
use iscsi_proto::pdu::{DataIn, DataOut, R2t, Residual, ScsiCommand, ScsiResponse};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::time::Instant;

use super::data::{Ranges, Sequence};
use super::recovery::{Asked, Image};
use super::{Sight, Verdict, ensure};
use crate::coverage::Coverage;
use crate::net::Link;

/// Recovery R2Ts that a target may have numbered and not sent when its connection breaks.
const RECOVERY_R2TS_MAX: u32 = 64;

/// A numbered PDU of the target, for when it comes again.
#[derive(Clone, Copy, Debug)]
struct Numbered {
    image: Image,
    /// First byte behind its data, of Data-In.
    end: u32,
}

/// What the session agreed on, and how long its target waits for data.
pub(super) type Rules<'a> = (&'a SessionParams, Duration);

#[derive(Debug)]
pub(super) struct TaskCheck {
    pub(super) link: Link,
    pub(super) lun: Lun,
    pub(super) cmd_sn: CmdSn,
    /// The command PDU.
    pub(super) image: Image,
    read: bool,
    write: bool,
    expected: u32,
    unsolicited: Option<Sequence>,
    /// Unsolicited data once more, after a command that was not missing.
    repeated: Option<Sequence>,
    asked: Vec<Sequence>,
    /// End of what was sent unasked or asked for.
    asked_to: u32,
    had_unsolicited: bool,
    /// Some data came in the command PDU.
    pub(super) had_immediate: bool,
    /// Data-Out that the target can have: ranges.
    intact: Ranges,
    next_target_sn: u32,
    numbered: BTreeMap<u32, Numbered>,
    /// Numbered PDUs that were asked for again.
    again: Asked,
    /// Data-In that has arrived.
    arrived: BTreeSet<u32>,
    /// Data-In before this was acknowledged, or will not be asked for.
    acked: u32,
    /// The tag of DataACKs.
    ack_ttt: Option<Ttt>,
    /// Bytes of Data-In, and in the sequence that is open.
    data_in: u32,
    burst: u32,
    /// Bytes of Data-In since an acknowledgement was asked for.
    unasked: u32,
    is_final: bool,
    /// It has just been reassigned: what comes next begins anew.
    resumed: bool,
    /// It was reassigned, however long ago.
    moved: bool,
    /// A task management function is on its way that may end it: its buffer may be free already.
    pub(super) ending: bool,
    /// Some of its data was damaged on the way to the target.
    pub(super) data_damaged: bool,
    /// The StatSN of its status.
    pub(super) stat_sn: Option<StatSn>,
    /// Status was sent, or a task management function has ended it.
    pub(super) over: bool,
    pub(super) over_by_management: bool,
    /// The initiator has been told so.
    pub(super) end_is_known: bool,
}

impl TaskCheck {
    pub(super) fn new(
        sight: Sight,
        command: &ScsiCommand,
        params: &SessionParams,
    ) -> Result<Self, String> {
        let data_len = sight.data_len;
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
        let mut intact = Ranges::default();
        if sight.intact {
            intact.add(0, data_len);
        }
        Ok(Self {
            link: sight.link,
            lun: command.lun,
            cmd_sn: command.cmd_sn,
            image: sight.image,
            read: command.read,
            write: command.write,
            expected,
            unsolicited: (!command.is_final).then_some(Sequence::new(
                Ttt::NONE,
                data_len,
                first,
                sight.at,
            )),
            repeated: None,
            asked: Vec::new(),
            asked_to: if command.is_final { data_len } else { first },
            had_unsolicited: !command.is_final,
            had_immediate: data_len > 0,
            intact,
            next_target_sn: 0,
            numbered: BTreeMap::new(),
            again: Asked::default(),
            arrived: BTreeSet::new(),
            acked: 0,
            ack_ttt: None,
            data_in: 0,
            burst: 0,
            unasked: 0,
            is_final: true,
            resumed: false,
            moved: false,
            ending: false,
            data_damaged: false,
            stat_sn: None,
            over: false,
            over_by_management: false,
            end_is_known: false,
        })
    }

    /// The command was not complete with its first PDU.
    pub(super) fn needed_more_data(&self) -> bool {
        self.moved
            || self.had_unsolicited
            || self.data_damaged
            || self.next_target_sn > 0 && self.write
    }

    /// This R2T is a new one for data that was asked for before.
    pub(super) fn asks_again(&self, pdu: &R2t) -> bool {
        pdu.r2t_sn.0 >= self.next_target_sn && pdu.buffer_offset < self.asked_to
    }

    pub(super) const fn resumes(&self) -> bool {
        self.resumed
    }

    /// It is, or is to be, reassigned.
    pub(super) const fn has_moved(&self) -> bool {
        self.moved
    }

    pub(super) const fn is_write(&self) -> bool {
        self.write
    }

    /// This new task may be the `old` one.
    pub(super) fn perhaps(mut self, old: &mut Self) -> Self {
        self.next_target_sn = old.next_target_sn;
        self.numbered = std::mem::take(&mut old.numbered);
        self.arrived = std::mem::take(&mut old.arrived);
        self.ending = old.ending;
        (self.resumed, self.moved) = (true, true);
        self
    }

    /// The command was sent again although the target had it.
    pub(super) fn repeat(&mut self, sight: Sight, command: &ScsiCommand, params: &SessionParams) {
        let first = self.expected.min(params.first_burst_length);
        let sequence = Sequence::new(Ttt::NONE, sight.data_len, first, sight.at);
        self.repeated = (!command.is_final).then_some(sequence);
    }

    pub(super) fn data_out(&mut self, pdu: &DataOut, sight: Sight) -> Verdict {
        let len = sight.data_len;
        ensure!(!self.end_is_known, "data of a task that has ended, as the initiator knows");
        let sequence = match pdu.ttt {
            Ttt::NONE => {
                let unsolicited = self.repeated.as_mut().or(self.unsolicited.as_mut());
                unsolicited.ok_or("unsolicited data not announced")?
            }
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
        sequence.moved = sight.at;
        sequence.next_offset += len;
        let complete = sequence.next_offset == sequence.end;
        ensure!(pdu.is_final == complete, "F bit does not fit the end of the sequence");
        if complete && pdu.ttt == Ttt::NONE {
            match self.repeated.is_some() {
                true => self.repeated = None,
                false => self.unsolicited = None,
            }
        }
        self.asked.retain(|sequence| sequence.next_offset < sequence.end);
        if sight.intact {
            self.intact.add(offset, offset + len);
        }
        Ok(())
    }

    /// A new R2T.
    pub(super) fn r2t(
        &mut self,
        pdu: &R2t,
        sight: Sight,
        rules: Rules<'_>,
        coverage: &mut Coverage,
    ) -> Verdict {
        let (params, _) = rules;
        self.is_live()?;
        ensure!(self.write, "R2T for a command that does not write");
        let next = self.next_target_sn;
        ensure!(pdu.r2t_sn.0 == next || self.resumed, "R2TSN, expected {next}");
        // R2Ts that waited on the connection that was lost have had their numbers.
        let waited = u32::from(params.max_outstanding_r2t) + RECOVERY_R2TS_MAX;
        ensure!(pdu.r2t_sn.0 <= next + waited, "R2TSN, expected about {next}");
        let (offset, len) = (pdu.buffer_offset, pdu.desired_data_transfer_length);
        ensure!(len > 0 && len <= params.max_burst_length, "length 0 or beyond MaxBurstLength");
        ensure!(offset <= self.expected && len <= self.expected - offset, "beyond the command");
        ensure!(pdu.ttt != Ttt::NONE, "reserved tag");
        ensure!(self.asked.iter().all(|sequence| sequence.ttt != pdu.ttt), "tag is in use");
        let end = offset + len;
        let is_recovery = offset != self.asked_to;
        if is_recovery || self.resumed {
            ensure!(params.error_recovery_level > 0, "offset, expected {}", self.asked_to);
            ensure!(offset <= self.asked_to, "offset, expected {} at most", self.asked_to);
            if self.intact.holds(offset, end) {
                coverage.hit("recovery R2T for data under way");
            }
            coverage.hit(if self.resumed {
                "pdu: R2T after reassignment"
            } else {
                "pdu: recovery R2T"
            });
            let hit =
                |sequence: &&mut Sequence| sequence.next_offset < end && offset < sequence.end;
            self.asked.iter_mut().filter(hit).for_each(|sequence| sequence.superseded = true);
            // The end of a sequence may have been lost with the rest of it.
            self.asked.iter_mut().filter(|s| s.end <= end).for_each(|s| s.superseded = true);
        } else {
            ensure!(self.unsolicited.is_none(), "R2T before the end of unsolicited data");
        }
        let live = self.asked.iter().filter(|s| s.is_outstanding(sight.at, rules)).count();
        ensure!(live < usize::from(params.max_outstanding_r2t), "more R2Ts than MaxOutstandingR2T");
        self.asked_to = self.asked_to.max(end);
        self.next_target_sn = pdu.r2t_sn.0 + 1;
        self.numbered.insert(pdu.r2t_sn.0, Numbered { image: sight.image, end });
        self.asked.push(Sequence::new(pdu.ttt, offset, end, sight.at));
        self.resumed = false;
        Ok(())
    }

    /// A new Data-In.
    pub(super) fn data_in(
        &mut self,
        pdu: &DataIn,
        sight: Sight,
        params: &SessionParams,
    ) -> Verdict {
        let len = sight.data_len;
        self.is_live()?;
        ensure!(self.read, "Data-In for a command that does not read");
        if self.resumed {
            self.rewind(pdu.data_sn.0)?;
        }
        let data_sn = self.next_target_sn;
        ensure!(pdu.data_sn.0 == data_sn, "DataSN, expected {data_sn}");
        self.next_target_sn += 1;
        ensure!(pdu.buffer_offset == self.data_in, "offset, expected {}", self.data_in);
        ensure!(len <= self.expected - self.data_in, "beyond the command's {}", self.expected);
        self.unasked += len;
        if pdu.acknowledge {
            let unasked = std::mem::take(&mut self.unasked);
            ensure!(unasked >= params.max_burst_length, "A bit after {unasked} bytes");
            ensure!(params.error_recovery_level > 0, "A bit at error recovery level 0");
            ensure!(pdu.ttt != Ttt::NONE && pdu.lun == self.lun, "A bit without tag or LUN");
            self.ack_ttt = Some(pdu.ttt);
        }
        self.data_in += len;
        self.burst += len;
        ensure!(self.burst <= params.max_burst_length, "sequence beyond MaxBurstLength");
        self.is_final = pdu.is_final;
        if pdu.is_final {
            self.burst = 0;
        }
        self.numbered.insert(data_sn, Numbered { image: sight.image, end: self.data_in });
        if let Some(status) = pdu.status {
            self.status(status.status, status.residual)?;
            self.stat_sn = Some(pdu.stat_sn);
        }
        Ok(())
    }

    /// After a reassignment data comes from what was acknowledged on, or all of it (§7.2.2).
    fn rewind(&mut self, data_sn: u32) -> Verdict {
        ensure!(
            data_sn == self.acked || data_sn == 0,
            "DataSN after reassignment, {} was acknowledged",
            self.acked
        );
        let before = data_sn.checked_sub(1).and_then(|last| self.numbered.get(&last));
        self.data_in = before.map_or(0, |numbered| numbered.end);
        self.next_target_sn = data_sn;
        self.numbered.split_off(&data_sn);
        self.arrived.split_off(&data_sn);
        (self.burst, self.unasked) = (0, 0);
        self.resumed = false;
        Ok(())
    }

    /// A numbered PDU that has been here before. `Ok(false)` if it is new.
    pub(super) fn is_again(
        &mut self,
        sn: u32,
        image: Image,
        proactive: bool,
    ) -> Result<bool, String> {
        if sn >= self.next_target_sn || self.resumed {
            return Ok(false);
        }
        ensure!(self.again.answer(sn) || proactive, "number {sn} again, and nobody asked for it");
        let first = self.numbered.get(&sn).ok_or("a number again that was given up")?;
        ensure!(first.image == image, "number {sn} again, but not the same");
        Ok(true)
    }

    pub(super) fn response(
        &mut self,
        pdu: &ScsiResponse,
        at: Instant,
        rules: Rules<'_>,
    ) -> Verdict {
        self.is_live()?;
        let open = self.asked.iter().chain(&self.unsolicited).any(|s| s.is_outstanding(at, rules));
        ensure!(!open, "status while data is outstanding");
        // R2Ts share the series; without Data-In there is nothing that could be missed.
        let sent = if self.data_in > 0 { self.next_target_sn } else { 0 };
        ensure!(
            pdu.exp_data_sn == sent || self.resumed,
            "ExpDataSN, {sent} R2T and Data-In PDUs were sent"
        );
        self.resumed = false;
        self.stat_sn = Some(pdu.stat_sn);
        self.status(pdu.status, pdu.residual)
    }

    fn status(&mut self, status: u8, residual: Residual) -> Verdict {
        self.over = true;
        ensure!(self.is_final, "status after a sequence of Data-In that has not ended");
        if status != 0 {
            return Ok(());
        }
        let moved = if self.write { self.asked_to } else { self.data_in };
        if self.write {
            ensure!(self.intact.holds(0, moved), "good status, and some of the data never came");
        }
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

    pub(super) fn data_snack(&mut self, from: u32, run: u32, intact: bool) -> Verdict {
        let next = self.next_target_sn;
        let all = from == 0 && run == 0;
        let from = if all { self.acked } else { from };
        let to = if run == 0 { Some(next) } else { from.checked_add(run) };
        ensure!(from >= self.acked, "SNACK for what was acknowledged: {} is next", self.acked);
        let to = to.filter(|to| *to <= next);
        let to = to.ok_or_else(|| format!("SNACK for what was never sent: {next} is next"))?;
        if intact {
            self.again.ask(from, to);
        }
        Ok(())
    }

    pub(super) fn asks_ack(&self, ttt: Ttt) -> bool {
        self.ack_ttt == Some(ttt)
    }

    pub(super) fn data_ack(&mut self, up_to: u32, intact: bool) -> Verdict {
        ensure!(up_to <= self.next_target_sn, "DataACK of what was never sent");
        let missing = (self.acked..up_to).find(|sn| !self.arrived.contains(sn));
        ensure!(missing.is_none(), "DataACK beyond a hole: {missing:?}");
        if intact {
            self.acked = self.acked.max(up_to);
        }
        Ok(())
    }

    pub(super) fn data_in_arrived(&mut self, data_sn: u32) {
        self.arrived.insert(data_sn);
    }

    /// Another connection is to take it over. The target may execute it there before its answer to
    /// that is on the way, and behind commands of that connection that came later: its turn came
    /// while nobody could execute it, and all commands here are SIMPLE, which a device server may
    /// execute in any order (SAM-5 §8.6.2). That ORDERED ones keep their place is checked beside
    /// the session.
    pub(super) fn may_move(&mut self) {
        self.moved = true;
    }

    /// The target goes on with it on another connection. `exp_data_sn`: what came before that is
    /// acknowledged.
    pub(super) fn reassign(&mut self, link: Link, exp_data_sn: u32) -> Verdict {
        self.link = link;
        if self.read && exp_data_sn > 0 {
            let missing = (self.acked..exp_data_sn).find(|sn| !self.arrived.contains(sn));
            ensure!(missing.is_none(), "ExpDataSN beyond a hole: {missing:?}");
            self.acked = self.acked.max(exp_data_sn);
        }
        self.unsolicited = None;
        self.repeated = None;
        self.asked.clear();
        self.again.clear();
        self.is_final = true;
        self.stat_sn = None;
        self.over = false;
        (self.resumed, self.moved) = (true, true);
        Ok(())
    }

    /// An R2T with this tag is outstanding.
    pub(super) fn is_asked(&self, ttt: Ttt) -> bool {
        self.asked.iter().any(|sequence| sequence.ttt == ttt)
    }

    pub(super) fn has_superseded(&self) -> bool {
        self.asked.iter().any(|sequence| sequence.superseded)
    }

    /// Bytes asked for that have not been sent.
    pub(super) fn outstanding(&self) -> u64 {
        let live = self.asked.iter().filter(|sequence| !sequence.superseded);
        live.map(|sequence| u64::from(sequence.end - sequence.next_offset)).sum()
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
