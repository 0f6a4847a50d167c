//! SANITIZE (SBC-3 §5.24, §4.11): overwrites or erases the whole medium.
//!
//! The work outlives the command, its nexus and every reset: it is handed to the host and goes on
//! to its end. Meanwhile other commands are answered NOT READY with the progress.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use block::{BlockError, Buf, Bytes, Io, WriteFlags};

use crate::abort;
use crate::context::UnitContext;
use crate::host::Host;
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response};

/// Bytes written or erased at a time: keeps progress moving and memory small.
const STEP_BYTES: u64 = 1 << 20;
const ERASE_STEP_BYTES: u64 = 64 << 20;

/// What SANITIZE is doing to a unit, or has done.
#[derive(Default)]
pub(crate) struct Sanitize {
    state: Mutex<State>,
    /// Mirrors `state` for the hot path: [`IDLE`], or anything else.
    busy: AtomicU64,
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    bytes_per_s: Option<NonZeroU32>,
}

const IDLE: u64 = 0;

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Running {
        /// Commands without IMMED, waiting for the end, by number.
        waiting: BTreeMap<u64, Waker>,
        next: u64,
    },
    Failed {
        /// AUSE of the command: EXIT FAILURE MODE is allowed.
        may_exit: bool,
    },
}

impl Sanitize {
    pub(crate) fn new(bytes_per_s: Option<NonZeroU32>) -> Self {
        Self { bytes_per_s, ..Self::default() }
    }

    /// Refuses commands while the medium is being sanitized or after that has failed.
    /// `repairs` is true for SANITIZE itself, which ends a failure.
    pub(crate) fn check(&self, repairs: bool) -> Result<(), Sense> {
        if self.busy.load(Ordering::Acquire) == IDLE {
            return Ok(());
        }
        match *self.lock() {
            State::Running { .. } => Err(self.in_progress()),
            State::Failed { .. } if !repairs => Err(failed()),
            State::Idle | State::Failed { .. } => Ok(()),
        }
    }

    /// What REQUEST SENSE tells.
    pub(crate) fn pending(&self) -> Option<Sense> {
        self.check(false).err()
    }

    fn in_progress(&self) -> Sense {
        let total = self.total_bytes.load(Ordering::Relaxed).max(1);
        let done = self.done_bytes.load(Ordering::Relaxed).min(total);
        let progress = u128::from(done) * 65536 / u128::from(total);
        let in_progress = AdditionalSense::LOGICAL_UNIT_NOT_READY_SANITIZE_IN_PROGRESS;
        Sense::new(SenseKey::NOT_READY, in_progress).with_progress(progress.min(0xffff) as u16)
    }

    /// False when one is running already.
    fn begin(&self, total_bytes: u64) -> bool {
        let mut state = self.lock();
        if matches!(*state, State::Running { .. }) {
            return false;
        }
        *state = State::Running { waiting: BTreeMap::new(), next: 0 };
        self.done_bytes.store(0, Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.busy.store(1, Ordering::Release);
        true
    }

    fn end(&self, failed: bool, may_exit: bool) {
        let mut state = self.lock();
        let next = if failed { State::Failed { may_exit } } else { State::Idle };
        let before = std::mem::replace(&mut *state, next);
        self.busy.store(u64::from(failed), Ordering::Release);
        drop(state);
        if let State::Running { waiting, .. } = before {
            waiting.into_values().for_each(Waker::wake);
        }
    }

    /// Ends the wait of commands, not the work: their nexus wants them gone.
    pub(crate) fn reset(&self) {
        let released = match &mut *self.lock() {
            State::Running { waiting, .. } => std::mem::take(waiting),
            State::Idle | State::Failed { .. } => return,
        };
        released.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed() -> Sense {
    Sense::new(SenseKey::MEDIUM_ERROR, AdditionalSense::SANITIZE_COMMAND_FAILED)
}

/// How the medium is sanitized.
enum Method {
    Overwrite { pattern: Bytes, passes: u8, invert: bool },
    Erase,
}

/// SANITIZE with OVERWRITE.
pub(crate) fn overwrite(context: &UnitContext<'_>, command: Command) -> Execution {
    let list_len = u64::from(command.cdb.u16(7));
    if list_len <= 4 || list_len > context.block_size() + 4 {
        return Sense::invalid_cdb(7, 7).into();
    }
    let Some(list) = command.data_out.get(..list_len as usize) else {
        let short = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
        return Response::check_condition(short).wanting(list_len).into();
    };
    let refuse =
        |byte| Response::check_condition(Sense::invalid_parameter(byte)).wanting(list_len).into();
    let (invert, test, passes) = (list[0] & 0x80 != 0, list[0] >> 5 & 3, list[0] & 0x1f);
    let pattern_len = usize::from(u16::from_be_bytes([list[2], list[3]]));
    if test != 0 || passes == 0 {
        return refuse(0);
    }
    if pattern_len == 0 || pattern_len != list.len() - 4 {
        return refuse(2);
    }
    let pattern = Bytes::copy_from_slice(&list[4..]);
    start(context, &command, Method::Overwrite { pattern, passes, invert }, list_len)
}

/// SANITIZE with BLOCK ERASE.
pub(crate) fn block_erase(context: &UnitContext<'_>, command: Command) -> Execution {
    if command.cdb.u16(7) != 0 {
        return Sense::invalid_cdb(7, 7).into();
    }
    start(context, &command, Method::Erase, 0)
}

/// SANITIZE with EXIT FAILURE MODE.
pub(crate) fn exit_failure_mode(context: &UnitContext<'_>, command: Command) -> Execution {
    if command.cdb.u16(7) != 0 {
        return Sense::invalid_cdb(7, 7).into();
    }
    let sanitize = &context.unit.sanitize;
    match *sanitize.lock() {
        State::Failed { may_exit: false } => return Sense::invalid_cdb(1, 4).into(),
        State::Running { .. } => return sanitize.in_progress().into(),
        State::Idle | State::Failed { may_exit: true } => {}
    }
    sanitize.end(false, false);
    Response::good().into()
}

fn start(context: &UnitContext<'_>, command: &Command, method: Method, wanted: u64) -> Execution {
    let (immediate, may_exit) = (command.cdb.bit(1, 7), command.cdb.bit(1, 5));
    let (task, unit) = (context.task(command), context.unit.clone());
    let passes = match &method {
        Method::Overwrite { passes, .. } => u64::from(*passes),
        Method::Erase => 1,
    };
    let size = context.info.size;
    if !unit.sanitize.begin(size.saturating_mul(passes)) {
        return unit.sanitize.in_progress().into();
    }
    tracing::warn!(lun = %unit.lun, initiator = context.nexus.port(), "sanitizing the medium");
    let host = context.nexus.target.host();
    let work = {
        let (unit, host) = (unit.clone(), host.clone());
        async move {
            let result = run(&unit, &*host, size, &method).await;
            match &result {
                Ok(()) => tracing::info!(lun = %unit.lun, "sanitized"),
                Err(error) => tracing::error!(lun = %unit.lun, %error, "sanitizing failed"),
            }
            unit.sanitize.end(result.is_err(), may_exit);
        }
    };
    host.spawn(Box::pin(work));
    if immediate {
        return Response::good().wanting(wanted).into();
    }
    Execution::later(async move {
        // The command is let go; what it has begun goes on whatever ends it (SBC-3 §4.11.2).
        match task.unless_aborted(finished(&unit)).await {
            Some(result) => {
                result.map_or_else(Response::check_condition, |()| Response::good()).wanting(wanted)
            }
            None => abort::aborted(),
        }
    })
}

/// The end of the work, or of the wait for it.
async fn finished(unit: &Arc<LogicalUnit>) -> Result<(), Sense> {
    let mut number = None;
    std::future::poll_fn(|context| match &mut *unit.sanitize.lock() {
        State::Running { waiting, next } => {
            let registered = number.is_some();
            let number = *number.get_or_insert(*next);
            if registered && !waiting.contains_key(&number) {
                return Poll::Ready(()); // let go by a reset
            }
            *next += u64::from(!registered);
            waiting.insert(number, context.waker().clone());
            Poll::Pending
        }
        State::Idle | State::Failed { .. } => Poll::Ready(()),
    })
    .await;
    unit.sanitize.check(false)
}

async fn run(
    unit: &LogicalUnit,
    host: &dyn Host,
    size: u64,
    method: &Method,
) -> Result<(), BlockError> {
    // Behind everything that was under way; new commands are refused already.
    let _guard = match unit.ranges.exclusive(0..u64::MAX) {
        Ok(guard) => guard,
        Err(waiting) => waiting.await,
    };
    match method {
        Method::Erase => {
            for_each_step(unit, host, size, ERASE_STEP_BYTES, |offset, len| {
                unit.device.trim(offset, len)
            })
            .await?;
        }
        Method::Overwrite { pattern, passes, invert } => {
            let block_size = unit.device.info().block_size as usize;
            for pass in 0..*passes {
                // With INVERT every other pass is inverted, the last one never (SBC-3 §5.24.2.2).
                let inverted = *invert && (passes - pass).is_multiple_of(2);
                let data = repeated(pattern, block_size, size.min(STEP_BYTES) as usize, inverted);
                for_each_step(unit, host, size, STEP_BYTES, |offset, len| {
                    let data = data.slice(..len as usize);
                    unit.device.write(offset, data, WriteFlags::NONE)
                })
                .await?;
                unit.device.flush().await?;
            }
        }
    }
    unit.device.flush().await
}

async fn for_each_step(
    unit: &LogicalUnit,
    host: &dyn Host,
    size: u64,
    step: u64,
    operation: impl Fn(u64, u64) -> Io<()>,
) -> Result<(), BlockError> {
    let mut offset = 0;
    while offset < size {
        let len = step.min(size - offset);
        operation(offset, len).await?;
        offset += len;
        unit.sanitize.done_bytes.fetch_add(len, Ordering::Relaxed);
        match unit.sanitize.bytes_per_s.filter(|_| step == STEP_BYTES) {
            Some(rate) => host.pause(time_of(len, rate)).await,
            None => yield_now().await,
        }
    }
    Ok(())
}

/// How long so many bytes take at a rate.
fn time_of(len: u64, bytes_per_s: NonZeroU32) -> Duration {
    Duration::from_secs_f64(len as f64 / f64::from(bytes_per_s.get()))
}

/// Every block begins with the pattern.
fn repeated(pattern: &[u8], block_size: usize, len: usize, inverted: bool) -> Bytes {
    let mut buf = Buf::new(len);
    for block in buf.chunks_mut(block_size) {
        for part in block.chunks_mut(pattern.len()) {
            part.copy_from_slice(&pattern[..part.len()]);
        }
    }
    if inverted {
        buf.iter_mut().for_each(|byte| *byte = !*byte);
    }
    buf.freeze()
}

/// Lets other work of the same thread go on: memory is always ready.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
