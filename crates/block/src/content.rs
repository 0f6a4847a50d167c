//! What a device holds, for whoever is about to overwrite it: a partition table or file system that
//! is known here, other data, or nothing.
//!
//! A look, not a proof: the first and last MiB and some places between are read. Whoever needs
//! certainty about a device reads all of it.

use crate::{BlockDevice, Buf, Result};

/// Bytes looked at in one piece at the beginning and at the end: every signature known here, and
/// what partition tables and RAID keep at the end, lies within.
const EDGE_BYTES: u64 = 1 << 20;

/// Places looked at between: data that fills a hundredth of a device is missed by all of them once
/// in two times, data that fills a tenth once in 800.
const PLACES: u64 = 64;

/// Bytes looked at in each place.
const PLACE_BYTES: u64 = 4096;

/// What the places looked at are, in words.
pub const LOOKED_AT: &str = "the first and last MiB and 64 places between";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing but zeroes in all places.
    Blank,
    /// What is told to people: `looks like ext4, label "home"`.
    Found(String),
}

/// A signature at a place of its own.
struct Signature {
    name: &'static str,
    at: usize,
    bytes: &'static [u8],
    /// Where a label is, and its length in bytes.
    label: Option<(usize, usize)>,
}

const fn signature(name: &'static str, at: usize, bytes: &'static [u8]) -> Signature {
    Signature { name, at, bytes, label: None }
}

const fn labelled(
    name: &'static str,
    at: usize,
    bytes: &'static [u8],
    label: (usize, usize),
) -> Signature {
    Signature { name, at, bytes, label: Some(label) }
}

/// As libblkid knows them. Containers come before what may be left over beneath them.
const SIGNATURES: &[Signature] = &[
    signature("a GUID partition table", 512, b"EFI PART"),
    signature("a GUID partition table", 4096, b"EFI PART"),
    labelled("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe", (24, 48)),
    signature("an LVM physical volume", 536, b"LVM2 001"),
    labelled("a member of a RAID (md)", 4096, b"\xfc\x4e\x2b\xa9", (4096 + 32, 32)),
    labelled("XFS", 0, b"XFSB", (108, 12)),
    labelled("Btrfs", 0x1_0040, b"_BHRfS_M", (0x1_012b, 256)),
    signature("F2FS", 1024, b"\x10\x20\xf5\xf2"),
    signature("NTFS", 3, b"NTFS    "),
    signature("exFAT", 3, b"EXFAT   "),
    labelled("FAT", 82, b"FAT32   ", (71, 11)),
    labelled("FAT", 54, b"FAT1", (43, 11)),
    labelled("swap space", 4086, b"SWAPSPACE2", (1052, 16)),
    labelled("ISO 9660", 0x8001, b"CD001", (0x8028, 32)),
    signature("APFS", 32, b"NXSB"),
    signature("HFS+", 1024, b"H+\x00\x04"),
    signature("SquashFS", 0, b"hsqs"),
    signature("a Ceph OSD (BlueStore)", 0, b"bluestore block device"),
    signature("a disk image (qcow2)", 0, b"QFI\xfb"),
    signature("a disk image (VMDK)", 0, b"KDMV"),
    signature("a tar archive", 257, b"ustar"),
];

/// Looks at a device.
///
/// # Errors
/// The device's, when a place cannot be read.
pub async fn look(device: &dyn BlockDevice) -> Result<Content> {
    let size = device.info().size;
    // They start when they are called, so a device far away is asked for all at once.
    let reads: Vec<_> = places(size, u64::from(device.info().block_size))
        .into_iter()
        .map(|(at, len)| (at, device.read(at, Buf::new(len as usize))))
        .collect();
    let mut data_at = None;
    for (at, read) in reads {
        let bytes = read.await?;
        if at == 0
            && let Some(found) = recognize(&bytes)
        {
            return Ok(Content::Found(format!("looks like {found}")));
        }
        let nonzero = || bytes.iter().position(|byte| *byte != 0);
        data_at = data_at.or_else(|| nonzero().map(|within| at + within as u64));
    }
    Ok(data_at.map_or(Content::Blank, |at| {
        Content::Found(format!("holds data of a kind not known here, at byte {at}"))
    }))
}

/// Where to look: offset and length in bytes, in whole blocks.
fn places(size: u64, block_size: u64) -> Vec<(u64, u64)> {
    let edge = EDGE_BYTES.min(size);
    let mut places = vec![(0, edge)];
    let end = size - edge;
    if end > edge {
        let (unit, step) = (PLACE_BYTES.max(block_size), (end - edge) / PLACES);
        let between = (0..PLACES).map(|n| (edge + n * step) / unit * unit);
        places.extend(between.filter(|at| at + unit <= end).map(|at| (at, unit)));
        places.dedup();
    }
    if end > 0 {
        let start = end.max(edge);
        places.push((start, size - start));
    }
    places
}

/// A partition table or file system at the beginning of a device, with its label.
fn recognize(head: &[u8]) -> Option<String> {
    let has = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
    let label = |(at, len): (usize, usize)| {
        let text: String = String::from_utf8_lossy(head.get(at..at + len)?)
            .chars()
            .take_while(|c| *c != '\0')
            .filter(|c| !c.is_control())
            .collect();
        let text = text.trim();
        (!text.is_empty()).then(|| format!(", label {text:?}"))
    };
    let found = SIGNATURES.iter().find(|signature| has(signature.at, signature.bytes));
    if let Some(found) = found {
        return Some(found.name.to_owned() + &found.label.and_then(label).unwrap_or_default());
    }
    if has(0x438, b"\x53\xef") {
        // Extents are ext4's, a journal came with ext3.
        let kind = match (head.get(0x460)? & 0x40, head.get(0x45c)? & 0x04) {
            (0, 0) => "ext2",
            (0, _) => "ext3",
            _ => "ext4",
        };
        return Some(kind.to_owned() + &label((0x478, 16)).unwrap_or_default());
    }
    // Four entries of 16 bytes, each with its type at 4.
    let used = (0..4).filter(|entry| head.get(446 + entry * 16 + 4).is_some_and(|kind| *kind != 0));
    has(510, b"\x55\xaa").then(|| format!("a disk with {} partitions (MBR)", used.count()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::WriteFlags;
    use crate::backend::MemoryDevice;

    const SIZE: u64 = 256 << 20;

    async fn with(at: u64, bytes: &[u8]) -> Content {
        let device = MemoryDevice::new(SIZE, 512).unwrap();
        let start = at / 512 * 512;
        let mut block = vec![0; (at - start) as usize];
        block.extend_from_slice(bytes);
        block.resize(block.len().next_multiple_of(512), 0);
        device.write(start, Bytes::from(block), WriteFlags::NONE).await.unwrap();
        look(&device).await.unwrap()
    }

    fn found(what: &str) -> Content {
        Content::Found(what.to_owned())
    }

    #[tokio::test]
    async fn zeroes_are_blank_whatever_the_size() {
        for size in [512, 4096, 1 << 20, (1 << 20) + 512, (2 << 20) + 512, 3 << 20, 1 << 40] {
            let device = MemoryDevice::new(size, 512).unwrap();
            assert_eq!(look(&device).await.unwrap(), Content::Blank, "{size}");
        }
        let device = MemoryDevice::new(8 << 20, 65_536).unwrap();
        assert_eq!(look(&device).await.unwrap(), Content::Blank);
    }

    #[tokio::test]
    async fn every_signature_is_named() {
        for signature in SIGNATURES {
            let wanted = found(&format!("looks like {}", signature.name));
            assert_eq!(with(signature.at as u64, signature.bytes).await, wanted);
        }
        let mut ext4 = vec![0; 0x100];
        ext4[0x38..0x3a].copy_from_slice(b"\x53\xef");
        ext4[0x60] = 0x40;
        ext4[0x78..0x7c].copy_from_slice(b"ho\x1bm");
        assert_eq!(with(0x400, &ext4).await, found("looks like ext4, label \"hom\""));
        let mut mbr = [0; 66];
        mbr[4] = 0x83;
        mbr[64..].copy_from_slice(b"\x55\xaa");
        assert_eq!(with(446, &mbr).await, found("looks like a disk with 1 partitions (MBR)"));
    }

    #[tokio::test]
    async fn other_data_is_found_at_both_ends_and_where_there_is_much_of_it() {
        let unknown =
            |at: u64| found(&format!("holds data of a kind not known here, at byte {at}"));
        for at in [0, 700_000, SIZE - (1 << 20), SIZE - 1] {
            assert_eq!(with(at, b"x").await, unknown(at));
        }
        assert!(matches!(with(100 << 20, &vec![7; 8 << 20]).await, Content::Found(_)));
    }

    proptest::proptest! {
        #[test]
        fn places_lie_within_the_device_and_do_not_overlap(
            blocks in 1u64..100_000, shift in 9u32..17,
        ) {
            let (size, block) = (blocks << shift, 1u64 << shift);
            let mut last = 0;
            for (at, len) in places(size, block) {
                assert!(at >= last && len > 0 && at + len <= size, "{at}+{len} of {size}");
                assert!(at % block == 0 && len % block == 0);
                last = at + len;
            }
        }
    }
}
