//! [`Span`]: what a pass reads at once of what is owed. Scattered blocks that lie close together
//! are read with what is between them, since one read costs more than the bytes in a small gap; and
//! spans are read beside each other, since a pass that takes long leaves much to the next one.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::super::BLOCK_BYTES;
use super::super::epoch::{Content, Piece};
use super::piece::{self, Pieces};
use super::read;
use super::session::Session;
use super::shared::Shared;
use crate::range_lock::held;
use crate::{BlockError, Buf, Bytes, Result};

/// Blocks between two that are owed, at most, which are read with them: 64 KiB are copied from the
/// page cache in the time that a read of its own takes.
const GAP_BLOCKS: u64 = 16;

/// Bytes that are owed of what is read at once.
const GROUP_BYTES: u64 = 4 << 20;

/// Spans that are read at once.
const GROUP_SPANS: usize = 64;

/// Blocks that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    blocks: Range<u64>,
    hole: bool,
}

impl Span {
    /// These blocks behind it can be read with it.
    fn reaches(&self, next: &Span) -> bool {
        let near = self.blocks.end <= next.blocks.start
            && next.blocks.start - self.blocks.end <= GAP_BLOCKS;
        let bytes = (next.blocks.end.saturating_sub(self.blocks.start)) * BLOCK_BYTES;
        near && bytes <= piece::DATA_BYTES && !self.hole && !next.hole
    }
}

/// Adds blocks to a group in ascending order.
fn join(group: &mut Vec<Span>, next: Span) {
    match group.last_mut() {
        Some(last) if last.reaches(&next) => last.blocks.end = next.blocks.end,
        _ => group.push(next),
    }
}

/// What a pass reads at once.
pub(super) struct Group {
    /// In ascending order.
    spans: Vec<Span>,
    /// It is the last one of its pass.
    pub(super) is_last: bool,
}

/// A leg is used by somebody else, or not at all.
pub(super) fn gone() -> BlockError {
    BlockError::Unreachable("the leg is not in use any more".to_owned())
}

/// The next spans of a pass.
///
/// # Errors
/// The local device's.
pub(super) async fn next_group(pieces: &mut Pieces, shared: &Shared, leg: usize) -> Result<Group> {
    let mut spans: Vec<Span> = Vec::new();
    let mut bytes = 0;
    while spans.len() < GROUP_SPANS && bytes < GROUP_BYTES {
        let Some(piece) = pieces.next(shared, leg, piece::DATA_BYTES).await? else {
            return Ok(Group { spans, is_last: true });
        };
        bytes += piece.bytes();
        join(&mut spans, Span { blocks: piece.blocks(), hole: piece.is_hole() });
    }
    Ok(Group { spans, is_last: false })
}

/// Reads what is owed to a leg.
pub(super) struct Reader<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) leg: usize,
    pub(super) session: &'a Arc<Session>,
    /// Nothing changes anywhere meanwhile.
    pub(super) all_held: bool,
}

impl Reader<'_> {
    /// Reads what is owed of a group, in ascending order. It counts as copied.
    ///
    /// # Errors
    /// The local device's, or the leg is not in use any more.
    pub(super) async fn take(&self, group: Group) -> Result<Vec<Piece>> {
        let taken = try_join_all(group.spans.into_iter().map(|span| self.take_span(span))).await?;
        Ok(taken.into_iter().flatten().collect())
    }

    async fn take_span(&self, span: Span) -> Result<Vec<Piece>> {
        let bytes = span.blocks.start * BLOCK_BYTES..span.blocks.end * BLOCK_BYTES;
        let _lock = match self.all_held {
            false => Some(held(self.shared.locks().exclusive(bytes)).await),
            true => None,
        };
        let runs = self.owed(&span);
        let whole = self.read_whole(&span, &runs).await;
        let mut taken = Vec::new();
        for run in runs {
            let (offset, len) = self.place(&run);
            let content = match &whole {
                Some(whole) => part(whole, offset - span.blocks.start * BLOCK_BYTES, len),
                None if span.hole && piece::is_hole(self.shared, offset, len).await? => {
                    Content::Zero(len)
                }
                None => {
                    Content::of(read::read_held(self.shared, offset, len as usize).await?.freeze())
                }
            };
            let legs = self.shared.legs();
            if !legs.begin_copy(self.leg, self.session, run.clone()) {
                return Err(gone());
            }
            taken.push(Piece { offset, content });
            // It becomes clean with a flush that is asked for when the batch is home, and not
            // before.
            legs.copy_ended(self.leg, self.session, run.clone(), true);
            legs.copied(self.leg, run.end - run.start, 0);
        }
        Ok(taken)
    }

    /// What is owed of a span, whose range is held.
    fn owed(&self, span: &Span) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        let mut from = span.blocks.start;
        let legs = self.shared.legs();
        while let Some(run) = legs.first_to_copy(self.leg, from..span.blocks.end) {
            let run = run.start..run.end.min(run.start + piece::DATA_BYTES / BLOCK_BYTES);
            from = run.end;
            runs.push(run);
        }
        runs
    }

    /// Reads a span of several runs. None: each is to be read by itself, so that a place that
    /// nobody asked for cannot fail.
    async fn read_whole(&self, span: &Span, runs: &[Range<u64>]) -> Option<Bytes> {
        if span.hole || runs.len() < 2 {
            return None;
        }
        let (offset, len) = self.place(&span.blocks);
        let read = self.shared.local().read(offset, Buf::new(len as usize)).await;
        read.ok().map(Buf::freeze)
    }

    /// Offset and length in bytes; the last block of the image may be a part of one.
    fn place(&self, blocks: &Range<u64>) -> (u64, u64) {
        let offset = blocks.start * BLOCK_BYTES;
        (offset, (blocks.end * BLOCK_BYTES).min(self.shared.size()) - offset)
    }
}

/// A part of what was read, which keeps no more than itself in memory.
fn part(whole: &Bytes, at: u64, len: u64) -> Content {
    let (at, len) = (at as usize, len as usize);
    Content::of(Bytes::copy_from_slice(&whole[at..at + len]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(runs: &[(Range<u64>, bool)]) -> Vec<Range<u64>> {
        let mut group = Vec::new();
        for (blocks, hole) in runs {
            join(&mut group, Span { blocks: blocks.clone(), hole: *hole });
        }
        group.into_iter().map(|span| span.blocks).collect()
    }

    #[test]
    fn what_lies_close_together_is_read_together() {
        assert_eq!(joined(&[(0..1, false), (17..18, false), (35..36, false)]), [0..18, 35..36]);
        assert_eq!(joined(&[(0..1, false), (1..60, false), (62..66, false)]), [0..60, 62..66]);
    }

    #[test]
    fn holes_and_what_begins_anew_are_read_by_themselves() {
        assert_eq!(joined(&[(0..4, false), (4..8, true), (8..9, false)]), [0..4, 4..8, 8..9]);
        assert_eq!(joined(&[(8..9, false), (0..1, false)]), [8..9, 0..1]);
    }
}
