//! Compares a leg with the local device while both are in use. What is compared is held meanwhile,
//! and what differs is looked at again: a difference that is told is one.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use super::super::BLOCK_BYTES;
use super::super::error::MirrorError;
use super::session::Session;
use super::shared::Shared;
use super::{VerifyOptions, VerifyReport};
use crate::range_lock::held;
use crate::{Buf, Result};

/// Bytes compared at once. The user's changes of them wait as long as it takes.
const PIECE_BYTES: u64 = 256 << 10;

/// Pieces under way: 16 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const PIECES: usize = 64;

/// Offsets told in a report: enough to see a pattern.
const OFFSETS_MAX: usize = 16;

/// Looks at blocks that differ once more before that is told: a device that answered a read late
/// with what it had before a write has answered since.
const LOOKS: usize = 2;

/// What became of a piece.
struct Compared {
    bytes: u64,
    skipped_bytes: u64,
    different: Vec<u64>,
}

/// Compares all of it.
pub(super) async fn verify(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    options: VerifyOptions,
) -> std::result::Result<VerifyReport, MirrorError> {
    let (mut report, mut under_way) = (VerifyReport::default(), FuturesUnordered::new());
    let (mut block, end) = (0, shared.blocks());
    let per_piece = PIECE_BYTES / BLOCK_BYTES;
    let mut next_at = shared.host().now();
    loop {
        while block < end && under_way.len() < PIECES {
            let blocks = block..(block + per_piece).min(end);
            block = blocks.end;
            let begin = next_at.saturating_sub(shared.host().now());
            if let Some(rate) = options.bytes_per_s.filter(|rate| *rate > 0) {
                let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
                let took = Duration::from_secs_f64(bytes as f64 / rate as f64);
                next_at = next_at.max(shared.host().now()) + took;
            }
            under_way.push(piece(shared, leg, session, blocks, begin));
        }
        let Some(compared) = under_way.next().await else { break };
        let compared = compared.map_err(|source| MirrorError::device("verifying", source))?;
        report.bytes += compared.bytes;
        report.skipped_bytes += compared.skipped_bytes;
        for block in compared.different {
            report.mismatches += 1;
            if report.offsets.len() < OFFSETS_MAX {
                report.offsets.push(block * BLOCK_BYTES);
            }
            if options.heal {
                shared.legs().differ(Some(leg), block..block + 1);
                report.healed += 1;
            }
        }
    }
    report.offsets.sort_unstable();
    Ok(report)
}

async fn piece(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    blocks: Range<u64>,
    begin: Duration,
) -> Result<Compared> {
    if !begin.is_zero() {
        shared.host().sleep(begin).await;
    }
    let (offset, len) = bytes_of(shared, &blocks);
    let _lock = held(shared.locks().exclusive(offset..offset + len)).await;
    let mut compared = Compared { bytes: len, skipped_bytes: 0, different: Vec::new() };
    // Under the lock nothing is under way: what is owed was not brought yet, all else must be equal.
    // In the asynchronous mode what the log has not brought is left out as well.
    let owed = |block: u64| shared.legs().may_differ(leg, block);
    let mut suspects: Vec<u64> = blocks.clone().filter(|block| !owed(*block)).collect();
    compared.skipped_bytes = (blocks.end - blocks.start - suspects.len() as u64) * BLOCK_BYTES;
    compared.bytes = len.saturating_sub(compared.skipped_bytes);
    for _ in 0..LOOKS {
        if suspects.is_empty() {
            break;
        }
        let different = compare(shared, session, offset, len, blocks.start).await?;
        suspects.retain(|block| different.contains(block));
    }
    compared.different = suspects;
    Ok(compared)
}

fn bytes_of(shared: &Shared, blocks: &Range<u64>) -> (u64, u64) {
    let end = (blocks.end * BLOCK_BYTES).min(shared.size());
    (blocks.start * BLOCK_BYTES, end - blocks.start * BLOCK_BYTES)
}

/// The blocks that differ now.
async fn compare(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    offset: u64,
    len: u64,
    first: u64,
) -> Result<Vec<u64>> {
    let len = len as usize;
    let here = shared.local().read(offset, Buf::new(len));
    let there = session.run(|device| device.read(offset, Buf::new(len)));
    let (here, there) = join(here, there).await;
    let (here, there) = (here?, there?);
    let blocks = here.chunks(BLOCK_BYTES as usize).zip(there.chunks(BLOCK_BYTES as usize));
    Ok((first..).zip(blocks).filter(|(_, (a, b))| a != b).map(|(block, _)| block).collect())
}
