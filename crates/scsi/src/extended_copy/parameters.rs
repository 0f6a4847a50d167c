//! Parameter list of EXTENDED COPY(LID1) (SPC-4 §5.18.4, §6.4): header, CSCD descriptors, segment
//! descriptors. Raw in, checked out; what the descriptors name is looked up when they are used.

use crate::sense::{AdditionalSense, Sense};

/// Limits told by RECEIVE COPY OPERATING PARAMETERS and VPD page 8Fh.
pub(crate) const CSCD_COUNT_MAX: u16 = 16;
/// Scattered blocks of 4 KiB take a segment each. A longer list would be fewer commands a round
/// trip (`results::CONCURRENT_MAX`), but one of so many seeks takes a disk with an arm two seconds.
pub(crate) const SEGMENT_COUNT_MAX: u16 = 128;
/// Room for as many descriptors of both kinds.
pub(crate) const DESCRIPTOR_LIST_LEN_MAX: u32 = 4096;
/// Bytes that one segment copies at most: with [`SEGMENT_COUNT_MAX`] it bounds the time of one
/// command to that of 1 GiB.
pub(crate) const SEGMENT_BYTES_MAX: u32 = 8 << 20;

/// Descriptor types taken: block device to block device, and identification descriptor.
pub(crate) const BLOCK_TO_BLOCK: u8 = 0x02;
pub(crate) const IDENTIFICATION: u8 = 0xe4;

const HEADER_LEN: usize = 16;
const CSCD_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;

/// What to do with the outcome (LIST ID USAGE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListId {
    pub(crate) id: u8,
    /// Without one, nobody can ask for the outcome.
    pub(crate) used: bool,
}

/// A copy source or destination: which unit, with blocks of which size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cscd {
    /// DESIGNATOR TYPE and DESIGNATOR of the logical unit.
    pub(crate) kind: u8,
    pub(crate) designator: Vec<u8>,
    pub(crate) block_len: u32,
}

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) count: u16,
    /// DC: the count is in blocks of the destination.
    pub(crate) count_of_destination: bool,
    pub(crate) source_lba: u64,
    pub(crate) destination_lba: u64,
}

/// A checked parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) list_id: ListId,
    pub(crate) cscds: Vec<Cscd>,
    pub(crate) segments: Vec<Segment>,
}

impl Parameters {
    /// Bytes of the longest run of a list, at most: what its blocks are is looked up later.
    pub(crate) fn run_bytes(list: &[u8]) -> u64 {
        let Ok(Self { cscds, segments, .. }) = Self::parse(list) else { return 0 };
        let block_len = cscds.iter().map(|cscd| cscd.block_len).max().unwrap_or(0);
        let blocks = segments.iter().map(|segment| segment.count).max().unwrap_or(0);
        u64::from(blocks) * u64::from(block_len)
    }
}

const LENGTH_ERROR: Sense = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);

impl Parameters {
    /// Takes a parameter list apart.
    pub(crate) fn parse(list: &[u8]) -> Result<Self, Sense> {
        let header: &[u8; HEADER_LEN] = list.first_chunk().ok_or(LENGTH_ERROR)?;
        let cscds_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let [segments_len, inline_len] = [8, 12].map(|at| number(&header[at..at + 4]));
        if cscds_len as u64 + segments_len > u64::from(DESCRIPTOR_LIST_LEN_MAX) {
            return Err(LENGTH_ERROR);
        }
        if inline_len > 0 {
            return Err(Sense::illegal(AdditionalSense::INLINE_DATA_LENGTH_EXCEEDED));
        }
        let end = HEADER_LEN + cscds_len;
        let cscds = list.get(HEADER_LEN..end).ok_or(LENGTH_ERROR)?;
        let segments = list.get(end..end + segments_len as usize).ok_or(LENGTH_ERROR)?;
        Ok(Self {
            list_id: list_id(header)?,
            cscds: parse_cscds(cscds)?,
            segments: parse_segments(segments, end)?,
        })
    }
}

fn list_id(header: &[u8; HEADER_LEN]) -> Result<ListId, Sense> {
    match (header[1] >> 3 & 3, header[0]) {
        (0b00 | 0b10, id) => Ok(ListId { id, used: true }),
        (0b11, 0) => Ok(ListId { id: 0, used: false }),
        (0b11, _) => Err(Sense::invalid_parameter(0)),
        _ => Err(Sense::invalid_parameter(1)),
    }
}

fn parse_cscds(list: &[u8]) -> Result<Vec<Cscd>, Sense> {
    let mut cscds = Vec::new();
    for (index, descriptor) in list.chunks(CSCD_LEN).enumerate() {
        let at = (HEADER_LEN + index * CSCD_LEN) as u16;
        if descriptor[0] != IDENTIFICATION {
            let unsupported = AdditionalSense::UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE;
            return Err(Sense::illegal(unsupported).with_parameter(at));
        }
        let descriptor: &[u8; CSCD_LEN] = descriptor.first_chunk().ok_or(LENGTH_ERROR)?;
        if cscds.len() >= usize::from(CSCD_COUNT_MAX) {
            return Err(Sense::illegal(AdditionalSense::TOO_MANY_TARGET_DESCRIPTORS));
        }
        if descriptor[1] & 0x1f != 0 {
            return Err(Sense::invalid_parameter(at + 1)); // only disks
        }
        let len = usize::from(descriptor[7]);
        let association = descriptor[5] >> 4 & 3;
        let designator = descriptor[8..28].get(..len).filter(|_| len > 0 && association == 0);
        cscds.push(Cscd {
            kind: descriptor[5] & 0x0f,
            designator: designator.ok_or(Sense::invalid_parameter(at + 5))?.to_vec(),
            block_len: number(&descriptor[29..32]) as u32,
        });
    }
    Ok(cscds)
}

fn parse_segments(mut list: &[u8], mut at: usize) -> Result<Vec<Segment>, Sense> {
    let mut segments = Vec::new();
    while let [code, ..] = *list {
        if code != BLOCK_TO_BLOCK {
            let unsupported = AdditionalSense::UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE;
            return Err(Sense::illegal(unsupported).with_parameter(at as u16));
        }
        let (descriptor, rest) = list.split_first_chunk::<SEGMENT_LEN>().ok_or(LENGTH_ERROR)?;
        if segments.len() >= usize::from(SEGMENT_COUNT_MAX) {
            return Err(Sense::illegal(AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        if number(&descriptor[2..4]) as usize != SEGMENT_LEN - 4 {
            return Err(Sense::invalid_parameter(at as u16 + 2));
        }
        let [source, destination, count] =
            [4, 6, 10].map(|at| number(&descriptor[at..at + 2]) as u16);
        segments.push(Segment {
            source,
            destination,
            count,
            count_of_destination: descriptor[1] & 0x02 != 0,
            source_lba: number(&descriptor[12..20]),
            destination_lba: number(&descriptor[20..28]),
        });
        list = rest;
        at += SEGMENT_LEN;
    }
    Ok(segments)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
