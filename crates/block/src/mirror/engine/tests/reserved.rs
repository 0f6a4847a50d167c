//! Persistent reservations of a leg, as far as a mirror makes use of them: each connect is a nexus.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::TestLeg;
use crate::mirror::engine::signal::lock;
use crate::mirror::{Fence, OpenLeg};
use crate::{BlockError, Device, Io, Result};

/// A unit's reservation, "write exclusive, registrants only", with a nexus for each connect.
#[derive(Default)]
pub(crate) struct Reservations {
    /// Key of whoever holds it.
    holder: Option<u64>,
    registered: BTreeMap<u64, u64>,
}

impl Reservations {
    pub(crate) fn holder(&self) -> Option<u64> {
        self.holder
    }

    /// Whether what comes over this connect may change the unit.
    pub(crate) fn admits(&self, nexus: u64) -> bool {
        self.holder.is_none() || self.registered.contains_key(&nexus)
    }
}

/// A device of which nobody else knows, so that whoever promotes it need not wait for others.
pub(crate) fn alone(device: Device) -> OpenLeg {
    let leg = TestLeg::new("a copy", device);
    *lock(&leg.reservations) = Some(Reservations::default());
    leg.elsewhere()
}

/// The reservation as one connect has it.
pub(crate) struct Reserver {
    pub(crate) leg: Arc<TestLeg>,
    pub(crate) nexus: u64,
}

impl Reserver {
    fn with<T>(&self, act: impl FnOnce(&mut Reservations) -> Result<T>) -> Result<T> {
        act(lock(&self.leg.reservations).as_mut().ok_or(BlockError::Unsupported("reservations"))?)
    }
}

impl Fence for Reserver {
    fn hold(&self, key: u64) -> Io<()> {
        Io::done(self.with(|unit| {
            if unit.holder.is_some_and(|holder| holder != key) {
                return Err(BlockError::Fenced);
            }
            unit.holder = Some(key);
            unit.registered.insert(self.nexus, key);
            Ok(())
        }))
    }

    fn take(&self, key: u64) -> Io<()> {
        Io::done(self.with(|unit| {
            unit.registered.retain(|_, other| *other == key);
            unit.registered.insert(self.nexus, key);
            unit.holder = Some(key);
            Ok(())
        }))
    }

    fn holder(&self) -> Io<Option<u64>> {
        Io::done(self.with(|unit| Ok(unit.holder)))
    }

    fn release(&self, key: u64) -> Io<()> {
        Io::done(self.with(|unit| {
            unit.registered.remove(&self.nexus);
            unit.holder = unit.holder.filter(|holder| *holder != key);
            Ok(())
        }))
    }

    fn is_required(&self) -> bool {
        self.leg.requires_reservation.load(Ordering::SeqCst)
    }
}
