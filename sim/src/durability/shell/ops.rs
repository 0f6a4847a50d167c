//! The application and the way of its commands: what it asks for, what may go now, what becomes of
//! a command that ended. Mirrors `shared.rs` and `state/gate.rs` of `crates/iscsi`.

mod sabotaged;

use bytes::Bytes;
use iscsi_proto::initiator::durability::{Admission, Content, Ended};

use super::*;
use crate::durability::cdb;
use crate::durability::disk::{Run, SECTOR, SECTORS, Value, fill, value_of};
use crate::durability::oracle::{self, Moment};
use crate::durability::sabotage::Sabotage;
use crate::durability::trouble;

/// Commands at the target at once.
const COMMANDS_MAX: usize = 64;

/// Longest pause of the application.
const PAUSE_MAX_US: u64 = 3_000_000;

/// Pause before the last flush is tried again.
const FLUSH_PAUSE: Duration = Duration::from_secs(1);

/// What the application asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write { fua: bool },
    Zero,
    Trim,
    Flush,
}

/// An operation of the application.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    run: Run,
    begun: Moment,
}

/// The application.
#[derive(Debug, Default)]
pub(crate) struct App {
    ops: BTreeMap<u32, Op>,
    asked: u32,
    pausing: bool,
    /// Last flush, then a look at everything.
    stage: Ending,
    /// The start of the target that this incarnation logged in to.
    pub(super) boot: u32,
    /// The start of the target that we were last told of.
    pub(super) told_of_boot: u32,
    pub(crate) finished: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ending {
    #[default]
    Working,
    Flushing,
    /// The last flush has failed.
    Pausing,
    Reading,
}

impl App {
    pub(super) fn state(&self) -> String {
        format!("{} asked for, under way {:?}, {:?}", self.asked, self.ops, self.stage)
    }
}

impl Shell {
    /// The application asks for as much as it likes to have under way.
    pub(crate) fn work(&mut self, env: &mut Env) -> Outcomes {
        self.app.pausing = false;
        self.ask_for_more(env)?;
        self.drain(env)
    }

    fn ask_for_more(&mut self, env: &mut Env) -> Outcomes {
        let mix = env.scenario.mix;
        while self.app.stage == Ending::Working
            && self.app.ops.len() < mix.depth as usize
            && !self.app.pausing
        {
            if self.app.asked >= mix.operations {
                break;
            }
            self.ask_for_one(env);
            if env.rng.percent(mix.pauses) {
                self.app.pausing = true;
                let pause = Duration::from_micros(env.rng.skewed(PAUSE_MAX_US));
                env.clock.after(pause, Event::GoOn);
            }
        }
        if !self.app.ops.is_empty() || self.app.pausing {
            return Ok(());
        }
        match self.app.stage {
            Ending::Working => {
                env.log(|| "the application comes to its end".into());
                env.calm = true;
                env.disk.calm_down();
                self.app.stage = Ending::Flushing;
                self.begin(env, Kind::Flush, Run::ALL);
            }
            // Until one is GOOD.
            Ending::Flushing => {
                env.clock.after(FLUSH_PAUSE, Event::GoOn);
                self.app.stage = Ending::Pausing;
            }
            Ending::Pausing => {
                self.app.stage = Ending::Flushing;
                self.begin(env, Kind::Flush, Run::ALL);
            }
            Ending::Reading => self.app.finished = true,
        }
        Ok(())
    }

    fn ask_for_one(&mut self, env: &mut Env) {
        let mix = env.scenario.mix;
        let rng = &mut env.rng;
        let kind = match () {
            () if rng.percent(mix.flushes) => Kind::Flush,
            () if !rng.percent(mix.writes) => Kind::Read,
            () if rng.percent(mix.zeroes) => Kind::Zero,
            () if rng.percent(mix.trims) => Kind::Trim,
            () => Kind::Write { fua: rng.percent(mix.fua) },
        };
        let count = rng.range(1, mix.sectors_max) as u32;
        let reach = if rng.percent(80) { mix.hot } else { u64::from(SECTORS) };
        let first = (rng.below(reach) as u32).min(SECTORS - count);
        self.begin(env, kind, Run { first, count });
    }

    fn begin(&mut self, env: &mut Env, kind: Kind, run: Run) {
        self.app.asked += 1;
        let number = self.app.asked;
        let (offset, len) = (u64::from(run.first) * SECTOR as u64, run.bytes() as u64);
        let begun = match kind {
            Kind::Write { .. } => env.oracle.begin_write(number, run, Value(number)),
            Kind::Zero | Kind::Trim => env.oracle.begin_write(number, run, Value(0)),
            Kind::Read => env.oracle.begin_read(),
            Kind::Flush => env.oracle.begin(),
        };
        let (command, effect) = match kind {
            Kind::Read => {
                let len = run.bytes() as u32; // few sectors
                (cdb::command(cdb::read(run), Bytes::new(), len), Effect::None)
            }
            Kind::Write { fua } => {
                let data = content(number, run);
                let effect = match fua {
                    true if env.has(Sabotage::FuaLeavesOlder) => Effect::None,
                    true => Effect::Stable(offset, len),
                    false => Effect::Volatile(offset, Content::Data(data.clone())),
                };
                (cdb::command(cdb::write(run, fua), data, 0), effect)
            }
            Kind::Zero => {
                let block = Bytes::from(vec![0; SECTOR]);
                let effect = Effect::Volatile(offset, Content::Zeroes(len));
                (cdb::command(cdb::write_same(run), block, 0), effect)
            }
            Kind::Trim => {
                let (cdb, list) = cdb::unmap(run);
                (cdb::command(cdb, list, 0), Effect::Undefined(offset, len))
            }
            Kind::Flush => (cdb::command(cdb::flush(), Bytes::new(), 0), Effect::Flushed),
        };
        env.log(|| format!("application: op {number} is {kind:?} of {run:?}"));
        if matches!(kind, Kind::Flush | Kind::Write { fua: true }) {
            env.moment(trouble::Moment::Flush, self.members.values().next().copied());
        }
        self.app.ops.insert(number, Op { kind, run, begun });
        let id = self.add(env, Origin::User(number), command, effect);
        self.enqueue(env, id);
    }

    fn add(&mut self, env: &Env, origin: Origin, command: Command, effect: Effect) -> u64 {
        let id = self.next_task;
        self.next_task += 1;
        let buffer = vec![0; command.data_in_len as usize];
        let ticket = self.keeper.ask();
        let submitted_at = env.now();
        let task = Task { origin, command, effect, ticket, buffer, attempts: 0, submitted_at };
        self.tasks.insert(id, task);
        id
    }

    /// Sends a command of our own, past the gate.
    pub(super) fn send(&mut self, env: &mut Env, origin: Origin, command: Command) {
        let id = self.add(env, origin, command, Effect::None);
        self.submit_setup(env, id);
    }

    pub(super) fn submit_setup(&mut self, env: &mut Env, id: u64) {
        if !self.submit(env, id) {
            self.tasks.remove(&id);
            self.abandon(env);
        }
    }

    /// Sends a command on the session. False if that takes none now.
    fn submit(&mut self, env: &mut Env, id: u64) -> bool {
        let (Some(core), Some(task)) = (&mut self.core, self.tasks.get_mut(&id)) else {
            return false;
        };
        task.submitted_at = env.now();
        self.keeper.sent(&task.effect, &mut task.ticket);
        let sent = core.submit(task.command.clone(), id).is_ok();
        match sent {
            true => drop(self.outstanding.insert(id)),
            false => self.keeper.undone(&mut task.ticket),
        }
        sent
    }

    /// Sends a command of the application now, or keeps it for later.
    fn enqueue(&mut self, env: &mut Env, id: u64) {
        let Some(task) = self.tasks.get(&id) else { return };
        let volatile = matches!(task.effect, Effect::Volatile(..));
        let waits = self.keeper.admit(&task.effect) == Admission::Wait;
        let held = waits || volatile && !self.waiting.is_empty();
        let full = self.outstanding.len() >= COMMANDS_MAX;
        if env.stage != Stage::Up || full || held || !self.submit(env, id) {
            self.waiting.push_back(id);
        }
        self.go_on(env);
    }

    /// Sends what may go now: commands that wait, and a flush if too much is unflushed.
    pub(super) fn go_on(&mut self, env: &mut Env) {
        if env.stage != Stage::Up {
            return;
        }
        loop {
            let front = self.waiting.front().copied();
            let effect = front.and_then(|id| self.tasks.get(&id)).map(|task| &task.effect);
            let waits = effect.is_some_and(|effect| self.keeper.admit(effect) == Admission::Wait);
            if self.keeper.wants_own_flush(waits) {
                env.coverage.hit(if waits { "log full" } else { "flush of our own" });
                let mut ticket = self.keeper.own_flush_sent();
                let command = cdb::command(cdb::flush(), Bytes::new(), 0);
                let id = self.add(env, Origin::Own, command, Effect::Flushed);
                if !self.submit(env, id) {
                    self.tasks.remove(&id);
                    self.keeper.own_flush_undone(&mut ticket);
                    return;
                }
            }
            let Some(id) = front.filter(|_| !waits) else { return };
            if self.outstanding.len() >= COMMANDS_MAX || !self.submit(env, id) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// A command that rested goes out again.
    pub(crate) fn retry(&mut self, env: &mut Env, id: u64) -> Outcomes {
        self.enqueue(env, id);
        self.drain(env)
    }

    /// A command of the application has an answer.
    pub(super) fn user_done(
        &mut self,
        env: &mut Env,
        id: u64,
        op: u32,
        verdict: Verdict,
    ) -> Outcomes {
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        task.attempts += 1;
        if matches!(verdict, Verdict::Again(_) | Verdict::Later(_) | Verdict::Conflict) {
            self.keeper.undone(&mut task.ticket);
        }
        match verdict {
            Verdict::Done => {
                self.sabotage_done(env, id);
                self.settle_op(env, id, op)
            }
            Verdict::Again(sense) => {
                self.waiting.push_front(id);
                self.note_attention(env, sense);
                self.go_on(env);
                Ok(())
            }
            Verdict::Later(pause) => {
                env.clock.after(pause, Event::Retry(id));
                Ok(())
            }
            Verdict::Conflict => self.fail_op(env, id, op, "reserved"),
            Verdict::Failed(why) => self.fail_op(env, id, op, &why),
        }
    }

    /// It ended with GOOD: so far as its caller may be told that.
    fn settle_op(&mut self, env: &mut Env, id: u64, op: u32) -> Outcomes {
        let Some(mut task) = self.tasks.remove(&id) else { return Ok(()) };
        match self.keeper.done(&task.effect, &mut task.ticket) {
            Ended::Held => {
                env.coverage.hit(match task.effect {
                    Effect::Flushed => "flush held",
                    _ => "FUA write held",
                });
                self.tasks.insert(id, task);
                self.held.push(id);
                Ok(())
            }
            Ended::Again => {
                env.coverage.hit("held when its session was lost");
                self.tasks.insert(id, task);
                self.requeued.push(id);
                Ok(())
            }
            Ended::Good => {
                self.op_over(env, op, Ok(task.buffer))?;
                // It may have been in a write-back that failed.
                self.note_failure(env);
                Ok(())
            }
            Ended::Failed(failure) => {
                env.coverage.hit(match task.effect {
                    Effect::Flushed => "failure of our own told to a flush",
                    _ => "failure of our own told to a FUA write",
                });
                env.oracle.told();
                self.op_over(env, op, Err(failure))
            }
        }
    }

    /// What was held may count now.
    pub(super) fn settle_held(&mut self, env: &mut Env) -> Outcomes {
        for id in std::mem::take(&mut self.held) {
            if let Some(Task { origin: Origin::User(op), .. }) = self.tasks.get(&id) {
                let op = *op;
                self.settle_op(env, id, op)?;
            }
        }
        Ok(())
    }

    fn fail_op(&mut self, env: &mut Env, id: u64, op: u32, why: &str) -> Outcomes {
        let Some(mut task) = self.tasks.remove(&id) else { return Ok(()) };
        let forced = matches!(task.effect, Effect::Stable(..));
        match forced && env.has(Sabotage::FailedFuaForgotten) {
            true => self.keeper.undone(&mut task.ticket),
            false => self.keeper.failed(&task.effect, &mut task.ticket, why.to_owned()),
        }
        match task.effect {
            Effect::Flushed => {
                env.coverage.hit("flush failed and told");
                env.oracle.told();
            }
            Effect::Stable(..) => env.coverage.hit("FUA write failed and told"),
            _ => env.coverage.hit("operation failed"),
        }
        self.note_failure(env);
        self.op_over(env, op, Err(why.to_owned()))
    }

    /// The application has its answer.
    fn op_over(&mut self, env: &mut Env, number: u32, result: Result<Vec<u8>, String>) -> Outcomes {
        let Some(op) = self.app.ops.remove(&number) else {
            return Err(format!("op {number} ended twice"));
        };
        env.progress = env.now();
        env.log(|| {
            format!("application: op {number} {:?} ended: {:?}", op.kind, result.as_ref().err())
        });
        let verdict = judge_op(env, number, op, result.as_deref().ok());
        verdict.map_err(|what| format!("op {number} ({:?} of {:?}): {what}", op.kind, op.run))?;
        if op.kind == Kind::Flush && result.is_ok() && self.app.stage == Ending::Flushing {
            self.app.stage = Ending::Reading;
            self.begin(env, Kind::Read, Run::ALL);
        }
        self.ask_for_more(env)?;
        self.go_on(env);
        Ok(())
    }

    /// A flush of our own has an answer.
    pub(super) fn own_flush_over(&mut self, env: &mut Env, id: u64, verdict: Verdict) -> Outcomes {
        let Some(Task { mut ticket, .. }) = self.tasks.remove(&id) else { return Ok(()) };
        match verdict {
            Verdict::Done => self.keeper.own_flush_done(ticket),
            Verdict::Failed(_) if env.has(Sabotage::OwnFailureSwallowed) => {
                self.keeper.own_flush_done(ticket);
            }
            Verdict::Failed(why) => {
                env.coverage.hit("flush of our own failed");
                let full = self.keeper.own_flush_failed(&mut ticket, why.clone());
                self.note_failure(env);
                if full {
                    self.fail_waiting(env, &why)?;
                }
            }
            Verdict::Again(sense) => {
                self.keeper.own_flush_undone(&mut ticket);
                self.note_attention(env, sense);
            }
            Verdict::Later(_) | Verdict::Conflict => {
                self.keeper.own_flush_undone(&mut ticket);
            }
        }
        self.go_on(env);
        Ok(())
    }

    /// There is no room, and there will be none: writes that wait for it fail.
    fn fail_waiting(&mut self, env: &mut Env, why: &str) -> Outcomes {
        let waits = |id: &u64| {
            let effect = self.tasks.get(id).map(|task| &task.effect);
            effect.is_some_and(|effect| self.keeper.admit(effect) == Admission::Wait)
        };
        let (fail, stay): (Vec<u64>, Vec<u64>) = self.waiting.iter().copied().partition(waits);
        self.waiting = stay.into();
        for id in fail {
            let Some(Task { origin: Origin::User(op), .. }) = self.tasks.get(&id) else { continue };
            env.coverage.hit("write failed: no room in the log");
            self.fail_op(env, id, *op, why)?;
        }
        Ok(())
    }
}

fn content(number: u32, run: Run) -> Bytes {
    let mut data = vec![0; run.bytes()];
    let places = run.sectors().zip(data.chunks_exact_mut(SECTOR));
    places.for_each(|(sector, out)| fill(Value(number), sector, out));
    data.into()
}

/// Tells the oracle how an operation ended, and asks whether that is all right.
fn judge_op(env: &mut Env, number: u32, op: Op, data: Option<&[u8]>) -> Outcomes {
    use oracle::Outcome as O;
    let Op { kind, run, begun } = op;
    if kind == Kind::Read {
        env.oracle.end_read(begun);
    }
    let Some(data) = data else {
        if matches!(kind, Kind::Write { .. } | Kind::Zero | Kind::Trim) {
            env.oracle.end_write(number, run, O::Failed);
        }
        return Ok(());
    };
    match kind {
        Kind::Read => {
            env.coverage.hit("operation: read");
            let sectors = run.sectors().zip(data.chunks_exact(SECTOR));
            let values: Option<Vec<Value>> =
                sectors.map(|(sector, bytes)| value_of(sector, bytes)).collect();
            env.oracle.check_read(begun, run, &values.ok_or("the data is nobody's")?)
        }
        Kind::Write { fua: true } => {
            env.coverage.hit("operation: FUA write");
            env.oracle.end_write(number, run, O::Stable);
            env.oracle.check_stable(run, &env.disk, "after a FUA write the medium has")
        }
        Kind::Write { fua: false } | Kind::Zero => {
            env.coverage.hit("operation: write");
            env.oracle.end_write(number, run, O::Acknowledged);
            Ok(())
        }
        Kind::Trim => {
            env.oracle.end_write(number, run, O::Open);
            Ok(())
        }
        Kind::Flush => {
            env.coverage.hit("operation: flush");
            env.oracle.check_flush(begun, &env.disk)
        }
    }
}
