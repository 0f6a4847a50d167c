//! REPORT LUNS (SPC-4 §6.33).

use crate::context::Context;
use crate::data;
use crate::lun::Lun;
use crate::sense::{AdditionalSense, Sense};
use crate::{Command, Execution};

/// Shortest allocation length: header and one LUN.
const ALLOCATION_LEN_MIN: u32 = 16;

/// REPORT LUNS. Sent to LUN 0 it is answered even when there is no such unit.
pub(crate) fn report_luns(context: &Context<'_>, command: &Command) -> Execution {
    if context.unit.is_none() && Lun::decode(command.lun).is_none_or(|lun| lun.number() != 0) {
        return Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED).into();
    }
    let allocation_length = command.cdb.u32(6);
    if allocation_length < ALLOCATION_LEN_MIN {
        return Sense::invalid_cdb(6, 7).into();
    }
    let luns = match command.cdb.byte(2) {
        0x00 | 0x02 => context.nexus.target.luns(),
        0x01 => Vec::new(), // well known logical units: none
        _ => return Sense::invalid_cdb(2, 7).into(),
    };
    let mut out = vec![0; 8];
    out[..4].copy_from_slice(&(luns.len() as u32 * 8).to_be_bytes());
    out.extend(luns.iter().flat_map(|lun| lun.encode().to_be_bytes()));
    // The initiator sees the news now (SPC-4 §6.33.1).
    context.nexus.attentions.clear(AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED);
    data::respond(command, out, allocation_length).into()
}
