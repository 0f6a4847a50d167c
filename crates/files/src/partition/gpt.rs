//! GUID partition table (UEFI 2.10 §5.3): a header and a list, with checksums, at the start of the
//! disk, and a copy of both at its end.

use super::{Partition, mbr};
use crate::field::Fields;
use crate::limits::GPT_ENTRIES_BYTES_MAX;
use crate::source::Source;
use crate::{Error, Name, Result};

const SIGNATURE: &[u8] = b"EFI PART";
/// Bytes of a header of version 1, and of the least entry.
const HEADER_BYTES_MIN: usize = 92;
const ENTRY_BYTES_MIN: u64 = 128;
const NAME_UNITS: usize = 36;

/// A header that is in order.
struct Header {
    entries_at: u64,
    entries: u64,
    entry_bytes: u64,
    entries_crc: u32,
    copy_at: u64,
}

/// The partitions, if the disk has such a table: from the copy where the first one is damaged.
pub(super) async fn read(
    source: &Source,
    start: &[u8],
    warnings: &mut Vec<String>,
) -> Result<Option<Vec<Partition>>> {
    // An image of a disk may be served in blocks of another size than the disk had.
    let sizes = [u64::from(source.device().info().block_size), 512, 4096];
    let signed = sizes
        .into_iter()
        .find(|sector| Fields(start).bytes(*sector as usize, SIGNATURE.len()) == SIGNATURE);
    let protected = mbr::entries(start)
        .is_some_and(|entries| entries.iter().any(|entry| entry.kind == mbr::PROTECTIVE));
    if signed.is_none() && !protected {
        return Ok(None);
    }
    let sector = signed.unwrap_or(sizes[0]);
    let problem = match table(source, 1, sector).await {
        Ok((partitions, _)) => return Ok(Some(partitions)),
        Err(error @ Error::Device { .. }) => return Err(error),
        Err(problem) => problem,
    };
    let last = (source.len() / sector).saturating_sub(1);
    match table(source, last, sector).await {
        Ok((partitions, header)) if header.copy_at == 1 => {
            warnings.push(format!("{problem}; its copy at the end of the disk is used"));
            Ok(Some(partitions))
        }
        Err(error @ Error::Device { .. }) => Err(error),
        // Without a signature, a partition that looks like it protects something proves nothing.
        _ if signed.is_none() => Ok(None),
        _ => Err(problem),
    }
}

/// The table whose header is in this sector.
async fn table(source: &Source, at: u64, sector: u64) -> Result<(Vec<Partition>, Header)> {
    let place = format!("GPT in sector {at}");
    let bytes = source.read(at * sector, sector as usize, "GPT").await?;
    let header = Header::parse(&bytes, at, &place)?;
    let len = header.entries * header.entry_bytes;
    let first = header.entries_at.saturating_mul(sector);
    let list = source.read(first, len as usize, "GPT").await?;
    if crc32fast::hash(&list) != header.entries_crc {
        return Err(Error::damaged(place, "the checksum of its list is wrong"));
    }
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(list.chunks_exact(header.entry_bytes as usize)) {
        let fields = Fields(entry);
        if fields.array::<16>(0) == [0; 16] {
            continue;
        }
        let (first, last) = (fields.u64(32), fields.u64(40));
        let sectors = last.checked_sub(first).and_then(|sectors| sectors.checked_add(1));
        let bytes = |sectors: u64| sectors.checked_mul(sector);
        let (Some(start), Some(len)) = (bytes(first), sectors.and_then(bytes)) else {
            let problem = format!("partition {number} goes from sector {first} to {last}");
            return Err(Error::damaged(place, problem));
        };
        let name = fields.utf16(56, NAME_UNITS).take_while(|unit| *unit != 0);
        let name = Some(Name::from_utf16(name)).filter(|name| !name.as_bytes().is_empty());
        let id = Some(guid(fields.array(16)));
        partitions.push(Partition {
            name,
            id,
            ..Partition::new(number, start, len, guid(fields.array(0)))
        });
    }
    Ok((partitions, header))
}

impl Header {
    fn parse(bytes: &[u8], at: u64, place: &str) -> Result<Self> {
        let damaged = |problem: String| Err(Error::damaged(place, problem));
        let fields = Fields(bytes);
        if fields.bytes(0, 8) != SIGNATURE {
            return damaged("it has no signature".into());
        }
        let len = fields.u32(12) as usize;
        if len < HEADER_BYTES_MIN || len > bytes.len() {
            return damaged(format!("a header of {len} bytes in a sector of {}", bytes.len()));
        }
        let mut header = bytes[..len].to_vec();
        header[16..20].fill(0);
        if crc32fast::hash(&header) != fields.u32(16) {
            return damaged("its checksum is wrong".into());
        }
        if fields.u64(24) != at {
            return damaged(format!("it says that it is in sector {}", fields.u64(24)));
        }
        let (entries, entry_bytes) = (u64::from(fields.u32(80)), u64::from(fields.u32(84)));
        let is_possible = entry_bytes >= ENTRY_BYTES_MIN && entry_bytes.is_multiple_of(8);
        if !is_possible || entries * entry_bytes > GPT_ENTRIES_BYTES_MAX {
            return damaged(format!("{entries} entries of {entry_bytes} bytes"));
        }
        Ok(Self {
            entries_at: fields.u64(72),
            entries,
            entry_bytes,
            entries_crc: fields.u32(88),
            copy_at: fields.u64(32),
        })
    }
}

/// A GUID as text: its first three parts are little-endian.
fn guid(bytes: [u8; 16]) -> String {
    let fields = Fields(&bytes);
    let tail = bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!(
        "{:08x}-{:04x}-{:04x}-{:02x}{:02x}-{tail}",
        fields.u32(0),
        fields.u16(4),
        fields.u16(6),
        bytes[8],
        bytes[9]
    )
}
