//! A run in which another host takes a leg over: a mirror works here, its host dies, is cut off, or
//! lives on; the far host promotes the leg as soon as it may, and works on it as the local disk of
//! a mirror of its own; then the old disk is given back, becomes the leg of that mirror and gets
//! what differs. Any of it is cut at any operation, and done again.
//!
//! What has to hold: the image that is promoted has what was promised; from then on nothing that
//! the old host asks for changes the leg; and in the end both disks are equal.

mod far;
mod near;
mod sites;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::Host;
use block::mirror::failback::bytes_needed;

use self::far::Far;
use self::near::{HandBack, Near};
use self::sites::{Builder, Site};
use super::disk::lock;
use super::disk::store::Store;
use super::executor::{Executor, Step};
use super::guest::Habits;
use super::leg::Leg;
use super::points::Points;
use super::sabotage::{MADE, Sabotage};
use super::scenario::{DATA_BYTES, Scenario, Trouble};
use super::subject::{Over, Place, Running, Subject};
use super::world::{Outcome, outcome};
use crate::rng::Rng;

/// A run takes no longer than this, or something hangs.
const RUN_MAX: Duration = Duration::from_secs(1200);

/// Steps of a run that has gone mad.
const STEPS_MAX: u64 = 1_000_000;

/// Longest time that anything stays out of order by itself.
const DOWN_MS_MAX: u64 = 3000;

/// Time after which a host that lives, and that nothing keeps from writing, is ended by a person.
const PATIENCE: Duration = Duration::from_secs(40);

/// What becomes of the old host when the far one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    PowerFails,
    Ends,
    IsCutOff,
    Lives,
}

/// How far a run has come, as the tasks of both hosts show it.
#[derive(Default)]
pub(super) struct Board {
    created: bool,
    /// The leg was in sync once, so that there is something to take over.
    synced: bool,
    /// The far host has begun.
    begun: bool,
    promoted: bool,
    /// The far host has found no image to take over, and never will.
    refused: bool,
    /// The guest of the far host has done its work.
    worked: bool,
    handed_back: bool,
    settled: bool,
    closed: bool,
    near: Option<Arc<dyn Running>>,
    far: Option<Arc<dyn Running>>,
}

/// One run.
pub(super) struct Takeover {
    executor: Executor,
    points: Points,
    scenario: Scenario,
    subject: Arc<dyn Subject>,
    sabotage: Option<Sabotage>,
    board: Arc<Mutex<Board>>,
    rng: Rng,
    fate: Fate,
    /// The leg knows reservations.
    fenced: bool,
    /// The point at which the far host begins.
    at: u64,
    near: Site,
    far: Site,
    /// The far host's way to the leg, until that is its own disk.
    way: Leg,
    /// When the far host began.
    begun: Option<Duration>,
    near_lives: bool,
    /// The old site gives its disk back.
    giving: bool,
    /// The disk that was given back has been in sync with the far one.
    followed: bool,
}

/// The two hosts, for the executor.
const NEAR: usize = 0;
const FAR: usize = 1;

impl Takeover {
    pub(super) fn new(
        mut rng: Rng,
        mut scenario: Scenario,
        cuts: &[(u64, Trouble)],
        subject: Arc<dyn Subject>,
        sabotage: Option<Sabotage>,
        verbose: bool,
    ) -> Self {
        let alive = matches!(sabotage, Some(Sabotage::FenceNotKept | Sabotage::SignsOfLifeIgnored));
        let fenced = match sabotage {
            Some(Sabotage::SignsOfLifeIgnored) => false,
            Some(Sabotage::FenceNotKept) => true,
            _ => rng.coin(),
        };
        let drawn = rng.pick(&[Fate::PowerFails, Fate::Ends, Fate::IsCutOff, Fate::Lives]);
        let fate = if alive { Fate::Lives } else { drawn };
        let at = rng.range(30, 400);
        scenario.troubles.clear();
        scenario.legs.truncate(1);
        let executor = Executor::new(rng.fork());
        let points = Points::new(cuts.to_vec(), verbose);
        let builder =
            Builder { executor: &executor, points: &points, scenario: &scenario, verbose };
        let (near, far, way) = builder.sites(fenced, &mut rng);
        far.legs[0].cut_link(RUN_MAX * 2);
        Self {
            near,
            far,
            executor,
            points,
            scenario,
            subject,
            sabotage,
            board: Arc::default(),
            rng,
            fate,
            fenced,
            at,
            way,
            begun: None,
            near_lives: true,
            giving: false,
            followed: false,
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        self.log(|| format!("{:?} at #{}, {:#?}", self.fate, self.at, self.scenario));
        self.boot_near(Duration::ZERO);
        let mut steps = 0;
        while !self.is_over() {
            steps += 1;
            if self.executor.step() == Step::Idle {
                self.fail(format!("nothing can happen any more: {}", self.state()));
            }
            self.look();
            for trouble in self.points.take_due() {
                self.happen(trouble);
            }
            if steps > STEPS_MAX || self.executor.now() > RUN_MAX {
                self.fail(format!("it hangs after {steps} steps: {}", self.state()));
            }
        }
        [NEAR, FAR].into_iter().for_each(|site| self.executor.end_tasks_of(site));
        let far = lock(&self.far.judge);
        let mut judge = lock(&self.near.judge);
        if let Some(what) = far.failure() {
            judge.fail(what.clone());
        }
        judge.coverage.merge(&far.coverage);
        judge.images += far.images;
        judge.coverage.merge(&self.near.legs[0].line().seen());
        let legs = [&self.near.legs[0], &self.far.legs[0]];
        let made: u64 = legs.iter().map(|leg| leg.lied() + leg.line().made()).sum();
        judge.coverage.add(MADE, made + lock(&self.far.disk.store).ignored);
        outcome(&judge, &self.points, steps, self.executor.now())
    }

    fn is_over(&self) -> bool {
        let board = lock(&self.board);
        board.closed
            || board.refused
            || lock(&self.near.judge).failure().is_some()
            || lock(&self.far.judge).failure().is_some()
    }

    fn place(&self, site: &Site, number: usize) -> Place {
        let host = self.executor.host_of(number);
        site.legs.iter().for_each(|leg| leg.set_host(host.clone()));
        Place::on(host, (&site.disk, &site.metadata), &site.legs, self.scenario.config)
    }

    fn boot_near(&mut self, downtime: Duration) {
        let place = self.place(&self.near, NEAR);
        let near = Near {
            subject: self.subject.clone(),
            judge: self.near.judge.clone(),
            board: self.board.clone(),
            habits: self.habits(),
            rng: self.rng.fork(),
            place: place.clone(),
        };
        place.host.spawn(Box::pin(near.work(downtime)));
    }

    fn boot_far(&mut self, downtime: Duration) {
        let place = self.place(&self.far, FAR);
        self.way.set_host(place.host.clone());
        let far = Far {
            subject: self.subject.clone(),
            judge: self.far.judge.clone(),
            board: self.board.clone(),
            habits: self.habits(),
            rng: self.rng.fork(),
            way: self.way.clone(),
            near: (self.near.judge.clone(), self.sabotage == Some(Sabotage::SignsOfLifeIgnored)),
            place: place.clone(),
        };
        place.host.spawn(Box::pin(far.work(downtime)));
    }

    fn boot_giving(&mut self, downtime: Duration) {
        let place = self.place(&self.near, NEAR);
        let bits_lost = self.sabotage == Some(Sabotage::HandOverBitsLost);
        let (board, judge) = (self.board.clone(), self.near.judge.clone());
        let host = place.host.clone();
        let giving = HandBack { place, board, judge, bits_lost };
        host.spawn(Box::pin(giving.work(downtime)));
    }

    fn habits(&self) -> Arc<Habits> {
        // A leg that is gone may make writes fail; what is told complete is judged all the same.
        Arc::new(Habits { failures: true, ..Habits::clone(&self.scenario.habits) })
    }

    /// Everything that has to hold at each step, and what is due.
    fn look(&mut self) {
        let (promoted, worked, handed_back, synced) = {
            let board = lock(&self.board);
            (board.promoted, board.worked, board.handed_back, board.synced)
        };
        self.look_at_leg(promoted);
        self.look_at_given();
        if self.begun.is_none() && synced && self.points.passed() >= self.at {
            self.begin();
        }
        let waited = self.begun.is_some_and(|begun| self.executor.now() - begun > PATIENCE);
        if self.near_lives && (worked || waited && !promoted) {
            let power = self.rng.coin();
            if self.sabotage == Some(Sabotage::OldSiteWorksOn) && worked {
                self.hit(MADE); // and gives its disk back nevertheless
                self.near_lives = false;
            } else {
                self.end_near(power);
            }
        }
        if worked && !self.giving {
            self.giving = true;
            // Made longer, for what it tells of what differs.
            self.near.disk.kind.bytes = bytes_needed(DATA_BYTES);
            self.boot_giving(Duration::ZERO);
        }
        if handed_back && lock(&self.board).far.is_some() && !self.far.legs[0].is_open() {
            self.far.legs[0].heal();
            if self.sabotage == Some(Sabotage::FailBackLeavesOut) {
                self.far.legs[0].line().set_wrong(Some(super::line::Wrong::CopyLeftOut));
            }
        }
        if lock(&self.board).settled {
            lock(&self.board).settled = false;
            self.look_at_end();
        }
    }

    fn look_at_leg(&mut self, promoted: bool) {
        let leg = &self.near.legs[0];
        if promoted && self.near_lives && !leg.is_open() {
            leg.heal(); // a host that was cut off meets what was taken from it
        }
        let mut store = lock(leg.store());
        let touched = store.take_touched();
        if promoted {
            if store.trespasses > 0 {
                drop(store);
                self.fail("a leg was written to by the host that it was taken from".into());
            }
            return;
        }
        lock(&self.near.judge).session(0, leg.session());
        if touched {
            self.judge_image(&self.near, leg, &store);
        }
    }

    /// The disk that was given back, as a leg.
    fn look_at_given(&mut self) {
        let leg = &self.far.legs[0];
        self.followed |= lock(&self.board).far.as_ref().is_some_and(|far| far.in_sync(0));
        let mut store = lock(leg.store());
        if store.take_touched() && self.followed {
            self.judge_image(&self.far, leg, &store);
        }
    }

    fn look_at_end(&self) {
        self.hit("takeover: the old disk is equal again");
        let (here, there) = (lock(&self.far.disk.store), lock(self.far.legs[0].store()));
        let mut judge = lock(&self.far.judge);
        judge.look_at_end(0, &there, &here);
        judge.look_at_leg(0, &there, &Over::new());
    }

    /// Whatever a cut leaves of its image, where it says that it has one.
    fn judge_image(&self, site: &Site, leg: &Leg, store: &Store) {
        let mut judge = lock(&site.judge);
        match self.subject.image(leg.kind().bytes, &|at| store.visible(at)) {
            Err(wrong) => judge.fail(format!("leg 0: {wrong}")),
            Ok(Some(over)) => judge.look_at_leg(0, store, &over),
            Ok(None) => {}
        }
    }

    /// The far host begins.
    fn begin(&mut self) {
        self.begun = Some(self.executor.now());
        lock(&self.board).begun = true;
        self.log(|| format!("the far host begins: {:?}", self.fate));
        match self.fate {
            Fate::PowerFails => self.end_near(true),
            Fate::Ends => self.end_near(false),
            Fate::IsCutOff => {
                self.hit("takeover: from a host that is cut off");
                let down = Duration::from_millis(self.rng.range(10_000, 60_000));
                // Nothing keeps a host that comes back in the moment in which a leg without
                // reservations is promoted from writing: that is told to whoever uses one.
                self.near.legs[0].cut_link(if self.fenced { down } else { RUN_MAX * 2 });
            }
            Fate::Lives => self.hit("takeover: from a host that lives"),
        }
        if self.sabotage == Some(Sabotage::FenceNotKept) {
            lock(self.near.legs[0].store()).ignores_reservation = true;
        }
        self.boot_far(Duration::ZERO);
    }

    /// The old host is gone for good.
    fn end_near(&mut self, power: bool) {
        self.hit("takeover: from a host that is gone");
        self.near_lives = false;
        self.stop_near(power);
    }

    fn stop_near(&mut self, power: bool) {
        self.executor.end_tasks_of(NEAR);
        self.near.disk.stop(power);
        self.near.metadata.stop(power);
        self.near.legs[0].cut_link(Duration::ZERO);
        lock(&self.board).near = None;
        let store = lock(&self.near.disk.store);
        let mut judge = lock(&self.near.judge);
        let now = self.executor.now();
        if self.giving {
            return; // The far host writes there as well, and its judge looks at it.
        }
        if let Err(wrong) = judge.history.restart(|at| store.visible(at), power, now) {
            judge.fail(wrong);
        }
    }

    fn stop_far(&mut self, power: bool) {
        self.executor.end_tasks_of(FAR);
        let promoted = lock(&self.board).promoted;
        self.far.metadata.stop(power);
        if promoted {
            self.far.disk.stop(power);
        }
        self.way.cut_link(Duration::ZERO);
        if self.far.legs[0].is_open() {
            self.far.legs[0].cut_link(Duration::ZERO);
        }
        lock(&self.board).far = None;
        if promoted {
            let store = lock(&self.far.disk.store);
            let mut judge = lock(&self.far.judge);
            let now = self.executor.now();
            if let Err(wrong) = judge.history.restart(|at| store.visible(at), power, now) {
                judge.fail(wrong);
            }
        }
    }

    fn happen(&mut self, trouble: Trouble) {
        self.log(|| format!("{trouble:?}"));
        let down = Duration::from_millis(self.rng.skewed(DOWN_MS_MAX));
        let power = trouble != Trouble::EndProcess;
        let begun = self.begun.is_some();
        let promoted = lock(&self.board).promoted;
        match trouble {
            Trouble::CutHere | Trouble::EndProcess if begun => self.restart_far(power, down),
            Trouble::CutHere | Trouble::EndProcess => self.restart_near(power, down),
            Trouble::CutLeg(_) if promoted => self.restart_near(true, down),
            Trouble::CutLeg(_) => self.cut_unit(down),
            Trouble::CutLink(_) if promoted && self.far.legs[0].is_open() => {
                self.far.legs[0].cut_link(down);
            }
            Trouble::CutLink(_) if !promoted => self.near.legs[0].cut_link(down),
            Trouble::CutAll => {
                if !promoted {
                    self.cut_unit(down);
                }
                self.restart_near(true, down);
                if begun {
                    self.restart_far(true, down);
                }
            }
            _ => {}
        }
    }

    /// The power of the unit fails that the far host is about to take over.
    fn cut_unit(&mut self, down: Duration) {
        self.near.legs[0].cut_power(down);
        self.way.cut_link(down);
        if self.begun.is_some() {
            self.restart_far(false, down); // It would wait for an answer for ever.
        }
    }

    fn restart_far(&mut self, power: bool, down: Duration) {
        self.hit("takeover: the far host is cut");
        self.stop_far(power);
        self.boot_far(down);
    }

    fn restart_near(&mut self, power: bool, down: Duration) {
        if self.giving {
            self.hit("takeover: the giving back is cut");
            self.stop_near(power);
            if self.far.legs[0].is_open() {
                self.far.legs[0].cut_link(down);
            }
            if !lock(&self.board).handed_back {
                self.boot_giving(down);
            }
        } else if self.near_lives {
            self.stop_near(power);
            self.boot_near(down);
        }
    }

    fn state(&self) -> String {
        let board = lock(&self.board);
        let state = |mirror: &Option<Arc<dyn Running>>| {
            mirror.as_ref().map(|mirror| mirror.state()).unwrap_or_default()
        };
        format!(
            "promoted {}, worked {}, handed back {}; near: {}; far: {}",
            board.promoted,
            board.worked,
            board.handed_back,
            state(&board.near),
            state(&board.far)
        )
    }

    fn hit(&self, what: &'static str) {
        lock(&self.near.judge).hit(what);
    }

    fn fail(&self, what: String) {
        lock(&self.near.judge).fail(what);
    }

    fn log(&self, what: impl FnOnce() -> String) {
        let now = self.executor.now();
        if lock(&self.near.judge).verbose {
            let what = what();
            lock(&self.near.judge).log(now, || what);
        }
    }
}
