//! Vital product data page 8Fh, Third-party Copy (SPC-4 §7.8.17).

use super::GRANULARITY_EXPONENT;
use super::parameters::{
    BLOCK_TO_BLOCK, CSCD_COUNT_MAX, DESCRIPTOR_LIST_LEN_MAX, IDENTIFICATION, SEGMENT_BYTES_MAX,
    SEGMENT_COUNT_MAX,
};
use super::results::CONCURRENT_MAX;

const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const SUPPORTED_CSCD_IDS: u16 = 0x000c;
const GENERAL_COPY_OPERATIONS: u16 = 0x8001;

/// The page without its header.
pub(crate) fn vpd_page() -> Vec<u8> {
    let mut out = Vec::new();
    // EXTENDED COPY(LID1); RECEIVE COPY STATUS, OPERATING PARAMETERS and FAILURE DETAILS
    descriptor(&mut out, SUPPORTED_COMMANDS, &[8, 0x83, 1, 0x00, 0x84, 3, 0x00, 0x03, 0x04]);
    let mut parameters = vec![0; 4];
    parameters.extend(CSCD_COUNT_MAX.to_be_bytes());
    parameters.extend(SEGMENT_COUNT_MAX.to_be_bytes());
    parameters.extend(DESCRIPTOR_LIST_LEN_MAX.to_be_bytes());
    parameters.resize(28, 0); // no inline data
    descriptor(&mut out, PARAMETER_DATA, &parameters);
    descriptor(&mut out, SUPPORTED_DESCRIPTORS, &[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    descriptor(&mut out, SUPPORTED_CSCD_IDS, &[0, 0]);
    let mut general = u32::from(CONCURRENT_MAX).to_be_bytes().to_vec();
    general.extend(u32::from(CONCURRENT_MAX).to_be_bytes());
    general.extend(SEGMENT_BYTES_MAX.to_be_bytes());
    general.push(GRANULARITY_EXPONENT);
    general.resize(32, 0);
    descriptor(&mut out, GENERAL_COPY_OPERATIONS, &general);
    out
}

/// A third-party copy descriptor: type, length, content padded to a multiple of four.
fn descriptor(out: &mut Vec<u8>, kind: u16, content: &[u8]) {
    let len = content.len().next_multiple_of(4);
    out.extend(kind.to_be_bytes());
    out.extend((len as u16).to_be_bytes());
    let end = out.len() + len;
    out.extend(content);
    out.resize(end, 0);
}
