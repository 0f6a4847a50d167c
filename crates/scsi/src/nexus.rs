//! [`Nexus`]: one initiator port's view of a target, and the way of every command through it:
//! logical unit, unit attention, opcode, CDB fields, write protection, handler.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use block::DeviceInfo;

use crate::abort::{self, Abortable};
use crate::context::{Context, UnitContext};
use crate::contingent::Contingent;
use crate::lun::Lun;
use crate::opcodes::{self, Access, Gate, Handler, Row};
use crate::reservation::{Port, nexus_name};
use crate::sense::{AdditionalSense, Sense, SenseKey};
use crate::target::{NoSuchLun, TargetState};
use crate::unit::LogicalUnit;
use crate::unit_attention::{POWER_ON, UnitAttentions};
use crate::used::Used;
use crate::{Cdb, Command, Execution, Receipt, Response, Status, TaskAttribute};

/// An I_T nexus: one iSCSI session. Its state ends with it.
pub struct Nexus {
    state: Arc<NexusState>,
}

pub(crate) struct NexusState {
    pub(crate) target: Arc<TargetState>,
    pub(crate) attentions: UnitAttentions,
    pub(crate) contingent: Contingent,
    pub(crate) abortable: Arc<Abortable>,
    pub(crate) queries: AtomicBool,
    pub(crate) used: Used,
    pub(crate) id: NexusId,
    pub(crate) initiator_port: Port,
    /// What registrations know it by.
    pub(crate) registrant: Port,
    protection: RwLock<WriteProtection>,
    /// `protection` is not `None`, so that the common case costs one load.
    protected: AtomicBool,
}

/// Which logical units a nexus may only read, although others may write to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WriteProtection {
    /// None of them.
    #[default]
    None,
    /// All of them.
    All,
    /// Those with these numbers.
    Units(BTreeSet<u16>),
}

/// What a nexus may do, for a transport to ask while it carries out task management. Does not keep
/// the nexus from ending.
#[derive(Clone)]
pub struct Rights(Arc<NexusState>);

impl Rights {
    /// May this nexus end what others do with a unit (CLEAR TASK SET, LOGICAL UNIT RESET), or with
    /// all of them (`None`: target resets)? Who may only read a unit must not take it from those
    /// who write. A unit that does not exist is nobody's.
    pub fn may_reset(&self, lun: Option<u64>) -> bool {
        match lun {
            Some(lun) => Lun::decode(lun).is_none_or(|lun| !self.0.is_protected(lun)),
            None => !self.0.protected.load(Ordering::Acquire),
        }
    }
}

/// Identity of a nexus as long as the process runs. Never used twice, unlike port names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(pub(crate) u64);

/// A unit attention that an initiator has not been told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsynchronousEvent {
    /// The one that comes first.
    pub condition: AdditionalSense,
    /// There are more.
    pub more: bool,
}

impl AsynchronousEvent {
    /// Additional Response Information (SAM-5 §7.10): UADE DEPTH and sense key, ASC, ASCQ.
    pub fn to_bytes(self) -> [u8; 3] {
        let depth: u8 = if self.more { 0b10 } else { 0b01 };
        let AdditionalSense(code, qualifier) = self.condition;
        [depth << 4 | SenseKey::UNIT_ATTENTION.0, code, qualifier]
    }
}

impl NexusState {
    pub(crate) fn new(target: Arc<TargetState>, id: NexusId, initiator_port: &str) -> Self {
        // Names compare without regard to case (RFC 7143 §4.2.7.2, §13.2).
        let initiator_port: Port = initiator_port.to_ascii_lowercase().into();
        let registrant = nexus_name(&initiator_port, target.config.relative_port);
        Self {
            target,
            registrant,
            attentions: UnitAttentions::default(),
            contingent: Contingent::default(),
            abortable: Arc::default(),
            queries: AtomicBool::new(false),
            used: Used::default(),
            id,
            initiator_port,
            protection: RwLock::default(),
            protected: AtomicBool::new(false),
        }
    }

    /// The device as this nexus may use it.
    pub(crate) fn info_of(&self, unit: &LogicalUnit) -> DeviceInfo {
        let mut info = unit.device.info();
        info.read_only |= self.is_protected(unit.lun);
        info
    }

    /// This nexus may only look at the unit.
    pub(crate) fn is_protected(&self, lun: Lun) -> bool {
        self.protected.load(Ordering::Acquire)
            && match &*self.protection.read().unwrap_or_else(PoisonError::into_inner) {
                WriteProtection::None => false,
                WriteProtection::All => true,
                WriteProtection::Units(numbers) => numbers.contains(&lun.number()),
            }
    }

    /// SCSI port name of the initiator.
    pub(crate) fn port(&self) -> &str {
        &self.initiator_port
    }

    /// A command to a unit that exists, in its turn.
    fn enter(
        self: &Arc<Self>,
        unit: &Arc<LogicalUnit>,
        row: &'static Row,
        command: Command,
    ) -> Execution {
        if row.is_head_of_queue() {
            return self.execute(unit, row, command);
        }
        let is_aca = command.attribute == TaskAttribute::Aca;
        if is_aca && !self.contingent.is_active(unit.lun) {
            return Sense::illegal(AdditionalSense::INVALID_MESSAGE_ERROR).into();
        }
        match unit.tasks.enter(command.attribute) {
            Ok(member) => self.run(unit, row, command).with_member(member),
            Err(dormant) => {
                let (nexus, unit) = (self.clone(), unit.clone());
                let task = self.abortable.task(command.tag);
                Execution::later(async move {
                    match task.unless_aborted(dormant).await {
                        Some(member) => nexus.run(&unit, row, command).with_member(member).await,
                        None => abort::aborted(),
                    }
                })
            }
        }
    }

    /// A command whose turn has come: it is refused while a failed one of this nexus is not dealt
    /// with. One that fails itself says so before it leaves the task set, and thus before any that
    /// waited for it begins.
    fn run(
        self: &Arc<Self>,
        unit: &Arc<LogicalUnit>,
        row: &'static Row,
        command: Command,
    ) -> Execution {
        if command.attribute != TaskAttribute::Aca && self.contingent.is_active(unit.lun) {
            return Response::status(Status::ACA_ACTIVE).into();
        }
        let (naca, lun) = (command.cdb.naca(), unit.lun);
        let execution = self.execute(unit, row, command);
        if !naca {
            return execution;
        }
        let nexus = self.clone();
        let note = move |response: Response| {
            if response.status == Status::CHECK_CONDITION {
                nexus.contingent.establish(lun);
            }
            response
        };
        match execution {
            Execution::Done(response) => note(response).into(),
            Execution::Pending(pending) => Execution::later(async move { note(pending.await) }),
        }
    }

    /// A command whose turn has come: unit attention, reservation, CDB fields, readiness, write
    /// protection, handler, in this order.
    fn execute(
        self: &Arc<Self>,
        unit: &Arc<LogicalUnit>,
        row: &'static Row,
        command: Command,
    ) -> Execution {
        let handler = match row.handler {
            Handler::Unit(handler) => handler,
            Handler::Any(handler) => {
                let context = Context { nexus: self, unit: Some(unit) };
                let checked = row.check(&command.cdb);
                return checked.map_or_else(Execution::from, |_| handler(&context, &command));
            }
        };
        let info = self.info_of(unit);
        if unit.size_changed(info.size) {
            let changed = AdditionalSense::CAPACITY_DATA_HAS_CHANGED;
            self.target.establish(unit.lun, changed, None);
        }
        if let Some((condition, receipt)) = self.tell(unit) {
            let response = Response::check_condition(Sense::unit_attention(condition));
            return response.with_receipt(receipt).into();
        }
        // Who does not know what other targets have been told must not decide
        // (`reservation::shared`).
        if row.access != Access::Free && !unit.reservations.is_fresh() {
            return Response::status(Status::BUSY).into();
        }
        // Before anything else of the command is looked at (SPC-4 §5.12.1).
        if !unit.reservations.admits(self.id, &self.registrant, row.access) {
            return Response::status(Status::RESERVATION_CONFLICT).into();
        }
        if let Err(sense) = self.ready(unit, &info, row, &command) {
            return sense.into();
        }
        if row.uses_medium() {
            self.used.note(unit.lun);
        }
        let data_out_len = command.data_out.len();
        let work = unit.statistics.begin(row.access, &command.cdb, data_out_len, info.block_size);
        handler(&UnitContext { nexus: self, unit, info: &info }, command).counted(work)
    }

    /// Takes the oldest unit attention to tell it, and what its answer is to be known by.
    pub(crate) fn tell(&self, unit: &LogicalUnit) -> Option<(AdditionalSense, Option<Receipt>)> {
        let condition = self.attentions.take(unit.lun)?;
        Some((condition, (condition == POWER_ON).then_some(unit.power_on)))
    }

    /// Everything of a command that can be checked without knowing which it is.
    fn ready(
        &self,
        unit: &LogicalUnit,
        info: &DeviceInfo,
        row: &Row,
        command: &Command,
    ) -> Result<(), Sense> {
        row.check_available(unit, info)?;
        row.check(&command.cdb)?;
        if row.gate != Gate::Always {
            self.target.access_state().check()?;
            unit.sanitize.check(row.gate == Gate::Sanitize)?;
        }
        if matches!(row.gate, Gate::Medium | Gate::Sanitize) {
            unit.medium.check()?;
        }
        if row.access == Access::Write && unit.is_write_protected(info)
            || row.changes() && self.is_protected(unit.lun)
        {
            return Err(Sense::write_protected());
        }
        Ok(())
    }

    /// REPORTED LUNS DATA HAS CHANGED on every other unit.
    pub(crate) fn luns_changed(&self, others: &[Lun]) {
        let changed = AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED;
        self.attentions.establish_all(others, changed);
    }
}

impl Nexus {
    pub(crate) fn new(state: Arc<NexusState>) -> Self {
        Self { state }
    }

    /// What [`Host::abort_tasks`](crate::Host::abort_tasks) knows this nexus by.
    pub fn id(&self) -> NexusId {
        self.state.id
    }

    /// SCSI port name of the initiator.
    pub fn initiator_port(&self) -> &str {
        &self.state.initiator_port
    }

    /// What it may do, as of each moment that it is asked.
    pub fn rights(&self) -> Rights {
        Rights(Arc::clone(&self.state))
    }

    /// Says which logical units this nexus may only read: it may not change them, nor reserve,
    /// eject or reset them. Commands under way are not affected.
    pub fn set_write_protection(&self, protection: WriteProtection) {
        let protected = protection != WriteProtection::None;
        *self.state.protection.write().unwrap_or_else(PoisonError::into_inner) = protection;
        self.state.protected.store(protected, Ordering::Release);
    }

    /// Executes one command. What can be finished at once is; the rest goes on as a future, and
    /// several may be under way in any order.
    pub fn execute(&self, command: Command) -> Execution {
        let unit = Lun::decode(command.lun).and_then(|lun| self.state.target.unit(lun));
        let row = opcodes::find(&command.cdb);
        let nexus = &self.state;
        let Some(unit) = unit else {
            return match row {
                Ok(Row { handler: Handler::Any(handler), .. }) => {
                    let checked = row.and_then(|row| row.check(&command.cdb));
                    let execute = |_| handler(&Context { nexus, unit: None }, &command);
                    checked.map_or_else(Execution::from, execute)
                }
                _ => unsupported_unit().into(),
            };
        };
        let descriptor_format = unit.mode.descriptor_sense();
        let execution = match row {
            Ok(row) => nexus.enter(&unit, row, command),
            Err(_) if nexus.contingent.is_active(unit.lun) => {
                Response::status(Status::ACA_ACTIVE).into()
            }
            Err(sense) => {
                let (sense, receipt) = match nexus.tell(&unit) {
                    Some((condition, receipt)) => (Sense::unit_attention(condition), receipt),
                    None => (sense, None),
                };
                Response::check_condition(sense).with_receipt(receipt).into()
            }
        };
        if descriptor_format { execution.with_descriptor_sense() } else { execution }
    }

    /// A command that the transport has ended with CHECK CONDITION before it came here: as if it
    /// had come.
    pub fn note_failed(&self, lun: u64, cdb: &Cdb) {
        if let Some(unit) = self.unit(lun).ok().filter(|_| cdb.naca()) {
            self.state.contingent.establish(unit.lun);
        }
    }

    /// CLEAR ACA (SAM-5 §7.4): what comes from now on is carried out again.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn clear_aca(&self, lun: u64) -> Result<(), NoSuchLun> {
        self.state.contingent.clear(self.unit(lun)?.lun);
        Ok(())
    }

    /// Nobody waits for the answer of the command with this tag any more: it ends as soon as what
    /// it has asked of the device has come back, and is polled until then. One that ends by itself
    /// soon may go on to its end.
    pub fn abort(&self, tag: u64) {
        self.state.abortable.abort(Some(tag));
    }

    /// The same for all commands of this nexus.
    pub fn abort_all(&self) {
        self.state.abortable.abort(None);
    }

    /// The initiator has the answer with this receipt. Its port is not told of that power-on
    /// again: what it finds when it comes back is the loss of its nexus and no more.
    pub fn received(&self, receipt: Receipt) {
        self.state.target.power_on_told(&self.state.initiator_port, receipt);
    }

    /// The answer with this receipt may never have arrived: it is told again.
    pub fn lost(&self, receipt: Receipt) {
        let units = self.state.target.units();
        if let Some(unit) = units.iter().find(|unit| unit.power_on == receipt) {
            self.state.attentions.establish(unit.lun, POWER_ON);
        }
    }

    /// QUERY ASYNCHRONOUS EVENT (SAM-5 §7.10): what the next command on the unit would be told by a
    /// unit attention, which stays. Deferred errors there are none.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn query_asynchronous_event(
        &self,
        lun: u64,
    ) -> Result<Option<AsynchronousEvent>, NoSuchLun> {
        let pending = self.state.attentions.peek(self.unit(lun)?.lun);
        Ok(pending.map(|(condition, more)| AsynchronousEvent { condition, more }))
    }

    /// I_T NEXUS RESET (SAM-5 §7.6): what the units keep for this nexus goes as if it had been
    /// lost, and it is told so; registrations and persistent reservations stay. Aborting its
    /// commands is up to the transport, which knows them.
    pub fn nexus_reset(&self) {
        for unit in self.state.target.units() {
            unit.nexus_lost(self.state.id);
            self.state.contingent.clear(unit.lun);
            let lost = AdditionalSense::I_T_NEXUS_LOSS_OCCURRED;
            self.state.attentions.establish(unit.lun, lost);
        }
    }

    /// The nexus is lost (SAM-5 §6.3.4), and what the units keep for it. A transport says so when
    /// the peer may know of it, with no command of this nexus left; otherwise the last owner's end
    /// does. A second time changes nothing.
    pub fn end(&self) {
        self.state.target.forget(&self.state);
    }

    /// The transport carries out QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT and I_T NEXUS
    /// RESET for this nexus (it has to have agreed on RFC 7144), so REPORT SUPPORTED TASK
    /// MANAGEMENT FUNCTIONS names them.
    pub fn set_queries(&self, carried_out: bool) {
        self.state.queries.store(carried_out, Ordering::Relaxed);
    }

    /// LOGICAL UNIT RESET (SAM-5 §7.7). Every nexus, this one too, gets a unit attention. Aborting
    /// the commands that are under way is up to the transport, which knows them.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn lun_reset(&self, lun: u64) -> Result<(), NoSuchLun> {
        let unit = self.unit(lun)?;
        self.state.target.reset(&unit);
        Ok(())
    }

    /// TARGET WARM RESET and TARGET COLD RESET (RFC 7143 §11.5.1): all logical units.
    pub fn target_reset(&self) {
        self.state.target.units().iter().for_each(|unit| self.state.target.reset(unit));
    }

    /// CLEAR TASK SET (SAM-5 §7.5): tells the other nexuses that their commands are gone. They had
    /// some under way as far as this crate knows, so all are told.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn clear_task_set(&self, lun: u64) -> Result<(), NoSuchLun> {
        let unit = self.unit(lun)?;
        let cleared = AdditionalSense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR;
        self.state.target.establish(unit.lun, cleared, Some(&self.state));
        Ok(())
    }

    /// True when the 8-byte LUN field names a logical unit (task management needs to know).
    pub fn has_lun(&self, lun: u64) -> bool {
        self.unit(lun).is_ok()
    }

    fn unit(&self, lun: u64) -> Result<Arc<LogicalUnit>, NoSuchLun> {
        let lun = Lun::decode(lun).ok_or(NoSuchLun)?;
        self.state.target.unit(lun).ok_or(NoSuchLun)
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.end();
    }
}

fn unsupported_unit() -> Sense {
    Sense::illegal(AdditionalSense::LOGICAL_UNIT_NOT_SUPPORTED)
}
