//! From the runs of data that librbd tells to a range without gaps.

use block::Extent;

/// Collects what is told of a range.
#[derive(Debug)]
pub(crate) struct Extents {
    found: Vec<Extent>,
    at: u64,
    end: u64,
    block: u64,
}

impl Extents {
    /// An empty map of the range `offset..offset + len`; both are whole blocks.
    pub(crate) fn new(offset: u64, len: u64, block_size: u32) -> Self {
        let end = offset.saturating_add(len);
        Self { found: Vec::new(), at: offset, end, block: u64::from(block_size).max(1) }
    }

    /// There is data. Runs come in ascending order; what is told out of order, or twice, counts as
    /// far as it is new. Data is told by whole blocks.
    pub(crate) fn data(&mut self, offset: u64, len: u64) {
        let start = offset / self.block * self.block;
        let stop = offset.saturating_add(len).div_ceil(self.block).saturating_mul(self.block);
        self.put(start.min(self.end), true);
        self.put(stop.min(self.end), false);
    }

    /// The range: what was not told is a hole.
    pub(crate) fn finish(mut self) -> Vec<Extent> {
        self.put(self.end, true);
        self.found
    }

    /// Up to here it is of this kind.
    fn put(&mut self, stop: u64, hole: bool) {
        let Some(len) = stop.checked_sub(self.at).filter(|len| *len > 0) else { return };
        match self.found.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => self.found.push(Extent { offset: self.at, len, hole }),
        }
        self.at = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(told: &[(u64, u64)]) -> Vec<(u64, u64, bool)> {
        let mut extents = Extents::new(4096, 16384, 512);
        told.iter().for_each(|(offset, len)| extents.data(*offset, *len));
        extents.finish().into_iter().map(|e| (e.offset, e.len, e.hole)).collect()
    }

    #[test]
    fn what_is_not_told_is_a_hole() {
        assert_eq!(extents(&[]), [(4096, 16384, true)]);
        assert_eq!(extents(&[(4096, 16384)]), [(4096, 16384, false)]);
        assert_eq!(
            extents(&[(8192, 512), (8704, 512), (12288, 4096)]),
            [
                (4096, 4096, true),
                (8192, 1024, false),
                (9216, 3072, true),
                (12288, 4096, false),
                (16384, 4096, true)
            ]
        );
    }

    #[test]
    fn whatever_is_told_covers_the_range_once() {
        for told in [
            &[(0, 1 << 40)][..],
            &[(0, 100), (u64::MAX, u64::MAX)],
            &[(8192, 512), (4096, 512), (8192, 512)],
            &[(8193, 1)],
        ] {
            let found = extents(told);
            let mut at = 4096;
            for (offset, len, _) in &found {
                assert_eq!((*offset, len % 512), (at, 0), "{told:?}: {found:?}");
                at += len;
            }
            assert_eq!(at, 4096 + 16384, "{told:?}");
        }
        assert_eq!(extents(&[(8193, 1)])[1], (8192, 512, false));
    }
}
