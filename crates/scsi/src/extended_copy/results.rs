//! RECEIVE COPY STATUS, RECEIVE COPY FAILURE DETAILS and RECEIVE COPY OPERATING PARAMETERS, LID1
//! (SPC-4 §6.22 to §6.25): what became of a copy, and what a copy may ask for.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::parameters::{
    BLOCK_TO_BLOCK, CSCD_COUNT_MAX, DESCRIPTOR_LIST_LEN_MAX, IDENTIFICATION, ListId,
    SEGMENT_BYTES_MAX, SEGMENT_COUNT_MAX,
};
use crate::context::UnitContext;
use crate::nexus::NexusId;
use crate::sense::Sense;
use crate::{Command, Execution, data};

/// Copies under way at once through one unit: with lists of [`SEGMENT_COUNT_MAX`] scattered blocks
/// of 4 KiB they are 32 MiB a round trip, 3 Gbit/s over 100 ms. Each keeps devices busy, and has a
/// buffer that its session is charged for.
pub(crate) const CONCURRENT_MAX: u8 = 64;

/// Copies of one unit, under way and finished, by nexus and list identifier.
#[derive(Default)]
pub(crate) struct Copies(Mutex<State>);

#[derive(Default)]
struct State {
    running: usize,
    known: BTreeMap<(NexusId, u8), Copy>,
}

/// A copy that somebody may ask about.
#[derive(Clone, Copy)]
struct Copy {
    running: bool,
    segments: u16,
    bytes: u64,
    failure: Option<Sense>,
}

pub(super) enum Begin {
    Started,
    Busy,
    SameId,
}

impl Copies {
    pub(super) fn begin(&self, nexus: NexusId, list: ListId) -> Begin {
        let mut state = self.lock();
        if state.running >= usize::from(CONCURRENT_MAX) {
            return Begin::Busy;
        }
        if list.used {
            if state.known.get(&(nexus, list.id)).is_some_and(|copy| copy.running) {
                return Begin::SameId;
            }
            let copy = Copy { running: true, segments: 0, bytes: 0, failure: None };
            state.known.insert((nexus, list.id), copy);
        }
        state.running += 1;
        Begin::Started
    }

    pub(super) fn end(
        &self,
        nexus: NexusId,
        list: ListId,
        segments: u16,
        bytes: u64,
        failure: Option<Sense>,
    ) {
        let mut state = self.lock();
        state.running -= 1;
        // A nexus that has ended in the meantime is not remembered again.
        if list.used
            && let Some(copy) = state.known.get_mut(&(nexus, list.id))
        {
            *copy = Copy { running: false, segments, bytes, failure };
        }
    }

    pub(crate) fn nexus_lost(&self, nexus: NexusId) {
        self.lock().known.retain(|(owner, _), _| *owner != nexus);
    }

    /// A reset ends what is held (SPC-4 §6.22.1), not what is running.
    pub(crate) fn reset(&self) {
        self.lock().known.retain(|_, copy| copy.running);
    }

    fn lookup(&self, nexus: NexusId, command: &Command) -> Result<Copy, Sense> {
        let copy = self.lock().known.get(&(nexus, command.cdb.byte(2))).copied();
        copy.ok_or(Sense::invalid_cdb(2, 7))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RECEIVE COPY STATUS(LID1).
pub(crate) fn copy_status(context: &UnitContext<'_>, command: Command) -> Execution {
    /// HDD: held data were discarded, as there never are any.
    const HDD: u8 = 0x80;
    let copy = match context.unit.copies.lookup(context.nexus.id, &command) {
        Ok(copy) => copy,
        Err(sense) => return sense.into(),
    };
    let status = match copy {
        Copy { running: true, .. } => 0,
        Copy { failure: None, .. } => 1,
        Copy { failure: Some(_), .. } => 2,
    };
    let mut out = vec![0, 0, 0, 8, HDD | status];
    out.extend(copy.segments.to_be_bytes());
    out.push(0); // TRANSFER COUNT UNITS: bytes
    out.extend(u32::try_from(copy.bytes).unwrap_or(u32::MAX).to_be_bytes());
    data::respond(&command, out, command.cdb.u32(10)).into()
}

/// RECEIVE COPY FAILURE DETAILS(LID1).
pub(crate) fn failed_segment_details(context: &UnitContext<'_>, command: Command) -> Execution {
    let copy = match context.unit.copies.lookup(context.nexus.id, &command) {
        Ok(copy) => copy,
        Err(sense) => return sense.into(),
    };
    let mut out = vec![0; 4];
    if let Some(sense) = copy.failure.filter(|_| !copy.running) {
        let sense = sense.to_fixed_bytes();
        out.resize(60, 0);
        out[56] = crate::Status::CHECK_CONDITION.0; // EXTENDED COPY COMMAND STATUS
        out[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
        out.extend(sense);
        let len = out.len() as u32 - 4;
        out[..4].copy_from_slice(&len.to_be_bytes());
    }
    data::respond(&command, out, command.cdb.u32(10)).into()
}

/// RECEIVE COPY OPERATING PARAMETERS.
pub(crate) fn operating_parameters(_: &UnitContext<'_>, command: Command) -> Execution {
    let mut out = vec![0; 44];
    out[4] = 0x01; // SNLID: LIST ID USAGE 11b
    out[8..10].copy_from_slice(&CSCD_COUNT_MAX.to_be_bytes());
    out[10..12].copy_from_slice(&SEGMENT_COUNT_MAX.to_be_bytes());
    out[12..16].copy_from_slice(&DESCRIPTOR_LIST_LEN_MAX.to_be_bytes());
    out[16..20].copy_from_slice(&SEGMENT_BYTES_MAX.to_be_bytes());
    out[34..36].copy_from_slice(&u16::from(CONCURRENT_MAX).to_be_bytes());
    out[36] = CONCURRENT_MAX;
    out[37] = super::GRANULARITY_EXPONENT;
    let descriptors = [BLOCK_TO_BLOCK, IDENTIFICATION];
    out[43] = descriptors.len() as u8;
    out.extend(descriptors);
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    data::respond(&command, out, command.cdb.u32(10)).into()
}
