//! The superblock: what the file system is, how it is divided, and what a reader must know.

use crate::field::Fields;
use crate::source::Source;
use crate::{Error, FileSystem, Name, Result};

/// Where it is, in bytes from the start, and how long it is.
const OFFSET: u64 = 1024;
const LEN: usize = 1024;
const MAGIC: u16 = 0xef53;
const PLACE: &str = "ext4 superblock";

/// What a reader has to know (`s_feature_incompat`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Incompat(u32);

impl Incompat {
    const FILETYPE: u32 = 0x2;
    /// The journal holds what is not yet in its place.
    pub(super) const RECOVER: u32 = 0x4;
    pub(super) const META_BG: u32 = 0x10;
    const EXTENTS: u32 = 0x40;
    const BITS_64: u32 = 0x80;
    const MULTI_MOUNT_PROTECTION: u32 = 0x100;
    const FLEX_BG: u32 = 0x200;
    const EA_INODE: u32 = 0x400;
    const CSUM_SEED: u32 = 0x2000;
    const LARGE_DIR: u32 = 0x4000;
    const INLINE_DATA: u32 = 0x8000;
    /// Some files are encrypted; the others are not.
    const ENCRYPT: u32 = 0x1_0000;
    /// Some folders compare names without case. Here, names are what was written.
    const CASEFOLD: u32 = 0x2_0000;

    const KNOWN: u32 = Self::FILETYPE
        | Self::RECOVER
        | Self::META_BG
        | Self::EXTENTS
        | Self::BITS_64
        | Self::MULTI_MOUNT_PROTECTION
        | Self::FLEX_BG
        | Self::EA_INODE
        | Self::CSUM_SEED
        | Self::LARGE_DIR
        | Self::INLINE_DATA
        | Self::ENCRYPT
        | Self::CASEFOLD;

    pub(super) fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

const COMPAT_HAS_JOURNAL: u32 = 0x4;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;
const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
const STATE_UNMOUNTED: u16 = 1;
const STATE_ERRORS: u16 = 2;
const CHECKSUM_CRC32C: u8 = 1;

/// What of it is used.
#[derive(Clone, Debug)]
pub(super) struct Superblock {
    pub(super) inodes: u32,
    pub(super) block_bytes: u64,
    pub(super) first_data_block: u64,
    pub(super) blocks_per_group: u64,
    pub(super) inodes_per_group: u32,
    pub(super) inode_bytes: usize,
    pub(super) descriptor_bytes: u64,
    pub(super) first_meta_bg: u64,
    pub(super) groups: u64,
    pub(super) incompat: Incompat,
    compat: u32,
    ro_compat: u32,
    state: u16,
    backup_groups: [u32; 2],
    uuid: [u8; 16],
    /// The file with the journal; 0: there is none, or it is on another device.
    pub(super) journal_inode: u32,
    pub(super) label: Name,
    /// Bytes of the file system.
    pub(super) bytes: u64,
    /// The start of every checksum, where metadata have them.
    pub(super) checksum_seed: Option<u32>,
    pub(super) version: u64,
}

/// Whether there is one at the start of a disk.
pub(crate) fn probe(start: &[u8]) -> Option<FileSystem> {
    let fields = Fields(start.get(1024..2048)?);
    let plausible = fields.u16(56) == MAGIC && fields.u32(0x18) <= 6 && fields.u32(0x28) > 0;
    plausible.then(|| FileSystem::Ext(generation(fields.u32(0x5c), fields.u32(0x60))))
}

/// 2, 3 or 4: by what it uses.
fn generation(compat: u32, incompat: u32) -> u8 {
    let of_4 = Incompat::EXTENTS
        | Incompat::BITS_64
        | Incompat::FLEX_BG
        | Incompat::INLINE_DATA
        | Incompat::EA_INODE
        | Incompat::CSUM_SEED
        | Incompat::MULTI_MOUNT_PROTECTION;
    match (incompat & of_4, compat & COMPAT_HAS_JOURNAL) {
        (0, 0) => 2,
        (0, _) => 3,
        _ => 4,
    }
}

/// CRC32C as ext4 has it: without the inversions at the start and the end.
pub(super) fn checksum(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

impl Superblock {
    pub(super) async fn read(source: &Source) -> Result<Self> {
        let bytes = source.read(OFFSET, LEN, PLACE).await?;
        Self::parse(&bytes)
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let fields = Fields(bytes);
        let incompat = Incompat(fields.u32(0x60));
        let unknown = incompat.0 & !Incompat::KNOWN;
        if fields.u16(0x38) != MAGIC {
            return Err(Error::damaged(PLACE, "it has no magic number"));
        }
        if unknown != 0 {
            let what =
                format!("a file system with features {unknown:#x}, which nobody here knows,");
            return Err(Error::unsupported(PLACE, what));
        }
        let ro_compat = fields.u32(0x64);
        let uuid = fields.array(0x68);
        let checksum_seed = checksum_seed(fields, incompat, ro_compat, uuid)?;
        let is_64 = incompat.has(Incompat::BITS_64);
        let blocks_hi = if is_64 { u64::from(fields.u32(0x150)) } else { 0 };
        let blocks = blocks_hi << 32 | u64::from(fields.u32(4));
        let (log_block, revision) = (fields.u32(0x18), fields.u32(0x4c));
        if log_block > 6 {
            let problem = format!("blocks of 1024 << {log_block} bytes; 1024 to 65536 is allowed");
            return Err(Error::damaged(PLACE, problem));
        }
        let mut superblock = Self {
            inodes: fields.u32(0),
            block_bytes: 1024 << log_block,
            first_data_block: u64::from(fields.u32(0x14)),
            blocks_per_group: u64::from(fields.u32(0x20)),
            inodes_per_group: fields.u32(0x28),
            inode_bytes: if revision == 0 { 128 } else { usize::from(fields.u16(0x58)) },
            descriptor_bytes: if is_64 { u64::from(fields.u16(0xfe)) } else { 32 },
            first_meta_bg: u64::from(fields.u32(0x104)),
            groups: 0,
            incompat,
            compat: fields.u32(0x5c),
            ro_compat,
            state: fields.u16(0x3a),
            backup_groups: [fields.u32(0x24c), fields.u32(0x250)],
            uuid,
            journal_inode: fields.u32(0xe0),
            label: label(fields.array(0x78)),
            bytes: 0,
            checksum_seed,
            version: version(fields),
        };
        superblock.check(blocks)?;
        Ok(superblock)
    }

    /// That its numbers can be those of one file system.
    fn check(&mut self, blocks: u64) -> Result<()> {
        let damaged = |problem: String| Err(Error::damaged(PLACE, problem));
        let block = self.block_bytes;
        let Some(bytes) = blocks.checked_mul(block).filter(|bytes| *bytes < 1 << 63) else {
            return damaged(format!("{blocks} blocks of {block} bytes are no disk's size"));
        };
        self.bytes = bytes;
        if self.blocks_per_group == 0 || self.blocks_per_group > 1 << 31 {
            return damaged(format!("{} blocks in a group", self.blocks_per_group));
        }
        if self.first_data_block > 1 || self.first_data_block >= blocks.max(1) {
            return damaged(format!("the first block is {}", self.first_data_block));
        }
        self.groups = (blocks - self.first_data_block).div_ceil(self.blocks_per_group);
        let inode_bytes = self.inode_bytes;
        if !inode_bytes.is_power_of_two() || inode_bytes < 128 || inode_bytes as u64 > block {
            return damaged(format!("inodes of {inode_bytes} bytes in blocks of {block}"));
        }
        let most = u64::from(self.inodes_per_group).checked_mul(self.groups);
        if self.inodes_per_group == 0 || most.is_none_or(|most| u64::from(self.inodes) > most) {
            return damaged(format!(
                "{} inodes in {} groups of {}",
                self.inodes, self.groups, self.inodes_per_group
            ));
        }
        let descriptor = self.descriptor_bytes;
        if !descriptor.is_power_of_two() || descriptor < 32 || descriptor > block {
            return damaged(format!("group descriptors of {descriptor} bytes"));
        }
        Ok(())
    }

    /// Whether a group begins with a copy of the superblock.
    pub(super) fn has_copy(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        if self.compat & COMPAT_SPARSE_SUPER2 != 0 {
            return group == 0 || self.backup_groups.iter().any(|copy| u64::from(*copy) == group);
        }
        group <= 1
            || self.ro_compat & RO_COMPAT_SPARSE_SUPER == 0
            || [3, 5, 7].into_iter().any(is_power_of)
    }

    pub(super) fn has_errors(&self) -> bool {
        self.state & STATE_ERRORS != 0
    }

    /// Mounted to be written to, or not unmounted then: what is in the journal is newer.
    pub(super) fn needs_journal(&self) -> bool {
        self.incompat.has(Incompat::RECOVER)
    }

    /// Mounted to be written to, or not unmounted in order, where there is no journal.
    pub(super) fn is_open(&self) -> bool {
        self.state & STATE_UNMOUNTED == 0
    }

    pub(super) fn generation(&self) -> u8 {
        generation(self.compat, self.incompat.0)
    }

    pub(super) fn uuid_text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let parts = [&self.uuid[..4], &self.uuid[4..6], &self.uuid[6..8], &self.uuid[8..10]];
        let parts = parts.into_iter().chain([&self.uuid[10..]]);
        parts.map(hex).collect::<Vec<_>>().join("-")
    }
}

/// Checks the superblock's own checksum; what the others begin with, if there are any.
fn checksum_seed(
    fields: Fields<'_>,
    incompat: Incompat,
    ro_compat: u32,
    uuid: [u8; 16],
) -> Result<Option<u32>> {
    if ro_compat & RO_COMPAT_METADATA_CSUM == 0 {
        return Ok(None);
    }
    let kind = fields.u8(0x175);
    if kind != CHECKSUM_CRC32C {
        return Err(Error::unsupported(PLACE, format_args!("a checksum of kind {kind}")));
    }
    if checksum(!0, fields.bytes(0, 0x3fc)) != fields.u32(0x3fc) {
        return Err(Error::damaged(PLACE, "its checksum is wrong"));
    }
    if incompat.has(Incompat::CSUM_SEED) {
        return Ok(Some(fields.u32(0x270)));
    }
    Ok(Some(checksum(!0, &uuid)))
}

fn label(bytes: [u8; 16]) -> Name {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    Name::new(&bytes[..end])
}

/// Of what a writer changes: times of mount and writing, mounts, free blocks and inodes, state and
/// bytes written.
fn version(fields: Fields<'_>) -> u64 {
    let parts = [
        fields.bytes(0xc, 8),
        fields.bytes(0x2c, 12),
        fields.bytes(0x3a, 2),
        fields.bytes(0x60, 4),
        fields.bytes(0x158, 4),
        fields.bytes(0x178, 8),
        fields.bytes(0x274, 2),
    ];
    let numbers = parts.concat();
    u64::from(crc32fast::hash(&numbers)) << 32 | u64::from(crc32c::crc32c(&numbers))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A superblock of 8 MiB in blocks of 1 KiB, without checksums.
    pub(crate) fn raw() -> Vec<u8> {
        let mut raw = vec![0; LEN];
        let mut put = |at: usize, value: u32| {
            raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
        };
        put(0, 2048);
        put(4, 8192);
        put(0x14, 1);
        put(0x20, 8192);
        put(0x28, 2048);
        put(0x38, u32::from(MAGIC));
        put(0x4c, 1);
        put(0x58, 256);
        raw
    }

    fn problem(at: usize, value: u32) -> String {
        let mut raw = raw();
        raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
        Superblock::parse(&raw).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn numbers_that_cannot_be_are_named() {
        assert!(Superblock::parse(&raw()).is_ok());
        for (at, value, said) in [
            (0x18, 7, "1024 << 7"),
            (0x14, 2, "the first block is 2"),
            (0x20, 0, "0 blocks in a group"),
            (0x28, 0, "2048 inodes in 1 groups of 0"),
            (0, u32::MAX, "4294967295 inodes"),
            (0x58, 64, "inodes of 64 bytes"),
            (0x58, 2048, "inodes of 2048 bytes"),
            (0x60, 0x80, "group descriptors of 0 bytes"),
            (0x60, 1, "features 0x1"),
            (0x38, 0, "no magic number"),
            (0x64, 0x400, "a checksum of kind 0"),
        ] {
            let problem = problem(at, value);
            assert!(problem.starts_with(PLACE) && problem.contains(said), "{problem}");
        }
    }

    #[test]
    fn copies_of_the_superblock_are_in_few_groups() {
        let mut superblock = Superblock::parse(&raw()).unwrap();
        assert!((0..50).all(|group| superblock.has_copy(group)), "all, in the first ext2");
        superblock.ro_compat = RO_COMPAT_SPARSE_SUPER;
        let copies: Vec<u64> = (0..130).filter(|group| superblock.has_copy(*group)).collect();
        assert_eq!(copies, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
        (superblock.compat, superblock.backup_groups) = (COMPAT_SPARSE_SUPER2, [1, 77]);
        let copies: Vec<u64> = (0..130).filter(|group| superblock.has_copy(*group)).collect();
        assert_eq!(copies, [0, 1, 77]);
    }
}
