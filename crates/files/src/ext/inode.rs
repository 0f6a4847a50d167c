//! Inodes: kind, size, time, and where the map of the content begins.

use bytes::Bytes;

use super::superblock::{Superblock, checksum};
use crate::field::Fields;
use crate::{EntryKind, Error, Result, Timestamp};

/// Where the root of the map, a short link or the first inline bytes are.
pub(super) const BLOCK_OFFSET: usize = 0x28;
/// Bytes there.
pub(super) const BLOCK_BYTES: usize = 60;
/// Bytes that every inode has; what is behind them belongs to later versions.
pub(super) const OLD_BYTES: usize = 128;

const FLAG_COMPRESSED: u32 = 0x4;
const FLAG_ENCRYPTED: u32 = 0x800;
const FLAG_INDEX: u32 = 0x1000;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE_DATA: u32 = 0x1000_0000;

const KIND_MASK: u16 = 0xf000;
const KIND_FOLDER: u16 = 0x4000;
const KIND_FILE: u16 = 0x8000;
const KIND_LINK: u16 = 0xa000;

/// A checked inode.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(super) number: u32,
    /// Where it is.
    pub(super) offset: u64,
    /// All of it, where content is inside; else nothing, since folders have many.
    pub(super) inline: Bytes,
    /// The root of its map, a short link, or the first inline bytes.
    pub(super) block: [u8; BLOCK_BYTES],
    pub(super) size: u64,
    pub(super) modified: Timestamp,
    pub(super) version: u64,
    /// What the checksums of its blocks begin with.
    pub(super) checksum_seed: Option<u32>,
    mode: u16,
    flags: u32,
}

impl Inode {
    pub(super) fn parse(
        superblock: &Superblock,
        number: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Self> {
        let fields = Fields(bytes);
        let (mode, flags) = (fields.u16(0), fields.u32(0x20));
        let seed = superblock
            .checksum_seed
            .map(|seed| checksum(checksum(seed, &number.to_le_bytes()), fields.bytes(0x64, 4)));
        let mut inode = Self {
            number,
            offset,
            size: u64::from(fields.u32(0x6c)) << 32 | u64::from(fields.u32(4)),
            modified: modified(fields),
            version: version(fields),
            checksum_seed: seed,
            inline: Bytes::new(),
            block: fields.array(BLOCK_OFFSET),
            mode,
            flags,
        };
        if let Some(seed) = seed {
            inode.check_checksum(seed, fields)?;
        }
        if fields.u16(0x1a) == 0 || mode == 0 {
            return Err(Error::damaged(inode.place(), "a name points to it, and it is not in use"));
        }
        if inode.size >= 1 << 63 {
            let problem = format!("a size of {} bytes", inode.size);
            return Err(Error::damaged(inode.place(), problem));
        }
        if inode.is_inline() {
            inode.inline = Bytes::copy_from_slice(bytes);
        }
        Ok(inode)
    }

    /// The checksum is of the inode with 0 in its place: half of it is in the old part, half in the
    /// new one, if there is room.
    fn check_checksum(&self, seed: u32, fields: Fields<'_>) -> Result<()> {
        let mut bytes = fields.0.to_vec();
        bytes[0x7c..0x7e].fill(0);
        let mut mask = 0xffff;
        let mut stored = u32::from(fields.u16(0x7c));
        if bytes.len() > OLD_BYTES && fields.u16(0x80) >= 4 {
            bytes[0x82..0x84].fill(0);
            stored |= u32::from(fields.u16(0x82)) << 16;
            mask = u32::MAX;
        }
        if checksum(seed, &bytes) & mask != stored {
            return Err(Error::damaged(self.place(), "its checksum is wrong"));
        }
        Ok(())
    }

    /// As errors call it.
    pub(super) fn place(&self) -> String {
        format!("ext4 inode {}", self.number)
    }

    pub(super) fn kind(&self) -> EntryKind {
        match self.mode & KIND_MASK {
            KIND_FILE => EntryKind::File,
            KIND_FOLDER => EntryKind::Folder,
            KIND_LINK => EntryKind::Link,
            _ => EntryKind::Special,
        }
    }

    pub(super) fn has_extents(&self) -> bool {
        self.flags & FLAG_EXTENTS != 0
    }

    /// A folder whose first block is the root of an index.
    pub(super) fn has_index(&self) -> bool {
        self.flags & FLAG_INDEX != 0
    }

    pub(super) fn is_inline(&self) -> bool {
        self.flags & FLAG_INLINE_DATA != 0
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.flags & FLAG_ENCRYPTED != 0
    }

    /// By the patches of 2.x kernels that never went in.
    pub(super) fn is_compressed(&self) -> bool {
        self.flags & FLAG_COMPRESSED != 0 && self.kind() == EntryKind::File && !self.has_extents()
    }

    /// The target of a link that has no blocks.
    pub(super) fn short_target(&self) -> Option<&[u8]> {
        let is_short = self.size < BLOCK_BYTES as u64 && !self.has_extents() && !self.is_inline();
        is_short.then(|| Fields(&self.block).bytes(0, self.size as usize))
    }
}

/// Two bits more of the seconds, and nanoseconds, are in the new part.
fn modified(fields: Fields<'_>) -> Timestamp {
    let has_extra = fields.0.len() > OLD_BYTES && fields.u16(0x80) >= 0x8c - 0x80;
    let extra = if has_extra { fields.u32(0x88) } else { 0 };
    let seconds = i64::from(fields.u32(0x10) as i32) + (i64::from(extra & 3) << 32);
    Timestamp { seconds, nanos: (extra >> 2).min(999_999_999), is_utc: true }
}

/// Of all that changes with the content: not of the times of access.
fn version(fields: Fields<'_>) -> u64 {
    let parts = [
        fields.bytes(0, 8),
        fields.bytes(0xc, 8),
        fields.bytes(0x1a, 14),
        fields.bytes(BLOCK_OFFSET, BLOCK_BYTES),
        fields.bytes(0x64, 12),
        fields.bytes(0x84, 8),
    ];
    let numbers = parts.concat();
    u64::from(crc32fast::hash(&numbers)) << 32 | u64::from(crc32c::crc32c(&numbers))
}
