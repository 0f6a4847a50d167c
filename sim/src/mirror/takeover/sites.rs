//! What stands at the two sites of a takeover: disks, ways to them, and who judges.

use std::sync::{Arc, Mutex};

use block::mirror::failback::bytes_needed;
use block::mirror::layout::LegLayout;

use super::super::content::{Content, SECTOR_BYTES};
use super::super::disk::store::{Faults, Store};
use super::super::disk::{Kind, LocalDisk, lock};
use super::super::executor::Executor;
use super::super::guest::{Guest, Habits};
use super::super::judge::Judge;
use super::super::leg::Leg;
use super::super::line::Line;
use super::super::points::Points;
use super::super::scenario::{DATA_BYTES, Scenario};
use super::super::subject::{Place, Running};
use crate::rng::Rng;

/// What stands at one of the two sites, and who judges what it promises.
pub(super) struct Site {
    pub(super) disk: LocalDisk,
    pub(super) metadata: LocalDisk,
    pub(super) legs: Vec<Leg>,
    pub(super) judge: Arc<Mutex<Judge>>,
}

/// What all of it is made with.
pub(super) struct Builder<'a> {
    pub(super) executor: &'a Executor,
    pub(super) points: &'a Points,
    pub(super) scenario: &'a Scenario,
    pub(super) verbose: bool,
}

impl Builder<'_> {
    /// Both sites, and the far host's way to the leg until that is its own disk.
    pub(super) fn sites(&self, fenced: bool, rng: &mut Rng) -> (Site, Site, Leg) {
        let Scenario { local, metadata, config, .. } = *self.scenario;
        let leg_kind = self.scenario.legs[0];
        let far_kind = Kind { latency_us: local.latency_us, ..leg_kind };
        // Made longer by then, for what it tells of what differs.
        let given_bytes = bytes_needed(DATA_BYTES);
        let given_kind = Kind { bytes: given_bytes, latency_us: leg_kind.latency_us, ..local };
        let store = |rng: &mut Rng| Arc::new(Mutex::new(Store::new(rng.fork())));
        let (unit, near_store) = (store(rng), store(rng));
        let leg = self.leg(0, leg_kind, &unit, 0, rng);
        let way = self.leg(1, leg_kind, &unit, 1, rng);
        leg.set_fenced(fenced);
        way.set_fenced(fenced);
        lock(&unit).faults = Faults { write: self.scenario.leg_errors, ..Faults::default() };
        let judge = || Arc::new(Mutex::new(Judge::new(config, DATA_BYTES, 1, self.verbose)));
        let near = Site {
            disk: self.disk("near", local, &near_store, 0, rng),
            metadata: self.disk("near metadata", metadata, &store(rng), 0, rng),
            legs: vec![leg],
            judge: judge(),
        };
        let far = Site {
            disk: self.disk("far", far_kind, &unit, way.way(), rng),
            metadata: self.disk("far metadata", metadata, &store(rng), 0, rng),
            legs: vec![self.leg(2, given_kind, &near_store, 1, rng)],
            judge: judge(),
        };
        (near, far, way)
    }

    fn disk(
        &self,
        name: &'static str,
        kind: Kind,
        store: &Arc<Mutex<Store>>,
        way: u64,
        rng: &mut Rng,
    ) -> LocalDisk {
        let (executor, points) = (self.executor.clone(), self.points.clone());
        LocalDisk::over(name, kind, store.clone(), way, executor, points, rng.fork())
    }

    fn leg(
        &self,
        number: usize,
        kind: Kind,
        store: &Arc<Mutex<Store>>,
        way: u64,
        rng: &mut Rng,
    ) -> Leg {
        let line = Line::new(layout(kind.bytes), self.scenario.config.mode);
        let (executor, points) = (self.executor.clone(), self.points.clone());
        Leg::over(number, kind, store.clone(), way, executor, points, line, rng.fork())
    }
}

fn layout(leg_bytes: u64) -> LegLayout {
    // Every leg of a scenario has room for the data and the metadata.
    LegLayout::new(leg_bytes, 0).unwrap_or_else(|error| panic!("{error}"))
}

/// What the sectors of the data hold.
pub(super) fn content_of(store: &Store) -> Vec<(u64, Content)> {
    let sectors = store.known(0..DATA_BYTES / SECTOR_BYTES);
    sectors.map(|at| (at, store.visible(at))).collect()
}

/// A guest that works, and what it is judged by.
pub(super) fn guest(
    habits: &Arc<Habits>,
    judge: &Arc<Mutex<Judge>>,
    mirror: &Arc<dyn Running>,
    place: &Place,
    rng: Rng,
) -> Guest {
    let guest = Guest::new(habits.clone(), judge.clone(), mirror.clone(), place, rng);
    guest.start();
    guest
}
