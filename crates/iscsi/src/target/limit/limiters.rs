//! [`Limiters`]: the buckets of a server, by what they limit; [`Throttle`]: those that the commands
//! of one session go through.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use iscsi_proto::target::Admission;

use super::bucket::Bucket;
use super::fair::Flow;
use super::held::Wait;
use super::{Cost, Limit, LimitView};
use crate::target::catalog::Catalog;

/// What a limit is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// All sessions of an initiator with a target together.
    Initiator { target_name: String, initiator_name: String },
    /// A logical unit, whoever uses it.
    Unit { target_name: String, lun: u16 },
}

impl Scope {
    /// The limit that a catalog sets.
    fn limit(&self, catalog: &Catalog) -> Limit {
        let found = match self {
            Self::Initiator { target_name, initiator_name } => catalog
                .targets
                .get(target_name)
                .and_then(|target| target.access.rule(initiator_name))
                .map(|rule| rule.limit),
            Self::Unit { target_name, lun } => catalog
                .targets
                .get(target_name)
                .and_then(|target| target.lun_limits.get(lun).copied()),
        };
        found.unwrap_or_default()
    }
}

/// All buckets. One of an initiator stays after its last session while it owes something: whoever
/// logs in again begins where it left.
#[derive(Default)]
pub(in super::super) struct Limiters(Mutex<BTreeMap<Scope, Arc<Bucket>>>);

impl Limiters {
    /// Other limits, for those that run, too. Buckets that limit nothing any more let go what waits
    /// in them.
    pub(in super::super) fn apply(&self, catalog: &Catalog) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|scope, bucket| {
            let limit = scope.limit(catalog);
            bucket.set_limit(limit);
            limit.is_some()
        });
        for (target_name, target) in &catalog.targets {
            for lun in target.lun_limits.keys() {
                let target_name = target_name.clone();
                bucket_of(&mut buckets, catalog, Scope::Unit { target_name, lun: *lun });
            }
        }
    }

    /// What the commands of a session of this initiator with a target go through.
    pub(in super::super) fn throttle(
        &self,
        catalog: &Catalog,
        target_name: &str,
        initiator_name: &str,
    ) -> Throttle {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|scope, bucket| {
            let is_used = Arc::strong_count(bucket) > 1 || matches!(scope, Scope::Unit { .. });
            is_used || !bucket.is_settled()
        });
        let target_name = target_name.to_owned();
        let mut units = BTreeMap::new();
        if let Some(target) = catalog.targets.get(&target_name) {
            for lun in target.lun_limits.keys() {
                let scope = Scope::Unit { target_name: target_name.clone(), lun: *lun };
                units.extend(bucket_of(&mut buckets, catalog, scope).map(|bucket| (*lun, bucket)));
            }
        }
        let initiator_name = initiator_name.to_owned();
        let flow = Arc::from(initiator_name.as_str());
        let scope = Scope::Initiator { target_name, initiator_name };
        Throttle { flow, own: bucket_of(&mut buckets, catalog, scope), units }
    }

    /// All limits that there are now.
    pub(in super::super) fn view(&self) -> Vec<LimitView> {
        let buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let view = |(scope, bucket): (&Scope, &Arc<Bucket>)| {
            let (target_name, initiator_name, lun) = match scope.clone() {
                Scope::Initiator { target_name, initiator_name } => {
                    (target_name, Some(initiator_name), None)
                }
                Scope::Unit { target_name, lun } => (target_name, None, Some(lun)),
            };
            let (limit, counts) = (bucket.limit(), bucket.counts());
            LimitView {
                target_name,
                initiator_name,
                lun,
                limit,
                waiting: counts.waiting,
                commands: counts.commands,
                bytes: counts.bytes,
                delayed: counts.delayed,
                waited: counts.waited,
            }
        };
        buckets.iter().map(view).collect()
    }
}

/// The bucket of a scope, if the catalog limits it.
fn bucket_of(
    buckets: &mut BTreeMap<Scope, Arc<Bucket>>,
    catalog: &Catalog,
    scope: Scope,
) -> Option<Arc<Bucket>> {
    let limit = scope.limit(catalog);
    if !limit.is_some() {
        return None;
    }
    let bucket = buckets.entry(scope).or_insert_with(|| Bucket::new(limit));
    bucket.set_limit(limit);
    Some(Arc::clone(bucket))
}

/// What the commands of one session go through: its initiator's bucket, then that of the unit.
#[derive(Clone, Default)]
pub(in super::super) struct Throttle {
    flow: Flow,
    own: Option<Arc<Bucket>>,
    units: BTreeMap<u16, Arc<Bucket>>,
}

impl Throttle {
    /// Is any command held back here?
    pub(in super::super) fn limits(&self) -> bool {
        self.own.is_some() || !self.units.is_empty()
    }

    /// What a command has to wait for; `None`: it may go on at once.
    pub(in super::super) fn wait(&self, admission: &Admission) -> Option<Wait> {
        if !scsi::uses_medium(&scsi::Cdb::from_array(admission.cdb)) {
            return None;
        }
        let number = scsi::Lun::decode(admission.lun.0).map(|lun| lun.number());
        let unit = number.and_then(|number| self.units.get(&number)).cloned();
        let cost = Cost { bytes: admission.bytes };
        let flow = Arc::clone(&self.flow);
        let own = self.own.as_ref().filter(|own| !own.try_take(cost));
        let Some(own) = own else {
            let ticket = unit.filter(|unit| !unit.try_take(cost))?.wait(&flow, cost);
            return Some(Box::pin(ticket));
        };
        // In the queue from now on, in the order in which commands came.
        let ticket = own.wait(&flow, cost);
        Some(Box::pin(async move {
            ticket.await;
            if let Some(unit) = unit.filter(|unit| !unit.try_take(cost)) {
                unit.wait(&flow, cost).await;
            }
        }))
    }
}

#[cfg(test)]
mod tests;
