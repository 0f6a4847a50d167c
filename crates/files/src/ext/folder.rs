//! Folders: names and their inodes. A folder with an index (htree) is a list like any other: the
//! index hides in entries without an inode. All of it is read at once, many blocks in parallel,
//! which costs one round trip where the index would cost three.

use super::inode::Inode;
use super::superblock::{Superblock, checksum};
use crate::field::Fields;
use crate::limits::FOLDER_ENTRIES_MAX;
use crate::{Error, Name, Result};

/// Bytes of an entry without its name.
const HEADER_BYTES: usize = 8;
/// Bytes of the entry that holds a block's checksum, and its "kind of file".
const TAIL_BYTES: usize = 12;
const TAIL_KIND: u8 = 0xde;
/// Bytes of an inline folder in front of its entries: the parent's inode.
const INLINE_PARENT_BYTES: usize = 4;
/// Bytes of an inline folder that are in the place of the map.
const INLINE_FIRST_BYTES: usize = super::inode::BLOCK_BYTES;

/// How to read the folder of an inode.
pub(super) struct Folder<'a> {
    pub(super) superblock: &'a Superblock,
    pub(super) inode: &'a Inode,
}

impl Folder<'_> {
    /// The entries of whole blocks.
    pub(super) fn blocks(&self, content: &[u8], names: &mut Vec<(Name, u32)>) -> Result<()> {
        let block_bytes = self.superblock.block_bytes as usize;
        for (number, block) in content.chunks(block_bytes).enumerate() {
            if let Some(seed) = self.inode.checksum_seed {
                self.check_checksum(seed, number, block)?;
            }
            self.entries(block, number * block_bytes, names)?;
        }
        Ok(())
    }

    /// The entries of a folder that is inside its inode: two lists, of which the first follows the
    /// parent's number.
    pub(super) fn inline(&self, content: &[u8], names: &mut Vec<(Name, u32)>) -> Result<()> {
        let fields = Fields(content);
        let first = fields.bytes(INLINE_PARENT_BYTES, INLINE_FIRST_BYTES - INLINE_PARENT_BYTES);
        self.entries(first, INLINE_PARENT_BYTES, names)?;
        self.entries(fields.bytes(INLINE_FIRST_BYTES, usize::MAX), INLINE_FIRST_BYTES, names)
    }

    /// Only blocks of entries end with this checksum. Those of the index have another, and in front
    /// of it may stand what is left of this one, from the time when they were blocks of entries.
    fn check_checksum(&self, seed: u32, number: usize, block: &[u8]) -> Result<()> {
        let Some(at) = block.len().checked_sub(TAIL_BYTES) else { return Ok(()) };
        let is_root = number == 0 && self.inode.has_index();
        if is_root || self.entry_len(Fields(block)) == block.len() {
            return Ok(());
        }
        let tail = Fields(&block[at..]);
        let is_tail = tail.u32(0) == 0
            && usize::from(tail.u16(4)) == TAIL_BYTES
            && tail.u8(6) == 0
            && tail.u8(7) == TAIL_KIND;
        if is_tail && checksum(seed, &block[..at]) != tail.u32(8) {
            let place = format!("{}, block {number} of the folder", self.inode.place());
            return Err(Error::damaged(place, "its checksum is wrong"));
        }
        Ok(())
    }

    /// The entries of `list`, which begins at byte `start` of the folder.
    fn entries(&self, list: &[u8], start: usize, names: &mut Vec<(Name, u32)>) -> Result<()> {
        let mut at = 0;
        while at < list.len() {
            let entry = Fields(&list[at..]);
            let len = self.entry_len(entry);
            let name_len = name_len(entry);
            let is_whole = len >= HEADER_BYTES
                && len.is_multiple_of(4)
                && len <= entry.0.len()
                && HEADER_BYTES + name_len <= len;
            if !is_whole {
                let problem = format!(
                    "the entry at byte {} of the folder has {len} bytes, {name_len} of them name",
                    start + at
                );
                return Err(Error::damaged(self.inode.place(), problem));
            }
            let (name, inode) = (entry.bytes(HEADER_BYTES, name_len), entry.u32(0));
            at += len;
            if inode == 0 || matches!(name, b"." | b"..") {
                continue;
            }
            if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
                let problem = format!("a name {:?}", Name::new(name).to_string());
                return Err(Error::damaged(self.inode.place(), problem));
            }
            if names.len() >= FOLDER_ENTRIES_MAX {
                let max = FOLDER_ENTRIES_MAX as u64;
                return Err(Error::too_much(self.inode.place(), "names in a folder", max));
            }
            names.push((Name::new(name), inode));
        }
        Ok(())
    }

    /// In blocks of 64 KiB, the two lowest bits are the highest, and 64 KiB are written as 0 or
    /// 65535.
    fn entry_len(&self, entry: Fields<'_>) -> usize {
        let len = usize::from(entry.u16(4));
        match len {
            _ if self.superblock.block_bytes < 65_536 => len,
            0 | 65_535 => 65_536,
            _ => (len & 65_532) | (len & 3) << 16,
        }
    }
}

/// The byte behind it is the kind of file, or the length's upper byte, which is 0 since no name is
/// longer than 255 bytes; except in the entry of the checksum, which is the same in both.
fn name_len(entry: Fields<'_>) -> usize {
    usize::from(entry.u8(6))
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::raw;
    use super::*;

    const BLOCK: usize = 1024;
    const SEED: u32 = 7;

    /// Entries (inode, bytes, name) from the start of a block, and the given checksum at its end.
    fn block(entries: &[(u32, u16, &str)], stored: impl Fn(&[u8]) -> u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        for (inode, len, name) in entries {
            block[at..at + 4].copy_from_slice(&inode.to_le_bytes());
            block[at + 4..at + 6].copy_from_slice(&len.to_le_bytes());
            block[at + 6..at + 8].copy_from_slice(&(name.len() as u16).to_le_bytes());
            block[at + HEADER_BYTES..][..name.len()].copy_from_slice(name.as_bytes());
            at += usize::from(*len);
        }
        let at = BLOCK - TAIL_BYTES;
        let stored = stored(&block[..at]);
        block[at + 4..at + 8].copy_from_slice(&[TAIL_BYTES as u8, 0, 0, TAIL_KIND]);
        block[at + 8..].copy_from_slice(&stored.to_le_bytes());
        block
    }

    fn names(flags: u32, blocks: &[Vec<u8>]) -> Result<Vec<String>> {
        let superblock = Superblock::parse(&raw())?;
        let mut bytes = [0; super::super::inode::OLD_BYTES];
        (bytes[1], bytes[0x1a]) = (0x40, 2);
        bytes[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        let mut inode = Inode::parse(&superblock, 2, 0, &bytes)?;
        inode.checksum_seed = Some(SEED);
        let mut names = Vec::new();
        let folder = Folder { superblock: &superblock, inode: &inode };
        folder.blocks(&blocks.concat(), &mut names)?;
        Ok(names.iter().map(|(name, _)| name.to_string()).collect())
    }

    #[test]
    fn only_blocks_of_entries_have_their_checksum() {
        const INDEX: u32 = 0x1000;
        let right = |list: &[u8]| checksum(SEED, list);
        let stale = |list: &[u8]| !checksum(SEED, list);
        let list = [(12, 1012, "film")];
        let root = block(&[(2, 12, "."), (2, 1012, "..")], stale);
        let inner = block(&[(0, 1024, "")], stale);
        let good = block(&list, right);
        let bad = block(&list, stale);

        assert_eq!(names(0, std::slice::from_ref(&good)).unwrap(), ["film"]);
        assert_eq!(names(INDEX, &[root.clone(), inner, good]).unwrap(), ["film"]);
        for (flags, blocks, place) in [
            (0, vec![bad.clone()], "block 0"),
            (0, vec![root.clone()], "block 0"),
            (INDEX, vec![root, bad], "block 1"),
        ] {
            let problem = names(flags, &blocks).unwrap_err().to_string();
            let said = format!("ext4 inode 2, {place} of the folder: its checksum is wrong");
            assert!(problem.contains(&said), "{problem}");
        }
    }
}
