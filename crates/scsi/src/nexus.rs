//! [`Nexus`]: one initiator port's view of a target, and the way of every command through it:
//! logical unit, unit attention, opcode, CDB fields, write protection, handler.

use std::sync::Arc;

use crate::context::{Context, UnitContext};
use crate::lun::Lun;
use crate::opcodes::{self, Access, Handler};
use crate::sense::{AdditionalSense, Sense};
use crate::target::{NoSuchLun, TargetState};
use crate::unit_attention::UnitAttentions;
use crate::{Command, Execution};

/// An I_T nexus: one iSCSI session. Its state ends with it.
pub struct Nexus {
    state: Arc<NexusState>,
}

pub(crate) struct NexusState {
    pub(crate) target: Arc<TargetState>,
    pub(crate) attentions: UnitAttentions,
    initiator_port: String,
}

impl NexusState {
    pub(crate) fn new(target: Arc<TargetState>, initiator_port: String) -> Self {
        Self { target, attentions: UnitAttentions::default(), initiator_port }
    }

    /// REPORTED LUNS DATA HAS CHANGED on every other unit.
    pub(crate) fn luns_changed(&self, others: &[Lun]) {
        for lun in others {
            self.attentions.establish(*lun, AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED);
        }
    }
}

impl Nexus {
    pub(crate) fn new(state: Arc<NexusState>) -> Self {
        Self { state }
    }

    /// SCSI port name of the initiator.
    pub fn initiator_port(&self) -> &str {
        &self.state.initiator_port
    }

    /// Executes one command. What can be finished at once is; the rest goes on as a future, and
    /// several may be under way in any order.
    pub fn execute(&self, command: Command) -> Execution {
        let unit = Lun::decode(command.lun).and_then(|lun| self.state.target.unit(lun));
        let row = opcodes::find(&command.cdb);
        let handler = match row {
            Ok(row) => row.handler,
            // Which commands exist is a question to a logical unit that exists.
            Err(sense) if unit.is_some() => return self.attention(&unit).unwrap_or(sense).into(),
            Err(_) => return unsupported_unit().into(),
        };
        let nexus = &self.state;
        match (handler, unit) {
            (Handler::Any(handler), unit) => match row.and_then(|row| row.check(&command.cdb)) {
                Ok(_) => handler(&Context { nexus, unit: unit.as_ref() }, &command),
                Err(sense) => sense.into(),
            },
            (Handler::Unit(_), None) => unsupported_unit().into(),
            (Handler::Unit(handler), Some(unit)) => {
                let info = unit.device.info();
                if unit.size_changed(info.size) {
                    let changed = AdditionalSense::CAPACITY_DATA_HAS_CHANGED;
                    nexus.target.establish(unit.lun, changed, None);
                }
                if let Some(condition) = nexus.attentions.take(unit.lun) {
                    return Sense::unit_attention(condition).into();
                }
                // Reservations are checked here, by the row's access, before anything else of the
                // command is looked at (SPC-4 §5.12.1).
                let checked = row.and_then(|row| {
                    row.check_available(&info)?;
                    row.check(&command.cdb)
                });
                let access = match checked {
                    Ok(row) => row.access,
                    Err(sense) => return sense.into(),
                };
                if access == Access::Write && info.read_only {
                    return Sense::write_protected().into();
                }
                handler(&UnitContext { unit: &unit, info: &info }, command)
            }
        }
    }

    /// LOGICAL UNIT RESET (SAM-5 §7.6). Every nexus, this one too, gets a unit attention. Aborting
    /// the commands that are under way is up to the transport, which knows them.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn lun_reset(&self, lun: u64) -> Result<(), NoSuchLun> {
        let unit = self.unit(lun)?;
        let reset = AdditionalSense::BUS_DEVICE_RESET_FUNCTION_OCCURRED;
        self.state.target.establish(unit, reset, None);
        Ok(())
    }

    /// TARGET WARM RESET and TARGET COLD RESET (RFC 7143 §11.5.1): all logical units.
    pub fn target_reset(&self) {
        let reset = AdditionalSense::BUS_DEVICE_RESET_FUNCTION_OCCURRED;
        for lun in self.state.target.luns() {
            self.state.target.establish(lun, reset, None);
        }
    }

    /// CLEAR TASK SET (SAM-5 §7.4): tells the other nexuses that their commands are gone. They had
    /// some under way as far as this crate knows, so all are told.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn clear_task_set(&self, lun: u64) -> Result<(), NoSuchLun> {
        let unit = self.unit(lun)?;
        let cleared = AdditionalSense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR;
        self.state.target.establish(unit, cleared, Some(&self.state));
        Ok(())
    }

    /// True when the 8-byte LUN field names a logical unit (task management needs to know).
    pub fn has_lun(&self, lun: u64) -> bool {
        self.unit(lun).is_ok()
    }

    fn unit(&self, lun: u64) -> Result<Lun, NoSuchLun> {
        let lun = Lun::decode(lun).ok_or(NoSuchLun)?;
        self.state.target.unit(lun).map(|unit| unit.lun).ok_or(NoSuchLun)
    }

    fn attention(&self, unit: &Option<Arc<crate::unit::LogicalUnit>>) -> Option<Sense> {
        let lun = unit.as_ref()?.lun;
        self.state.attentions.take(lun).map(Sense::unit_attention)
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.state.target.forget(&self.state);
    }
}

fn unsupported_unit() -> Sense {
    Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED)
}
