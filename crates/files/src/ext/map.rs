//! Where the content of an inode is: a tree of extents (ext4), or direct, indirect, doubly and
//! triply indirect blocks (ext2, ext3). A level of either is read at once.

use bytes::Bytes;

use super::inode::Inode;
use super::superblock::{Superblock, checksum};
use crate::extents::Builder;
use crate::field::Fields;
use crate::limits::MAP_BLOCKS_MAX;
use crate::source::Source;
use crate::{Error, Result};

/// At the start of every node of a tree.
const MAGIC: u16 = 0xf30a;
/// Bytes of a node's header, and of each of its entries.
const ENTRY_BYTES: usize = 12;
/// The kernel's own limit: what 2³² blocks can need.
const DEPTH_MAX: u16 = 5;
/// Longer extents are reserved and not written yet: they read as zeroes.
const WRITTEN_BLOCKS_MAX: u64 = 32_768;
/// Blocks that an inode of ext2 points to itself.
const DIRECT: usize = 12;
/// Blocks of a map that are read at once.
const BATCH: usize = 256;

/// How to find the content of an inode.
pub(super) struct Map<'a> {
    pub(super) source: &'a Source,
    pub(super) superblock: &'a Superblock,
    pub(super) inode: &'a Inode,
}

/// A node that is to be read: where it is, and the first block of the file that it tells.
struct Child {
    block: u64,
    first: u64,
}

impl Map<'_> {
    pub(super) async fn extents(&self, map: &mut Builder) -> Result<()> {
        if self.inode.has_extents() { self.tree(map).await } else { self.blocks(map).await }
    }

    async fn tree(&self, map: &mut Builder) -> Result<()> {
        let root = &self.inode.block;
        let depth = Fields(root).u16(6);
        if depth > DEPTH_MAX {
            return Err(self.damaged(format!("a tree of {depth} levels, at most {DEPTH_MAX}")));
        }
        if depth == 0 {
            return self.leaf(root, map);
        }
        let mut children = Vec::new();
        self.children(root, depth, &mut children)?;
        let mut count = children.len();
        // Some nodes at a time: what they tell is less than what they are.
        for depth in (1..depth).rev() {
            let mut next = Vec::new();
            for some in children.chunks(BATCH) {
                for node in self.nodes(some).await? {
                    self.children(&node, depth, &mut next)?;
                    self.check_count(count + next.len())?;
                }
            }
            count += next.len();
            children = next;
        }
        for some in children.chunks(BATCH) {
            self.nodes(some).await?.iter().try_for_each(|node| self.leaf(node, map))?;
        }
        Ok(())
    }

    async fn nodes(&self, children: &[Child]) -> Result<Vec<Bytes>> {
        let nodes = self.read(children).await?;
        for (node, child) in nodes.iter().zip(children) {
            self.check_node(node, child)?;
        }
        Ok(nodes)
    }

    /// The number of entries in a node of the tree.
    fn entries(&self, node: &[u8], depth: u16) -> Result<usize> {
        let fields = Fields(node);
        let (entries, room) = (usize::from(fields.u16(2)), node.len() / ENTRY_BYTES - 1);
        if fields.u16(0) != MAGIC || fields.u16(6) != depth || entries > room {
            return Err(self.damaged(format!(
                "a node of its tree has magic {:#x}, level {} instead of {depth}, and {entries} \
                 entries in room for {room}",
                fields.u16(0),
                fields.u16(6),
            )));
        }
        Ok(entries)
    }

    fn children(&self, node: &[u8], depth: u16, children: &mut Vec<Child>) -> Result<()> {
        for entry in 0..self.entries(node, depth)? {
            let fields = Fields(&node[ENTRY_BYTES * (entry + 1)..]);
            let first = u64::from(fields.u32(0));
            // In order, so that no node can be reached over and over for the same part.
            if children.last().is_some_and(|last: &Child| last.first >= first) {
                return Err(self.damaged(format!("its tree has block {first} not in order")));
            }
            let block = u64::from(fields.u16(8)) << 32 | u64::from(fields.u32(4));
            children.push(Child { block, first });
        }
        Ok(())
    }

    fn leaf(&self, node: &[u8], map: &mut Builder) -> Result<()> {
        let block_bytes = self.superblock.block_bytes;
        for entry in 0..self.entries(node, 0)? {
            let fields = Fields(&node[ENTRY_BYTES * (entry + 1)..]);
            let (first, len) = (u64::from(fields.u32(0)), u64::from(fields.u16(4)));
            let block = u64::from(fields.u16(6)) << 32 | u64::from(fields.u32(8));
            let at = Some(block * block_bytes).filter(|_| len <= WRITTEN_BLOCKS_MAX);
            let len = if len > WRITTEN_BLOCKS_MAX { len - WRITTEN_BLOCKS_MAX } else { len };
            if len == 0 || at == Some(0) {
                return Err(self.damaged(format!("{len} blocks of it are at block {block}")));
            }
            map.push(first * block_bytes, len * block_bytes, at)?;
        }
        Ok(())
    }

    /// The checksum stands behind the last entry there is room for.
    fn check_node(&self, node: &[u8], child: &Child) -> Result<()> {
        let fields = Fields(node);
        let tail = ENTRY_BYTES * (usize::from(fields.u16(4)) + 1);
        let Some(seed) = self.inode.checksum_seed else { return Ok(()) };
        let is_right = node.get(..tail).is_some_and(|entries| {
            node.len() >= tail + 4 && checksum(seed, entries) == fields.u32(tail)
        });
        if !is_right {
            let problem = format!("block {} of its tree has a wrong checksum", child.block);
            return Err(self.damaged(problem));
        }
        Ok(())
    }

    async fn blocks(&self, map: &mut Builder) -> Result<()> {
        let block_bytes = self.superblock.block_bytes;
        let pointers = block_bytes / 4;
        let total = self.inode.size.div_ceil(block_bytes);
        let fields = Fields(&self.inode.block);
        for number in 0..DIRECT {
            self.pointer(number as u64, fields.u32(4 * number), map)?;
        }
        let mut first = DIRECT as u64;
        let mut count = 0;
        for levels in 1..=3 {
            let block = u64::from(fields.u32(4 * (DIRECT + levels as usize - 1)));
            let covered = pointers.pow(levels);
            if block != 0 && first < total {
                let child = Child { block, first };
                self.indirect(child, levels, total, &mut count, map).await?;
            }
            first += covered;
        }
        // Nothing can be behind what they reach.
        if first < total {
            return Err(self.damaged(format!("{total} blocks, at most {first} are possible")));
        }
        Ok(())
    }

    /// All that is below one of the inode's indirect blocks, level by level and, in the last one,
    /// some at a time: they are the most.
    async fn indirect(
        &self,
        child: Child,
        levels: u32,
        total: u64,
        count: &mut usize,
        map: &mut Builder,
    ) -> Result<()> {
        let pointers = self.superblock.block_bytes / 4;
        let mut children = vec![child];
        for level in (1..levels).rev() {
            let covered = pointers.pow(level);
            let mut next = Vec::new();
            *count += children.len();
            for (block, child) in self.read(&children).await?.iter().zip(&children) {
                for number in 0..pointers {
                    let first = child.first + number * covered;
                    let block = u64::from(Fields(block).u32(4 * number as usize));
                    if block != 0 && first < total {
                        next.push(Child { block, first });
                    }
                }
                self.check_count(*count + next.len())?;
            }
            children = next;
        }
        *count += children.len();
        self.check_count(*count)?;
        for some in children.chunks(BATCH) {
            for (block, child) in self.read(some).await?.iter().zip(some) {
                for number in 0..pointers {
                    let pointer = Fields(block).u32(4 * number as usize);
                    self.pointer(child.first + number, pointer, map)?;
                }
            }
        }
        Ok(())
    }

    fn pointer(&self, number: u64, block: u32, map: &mut Builder) -> Result<()> {
        let block_bytes = self.superblock.block_bytes;
        if block == 0 {
            return Ok(());
        }
        map.push(number * block_bytes, block_bytes, Some(u64::from(block) * block_bytes))
    }

    async fn read(&self, children: &[Child]) -> Result<Vec<Bytes>> {
        let block_bytes = self.superblock.block_bytes;
        if let Some(child) =
            children.iter().find(|child| child.block == 0 || child.block >= 1 << 48)
        {
            return Err(self.damaged(format!("its map goes on at block {}", child.block)));
        }
        let ranges = children.iter().map(|child| (child.block * block_bytes, block_bytes as usize));
        self.source.read_all(ranges, "ext4 map of a file").await
    }

    fn check_count(&self, blocks: usize) -> Result<()> {
        if blocks > MAP_BLOCKS_MAX {
            let max = MAP_BLOCKS_MAX as u64;
            return Err(Error::too_much(self.inode.place(), "blocks of a map", max));
        }
        Ok(())
    }

    fn damaged(&self, problem: String) -> Error {
        Error::damaged(self.inode.place(), problem)
    }
}
