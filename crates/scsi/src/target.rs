//! [`Target`]: the logical units of one SCSI target device, and the nexuses that use them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use block::Device;

use crate::Receipt;
use crate::host::{Host, NoHost};
use crate::lun::Lun;
use crate::nexus::{Nexus, NexusId, NexusState};
use crate::port_groups::{AccessState, PortGroup};
use crate::reservation::{Port, StateError};
use crate::sense::AdditionalSense;
use crate::space::SpaceUsage;
use crate::unit::{LogicalUnit, LunOptions};
use crate::unit_attention::POWER_ON;

/// Initiator ports remembered, so that a peer that invents names costs bounded memory. One that is
/// not remembered is told of a power-on, which costs it a replay and nothing else.
const PORTS_TOLD_MAX: usize = 4096;

/// How a target presents itself.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TargetConfig {
    /// SCSI device name: the iSCSI name (RFC 7143 §4.2.7).
    pub name: String,
    /// Target portal group tag of the target port (RFC 7143 §4.4.2).
    pub portal_group_tag: u16,
    /// RELATIVE TARGET PORT IDENTIFIER (SPC-4 §7.8.6.8); 1 for the only port.
    pub relative_port: u16,
}

impl TargetConfig {
    /// A target with one port in portal group 1.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), portal_group_tag: 1, relative_port: 1 }
    }

    /// With another portal group tag.
    pub fn with_portal_group_tag(mut self, tag: u16) -> Self {
        self.portal_group_tag = tag;
        self
    }

    /// As one of several targets that serve the same units under one name, each of which has
    /// another number: its portal group, target port group and relative port.
    pub fn with_group(mut self, group: u16) -> Self {
        (self.portal_group_tag, self.relative_port) = (group, group);
        self
    }
}

/// Why a logical unit was not added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddLunError {
    /// The number does not fit.
    #[error("LUN {0} is above {max}", max = Lun::MAX)]
    Number(u16),
    /// The number is taken.
    #[error("LUN {0} exists already")]
    Exists(u16),
    /// The device's block size is not a power of two from 512 to 65536.
    #[error("a block size of {0} cannot be served (a power of two from 512 to 65536 can)")]
    BlockSize(u32),
    /// The physical block size is not a power of two from the block size up.
    #[error(
        "a physical block size of {size} cannot be told (a power of two from {block_size} can)"
    )]
    PhysicalBlockSize {
        /// The one asked for, in bytes.
        size: u32,
        /// Block size of the device in bytes.
        block_size: u32,
    },
    /// The device has no blocks.
    #[error("the device is empty")]
    Empty,
    /// An identification text does not fit its field.
    #[error("{what} {text:?} is not 1 to {max} printable ASCII characters")]
    Text {
        /// Which one.
        what: &'static str,
        /// Its value.
        text: String,
        /// Most characters allowed.
        max: usize,
    },
    /// Persistent reservations were saved, and cannot be had back.
    #[error("persistent reservations: {0}")]
    State(#[from] StateError),
    /// The NAA designator is of a type that is not 8 bytes long.
    #[error("NAA {0:#018x} does not begin with 2, 3 or 5")]
    Naa(u64),
}

/// There is no such logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such logical unit")]
pub struct NoSuchLun;

/// A SCSI target device. Clones share everything.
#[derive(Clone)]
pub struct Target {
    state: Arc<TargetState>,
}

pub(crate) struct TargetState {
    pub(crate) config: TargetConfig,
    units: RwLock<BTreeMap<Lun, Arc<LogicalUnit>>>,
    nexuses: Mutex<Vec<Weak<NexusState>>>,
    next_nexus: AtomicU64,
    /// Initiator ports that are known to have been told of the power-on of a unit.
    ports_told: Mutex<BTreeMap<Port, BTreeSet<u64>>>,
    host: RwLock<Arc<dyn Host>>,
    access_state: AtomicU8,
    other_groups: RwLock<Arc<[PortGroup]>>,
}

impl Target {
    /// A target without logical units.
    pub fn new(config: TargetConfig) -> Self {
        let state = TargetState {
            config,
            units: RwLock::default(),
            nexuses: Mutex::default(),
            next_nexus: AtomicU64::new(0),
            ports_told: Mutex::default(),
            host: RwLock::new(Arc::new(NoHost)),
            access_state: AtomicU8::new(AccessState::default() as u8),
            other_groups: RwLock::new(Arc::new([])),
        };
        Self { state: Arc::new(state) }
    }

    /// Tells the transport that the target runs under. Before that, PREEMPT AND ABORT aborts
    /// nothing and background work runs on threads.
    pub fn set_host(&self, host: Arc<dyn Host>) {
        *self.state.host.write().unwrap_or_else(PoisonError::into_inner) = host;
    }

    /// The name and port it was made with.
    pub fn config(&self) -> &TargetConfig {
        &self.state.config
    }

    /// Adds a logical unit. Initiators that are connected learn of it by a unit attention.
    ///
    /// # Errors
    /// [`AddLunError`]; nothing has changed then.
    pub fn add_lun(
        &self,
        number: u16,
        device: Device,
        options: LunOptions,
    ) -> Result<(), AddLunError> {
        let lun = self.state.insert(number, device, &options)?;
        self.state.announce(&[], &[lun]);
        Ok(())
    }

    /// Removes a logical unit. Commands under way on it go on to their end.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn remove_lun(&self, number: u16) -> Result<(), NoSuchLun> {
        let lun = self.state.take_out(number).ok_or(NoSuchLun)?;
        self.state.announce(&[lun], &[]);
        Ok(())
    }

    /// Removes logical units and then adds others, as one change: what initiators are told of it
    /// does not grow with the square of their number. Those that are not there are not removed, and
    /// what was not added is returned with the reason.
    pub fn change_luns(
        &self,
        removed: &[u16],
        added: Vec<(u16, Device, LunOptions)>,
    ) -> Vec<(u16, AddLunError)> {
        let removed: Vec<Lun> =
            removed.iter().filter_map(|number| self.state.take_out(*number)).collect();
        let mut inserted = Vec::new();
        let mut refused = Vec::new();
        for (number, device, options) in added {
            match self.state.insert(number, device, &options) {
                Ok(lun) => inserted.push(lun),
                Err(error) => refused.push((number, error)),
            }
        }
        self.state.announce(&removed, &inserted);
        refused
    }

    /// SCSI port names of the initiators that have read, written or flushed a logical unit since
    /// they are connected.
    pub fn users(&self, number: u16) -> Vec<String> {
        let Some(lun) = Lun::new(number) else { return Vec::new() };
        let mut ports = Vec::new();
        self.state.each_nexus(|nexus| {
            if nexus.used.has(lun) {
                ports.push(nexus.port().to_owned());
            }
        });
        ports
    }

    /// Numbers of the logical units, ascending.
    pub fn luns(&self) -> Vec<u16> {
        self.state.luns().into_iter().map(Lun::number).collect()
    }

    /// The state kept for one initiator port: one per iSCSI session, shared by its connections.
    /// `initiator_port` is its SCSI port name (RFC 7143 §4.4.2: iSCSI name, `,i,0x`, ISID in hex).
    /// Its first command on every unit reports POWER ON (SAM-5 §5.14.2), until an earlier nexus of
    /// the port is known to have had that answer ([`Nexus::received`]).
    pub fn nexus(&self, initiator_port: &str) -> Nexus {
        let id = NexusId(self.state.next_nexus.fetch_add(1, Ordering::Relaxed));
        let nexus = Arc::new(NexusState::new(self.state.clone(), id, initiator_port));
        self.state.lock_nexuses().push(Arc::downgrade(&nexus));
        for unit in self.state.units() {
            nexus.attentions.establish(unit.lun, self.state.first_attention(&nexus, &unit));
        }
        Nexus::new(nexus)
    }

    /// Number of nexuses.
    pub fn nexus_count(&self) -> usize {
        self.state.lock_nexuses().len()
    }

    /// Tells how much storage there is behind a thin logical unit. LOG SENSE passes it on, and
    /// initiators are warned when the threshold of the unit is crossed.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn report_space(&self, number: u16, usage: SpaceUsage) -> Result<(), NoSuchLun> {
        let unit = Lun::new(number).and_then(|lun| self.state.unit(lun)).ok_or(NoSuchLun)?;
        if unit.space.report(usage) {
            let low = AdditionalSense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
            self.state.establish(unit.lun, low, None);
        }
        Ok(())
    }

    /// Gives the target port another access state (ALUA), and tells all initiators.
    pub fn set_access_state(&self, access_state: AccessState) {
        let before = self.state.access_state.swap(access_state as u8, Ordering::AcqRel);
        if before != access_state as u8 {
            let changed = AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED;
            self.state.luns().into_iter().for_each(|lun| self.state.establish(lun, changed, None));
        }
    }

    /// The access state of the target port.
    pub fn access_state(&self) -> AccessState {
        self.state.access_state()
    }

    /// Says which other targets serve the same units, and how well, and tells all initiators where
    /// that has changed.
    pub fn set_other_groups(&self, groups: &[PortGroup]) {
        if *self.state.other_groups() == *groups {
            return;
        }
        *self.state.other_groups.write().unwrap_or_else(PoisonError::into_inner) = groups.into();
        let changed = AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED;
        self.state.luns().into_iter().for_each(|lun| self.state.establish(lun, changed, None));
    }

    /// Reads what other targets keep together with this one, for all logical units that have such a
    /// state, and tells those concerned. To be called several times within each
    /// [`LEASE`](crate::LEASE); without, those units answer BUSY. May block.
    ///
    /// # Errors
    /// The first unit whose state cannot be read; the others have theirs.
    pub fn refresh(&self) -> Result<(), (u16, StateError)> {
        let mut result = Ok(());
        for unit in self.state.units() {
            match unit.reservations.refresh() {
                Ok(effects) => self.state.each_nexus(|nexus| {
                    let told = effects.attentions.iter();
                    let told = told.filter(|(port, _)| *port == nexus.registrant);
                    told.for_each(|(_, what)| nexus.attentions.establish(unit.lun, *what));
                }),
                Err(error) => result = result.and(Err((unit.lun.number(), error))),
            }
        }
        result
    }

    /// Tells all initiators that the logical unit has another size now. Not needed where commands
    /// keep coming: the next one notices by itself.
    ///
    /// # Errors
    /// [`NoSuchLun`].
    pub fn capacity_changed(&self, number: u16) -> Result<(), NoSuchLun> {
        let unit = Lun::new(number).and_then(|lun| self.state.unit(lun)).ok_or(NoSuchLun)?;
        unit.size_changed(unit.device.info().size);
        self.state.establish(unit.lun, AdditionalSense::CAPACITY_DATA_HAS_CHANGED, None);
        Ok(())
    }
}

impl TargetState {
    pub(crate) fn unit(&self, lun: Lun) -> Option<Arc<LogicalUnit>> {
        self.units.read().unwrap_or_else(PoisonError::into_inner).get(&lun).cloned()
    }

    fn insert(
        &self,
        number: u16,
        device: Device,
        options: &LunOptions,
    ) -> Result<Lun, AddLunError> {
        let lun = Lun::new(number).ok_or(AddLunError::Number(number))?;
        let unit = LogicalUnit::new(&self.config.name, lun, device, options)?;
        let mut units = self.write_units();
        if units.contains_key(&lun) {
            return Err(AddLunError::Exists(number));
        }
        units.insert(lun, Arc::new(unit));
        Ok(lun)
    }

    fn take_out(&self, number: u16) -> Option<Lun> {
        let unit = Lun::new(number).and_then(|lun| self.write_units().remove(&lun))?;
        self.lock_told().retain(|_, units| {
            units.remove(&unit.power_on.0);
            !units.is_empty()
        });
        Some(unit.lun)
    }

    /// Tells the nexuses which units have gone and come.
    fn announce(&self, removed: &[Lun], added: &[Lun]) {
        // A nexus that begins now sees for itself what is there.
        if self.lock_nexuses().is_empty() || removed.is_empty() && added.is_empty() {
            return;
        }
        let new: BTreeSet<Lun> = added.iter().copied().collect();
        let others: Vec<Lun> = self.luns().into_iter().filter(|lun| !new.contains(lun)).collect();
        self.each_nexus(|nexus| {
            nexus.attentions.remove(removed);
            removed.iter().for_each(|lun| nexus.used.forget(*lun));
            nexus.attentions.establish_all(added, POWER_ON);
            nexus.luns_changed(&others);
        });
    }

    pub(crate) fn luns(&self) -> Vec<Lun> {
        self.units.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    pub(crate) fn units(&self) -> Vec<Arc<LogicalUnit>> {
        self.units.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn access_state(&self) -> AccessState {
        AccessState::from_code(self.access_state.load(Ordering::Acquire))
    }

    pub(crate) fn other_groups(&self) -> Arc<[PortGroup]> {
        self.other_groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn host(&self) -> Arc<dyn Host> {
        self.host.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// LOGICAL UNIT RESET of one unit: every nexus is told.
    pub(crate) fn reset(&self, unit: &LogicalUnit) {
        unit.reset();
        // Before it is told: whoever is told by a command with NACA has the condition anew.
        self.each_nexus(|nexus| nexus.contingent.clear(unit.lun));
        let reset = AdditionalSense::BUS_DEVICE_RESET_FUNCTION_OCCURRED;
        self.establish(unit.lun, reset, None);
    }

    /// Establishes a unit attention for all nexuses, or all but one.
    pub(crate) fn establish(
        &self,
        lun: Lun,
        condition: AdditionalSense,
        except: Option<&NexusState>,
    ) {
        self.each_nexus(|nexus| {
            if except.is_none_or(|except| !std::ptr::eq(except, nexus)) {
                nexus.attentions.establish(lun, condition);
            }
        });
    }

    pub(crate) fn each_nexus(&self, mut visit: impl FnMut(&NexusState)) {
        // The list is copied first, as a nexus that ends in `visit` would want the same lock.
        let nexuses: Vec<_> = self.lock_nexuses().iter().filter_map(Weak::upgrade).collect();
        nexuses.iter().for_each(|nexus| visit(nexus));
    }

    /// An initiator port that is connected, was so since the target came up (and has heard of
    /// that), or may be expected.
    pub(crate) fn knows(&self, port: &str) -> bool {
        let told = self.lock_told().contains_key(port);
        let name = port.split_once(",i,").map_or(port, |(name, _)| name);
        let mut connected = false;
        self.each_nexus(|nexus| connected |= nexus.port() == port);
        told || connected || self.host().expects(name)
    }

    /// Forgets a nexus that ends.
    pub(crate) fn forget(&self, ended: &Arc<NexusState>) {
        self.units().iter().for_each(|unit| unit.nexus_lost(ended.id));
        self.lock_nexuses().retain(|nexus| !std::ptr::eq(nexus.as_ptr(), Arc::as_ptr(ended)));
    }

    /// What a new nexus is told first of a unit. An initiator that learns of a power-on has to
    /// assume that volatile caches were lost, so one that has been told, and was merely away since,
    /// is told just that (SAM-5 §6.3).
    fn first_attention(&self, nexus: &NexusState, unit: &LogicalUnit) -> AdditionalSense {
        let told = self.lock_told();
        match told.get(&nexus.initiator_port).is_some_and(|told| told.contains(&unit.power_on.0)) {
            true => AdditionalSense::I_T_NEXUS_LOSS_OCCURRED,
            false => POWER_ON,
        }
    }

    /// A port has the answer that told it of a power-on.
    pub(crate) fn power_on_told(&self, port: &Port, receipt: Receipt) {
        // Units are not held fast meanwhile: one that has just gone leaves its number behind, which
        // no other will have.
        if !self.units().iter().any(|unit| unit.power_on == receipt) {
            return;
        }
        let mut told = self.lock_told();
        if told.len() < PORTS_TOLD_MAX || told.contains_key(port) {
            told.entry(port.clone()).or_default().insert(receipt.0);
        }
    }

    fn lock_told(&self) -> MutexGuard<'_, BTreeMap<Port, BTreeSet<u64>>> {
        self.ports_told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_units(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<Lun, Arc<LogicalUnit>>> {
        self.units.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_nexuses(&self) -> MutexGuard<'_, Vec<Weak<NexusState>>> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
