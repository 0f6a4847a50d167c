//! A device cut into pieces of whole blocks, each within a page of the state file, holes apart.

use std::collections::VecDeque;
use std::ops::Range;

use super::format::PAGE_HASHES;
use crate::copy::MAP_WINDOW;
use crate::{BlockError, Device, Extent};

/// Blocks that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Their numbers, all in one page.
    pub(super) blocks: Range<u64>,
    /// They are a hole.
    pub(super) hole: bool,
}

/// The blocks of a device in ascending order.
pub(super) struct Scan {
    device: Device,
    length: u64,
    block_bytes: u64,
    blocks_max: u64,
    at: u64,
    pieces: VecDeque<Piece>,
}

impl Scan {
    /// The first `length` bytes of a device, in pieces of `transfer_size` bytes unless they are
    /// holes.
    pub(super) fn new(device: Device, length: u64, block_bytes: u32, transfer_size: u32) -> Self {
        let blocks_max = u64::from((transfer_size / block_bytes).max(1));
        let block_bytes = u64::from(block_bytes);
        Self { device, length, block_bytes, blocks_max, at: 0, pieces: VecDeque::new() }
    }

    /// The next piece.
    ///
    /// # Errors
    /// Where the map of holes could not be had, in bytes, and why.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, (u64, BlockError)> {
        while self.pieces.is_empty() {
            let len = MAP_WINDOW.min(self.length - self.at);
            if len == 0 {
                return Ok(None);
            }
            let map = match self.device.info().can_extents {
                true => self.device.extents(self.at, len).await.map_err(|why| (self.at, why))?,
                false => vec![Extent { offset: self.at, len, hole: false }],
            };
            let window = self.at..self.at + len;
            for (blocks, hole) in runs(&map, &window, self.length, self.block_bytes) {
                self.cut(blocks, hole);
            }
            self.at += len;
        }
        Ok(self.pieces.pop_front())
    }

    fn cut(&mut self, blocks: Range<u64>, hole: bool) {
        let mut at = blocks.start;
        while at < blocks.end {
            let page_end = (at / PAGE_HASHES + 1) * PAGE_HASHES;
            let most = if hole { PAGE_HASHES } else { self.blocks_max };
            let end = blocks.end.min(page_end).min(at + most);
            self.pieces.push_back(Piece { blocks: at..end, hole });
            at = end;
        }
    }
}

/// Blocks of a window, and whether they are holes: a block is one if all of it is.
fn runs(map: &[Extent], window: &Range<u64>, length: u64, block: u64) -> Vec<(Range<u64>, bool)> {
    let mut at = window.start / block;
    let end = window.end.div_ceil(block);
    let mut runs = Vec::new();
    for hole in map.iter().filter(|extent| extent.hole) {
        let stop = hole.offset + hole.len;
        let first = hole.offset.div_ceil(block).max(at);
        let last = if stop >= length { end } else { (stop / block).min(end) };
        if last > first {
            if first > at {
                runs.push((at..first, false));
            }
            runs.push((first..last, true));
            at = last;
        }
    }
    if end > at {
        runs.push((at..end, false));
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_cover_the_window_and_no_data_lies_in_a_hole(
            lens in proptest::collection::vec((1u64..40, any::<bool>()), 1..20),
        ) {
            // Extents in units of 512 bytes; blocks of 4096.
            let mut map = Vec::new();
            let mut offset = 0;
            for (len, hole) in lens {
                map.push(Extent { offset, len: len * 512, hole });
                offset += len * 512;
            }
            let length = offset;
            let runs = runs(&map, &(0..length), length, 4096);
            let mut at = 0;
            for (blocks, hole) in runs {
                prop_assert_eq!(blocks.start, at);
                prop_assert!(blocks.end > blocks.start);
                at = blocks.end;
                let bytes = blocks.start * 4096..(blocks.end * 4096).min(length);
                let data = map.iter().any(|extent| {
                    !extent.hole && extent.offset < bytes.end
                        && extent.offset + extent.len > bytes.start
                });
                prop_assert!(!(hole && data));
            }
            prop_assert_eq!(at, length.div_ceil(4096));
        }
    }
}
