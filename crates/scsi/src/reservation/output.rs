//! PERSISTENT RESERVE OUT (SPC-4 §6.16): takes the parameter list apart, changes the state, tells
//! those concerned.
//!
//! A change that has to be saved goes to a thread of its own: it waits for a disk, and nobody
//! else's command may wait with it.

use std::sync::Arc;

use super::state::{
    Effects, Kind, Move, Outcome, Port, Refusal, Register, Registrations, nexus_name,
};
use super::transport_id::TransportId;
use crate::blocking;
use crate::cdb::Cdb;
use crate::context::UnitContext;
use crate::nexus::NexusState;
use crate::sense::{AdditionalSense, Sense};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, Response, Status};

/// Length of the basic parameter list (SPC-4 §6.16.3), and where SPEC_I_PT's addition begins.
const BASIC_LEN: usize = 24;

/// Length of the REGISTER AND MOVE parameter list before the TransportID (SPC-4 §6.16.4).
const MOVE_LEN: usize = 24;

/// Longest parameter list taken: a registration for every TransportID of the longest kind.
const LIST_LEN_MAX: usize = 256 << 10;

const REGISTER: u8 = 0x00;
const RESERVE: u8 = 0x01;
const RELEASE: u8 = 0x02;
const CLEAR: u8 = 0x03;
const PREEMPT: u8 = 0x04;
const PREEMPT_AND_ABORT: u8 = 0x05;
const REGISTER_AND_IGNORE: u8 = 0x06;
const REGISTER_AND_MOVE: u8 = 0x07;

/// One service action with its parameters.
#[derive(Clone, Debug)]
enum Action {
    Register(Register),
    Reserve { key: u64, kind: Kind },
    Release { key: u64, kind: Kind },
    Clear { key: u64 },
    Preempt { key: u64, victim: u64, kind: Kind, abort: bool },
    Move(Move),
}

/// PERSISTENT RESERVE OUT, all service actions.
pub(crate) fn persistent_reserve_out(context: &UnitContext<'_>, command: Command) -> Execution {
    let (unit, nexus) = (context.unit, context.nexus);
    // Not even the holder of a RESERVE mixes the two (SPC-2 §5.5.1).
    if unit.reservations.holder_spc2().is_some() {
        return Response::status(Status::RESERVATION_CONFLICT).into();
    }
    let action = match parse(context, &command) {
        Ok(action) => action,
        Err(sense) => return sense.into(),
    };
    let wanted = u64::from(command.cdb.u32(5));
    let waits = unit.reservations.has_store();
    if let Some(changing) = unit.reservations.try_changing().filter(|_| !waits) {
        let outcome = unit.reservations.change(changing, |state| perform(state, nexus, &action));
        return finish(unit, nexus, &action, outcome, wanted);
    }
    let (unit, nexus) = (unit.clone(), nexus.clone());
    Execution::later(async move {
        let changed = {
            let (unit, nexus, action) = (unit.clone(), nexus.clone(), action.clone());
            blocking::run(move || {
                let reservations = &unit.reservations;
                let changing = reservations.changing.lock();
                let changing = changing.unwrap_or_else(std::sync::PoisonError::into_inner);
                reservations.change(changing, |state| perform(state, &nexus, &action))
            })
        };
        finish(&unit, &nexus, &action, changed.await, wanted).await
    })
}

fn perform(state: &mut Registrations, nexus: &NexusState, action: &Action) -> Outcome {
    let port = &nexus.registrant;
    match action {
        Action::Register(request) => state.register(port, request),
        Action::Reserve { key, kind } => state.reserve(port, *key, *kind),
        Action::Release { key, kind } => state.release(port, *key, *kind),
        Action::Clear { key } => state.clear(port, *key),
        Action::Preempt { key, victim, kind, .. } => state.preempt(port, *key, *victim, *kind),
        Action::Move(request) => state.register_and_move(port, request),
    }
}

/// Tells the others, aborts their commands where asked to, and answers.
fn finish(
    unit: &Arc<LogicalUnit>,
    nexus: &Arc<NexusState>,
    action: &Action,
    outcome: Outcome,
    wanted: u64,
) -> Execution {
    let Effects { attentions, preempted } = match outcome {
        Ok(effects) => effects,
        Err(Refusal::Conflict) => {
            return Response::status(Status::RESERVATION_CONFLICT).wanting(wanted).into();
        }
        Err(Refusal::Invalid(sense)) => {
            return Response::check_condition(sense).wanting(wanted).into();
        }
    };
    nexus.target.each_nexus(|other| {
        let told = attentions.iter().filter(|(port, _)| *port == other.registrant);
        told.for_each(|(_, condition)| other.attentions.establish(unit.lun, *condition));
    });
    let aborts = matches!(action, Action::Preempt { abort: true, .. });
    if !aborts || preempted.is_empty() {
        return Response::good().wanting(wanted).into();
    }
    let mut victims = Vec::new();
    nexus.target.each_nexus(|other| {
        if preempted.contains(&other.registrant) {
            victims.push(other.id);
        }
    });
    let aborted = nexus.target.host().abort_tasks(unit.lun.encode(), victims);
    Execution::later(async move {
        aborted.await;
        Response::good().wanting(wanted)
    })
}

fn parse(context: &UnitContext<'_>, command: &Command) -> Result<Action, Sense> {
    let service_action = command.cdb.byte(1) & 0x1f;
    let length_error = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let list_len = command.cdb.u32(5) as usize;
    if list_len > LIST_LEN_MAX {
        return Err(length_error);
    }
    let list = command.data_out.get(..list_len).ok_or(length_error)?;
    let basic: &[u8; BASIC_LEN] = list.first_chunk().ok_or(length_error)?;
    let key = u64_at(basic, 0);
    let service_key = u64_at(basic, 8);
    if service_action == REGISTER_AND_MOVE {
        return Ok(Action::Move(parse_move(context, list, key, service_key)?));
    }
    let flags = basic[20];
    let spec_i_pt = flags & 0x08 != 0;
    if spec_i_pt && service_action != REGISTER {
        return Err(Sense::invalid_parameter(20));
    }
    if !spec_i_pt && list_len != BASIC_LEN {
        return Err(length_error);
    }
    Ok(match service_action {
        REGISTER | REGISTER_AND_IGNORE => Action::Register(Register {
            key: (service_action == REGISTER).then_some(key),
            new_key: service_key,
            others: spec_i_pt.then(|| parse_ports(context, list)).transpose()?,
            siblings: siblings(context),
            all_target_ports: flags & 0x04 != 0,
            through_power_loss: persists(context, flags)?,
        }),
        RESERVE => Action::Reserve { key, kind: scope_and_kind(&command.cdb)? },
        RELEASE => Action::Release { key, kind: scope_and_kind(&command.cdb)? },
        CLEAR => Action::Clear { key },
        PREEMPT | PREEMPT_AND_ABORT => Action::Preempt {
            key,
            victim: service_key,
            kind: scope_and_kind(&command.cdb)?,
            abort: service_action == PREEMPT_AND_ABORT,
        },
        // REPLACE LOST RESERVATION: nothing is ever lost, the unit would not have started.
        _ => return Err(Sense::invalid_cdb(1, 4)),
    })
}

/// The nexuses that this initiator port has, or may have, with the target ports of others.
fn siblings(context: &UnitContext<'_>) -> Vec<Port> {
    let nexus = context.nexus;
    let groups = nexus.target.other_groups();
    groups.iter().map(|group| nexus_name(&nexus.initiator_port, group.relative_port)).collect()
}

/// APTPL, refused where there is nowhere to keep the state.
fn persists(context: &UnitContext<'_>, flags: u8) -> Result<bool, Sense> {
    let wanted = flags & 0x01 != 0;
    if wanted && !context.unit.reservations.has_store() {
        return Err(Sense::invalid_parameter(20));
    }
    Ok(wanted)
}

fn scope_and_kind(cdb: &Cdb) -> Result<Kind, Sense> {
    match cdb.byte(2) >> 4 {
        0 => Kind::from_code(cdb.byte(2) & 0x0f).ok_or(Sense::invalid_cdb(2, 3)),
        _ => Err(Sense::invalid_cdb(2, 7)),
    }
}

/// Initiator ports named by SPEC_I_PT (SPC-4 §6.16.3): length, then TransportIDs.
fn parse_ports(context: &UnitContext<'_>, list: &[u8]) -> Result<Vec<Port>, Sense> {
    let length_error = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let head: &[u8; BASIC_LEN + 4] = list.first_chunk().ok_or(length_error)?;
    let len = u32::from_be_bytes([head[24], head[25], head[26], head[27]]) as usize;
    let mut rest = list.get(head.len()..).filter(|rest| rest.len() == len).ok_or(length_error)?;
    let mut ports: Vec<Port> = Vec::new();
    let relative_port = context.nexus.target.config.relative_port;
    while !rest.is_empty() {
        let at = u16::try_from(list.len() - rest.len()).unwrap_or(u16::MAX);
        let (id, len) = TransportId::parse(rest).ok_or(Sense::invalid_parameter(at))?;
        rest = &rest[len..];
        let named = match id {
            // Invented ones would fill the list, and with APTPL for ever.
            TransportId::Port(port) if !context.nexus.target.knows(&port) => {
                return Err(Sense::invalid_parameter(at));
            }
            TransportId::Port(port) => vec![nexus_name(&port, relative_port)],
            TransportId::Device(name) => known_ports(&context.nexus.target, &name),
        };
        ports.extend(named);
        if ports.len() > super::state::REGISTRATIONS_MAX {
            return Err(Sense::illegal(AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
    }
    ports.sort();
    ports.dedup();
    Ok(ports)
}

/// All ports of an initiator device that have a nexus.
fn known_ports(target: &crate::target::TargetState, name: &str) -> Vec<Port> {
    let mut ports = Vec::new();
    target.each_nexus(|nexus| {
        if nexus.port().split_once(",i,").is_some_and(|(device, _)| device == name) {
            ports.push(nexus.registrant.clone());
        }
    });
    ports
}

fn parse_move(
    context: &UnitContext<'_>,
    list: &[u8],
    key: u64,
    new_key: u64,
) -> Result<Move, Sense> {
    let length_error = Sense::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let flags = list[17];
    if u16::from_be_bytes([list[18], list[19]]) != context.nexus.target.config.relative_port {
        return Err(Sense::invalid_parameter(18));
    }
    let len = u32::from_be_bytes([list[20], list[21], list[22], list[23]]) as usize;
    let id = list.get(MOVE_LEN..).filter(|id| id.len() == len).ok_or(length_error)?;
    match TransportId::parse(id) {
        Some((TransportId::Port(to), id_len))
            if id_len == len && context.nexus.target.knows(&to) =>
        {
            Ok(Move {
                key,
                new_key,
                to: nexus_name(&to, context.nexus.target.config.relative_port),
                unregister: flags & 0x02 != 0,
                through_power_loss: persists(context, flags)
                    .map_err(|_| Sense::invalid_parameter(17))?,
            })
        }
        _ => Err(Sense::invalid_parameter(MOVE_LEN as u16)),
    }
}

fn u64_at(list: &[u8; BASIC_LEN], at: usize) -> u64 {
    list[at..at + 8].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
