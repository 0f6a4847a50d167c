//! The boot sector: where tables, root folder and clusters are (§ "Boot Sector and BPB").

use super::Width;
use crate::field::Fields;
use crate::source::Source;
use crate::{Error, FileSystem, Name, Result};

const PLACE: &str = "FAT boot sector";
/// Bytes of an entry of a folder.
const ENTRY_BYTES: u64 = 32;
/// Fewer clusters are FAT12, fewer than the second FAT16.
const FAT16_CLUSTERS_MIN: u64 = 4085;
const FAT32_CLUSTERS_MIN: u64 = 65_525;
/// A table's entry has 28 bits.
const CLUSTERS_MAX: u64 = 0x0fff_fff5;
/// Flags of FAT32: one table is in use, and not all.
const FLAG_ONE_TABLE: u16 = 0x80;
/// What Linux keeps in the byte before the extended boot signature.
const STATE_DIRTY: u8 = 0x01;

/// Where the root folder is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Root {
    /// In front of the clusters.
    Fixed { offset: u64, len: u64 },
    /// In clusters, as any other.
    Chain(u32),
}

/// What of it is used; offsets in bytes of the file system.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) width: Width,
    pub(super) cluster_bytes: u64,
    /// Of data; they are numbered from 2.
    pub(super) clusters: u32,
    /// The table that is in use.
    pub(super) table: u64,
    /// Cluster 2.
    pub(super) heap: u64,
    pub(super) root: Root,
    pub(super) serial: u32,
    pub(super) label: Option<Name>,
    /// What is said about free clusters.
    info: Option<u64>,
}

/// Whether a disk begins with one.
pub(crate) fn probe(start: &[u8]) -> Option<FileSystem> {
    let boot = Boot::parse(start).ok()?;
    Some(FileSystem::Fat(boot.width.bits()))
}

impl Boot {
    pub(super) async fn read(source: &Source) -> Result<Self> {
        Self::parse(&source.read(0, 512, PLACE).await?)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let damaged = |problem: String| Err(Error::damaged(PLACE, problem));
        let fields = Fields(bytes);
        if fields.u16(510) != 0xaa55 || !matches!(fields.u8(0), 0xeb | 0xe9) {
            return damaged("no jump at its start, or no signature at its end".into());
        }
        let sector = u64::from(fields.u16(0x0b));
        let cluster_sectors = u64::from(fields.u8(0x0d));
        if !matches!(sector, 512 | 1024 | 2048 | 4096) || !cluster_sectors.is_power_of_two() {
            return damaged(format!("clusters of {cluster_sectors} sectors of {sector} bytes"));
        }
        let (reserved, tables) = (u64::from(fields.u16(0x0e)), u64::from(fields.u8(0x10)));
        if reserved == 0 || tables == 0 || fields.u8(0x15) < 0xf0 {
            return damaged(format!("{reserved} reserved sectors and {tables} tables"));
        }
        let is_32 = fields.u16(0x16) == 0;
        let either = |short: u16, long: usize| match short {
            0 => u64::from(fields.u32(long)),
            short => u64::from(short),
        };
        let table_sectors = either(fields.u16(0x16), 0x24);
        let sectors = either(fields.u16(0x13), 0x20);
        let root_entries = u64::from(fields.u16(0x11));
        if table_sectors == 0 || (root_entries == 0) != is_32 {
            let problem = format!("tables of {table_sectors} sectors, {root_entries} in the root");
            return damaged(problem);
        }
        let root_sectors = (root_entries * ENTRY_BYTES).div_ceil(sector);
        let root = reserved + tables * table_sectors;
        let heap = root + root_sectors;
        let clusters = sectors.saturating_sub(heap) / cluster_sectors;
        let width = match clusters {
            0 => return damaged(format!("{sectors} sectors have no room for a cluster")),
            _ if is_32 => Width::Fat32,
            FAT32_CLUSTERS_MIN.. => return damaged(format!("{clusters} clusters in a FAT16")),
            FAT16_CLUSTERS_MIN.. => Width::Fat16,
            _ => Width::Fat12,
        };
        let entries = table_sectors * sector * 8 / u64::from(width.bits());
        let clusters = clusters.min(entries.saturating_sub(2)).min(CLUSTERS_MAX);
        let one = Some(fields.u16(0x28)).filter(|flags| is_32 && flags & FLAG_ONE_TABLE != 0);
        let in_use = one.map_or(0, |flags| u64::from(flags & 0xf));
        if in_use >= tables {
            return damaged(format!("table {in_use} of {tables} is in use"));
        }
        let (extended, info) = (if is_32 { 0x42 } else { 0x26 }, u64::from(fields.u16(0x30)));
        let has_serial = matches!(fields.u8(extended), 0x28 | 0x29);
        let label = Some(fields.bytes(extended + 5, 11)).filter(|_| fields.u8(extended) == 0x29);
        Ok(Self {
            width,
            cluster_bytes: cluster_sectors * sector,
            clusters: clusters as u32,
            table: (reserved + in_use * table_sectors) * sector,
            heap: heap * sector,
            root: if is_32 {
                Root::Chain(fields.u32(0x2c))
            } else {
                Root::Fixed { offset: root * sector, len: root_entries * ENTRY_BYTES }
            },
            serial: if has_serial { fields.u32(extended + 1) } else { 0 },
            label: label.and_then(super::folder::label_name),
            info: Some(info * sector).filter(|_| is_32 && (1..reserved).contains(&info)),
        })
    }

    /// The second entry of the table says whether all is well, from FAT16 on (§ "FAT Volume
    /// Dirty"). Linux says it in the boot sector instead, as long as it is mounted
    /// (`fat_set_state`).
    pub(super) async fn is_dirty(&self, source: &Source) -> Result<bool> {
        let state = if self.width == Width::Fat32 { 0x41 } else { 0x25 };
        let boot = source.read(0, 512, PLACE).await?;
        if Fields(&boot).u8(state) & STATE_DIRTY != 0 {
            return Ok(true);
        }
        let (offset, len, mask) = match self.width {
            Width::Fat12 => return Ok(false),
            Width::Fat16 => (2, 2, 0xc000),
            _ => (4, 4, 0x0c00_0000),
        };
        let entry = source.read(self.table + offset, len, "FAT").await?;
        Ok(Fields(&entry).u32(0) & mask != mask)
    }

    /// Free clusters and where the next one was looked for, as FAT32 notes them.
    pub(super) async fn free_clusters(&self, source: &Source) -> Result<u64> {
        let Some(info) = self.info else { return Ok(0) };
        let info = source.read(info, 512, "FAT32 information sector").await?;
        Ok(Fields(&info).u64(488))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floppy() -> Vec<u8> {
        let mut raw = vec![0; 512];
        raw[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
        raw[0x0b..0x18].copy_from_slice(&[0, 2, 1, 1, 0, 2, 224, 0, 0x40, 0x0b, 0xf0, 9, 0]);
        raw[510..].copy_from_slice(&[0x55, 0xaa]);
        raw
    }

    #[test]
    fn a_floppy_is_where_it_always_was() {
        let boot = Boot::parse(&floppy()).unwrap();
        assert_eq!(boot.width, Width::Fat12);
        assert_eq!((boot.cluster_bytes, boot.clusters, boot.table), (512, 2847, 512));
        assert_eq!(boot.heap, 33 * 512);
        assert!(matches!(boot.root, Root::Fixed { offset: 9728, len: 7168 }));
    }

    #[test]
    fn numbers_that_cannot_be_are_named() {
        for (at, value, said) in [
            (0, 0, "no jump"),
            (0x0c, 3, "sectors of 768 bytes"),
            (0x0d, 3, "clusters of 3 sectors"),
            (0x0d, 0, "clusters of 0 sectors"),
            (0x0e, 0, "0 reserved sectors"),
            (0x10, 0, "0 tables"),
            (0x11, 0, "0 in the root"),
            (0x0f, 255, "no room for a cluster"),
            (0x16, 0, "tables of 0 sectors"),
        ] {
            let mut raw = floppy();
            raw[at] = value;
            let problem = Boot::parse(&raw).map(|_| ()).unwrap_err().to_string();
            assert!(problem.contains(said), "{problem}");
        }
    }
}
