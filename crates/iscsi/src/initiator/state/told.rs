//! What the target's answers and messages mean for what is kept and for what goes out again, noted
//! under the lock and before anybody is told.

use std::collections::VecDeque;
use std::io::ErrorKind;

use block::BlockError;
use iscsi_proto::initiator::durability::{Cache, Effect, Ended};
use iscsi_proto::initiator::{Command, TaskOutcome};

use super::{Batch, Phase, State, abandoned, is_done, session_ended, verdict};
use crate::initiator::failure::Failure;
use crate::initiator::member::Part;
use crate::initiator::op::{Origin, Task};
use crate::initiator::rejoin::Backoff;
use crate::initiator::sense::{Sense, UNIT_ATTENTION, Verdict, status};

impl State {
    /// Commands have come back without an answer; the last of each says whether the target may have
    /// carried it out. True: the incarnation is to end.
    pub(super) fn note_returned(
        &mut self,
        returned: Vec<(Command, Task, bool)>,
        batch: &mut Batch,
    ) -> bool {
        let mut is_to_end = false;
        for (command, mut task, sent) in returned {
            self.in_flight -= 1;
            abandoned::note_returned(&mut self.abandoned, &task.slot);
            let ticket = &mut task.ticket;
            match (task.origin, sent) {
                (Origin::Trim, true) => is_to_end |= self.durability.own_flush_unanswered(ticket),
                (Origin::Trim, false) => self.durability.own_flush_undone(ticket),
                (_, true) => is_to_end |= self.durability.unanswered(ticket),
                (_, false) => self.durability.undone(ticket),
            }
            self.send_again(command, task, batch);
        }
        is_to_end
    }

    /// A command of which nothing is known goes out again, if anybody wants it.
    fn send_again(&mut self, command: Command, task: Task, batch: &mut Batch) {
        let is_over = self.dropping || self.dies() || self.phase == Phase::Closed;
        let goes_on = !is_over && !task.slot.is_abandoned();
        match task.origin.is_user() && goes_on {
            true => self.requeued.push((command, task)),
            false => batch.failed.push((task.slot, session_ended())),
        }
    }

    /// Commands that came back although their session goes on: they go out again first.
    pub(super) fn requeue(&mut self) {
        for (command, mut task) in std::mem::take(&mut self.requeued).into_iter().rev() {
            task.attempts += 1;
            self.waiting.push_front((command, task));
        }
    }

    /// Notes what ended commands and messages mean for what is kept, before anybody is told. Why
    /// the incarnation is to end, if it is: the unit was powered on.
    pub(super) fn note_told(
        &mut self,
        index: usize,
        finished_before: usize,
        senses: Vec<Sense>,
        batch: &mut Batch,
    ) -> Option<String> {
        let mut finished = std::mem::take(&mut batch.finished);
        let mut ended = self.note_finished(index, &mut finished[finished_before..], batch);
        let counts = |(_, task, _): &(Command, Task, TaskOutcome)| {
            matches!(task.ended, Ended::Good | Ended::Failed(_))
        };
        if finished[finished_before..].iter().all(counts) {
            batch.finished = finished;
        } else {
            let latest = finished.split_off(finished_before);
            batch.finished = finished;
            latest.into_iter().for_each(|ended| self.settle(ended, batch));
        }
        self.settle_held(batch);
        for sense in senses {
            ended = ended.or(self.note_sense(index, sense, batch));
        }
        ended
    }

    /// What was held may count now.
    fn settle_held(&mut self, batch: &mut Batch) {
        for (command, mut task, outcome) in std::mem::take(&mut self.held) {
            task.ended = self.durability.done(&task.effect, &mut task.ticket);
            self.settle((command, task, outcome), batch);
        }
    }

    fn settle(&mut self, ended: (Command, Task, TaskOutcome), batch: &mut Batch) {
        match ended.1.ended {
            Ended::Good | Ended::Failed(_) => batch.finished.push(ended),
            Ended::Held => self.held.push(ended),
            Ended::Again => self.send_again(ended.0, ended.1, batch),
        }
    }

    /// Notes what ended commands mean for what is kept. Why the incarnation is to end, if it is.
    fn note_finished(
        &mut self,
        index: usize,
        finished: &mut [(Command, Task, TaskOutcome)],
        batch: &mut Batch,
    ) -> Option<String> {
        let mut ended = None;
        let now = if finished.is_empty() { self.progress_at } else { self.now() };
        for (_, task, outcome) in finished {
            let told = self.note_attention(index, outcome, batch);
            ended = ended.or(told).or_else(|| self.is_fatal_to_end(task, outcome));
            let done = is_done(outcome);
            match task.origin {
                Origin::Trim => self.note_own_flush(task, outcome, batch),
                Origin::User | Origin::UserShort if done => {
                    self.carried = true;
                    self.progress_at = now;
                    self.members[index].backoff = Backoff::default();
                    task.ended = self.durability.done(&task.effect, &mut task.ticket);
                }
                Origin::User | Origin::UserShort => match verdict(task, outcome) {
                    Verdict::Failed(error) => self.note_failed(task, &error),
                    _ => self.durability.undone(&mut task.ticket),
                },
                _ => {}
            }
            if done {
                self.note_calm();
            }
        }
        ended
    }

    fn note_failed(&mut self, task: &mut Task, error: &BlockError) {
        let what = match (&task.effect, error) {
            (_, BlockError::Unsupported(_)) => return self.durability.undone(&mut task.ticket),
            (Effect::Flushed, _) => "a flush failed",
            // Refused as it is, whatever else is in the cache: an address, a reservation.
            (_, BlockError::Medium(error)) if error.kind() == ErrorKind::InvalidInput => {
                return self.durability.undone(&mut task.ticket);
            }
            (_, BlockError::Fenced) => return self.durability.undone(&mut task.ticket),
            (_, BlockError::Medium(_) | BlockError::NoSpace) => "an earlier forced write failed",
            _ => return self.durability.undone(&mut task.ticket),
        };
        let failure = Failure::new(what, error);
        self.durability.failed(&task.effect, &mut task.ticket, failure);
    }

    /// A unit attention is told once, to whichever command comes first.
    fn note_attention(
        &mut self,
        index: usize,
        outcome: &TaskOutcome,
        batch: &mut Batch,
    ) -> Option<String> {
        let TaskOutcome::Completed { status: status::CHECK_CONDITION, sense, .. } = outcome else {
            return None;
        };
        self.note_sense(index, Sense::parse(sense), batch)
    }

    fn note_sense(&mut self, index: usize, sense: Sense, batch: &mut Batch) -> Option<String> {
        self.attentions += u64::from(sense.key == UNIT_ATTENTION);
        if sense.is_changed() {
            // Until the unit has been asked, its cache may be volatile from now on.
            self.durability.set_cache(Cache::Unknown);
            self.unit_changed = true;
            batch.changed = true;
        }
        // Every new nexus is told so. A real power-on the other sessions hear of as well.
        let is_new = self.members[index].part == Part::Joining;
        if is_new {
            return None;
        }
        let powered_on = sense.is_power_on() && self.durability.power_on();
        match powered_on {
            true => Some("target was powered on".to_string()),
            false => self.is_fatal_to_hear(sense),
        }
    }

    fn note_own_flush(&mut self, task: &mut Task, outcome: &TaskOutcome, batch: &mut Batch) {
        match verdict(task, outcome) {
            Verdict::Done => self.durability.own_flush_done(task.ticket),
            Verdict::Failed(BlockError::Unsupported(_)) => {
                tracing::warn!("target cannot flush: unflushed writes are not kept");
                self.durability.undone(&mut task.ticket);
                self.durability.no_flush();
            }
            Verdict::Failed(error) => {
                let failure = Failure::new("an earlier flush failed", &error);
                tracing::error!(%error, "target cannot flush: the next flush will tell");
                if self.durability.own_flush_failed(&mut task.ticket, failure.clone()) {
                    self.fail_waiting_writes(&failure, batch);
                }
            }
            Verdict::Again(_) | Verdict::Later(_) | Verdict::Full(_) => {
                self.durability.own_flush_undone(&mut task.ticket);
            }
        }
    }

    /// No more can be kept, and no flush makes room.
    fn fail_waiting_writes(&mut self, failure: &Failure, batch: &mut Batch) {
        let is_held = |(_, task): &(Command, Task)| matches!(task.effect, Effect::Volatile(..));
        let (held, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(is_held);
        self.waiting = waiting;
        let held: VecDeque<(Command, Task)> = held;
        batch.failed.extend(held.into_iter().map(|(_, t)| (t.slot, failure.clone().into())));
    }
}
