//! The pieces of a copy: which part of what is owed is next, and how one is brought. Holes and
//! zeroes are not sent where the leg can be told that a range is zero, or says so itself.

use std::ops::Range;
use std::sync::Arc;

use futures_util::future::try_join_all;

use super::super::BLOCK_BYTES;
use super::super::epoch::Content;
use super::legs::LoggedChange;
use super::read;
use super::session::Session;
use super::shared::Shared;
use crate::copy::is_zero;
use crate::range_lock::held;
use crate::{BlockError, Buf, DeviceInfo, Extent, Result, WriteFlags, ZeroFlags};

/// Bytes of data of a piece at most. The user's operations on it wait until it has been read.
pub(crate) const DATA_BYTES: u64 = 256 << 10;

/// Bytes of a hole at most that a leg is told to zero at once: some targets write them one by one,
/// and have to be done before they are taken for lost.
const HOLE_BYTES: u64 = 32 << 20;

/// Bytes of the local device whose map of holes is asked for at once.
const MAP_BYTES: u64 = 1 << 30;

/// What of a command to zero goes over the line counts as so much in the window, in bytes.
const COMMAND_BYTES: u64 = 4096;

/// A part of what is owed.
pub(crate) struct Piece {
    blocks: Range<u64>,
    hole: bool,
}

impl Piece {
    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.blocks.end - self.blocks.start) * BLOCK_BYTES
    }

    /// Its blocks.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// The local device has nothing there.
    pub(crate) fn is_hole(&self) -> bool {
        self.hole
    }

    /// About what it puts on the line, in bytes.
    pub(crate) fn wire_bytes(&self) -> u64 {
        if self.hole { COMMAND_BYTES } else { self.bytes() }
    }
}

/// Goes through what is owed in ascending order, again and again.
pub(crate) struct Pieces {
    cursor: u64,
    blocks: u64,
    hole_bytes_max: u64,
    map: Map,
}

/// Which part of the local device is known to be data or a hole.
#[derive(Default)]
pub(crate) struct Map(Vec<Extent>);

impl Pieces {
    /// From the beginning.
    pub(crate) fn new(leg: &DeviceInfo, shared: &Shared) -> Self {
        let hole_bytes_max = if leg.can_zero { HOLE_BYTES } else { DATA_BYTES };
        Self { cursor: 0, blocks: shared.blocks(), hole_bytes_max, map: Map::default() }
    }

    /// The next piece is looked for in all that is owed.
    pub(crate) fn at_beginning(&self) -> bool {
        self.cursor == 0
    }

    /// The next piece; `None` once at the end, then it begins anew. A hole is as long as is wanted,
    /// within what is sensible.
    ///
    /// # Errors
    /// The local device's.
    pub(crate) async fn next(
        &mut self,
        shared: &Shared,
        leg: usize,
        hole_bytes: u64,
    ) -> Result<Option<Piece>> {
        let Some(run) = shared.legs().first_to_copy(leg, self.cursor..self.blocks) else {
            (self.cursor, self.map) = (0, Map::default());
            return Ok(None);
        };
        let at = run.start * BLOCK_BYTES;
        let extent = self.map.extent(shared, at).await?;
        let hole_bytes = hole_bytes.clamp(DATA_BYTES, self.hole_bytes_max);
        let bytes_max = if extent.hole { hole_bytes } else { DATA_BYTES };
        // A block that is a hole in part is data.
        let end = extent.offset + extent.len;
        let end = if extent.hole { end / BLOCK_BYTES } else { end.div_ceil(BLOCK_BYTES) };
        let hole = extent.hole && end > run.start;
        let end = if hole || !extent.hole { end } else { run.start + 1 };
        let end = end.min(run.end).min(run.start + bytes_max / BLOCK_BYTES);
        self.cursor = end;
        Ok(Some(Piece { blocks: run.start..end, hole }))
    }
}

impl Map {
    /// What is known of the byte `at`, to the end of its kind.
    ///
    /// # Errors
    /// The local device's.
    pub(crate) async fn extent(&mut self, shared: &Shared, at: u64) -> Result<Extent> {
        if let Some(extent) = self.holds(at) {
            return Ok(extent);
        }
        let len = MAP_BYTES.min(shared.blocks() * BLOCK_BYTES - at);
        let data = Extent { offset: at, len, hole: false };
        if !shared.local().info().can_extents {
            return Ok(data);
        }
        self.0 = shared.local().extents(at, len).await?;
        Ok(self.holds(at).unwrap_or(data))
    }

    /// The extent with this byte. A disk with scattered blocks has a hundred thousand of them.
    fn holds(&self, at: u64) -> Option<Extent> {
        let behind = self.0.partition_point(|extent| extent.offset <= at);
        let last = self.0[..behind].last().copied();
        last.filter(|extent| at < extent.offset + extent.len)
    }
}

/// Brings a piece.
///
/// # Errors
/// The local device's; those of the leg end its session, and are told there.
pub(crate) async fn copy(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    piece: Piece,
) -> Result<()> {
    let mut from = piece.blocks.start;
    while let Some(part) =
        read_part(shared, leg, session, from..piece.blocks.end, piece.hole).await?
    {
        from = part.blocks.end;
        let (offset, blocks) = (part.blocks.start * BLOCK_BYTES, part.blocks);
        let len = (blocks.end - blocks.start) * BLOCK_BYTES;
        let sent = match part.content {
            Some(here) if shared.legs().compares(leg) => {
                send_different(shared, leg, session, offset, here).await
            }
            content => send(session, offset, len, content).await,
        };
        shared.legs().copy_ended(leg, session, blocks.clone(), sent.is_ok());
        match sent {
            Ok(sent) => shared.legs().copied(leg, blocks.end - blocks.start, sent),
            Err(error) => {
                shared.leg_failed(leg, session, &error);
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What a look at a piece has shown.
#[derive(Default)]
pub(crate) struct Looked {
    /// Blocks that differ.
    pub(crate) different: u64,
    /// Bytes that came over the line beyond the piece's [`wire_bytes`](Piece::wire_bytes): of a
    /// hole that is none there.
    pub(crate) more_bytes: u64,
}

/// Looks whether a piece is there. What is there counts as copied, and what differs is owed as
/// before.
///
/// # Errors
/// The local device's; those of the leg end its session, too.
pub(crate) async fn look(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    piece: Piece,
) -> Result<Looked> {
    let (mut from, mut found) = (piece.blocks.start, Looked::default());
    while let Some(part) =
        read_part(shared, leg, session, from..piece.blocks.end, piece.hole).await?
    {
        from = part.blocks.end;
        let looked = differing(shared, leg, session, &part).await;
        if let Err(error) = &looked {
            shared.legs().copy_ended(leg, session, part.blocks.clone(), false);
            shared.leg_failed(leg, session, error);
        }
        let (runs, read_bytes) = looked?;
        let mut there = part.blocks.end - part.blocks.start;
        for run in runs {
            there -= run.end - run.start;
            found.different += run.end - run.start;
            shared.legs().copy_ended(leg, session, run, false);
        }
        // The rest is there.
        shared.legs().copy_ended(leg, session, part.blocks, true);
        shared.legs().found_there(leg, there);
        found.more_bytes += if piece.hole { read_bytes } else { 0 };
    }
    Ok(found)
}

/// The runs of blocks of a part that are not there as they are here, and how many bytes came from
/// there to know that.
async fn differing(
    shared: &Shared,
    leg: usize,
    session: &Arc<Session>,
    part: &Part,
) -> Result<(Vec<Range<u64>>, u64)> {
    let (offset, first) = (part.blocks.start * BLOCK_BYTES, part.blocks.start);
    let len = (part.blocks.end - first) * BLOCK_BYTES;
    let here = match &part.content {
        Some(here) => here,
        None if says_hole(session, offset, len).await? => return Ok((Vec::new(), 0)),
        None => &Buf::zeroed(len as usize),
    };
    let runs = different(shared, leg, session, offset, here).await?;
    let blocks = |run: Range<usize>| first + run.start as u64..first + run.end as u64;
    Ok((runs.into_iter().map(blocks).collect(), len))
}

/// What is sent next of a piece.
struct Part {
    blocks: Range<u64>,
    /// None: zeroes.
    content: Option<Buf>,
}

/// Reads the first part of `blocks` that is owed, and notes that it is being copied. None if there
/// is nothing to be sent. The range is held for that alone and not until the leg has answered: a
/// user's change of it waits for the local device, not for the line.
async fn read_part(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    blocks: Range<u64>,
    hole: bool,
) -> Result<Option<Part>> {
    let bytes = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
    let _lock = held(shared.locks().exclusive(bytes)).await;
    let mut from = blocks.start;
    // Under the lock nothing of a user is under way here.
    while let Some(run) = shared.legs().first_to_copy(leg, from..blocks.end) {
        let (offset, len) = (run.start * BLOCK_BYTES, (run.end - run.start) * BLOCK_BYTES);
        let content = if !hole {
            let buf = read::read_held(shared, offset, len as usize).await?;
            (!session.info().can_zero || !is_zero(&buf)).then_some(buf)
        } else if is_hole(shared, offset, len).await? {
            None
        } else {
            from = run.end; // Written since the map was asked for: data, at the next pass.
            continue;
        };
        let begun = shared.legs().begin_copy(leg, session, run.clone());
        return Ok(begun.then_some(Part { blocks: run, content }));
    }
    Ok(None)
}

/// The runs of blocks that are not there as they are here, counted from the first.
async fn different(
    shared: &Shared,
    leg: usize,
    session: &Arc<Session>,
    offset: u64,
    here: &Buf,
) -> Result<Vec<Range<usize>>> {
    let block = BLOCK_BYTES as usize;
    let there = session.run(|device| device.read(offset, Buf::new(here.len()))).await?;
    shared.legs().compared(leg, there.len() as u64);
    let pairs = here.chunks(block).zip(there.chunks(block));
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (number, _) in pairs.enumerate().filter(|(_, (here, there))| here != there) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    Ok(runs)
}

/// Puts there what is not there already. Returns the bytes of data sent.
async fn send_different(
    shared: &Shared,
    leg: usize,
    session: &Arc<Session>,
    offset: u64,
    here: Buf,
) -> Result<u64> {
    let block = BLOCK_BYTES as usize;
    let runs = different(shared, leg, session, offset, &here).await?;
    let here = here.freeze();
    let writes = runs.into_iter().map(|run| {
        let data = here.slice(run.start * block..(run.end * block).min(here.len()));
        let (at, len) = (offset + (run.start * block) as u64, data.len() as u64);
        let write = session.run(|device| device.write(at, data, WriteFlags::NONE));
        async move { write.await.map(|()| len) }
    });
    let sent: Vec<u64> = try_join_all(writes.collect::<Vec<_>>()).await?;
    Ok(sent.into_iter().sum())
}

/// Puts a piece into the log, for a leg in sync that is owed it.
///
/// # Errors
/// The local device's.
pub(crate) async fn log(shared: &Arc<Shared>, leg: usize, piece: Piece) -> Result<()> {
    let bytes = piece.blocks.start * BLOCK_BYTES..piece.blocks.end * BLOCK_BYTES;
    let _lock = held(shared.locks().exclusive(bytes)).await;
    let mut from = piece.blocks.start;
    while let Some(run) = shared.legs().first_to_copy(leg, from..piece.blocks.end) {
        // A hole may be long; what is read of it at once is not.
        let run = run.start..run.end.min(run.start + DATA_BYTES / BLOCK_BYTES);
        from = run.end;
        let offset = run.start * BLOCK_BYTES;
        let len = (run.end * BLOCK_BYTES).min(shared.size()) - offset;
        let buf = read::read_held(shared, offset, len as usize).await?;
        let change = LoggedChange { offset, content: Content::of(buf.freeze()), heals: Some(leg) };
        shared.legs().begin_logged(&change);
        shared.legs().end_logged(&change.blocks(), true);
    }
    Ok(())
}

/// Puts content there, or zeroes. Returns the bytes of data sent.
async fn send(session: &Arc<Session>, offset: u64, len: u64, content: Option<Buf>) -> Result<u64> {
    if let Some(content) = content {
        let data = content.freeze();
        session.run(|device| device.write(offset, data, WriteFlags::NONE)).await?;
        return Ok(len);
    }
    if says_hole(session, offset, len).await? {
        return Ok(0);
    }
    session.run(|device| device.zero(offset, len, ZeroFlags::new(false, true))).await?;
    Ok(0)
}

/// The leg says that all of it is a hole there.
pub(crate) async fn says_hole(session: &Arc<Session>, offset: u64, len: u64) -> Result<bool> {
    if !session.info().can_extents {
        return Ok(false);
    }
    match session.run(|device| device.extents(offset, len)).await {
        Ok(extents) => Ok(extents.iter().all(|extent| extent.hole)),
        Err(BlockError::Unsupported(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// All of it is a hole here.
pub(crate) async fn is_hole(shared: &Shared, offset: u64, len: u64) -> Result<bool> {
    let extents = shared.local().extents(offset, len).await?;
    Ok(extents.iter().all(|extent| extent.hole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_found_in_its_extent_and_nowhere_else() {
        let map = Map([(10, 5), (15, 1), (16, 4)].map(of).to_vec());
        let found = |at| map.holds(at).map(|extent| (extent.offset, extent.len));
        assert_eq!([9, 20, u64::MAX].map(found), [None; 3]);
        assert_eq!([10, 14, 15].map(found), [Some((10, 5)), Some((10, 5)), Some((15, 1))]);
        assert_eq!([16, 19].map(found), [Some((16, 4)); 2]);
        assert_eq!(Map::default().holds(0), None);
    }

    fn of((offset, len): (u64, u64)) -> Extent {
        Extent { offset, len, hole: offset % 2 == 1 }
    }
}
