//! Which blocks of a leg may differ: a bit for each 4 KiB, in memory exact, on the metadata device
//! never fewer bits than the truth where the activity log does not cover them. Pure: no I/O.
//!
//! A page of 4 KiB is 8 sectors of 512 bytes, the unit that a power cut leaves whole, each with a
//! checksum of its own: a page torn between sectors is old bits and new ones side by side, and
//! both are safe. A sector that cannot be read back, or that was written under another name, says
//! that all of its blocks may differ. Setting all bits of a device of any size is therefore a new
//! name in the superblock, without a write to any page.
//!
//! Memory: 32 MiB and 200 KiB for a device of 1 TiB.

use std::ops::Range;

use super::{BLOCK_BYTES, layout::EXTENT_BLOCKS};

/// Bytes of a sector: what a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Bytes in front of a sector's bits: checksum, magic, name, number.
const SECTOR_HEADER_BYTES: usize = 32;
/// 64-bit words of bits in a sector.
const SECTOR_WORDS: usize = (SECTOR_BYTES - SECTOR_HEADER_BYTES) / 8;
/// Blocks that a sector tells of: 15 MiB, a whole number of extents.
const SECTOR_BLOCKS: u64 = SECTOR_WORDS as u64 * 64;
const _: () = assert!(SECTOR_BLOCKS.is_multiple_of(EXTENT_BLOCKS));

/// Bytes of a page: the unit of metadata I/O.
pub const PAGE_BYTES: usize = BLOCK_BYTES as usize;
/// Sectors of a page.
const PAGE_SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
/// Blocks that a page tells of (120 MiB).
pub const PAGE_BLOCKS: u64 = SECTOR_BLOCKS * PAGE_SECTORS as u64;

/// First bytes of a sector behind its checksum.
const MAGIC: [u8; 4] = *b"ekBM";

/// The name under which pages are written. All bits are set in what has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BitmapId(pub u128);

/// Pages of the bitmap of a device of `blocks` blocks.
pub const fn pages(blocks: u64) -> u64 {
    blocks.div_ceil(PAGE_BLOCKS)
}

/// The blocks that `offset..offset + len` in bytes touches, also in part: what a change sets.
pub fn blocks_touched(offset: u64, len: u64) -> Range<u64> {
    offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)
}

/// How what is on the metadata device differs from the sector in memory.
mod differs {
    /// Bits are missing there: only the activity log covers them.
    pub(super) const BITS_MISSING: u8 = 1;
    /// Bits are set there that are clear by now: harmless.
    pub(super) const BITS_TOO_MANY: u8 = 2;
}

/// A set of blocks, with what is known of its image on the metadata device.
#[derive(Clone, Debug)]
pub struct Bitmap {
    blocks: u64,
    words: Vec<u64>,
    count: u64,
    /// Bits set in each sector, so that empty and full ones are passed over.
    sector_counts: Vec<u16>,
    /// Flags of [`differs`] for each sector.
    sector_differs: Vec<u8>,
}

impl Bitmap {
    /// No block of `blocks` may differ. Nothing of it is on the metadata device yet.
    pub fn new(blocks: u64) -> Self {
        let sectors = blocks.div_ceil(SECTOR_BLOCKS) as usize;
        Self {
            blocks,
            words: vec![0; sectors * SECTOR_WORDS],
            count: 0,
            sector_counts: vec![0; sectors],
            sector_differs: vec![differs::BITS_TOO_MANY; sectors],
        }
    }

    /// All of `blocks` may differ, as pages under a new [`BitmapId`] say as well.
    pub fn full(blocks: u64) -> Self {
        let mut bitmap = Self::new(blocks);
        bitmap.set(0..blocks);
        bitmap.sector_differs.fill(0);
        bitmap
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that may differ.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Pages on the metadata device.
    pub fn pages(&self) -> u64 {
        pages(self.blocks)
    }

    /// The block may differ. None outside of the device does.
    pub fn test(&self, block: u64) -> bool {
        block < self.blocks && self.words[(block / 64) as usize] >> (block % 64) & 1 != 0
    }

    /// One of the blocks may differ.
    pub fn any(&self, blocks: Range<u64>) -> bool {
        self.next_run(blocks.start, blocks.end).is_some()
    }

    /// Every one of the blocks may differ.
    pub fn all(&self, blocks: Range<u64>) -> bool {
        blocks.is_empty() || self.next_run(blocks.start, blocks.end) == Some(blocks)
    }

    /// The blocks may differ; those behind the device are left out. Returns how many could not
    /// before.
    pub fn set(&mut self, blocks: Range<u64>) -> u64 {
        let mut added = 0;
        let end = blocks.end.min(self.blocks);
        for (word, mask) in words_of(blocks.start..end) {
            let new = mask & !self.words[word];
            if new != 0 {
                let sector = word / SECTOR_WORDS;
                self.words[word] |= new;
                self.sector_counts[sector] += new.count_ones() as u16;
                self.sector_differs[sector] |= differs::BITS_MISSING;
                added += u64::from(new.count_ones());
            }
        }
        self.count += added;
        added
    }

    /// The blocks are equal. Returns how many were not known to be.
    pub fn clear(&mut self, blocks: Range<u64>) -> u64 {
        let mut removed = 0;
        let end = blocks.end.min(self.blocks);
        for (word, mask) in words_of(blocks.start..end) {
            let old = mask & self.words[word];
            if old != 0 {
                let sector = word / SECTOR_WORDS;
                self.words[word] &= !old;
                self.sector_counts[sector] -= old.count_ones() as u16;
                self.sector_differs[sector] |= differs::BITS_TOO_MANY;
                removed += u64::from(old.count_ones());
            }
        }
        self.count -= removed;
        removed
    }

    /// Adds what may differ by `other`, which is of the same device.
    pub fn add_all(&mut self, other: &Self) {
        let mut from = 0;
        while let Some(run) = other.next_run(from, other.blocks) {
            from = run.end;
            self.set(run);
        }
    }

    /// The first run of blocks that may differ within `from..end`, as far as it goes there.
    pub fn next_run(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let end = end.min(self.blocks);
        let start = self.next_where(from, end, true)?;
        Some(start..self.next_where(start, end, false).unwrap_or(end))
    }

    /// The first block of `from..end` whose bit is `set`.
    fn next_where(&self, from: u64, end: u64, set: bool) -> Option<u64> {
        let boring = if set { 0 } else { SECTOR_BLOCKS as u16 };
        let mut block = from;
        while block < end {
            let sector = (block / SECTOR_BLOCKS) as usize;
            if self.sector_counts[sector] == boring {
                block = (sector as u64 + 1) * SECTOR_BLOCKS;
                continue;
            }
            let word = self.words[(block / 64) as usize];
            let wanted = if set { word } else { !word } >> (block % 64);
            if wanted != 0 {
                return Some(block + u64::from(wanted.trailing_zeros())).filter(|at| *at < end);
            }
            block = (block / 64 + 1) * 64;
        }
        None
    }

    /// The first page from `from` on that lacks bits on the metadata device.
    pub fn next_page_missing_bits(&self, from: u64) -> Option<u64> {
        self.next_page(from, differs::BITS_MISSING)
    }

    /// The first page from `from` on that is not the same on the metadata device.
    pub fn next_page_unsaved(&self, from: u64) -> Option<u64> {
        self.next_page(from, differs::BITS_MISSING | differs::BITS_TOO_MANY)
    }

    fn next_page(&self, from: u64, flags: u8) -> Option<u64> {
        let first = from as usize * PAGE_SECTORS;
        let rest = self.sector_differs.get(first..)?;
        let found = rest.iter().position(|differs| differs & flags != 0)?;
        Some(((first + found) / PAGE_SECTORS) as u64)
    }

    /// The page that tells of an extent, if bits that are set there now are missing on the metadata
    /// device. An extent without bits needs no page: what stands there may be too many.
    pub fn page_missing_bits_of(&self, extent: u32) -> Option<u64> {
        let first = u64::from(extent) * EXTENT_BLOCKS;
        let sector = (first / SECTOR_BLOCKS) as usize;
        let differs = self.sector_differs.get(sector)?;
        let missing = differs & differs::BITS_MISSING != 0;
        (missing && self.any(first..first + EXTENT_BLOCKS))
            .then_some((sector / PAGE_SECTORS) as u64)
    }

    /// Fills `page` with the bits as they are now. From here on the page counts as saved: whoever
    /// cannot write it says so with [`page_not_saved`](Self::page_not_saved).
    pub fn take_page(&mut self, number: u64, id: BitmapId, page: &mut [u8; PAGE_BYTES]) {
        page.fill(0);
        for (within, bytes) in page.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let sector = number as usize * PAGE_SECTORS + within;
            let Some(differs) = self.sector_differs.get_mut(sector) else { break };
            *differs = 0;
            let words = &self.words[sector * SECTOR_WORDS..][..SECTOR_WORDS];
            encode_sector(sector as u64, id, words, bytes);
        }
    }

    /// A page that was [taken](Self::take_page) may not be on the metadata device.
    pub fn page_not_saved(&mut self, number: u64) {
        let first = number as usize * PAGE_SECTORS;
        for differs in self.sector_differs.iter_mut().skip(first).take(PAGE_SECTORS) {
            *differs = differs::BITS_MISSING | differs::BITS_TOO_MANY;
        }
    }

    /// Adds the bits of a page as it was read: all where it cannot be used. Returns how many of its
    /// sectors could not.
    pub fn load_page(&mut self, number: u64, id: BitmapId, page: &[u8; PAGE_BYTES]) -> u64 {
        let mut unusable = 0;
        for (within, bytes) in page.chunks_exact(SECTOR_BYTES).enumerate() {
            let sector = number as usize * PAGE_SECTORS + within;
            if sector >= self.sector_differs.len() {
                break;
            }
            let first = sector as u64 * SECTOR_BLOCKS;
            let words = decode_sector(sector as u64, id, bytes);
            unusable += u64::from(words.is_none());
            let before = self.sector_counts[sector];
            match words {
                None => drop(self.set(first..first + SECTOR_BLOCKS)),
                Some(words) => {
                    for (block, word) in (first..).step_by(64).zip(words) {
                        self.set_word(block, word);
                    }
                }
            }
            // What was set here before may not be there.
            self.sector_differs[sector] = if before == 0 { 0 } else { differs::BITS_MISSING };
        }
        unusable
    }

    fn set_word(&mut self, first: u64, word: u64) {
        let mut rest = word;
        while rest != 0 {
            let start = rest.trailing_zeros();
            let len = (rest >> start).trailing_ones();
            self.set(first + u64::from(start)..first + u64::from(start + len));
            rest = if start + len == 64 { 0 } else { rest >> (start + len) << (start + len) };
        }
    }
}

/// The words that hold the bits of `blocks`, and which bits of each.
fn words_of(blocks: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = blocks;
    let words = if start < end { start / 64..(end - 1) / 64 + 1 } else { 0..0 };
    words.map(move |word| {
        let from = start.saturating_sub(word * 64);
        let to = (end - word * 64).min(64);
        (word as usize, u64::MAX << from & u64::MAX >> (64 - to))
    })
}

/// A sector: CRC32C of what follows, magic, name, number of the sector, bits; little-endian.
fn encode_sector(number: u64, id: BitmapId, words: &[u64], bytes: &mut [u8]) {
    bytes[4..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&id.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&number.to_le_bytes());
    for (word, target) in words.iter().zip(bytes[SECTOR_HEADER_BYTES..].chunks_exact_mut(8)) {
        target.copy_from_slice(&word.to_le_bytes());
    }
    let checksum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// The bits of a sector, if it is the one that is looked for.
fn decode_sector(number: u64, id: BitmapId, bytes: &[u8]) -> Option<impl Iterator<Item = u64>> {
    let is_it = bytes[..4] == crc32c::crc32c(&bytes[4..]).to_le_bytes()
        && bytes[4..8] == MAGIC
        && bytes[8..24] == id.0.to_le_bytes()
        && bytes[24..32] == number.to_le_bytes();
    let words = bytes[SECTOR_HEADER_BYTES..].chunks_exact(8).map(|word| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(word);
        u64::from_le_bytes(bytes)
    });
    is_it.then_some(words)
}

/// For the page that describes the format.
#[cfg(test)]
pub(in crate::mirror) fn places() -> Vec<crate::mirror::format_doc::Place> {
    let mut bytes = [0; SECTOR_BYTES];
    encode_sector(u64::MAX, BitmapId(u128::MAX), &[u64::MAX; SECTOR_WORDS], &mut bytes);
    // Every byte behind the checksum belongs to what is all ones, but for the magic.
    assert!(bytes[4..8] == MAGIC && bytes[8..].iter().all(|byte| *byte == 0xff));
    let header = SECTOR_HEADER_BYTES;
    vec![
        ("checksum", 0, 4),
        ("magic", 4, 4),
        ("name", 8, 16),
        ("number", 24, 8),
        ("bits", header, SECTOR_WORDS * 8),
    ]
}

#[cfg(test)]
mod tests;
