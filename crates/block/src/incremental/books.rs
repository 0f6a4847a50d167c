//! [`Books`]: what is known of the destination, and in which order it may change. Pure: no I/O.
//!
//! The rule is that a hash that is in the state file is true after a power cut at any moment:
//!
//! 1. before a block of the destination is written, its hash is struck out in the file, and the
//!    file flushed (`compare`, `take_save`, `saved`);
//! 2. the block's new hash goes into the file once the block is written *and* the destination has
//!    been flushed since (`written`, `take_flush`, `flushed`).
//!
//! What is struck out already needs no first step, so that a first copy waits for no flush of the
//! file. Many blocks share a save and a flush.

use std::collections::BTreeMap;
use std::ops::Range;

use super::format::{PAGE_HASHES, Page};
use super::hash::Hash;
use crate::Bytes;

/// Blocks of one page, all of them zero or none, with what they are to hold.
pub(super) struct Run {
    /// Numbers of the blocks.
    pub(super) blocks: Range<u64>,
    /// Their hashes.
    pub(super) hashes: Vec<Hash>,
    /// Their content; `None` for zeroes.
    pub(super) data: Option<Bytes>,
    /// Bytes of the content.
    pub(super) bytes: u64,
}

/// A page that is in use.
struct Leaf {
    page: Page,
    /// Blocks whose fate is not decided yet.
    left: u64,
    /// The file has another content.
    dirty: bool,
    /// It is being written.
    saving: bool,
}

/// What is known and under way.
pub(super) struct Books {
    /// Bytes of written blocks for which the destination is flushed.
    checkpoint_bytes: u64,
    leaves: BTreeMap<u64, Leaf>,
    /// To be written to the destination once their hashes are struck out in the file.
    striking: Vec<Run>,
    /// Runs whose hashes are being struck out: the file is being written.
    struck: Vec<Run>,
    saving: bool,
    /// Blocks that were written and not flushed, and their hashes.
    written: Vec<(Range<u64>, Vec<Hash>)>,
    written_bytes: u64,
    /// Written blocks and their hashes, while the destination is being flushed.
    flushing: Vec<(Range<u64>, Vec<Hash>)>,
    is_flushing: bool,
}

impl Books {
    /// With a flush of the destination after so many bytes.
    pub(super) fn new(checkpoint_bytes: u64) -> Self {
        Self {
            checkpoint_bytes,
            leaves: BTreeMap::new(),
            striking: Vec::new(),
            struck: Vec::new(),
            saving: false,
            written: Vec::new(),
            written_bytes: 0,
            flushing: Vec::new(),
            is_flushing: false,
        }
    }

    /// Takes a page with `blocks` blocks into use.
    pub(super) fn add_page(&mut self, number: u64, page: Page, blocks: u64) {
        let leaf = Leaf { page, left: blocks, dirty: false, saving: false };
        self.leaves.insert(number, leaf);
    }

    /// What is known of a block of a page in use.
    pub(super) fn known(&self, block: u64) -> Hash {
        let leaf = self.leaves.get(&(block / PAGE_HASHES));
        leaf.map_or(Hash::UNKNOWN, |leaf| leaf.page.0[(block % PAGE_HASHES) as usize])
    }

    /// Blocks that stay as they are.
    pub(super) fn leave(&mut self, blocks: Range<u64>) {
        self.decided(&blocks);
    }

    /// A block holds what has this hash for certain, or nothing is known of it any more.
    pub(super) fn set(&mut self, block: u64, hash: Hash) {
        if let Some(leaf) = self.leaves.get_mut(&(block / PAGE_HASHES)) {
            let place = &mut leaf.page.0[(block % PAGE_HASHES) as usize];
            leaf.dirty |= *place != hash;
            *place = hash;
        }
    }

    /// A run that differs. It comes back when it may be written: at once, or from [`saved`].
    ///
    /// [`saved`]: Self::saved
    pub(super) fn send(&mut self, run: Run) -> Option<Run> {
        let known = run.blocks.clone().any(|block| self.known(block).is_known());
        if !known {
            return Some(run);
        }
        for block in run.blocks.clone() {
            self.set(block, Hash::UNKNOWN);
        }
        self.striking.push(run);
        None
    }

    /// Runs that wait for the file.
    pub(super) fn waiting(&self) -> usize {
        self.striking.len() + self.struck.len()
    }

    /// The pages to be written to the file now, if any. One save at a time, so that an older
    /// content never follows a newer one.
    pub(super) fn take_save(&mut self) -> Option<Vec<(u64, Page)>> {
        if self.saving {
            return None;
        }
        let dirty = self.leaves.iter_mut().filter(|(_, leaf)| leaf.dirty);
        let pages: Vec<(u64, Page)> = dirty
            .map(|(number, leaf)| {
                (leaf.dirty, leaf.saving) = (false, true);
                (*number, leaf.page.clone())
            })
            .collect();
        if pages.is_empty() {
            return None;
        }
        self.saving = true;
        self.struck = std::mem::take(&mut self.striking);
        Some(pages)
    }

    /// The save is stable: these may be written to the destination.
    pub(super) fn saved(&mut self) -> Vec<Run> {
        self.saving = false;
        self.leaves.values_mut().for_each(|leaf| leaf.saving = false);
        self.leaves.retain(|_, leaf| leaf.left > 0 || leaf.dirty);
        std::mem::take(&mut self.struck)
    }

    /// A run was written to the destination, and may be lost there until it is flushed.
    pub(super) fn written(&mut self, blocks: Range<u64>, hashes: Vec<Hash>, bytes: u64) {
        self.written.push((blocks, hashes));
        self.written_bytes += bytes;
    }

    /// Whether to flush the destination now: what was written before is stable then. `at_end`:
    /// nothing more comes.
    pub(super) fn take_flush(&mut self, at_end: bool) -> bool {
        let enough = self.written_bytes >= self.checkpoint_bytes || at_end;
        if self.is_flushing || self.written.is_empty() || !enough {
            return false;
        }
        self.is_flushing = true;
        self.flushing = std::mem::take(&mut self.written);
        self.written_bytes = 0;
        true
    }

    /// The flush ended well.
    pub(super) fn flushed(&mut self) {
        self.is_flushing = false;
        for (blocks, hashes) in std::mem::take(&mut self.flushing) {
            for (block, hash) in blocks.clone().zip(hashes) {
                self.set(block, hash);
            }
            self.decided(&blocks);
        }
    }

    /// Nothing is waited for, and the file has all that is known.
    pub(super) fn is_settled(&self) -> bool {
        self.leaves.is_empty()
    }

    fn decided(&mut self, blocks: &Range<u64>) {
        let number = blocks.start / PAGE_HASHES;
        if let Some(leaf) = self.leaves.get_mut(&number) {
            leaf.left = leaf.left.saturating_sub(blocks.end - blocks.start);
            if leaf.left == 0 && !leaf.dirty && !leaf.saving {
                self.leaves.remove(&number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT_BYTES: u64 = 16384;

    fn hash(byte: u8) -> Hash {
        Hash([byte; 16])
    }

    fn run(blocks: Range<u64>, byte: u8) -> Run {
        let hashes = vec![hash(byte); (blocks.end - blocks.start) as usize];
        Run { blocks, hashes, data: None, bytes: 8192 }
    }

    fn books(known: u8) -> Books {
        let mut books = Books::new(CHECKPOINT_BYTES);
        let mut page = Page::unknown();
        page.0[..4].fill(hash(known));
        books.add_page(0, page, 4);
        books
    }

    #[test]
    fn a_known_block_is_struck_out_before_it_is_written_and_noted_after_the_flush() {
        let mut books = books(1);
        assert!(books.take_save().is_none(), "nothing to be saved yet");
        assert!(books.send(run(1..3, 2)).is_none(), "the file says otherwise still");
        let pages = books.take_save().unwrap();
        let (number, page) = &pages[0];
        assert_eq!((*number, page.0[0], page.0[1]), (0, hash(1), Hash::UNKNOWN));
        assert!(books.take_save().is_none(), "one at a time");
        let runs = books.saved();
        assert_eq!(runs[0].blocks, 1..3);
        books.written(1..3, runs[0].hashes.clone(), 8192);
        assert!(!books.take_flush(false), "too little for a flush");
        assert!(books.take_flush(true) && !books.take_flush(true));
        assert!(books.take_save().is_none(), "not noted before the flush has ended");
        books.flushed();
        books.leave(0..1);
        books.leave(3..4);
        assert_eq!(books.take_save().unwrap()[0].1.0[1], hash(2));
        assert!(!books.is_settled());
        assert!(books.saved().is_empty() && books.is_settled());
    }

    #[test]
    fn what_is_not_known_is_written_at_once() {
        let mut books = books(0);
        assert!(books.send(run(0..4, 2)).is_some());
        assert!(books.take_save().is_none());
    }

    #[test]
    fn a_strike_during_a_save_waits_for_the_next_one() {
        let mut books = books(1);
        assert!(books.send(run(0..1, 2)).is_none());
        assert!(books.take_save().is_some());
        assert!(books.send(run(3..4, 2)).is_none());
        assert_eq!(books.saved().len(), 1);
        let pages = books.take_save().unwrap();
        assert_eq!(pages[0].1.0[3], Hash::UNKNOWN);
        assert_eq!(books.saved()[0].blocks, 3..4);
    }

    #[test]
    fn what_is_written_during_a_flush_waits_for_the_next_one() {
        let mut books = books(0);
        books.written(0..1, vec![hash(2)], CHECKPOINT_BYTES);
        assert!(books.take_flush(false));
        books.written(1..2, vec![hash(3)], CHECKPOINT_BYTES);
        books.flushed();
        assert_eq!((books.known(0), books.known(1)), (hash(2), Hash::UNKNOWN));
        assert!(books.take_flush(false));
    }
}
