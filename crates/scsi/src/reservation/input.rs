//! PERSISTENT RESERVE IN (SPC-4 §6.15): READ KEYS, READ RESERVATION, REPORT CAPABILITIES and READ
//! FULL STATUS.

use super::state::{Kind, Registrations, parts_of};
use super::transport_id;
use crate::context::UnitContext;
use crate::{Command, Execution, Response, Status, data};

/// READ KEYS.
pub(crate) fn read_keys(context: &UnitContext<'_>, command: Command) -> Execution {
    let state = match state(context) {
        Ok(state) => state,
        Err(conflict) => return conflict.into(),
    };
    let keys = state.registered.values().flat_map(|registration| registration.key.to_be_bytes());
    respond(&command, listed(&state, keys.collect()))
}

/// READ RESERVATION.
pub(crate) fn read_reservation(context: &UnitContext<'_>, command: Command) -> Execution {
    let state = match state(context) {
        Ok(state) => state,
        Err(conflict) => return conflict.into(),
    };
    let mut body = Vec::new();
    if let Some(held) = &state.reservation {
        // The key of a reservation that all registrants hold is 0.
        let holder = state.registered.get(&held.port);
        let key = holder.filter(|_| !held.kind.is_all_registrants()).map_or(0, |r| r.key);
        body.extend(key.to_be_bytes());
        body.extend([0, 0, 0, 0, 0, held.kind as u8, 0, 0]); // SCOPE: logical unit
    }
    respond(&command, listed(&state, body))
}

/// REPORT CAPABILITIES.
pub(crate) fn report_capabilities(context: &UnitContext<'_>, command: Command) -> Execution {
    const CRH: u8 = 0x10;
    const SIP_C: u8 = 0x08;
    const ATP_C: u8 = 0x04;
    const TMV: u8 = 0x80;
    /// TEST UNIT READY is allowed under every type; no promise about other commands.
    const ALLOW_COMMANDS: u8 = 0b001 << 4;
    let state = match state(context) {
        Ok(state) => state,
        Err(conflict) => return conflict.into(),
    };
    let persists = u8::from(context.unit.reservations.has_store()); // PTPL_C
    let active = u8::from(state.through_power_loss); // PTPL_A
    let mask = Kind::ALL.iter().fold(0u16, |mask, kind| {
        // Type N is bit N of the first byte up to 7, bit N − 8 of the second from 8 on.
        let code = *kind as u16;
        mask | if code < 8 { 0x100 << code } else { 1 << (code - 8) }
    });
    let [low_types, high_types] = mask.to_be_bytes();
    let flags = CRH | SIP_C | ATP_C | persists;
    let out = vec![0, 8, flags, TMV | ALLOW_COMMANDS | active, low_types, high_types, 0, 0];
    respond(&command, out)
}

/// READ FULL STATUS.
pub(crate) fn read_full_status(context: &UnitContext<'_>, command: Command) -> Execution {
    let state = match state(context) {
        Ok(state) => state,
        Err(conflict) => return conflict.into(),
    };
    let mut body = Vec::new();
    for (port, registration) in &state.registered {
        let held = state.reservation.as_ref().filter(|_| state.holds(port));
        let (initiator_port, relative_port) = parts_of(port);
        let transport_id = transport_id::encode(initiator_port);
        body.extend(registration.key.to_be_bytes());
        body.extend([0; 4]);
        body.push(u8::from(registration.all_target_ports) << 1 | u8::from(held.is_some()));
        body.push(held.map_or(0, |held| held.kind as u8));
        body.extend([0; 4]);
        body.extend(relative_port.to_be_bytes());
        body.extend((transport_id.len() as u32).to_be_bytes());
        body.extend(transport_id);
    }
    respond(&command, listed(&state, body))
}

/// The state, unless a RESERVE forbids to ask, even its holder (SPC-2 §5.5.1).
fn state(context: &UnitContext<'_>) -> Result<Registrations, Response> {
    let reservations = &context.unit.reservations;
    match reservations.holder_spc2() {
        None => Ok(reservations.snapshot()),
        Some(_) => Err(Response::status(Status::RESERVATION_CONFLICT)),
    }
}

/// PRGENERATION, length, and what follows.
fn listed(state: &Registrations, body: Vec<u8>) -> Vec<u8> {
    let mut out = state.generation.to_be_bytes().to_vec();
    out.extend((body.len() as u32).to_be_bytes());
    out.extend(body);
    out
}

fn respond(command: &Command, out: Vec<u8>) -> Execution {
    data::respond(command, out, u32::from(command.cdb.u16(7))).into()
}
