//! A record of the activity log as it lies on the device, and what a ring of them says.

use zerocopy::byteorder::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::super::layout::RING_RECORDS;
use super::super::superblock::{BYTES, Block, BlockFault, Kind, MirrorId, open, seal};

/// Extents that a block has room for.
pub(super) const EXTENTS_MAX: usize = (BYTES - 64) / 4;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    uuid: U128,
    sequence: U64,
    len: U32,
    reserved: U32,
    extents: [U32; EXTENTS_MAX],
}

/// The block of a record.
///
/// # Panics
/// With more extents than `EXTENTS_MAX`: a bug.
pub fn encode(uuid: MirrorId, sequence: u64, extents: &[u32]) -> Box<Block> {
    assert!(extents.len() <= EXTENTS_MAX, "{} extents in a record", extents.len());
    let mut record = Record {
        uuid: uuid.0.into(),
        sequence: sequence.into(),
        len: (extents.len() as u32).into(),
        reserved: 0.into(),
        extents: [0.into(); EXTENTS_MAX],
    };
    for (place, extent) in record.extents.iter_mut().zip(extents) {
        *place = (*extent).into();
    }
    seal(Kind::Activity, &record)
}

/// What a ring says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Extents in which a write may have been under way.
    pub extents: Vec<u32>,
    /// Number of the newest record; 0 before the first.
    pub sequence: u64,
    /// Why the extents may not be all: there is damage that no power cut leaves. Then everything
    /// may differ.
    pub doubt: Option<String>,
}

/// What stands at one place of the ring.
enum Found {
    Nothing,
    Record(u64, Vec<u32>),
    Damaged(String),
}

/// Reads a ring: its blocks in the order of their places, the first record that counts, and the
/// number of extents of the device.
///
/// One write is under way at a time, so a power cut leaves one damaged block at most, where the
/// next record would stand. Anything else is doubt.
///
/// # Errors
/// [`BlockFault::Newer`].
pub fn recover(
    uuid: MirrorId,
    from: u64,
    extents: u32,
    ring: &[u8],
) -> Result<Recovered, BlockFault> {
    let mut found = Vec::new();
    for (place, block) in (0..).zip(ring.as_chunks::<BYTES>().0) {
        found.push(look(uuid, from, extents, place, block)?);
    }
    let newest = found.iter().filter_map(|found| match found {
        Found::Record(sequence, _) => Some(*sequence),
        _ => None,
    });
    let sequence = newest.max().unwrap_or_else(|| from.saturating_sub(1));
    let mut doubt = None;
    for (place, found) in (0..).zip(&found) {
        // Behind the newest, the place that was written to when the power was cut.
        let is_next = place == (sequence + 1) % RING_RECORDS;
        let back = (sequence % RING_RECORDS + RING_RECORDS - place) % RING_RECORDS;
        let expected = sequence.checked_sub(back).filter(|number| *number >= from.max(1));
        let wrong = match (found, expected) {
            (Found::Record(number, _), Some(expected)) if *number == expected => None,
            (Found::Nothing, None) => None,
            (Found::Damaged(_), _) if is_next => None,
            (Found::Damaged(why), _) => Some(why.clone()),
            (Found::Record(number, _), _) => Some(format!("record {number} is out of place")),
            (Found::Nothing, Some(expected)) => Some(format!("record {expected} is missing")),
        };
        doubt = doubt.or(wrong);
    }
    let extents = found.into_iter().find_map(|found| match found {
        Found::Record(number, extents) if number == sequence => Some(extents),
        _ => None,
    });
    Ok(Recovered { extents: extents.unwrap_or_default(), sequence, doubt })
}

fn look(
    uuid: MirrorId,
    from: u64,
    extents: u32,
    place: u64,
    block: &Block,
) -> Result<Found, BlockFault> {
    let record = match open::<Record>(Kind::Activity, block) {
        Ok(record) => record,
        Err(BlockFault::Blank) => return Ok(Found::Nothing),
        Err(newer @ BlockFault::Newer { .. }) => return Err(newer),
        Err(fault) => return Ok(Found::Damaged(fault.to_string())),
    };
    let sequence = record.sequence.get();
    if record.uuid.get() == uuid.0 && sequence < from {
        return Ok(Found::Nothing);
    }
    let listed = record.extents.get(..record.len.get() as usize).unwrap_or_default();
    let listed: Vec<u32> = listed.iter().map(|extent| extent.get()).collect();
    let right = record.uuid.get() == uuid.0
        && sequence % RING_RECORDS == place
        && listed.len() == record.len.get() as usize
        && listed.iter().all(|extent| *extent < extents);
    Ok(if right {
        Found::Record(sequence, listed)
    } else {
        Found::Damaged(format!("record {sequence} does not belong where it stands"))
    })
}

/// For the page that describes the format.
#[cfg(test)]
pub(in crate::mirror) fn places() -> Vec<crate::mirror::format_doc::Place> {
    let behind = BYTES - size_of::<Record>();
    crate::mirror::format_doc::places!(Record, behind, uuid, sequence, len, reserved, extents)
}
