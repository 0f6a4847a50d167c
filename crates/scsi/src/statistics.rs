//! [`Statistics`]: what a logical unit was asked to do since power on, for the General Statistics
//! and Performance log page (SPC-4 §7.3, page 19h).
//!
//! Somebody who only reads a unit that others write to can tell by it whether what he has read
//! still holds. A change is counted twice, as NUMBER OF WRITE COMMANDS before the device is asked,
//! and as WRITE COMMAND PROCESSING INTERVALS once it has answered: where neither has moved between
//! two looks, no change began or ended in between.
//!
//! Every command that changes the medium is a write command here (UNMAP and WRITE SAME, too), and
//! what EXTENDED COPY writes to a unit is one each segment. Nothing of it outlives the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::opcodes::Access;
use crate::{Cdb, Response};

/// What is counted. On a cache line of its own kind: every command of every nexus comes by.
#[derive(Default)]
pub(crate) struct Statistics {
    read_commands: AtomicU64,
    write_commands: AtomicU64,
    blocks_received: AtomicU64,
    blocks_transmitted: AtomicU64,
    read_us: AtomicU64,
    write_us: AtomicU64,
}

/// What the log page has of it, in its order. The intervals are microseconds, of which a command
/// takes one at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) read_commands: u64,
    pub(crate) write_commands: u64,
    pub(crate) blocks_received: u64,
    pub(crate) blocks_transmitted: u64,
    pub(crate) read_intervals: u64,
    pub(crate) write_intervals: u64,
}

/// A command that is being carried out, until it is dropped.
pub(crate) struct Work {
    statistics: Arc<Statistics>,
    kind: Kind,
    began: Instant,
    /// Blocks that came, or have gone.
    blocks: u64,
    block_size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Change,
}

impl Statistics {
    /// A command whose turn has come and that nothing refuses, if it is one that counts.
    pub(crate) fn begin(
        self: &Arc<Self>,
        access: Access,
        cdb: &Cdb,
        data_out_len: usize,
        block_size: u32,
    ) -> Option<Work> {
        let block_size = u64::from(block_size);
        if access == Access::Write {
            let received = if brings_blocks(cdb) { data_out_len as u64 / block_size } else { 0 };
            return Some(self.change(received, block_size));
        }
        if !is_read(cdb) {
            return None;
        }
        self.read_commands.fetch_add(1, Ordering::Relaxed);
        Some(self.work(Kind::Read, 0, block_size))
    }

    /// Something is about to change so many blocks of the medium.
    pub(crate) fn change(self: &Arc<Self>, blocks: u64, block_size: u64) -> Work {
        // Before the device is asked: whoever sees the change sees the count.
        self.write_commands.fetch_add(1, Ordering::AcqRel);
        self.work(Kind::Change, blocks, block_size)
    }

    fn work(self: &Arc<Self>, kind: Kind, blocks: u64, block_size: u64) -> Work {
        Work { statistics: Arc::clone(self), kind, began: Instant::now(), blocks, block_size }
    }

    /// As of now.
    pub(crate) fn counts(&self) -> Counts {
        let get = |count: &AtomicU64| count.load(Ordering::Acquire);
        Counts {
            read_commands: get(&self.read_commands),
            write_commands: get(&self.write_commands),
            blocks_received: get(&self.blocks_received),
            blocks_transmitted: get(&self.blocks_transmitted),
            read_intervals: get(&self.read_us),
            write_intervals: get(&self.write_us),
        }
    }
}

impl Work {
    /// What a command is answered with, which tells how much was read.
    pub(crate) fn answered(&mut self, response: &Response) {
        if self.kind == Kind::Read {
            self.blocks = response.data_in.len() as u64 / self.block_size;
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let elapsed_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        let (blocks, intervals) = match self.kind {
            Kind::Read => (&self.statistics.blocks_transmitted, &self.statistics.read_us),
            Kind::Change => (&self.statistics.blocks_received, &self.statistics.write_us),
        };
        blocks.fetch_add(self.blocks, Ordering::Relaxed);
        intervals.fetch_add(elapsed_us, Ordering::AcqRel);
    }
}

/// READ (6, 10, 12, 16).
fn is_read(cdb: &Cdb) -> bool {
    matches!(cdb.opcode(), 0x08 | 0x28 | 0xa8 | 0x88)
}

/// What comes with a command that changes the medium is blocks, not a list of addresses (UNMAP) or
/// a pattern (SANITIZE).
fn brings_blocks(cdb: &Cdb) -> bool {
    !matches!(cdb.opcode(), 0x42 | 0x48)
}
