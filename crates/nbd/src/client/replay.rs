//! Carries out what durability asks of new connections before requests of users go: writes again
//! what is acknowledged and unflushed, and flushes it. Which data that is, is decided in
//! `durability`.

use block::{Buf, Bytes};
use durability::{Cache, Content, Refusal, Step};

use super::geometry::{ZERO_LEN_MAX, pieces};
use super::handshake::Agreed;
use super::op::{Failure, Op, Origin};
use super::shared::{Pending, Shared};
use crate::wire::TransmissionFlags;

/// What the flags say of a cache.
pub(super) const fn cache(flags: TransmissionFlags) -> Cache {
    if flags.contains(TransmissionFlags::SEND_FLUSH) {
        Cache::Volatile
    } else if flags.contains(TransmissionFlags::SEND_FUA) {
        Cache::Absent // every write is sent with FUA then
    } else {
        Cache::Unflushable
    }
}

/// Until requests of users may go. False if the connections were lost meanwhile.
pub(super) async fn replay(shared: &Shared) -> bool {
    let (agreed, mut step) = {
        let mut state = shared.lock();
        let agreed = state.agreed;
        if state.generation > 0 && std::mem::take(&mut state.wrote_unflushable) {
            state.durability.not_told(Failure::Medium(
                "the connection to a server that cannot flush was lost: what was written before \
                 may be lost"
                    .into(),
            ));
        }
        if state.generation > 0 {
            // Whether the server was restarted, or lost a connection only, nobody can tell.
            state.durability.power_on();
        }
        let lost = |bytes| Failure::Medium(format!("{bytes} unflushed bytes are lost"));
        (agreed, state.durability.begin(cache(agreed.flags), lost))
    };
    if step != Step::Open {
        let bytes = shared.lock().durability.unflushed().cost();
        tracing::info!(bytes, "writing again what was not flushed");
    }
    loop {
        step = match step {
            Step::Open => return true,
            Step::Write(contents) => {
                let Some(refusal) = write(shared, &agreed, contents).await else { return false };
                shared.lock().durability.written(refusal.map(Refusal::Failed))
            }
            Step::Flush => {
                let refusal = match agreed.flags.contains(TransmissionFlags::SEND_FLUSH) {
                    true => match all(vec![shared.ask(Op::Flush, None, Origin::Replay)]).await {
                        Some(refusal) => refusal,
                        None => return false,
                    },
                    // It was written with FUA.
                    false if agreed.flags.contains(TransmissionFlags::SEND_FUA) => None,
                    false => Some(Failure::Unsupported("flushing")),
                };
                shared.lock().durability.stable(refusal.map(Refusal::Failed))
            }
        };
    }
}

/// Writes it all; `None` if the connections were lost, else the first failure.
async fn write(
    shared: &Shared,
    agreed: &Agreed,
    contents: Vec<(u64, Content)>,
) -> Option<Option<Failure>> {
    let fua = cache(agreed.flags) == Cache::Absent;
    let step = u64::from(agreed.payload_len_max);
    let can_zero = agreed.flags.contains(TransmissionFlags::SEND_WRITE_ZEROES);
    let mut pending = Vec::new();
    for (offset, content) in contents {
        let len = content.len();
        match content {
            Content::Data(data) => {
                for (at, len) in pieces(offset, len, step) {
                    let from = (at - offset) as usize;
                    let data = data.slice(from..from + len as usize);
                    pending.push(shared.ask(
                        Op::Write { offset: at, data, fua },
                        None,
                        Origin::Replay,
                    ));
                }
            }
            Content::Zeroes(_) if can_zero => {
                for (offset, len) in pieces(offset, len, ZERO_LEN_MAX) {
                    let op = Op::Zero { offset, len: len as u32, fua, may_trim: true };
                    pending.push(shared.ask(op, None, Origin::Replay));
                }
            }
            Content::Zeroes(_) => {
                let zeroes = Bytes::from_owner(Buf::zeroed(step.min(len) as usize));
                for (offset, len) in pieces(offset, len, step) {
                    let data = zeroes.slice(..len as usize);
                    pending.push(shared.ask(Op::Write { offset, data, fua }, None, Origin::Replay));
                }
            }
        }
    }
    all(pending).await
}

/// Waits for all; `None` if one was lost, else the first failure.
async fn all(pending: Vec<Pending>) -> Option<Option<Failure>> {
    let mut first = None;
    for answer in pending {
        if let Err(failure) = answer.await.ok()? {
            first.get_or_insert(failure);
        }
    }
    Some(first)
}
