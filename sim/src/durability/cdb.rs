//! The few command blocks of this world (SPC-4, SBC-3), and what their answers mean.

use bytes::Bytes;
use iscsi_proto::ids::Lun;
use iscsi_proto::initiator::Command;
use iscsi_proto::pdu::TaskAttribute;

use super::disk::Run;

/// A command block as the initiator's core takes it.
pub(crate) type Cdb = [u8; 16];

pub(crate) const TEST_UNIT_READY: Cdb = [0; 16];

const MODE_SENSE_6: u8 = 0x1a;
const MODE_SELECT_6: u8 = 0x15;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const WRITE_SAME_16: u8 = 0x93;
const UNMAP: u8 = 0x42;
/// Code of the Caching mode page.
const CACHING: u8 = 0x08;
/// WCE in its first byte.
const WCE: u8 = 0x04;

/// Bytes asked for with MODE SENSE.
pub(crate) const MODE_LEN: u8 = 64;

fn cdb<const N: usize>(bytes: [u8; N]) -> Cdb {
    let mut cdb = [0; 16];
    cdb[..N].copy_from_slice(&bytes);
    cdb
}

/// MODE SENSE(6) of the Caching page, without block descriptors.
pub(crate) fn mode_sense() -> Cdb {
    cdb([MODE_SENSE_6, 0x08, CACHING, 0, MODE_LEN, 0])
}

/// MODE SELECT(6).
pub(crate) fn mode_select(list_len: usize) -> Cdb {
    cdb([MODE_SELECT_6, 0x10, 0, 0, list_len as u8, 0]) // the list is one page
}

/// What was sensed, with the other WCE, as a parameter list.
pub(crate) fn mode_select_list(sensed: &[u8]) -> Option<Vec<u8>> {
    let page = sensed.get(4..)?;
    let [CACHING, _, first, rest @ ..] = page else { return None };
    Some([&[0, 0, 0, 0, CACHING, page[1], first ^ WCE], rest].concat())
}

/// WCE of an answer to [`mode_sense`].
pub(crate) fn write_cache(sensed: &[u8]) -> Option<bool> {
    match sensed.get(4..)? {
        [code, _, first, ..] if code & 0x3f == CACHING => Some(first & WCE != 0),
        _ => None,
    }
}

pub(crate) fn flush() -> Cdb {
    cdb([SYNCHRONIZE_CACHE_10])
}

fn ten(op: u8, flags: u8, run: Run) -> Cdb {
    let [a, b, c, d] = run.first.to_be_bytes();
    let [high, low] = (run.count as u16).to_be_bytes(); // few sectors
    cdb([op, flags, a, b, c, d, 0, high, low, 0])
}

pub(crate) fn read(run: Run) -> Cdb {
    ten(READ_10, 0, run)
}

pub(crate) fn write(run: Run, fua: bool) -> Cdb {
    ten(WRITE_10, if fua { 0x08 } else { 0 }, run)
}

/// WRITE SAME(16) of a block that comes with it.
pub(crate) fn write_same(run: Run) -> Cdb {
    let mut cdb = cdb([WRITE_SAME_16]);
    cdb[2..10].copy_from_slice(&u64::from(run.first).to_be_bytes());
    cdb[10..14].copy_from_slice(&run.count.to_be_bytes());
    cdb
}

/// UNMAP and its list of one range.
pub(crate) fn unmap(run: Run) -> (Cdb, Bytes) {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(u64::from(run.first).to_be_bytes());
    list.extend(run.count.to_be_bytes());
    list.extend([0; 4]);
    (cdb([UNMAP, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0]), list.into())
}

pub(crate) fn is_mode_sense(cdb: &Cdb) -> bool {
    cdb[0] == MODE_SENSE_6
}

pub(crate) fn is_flush(cdb: &Cdb) -> bool {
    cdb[0] == SYNCHRONIZE_CACHE_10
}

pub(crate) fn is_write(cdb: &Cdb) -> bool {
    cdb[0] == WRITE_10
}

/// A SIMPLE command to the only unit.
pub(crate) fn command(cdb: Cdb, data_out: Bytes, data_in_len: u32) -> Command {
    Command { lun: Lun(0), cdb, data_out, data_in_len, attribute: TaskAttribute::SIMPLE }
}
