//! Copies a committed batch home: at whoever finds one that was not released (promoting, taking up
//! a leg again, what is done to a mirror that does not run), and at the mirror that has committed
//! it.
//!
//! May be cut off anywhere and done again: the batch is named by the superblock until all of it is
//! at its place and stable.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::{self, FuturesUnordered};

use super::super::engine::put::put;
use super::super::engine::settling::Settling;
use super::super::engine::tail;
use super::super::epoch::Piece;
use super::super::host::Host;
use super::super::layout::LegLayout;
use super::super::superblock::{Committed, Consistency, MirrorId, RemoteSuperblock, Stamp};
use super::record::Reader;
use crate::{BlockDevice, BlockError, Buf, Result};

/// Bytes of the log read at once.
const READ_BYTES: u64 = 1 << 20;

/// Reads under way: with the writes 32 MiB, which fills 1 Gbit/s up to a round trip of 130 ms.
const READS_AT_ONCE: usize = 16;

/// Bytes of writes under way.
const WRITE_BYTES_MAX: u64 = 16 << 20;

/// Writes under way at most: scattered blocks of 4 KiB fill 1 Gbit/s up to a round trip of 140 ms.
const WRITES_MAX: usize = 4096;

/// What is done with the pieces of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Look,
    Copy,
}

/// Where a batch is, and what of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    pub(crate) mirror: MirrorId,
    pub(crate) layout: LegLayout,
    /// Bytes of the image.
    pub(crate) image_bytes: u64,
    pub(crate) committed: Committed,
}

/// Bytes a second at most, by whose clock.
pub(crate) type Pace<'a> = (&'a dyn Host, u64);

/// Is told how many bytes are at their place by now, not flushed.
pub(crate) type Moved<'a> = &'a (dyn Fn(u64) + Sync);

/// Looks whether all of the batch can be read, and nothing else.
///
/// # Errors
/// The device's; [`BlockError::Medium`] where the log does not hold what was committed.
pub(crate) async fn check(device: &dyn BlockDevice, batch: Batch) -> Result<()> {
    walk(device, batch, Do::Look, None, &|_| {}).await
}

/// Copies the batch to its place. What was copied last is not flushed.
///
/// # Errors
/// As [`check`]; then a part of it may be at its place.
pub(crate) async fn copy_home(
    device: &dyn BlockDevice,
    batch: Batch,
    pace: Option<Pace<'_>>,
    moved: Moved<'_>,
) -> Result<()> {
    walk(device, batch, Do::Copy, pace, moved).await
}

/// A leg whose superblock names a batch gets its image, and says so: returns the superblock that
/// stands there then. One that names none is left as it is. The caller keeps others from writing.
///
/// # Errors
/// As [`check`]; then nothing was changed, or what was is copied again by the next attempt.
pub(crate) async fn settle(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    found: &RemoteSuperblock,
) -> Result<RemoteSuperblock> {
    let Consistency::Applying(committed) = found.consistency else { return Ok(found.clone()) };
    bring_home(device, layout, found, committed).await?;
    release(device, layout, found).await
}

/// The first part of [`settle`]: the batch is home, and the superblock names it still.
///
/// # Errors
/// As [`settle`].
pub(crate) async fn bring_home(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    found: &RemoteSuperblock,
    committed: Committed,
) -> Result<()> {
    let layout = layout.with_redo(found.redo_bytes);
    let (mirror, image_bytes) = (found.uuid, found.data_bytes);
    let batch = Batch { mirror, layout, image_bytes, committed };
    check(device, batch).await?;
    // It may have been read from a cache that a power cut empties: then parts of it would be home,
    // and nothing would name it.
    device.flush().await?;
    copy_home(device, batch, None, &|_| {}).await?;
    if let Some(stamp) = stamp_of(found, &committed) {
        device.flush().await?;
        tail::write_stamp(device, &layout, &stamp).await?;
    }
    Ok(())
}

/// The second part of [`settle`]: the superblock names the batch no more.
///
/// # Errors
/// The device's.
pub(crate) async fn release(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    found: &RemoteSuperblock,
) -> Result<RemoteSuperblock> {
    let layout = layout.with_redo(found.redo_bytes);
    let sequence = found.sequence + 1;
    let consistency = Consistency::Consistent;
    let settled = RemoteSuperblock { sequence, consistency, ..found.clone() };
    tail::write(device, &layout, &settled).await?;
    Ok(settled)
}

/// What is stable at the leg when the batch is home.
pub(crate) fn stamp_of(found: &RemoteSuperblock, committed: &Committed) -> Option<Stamp> {
    let generation = found.lineage.current();
    let Committed { epoch, closed, .. } = *committed;
    (epoch > 0).then_some(Stamp { uuid: found.uuid, generation, epoch, closed })
}

async fn walk(
    device: &dyn BlockDevice,
    batch: Batch,
    what: Do,
    pace: Option<Pace<'_>>,
    moved: Moved<'_>,
) -> Result<()> {
    let log = batch.layout.redo_log();
    let end = log.start + batch.committed.bytes;
    if end > log.end {
        return Err(medium("the batch is longer than the redo log"));
    }
    let starts = (log.start..end).step_by(READ_BYTES as usize);
    let read = |at: u64| device.read(at, Buf::new(READ_BYTES.min(end - at) as usize));
    // Answers lie there while it sleeps: at a low rate for longer than a leg may be silent.
    let is_slow = pace.is_some_and(|(_, rate)| rate < READ_BYTES);
    let at_once = if is_slow { 1 } else { READS_AT_ONCE };
    let mut reads = stream::iter(starts.map(read)).buffered(at_once);
    let mut reader = Reader::new(batch.mirror, batch.committed, batch.image_bytes);
    let mut home = Home::new(device, moved);
    while let Some(bytes) = reads.next().await {
        let bytes = bytes?;
        if let Some((host, rate)) = pace {
            let pause = host.sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
            join(pause, home.drain()).await.1?;
        }
        for piece in reader.feed(&bytes).map_err(medium)? {
            if what == Do::Copy {
                home.put(piece).await?;
            }
        }
    }
    reader.finish().map_err(medium)?;
    home.drain().await
}

fn medium(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BlockError {
    BlockError::Medium(std::io::Error::other(why))
}

/// A write to its place: where, and bytes of data.
type Written = (Range<u64>, u64);

/// The writes under way.
struct Home<'a> {
    device: &'a dyn BlockDevice,
    moved: Moved<'a>,
    moved_bytes: u64,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Result<Written>> + Send>>>,
    /// Where they go: first byte → the one behind the last. None overlaps with another.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    settling: Settling,
}

impl<'a> Home<'a> {
    fn new(device: &'a dyn BlockDevice, moved: Moved<'a>) -> Self {
        let (under_way, ranges, settling) = Default::default();
        Self { device, moved, moved_bytes: 0, under_way, ranges, bytes: 0, settling }
    }

    /// Sends a piece, after all before it that it overlaps with.
    async fn put(&mut self, piece: Piece) -> Result<()> {
        let range = piece.range();
        while self.bytes >= WRITE_BYTES_MAX
            || self.ranges.len() >= WRITES_MAX
            || self.overlaps(&range)
        {
            self.answer().await?;
        }
        let bytes = piece.content.data_bytes();
        let io = put(self.device, piece);
        self.bytes += bytes;
        self.ranges.insert(range.start, range.end);
        self.under_way.push(Box::pin(async move { io.await.map(|()| (range, bytes)) }));
        if self.settling.sent(bytes) {
            self.device.flush().await?;
            self.settling.flushed();
        }
        Ok(())
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.range(..range.end).next_back();
        before.is_some_and(|(_, end)| *end > range.start)
    }

    async fn answer(&mut self) -> Result<()> {
        if let Some(written) = self.under_way.next().await {
            let (range, bytes) = written?;
            self.bytes -= bytes;
            self.ranges.remove(&range.start);
            self.moved_bytes += range.end - range.start;
            (self.moved)(self.moved_bytes);
        }
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        while !self.under_way.is_empty() {
            self.answer().await?;
        }
        Ok(())
    }
}
