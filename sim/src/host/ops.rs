//! The application: submits operations, judges how they end, aborts some.

use bytes::Bytes;
use iscsi_proto::ids::{Itt, Lun};
use iscsi_proto::initiator::{Command, TaskOutcome};
use iscsi_proto::pdu::{
    Residual, TaskAttribute, TaskManagementFunction, TaskManagementResponseCode,
};

use super::{Host, Verdict};
use crate::env::Env;
use crate::model::Reading;
use crate::storage::{CHECK_CONDITION, sense};
use crate::workload::{Action, BLOCK, OpId, UNITS, author, content, generate};

/// An operation.
#[derive(Debug)]
pub(crate) struct Op {
    unit: u64,
    action: Action,
    /// Where its Data-In goes.
    pub(super) buffer: Vec<u8>,
    reading: Option<Reading>,
    submitted: bool,
    /// The application asked for it to be aborted.
    aborting: bool,
    pub(super) ending: Option<Ending>,
}

/// How an operation ended for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Good,
    Failed,
    Aborted,
}

/// A task management function under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskManagement {
    function: TaskManagementFunction,
}

impl Host {
    /// Keeps as many operations outstanding as the application likes.
    pub(super) fn submit(&mut self, env: &mut Env) -> Verdict {
        while self.outstanding.len() < env.scenario.mix.depth as usize && !self.closing {
            let Some(op) = self.next_op(env) else { break };
            let state = &mut self.ops[op.0 as usize];
            let data_out = match state.action {
                Action::Write(extent) => content(op, extent),
                _ => Bytes::new(),
            };
            let command = Command {
                lun: Lun(state.unit),
                cdb: state.action.cdb(op),
                data_out,
                data_in_len: state.action.data_in_len(),
                attribute: TaskAttribute::SIMPLE,
            };
            let Some(core) = &mut self.core else { break };
            match core.submit(command, op) {
                Ok(itt) => {
                    self.outstanding.insert(op, itt);
                    if !std::mem::replace(&mut state.submitted, true) {
                        begin(env, op, state);
                    }
                }
                Err(_) => {
                    self.waiting.push_front(op);
                    break;
                }
            }
        }
        self.close_if_done(env)
    }

    fn next_op(&mut self, env: &mut Env) -> Option<OpId> {
        if let Some(op) = self.waiting.pop_front() {
            return Some(op);
        }
        if self.generated >= env.scenario.mix.operations {
            return None;
        }
        if self.ops.is_empty() {
            // Op 0 is the initial content.
            self.ops.push(Op::new(0, Action::Flush));
            self.ops[0].ending = Some(Ending::Good);
        }
        self.generated += 1;
        let (unit, action) = generate(&env.scenario.mix, &mut env.rng);
        self.ops.push(Op::new(unit, action));
        Some(OpId(self.generated))
    }

    pub(super) fn all_done(&self, env: &Env) -> bool {
        self.generated >= env.scenario.mix.operations
            && self.waiting.is_empty()
            && self.outstanding.is_empty()
    }

    fn close_if_done(&mut self, env: &mut Env) -> Verdict {
        let busy = !self.management.is_empty() || !self.texts.is_empty();
        if self.all_done(env) && !self.closing && !busy {
            self.close(env);
        }
        Ok(())
    }

    fn close(&mut self, env: &mut Env) {
        if let Some(core) = &mut self.core {
            env.log(|| "initiator closes its session".into());
            self.closing = true;
            core.close();
        }
    }

    /// The application closes its session although there is work left; another one follows.
    pub(crate) fn restart(&mut self, env: &mut Env) -> Verdict {
        if self.core.is_some() && !self.closing {
            env.coverage.hit("session restarted");
            self.close(env);
        }
        self.drain(env)
    }

    pub(super) fn op_done(
        &mut self,
        env: &mut Env,
        itt: Itt,
        op: OpId,
        outcome: &TaskOutcome,
    ) -> Verdict {
        if self.outstanding.remove(&op) != Some(itt) {
            return Err(format!("{op} ended as {itt}, which is not outstanding"));
        }
        env.progress = env.now();
        let state = &mut self.ops[op.0 as usize];
        if state.ending.is_some() {
            return Err(format!("{op} ended twice"));
        }
        // ABORT TASK ends one that was never sent at once. What a function for the whole unit ends
        // is decided by CmdSN, hence by what was sent before it, and not by what the application
        // asked for first.
        let abortable = state.aborting || env.wire.may_be_aborted(self.session, itt);
        let may_fail = env.wire.may_fail(self.session, itt);
        let verdict = judge(op, state, outcome, abortable, may_fail);
        let ending = verdict.map_err(|what| format!("{op} {state:?}: {what}"))?;
        state.ending = Some(ending);
        env.coverage.hit(match ending {
            Ending::Good => "operation: good",
            Ending::Failed => "operation: failed",
            Ending::Aborted => "operation: aborted",
        });
        end(env, op, state, ending)?;
        state.buffer = Vec::new();
        self.submit(env)
    }

    /// The application aborts something, or asks the target for text.
    pub(crate) fn manage(&mut self, env: &mut Env) -> Verdict {
        use TaskManagementFunction as F;
        let Some(core) = self.core.as_mut().filter(|core| core.is_open() && !self.closing) else {
            return Ok(());
        };
        if env.rng.percent(15) {
            let text = core.text(Bytes::from_static(b"SendTargets=All\0"));
            if let Some(itt) = text {
                self.texts.insert(itt);
            }
            return self.drain(env);
        }
        let unit = env.rng.below(UNITS);
        let function = env.rng.pick(&[
            F::ABORT_TASK,
            F::ABORT_TASK,
            F::ABORT_TASK,
            F::ABORT_TASK_SET,
            F::CLEAR_TASK_SET,
            F::LOGICAL_UNIT_RESET,
        ]);
        let itt = if function == F::ABORT_TASK {
            let ops: Vec<_> = self.outstanding.iter().map(|(op, itt)| (*op, *itt)).collect();
            if ops.is_empty() {
                return Ok(());
            }
            let (op, itt) = env.rng.pick(&ops);
            self.ops[op.0 as usize].aborting = true;
            core.abort(itt)
        } else {
            core.manage(function, Lun(unit))
        };
        if let Some(itt) = itt {
            env.coverage.hit("task management asked for");
            self.management.insert(itt, TaskManagement { function });
        }
        self.drain(env)
    }

    pub(super) fn management_done(
        &mut self,
        env: &mut Env,
        itt: Itt,
        response: TaskManagementResponseCode,
    ) -> Verdict {
        use TaskManagementResponseCode as R;
        let Some(TaskManagement { function }) = self.management.remove(&itt) else {
            return Err(format!("answer to a function that nobody asked for: {itt}"));
        };
        env.progress = env.now();
        let abort = function == TaskManagementFunction::ABORT_TASK;
        match response {
            R::COMPLETE => {}
            // Its connection was lost: nobody knows.
            R::REJECTED if env.wire.recovers(self.session) => {
                env.coverage.hit("task management lost");
            }
            R::TASK_DOES_NOT_EXIST if abort => env.coverage.hit("abort came too late"),
            other => return Err(format!("{function} was answered with {other}")),
        }
        self.submit(env)
    }
}

impl Op {
    fn new(unit: u64, action: Action) -> Self {
        let buffer = vec![0; action.data_in_len() as usize];
        let (reading, ending) = (None, None);
        Self { unit, action, buffer, reading, submitted: false, aborting: false, ending }
    }
}

/// Tells the model that an operation begins.
fn begin(env: &mut Env, op: OpId, state: &mut Op) {
    match state.action {
        Action::Write(extent) => env.model.begin_write(op, state.unit, extent),
        Action::Read(_) => state.reading = Some(env.model.begin_read()),
        Action::Flush | Action::Inquire { .. } => {}
    }
}

/// Tells the model that an operation has ended, and asks it whether that is all right.
fn end(env: &mut Env, op: OpId, state: &Op, ending: Ending) -> Verdict {
    match (state.action, state.reading) {
        (Action::Write(extent), _) => {
            env.model.end_write(op, state.unit, extent, ending == Ending::Good);
            Ok(())
        }
        (Action::Read(extent), Some(reading)) if ending == Ending::Good => {
            let mut seen = Vec::with_capacity(extent.count as usize);
            for (block, bytes) in extent.blocks().zip(state.buffer.chunks(BLOCK)) {
                let author = author(block, bytes);
                seen.push(author.ok_or_else(|| format!("{op}: block {block} is garbage"))?);
            }
            let verdict = env.model.end_read(reading, state.unit, extent, &seen);
            verdict.map_err(|what| format!("{op}: {what}"))
        }
        _ => Ok(()),
    }
}

/// Is the outcome one that this operation can have?
fn judge(
    op: OpId,
    state: &Op,
    outcome: &TaskOutcome,
    abortable: bool,
    may_fail: bool,
) -> Result<Ending, String> {
    match outcome {
        TaskOutcome::Completed { status: 0, residual, data_in_len, .. } => {
            let expected = state.action.data_in_len();
            let (want_residual, want_len) = match state.action {
                Action::Inquire { wanted, .. } if wanted > expected => {
                    (Residual::Overflow(wanted - expected), expected)
                }
                Action::Inquire { wanted, .. } if wanted < expected => {
                    (Residual::Underflow(expected - wanted), wanted)
                }
                _ => (Residual::None, expected),
            };
            if (*residual, *data_in_len) != (want_residual, want_len) {
                return Err(format!("{data_in_len} bytes, residual {residual:?}"));
            }
            Ok(Ending::Good)
        }
        TaskOutcome::Rejected(_) if may_fail => Ok(Ending::Failed),
        TaskOutcome::Completed { status: CHECK_CONDITION, .. } if may_fail => Ok(Ending::Failed),
        // Others of its unit were given up with their connection (§11.14.5).
        TaskOutcome::Completed { status: CHECK_CONDITION, sense: got, .. }
            if got.get(12..14) == Some(&[0x47, 0x7f]) =>
        {
            Ok(Ending::Failed)
        }
        TaskOutcome::Completed { status: CHECK_CONDITION, sense: got, .. } => {
            if *got != sense(op) {
                return Err(format!("sense of another command: {got:?}"));
            }
            Ok(Ending::Failed)
        }
        TaskOutcome::Aborted if abortable => Ok(Ending::Aborted),
        other => Err(format!("ended with {other:?}")),
    }
}
