//! What the remote disk's lock protects: sessions of the present incarnation, commands that wait,
//! and what is acknowledged but not flushed. Bookkeeping only: whatever wakes somebody or runs a
//! caller's code is put into a [`Batch`] and done after the lock is released.

mod abandoned;
mod gate;
mod mortal;
mod ordering;
mod places;
mod told;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use block::BlockError;
use iscsi_proto::ids::Lun;
use iscsi_proto::initiator::durability::{Durability, Effect, Stage, Writers};
use iscsi_proto::initiator::{Command, ConnectionId, Event, TaskOutcome};
use iscsi_proto::pdu::{AsyncEvent, TaskAttribute};
use iscsi_proto::time::Instant;

use super::cdb;
use super::config::AfterLoss;
use super::failure::Failure;
use super::growth::Growth;
use super::member::{AsyncMessages, Member, Wakers};
use super::op::{Asked, Slot, Task};
use super::sense::{Sense, Verdict, judge, judge_stable, status};
use super::throttle::Throttle;
use places::Places;

/// Whether commands of the disk's user go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No session, or one that is still being probed: commands wait.
    Down,
    /// Commands go out.
    Up,
    /// Down for longer than the replacement timeout: commands fail with this reason.
    Unreachable(String),
    /// Closed by the user.
    Closed,
}

/// Limits that the user set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Commands at the target at once.
    pub(super) commands: usize,
    pub(super) command_timeout: Duration,
    pub(super) replacement_timeout: Duration,
    /// Connections to begin with.
    pub(super) connections: u32,
    /// Bytes that are kept of what is unflushed.
    pub(super) unflushed_len: u64,
    pub(super) writers: Writers,
    pub(super) after_loss: AfterLoss,
    /// A read whose caller gives up is aborted.
    pub(super) aborts_reads: bool,
}

/// Commands whose memory is kept for others: more than are under way on most paths.
const SPARE_MAX: usize = 256;

/// How often unanswered commands are looked for, in parts of their timeout.
const WATCH_PARTS: u32 = 8;

/// Sessions that one command may outlive before it is taken for the reason of their end, although
/// others fare well. Over a line so bad that each session carries a few commands, one that is
/// unlucky sees a dozen.
const REISSUES_MAX: u32 = 64;

pub(super) struct State {
    pub(super) phase: Phase,
    /// Counts session set-ups; a connection of an older one has nothing to say here.
    pub(super) incarnation: u64,
    pub(super) members: Vec<Member>,
    pub(super) growth: Growth,
    pub(super) throttle: Throttle,
    /// Payload that may be under way, where that is limited.
    pub(super) window: Option<u64>,
    /// Until then, connections of the first number are waited for (`gate`).
    gathers_until: Instant,
    /// What is acknowledged, and may be lost at the target.
    pub(super) durability: Durability<Failure>,
    /// Why the incarnation ended.
    pub(super) ended: Option<String>,
    /// A command of the user has ended well in this incarnation.
    pub(super) carried: bool,
    /// When the target last did something for the user: carried out a command, or took what was
    /// written again.
    pub(super) progress_at: Instant,
    /// The target said that something about the unit changed.
    pub(super) unit_changed: bool,
    /// Unit attentions that were told.
    pub(super) attentions: u64,
    pub(super) lun: Lun,
    epoch: std::time::Instant,
    waiting: VecDeque<(Command, Task)>,
    requeued: Vec<(Command, Task)>,
    resting: Vec<(Instant, Command, Task)>,
    in_flight: usize,
    /// Memory of commands that have ended, to be used again.
    spare: Vec<Task>,
    /// Ended with GOOD, which counts when others have ended, too.
    held: Vec<(Command, Task, TaskOutcome)>,
    limit: usize,
    limits: Limits,
    /// When unanswered commands are looked for again.
    watch_at: Instant,
    /// Commands that ended well since the limit was last changed.
    calm: usize,
    async_messages: AsyncMessages,
    /// Qualifiers of ISIDs under which the target may have a session of ours.
    pub(super) qualifiers: BTreeSet<u16>,
    /// What was under way is not to be sent again.
    dropping: bool,
    /// Writes under way whose callers have given up.
    abandoned: Vec<Arc<Slot>>,
    /// Every session is registered with this key (`fence`).
    pub(super) fence_key: Option<u64>,
    /// Commands go out in the order in which they were asked for (`ordering`).
    is_ordered: bool,
    pub(super) places: Places,
}

/// What is to be done after the lock is released.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) finished: Vec<(Command, Task, TaskOutcome)>,
    pub(super) failed: Vec<(Arc<Slot>, BlockError)>,
    /// Those of them that are not sent again, for their memory.
    pub(super) over: Vec<Task>,
    pub(super) wakers: Wakers,
    /// The supervisor has something to do.
    pub(super) changed: bool,
    /// A timer was armed that may come before all others.
    pub(super) timers: bool,
}

impl Batch {
    /// There is nothing to be done.
    pub(super) fn is_empty(&self) -> bool {
        let none = self.finished.is_empty() && self.failed.is_empty() && self.wakers.is_empty();
        none && !self.changed && !self.timers
    }
}

impl State {
    pub(super) fn new(lun: Lun, limits: Limits, epoch: std::time::Instant) -> Self {
        Self {
            epoch,
            phase: Phase::Down,
            incarnation: 0,
            members: Vec::new(),
            growth: Growth::new(limits.connections),
            throttle: Throttle::default(),
            window: None,
            gathers_until: Instant::default(),
            durability: Durability::new(limits.unflushed_len, limits.writers),
            ended: None,
            carried: false,
            progress_at: Instant::default(),
            unit_changed: false,
            attentions: 0,
            lun,
            waiting: VecDeque::new(),
            requeued: Vec::new(),
            resting: Vec::new(),
            in_flight: 0,
            spare: Vec::new(),
            held: Vec::new(),
            limit: limits.commands,
            limits,
            watch_at: Instant::default(),
            calm: 0,
            async_messages: AsyncMessages::default(),
            qualifiers: BTreeSet::new(),
            dropping: false,
            abandoned: Vec::new(),
            fence_key: None,
            is_ordered: false,
            places: Places::default(),
        }
    }

    /// The session a driver works for, unless its incarnation is over.
    pub(super) fn member(&mut self, incarnation: u64, index: usize) -> Option<&mut Member> {
        if self.incarnation != incarnation {
            return None;
        }
        self.members.get_mut(index)
    }

    fn now(&self) -> Instant {
        Instant(self.epoch.elapsed())
    }

    /// A command of the disk's user, or of our own, in memory that one of before has had.
    pub(super) fn task(&mut self, asked: Asked) -> Task {
        match self.spare.pop() {
            Some(mut spare) => {
                *spare = asked;
                spare
            }
            None => Box::new(asked),
        }
    }

    /// Commands that are over leave their memory to others.
    fn keep_memory(&mut self, batch: &mut Batch) {
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        self.spare.extend(batch.over.drain(..).take(room));
    }

    /// Takes everything that session `index` has to say. `driver` is the connection whose driver
    /// is calling; it looks for something to send anyway and needs no waking.
    pub(super) fn collect(
        &mut self,
        index: usize,
        driver: Option<ConnectionId>,
        batch: &mut Batch,
    ) {
        self.keep_memory(batch);
        let Some(member) = self.members.get_mut(index) else { return };
        let (mut ended, mut senses, mut returned) = (None, Vec::new(), Vec::new());
        let finished_before = batch.finished.len();
        while let Some(event) = member.session.poll_event() {
            match event {
                Event::TaskDone { command, mut context, outcome, cmd_sn, .. } => {
                    self.in_flight -= 1;
                    self.places.note(&command, &mut context, cmd_sn);
                    abandoned::note_returned(&mut self.abandoned, &context.slot);
                    batch.finished.push((command, context, outcome));
                }
                Event::TaskRequeue { command, context, sent } => {
                    returned.push((command, context, sent));
                }
                Event::Pong { rtt, .. } => member.rtt = Some(rtt),
                // While it is being set up or closed, whoever does that knows and says it.
                Event::ConnectionFailed { error, .. } if self.phase == Phase::Up => {
                    tracing::warn!(%error, "connection failed");
                }
                Event::Recovery { cid, what, .. } => {
                    member.note_recovery(cid, &what);
                    batch.changed = true;
                }
                Event::SessionEnded { error } => {
                    if error.is_none() {
                        self.qualifiers.remove(&member.qualifier);
                    }
                    if member.is_missed(error.is_some() || self.phase == Phase::Closed) {
                        ended = Some(error.map_or("logged out".into(), |e| e.to_string()));
                    }
                }
                Event::Async { event, data, .. } => {
                    self.async_messages.note(&event);
                    if event == AsyncEvent::SCSI_EVENT {
                        senses.push(Sense::parse(&data));
                    }
                }
                other => tracing::debug!(event = ?other, "session event"),
            }
        }
        member.collect_wakes(driver, &mut batch.wakers);
        let is_fatal = self.is_fatal_to_return(&returned);
        if self.note_returned(returned, batch) {
            ended.get_or_insert("nobody knows how a flush ended".to_string());
        }
        if let Some(why) = self.note_told(index, finished_before, senses, batch) {
            ended.get_or_insert(why);
        }
        if is_fatal {
            ended.get_or_insert_with(|| "a command would have to be sent again".to_string());
        }
        // Sessions that log out one after the other are not torn down by the first one.
        let others_close = self.phase == Phase::Closed
            && self.members.iter().any(|m| m.session.connections().any(|(.., s)| s.is_open()));
        let ended = ended
            .or(self.is_unready(index).then(|| "lost while it was set up or closed".to_string()));
        if let Some(reason) = ended.filter(|_| !others_close) {
            self.end(reason, batch);
        } else if self.ended.is_none() {
            self.requeue();
        }
        self.go_on(batch);
    }

    /// Nothing to replay on yet, and nobody waits: setting up anew is quicker.
    fn is_unready(&self, index: usize) -> bool {
        self.phase == Phase::Down && self.members[index].session.reinstatement().is_some()
    }

    /// Ends the incarnation: its sessions live and die together.
    pub(super) fn end(&mut self, reason: String, batch: &mut Batch) {
        batch.changed = true;
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(reason.clone());
        self.durability.lost();
        if self.dies() {
            self.die(&reason, batch);
        } else if self.phase == Phase::Up {
            self.phase = Phase::Down;
        }
        for index in 0..self.members.len() {
            self.members[index].session.abandon();
            self.collect(index, None, batch);
        }
    }

    /// Installs the sessions of a new incarnation, still closed for the user.
    pub(super) fn begin(&mut self, members: Vec<Member>, now: Instant, batch: &mut Batch) -> u64 {
        self.incarnation += 1;
        self.members = members;
        self.growth.sessions_opening = 0;
        self.ended = None;
        self.carried = false;
        self.places.begin(self.members.len());
        if !self.requeued.is_empty() {
            let commands = self.requeued.len();
            tracing::info!("session recovery: {commands} commands re-issued");
        }
        // What was under way comes first, in the order in which it was asked for.
        for (command, mut task) in std::mem::take(&mut self.requeued).into_iter().rev() {
            task.attempts += 1;
            if self.is_hopeless(&task, now) {
                let error = BlockError::Unreachable("one session after the other ended".into());
                batch.failed.push((task.slot, error));
            } else {
                self.waiting.push_front((command, task));
            }
        }
        self.watch_at = now + self.limits.command_timeout / WATCH_PARTS;
        self.incarnation
    }

    /// It has waited for long, and it may be this very command that ends the sessions: nothing else
    /// ends well either, or it was there each time.
    fn is_hopeless(&self, task: &Task, now: Instant) -> bool {
        let patience = self.limits.replacement_timeout;
        let is_old = now.since(task.asked_at) >= patience;
        let is_stuck = now.since(self.progress_at) >= patience;
        is_old && (is_stuck || task.attempts >= REISSUES_MAX)
    }

    /// Opens the gate.
    pub(super) fn open(&mut self, batch: &mut Batch) {
        let is_ready = self.durability.stage() == Stage::Up;
        if self.ended.is_none() && self.phase != Phase::Closed && is_ready {
            self.phase = Phase::Up;
            self.go_on(batch);
        }
    }

    /// Fails everything that waits, and what will come, until the gate opens.
    pub(super) fn give_up(&mut self, phase: Phase, reason: &str, batch: &mut Batch) {
        self.phase = phase;
        let requeued = std::mem::take(&mut self.requeued).into_iter();
        let resting = std::mem::take(&mut self.resting).into_iter().map(|(_, c, t)| (c, t));
        for (_, task) in requeued.chain(std::mem::take(&mut self.waiting)).chain(resting) {
            batch.failed.push((task.slot, BlockError::Unreachable(reason.into())));
        }
    }

    /// Drops whatever the user has asked for, and ends the sessions. Commands that come from now on
    /// wait for the next ones.
    pub(super) fn quiesce(&mut self, batch: &mut Batch) {
        let phase = self.phase.clone();
        self.give_up(phase, "dropped by quiesce", batch);
        self.dropping = true;
        self.end("quiesced".into(), batch);
        self.dropping = false;
    }

    /// Takes no more commands, lets those under way finish, and logs out.
    pub(super) fn close(&mut self, batch: &mut Batch) {
        self.give_up(Phase::Closed, "the disk was closed", batch);
        for index in 0..self.members.len() {
            self.members[index].session.close();
            self.collect(index, None, batch);
        }
    }

    /// Lets a command rest until `at`, if there will be anybody to send it to.
    pub(super) fn rest(&mut self, at: Instant, command: Command, task: Task, batch: &mut Batch) {
        match self.refusal() {
            Some(error) => batch.failed.push((task.slot, error)),
            None => self.resting.push((at, command, task)),
        }
    }

    /// Why commands fail at once, if they do.
    fn refusal(&self) -> Option<BlockError> {
        match &self.phase {
            Phase::Unreachable(reason) => Some(BlockError::Unreachable(reason.clone())),
            Phase::Closed => Some(BlockError::Unreachable("the disk was closed".into())),
            Phase::Down | Phase::Up => None,
        }
    }

    /// Fewer commands at once: the target's queue is full.
    pub(super) fn shrink(&mut self) {
        self.limit = (self.in_flight.min(self.limit) * 3 / 4).max(1);
        self.calm = 0;
        tracing::debug!(limit = self.limit, "task set full");
    }

    /// When [`Self::expire`] is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let sessions = self.members.iter().filter_map(|m| Some(m.session.poll_timeout()?.0));
        let watch = (!self.members.is_empty()).then_some(self.watch_at);
        let paced = self.throttle.free_at();
        sessions.chain(self.resting.iter().map(|(at, ..)| *at)).chain(watch).chain(paced).min()
    }

    /// Acts on timers of the sessions and wakes resting commands.
    pub(super) fn expire(&mut self, now: Instant, batch: &mut Batch) {
        self.throttle.let_go();
        for index in 0..self.members.len() {
            self.members[index].session.handle_timeout(now);
            self.collect(index, None, batch);
        }
        if now >= self.watch_at {
            self.watch_at = now + self.limits.command_timeout / WATCH_PARTS;
            self.end_if_unanswered(now, batch);
        }
        let (due, resting) =
            std::mem::take(&mut self.resting).into_iter().partition(|(at, ..)| *at <= now);
        self.resting = resting;
        for (_, command, mut task) in due {
            task.submitted_at = now;
            self.enqueue(command, task, batch);
        }
    }

    /// Ends the incarnation if the target owes an answer for too long, and nothing moves towards
    /// it.
    fn end_if_unanswered(&mut self, now: Instant, batch: &mut Batch) {
        let stalled = self.members.iter().filter_map(|m| m.session.stalled());
        let Some(longest) = stalled.map(|(_, since)| now.since(since)).max() else { return };
        if longest > self.limits.command_timeout {
            self.end(format!("a command has no answer for {} s", longest.as_secs()), batch);
        }
    }

    fn note_calm(&mut self) {
        self.calm += 1;
        if self.calm > self.limit && self.limit < self.limits.commands {
            self.limit += 1;
            self.calm = 0;
        }
    }
}

/// A command without data.
pub(super) fn command(lun: Lun, cdb: cdb::Cdb) -> Command {
    let attribute = TaskAttribute::SIMPLE;
    Command { lun, cdb, data_out: block::Bytes::new(), data_in_len: 0, attribute }
}

pub(super) fn session_ended() -> BlockError {
    BlockError::Unreachable("session has ended".into())
}

/// What is to become of a command that was answered.
pub(super) fn verdict(task: &Task, outcome: &TaskOutcome) -> Verdict {
    match outcome {
        TaskOutcome::Completed { status, sense, .. } => match task.effect {
            Effect::Stable(..) | Effect::Flushed => judge_stable(*status, sense, task.attempts),
            _ => judge(*status, sense, task.attempts),
        },
        TaskOutcome::Rejected(reason) => {
            let error = std::io::Error::other(format!("target rejected the command: {reason}"));
            Verdict::Failed(BlockError::Medium(error))
        }
        // Ended by somebody's reset, or not delivered by the target: as TASK ABORTED.
        _ => judge(status::TASK_ABORTED, &[], task.attempts),
    }
}

fn is_done(outcome: &TaskOutcome) -> bool {
    match outcome {
        TaskOutcome::Completed { status: 0, .. } => true,
        TaskOutcome::Completed { status, sense, .. } => {
            matches!(judge(*status, sense, 0), Verdict::Done)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) use tests::a_connection;
