//! The boot region: where table, clusters and root folder are (§ 3).

use crate::field::Fields;
use crate::source::Source;
use crate::{Error, Result};

const PLACE: &str = "exFAT boot sector";
/// Sectors that the checksum is of; the next one holds it (§ 3.4).
const CHECKED_SECTORS: usize = 11;
const FLAG_SECOND_TABLE: u16 = 1;
const FLAG_DIRTY: u16 = 2;
const FLAG_FAILED: u16 = 4;
/// Largest number of clusters (§ 3.1.9).
const CLUSTERS_MAX: u32 = 0xffff_fff5;

/// What of it is used; offsets in bytes of the file system.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) cluster_bytes: u64,
    pub(super) clusters: u32,
    pub(super) table: u64,
    pub(super) heap: u64,
    /// First cluster of the root folder.
    pub(super) root: u32,
    pub(super) serial: u32,
    pub(super) version: u64,
    flags: u16,
}

impl Boot {
    pub(super) async fn read(source: &Source) -> Result<Self> {
        let first = source.read(0, 512, PLACE).await?;
        let shift = Fields(&first).u8(0x6c);
        if !(9..=12).contains(&shift) {
            let problem = format!("sectors of 2^{shift} bytes; 2^9 to 2^12 is allowed");
            return Err(Error::damaged(PLACE, problem));
        }
        let len = (CHECKED_SECTORS + 1) << shift;
        let region = source.read(0, len, PLACE).await?;
        let (checked, sum) = region.split_at(CHECKED_SECTORS << shift);
        if checksum(checked) != Fields(sum).u32(0) {
            return Err(Error::damaged(PLACE, "its checksum is wrong"));
        }
        Self::parse(Fields(&first), shift)
    }

    fn parse(fields: Fields<'_>, shift: u8) -> Result<Self> {
        let damaged = |problem: String| Err(Error::damaged(PLACE, problem));
        let sector = 1u64 << shift;
        let sectors = |at: usize| u64::from(fields.u32(at)) * sector;
        let cluster_shift = fields.u8(0x6d);
        if fields.bytes(3, 8) != b"EXFAT   " || fields.u16(510) != 0xaa55 {
            return damaged("it has no signature".into());
        }
        if fields.u8(0x69) != 1 {
            let what = format!("exFAT {}.{:02}", fields.u8(0x69), fields.u8(0x68));
            return Err(Error::unsupported(PLACE, what));
        }
        if cluster_shift > 25 - shift {
            return damaged(format!("clusters of 2^{} bytes", u32::from(shift + cluster_shift)));
        }
        let (flags, tables, clusters) = (fields.u16(0x6a), fields.u8(0x6e), fields.u32(0x5c));
        let in_use = u64::from(flags & FLAG_SECOND_TABLE);
        if !matches!(tables, 1 | 2) || in_use >= u64::from(tables) {
            return damaged(format!("table {in_use} of {tables} is in use"));
        }
        let table_bytes = sectors(0x54);
        if clusters > CLUSTERS_MAX || (u64::from(clusters) + 2) * 4 > table_bytes {
            return damaged(format!("{clusters} clusters in a table of {table_bytes} bytes"));
        }
        Ok(Self {
            cluster_bytes: sector << cluster_shift,
            clusters,
            table: sectors(0x50) + in_use * table_bytes,
            heap: sectors(0x58),
            root: fields.u32(0x60),
            serial: fields.u32(0x64),
            // Serial number, flags and how much is in use.
            version: u64::from(fields.u32(0x64))
                ^ u64::from(flags) << 8
                ^ u64::from(fields.u8(0x70)),
            flags,
        })
    }

    /// First byte of a cluster, from 2 on.
    pub(super) fn cluster_at(&self, cluster: u32) -> u64 {
        self.heap + u64::from(cluster.saturating_sub(2)) * self.cluster_bytes
    }

    /// It is being written to, or was and not unmounted.
    pub(super) fn is_dirty(&self) -> bool {
        self.flags & FLAG_DIRTY != 0
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.is_dirty() {
            warnings.push("it was not unmounted; fsck it".to_owned());
        }
        if self.flags & FLAG_FAILED != 0 {
            warnings.push("its last user has met failures of the medium".to_owned());
        }
        warnings
    }
}

/// Of the boot region; flags and percentage in use may change without it (§ 3.4).
fn checksum(region: &[u8]) -> u32 {
    let bytes = region.iter().enumerate().filter(|(at, _)| !matches!(at, 106 | 107 | 112));
    bytes.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)))
}
