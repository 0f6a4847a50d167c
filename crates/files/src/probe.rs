//! [`Found`]: what is at the start of a disk or a partition, by its signature. Nothing is checked
//! but that: to say what it is where it cannot be read, and to know who is to try.

use std::fmt;

use crate::FileSystem;
use crate::field::Fields;

/// Bytes from the start that have all signatures.
pub(crate) const PROBE_BYTES: usize = 68 << 10;

/// Kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// One that can be read.
    FileSystem(FileSystem),
    /// One that cannot, or something else of this name.
    Other(&'static str),
    /// Nothing but zeroes.
    Blank,
    /// Something without a signature that is known here.
    Unknown,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FileSystem(kind) => kind.name(),
            Self::Other(name) => name,
            Self::Blank => "nothing but zeroes at the start",
            Self::Unknown => "something unknown",
        })
    }
}

/// Signatures of what cannot be read: place, bytes, name.
const OTHERS: &[(usize, &[u8], &str)] = &[
    (3, b"NTFS    ", "NTFS"),
    (3, b"-FVE-FS-", "BitLocker"),
    (0, b"XFSB", "XFS"),
    (0, b"LUKS\xba\xbe", "LUKS (encrypted)"),
    (512, b"LABELONE", "LVM"),
    (32, b"NXSB", "APFS"),
    (1024, b"H+", "HFS+"),
    (1024, b"HX", "HFS+"),
    (1024, b"\x10\x20\xf5\xf2", "F2FS"),
    (0x8001, b"CD001", "ISO 9660"),
    (0x8001, b"BEA01", "UDF"),
    (0x10040, b"_BHRfS_M", "Btrfs"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a RAID (md)"),
    (0, b"hsqs", "SquashFS"),
];

/// What begins with these bytes.
pub(crate) fn probe(start: &[u8]) -> Found {
    let fields = Fields(start);
    // ext leaves the first kilobyte alone, so that another's boot sector may still be there; those
    // who come after it write over its superblock.
    if let Some(kind) = crate::ext::probe(start) {
        return Found::FileSystem(kind);
    }
    if fields.bytes(3, 8) == b"EXFAT   " {
        return Found::FileSystem(FileSystem::ExFat);
    }
    let is_there = |at: usize, mark: &[u8]| fields.bytes(at, mark.len()) == mark;
    if let Some((.., name)) = OTHERS.iter().find(|(at, mark, _)| is_there(*at, mark)) {
        return Found::Other(name);
    }
    if let Some(kind) = crate::fat::probe(start) {
        return Found::FileSystem(kind);
    }
    if start.iter().all(|byte| *byte == 0) { Found::Blank } else { Found::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_has_a_name() {
        for (at, mark, name) in OTHERS {
            let mut start = vec![0; PROBE_BYTES];
            start[*at..*at + mark.len()].copy_from_slice(mark);
            assert_eq!(probe(&start), Found::Other(name));
        }
        assert_eq!(probe(&[0; 4096]), Found::Blank);
        assert_eq!(probe(&[]), Found::Blank);
        assert_eq!(probe(&[7; 4096]), Found::Unknown);
    }
}
