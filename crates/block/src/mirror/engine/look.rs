//! Looks at a leg for what is there already of all that it may lack. After a power cut here whole
//! extents may differ, in which next to nothing does: what is left then fits the
//! [redo log](super::atomic), and the image there stays one of one moment. The leg is only read.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::piece::{self, Pieces};
use super::session::Session;
use super::shared::Shared;
use crate::Result;

/// Pieces under way: 16 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const PIECES: usize = 64;

/// Looks once through all that is owed, until more than `blocks_max` blocks differ. What is there
/// counts as copied, and all else is owed as before.
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
    let (mut different, mut is_last) = (0, false);
    loop {
        while !is_last && different <= blocks_max && under_way.len() < PIECES {
            session.check().and_then(|()| shared.check_usable())?;
            match pieces.next(shared, leg, piece::DATA_BYTES).await? {
                Some(piece) => under_way.push(piece::look(shared, leg, session, piece)),
                None => is_last = true,
            }
        }
        match under_way.next().await {
            Some(of_piece) => different += of_piece?,
            None => return Ok(()),
        }
    }
}
