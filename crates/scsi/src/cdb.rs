//! [`Cdb`]: the command descriptor block (SPC-4 §4.2), raw: it can hold anything.

use bytes::Bytes;

/// A command descriptor block: 16 bytes, zero-padded, and the rest of a longer one.
#[derive(Clone, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
    extended: Bytes,
}

impl Cdb {
    /// A CDB from its bytes. Of more than 16, the rest is kept as [`extended`](Self::extended).
    pub fn new(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at(bytes.len().min(16));
        let mut fixed = [0; 16];
        fixed[..head.len()].copy_from_slice(head);
        Self { bytes: fixed, extended: Bytes::copy_from_slice(rest) }
    }

    /// The CDB field of a transport header, without a copy of anything else.
    pub const fn from_array(bytes: [u8; 16]) -> Self {
        Self { bytes, extended: Bytes::new() }
    }

    /// With what follows the first 16 bytes (iSCSI's extended CDB AHS).
    pub fn with_extended(mut self, extended: Bytes) -> Self {
        self.extended = extended;
        self
    }

    /// The first 16 bytes.
    pub fn bytes(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// What follows the first 16 bytes; mostly empty.
    pub fn extended(&self) -> &Bytes {
        &self.extended
    }

    /// OPERATION CODE.
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// Where the CONTROL byte is: the last one, as the group of the opcode tells (SAM-5 §5.2).
    /// `None` where it tells no length of up to 16 bytes.
    pub fn control_at(opcode: u8) -> Option<usize> {
        match opcode >> 5 {
            0 => Some(5),
            1 | 2 => Some(9),
            4 => Some(15),
            5 => Some(11),
            _ => None,
        }
    }

    /// NACA of the CONTROL byte.
    pub fn naca(&self) -> bool {
        Self::control_at(self.opcode()).is_some_and(|at| self.bit(at, 2))
    }

    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    pub(crate) fn bit(&self, at: usize, bit: u8) -> bool {
        self.bytes[at] >> bit & 1 == 1
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub(crate) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.bytes[at], self.bytes[at + 1], self.bytes[at + 2]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.bytes[at + i])
    }
}

impl std::fmt::Debug for Cdb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cdb(")?;
        self.bytes.iter().chain(&self.extended).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian() {
        let cdb = Cdb::from_array([0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9, 0x80, 0]);
        assert_eq!(cdb.opcode(), 0x88);
        assert_eq!(cdb.u64(2), 0x0102_0304_0506_0708);
        assert_eq!((cdb.u32(10), cdb.u24(1), cdb.u16(2)), (9, 0x0102, 0x0102));
        assert!(cdb.bit(14, 7) && !cdb.bit(14, 6));
    }

    #[test]
    fn naca_stands_in_the_last_byte() {
        for (opcode, control) in [(0x12, 5), (0x28, 9), (0x55, 9), (0x88, 15), (0xa8, 11)] {
            let mut bytes = [0; 16];
            (bytes[0], bytes[control]) = (opcode, 4);
            assert!(Cdb::from_array(bytes).naca(), "{opcode:#x}");
            bytes[control] = 0xfb;
            assert!(!Cdb::from_array(bytes).naca(), "{opcode:#x}");
        }
        assert!(!Cdb::from_array([0x7f; 16]).naca(), "of another length");
    }

    #[test]
    fn long_and_short_ones_are_kept_whole() {
        let long: Vec<u8> = (0..32).collect();
        let cdb = Cdb::new(&long);
        assert_eq!((&cdb.bytes()[..], &cdb.extended()[..]), (&long[..16], &long[16..]));
        assert_eq!(Cdb::new(&[0x12, 1]).bytes()[..3], [0x12, 1, 0]);
    }
}
