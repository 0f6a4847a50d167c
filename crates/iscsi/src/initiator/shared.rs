//! Callers' side of the remote disk: sends their commands, and decides what becomes of a command
//! that ended: its outcome goes to the caller, or the command goes out again. The lock is never
//! held while a caller is woken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use block::{BlockError, Buf, DeviceInfo};
use iscsi_proto::initiator::durability::{Effect, Ended, Ticket, Writers};
use iscsi_proto::initiator::{Command, TaskOutcome};
use iscsi_proto::time::Instant;
use path::PolicyConfig;
use tokio::sync::Notify;

use super::Config;
use super::config::AfterLoss;
use super::isid::ChosenIsid;
use super::op::{Asked, Origin, Outcome, Pending, Reply, Slot, Task};
use super::path::{Keeper, PathReport, Share};
use super::probe::Unit;
use super::sense::Verdict;
use super::state::{Batch, Limits, State, session_ended, verdict};
use super::stride::Stride;
use super::url::Url;

pub(super) struct Shared {
    pub(super) url: Url,
    pub(super) config: Config,
    pub(super) isid: Arc<ChosenIsid>,
    /// Something for the supervisor: the incarnation ended, the unit changed, the disk closes.
    pub(super) changed: Notify,
    /// A timer was armed that may come before all others.
    pub(super) timers: Notify,
    /// An incarnation has ended; for whoever waits for the last one.
    pub(super) closed: Notify,
    /// The gate was opened, or will not be for now; or a connection came, or failed.
    pub(super) settled: Notify,
    epoch: std::time::Instant,
    /// For callers that go away.
    me: Weak<Self>,
    state: Mutex<State>,
    unit: RwLock<Option<Arc<Unit>>>,
    /// What the path controller saw and did last.
    pub(super) path: Mutex<PathReport>,
    /// What is known of the path from before.
    pub(super) memory: Arc<Keeper>,
    /// The policy that the path controller is to go on with.
    pub(super) chosen: Mutex<Option<PolicyConfig>>,
    /// How long commands are made.
    pub(super) stride: Stride,
}

impl Shared {
    pub(super) fn new(url: Url, config: Config, isid: Arc<ChosenIsid>) -> Arc<Self> {
        let unflushed_len = match config.after_loss {
            AfterLoss::GoOn => config.unflushed_len_max,
            AfterLoss::Die => 0, // nothing is ever written again
        };
        let limits = Limits {
            commands: config.commands_max.max(1),
            command_timeout: config.command_timeout,
            replacement_timeout: config.replacement_timeout,
            connections: config.connections.into(),
            unflushed_len,
            after_loss: config.after_loss,
            aborts_reads: config.aborts_reads,
            writers: if config.shared { Writers::Several } else { Writers::One },
        };
        let epoch = std::time::Instant::now();
        let mut state = State::new(url.wire_lun(), limits, epoch);
        state.qualifiers.extend(isid.left());
        // A part of what the path gives is not known yet.
        if let Some(Share::Rate(rate)) = config.share {
            state.throttle.set_rate(Some(rate), Instant::default());
        }
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            url,
            memory: Keeper::new(&config),
            config,
            isid,
            changed: Notify::new(),
            timers: Notify::new(),
            closed: Notify::new(),
            settled: Notify::new(),
            epoch,
            state: Mutex::new(state),
            unit: RwLock::new(None),
            path: Mutex::default(),
            chosen: Mutex::default(),
            stride: Stride::default(),
        })
    }

    /// Time on this disk's clock.
    pub(super) fn now(&self) -> Instant {
        Instant(self.epoch.elapsed())
    }

    /// The clock's `at` as tokio counts it.
    pub(super) fn deadline(&self, at: Instant) -> tokio::time::Instant {
        (self.epoch + at.0).into()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held; if something did, going on beats hanging.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something under the lock and delivers what it left behind.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State, &mut Batch) -> R) -> R {
        let mut batch = Batch::default();
        let result = act(&mut self.lock(), &mut batch);
        self.deliver(&mut batch);
        result
    }

    /// The unit as it was last probed, `None` before the first time.
    pub(super) fn unit(&self) -> Option<Arc<Unit>> {
        self.unit.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_unit(&self, unit: Unit) -> Arc<Unit> {
        let unit = Arc::new(unit);
        *self.unit.write().unwrap_or_else(PoisonError::into_inner) = Some(unit.clone());
        unit
    }

    pub(super) fn info(&self) -> DeviceInfo {
        self.unit().map_or_else(|| DeviceInfo::new(0, 512), |unit| unit.info.clone())
    }

    /// How long the target wants us to wait before a session is reinstated (§13.15).
    pub(super) fn time2wait(&self) -> Duration {
        let state = self.lock();
        let seconds = state.members.iter().map(|m| m.session.params().default_time2wait).max();
        Duration::from_secs(seconds.unwrap_or(0).into())
    }

    /// Sends a command of the disk's user whose answer may be shorter than its buffer.
    pub(super) fn send_short(&self, command: Command) -> Pending {
        let buf = Buf::zeroed(command.data_in_len as usize);
        let (pending, asked) = self.asked(Origin::UserShort, Some(buf), Effect::None);
        self.ask(command, asked);
        pending
    }

    /// Sends a command of the disk's user, or lets it wait.
    pub(super) fn send(&self, command: Command, buf: Option<Buf>, effect: Effect) -> Pending {
        let (pending, asked) = self.asked(Origin::User, buf, effect);
        self.ask(command, asked);
        pending
    }

    fn ask(&self, command: Command, asked: Asked) {
        self.with(|state, batch| {
            let mut task = state.task(asked);
            task.ticket = state.durability.ask();
            state.enqueue(command, task, batch);
        });
    }

    /// Sends a command on one session of an incarnation, past the gate.
    pub(super) fn send_on(
        &self,
        (incarnation, member): (u64, usize),
        command: Command,
        buf: Option<Buf>,
    ) -> Pending {
        let (pending, asked) = self.asked(Origin::Session, buf, Effect::None);
        self.with(|state, batch| {
            let task = state.task(asked);
            let result = match state.incarnation == incarnation {
                true => state.submit(member, command, task, batch),
                false => Err((command, task)),
            };
            if let Err((_, task)) = result {
                batch.failed.push((task.slot, session_ended()));
            }
        });
        pending
    }

    fn asked(&self, origin: Origin, buf: Option<Buf>, effect: Effect) -> (Pending, Asked) {
        let slot = Slot::new(&effect);
        let pending = Pending::new(slot.clone(), self.me.clone());
        let now = self.now();
        let asked = Asked {
            slot,
            origin,
            buf,
            effect,
            ticket: Ticket::default(),
            ended: Ended::Good,
            attempts: 0,
            asked_at: now,
            submitted_at: now,
            cmd_sn: None,
        };
        (pending, asked)
    }

    /// Delivers what a locked section left behind; the batch can be used again.
    pub(super) fn deliver(&self, batch: &mut Batch) {
        if batch.is_empty() {
            return; // as for nearly every command that goes out
        }
        batch.wakers.wake();
        for (slot, error) in batch.failed.drain(..) {
            slot.complete(Err(error));
        }
        if std::mem::take(&mut batch.timers) {
            self.timers.notify_one();
        }
        if std::mem::take(&mut batch.changed) {
            self.changed.notify_one();
            self.closed.notify_one();
        }
        for (command, task, outcome) in batch.finished.drain(..) {
            batch.over.extend(self.finish(command, task, outcome));
        }
    }

    /// Ends a command, or sends it again. What is over comes back: its memory is used again.
    fn finish(&self, command: Command, mut task: Task, outcome: TaskOutcome) -> Option<Task> {
        let verdict = match (task.origin, &outcome) {
            // Whoever probes looks at the status.
            (Origin::Session, TaskOutcome::Completed { .. }) => Verdict::Done,
            _ => verdict(&task, &outcome),
        };
        let reply = match outcome {
            TaskOutcome::Completed { status, data_in_len, sense, .. } => {
                let (buf, len, cmd_sn) = (task.buf.take(), data_in_len as usize, task.cmd_sn);
                Reply { buf, len, status, sense, cmd_sn }
            }
            _ => Reply::default(),
        };
        match (verdict, std::mem::replace(&mut task.ended, Ended::Good)) {
            (Verdict::Done, Ended::Failed(failure)) => {
                if !task.slot.tell(failure.clone()) {
                    self.with(|state, _| state.durability.not_told(failure));
                }
            }
            (Verdict::Done, _) => task.slot.complete(checked(&command, reply, task.origin)),
            (verdict, _) if task.origin.is_user() => {
                task.buf = reply.buf.or(task.buf.take());
                self.again(command, task, verdict);
                return None;
            }
            (verdict, _) => {
                tracing::debug!(?verdict, "a command of our own is not done");
                task.slot.complete(Err(session_ended()));
            }
        }
        task.effect = Effect::None; // which may hold data
        Some(task)
    }

    /// A user's command that is not done: sends it again, unless that is hopeless.
    fn again(&self, command: Command, mut task: Task, verdict: Verdict) {
        if task.slot.is_abandoned() {
            return;
        }
        let now = self.now();
        let waited = now.since(task.asked_at);
        task.attempts += 1;
        let verdict = match verdict {
            Verdict::Again(_) | Verdict::Later(_) | Verdict::Full(_)
                if waited >= self.config.replacement_timeout =>
            {
                let text = format!("target put the command off for {} s", waited.as_secs());
                Verdict::Failed(BlockError::Unreachable(text))
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Done => {} // handled by the caller
            Verdict::Failed(error) => task.slot.complete(Err(error)),
            Verdict::Again(sense) => self.with(|state, batch| {
                tracing::debug!(%sense, "unit attention");
                state.enqueue(command, task, batch);
            }),
            Verdict::Later(pause) => {
                self.with(|state, batch| state.rest(now + pause, command, task, batch));
                self.timers.notify_one();
            }
            Verdict::Full(pause) => {
                self.with(|state, batch| {
                    state.shrink();
                    state.rest(now + pause, command, task, batch);
                });
                self.timers.notify_one();
            }
        }
    }
}

/// A read that ended well has filled its buffer.
fn checked(command: &Command, reply: Reply, origin: Origin) -> Outcome {
    let expected = command.data_in_len as usize;
    if expected > 0 && reply.buf.is_none() {
        return Err(session_ended());
    }
    if origin == Origin::User && reply.len < expected {
        let text = format!("target returned {} of {expected} bytes", reply.len);
        return Err(BlockError::Medium(std::io::Error::other(text)));
    }
    Ok(reply)
}
