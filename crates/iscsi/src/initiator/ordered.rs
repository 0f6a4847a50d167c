//! [`Ordered`]: barriers between writes that are under way, by SYNCHRONIZE CACHE with the ORDERED
//! attribute (SAM-5 §8.2): older commands of the unit end before it begins, and newer ones wait for it.
//!
//! Whom it is offered:
//!
//! * Over one connection of one session, at error recovery level 0: commands reach the target in the
//!   order of their numbers, and there is one way of numbering them.
//! * Where the unit says ORDSUP (VPD page 86h).
//! * Writes of any length where the unit is our own target's: it takes a command for older from its
//!   arrival on. Others look at the attribute when the data of a write has come. A write that waits for
//!   an R2T is then younger than a barrier behind it: tgt 1.0.85 answers the barrier first, and LIO's
//!   code has it that way. There the limit is what goes with the command as immediate data.
//!
//! An order among commands holds for what is carried out. A target that refuses a write (BUSY, a unit
//! attention, a failure of the medium) carries out those behind the barrier all the same, and no
//! attribute forbids it. So from the first barrier on whatever is not GOOD ends the disk: its owner
//! looks what is there before more is built on it.

use block::mirror::OrderedWrites;
use block::{BlockError, Io, Result};
use iscsi_proto::initiator::Command;
use iscsi_proto::initiator::durability::Effect;
use iscsi_proto::pdu::TaskAttribute;

use super::cdb;
use super::disk::RemoteDisk;
use super::probe::Prober;
use super::state::command;

/// VPD page 86h, extended INQUIRY data, and ORDSUP in the second byte of its payload (SPC-4 §7.8.7).
const EXTENDED_INQUIRY: u8 = 0x86;
const ORDSUP: u8 = 0x02;

/// VENDOR IDENTIFICATION of our own target.
const OWN_VENDOR: &str = "ENKAKU";

/// What is limited in length is limited to a multiple of this, the unit of what a mirror writes.
const UNIT_BYTES: u32 = 4096;

/// The order of one disk's writes.
pub(super) struct Ordered {
    disk: RemoteDisk,
    write_bytes_max: u64,
}

impl Ordered {
    /// `None`: there is no order to be had here.
    pub(super) fn of(disk: &RemoteDisk, is_supported: bool) -> Option<Self> {
        let config = &disk.shared().config;
        let (session, connection) = (disk.session_params(), disk.connection_params());
        let is_one_way = config.policy.is_none() && config.connections <= 1;
        if !is_supported || !is_one_way || session.error_recovery_level > 0 {
            return None;
        }
        let segment = connection.max_send_data_segment_length;
        let immediate = session.first_burst_length.min(segment) / UNIT_BYTES * UNIT_BYTES;
        let write_bytes_max = match disk.identity().vendor.as_str() {
            OWN_VENDOR => 0,
            _ if session.immediate_data && immediate > 0 => immediate.into(),
            _ => return None,
        };
        Some(Self { disk: disk.clone(), write_bytes_max })
    }
}

/// The unit knows the ORDERED attribute (VPD page 86h).
pub(super) async fn is_supported(disk: &RemoteDisk) -> Result<bool> {
    let page = leading(disk).vpd(EXTENDED_INQUIRY).await;
    let page = page.map_err(|error| BlockError::Unreachable(error.to_string()))?;
    Ok(page.and_then(|body| body.get(1).copied()).unwrap_or(0) & ORDSUP != 0)
}

/// Waits until every command that the unit has begun has ended: an older one, of whoever it is, ends
/// before one with the ORDERED attribute begins. A target that has answered a login too early (RFC
/// 7143 §6.3.5 wants the commands of the session before ended) is done with them then.
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

fn leading(disk: &RemoteDisk) -> Prober<'_> {
    let shared = disk.shared();
    let state = shared.lock();
    let (incarnation, member) = (state.incarnation, state.leading());
    drop(state);
    Prober { shared, incarnation, member }
}

impl OrderedWrites for Ordered {
    /// Orders what [`write`](block::BlockDevice::write) was called for, of at most
    /// [`write_bytes_max`](Self::write_bytes_max) each. Zeroes and trims are several commands, sent
    /// one after the other: they are to have ended before.
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

    fn write_bytes_max(&self) -> u64 {
        self.write_bytes_max
    }
}
