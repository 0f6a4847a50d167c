//! [`Fields`]: little-endian numbers at offsets of a structure that was read from a disk.
//!
//! What lies outside reads as 0: lengths are checked where a structure is cut out, once, and not
//! again for every field.

/// Bytes of a structure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    /// `N` bytes at `offset`.
    pub(crate) fn array<const N: usize>(self, offset: usize) -> [u8; N] {
        let mut array = [0; N];
        let there = self.0.get(offset..).unwrap_or_default();
        let len = there.len().min(N);
        array[..len].copy_from_slice(&there[..len]);
        array
    }

    pub(crate) fn u8(self, offset: usize) -> u8 {
        self.0.get(offset).copied().unwrap_or_default()
    }

    pub(crate) fn u16(self, offset: usize) -> u16 {
        u16::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u32(self, offset: usize) -> u32 {
        u32::from_le_bytes(self.array(offset))
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array(offset))
    }

    /// Up to `len` bytes at `offset`: fewer where the structure ends.
    pub(crate) fn bytes(self, offset: usize, len: usize) -> &'a [u8] {
        let there = self.0.get(offset..).unwrap_or_default();
        &there[..there.len().min(len)]
    }

    /// `count` UTF-16 units at `offset`.
    pub(crate) fn utf16(self, offset: usize, count: usize) -> impl Iterator<Item = u16> {
        (0..count).map(move |i| self.u16(offset + 2 * i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_little_endian_and_0_outside() {
        let fields = Fields(&[1, 2, 3]);
        assert_eq!((fields.u8(2), fields.u8(3)), (3, 0));
        assert_eq!((fields.u16(0), fields.u16(2), fields.u32(9)), (0x201, 3, 0));
        assert_eq!(fields.bytes(1, 9), [2, 3]);
        assert_eq!(fields.bytes(usize::MAX, 1), [0; 0]);
    }
}
