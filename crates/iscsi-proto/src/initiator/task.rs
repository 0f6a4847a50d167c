//! Tasks of a session and the slab that turns an ITT into one in constant time.
//!
//! An ITT is a slot number and that slot's generation. A tag from a finished task therefore never
//! finds the slot's next user, however late the target repeats it.

use bytes::{Bytes, BytesMut};

use super::event::Violation;
use super::inbound::{Inbound, Run, remove};
use super::{Command, ConnectionId};
use crate::ids::{Itt, Lun, Ttt};
use crate::pdu::{LogoutReason, TaskManagementFunction};
use crate::serial::{CmdSn, R2tSn};
use crate::time::Instant;

/// Tasks of one session at once. The low 16 bits of an ITT hold the slot; the last value stays
/// unused so that no tag equals the reserved 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.8
//# An ITT value of 0xffffffff is reserved and MUST NOT be assigned for a task by the initiator.
pub const TASKS_MAX: usize = 0xffff;

/// Recovery R2Ts of one command. A link that damages so much of one command's data is not worth its
/// connection, and a target that asks for ever must come to an end.
const RECOVERY_R2TS_MAX: u16 = 1024;

/// Answers to R2Ts that may wait beside the agreed number while data is recovered: the target may
/// ask again for what is still on its way (§7.1.4.1).
const R2TS_BESIDE: u16 = 8;

/// Separate runs of missing R2Ts of one command.
const R2T_RUNS_MAX: usize = 64;

/// One task: anything that carries an ITT.
#[derive(Debug)]
pub(super) struct Task<T> {
    /// Position in the order of submission.
    pub(super) order: u64,
    /// The connection it is bound to (§4.2.3.1).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
    //# If an initiator issues a write command, the initiator MUST send the data, if any, for that
    //# command over the same TCP connection that was used to deliver the SCSI command.
    pub(super) connection: ConnectionId,
    /// CmdSN, assigned when first transmitted.
    pub(super) cmd_sn: Option<CmdSn>,
    /// Since when the answer to a function or a piece of text is awaited.
    pub(super) asked_at: Option<Instant>,
    /// What it does.
    pub(super) kind: Kind<T>,
}

impl<T> Task<T> {
    /// Some of it was handed out for transmission.
    pub(super) fn is_sent(&self) -> bool {
        self.cmd_sn.is_some()
    }
}

#[derive(Debug)]
pub(super) enum Kind<T> {
    Command(CommandTask<T>),
    Management(Management),
    Ping {
        sent_at: Option<Instant>,
    },
    /// `of` is the connection to be closed; another one than the request's for recovery (§11.14.3).
    Logout {
        reason: LogoutReason,
        of: ConnectionId,
    },
    Text(TextTask),
    /// A NOP-Out that fills the hole a refused command left in CmdSN (§7.3).
    Plug,
}

/// A SCSI command and how far its data phases are.
#[derive(Debug)]
pub(super) struct CommandTask<T> {
    pub(super) command: Command,
    pub(super) context: T,
    /// When it, or data of it, last went out or came in; meaningless before it was sent.
    pub(super) moved_at: Instant,
    /// Read data so far.
    pub(super) inbound: Inbound,
    /// R2TSN of the next R2T.
    pub(super) r2t_sn: R2tSn,
    /// R2TSN below it that have not come.
    pub(super) r2t_missing: Vec<Run>,
    /// End of the Data-Out bytes that were sent, or asked for and queued.
    pub(super) solicited: u32,
    /// R2Ts whose data is not completely sent.
    pub(super) r2t_outstanding: u16,
    recovery_r2ts: u16,
    /// Times it was sent again as it was.
    pub(super) retries: u8,
    /// The target does not send its data again: it ends without it.
    pub(super) unrecoverable: bool,
    /// It has moved to another connection: the first R2T there has any number, because those that
    /// the target had made and not sent were lost with the old one.
    renumbered: bool,
    /// It is being aborted: no more of its data is sent (FastAbort, §4.2.3.4).
    pub(super) stopped: bool,
    /// ABORT TASK was sent for it: the target may count its CmdSN as received (§11.6.1).
    pub(super) abort_sent: bool,
}

impl<T> CommandTask<T> {
    pub(super) fn new(command: Command, context: T) -> Self {
        Self {
            command,
            context,
            moved_at: Instant::default(),
            inbound: Inbound::default(),
            r2t_sn: R2tSn(0),
            r2t_missing: Vec::new(),
            solicited: 0,
            r2t_outstanding: 0,
            recovery_r2ts: 0,
            retries: 0,
            unrecoverable: false,
            renumbered: false,
            stopped: false,
            abort_sent: false,
        }
    }

    /// Nothing of it has happened at the target: all data phases start anew.
    pub(super) fn restart(&mut self) {
        self.inbound = Inbound::default();
        self.r2t_sn = R2tSn(0);
        self.r2t_missing.clear();
        (self.solicited, self.r2t_outstanding) = (0, 0);
        self.renumbered = false;
    }

    /// The target has said something about it that only one who has it can say.
    pub(super) fn has_begun(&self) -> bool {
        self.inbound.next() > 0 || self.r2t_sn.0 > 0
    }

    /// It goes on elsewhere: the target asks anew for the data that it lacks (§7.2.2).
    pub(super) fn move_on(&mut self) {
        self.r2t_missing.clear();
        self.r2t_outstanding = 0;
        self.renumbered = true;
    }

    /// What of a run of numbers (first, how many) is missing still, from the first one that is.
    pub(super) fn first_missing(&self, (first, length): (u32, u32)) -> Option<(u32, u32)> {
        let end = first.saturating_add(length);
        let missing = self.inbound.missing().iter().chain(&self.r2t_missing);
        let begin = missing.filter(|run| run.1 > first).map(|run| run.0.max(first)).min()?;
        (begin < end).then(|| (begin, end - begin))
    }

    /// Takes an R2T's number: `None` if it has been here before, else the run that it shows to be
    /// missing.
    pub(super) fn number_r2t(
        &mut self,
        number: R2tSn,
        repairs: bool,
    ) -> Result<Option<Option<Run>>, Violation> {
        let next = self.r2t_sn;
        let renumbered = std::mem::take(&mut self.renumbered);
        if number == next {
            self.r2t_sn = next.next();
            return Ok(Some(None));
        }
        let violation = Violation::DataSn { got: number.0, expected: next.0 };
        // More R2Ts than bytes cannot have been sent, except to recover.
        let bytes = self.command.data_out.len() as u32; // checked by `submit`
        let limit = bytes.saturating_add(u32::from(RECOVERY_R2TS_MAX));
        if !repairs || number.0.saturating_sub(next.0) > limit {
            return Err(violation);
        }
        if renumbered {
            self.r2t_sn = number.next();
            return Ok(Some(None));
        }
        if number.0 < next.0 {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
            //# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts
            //# by the target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it
            //# MUST discard the duplicates.
            let new = remove(&mut self.r2t_missing, number.0);
            return Ok(new.then_some(None));
        }
        if self.r2t_missing.len() >= R2T_RUNS_MAX {
            return Err(violation);
        }
        self.r2t_sn = number.next();
        let run = (next.0, number.0);
        self.r2t_missing.push(run);
        Ok(Some(Some(run)))
    }

    /// Counts an R2T against its limits. `recovery`: it asks for what was asked for before.
    pub(super) fn admit_r2t(
        &mut self,
        agreed: u16,
        recovery: bool,
        repairs: bool,
    ) -> Result<(), Violation> {
        let room = if repairs { agreed.saturating_add(R2TS_BESIDE) } else { agreed };
        self.recovery_r2ts += u16::from(recovery);
        if self.r2t_outstanding >= room || self.recovery_r2ts > RECOVERY_R2TS_MAX {
            return Err(Violation::R2tUnexpected);
        }
        self.r2t_outstanding += 1;
        Ok(())
    }
}

/// A task management function under way.
#[derive(Debug)]
pub(super) struct Management {
    pub(super) function: TaskManagementFunction,
    pub(super) lun: Lun,
    /// The task to abort, or [`Itt::NONE`].
    pub(super) referenced: Itt,
    /// It was not asked for by the owner of the session, who learns of its tasks only.
    pub(super) silent: bool,
}

/// A text exchange under way: response so far.
#[derive(Debug)]
pub(super) struct TextTask {
    pub(super) request: Bytes,
    /// What the target wants back with the next request.
    pub(super) lun: Lun,
    pub(super) ttt: Ttt,
    pub(super) response: BytesMut,
}

/// Tasks by ITT.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    task: Option<Task<T>>,
}

impl<T> Slab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= TASKS_MAX
    }

    /// Stores a task; `None` when the slab is full.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.8
    //# While a task exists, this tag MUST uniquely identify the task session-wide.
    pub(super) fn insert(&mut self, task: Task<T>) -> Option<Itt> {
        if self.is_full() {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, task: None });
            (self.slots.len() - 1) as u16 // at most TASKS_MAX slots
        });
        let slot = &mut self.slots[usize::from(index)];
        slot.task = Some(task);
        Some(Itt(u32::from(slot.generation) << 16 | u32::from(index)))
    }

    fn slot(&self, itt: Itt) -> Option<usize> {
        let index = (itt.0 & 0xffff) as usize;
        let slot = self.slots.get(index)?;
        (slot.generation == (itt.0 >> 16) as u16 && slot.task.is_some()).then_some(index)
    }

    pub(super) fn get(&self, itt: Itt) -> Option<&Task<T>> {
        let index = self.slot(itt)?;
        self.slots[index].task.as_ref()
    }

    pub(super) fn get_mut(&mut self, itt: Itt) -> Option<&mut Task<T>> {
        let index = self.slot(itt)?;
        self.slots[index].task.as_mut()
    }

    pub(super) fn command_mut(&mut self, itt: Itt) -> Option<&mut CommandTask<T>> {
        match &mut self.get_mut(itt)?.kind {
            Kind::Command(command) => Some(command),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, itt: Itt) -> Option<Task<T>> {
        let index = self.slot(itt)?;
        let slot = &mut self.slots[index];
        let task = slot.task.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index as u16);
        Some(task)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Itt, &Task<T>)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let itt = Itt(u32::from(slot.generation) << 16 | index as u32);
            slot.task.as_ref().map(|task| (itt, task))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(order: u64) -> Task<()> {
        let kind = Kind::Ping { sent_at: None };
        Task { order, connection: ConnectionId(0), cmd_sn: None, asked_at: None, kind }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.8
    //= type=test
    //# While a task exists, this tag MUST uniquely identify the task session-wide.
    #[test]
    fn an_old_tag_never_finds_the_slots_next_user() {
        let mut slab = Slab::new();
        let first = slab.insert(ping(1)).unwrap();
        assert!(slab.remove(first).is_some());
        let second = slab.insert(ping(2)).unwrap();
        assert_ne!(first, second);
        assert!(slab.get(first).is_none() && slab.remove(first).is_none());
        assert_eq!(slab.get(second).unwrap().order, 2);
        assert!(slab.get(Itt::NONE).is_none());
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.8
    //= type=test
    //# An ITT value of 0xffffffff is reserved and MUST NOT be assigned for a task by the initiator.
    #[test]
    fn no_tag_is_the_reserved_one_and_the_limit_holds() {
        let mut slab = Slab::new();
        for order in 0..TASKS_MAX as u64 {
            assert_ne!(slab.insert(ping(order)).unwrap(), Itt::NONE);
        }
        assert!(slab.insert(ping(0)).is_none());
        assert_eq!(slab.len(), TASKS_MAX);
    }
}
