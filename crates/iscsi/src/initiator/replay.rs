//! Carries out what durability asks of a new incarnation before commands of the user go: writes
//! again, flushes, in portions. What, and what a refusal means, is decided in
//! `iscsi_proto::initiator::durability`.

use block::{BlockError, Bytes};
use futures_util::StreamExt;
use futures_util::stream::iter;
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::{Cache, Content, Durability, Refusal, Step};
use std::sync::atomic::Ordering;

use super::cdb;
use super::failure::Failure;
use super::probe::{ProbeError, Prober, Unit};
use super::sense::{Verdict, judge, judge_stable};
use super::shared::Shared;
use super::state::command;

/// Commands of a replay under way at once.
const REPLAY_DEPTH: usize = 16;
/// Unit attentions that may interrupt one command of a replay.
const REPLAY_ATTEMPTS_MAX: u32 = 8;

/// Does all that is to be done. No limit of time as a whole: much may have to be written over a
/// slow line. Each command has its own (`Config::command_timeout`).
///
/// # Errors
/// The incarnation ended on the way; what was to be written is still kept.
pub(super) async fn replay(prober: &Prober<'_>, unit: &Unit) -> Result<(), ProbeError> {
    let is_changed = prober.shared.lock().unit_changed;
    let cache = if is_changed { Cache::Unknown } else { unit.cache };
    let mut step = ask(prober, |durability| durability.begin(cache, Failure::lost))?;
    let unflushed = prober.shared.lock().durability.unflushed().cost();
    if step != Step::Open {
        tracing::info!("writing again what was not flushed, about {unflushed} bytes");
    }
    loop {
        step = match step {
            Step::Open => return Ok(()),
            Step::Write(pieces) => {
                let refusal = write_all(prober, unit, pieces).await?;
                ask(prober, |durability| durability.written(refusal))?
            }
            Step::Flush => match flush(prober).await? {
                Err(Refused::Unsupported) => ask(prober, |durability| {
                    if durability.cache() != Cache::Absent {
                        durability.no_flush();
                    }
                    durability.stable(None)
                })?,
                Err(Refused::Otherwise(refusal)) => {
                    ask(prober, |durability| durability.stable(Some(refusal)))?
                }
                Ok(()) => ask(prober, |durability| durability.stable(None))?,
            },
        };
        note_progress(prober.shared);
    }
}

/// Asks, if it is still this incarnation that is being set up.
fn ask<R>(
    prober: &Prober<'_>,
    question: impl FnOnce(&mut Durability<Failure>) -> R,
) -> Result<R, ProbeError> {
    let mut state = prober.shared.lock();
    if state.incarnation != prober.incarnation || state.ended.is_some() {
        let source = super::state::session_ended();
        return Err(ProbeError::Command { command: "writing again", source });
    }
    Ok(question(&mut state.durability))
}

/// The target is there, whatever the replacement timeout may think.
fn note_progress(shared: &Shared) {
    let now = shared.now();
    shared.lock().progress_at = now;
}

enum Refused {
    /// The unit does not know the command.
    Unsupported,
    Otherwise(Refusal<Failure>),
}

/// Writes all pieces, those behind one that is refused, too. `Some`: the first refusal.
async fn write_all(
    prober: &Prober<'_>,
    unit: &Unit,
    pieces: Vec<(u64, Content)>,
) -> Result<Option<Refusal<Failure>>, ProbeError> {
    let zeroes = Bytes::from(vec![0; unit.transfer_len as usize]);
    let writes = pieces.into_iter().flat_map(|(offset, content)| {
        let step = u64::from(unit.transfer_len);
        let zeroes = zeroes.clone();
        let is_short = !unit.no_write_same.load(Ordering::Relaxed);
        let step = match &content {
            Content::Zeroes(_) if is_short => unit.write_same_len.max(1),
            _ => step,
        };
        (0..content.len()).step_by(step as usize).map(move |from| {
            let to = content.len().min(from + step);
            match &content {
                Content::Data(data) => {
                    Again::Write(offset + from, data.slice(from as usize..to as usize))
                }
                Content::Zeroes(_) if is_short => Again::Zero(offset + from, to - from),
                Content::Zeroes(_) => {
                    Again::Write(offset + from, zeroes.slice(..(to - from) as usize))
                }
            }
        })
    });
    let writes = writes.map(|again| write(prober, unit, again, zeroes.clone()));
    let mut results = iter(writes).buffer_unordered(REPLAY_DEPTH);
    let mut refusal = None;
    while let Some(result) = results.next().await {
        note_progress(prober.shared);
        match result? {
            Ok(()) => {}
            // Fenced off, the others are not to be written either.
            Err(Refused::Otherwise(Refusal::Fenced(failure))) => {
                return Ok(Some(Refusal::Fenced(failure)));
            }
            Err(Refused::Otherwise(other)) => drop(refusal.get_or_insert(other)),
            Err(Refused::Unsupported) => {
                let error = BlockError::Unsupported("WRITE");
                refusal.get_or_insert(failed(&error));
            }
        }
    }
    Ok(refusal)
}

/// One command's worth.
enum Again {
    Write(u64, Bytes),
    Zero(u64, u64),
}

async fn write(
    prober: &Prober<'_>,
    unit: &Unit,
    again: Again,
    zeroes: Bytes,
) -> Result<Result<(), Refused>, ProbeError> {
    let block_len = u64::from(unit.info.block_size);
    let lun = prober.shared.url.wire_lun();
    let write = |offset: u64, data: Bytes| {
        let blocks = (data.len() as u64 / block_len) as u32; // at most one transfer
        let cdb = cdb::write(offset / block_len, blocks, false);
        send(prober, "WRITE", Command { data_out: data, ..command(lun, cdb) }, judge)
    };
    let (at, len) = match again {
        Again::Write(offset, data) => return write(offset, data).await,
        Again::Zero(at, len) => (at, len),
    };
    let data_out = zeroes.slice(..block_len as usize);
    let cdb = cdb::write_same16(at / block_len, (len / block_len) as u32, false, false);
    match send(prober, "WRITE SAME", Command { data_out, ..command(lun, cdb) }, judge).await? {
        Err(Refused::Unsupported) => unit.no_write_same.store(true, Ordering::Relaxed),
        result => return Ok(result),
    }
    let step = u64::from(unit.transfer_len);
    for from in (0..len).step_by(step as usize) {
        let data = zeroes.slice(..len.min(from + step).saturating_sub(from) as usize);
        if let Err(refused) = write(at + from, data).await? {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

async fn flush(prober: &Prober<'_>) -> Result<Result<(), Refused>, ProbeError> {
    let flush = command(prober.shared.url.wire_lun(), cdb::synchronize_cache());
    send(prober, "SYNCHRONIZE CACHE", flush, judge_stable).await
}

fn failed(error: &BlockError) -> Refusal<Failure> {
    Refusal::Failed(Failure::new("unflushed data could not be written again", error))
}

/// Sends until there is an answer that counts.
async fn send(
    prober: &Prober<'_>,
    name: &'static str,
    command: Command,
    judge: fn(u8, &[u8], u32) -> Verdict,
) -> Result<Result<(), Refused>, ProbeError> {
    for attempts in 0..REPLAY_ATTEMPTS_MAX {
        let sent = prober.send(command.clone()).await;
        let reply = sent.map_err(|source| ProbeError::Command { command: name, source })?;
        match judge(reply.status, &reply.sense, attempts) {
            Verdict::Done => return Ok(Ok(())),
            Verdict::Again(_) => {}
            Verdict::Later(pause) | Verdict::Full(pause) => tokio::time::sleep(pause).await,
            Verdict::Failed(BlockError::Unsupported(_)) => return Ok(Err(Refused::Unsupported)),
            Verdict::Failed(error @ BlockError::Fenced) => {
                let what = "unflushed data must not be written again";
                tracing::error!("{}: {what}: {error}", prober.shared.url);
                let fenced = Refusal::Fenced(Failure::new(what, &error));
                return Ok(Err(Refused::Otherwise(fenced)));
            }
            Verdict::Failed(error) => return Ok(Err(Refused::Otherwise(failed(&error)))),
        }
    }
    let source = BlockError::Unreachable("the unit does not become ready".into());
    Err(ProbeError::Command { command: name, source })
}
