//! Master boot record: four partitions, of which one may be a chain of further ones (UEFI 2.10
//! §5.2; the chain as DOS and Linux have it).

use super::Partition;
use crate::field::Fields;
use crate::limits::LOGICAL_PARTITIONS_MAX;
use crate::source::Source;
use crate::{Error, Result};

const SIGNATURE: u16 = 0xaa55;
/// Where the entries are, how many, and their length.
const ENTRIES_OFFSET: usize = 446;
const ENTRIES: usize = 4;
const ENTRY_BYTES: usize = 16;
/// Kinds of partitions that hold further ones.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Kind of the partition that stands for a GPT.
pub(super) const PROTECTIVE: u8 = 0xee;

/// An entry; sectors are counted from wherever its record is told to count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    status: u8,
    pub(super) kind: u8,
    first: u64,
    sectors: u64,
}

/// The entries of a record, if it is one.
pub(super) fn entries(sector: &[u8]) -> Option<[Entry; ENTRIES]> {
    let fields = Fields(sector);
    let entry = |number: usize| {
        let at = ENTRIES_OFFSET + number * ENTRY_BYTES;
        Entry {
            status: fields.u8(at),
            kind: fields.u8(at + 4),
            first: u64::from(fields.u32(at + 8)),
            sectors: u64::from(fields.u32(at + 12)),
        }
    };
    let entries = [0, 1, 2, 3].map(entry);
    // The signature stands in every boot sector; code in place of the entries is no table.
    let is_table = entries.iter().all(|entry| matches!(entry.status, 0 | 0x80));
    (fields.u16(510) == SIGNATURE && is_table).then_some(entries)
}

/// The partitions, if the disk begins with such a record and it has any.
pub(super) async fn read(source: &Source, start: &[u8]) -> Result<Option<Vec<Partition>>> {
    let Some(entries) = entries(start) else { return Ok(None) };
    let sector = u64::from(source.device().info().block_size);
    let mut partitions = Vec::new();
    let mut extended = None;
    for (number, entry) in (1..).zip(entries) {
        if entry.kind == 0 || entry.sectors == 0 {
            continue;
        }
        if entry.first == 0 || entry.first * sector >= source.len() {
            return Ok(None); // it would hold the record itself, or nothing
        }
        if EXTENDED.contains(&entry.kind) {
            extended = extended.or(Some(entry.first));
        } else {
            partitions.push(entry.partition(number, 0, sector));
        }
    }
    if let Some(first) = extended {
        logical(source, first, sector, &mut partitions).await?;
    }
    Ok(Some(partitions).filter(|partitions| !partitions.is_empty()))
}

/// Follows the chain of records in the extended partition that begins at sector `first`. Each has
/// one partition, counted from itself, and the next record, counted from `first`.
async fn logical(
    source: &Source,
    first: u64,
    sector: u64,
    partitions: &mut Vec<Partition>,
) -> Result<()> {
    let mut seen = vec![first];
    let mut at = first;
    loop {
        let record = source.read(at * sector, 512, "extended partition").await?;
        let Some([one, next, ..]) = entries(&record) else {
            let problem = "it is no partition record";
            return Err(Error::damaged(format_args!("sector {at}"), problem));
        };
        if one.kind != 0 && one.sectors != 0 {
            partitions.push(one.partition(4 + seen.len() as u32, at, sector));
        }
        if next.kind == 0 || next.sectors == 0 {
            return Ok(());
        }
        at = first + next.first;
        if seen.contains(&at) {
            let problem = format!("the chain of logical partitions returns to sector {at}");
            return Err(Error::damaged("extended partition", problem));
        }
        if seen.len() >= LOGICAL_PARTITIONS_MAX {
            let max = LOGICAL_PARTITIONS_MAX as u64;
            return Err(Error::too_much("extended partition", "logical partitions", max));
        }
        seen.push(at);
    }
}

impl Entry {
    fn partition(self, number: u32, base: u64, sector: u64) -> Partition {
        let (start, len) = ((base + self.first) * sector, self.sectors * sector);
        Partition::new(number, start, len, format!("0x{:02x}", self.kind))
    }
}
