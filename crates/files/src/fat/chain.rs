//! Chains of clusters: for each cluster of a file, the table says which one follows. exFAT has the
//! same table with 32 bits.
//!
//! A chain is followed in memory, over pieces of the table that are read ahead on the guess that
//! the file is in one piece: most are, and the guess costs one round trip instead of one per piece.

use bytes::Bytes;

use crate::extents::Builder;
use crate::field::Fields;
use crate::limits::CHAIN_READS_MAX;
use crate::source::Source;
use crate::{Error, Result};

/// Bytes of a piece of the table, a multiple of 3 for the entries of FAT12 that lie across bytes.
const PIECE_BYTES: u64 = 48 << 10;
/// Pieces that are read ahead: 6 MB of a FAT32 lead to 50 GB of a file in clusters of 32 KiB.
const AHEAD_MAX: u64 = 128;

/// Width of an entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    Fat12,
    Fat16,
    /// Of which 28 bits count.
    Fat32,
    ExFat,
}

impl Width {
    pub(crate) fn bits(self) -> u8 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 | Self::ExFat => 32,
        }
    }

    /// Values from this one on end a chain.
    fn end(self) -> u32 {
        match self {
            Self::Fat12 => 0xff8,
            Self::Fat16 => 0xfff8,
            Self::Fat32 => 0x0fff_fff8,
            Self::ExFat => u32::MAX,
        }
    }

    /// Where an entry is in a table, in bytes.
    fn offset(self, cluster: u32) -> u64 {
        u64::from(cluster) * u64::from(self.bits()) / 8
    }

    fn entry(self, bytes: Fields<'_>, offset: usize, cluster: u32) -> u32 {
        match self {
            Self::Fat12 if cluster % 2 == 1 => u32::from(bytes.u16(offset) >> 4),
            Self::Fat12 => u32::from(bytes.u16(offset) & 0xfff),
            Self::Fat16 => u32::from(bytes.u16(offset)),
            Self::Fat32 => bytes.u32(offset) & 0x0fff_ffff,
            Self::ExFat => bytes.u32(offset),
        }
    }
}

/// The table and the clusters of a file system; offsets in bytes of it.
pub(crate) struct Chain<'a> {
    pub(crate) source: &'a Source,
    pub(crate) table: u64,
    pub(crate) width: Width,
    pub(crate) clusters: u32,
    pub(crate) heap: u64,
    pub(crate) cluster_bytes: u64,
}

impl Chain<'_> {
    /// Adds the clusters of the chain that begins at `cluster`, until the map is complete or the
    /// chain ends.
    pub(crate) async fn follow(&self, cluster: u32, map: &mut Builder, place: &str) -> Result<()> {
        let mut pieces = Pieces { number: u64::MAX, bytes: Bytes::new(), reads: 0 };
        let mut next = cluster;
        for count in 0.. {
            if next < 2 || next - 2 >= self.clusters {
                let problem = format!(
                    "its chain goes to cluster {next} after {count}; there are 2 to {}",
                    u64::from(self.clusters) + 1
                );
                return Err(Error::damaged(place, problem));
            }
            // A chain that is longer than there are clusters goes in circles.
            if count >= self.clusters {
                return Err(Error::damaged(place, "its chain goes in circles"));
            }
            let at = self.heap + u64::from(next - 2) * self.cluster_bytes;
            map.push(map.end(), self.cluster_bytes, Some(at))?;
            if map.is_complete() {
                break;
            }
            if count == 0 {
                self.read_ahead(next, map).await?;
            }
            next = self.entry(next, &mut pieces, place).await?;
            if next >= self.width.end() {
                break;
            }
        }
        Ok(())
    }

    /// What follows a cluster.
    async fn entry(&self, cluster: u32, pieces: &mut Pieces, place: &str) -> Result<u32> {
        let offset = self.width.offset(cluster);
        let number = offset / PIECE_BYTES;
        if pieces.number != number {
            pieces.reads += 1;
            if pieces.reads > CHAIN_READS_MAX {
                let max = CHAIN_READS_MAX as u64;
                return Err(Error::too_much(place, "parts of the table in its chain", max));
            }
            pieces.bytes = self.piece(number).await?;
            pieces.number = number;
        }
        let inside = (offset % PIECE_BYTES) as usize;
        Ok(self.width.entry(Fields(&pieces.bytes), inside, cluster))
    }

    async fn piece(&self, number: u64) -> Result<Bytes> {
        let (offset, len) = self.range(number);
        self.source.read(offset, len, "FAT").await
    }

    /// Where a piece of the table is, which ends with the last cluster's entry.
    fn range(&self, number: u64) -> (u64, usize) {
        let table_bytes = self.width.offset(self.clusters.saturating_add(2)) + 1;
        let from = number * PIECE_BYTES;
        (self.table + from, table_bytes.saturating_sub(from).min(PIECE_BYTES) as usize)
    }

    /// Reads what the chain needs if it is in one piece, all at once.
    async fn read_ahead(&self, cluster: u32, map: &Builder) -> Result<()> {
        let clusters = map.missing().div_ceil(self.cluster_bytes).min(u64::from(self.clusters));
        let last = u64::from(cluster) + clusters;
        let last = u32::try_from(last).unwrap_or(u32::MAX).min(self.clusters.saturating_add(1));
        let first = self.width.offset(cluster) / PIECE_BYTES;
        let last = (self.width.offset(last) / PIECE_BYTES).min(first + AHEAD_MAX);
        if last > first {
            let ranges = (first..=last).map(|number| self.range(number));
            self.source.read_all(ranges, "FAT").await?;
        }
        Ok(())
    }
}

/// The piece of the table that is looked at.
struct Pieces {
    number: u64,
    bytes: Bytes,
    reads: usize,
}
