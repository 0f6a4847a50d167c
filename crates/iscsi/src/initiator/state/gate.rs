//! Which commands go out now and which wait: for a session, for room in the target's queue, for the
//! limits of what is unflushed and of what we may take.

use block::{BlockError, Buf};
use iscsi_proto::initiator::durability::{Admission, Effect, Ended};
use iscsi_proto::initiator::{Candidate, Command, SubmitError};
use iscsi_proto::time::Instant;

use super::{Batch, Phase, State, command};
use crate::initiator::cdb;
use crate::initiator::member::Member;
use crate::initiator::op::{Asked, Origin, Slot, Task};

/// Payload that an open connection may have under way while others are still being opened, in
/// bytes: what goes over one that has just begun in two or three round trips (RFC 6928). More would
/// stand behind it when the others could carry it.
const GATHERING_BYTES: u64 = 64 << 10;

impl State {
    /// Sends a user's command now, or keeps it for later.
    pub(in crate::initiator) fn enqueue(
        &mut self,
        command: Command,
        task: Task,
        batch: &mut Batch,
    ) {
        if let Some(error) = self.refusal() {
            return batch.failed.push((task.slot, error));
        }
        let volatile = matches!(task.effect, Effect::Volatile(..));
        let paced = self.throttle.is_set() && {
            let now = self.now();
            !self.waiting.is_empty() || self.throttle.holds(now)
        };
        batch.timers |= paced;
        let in_order = volatile || self.is_ordered;
        let held = paced || self.has_to_wait(&task) || (in_order && !self.waiting.is_empty());
        if self.phase != Phase::Up || self.is_full() || held {
            self.waiting.push_back((command, task));
            self.flush_if_needed(batch);
        } else {
            self.submit_anywhere(command, task, batch);
        }
    }

    /// It would be too much to keep, or might be overtaken.
    fn has_to_wait(&self, task: &Task) -> bool {
        self.durability.admit(&task.effect) == Admission::Wait
            || self.is_behind_abandoned(&task.effect)
    }

    /// Commands that are under way or wait.
    pub(in crate::initiator) fn commands(&self) -> usize {
        self.in_flight + self.waiting.len()
    }

    /// As much is under way as may be. One command always may.
    fn is_full(&self) -> bool {
        let holds = |limit: Option<u64>, bytes: fn(&Candidate) -> u64| {
            limit.is_some_and(|limit| self.in_flight > 0 && self.sum(bytes) >= limit)
        };
        self.in_flight >= self.limit
            || holds(self.window, under_way)
            || holds(self.gathering(), |load| load.outstanding_bytes)
    }

    /// The first number of connections is there at this time at the latest, unless packets are
    /// lost.
    pub(in crate::initiator) fn gather(&mut self, until: Instant) {
        self.gathers_until = until;
    }

    /// What may be under way while the first connections come in, in bytes. Commands go out as soon
    /// as one connection is there, but not all of them over that one.
    fn gathering(&self) -> Option<u64> {
        let gathers = self.connections_opening() > 0 && self.now() < self.gathers_until;
        gathers.then(|| GATHERING_BYTES * u64::from(self.connections_open()))
    }

    /// The sum over all connections.
    fn sum(&self, bytes: fn(&Candidate) -> u64) -> u64 {
        let connections = |member: &Member| {
            let load = |(id, _)| member.session.load(id).map_or(0, |load| bytes(&load));
            member.active().map(load).sum::<u64>()
        };
        self.members.iter().map(connections).sum()
    }

    /// Limits what may be under way, and sends what may go now.
    pub(in crate::initiator) fn set_window(&mut self, window: Option<u64>, batch: &mut Batch) {
        self.window = window;
        self.go_on(batch);
    }

    /// Sends a command on the session that should have it done first; if there is none, it is the
    /// first of those that wait.
    fn submit_anywhere(&mut self, command: Command, task: Task, batch: &mut Batch) {
        let open = self.members.iter().enumerate().filter(|(_, m)| m.is_usable());
        let bytes = command.data_out.len() as u64 + u64::from(command.data_in_len);
        let expected = open.filter_map(|(index, m)| Some((index, m.session.completion(bytes)?)));
        let best = expected.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index);
        match best {
            Some(index) => {
                if let Err((command, task)) = self.submit(index, command, task, batch) {
                    self.waiting.push_front((command, task));
                }
            }
            None => self.waiting.push_front((command, task)),
        }
    }

    /// Sends a command on one session. `Err` hands it back if the session takes none now.
    #[allow(clippy::result_large_err)] // handed back by value, as it was given
    pub(in crate::initiator) fn submit(
        &mut self,
        index: usize,
        mut command: Command,
        mut task: Task,
        batch: &mut Batch,
    ) -> Result<(), (Command, Task)> {
        if self.is_ordered && task.origin.is_user() {
            command.cdb = cdb::with_naca(command.cdb);
        }
        // The last session ended while its connection was filling the buffer.
        if command.data_in_len > 0 && task.buf.is_none() {
            task.buf = Some(Buf::zeroed(command.data_in_len as usize));
        }
        let Some(member) = self.members.get_mut(index) else { return Err((command, task)) };
        // A flush covers what is acknowledged by the time it is sent.
        // It may have been sent before, in a session that was lost; the mark may only move on.
        self.durability.sent(&task.effect, &mut task.ticket);
        let bytes = command.data_out.len() as u64 + u64::from(command.data_in_len);
        let may_be_aborted = self.limits.aborts_reads
            && task.origin == Origin::User
            && matches!(task.effect, Effect::None)
            && command.data_in_len > 0;
        let slot = may_be_aborted.then(|| task.slot.clone());
        task.slot.set_under_way(true);
        match member.session.submit(command, task) {
            Ok(itt) => {
                if let Some(slot) = slot {
                    slot.set_place(index, itt);
                }
                self.in_flight += 1;
                if self.throttle.counts() {
                    self.throttle.spend(bytes, Instant(self.epoch.elapsed()));
                }
                member.collect_wakes(None, &mut batch.wakers);
                Ok(())
            }
            Err((SubmitError::Transfer, _, mut task)) => {
                task.slot.set_under_way(false);
                self.durability.undone(&mut task.ticket);
                let error = BlockError::Unsupported("a transfer of this length");
                batch.failed.push((task.slot, error));
                Ok(())
            }
            Err((_, command, mut task)) => {
                task.slot.set_under_way(false);
                self.durability.undone(&mut task.ticket);
                Err((command, task))
            }
        }
    }

    /// Sends what may go out now: commands that wait, and a flush if too much is unflushed.
    pub(super) fn go_on(&mut self, batch: &mut Batch) {
        if self.phase != Phase::Up {
            return;
        }
        self.flush_if_needed(batch);
        while !self.is_full() {
            match self.waiting.front() {
                Some(_)
                    if self.throttle.is_set()
                        && self.throttle.holds(Instant(self.epoch.elapsed())) =>
                {
                    batch.timers = true;
                    return;
                }
                Some((_, task)) if !self.has_to_wait(task) => {}
                _ => return,
            }
            let Some((command, mut task)) = self.waiting.pop_front() else { return };
            task.submitted_at = self.now();
            let waiting = self.waiting.len();
            self.submit_anywhere(command, task, batch);
            if self.waiting.len() > waiting {
                return; // no session takes commands; it is back in the queue
            }
        }
    }

    /// Sends a flush of our own if too much is unflushed.
    fn flush_if_needed(&mut self, batch: &mut Batch) {
        let is_held =
            |(_, task): &(Command, Task)| self.durability.admit(&task.effect) == Admission::Wait;
        let writes_wait = self.waiting.front().is_some_and(is_held);
        if self.phase != Phase::Up || !self.durability.wants_own_flush(writes_wait) {
            return;
        }
        let Some(index) = self.members.iter().position(Member::is_usable) else { return };
        let task = Box::new(Asked {
            slot: Slot::new(&Effect::Flushed),
            origin: Origin::Trim,
            buf: None,
            effect: Effect::Flushed,
            ticket: self.durability.own_flush_sent(),
            ended: Ended::Good,
            attempts: 0,
            asked_at: self.now(),
            submitted_at: self.now(),
            cmd_sn: None,
        });
        let command = command(self.lun, cdb::synchronize_cache());
        if let Err((_, mut task)) = self.submit(index, command, task, batch) {
            self.durability.own_flush_undone(&mut task.ticket);
        }
    }
}

/// What of a connection's commands is under way at least. They count as a whole until they are
/// done, and the one whose data are coming may be done as good as: without another behind it the
/// connection would rest for a round trip.
fn under_way(load: &Candidate) -> u64 {
    load.outstanding_bytes - load.outstanding_bytes / u64::from(load.in_flight.max(1))
}
