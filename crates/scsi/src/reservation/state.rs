//! [`Registrations`]: registrations, reservation and PRGENERATION of one logical unit, and what the
//! service actions of PERSISTENT RESERVE OUT do to them (SPC-4 §5.12).
//!
//! A value without locks, clocks or storage: every operation either changes it and says whom to
//! tell, or changes nothing. Parameter lists are taken apart in `out`, state is kept on disk by
//! `store`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sense::{AdditionalSense, Sense};

/// Name of an I_T nexus: the SCSI port name of the initiator, which says it all where there is one
/// target port; of the others of several targets that serve one unit, see [`nexus_name`].
pub(crate) type Port = Arc<str>;

/// Stands between an initiator port and the relative target port identifier. No iSCSI name has it.
const AT_PORT: char = ';';

/// Name of the nexus of an initiator port with the target port of this relative identifier.
pub(crate) fn nexus_name(initiator_port: &str, relative_port: u16) -> Port {
    match relative_port {
        1 => initiator_port.into(),
        other => format!("{initiator_port}{AT_PORT}{other}").into(),
    }
}

/// Initiator port and relative target port identifier of a nexus.
pub(crate) fn parts_of(nexus: &str) -> (&str, u16) {
    let named = nexus.rsplit_once(AT_PORT);
    named.and_then(|(port, at)| Some((port, at.parse().ok()?))).unwrap_or((nexus, 1))
}

/// Most registrations of a unit: bounds memory, and covers any cluster.
pub(crate) const REGISTRATIONS_MAX: usize = 1024;

/// TYPE of a persistent reservation (SPC-4 table 184).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    WriteExclusive = 0x1,
    ExclusiveAccess = 0x3,
    WriteExclusiveRegistrantsOnly = 0x5,
    ExclusiveAccessRegistrantsOnly = 0x6,
    WriteExclusiveAllRegistrants = 0x7,
    ExclusiveAccessAllRegistrants = 0x8,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }

    /// Others may read.
    pub(crate) fn is_write_exclusive(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }

    /// Every registered nexus holds it.
    pub(crate) fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Registered nexuses are not kept out.
    pub(crate) fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// One registered I_T nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) key: u64,
    /// ALL_TG_PT: made for all target ports.
    pub(crate) all_target_ports: bool,
}

/// The reservation there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: Kind,
    /// Who holds it; for the all registrants types, who made it.
    pub(crate) port: Port,
}

/// State of one unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registrations {
    pub(crate) generation: u32,
    pub(crate) registered: BTreeMap<Port, Registration>,
    pub(crate) reservation: Option<Reservation>,
    /// APTPL of the last registration: the state outlives a restart.
    pub(crate) through_power_loss: bool,
}

/// Who learns what of an operation that was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Unit attention conditions to establish.
    pub(crate) attentions: Vec<(Port, AdditionalSense)>,
    /// Nexuses that lost their registration to a PREEMPT.
    pub(crate) preempted: Vec<Port>,
}

/// Why an operation was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// RESERVATION CONFLICT status.
    Conflict,
    /// CHECK CONDITION.
    Invalid(Sense),
}

pub(crate) type Outcome = Result<Effects, Refusal>;

/// What a REGISTER or REGISTER AND IGNORE EXISTING KEY asks for.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    /// RESERVATION KEY; `None` ignores the existing one.
    pub(crate) key: Option<u64>,
    /// SERVICE ACTION RESERVATION KEY: the new key, 0 to unregister.
    pub(crate) new_key: u64,
    /// Other initiator ports to register (SPEC_I_PT).
    pub(crate) others: Option<Vec<Port>>,
    /// The registering initiator port, as seen at every other target port.
    pub(crate) siblings: Vec<Port>,
    pub(crate) all_target_ports: bool,
    pub(crate) through_power_loss: bool,
}

/// What a REGISTER AND MOVE asks for.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) key: u64,
    pub(crate) new_key: u64,
    pub(crate) to: Port,
    pub(crate) unregister: bool,
    pub(crate) through_power_loss: bool,
}

/// Offset of the SERVICE ACTION RESERVATION KEY in the parameter list.
const SERVICE_ACTION_KEY: u16 = 8;
/// Offset of the byte with SPEC_I_PT, ALL_TG_PT and APTPL.
const FLAGS: u16 = 20;
/// Offset of the first TransportID of SPEC_I_PT.
const SPEC_I_PT_LIST: u16 = 28;
/// Offset of the TransportID in the parameter list of REGISTER AND MOVE.
const MOVE_TRANSPORT_ID: u16 = 24;

impl Registrations {
    /// The nexus holds the reservation.
    pub(crate) fn holds(&self, port: &str) -> bool {
        self.reservation.as_ref().is_some_and(|held| {
            if held.kind.is_all_registrants() {
                self.registered.contains_key(port)
            } else {
                *held.port == *port
            }
        })
    }

    /// REGISTER, REGISTER AND IGNORE EXISTING KEY (SPC-4 §5.12.7).
    pub(crate) fn register(&mut self, port: &Port, request: &Register) -> Outcome {
        let existing = self.registered.get(port).map(|registration| registration.key);
        if request.key.is_some_and(|key| key != existing.unwrap_or(0)) {
            return Err(Refusal::Conflict);
        }
        if request.others.is_some() && existing.is_some() {
            return Err(Refusal::Invalid(Sense::invalid_parameter(FLAGS)));
        }
        let mut effects = Effects::default();
        match (existing, request.new_key) {
            // Unregistering what is not registered: done already.
            (None, 0) => return Ok(effects),
            (Some(_), 0) => self.remove(port, &mut effects),
            (_, key) => {
                let others = request.others.iter().flatten();
                // Nobody changes the key of somebody else.
                if others.clone().any(|other| self.registered.contains_key(other)) {
                    return Err(Refusal::Invalid(Sense::invalid_parameter(SPEC_I_PT_LIST)));
                }
                let all = request.all_target_ports;
                let siblings = request.siblings.iter().filter(|_| all);
                self.add(std::iter::once(port).chain(others).chain(siblings), key, all)?;
            }
        }
        self.through_power_loss = request.through_power_loss;
        self.next_generation();
        Ok(effects)
    }

    /// Registers all of `ports`, or none.
    fn add<'a>(
        &mut self,
        ports: impl Iterator<Item = &'a Port> + Clone,
        key: u64,
        all_target_ports: bool,
    ) -> Result<(), Refusal> {
        let fresh = ports.clone().filter(|port| !self.registered.contains_key(*port)).count();
        if self.registered.len() + fresh > REGISTRATIONS_MAX {
            let full = AdditionalSense::INSUFFICIENT_REGISTRATION_RESOURCES;
            return Err(Refusal::Invalid(Sense::illegal(full)));
        }
        for port in ports {
            self.registered.insert(port.clone(), Registration { key, all_target_ports });
        }
        Ok(())
    }

    /// Unregisters, and releases what cannot be held any more (SPC-4 §5.12.11.3).
    fn remove(&mut self, port: &Port, effects: &mut Effects) {
        self.registered.remove(port);
        let Some(held) = &self.reservation else { return };
        let kind = held.kind;
        let lost = match kind.is_all_registrants() {
            true => self.registered.is_empty(),
            false => held.port == *port,
        };
        if lost {
            self.release_all(kind, port, effects);
        }
    }

    fn release_all(&mut self, kind: Kind, by: &Port, effects: &mut Effects) {
        self.reservation = None;
        if kind.admits_registrants() {
            self.tell_others(by, AdditionalSense::RESERVATIONS_RELEASED, effects);
        }
    }

    fn tell_others(&self, by: &Port, condition: AdditionalSense, effects: &mut Effects) {
        let others = self.registered.keys().filter(|port| *port != by);
        effects.attentions.extend(others.map(|port| (port.clone(), condition)));
    }

    /// The nexus is registered with this key: required of every other service action.
    fn check_key(&self, port: &str, key: u64) -> Result<(), Refusal> {
        let right = self.registered.get(port).is_some_and(|registration| registration.key == key);
        if right { Ok(()) } else { Err(Refusal::Conflict) }
    }

    /// RESERVE (SPC-4 §5.12.9).
    pub(crate) fn reserve(&mut self, port: &Port, key: u64, kind: Kind) -> Outcome {
        self.check_key(port, key)?;
        match &self.reservation {
            None => self.reservation = Some(Reservation { kind, port: port.clone() }),
            Some(held) if held.kind == kind && self.holds(port) => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(Effects::default())
    }

    /// RELEASE (SPC-4 §5.12.11.2).
    pub(crate) fn release(&mut self, port: &Port, key: u64, kind: Kind) -> Outcome {
        self.check_key(port, key)?;
        let mut effects = Effects::default();
        match &self.reservation {
            Some(held) if self.holds(port) => {
                if held.kind != kind {
                    let wrong = AdditionalSense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION;
                    return Err(Refusal::Invalid(Sense::illegal(wrong)));
                }
                self.release_all(kind, port, &mut effects);
            }
            _ => {} // nothing of this nexus to release
        }
        Ok(effects)
    }

    /// CLEAR (SPC-4 §5.12.11.6).
    pub(crate) fn clear(&mut self, port: &Port, key: u64) -> Outcome {
        self.check_key(port, key)?;
        let mut effects = Effects::default();
        self.tell_others(port, AdditionalSense::RESERVATIONS_PREEMPTED, &mut effects);
        self.registered.clear();
        self.reservation = None;
        self.next_generation();
        Ok(effects)
    }

    /// PREEMPT, PREEMPT AND ABORT (SPC-4 §5.12.11.4, §5.12.11.5).
    pub(crate) fn preempt(&mut self, port: &Port, key: u64, victim: u64, kind: Kind) -> Outcome {
        self.check_key(port, key)?;
        let mut effects = Effects::default();
        let held = self.reservation.clone();
        let all_registrants = held.as_ref().is_some_and(|held| held.kind.is_all_registrants());
        let takes_over = match &held {
            None => false,
            Some(_) if all_registrants => victim == 0,
            Some(held) => self.registered.get(&held.port).is_some_and(|r| r.key == victim),
        };
        if victim == 0 && !takes_over {
            return Err(Refusal::Invalid(Sense::invalid_parameter(SERVICE_ACTION_KEY)));
        }
        let everyone = takes_over && victim == 0;
        let matches = |registration: &Registration| everyone || registration.key == victim;
        let victims: Vec<Port> = self
            .registered
            .iter()
            // Who takes the reservation over stays registered, whatever the key.
            .filter(|(other, registration)| {
                matches(registration) && !(takes_over && *other == port)
            })
            .map(|(other, _)| other.clone())
            .collect();
        if victims.is_empty() && !takes_over {
            return Err(Refusal::Conflict);
        }
        for victim in &victims {
            self.registered.remove(victim);
        }
        let preempted = AdditionalSense::REGISTRATIONS_PREEMPTED;
        let others = victims.into_iter().filter(|victim| victim != port);
        effects.preempted = others.collect();
        effects.attentions.extend(effects.preempted.iter().map(|other| (other.clone(), preempted)));
        if takes_over {
            self.reservation = Some(Reservation { kind, port: port.clone() });
            if held.is_some_and(|held| held.kind != kind) {
                self.tell_others(port, AdditionalSense::RESERVATIONS_RELEASED, &mut effects);
            }
        } else if all_registrants && self.registered.is_empty() {
            self.reservation = None;
        }
        self.next_generation();
        Ok(effects)
    }

    /// REGISTER AND MOVE (SPC-4 §5.12.8).
    pub(crate) fn register_and_move(&mut self, port: &Port, request: &Move) -> Outcome {
        self.check_key(port, request.key)?;
        let kind = match &self.reservation {
            Some(held) if !held.kind.is_all_registrants() && held.port == *port => held.kind,
            _ => return Err(Refusal::Conflict),
        };
        if request.new_key == 0 {
            return Err(Refusal::Invalid(Sense::invalid_parameter(SERVICE_ACTION_KEY)));
        }
        if request.to == *port {
            return Err(Refusal::Invalid(Sense::invalid_parameter(MOVE_TRANSPORT_ID)));
        }
        self.add(std::iter::once(&request.to), request.new_key, false)?;
        self.reservation = Some(Reservation { kind, port: request.to.clone() });
        if request.unregister {
            self.registered.remove(port);
        }
        self.through_power_loss = request.through_power_loss;
        self.next_generation();
        Ok(Effects::default())
    }

    /// Who is to be told what, now that this state has taken the place of one before, by what was
    /// done at another target. Nobody loses a registration of its own accord there.
    pub(crate) fn told_of(&self, before: &Self) -> Effects {
        let gone = before.registered.keys().filter(|port| !self.registered.contains_key(*port));
        let preempted: Vec<Port> = gone.cloned().collect();
        let mut effects = Effects::default();
        let lost = AdditionalSense::REGISTRATIONS_PREEMPTED;
        effects.attentions.extend(preempted.iter().map(|port| (port.clone(), lost)));
        effects.preempted = preempted;
        let kind = |state: &Self| state.reservation.as_ref().map(|held| held.kind);
        let (was, is) = (kind(before), kind(self));
        if was.is_some_and(Kind::admits_registrants) && was != is {
            let released = AdditionalSense::RESERVATIONS_RELEASED;
            let stay = self.registered.keys().filter(|port| before.registered.contains_key(*port));
            effects.attentions.extend(stay.map(|port| (port.clone(), released)));
        }
        effects
    }

    fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}
