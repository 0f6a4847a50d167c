//! Looks at a leg for what is there already of all that it may lack. After a power cut here whole
//! extents may differ, in which next to nothing does: what is left then fits the
//! [redo log](super::atomic), and the image there stays one of one moment. The leg is only read.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::piece::{self, Pieces};
use super::session::Session;
use super::shared::Shared;
use super::signal::{Either, either};
use crate::Result;

/// Pieces under way: 16 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const PIECES: usize = 64;

/// Looks once through all that is owed, as fast as a copy may go, until more than `blocks_max`
/// blocks differ. What is there counts as copied, and all else is owed as before.
///
/// # Errors
/// The use of the leg has ended, or the local device cannot be read.
pub(super) async fn look(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    blocks_max: u64,
) -> Result<()> {
    let (mut pieces, mut under_way) =
        (Pieces::new(session.info(), shared), FuturesUnordered::new());
    let (mut different, mut is_last, mut next_at) = (0, false, Duration::ZERO);
    loop {
        session.check().and_then(|()| shared.check_usable())?;
        let wants_more = !is_last && different <= blocks_max;
        if !wants_more && under_way.is_empty() {
            return Ok(());
        }
        let now = shared.host().now();
        let begins = wants_more && under_way.len() < PIECES;
        if begins && now >= next_at {
            match pieces.next(shared, leg, piece::DATA_BYTES).await? {
                Some(piece) => {
                    next_at = shared.pace(leg, next_at.max(now), piece.wire_bytes());
                    under_way.push(piece::look(shared, leg, session, piece));
                }
                None => is_last = true,
            }
            continue;
        }
        let wait = || either(shared.host().sleep(next_at - now), session.over());
        if let Some(looked) = answer(&mut under_way, begins.then(wait)).await {
            let looked = looked?;
            different += looked.different;
            if looked.more_bytes > 0 {
                // What was waited for may have taken a round trip: it is later than `now`.
                let begin = next_at.max(shared.host().now());
                next_at = shared.pace(leg, begin, looked.more_bytes);
            }
        }
    }
}

/// What the next piece that is answered shows; `None` when `wait` ends before that.
async fn answer<P: Future>(
    under_way: &mut FuturesUnordered<P>,
    wait: Option<impl Future>,
) -> Option<P::Output> {
    match wait {
        Some(wait) if under_way.is_empty() => {
            wait.await;
            None
        }
        Some(wait) => match either(under_way.next(), wait).await {
            Either::Left(answered) => answered,
            Either::Right(_) => None,
        },
        None => under_way.next().await,
    }
}
