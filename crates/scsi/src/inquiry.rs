//! INQUIRY (SPC-4 §6.6): standard data. Vital product data is in `vpd`.

use std::sync::Arc;

use crate::context::Context;
use crate::data;
use crate::sense::Sense;
use crate::unit::LogicalUnit;
use crate::vpd;
use crate::{Command, Execution};

/// Standards that the unit claims (SPC-4 table 142): SAM-5, iSCSI, SPC-4, SBC-3, no versions.
const VERSION_DESCRIPTORS: [u16; 4] = [0x00a0, 0x0960, 0x0460, 0x04c0];

/// Length of standard INQUIRY data with all version descriptors and the reserved rest.
const STANDARD_LEN: usize = 96;

/// INQUIRY. Never reports a unit attention, and answers for units that do not exist.
pub(crate) fn inquiry(context: &Context<'_>, command: &Command) -> Execution {
    let cdb = &command.cdb;
    let (vital, page) = (cdb.bit(1, 0), cdb.byte(2));
    let out = match (vital, context.unit) {
        (false, _) if page != 0 => return Sense::invalid_cdb(2, 7).into(),
        (false, unit) => standard(unit),
        (true, Some(unit)) => match vpd::page(context.nexus, unit, page) {
            Some(out) => out,
            None => return Sense::invalid_cdb(2, 7).into(),
        },
        (true, None) if page == 0 => vec![vpd::NO_UNIT, 0, 0, 1, 0],
        (true, None) => return Sense::invalid_cdb(2, 7).into(),
    };
    data::respond(command, out, u32::from(cdb.u16(3))).into()
}

fn standard(unit: Option<&Arc<LogicalUnit>>) -> Vec<u8> {
    let identity = unit.map(|unit| &unit.identity);
    let mut out = vec![0; STANDARD_LEN];
    out[0] = if identity.is_some() { 0 } else { vpd::NO_UNIT };
    out[1] = u8::from(unit.is_some_and(|unit| unit.medium.removable)) << 7; // RMB
    out[2] = 0x06; // VERSION: SPC-4
    out[3] = 0x20 | 0x10 | 0x02; // NORMACA, HISUP, RESPONSE DATA FORMAT 2
    out[4] = STANDARD_LEN as u8 - 5;
    out[5] = 0x10 | 0x08; // TPGS: implicit, 3PC
    out[7] = 0x02; // CMDQUE
    out[8..36].fill(b' ');
    if let Some(identity) = identity {
        out[8..16].copy_from_slice(&identity.vendor);
        out[16..32].copy_from_slice(&identity.product);
        out[32..36].copy_from_slice(&identity.revision);
    }
    for (place, descriptor) in out[58..].chunks_exact_mut(2).zip(VERSION_DESCRIPTORS) {
        place.copy_from_slice(&descriptor.to_be_bytes());
    }
    out
}
