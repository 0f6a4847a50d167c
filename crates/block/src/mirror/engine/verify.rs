//! Compares a leg with the local device while both are in use. What is compared is held meanwhile,
//! and what differs is looked at again: a difference that is told is one. What both say is a hole
//! reads as zeroes at both, and is not read.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use super::super::BLOCK_BYTES;
use super::super::config::ResyncRate;
use super::super::error::MirrorError;
use super::piece::{self, Map};
use super::resync_rate::Pacer;
use super::session::Session;
use super::shared::Shared;
use super::{VerifyOptions, VerifyReport};
use crate::range_lock::held;
use crate::{Buf, Result};

/// Bytes compared at once. The user's changes of them wait as long as it takes.
const PIECE_BYTES: u64 = 256 << 10;

/// Parts under way: 16 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const PARTS: usize = 64;

/// Offsets told in a report: enough to see a pattern.
const OFFSETS_MAX: usize = 16;

/// Looks at blocks that differ once more before that is told: a device that answered a read late
/// with what it had before a write has answered since.
const LOOKS: usize = 2;

/// Bytes of a hole that the leg is asked about at once.
const HOLE_BYTES: u64 = 64 << 20;

/// A part to be compared.
struct Part {
    blocks: Range<u64>,
    /// The local device has nothing there.
    hole: bool,
}

/// What became of a part.
enum Compared {
    Done(Done),
    /// It is no hole there, or not known for one, and has to be read.
    NoHole(Range<u64>),
}

/// What a part that was compared has shown.
#[derive(Default)]
struct Done {
    bytes: u64,
    /// Bytes of blocks that changed meanwhile, so that nothing can be said of them.
    skipped_bytes: u64,
    different: Vec<u64>,
}

/// What is to be compared yet.
struct Parts {
    ahead: Range<u64>,
    map: Map,
    /// Taken for holes first.
    again: VecDeque<Range<u64>>,
    asks_for_holes: bool,
}

impl Parts {
    async fn next(&mut self, shared: &Shared) -> Result<Option<Part>> {
        let per_part = PIECE_BYTES / BLOCK_BYTES;
        if let Some(blocks) = self.again.front_mut() {
            let end = (blocks.start + per_part).min(blocks.end);
            let part = Part { blocks: blocks.start..end, hole: false };
            blocks.start = end;
            if blocks.is_empty() {
                self.again.pop_front();
            }
            return Ok(Some(part));
        }
        let start = self.ahead.start;
        if self.ahead.is_empty() {
            return Ok(None);
        }
        let extent = self.map.extent(shared, start * BLOCK_BYTES).await?;
        let hole_end = (extent.offset + extent.len) / BLOCK_BYTES;
        let hole = self.asks_for_holes && extent.hole && hole_end >= start + per_part;
        let end =
            if hole { hole_end.min(start + HOLE_BYTES / BLOCK_BYTES) } else { start + per_part };
        let end = end.min(self.ahead.end);
        self.ahead.start = end;
        Ok(Some(Part { blocks: start..end, hole }))
    }
}

/// Compares all of it.
pub(super) async fn verify(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    options: VerifyOptions,
) -> std::result::Result<VerifyReport, MirrorError> {
    let rate = match options.bytes_per_s {
        Some(rate) if rate > 0 => ResyncRate::BytesPerS(rate),
        _ => ResyncRate::Max,
    };
    let plan = Plan { from: 0, rate, heal: options.heal, parts: PARTS };
    compare_all(shared, leg, session, plan, |_, _| true).await.map(|(report, _)| report)
}

/// What is compared, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The first block.
    pub(super) from: u64,
    /// How fast.
    pub(super) rate: ResyncRate,
    /// What differs is written again.
    pub(super) heal: bool,
    /// Parts under way at most.
    pub(super) parts: usize,
}

/// Compares to the end, or until `go_on` says no, which is asked for each part, with the first
/// block that was not compared by then and what was found before that block. Returns that block, if
/// it did, and no more than was found before it.
pub(super) async fn compare_all(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    plan: Plan,
    mut go_on: impl FnMut(u64, &VerifyReport) -> bool + Send,
) -> std::result::Result<(VerifyReport, Option<u64>), MirrorError> {
    let failed = |source| MirrorError::device("verifying", source);
    let (mut report, mut under_way) = (VerifyReport::default(), FuturesUnordered::new());
    let (mut pacer, mut starts, mut asked_for) = (Pacer::default(), BTreeSet::new(), 0);
    let (mut stops, mut ahead) = (None, BTreeMap::new());
    let mut parts = Parts {
        ahead: plan.from.min(shared.blocks())..shared.blocks(),
        map: Map::default(),
        again: VecDeque::new(),
        asks_for_holes: session.info().can_extents,
    };
    let mut next_at = shared.host().now();
    loop {
        while under_way.len() < plan.parts {
            let Some(part) = parts.next(shared).await.map_err(failed)? else { break };
            let now = shared.host().now();
            let begin = next_at.saturating_sub(now);
            if !part.hole {
                let bytes = (part.blocks.end - part.blocks.start) * BLOCK_BYTES;
                next_at = pacer.next_after(plan.rate, (now, next_at.max(now)), bytes, asked_for);
                asked_for += bytes;
            }
            let start = part.blocks.start;
            starts.insert(start);
            let compared = compared(shared, leg, session, part, begin);
            under_way.push(async move { (start, compared.await) });
        }
        let Some((start, compared)) = under_way.next().await else { break };
        starts.remove(&start);
        match compared.map_err(failed)? {
            Compared::NoHole(blocks) => parts.again.push_back(blocks),
            Compared::Done(done) => {
                if plan.heal {
                    for block in &done.different {
                        shared.legs().differ(Some(leg), *block..*block + 1);
                    }
                }
                ahead.insert(start, done);
            }
        }
        let again = parts.again.iter().map(|blocks| blocks.start).min();
        let next =
            starts.first().copied().into_iter().chain(again).fold(parts.ahead.start, u64::min);
        while let Some(done) = ahead.first_entry().filter(|done| *done.key() < next) {
            done.remove().add_to(&mut report, plan.heal);
        }
        if !go_on(next, &report) && next < shared.blocks() {
            stops = Some(next);
            break;
        }
    }
    report.offsets.sort_unstable();
    Ok((report, stops))
}

impl Done {
    fn add_to(self, report: &mut VerifyReport, healed: bool) {
        report.bytes += self.bytes;
        report.skipped_bytes += self.skipped_bytes;
        report.mismatches += self.different.len() as u64;
        report.healed += if healed { self.different.len() as u64 } else { 0 };
        let room = OFFSETS_MAX - report.offsets.len();
        report.offsets.extend(self.different.iter().take(room).map(|block| block * BLOCK_BYTES));
    }
}

async fn compared(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    part: Part,
    begin: Duration,
) -> Result<Compared> {
    if !begin.is_zero() {
        shared.host().sleep(begin).await;
    }
    let (offset, len) = bytes_of(shared, &part.blocks);
    let _lock = held(shared.locks().exclusive(offset..offset + len)).await;
    if !part.hole {
        return read(shared, leg, session, part.blocks).await;
    }
    // What is owed was data here, or will be a hole there. What was written since it was looked at
    // is under way no more.
    let same = !shared.legs().may_differ(leg, part.blocks.clone())
        && piece::is_hole(shared, offset, len).await?
        && piece::says_hole(session, offset, len).await?;
    Ok(match same {
        true => Compared::Done(Done { bytes: len, ..Done::default() }),
        false => Compared::NoHole(part.blocks),
    })
}

/// Reads what is held and compares it.
async fn read(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    blocks: Range<u64>,
) -> Result<Compared> {
    let (offset, len) = bytes_of(shared, &blocks);
    // Nothing is under way: what is owed was not brought yet, all else must be equal. In the
    // asynchronous mode what the log has not brought is left out as well.
    let owed = |block: u64| shared.legs().may_differ(leg, block..block + 1);
    let mut suspects: Vec<u64> = blocks.clone().filter(|block| !owed(*block)).collect();
    let skipped_bytes = (blocks.end - blocks.start - suspects.len() as u64) * BLOCK_BYTES;
    for _ in 0..LOOKS {
        if suspects.is_empty() {
            break;
        }
        let different = compare(shared, session, offset, len, blocks.start).await?;
        suspects.retain(|block| different.contains(block));
    }
    let bytes = len.saturating_sub(skipped_bytes);
    Ok(Compared::Done(Done { bytes, skipped_bytes, different: suspects }))
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
