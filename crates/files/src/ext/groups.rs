//! Group descriptors: where a group's table of inodes is, and so where an inode is.

use std::collections::HashMap;

use super::inode::Inode;
use super::superblock::Incompat;
use super::{Ext, missing};
use crate::field::Fields;
use crate::source::{PIECE_BYTES, in_parallel};
use crate::{Error, Result};

const PLACE: &str = "ext4 group descriptor";

impl Ext {
    /// Reads one inode.
    pub(super) async fn inode(&self, number: u32) -> Result<Inode> {
        let offset = self.inode_offset(number).await?;
        let bytes = self.source.read(offset, self.superblock.inode_bytes, "ext4 inode").await?;
        Inode::parse(&self.superblock, number, offset, &bytes)
    }

    /// Reads many: those that lie together by one read.
    pub(super) async fn inodes(&self, mut numbers: Vec<u32>) -> Result<HashMap<u32, Inode>> {
        numbers.sort_unstable();
        numbers.dedup();
        let offsets = in_parallel(numbers.iter().map(|number| self.inode_offset(*number))).await?;
        let mut runs: Vec<Run> = Vec::new();
        let len = self.superblock.inode_bytes as u64;
        for (number, offset) in numbers.into_iter().zip(offsets) {
            match runs.last_mut() {
                Some(run) if run.takes(offset, len) => run.inodes.push((number, offset)),
                _ => runs.push(Run { start: offset, inodes: vec![(number, offset)] }),
            }
        }
        let read = in_parallel(runs.iter().map(|run| self.run(run))).await?;
        Ok(read.into_iter().flatten().map(|inode| (inode.number, inode)).collect())
    }

    async fn run(&self, run: &Run) -> Result<Vec<Inode>> {
        let len = self.superblock.inode_bytes;
        let end = run.inodes.last().map_or(run.start, |(_, offset)| *offset) + len as u64;
        let all = self.source.read(run.start, (end - run.start) as usize, "ext4 inodes").await?;
        let inodes = run.inodes.iter().map(|(number, offset)| {
            let at = (offset - run.start) as usize;
            let bytes = all.get(at..at + len).ok_or_else(|| missing(*number))?;
            Inode::parse(&self.superblock, *number, *offset, bytes)
        });
        inodes.collect()
    }

    /// First byte of an inode.
    async fn inode_offset(&self, number: u32) -> Result<u64> {
        let superblock = &self.superblock;
        if number == 0 || number > superblock.inodes {
            let problem = format!("there are inodes 1 to {}", superblock.inodes);
            return Err(Error::damaged(format_args!("ext4 inode {number}"), problem));
        }
        let index = number - 1;
        let group = u64::from(index / superblock.inodes_per_group);
        let inside = u64::from(index % superblock.inodes_per_group);
        let table = self.inode_table(group).await?;
        let first = table.checked_mul(superblock.block_bytes);
        let offset =
            first.and_then(|first| first.checked_add(inside * superblock.inode_bytes as u64));
        match offset {
            Some(offset) if offset < superblock.bytes && table > 0 => Ok(offset),
            _ => {
                let problem = format!("its table of inodes is at block {table}");
                Err(Error::damaged(format_args!("{PLACE} {group}"), problem))
            }
        }
    }

    /// First block of a group's table of inodes.
    async fn inode_table(&self, group: u64) -> Result<u64> {
        let superblock = &self.superblock;
        let in_block = superblock.block_bytes / superblock.descriptor_bytes;
        let block = self.descriptor_block(group / in_block);
        let len = superblock.descriptor_bytes;
        let offset = block * superblock.block_bytes + group % in_block * len;
        let bytes = self.source.read(offset, len as usize, PLACE).await?;
        let fields = Fields(&bytes);
        let hi = if len >= 64 { u64::from(fields.u32(0x28)) } else { 0 };
        Ok(hi << 32 | u64::from(fields.u32(8)))
    }

    /// The block with the descriptors of one part of the groups. They are together at the start, or
    /// each part has its own in its first group (`meta_bg`).
    fn descriptor_block(&self, part: u64) -> u64 {
        let superblock = &self.superblock;
        let of_superblock = 1024 / superblock.block_bytes;
        if !superblock.incompat.has(Incompat::META_BG) || part < superblock.first_meta_bg {
            return of_superblock + 1 + part;
        }
        let in_block = superblock.block_bytes / superblock.descriptor_bytes;
        let group = part * in_block;
        let first = superblock.first_data_block + group * superblock.blocks_per_group;
        // Blocks of 1 KiB are numbered from 0 where clusters are larger: then the superblock is
        // the second of them.
        let shifted = part == 0 && of_superblock > superblock.first_data_block;
        first + u64::from(superblock.has_copy(group)) + u64::from(shifted)
    }
}

/// Inodes that are read at once.
struct Run {
    start: u64,
    /// Numbers and places, in order.
    inodes: Vec<(u32, u64)>,
}

impl Run {
    /// Whether the inode at `offset` is near enough.
    fn takes(&self, offset: u64, len: u64) -> bool {
        let last = self.inodes.last().map_or(self.start, |(_, last)| *last);
        // A gap of one read's worth of others costs less than another read.
        let is_near = offset.checked_sub(last).is_some_and(|gap| gap <= 16 * 1024);
        is_near && offset + len - self.start <= PIECE_BYTES
    }
}
