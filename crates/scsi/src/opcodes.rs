//! The commands of this device server, one row each, and the commands that report them: REPORT
//! SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.35, §6.36).
//!
//! A row says which bits of the CDB mean something. All others must be zero: a request for a
//! feature that is not there (protection information, anchoring, vital product data of commands) is
//! refused, not ignored.

use block::DeviceInfo;

use crate::cdb::Cdb;
use crate::context::{Context, UnitContext};
use crate::reservation::{input, output, spc2};
use crate::sense::{AdditionalSense, Sense};
use crate::unit::LogicalUnit;
use crate::{Command, Execution, data};
use crate::{capacity, compare_write, defects, diagnostics, extended_copy, inquiry, log_pages};
use crate::{medium, mode, mode_select, or_write, port_groups, read_write, report_luns, sanitize};
use crate::{unmap, verify, write_atomic, write_same};

/// What a command does: decides write protection, and which reservations of others keep it out
/// (SPC-4 table 51 and SBC-3 table 13 sort commands the same way).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Asks for what is no secret: allowed whatever is reserved.
    Free,
    /// The same, but kept out by RESERVE, which SPC-2 made stricter.
    Query,
    /// The handler decides itself.
    Own,
    /// Reads the medium.
    Read,
    /// Changes it.
    Write,
    /// Makes earlier changes stable: counts as a change for reservations, but not for read-only
    /// devices.
    Flush,
    /// Neither reads nor changes the medium, but is kept out by every reservation.
    Manage,
}

/// What a nexus must be allowed for a command ([`WriteProtection`](crate::WriteProtection)). Each
/// row has one, so that a new command cannot be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing: the command tells, reads, or gives up what is the nexus's own.
    Look,
    /// To write to the unit: the command changes it, or takes it from others who may.
    Change,
    /// The handler looks: only some of what the command can do needs the right to change.
    Handler,
}

/// What a command needs to be executed at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Nothing: the unit tells about itself whatever its state.
    Always,
    /// A unit that is active and not being sanitized.
    Ready,
    /// The same with a medium in it.
    Medium,
    /// The same, but a failed SANITIZE is no obstacle: it ends the failure.
    Sanitize,
}

#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// Answers for units that do not exist, too, and never with a unit attention.
    Any(fn(&Context<'_>, &Command) -> Execution),
    /// Needs a logical unit.
    Unit(fn(&UnitContext<'_>, Command) -> Execution),
}

/// One command.
pub(crate) struct Row {
    opcode: u8,
    service_action: Option<u8>,
    /// CDB USAGE DATA (SPC-4 §6.35.3): opcode, then 1 for every bit that is looked at.
    usage: &'static [u8],
    /// Bits of the first 16 bytes that must be zero.
    reserved: u128,
    pub(crate) access: Access,
    /// None only until the whole table is checked, which the compiler does.
    right: Option<Right>,
    pub(crate) handler: Handler,
    pub(crate) gate: Gate,
    available: fn(&LogicalUnit, &DeviceInfo) -> bool,
}

/// Bits of the CONTROL byte that are ignored here: all, since NACA is looked at elsewhere
/// (`contingent`).
const CONTROL_IGNORED: u8 = 0xff;

/// EXTENDED COPY (SPC-4 §6.4), whatever its service action: it reads and writes on its own, but
/// its access is that of a command that manages.
pub(crate) const EXTENDED_COPY: u8 = 0x83;

/// NACA of the CONTROL byte (SAM-5 §5.2).
const NACA: u8 = 0x04;

const fn row(usage: &'static [u8], access: Access, handler: Handler) -> Row {
    let mut accepted = [0xff; 16];
    let mut at = 1;
    while at < usage.len() {
        accepted[at] = usage[at];
        at += 1;
    }
    accepted[usage.len() - 1] |= CONTROL_IGNORED;
    let reserved = !u128::from_be_bytes(accepted);
    Row {
        opcode: usage[0],
        service_action: None,
        usage,
        reserved,
        access,
        right: match access {
            Access::Free | Access::Query | Access::Read | Access::Flush => Some(Right::Look),
            Access::Write => Some(Right::Change),
            Access::Own | Access::Manage => None,
        },
        handler,
        gate: match access {
            Access::Free => Gate::Always,
            Access::Read | Access::Write | Access::Flush => Gate::Medium,
            Access::Query | Access::Own | Access::Manage => Gate::Ready,
        },
        available: |_, _| true,
    }
}

/// A command that shares its opcode; byte 1 of `usage` is the service action and flags above it.
const fn service(usage: &'static [u8], access: Access, handler: Handler) -> Row {
    let mut row = row(usage, access, handler);
    row.service_action = Some(usage[1] & 0x1f);
    row.reserved &= !(0x1f << (14 * 8));
    row
}

/// Where the access alone does not say it.
const fn needs(right: Right, mut row: Row) -> Row {
    row.right = Some(right);
    row
}

const fn gate(gate: Gate, mut row: Row) -> Row {
    row.gate = gate;
    row
}

const fn only_if(available: fn(&LogicalUnit, &DeviceInfo) -> bool, mut row: Row) -> Row {
    row.available = available;
    row
}

fn thin(_: &LogicalUnit, info: &DeviceInfo) -> bool {
    info.can_trim
}

/// Erased blocks must not be readable: trimming has to be more than advice.
fn erasable(_: &LogicalUnit, info: &DeviceInfo) -> bool {
    info.can_trim && info.trim_zeroes
}

fn atomic(unit: &LogicalUnit, _: &DeviceInfo) -> bool {
    unit.atomic_blocks > 0
}

/// What it decides between initiators would be worth nothing where others come by other ways.
fn arbiter(unit: &LogicalUnit, _: &DeviceInfo) -> bool {
    unit.is_arbiter
}

/// Persistent reservations hold for all who reach the data, or all who let others reach it keep
/// them together.
fn reserves(unit: &LogicalUnit, _: &DeviceInfo) -> bool {
    unit.is_arbiter || unit.reservations.is_shared()
}

/// Atomic for all who reach the data: here, or where it is kept.
fn atomic_compare(unit: &LogicalUnit, info: &DeviceInfo) -> bool {
    unit.compare_blocks(info) > 0
}

use Access::{Flush, Free, Manage, Own, Query, Read, Write};
use Handler::{Any, Unit};
use Right::{Change, Look};

const F: u8 = 0xff;
/// GROUP NUMBER: accepted and ignored (SBC-3 §4.22 leaves the use to the device server).
const G: u8 = 0x1f;

/// Sorted by opcode and service action.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    gate(Gate::Medium, row(&[0x00, 0, 0, 0, 0, 0], Query, Unit(diagnostics::test_unit_ready))),
    row(&[0x03, 0x01, 0, 0, F, 0], Free, Any(diagnostics::request_sense)),
    row(&[0x08, 0x1f, F, F, F, 0], Read, Unit(read_write::read)), // READ(6)
    row(&[0x0a, 0x1f, F, F, F, 0], Write, Unit(read_write::write)), // WRITE(6)
    row(&[0x12, 0x01, F, F, F, 0], Free, Any(inquiry::inquiry)),
    needs(Change, row(&[0x15, 0x11, 0, 0, F, 0], Manage, Unit(mode_select::mode_select_6))),
    only_if(arbiter,
        needs(Change, row(&[0x16, 0, 0, 0, 0, 0], Own, Unit(spc2::reserve)))), // RESERVE(6)
    only_if(arbiter,
        needs(Look, row(&[0x17, 0, 0, 0, 0, 0], Own, Unit(spc2::release)))), // RELEASE(6)
    needs(Look, row(&[0x1a, 0x08, F, F, F, 0], Manage, Unit(mode::mode_sense_6))),
    needs(Right::Handler,
        row(&[0x1b, 0x01, 0, 0x0f, 0xf7, 0], Own, Unit(diagnostics::start_stop_unit))),
    needs(Look, row(&[0x1d, 0x17, 0, 0, 0, 0], Manage, Unit(diagnostics::send_diagnostic))),
    // A reader may keep the medium in: it is using it.
    needs(Look, row(&[0x1e, 0, 0, 0, 0x03, 0], Own, Unit(medium::prevent_allow))),
    // PMI and the address are obsolete since SBC-3; older initiators still send them.
    gate(Gate::Medium,
        row(&[0x25, 0x01, F, F, F, F, 0, 0, 0x01, 0], Free, Unit(capacity::read_capacity_10))),
    row(&[0x28, 0x1e, F, F, F, F, G, F, F, 0], Read, Unit(read_write::read)), // READ(10)
    row(&[0x2a, 0x1a, F, F, F, F, G, F, F, 0], Write, Unit(read_write::write)), // WRITE(10)
    row(&[0x2e, 0x16, F, F, F, F, G, F, F, 0], Write, Unit(verify::write_and_verify)),
    row(&[0x2f, 0x16, F, F, F, F, G, F, F, 0], Read, Unit(verify::verify)),
    row(&[0x34, 0x02, F, F, F, F, G, F, F, 0], Read, Unit(read_write::pre_fetch)),
    row(&[0x35, 0x06, F, F, F, F, G, F, F, 0], Flush, Unit(read_write::synchronize_cache)),
    row(&[0x37, 0, 0x1f, 0, 0, 0, 0, F, F, 0], Read, Unit(defects::read_defect_data_10)),
    row(&[0x41, 0x08, F, F, F, F, G, F, F, 0], Write, Unit(write_same::write_same_10)),
    only_if(thin, row(&[0x42, 0, 0, 0, 0, 0, G, F, F, 0], Write, Unit(unmap::unmap))),
    // SANITIZE
    gate(Gate::Sanitize,
        service(&[0x48, 0xa1, 0, 0, 0, 0, 0, F, F, 0], Write, Unit(sanitize::overwrite))),
    gate(Gate::Sanitize, only_if(erasable,
        service(&[0x48, 0xa2, 0, 0, 0, 0, 0, F, F, 0], Write, Unit(sanitize::block_erase)))),
    gate(Gate::Sanitize,
        service(&[0x48, 0x1f, 0, 0, 0, 0, 0, F, F, 0], Write, Unit(sanitize::exit_failure_mode))),
    row(&[0x4d, 0x01, F, F, 0, F, F, F, F, 0], Free, Unit(log_pages::log_sense)),
    needs(Change,
        row(&[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0], Manage, Unit(mode_select::mode_select_10))),
    only_if(arbiter, // RESERVE(10)
        needs(Change, row(&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Own, Unit(spc2::reserve)))),
    only_if(arbiter, // RELEASE(10)
        needs(Look, row(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Own, Unit(spc2::release)))),
    needs(Look, row(&[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], Manage, Unit(mode::mode_sense_10))),
    // PERSISTENT RESERVE IN, PERSISTENT RESERVE OUT
    only_if(reserves, needs(Look,
        service(&[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, 0], Own, Unit(input::read_keys)))),
    only_if(reserves, needs(Look,
        service(&[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, 0], Own, Unit(input::read_reservation)))),
    only_if(reserves, needs(Look,
        service(&[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, 0], Own, Unit(input::report_capabilities)))),
    only_if(reserves, needs(Look,
        service(&[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, 0], Own, Unit(input::read_full_status)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x00, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x01, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x02, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x03, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x04, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x05, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x06, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    only_if(reserves, needs(Change,
        service(&[0x5f, 0x07, F, 0, 0, F, F, F, F, 0], Own, Unit(output::persistent_reserve_out)))),
    // EXTENDED COPY(LID1), and what became of it
    needs(Right::Handler,
        service(&[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Manage,
            Unit(extended_copy::extended_copy))),
    needs(Look,
        service(&[0x84, 0x00, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Manage,
            Unit(extended_copy::copy_status))),
    needs(Look,
        service(&[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Manage,
            Unit(extended_copy::operating_parameters))),
    needs(Look,
        service(&[0x84, 0x04, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Manage,
            Unit(extended_copy::failed_segment_details))),
    row(&[0x88, 0x1e, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Read, Unit(read_write::read)),
    only_if(atomic_compare, row(&[0x89, 0x1a, F, F, F, F, F, F, F, F, 0, 0, 0, F, G, 0], Write,
        Unit(compare_write::compare_and_write))),
    row(&[0x8a, 0x1a, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Write, Unit(read_write::write)),
    row(&[0x8b, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Write,
        Unit(or_write::or_write)),
    row(&[0x8e, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Write,
        Unit(verify::write_and_verify)),
    row(&[0x8f, 0x16, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Read, Unit(verify::verify)),
    row(&[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Read,
        Unit(read_write::pre_fetch)),
    row(&[0x91, 0x06, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Flush,
        Unit(read_write::synchronize_cache)),
    row(&[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Write,
        Unit(write_same::write_same_16)),
    only_if(atomic, row(&[0x9c, 0x18, F, F, F, F, F, F, F, F, F, F, F, F, G, 0], Write,
        Unit(write_atomic::write_atomic))),
    gate(Gate::Medium, service(&[0x9e, 0x10, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, 0], Free,
        Unit(capacity::read_capacity_16))),
    service(&[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], Read,
        Unit(unmap::get_lba_status)),
    row(&[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0], Free, Any(report_luns::report_luns)),
    service(&[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0], Free, Unit(port_groups::report)),
    service(&[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0], Free, Unit(report_opcodes)),
    service(&[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0], Free, Unit(report_task_management)),
    row(&[0xa8, 0x1e, F, F, F, F, F, F, F, F, G, 0], Read, Unit(read_write::read)), // READ(12)
    row(&[0xaa, 0x1a, F, F, F, F, F, F, F, F, G, 0], Write, Unit(read_write::write)), // WRITE(12)
    row(&[0xae, 0x16, F, F, F, F, F, F, F, F, G, 0], Write, Unit(verify::write_and_verify)),
    row(&[0xaf, 0x16, F, F, F, F, F, F, F, F, G, 0], Read, Unit(verify::verify)),
    row(&[0xb7, 0x1f, F, F, F, F, F, F, F, F, 0, 0], Read, Unit(defects::read_defect_data_12)),
];

/// A row without a right does not compile.
const _: () = {
    let mut at = 0;
    while at < ROWS.len() {
        assert!(ROWS[at].right.is_some(), "a command whose right is not said");
        at += 1;
    }
};

/// Where the rows of an opcode begin, plus one; 0 where there are none.
static FIRST: [u8; 256] = {
    let mut first = [0; 256];
    let mut at = ROWS.len();
    while at > 0 {
        first[ROWS[at - 1].opcode as usize] = at as u8;
        at -= 1;
    }
    first
};

/// Opcode and service action of every command, for tests that go through all of them.
#[cfg(test)]
pub(crate) fn all_for_tests() -> impl Iterator<Item = (u8, u8)> {
    ROWS.iter().map(|row| (row.opcode, row.service_action.unwrap_or(0)))
}

/// All rows of an opcode.
fn rows_of(opcode: u8) -> &'static [Row] {
    let Some(start) = usize::from(FIRST[usize::from(opcode)]).checked_sub(1) else { return &[] };
    let rows = &ROWS[start..];
    let len = rows.iter().take_while(|row| row.opcode == opcode).count();
    &rows[..len]
}

/// The row for a CDB.
pub(crate) fn find(cdb: &Cdb) -> Result<&'static Row, Sense> {
    let rows = rows_of(cdb.opcode());
    match rows {
        [] => Err(invalid_opcode()),
        [row] if row.service_action.is_none() => Ok(row),
        // SPC-4 §4.2.5.2: an unknown service action is an invalid field, not an invalid opcode.
        _ => rows
            .iter()
            .find(|row| row.service_action == Some(cdb.byte(1) & 0x1f))
            .ok_or(Sense::invalid_cdb(1, 4)),
    }
}

fn invalid_opcode() -> Sense {
    Sense::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE)
}

impl Row {
    /// Refuses CDBs with a reserved bit set, naming the first one.
    pub(crate) fn check(&self, cdb: &Cdb) -> Result<&Self, Sense> {
        let wrong = u128::from_be_bytes(*cdb.bytes()) & self.reserved;
        if wrong == 0 {
            return Ok(self);
        }
        let position = wrong.leading_zeros();
        Err(Sense::invalid_cdb((position / 8) as u16, (7 - position % 8) as u8))
    }

    /// Refuses commands that this device does not have.
    pub(crate) fn check_available(
        &self,
        unit: &LogicalUnit,
        info: &DeviceInfo,
    ) -> Result<(), Sense> {
        match self.service_action {
            _ if (self.available)(unit, info) => Ok(()),
            Some(_) if rows_of(self.opcode).iter().any(|row| (row.available)(unit, info)) => {
                Err(Sense::invalid_cdb(1, 4))
            }
            _ => Err(invalid_opcode()),
        }
    }

    /// Does it read the medium, change it, or make earlier changes stable?
    pub(crate) fn uses_medium(&self) -> bool {
        matches!(self.access, Access::Read | Access::Write | Access::Flush)
            || self.opcode == EXTENDED_COPY
    }

    /// Commands that are never held back (SAM-5 §8.2): those that tell about the target, and
    /// SANITIZE (SBC-3 §5.24.1), which does not hold back others either: they are answered that it
    /// goes on.
    pub(crate) fn is_head_of_queue(&self) -> bool {
        matches!(self.handler, Handler::Any(_)) || self.gate == Gate::Sanitize
    }

    /// Needs the right to write to the unit.
    pub(crate) fn changes(&self) -> bool {
        self.right == Some(Right::Change)
    }

    fn service_action(&self) -> u16 {
        self.service_action.map_or(0, u16::from)
    }
}

/// Command timeouts descriptor without any timeouts (SPC-4 §6.35.4).
const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// REPORT SUPPORTED OPERATION CODES (SPC-4 §6.35).
fn report_opcodes(context: &UnitContext<'_>, command: Command) -> Execution {
    let cdb = &command.cdb;
    let with_timeouts = cdb.bit(2, 7);
    let (opcode, service_action) = (cdb.byte(3), cdb.u16(4));
    let rows = rows_of(opcode);
    let has_service_actions = rows.first().is_some_and(|row| row.service_action.is_some());
    let exact = rows.iter().find(|row| row.service_action() == service_action);
    let found = match cdb.byte(2) & 7 {
        0 => {
            let list = all_commands(context, with_timeouts);
            return data::respond(&command, list, cdb.u32(6)).into();
        }
        1 if has_service_actions => return Sense::invalid_cdb(2, 2).into(),
        1 => rows.first(),
        2 if !has_service_actions && !rows.is_empty() => return Sense::invalid_cdb(2, 2).into(),
        2 | 3 => exact,
        _ => return Sense::invalid_cdb(2, 2).into(),
    };
    let found = found.filter(|row| (row.available)(context.unit, context.info));
    data::respond(&command, one_command(found, with_timeouts), cdb.u32(6)).into()
}

fn all_commands(context: &UnitContext<'_>, with_timeouts: bool) -> Vec<u8> {
    let mut out = vec![0; 4];
    for row in ROWS.iter().filter(|row| (row.available)(context.unit, context.info)) {
        let flags = u8::from(with_timeouts) << 1 | u8::from(row.service_action.is_some());
        let [high, low] = row.service_action().to_be_bytes();
        out.extend([row.opcode, 0, high, low, 0, flags, 0, row.usage.len() as u8]);
        if with_timeouts {
            out.extend(TIMEOUTS);
        }
    }
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    out
}

fn one_command(row: Option<&Row>, with_timeouts: bool) -> Vec<u8> {
    let Some(row) = row else {
        return vec![0, 1, 0, 0]; // SUPPORT: not supported
    };
    let conforming = 3; // SUPPORT: as a SCSI standard says
    let mut out = vec![0, u8::from(with_timeouts) << 7 | conforming, 0, row.usage.len() as u8];
    out.extend(row.usage);
    if let Some(control) = out.last_mut() {
        *control |= NACA;
    }
    if with_timeouts {
        out.extend(TIMEOUTS);
    }
    out
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.36): those of RFC 7143 §11.5.1, and those
/// of RFC 7144 where the transport has them.
fn report_task_management(context: &UnitContext<'_>, command: Command) -> Execution {
    // ABORT TASK, ABORT TASK SET, CLEAR ACA, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET
    const FUNCTIONS: u8 = 0x80 | 0x40 | 0x20 | 0x10 | 0x08 | 0x02;
    const QUERY_TASK: u8 = 0x04;
    // QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET
    const QUERIES: u8 = 0x04 | 0x02 | 0x01;
    let mut out = match context.nexus.queries.load(std::sync::atomic::Ordering::Relaxed) {
        true => vec![FUNCTIONS | QUERY_TASK, QUERIES, 0, 0],
        false => vec![FUNCTIONS, 0, 0, 0],
    };
    if command.cdb.bit(2, 7) {
        out[3] = 12;
        out.extend([0; 12]); // no timeouts
    }
    data::respond(&command, out, command.cdb.u32(6)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_consistent() {
        for pair in ROWS.windows(2) {
            let key = |row: &Row| (row.opcode, row.service_action);
            assert!(key(&pair[0]) < key(&pair[1]), "{:#x}", pair[1].opcode);
        }
        for row in ROWS {
            let len = [6, 10, 10, 0, 16, 12, 0, 0][usize::from(row.opcode >> 5)];
            assert_eq!(row.usage.len(), len, "{:#x}", row.opcode);
            let mut cdb = [0; 16];
            cdb[0] = row.opcode;
            cdb[1] = row.service_action.unwrap_or(0);
            let found = find(&Cdb::from_array(cdb)).unwrap();
            assert_eq!((found.opcode, found.service_action), (row.opcode, row.service_action));
            assert!(found.check(&Cdb::from_array(cdb)).is_ok(), "{:#x}", row.opcode);
        }
        assert!(find(&Cdb::new(&[0xff])).is_err());
        assert_eq!(find(&Cdb::new(&[0x9e, 0x11])).err(), Some(Sense::invalid_cdb(1, 4)));
    }

    #[test]
    fn reserved_bits_are_named() {
        type Case<'a> = (&'a [u8], Option<(u16, u8)>);
        let cases: [Case<'_>; 5] = [
            (&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0], Some((1, 5))), // RDPROTECT
            (&[0x28, 0x18, 0, 0, 0, 0, 0x1f, 0, 1, 0], None),      // DPO, FUA, group
            (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0x04], None),         // NACA
            (&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0xc0, 0xff], None),   // vendor bits, behind the CDB
            (&[0x9e, 0x30, 0, 0], Some((1, 5))),
        ];
        for (bytes, wrong) in cases {
            let cdb = Cdb::new(bytes);
            let result = find(&cdb).unwrap().check(&cdb).err();
            assert_eq!(result, wrong.map(|(byte, bit)| Sense::invalid_cdb(byte, bit)));
        }
    }
}
