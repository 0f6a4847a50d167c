//! [`Ordered`]: barriers between writes that are under way, by SYNCHRONIZE CACHE with the ORDERED
//! attribute (SAM-5 §8.2): older commands of the unit end before it begins, and newer ones wait for
//! it.
//!
//! Whom it is offered:
//!
//! * In one session, at error recovery level 0: its target delivers commands in the order of their
//!   numbers (RFC 7143 §4.2.2.1) whatever connections they came over, and at that level nothing is
//!   sent again. Where a target allows no more than one connection in a session there is just that
//!   one.
//! * Where the unit says ORDSUP (VPD page 86h).
//! * Writes of any length: our own target takes a command for older from its arrival on. Others
//!   look at the attribute when the data of a write has come. A write that waits for an R2T is then
//!   younger than a barrier behind it: tgt 1.0.85 answers the barrier first, and LIO's code has it
//!   that way.
//! * Where the unit knows NACA (NORMACA in INQUIRY): an attribute orders what is carried out, and a
//!   write that fails or is refused is not. With NACA in the CDB a failure establishes an auto
//!   contingent allegiance (SAM-5 §5.9): nothing of this nexus is carried out behind it, neither
//!   what the target has already nor what is still on the line. Every command of the user has it
//!   from the first barrier on.
//! * Where the unit is our own target's. Of others it is not known that nothing but CHECK CONDITION
//!   refuses a command: BUSY and TASK SET FULL establish nothing. Ours says CHECK CONDITION to a
//!   command with NACA that it has no room for.
//!
//! From the first barrier on whatever is not GOOD ends the disk, and its sessions with it, which is
//! also what ends the condition: its owner looks what is there before more is built on it.

use block::mirror::OrderedWrites;
use block::{BlockError, Io, Result};
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::Effect;
use iscsi_proto::pdu::TaskAttribute;

use super::cdb;
use super::disk::RemoteDisk;
use super::probe::Prober;
use super::state::command;

/// VPD page 86h, extended INQUIRY data, and ORDSUP in the second byte of its payload (SPC-4
/// §7.8.7).
const EXTENDED_INQUIRY: u8 = 0x86;
const ORDSUP: u8 = 0x02;

/// VENDOR IDENTIFICATION of our own target.
pub(super) const OWN_VENDOR: &str = "ENKAKU";

/// The order of one disk's writes.
pub(super) struct Ordered {
    disk: RemoteDisk,
}

/// What a unit says of what it can do about an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    /// The ORDERED attribute (VPD page 86h).
    pub(super) orders: bool,
    /// NACA.
    pub(super) aca: bool,
}

impl Abilities {
    /// Asks the unit.
    pub(super) async fn of(disk: &RemoteDisk) -> Result<Self> {
        let nexus = leading(disk);
        let asked = tokio::try_join!(nexus.vpd(EXTENDED_INQUIRY), nexus.inquiry());
        let (page, inquiry) = asked.map_err(|error| BlockError::Unreachable(error.to_string()))?;
        let flags = page.and_then(|body| body.get(1).copied()).unwrap_or(0);
        Ok(Self { orders: flags & ORDSUP != 0, aca: inquiry.aca })
    }
}

impl Ordered {
    /// `Err`: why there is no order to be had here.
    pub(super) fn of(disk: &RemoteDisk, unit: Abilities) -> std::result::Result<Self, String> {
        let config = &disk.shared().config;
        let session = disk.session_params();
        let is_one_session =
            session.max_connections > 1 || config.policy.is_none() && config.connections <= 1;
        let (vendor, level) = (disk.identity().vendor, session.error_recovery_level);
        Err(match (unit.orders, unit.aca) {
            (false, _) => "the target does not order commands (no ORDSUP)".to_owned(),
            (_, false) => "the target goes on behind a write that fails (no NORMACA)".to_owned(),
            _ if vendor != OWN_VENDOR => format!("{vendor} is not known to keep an order"),
            _ if !is_one_session => "each connection has its own session".to_owned(),
            _ if level > 0 => format!("error recovery level {level} is in use"),
            _ => return Ok(Self { disk: disk.clone() }),
        })
    }
}

/// Waits until every command that the unit has begun has ended: an older one, of whoever it is,
/// ends before one with the ORDERED attribute begins. A target that has answered a login too early
/// (RFC 7143 §6.3.5 wants the commands of the session before ended) is done with them then.
pub(super) async fn await_older(disk: &RemoteDisk) -> Result<()> {
    let shared = disk.shared();
    let question = command(shared.url.wire_lun(), cdb::TEST_UNIT_READY);
    let question = Command { attribute: TaskAttribute::ORDERED, ..question };
    let nexus = leading(disk);
    let limit = shared.config.login_timeout;
    let answered = tokio::time::timeout(limit, nexus.answer(question)).await;
    let late = || BlockError::Unreachable("commands of before have not ended".into());
    answered.unwrap_or_else(|_| Err(late())).map(drop)
}

/// The session that was there first, for questions past the gate.
pub(super) fn leading(disk: &RemoteDisk) -> Prober<'_> {
    let shared = disk.shared();
    let state = shared.lock();
    let (incarnation, member) = (state.incarnation, state.leading());
    drop(state);
    Prober { shared, incarnation, member }
}

impl OrderedWrites for Ordered {
    /// Orders what [`write`](block::BlockDevice::write) was called for. Zeroes and trims are
    /// several commands, sent one after the other: they are to have ended before.
    fn barrier(&self) -> Io<()> {
        let shared = self.disk.shared();
        if let Err(error) = shared.with(|state, batch| state.begin_order(batch)) {
            return Io::err(error);
        }
        let flush = command(shared.url.wire_lun(), cdb::synchronize_cache());
        let flush = Command { attribute: TaskAttribute::ORDERED, ..flush };
        let pending = shared.send(flush, None, Effect::Flushed);
        Io::later(async move { pending.await.map(drop) })
    }
}
