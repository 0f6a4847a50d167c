//! A run in which another host takes a leg over: a mirror works here, its host dies, is cut off, or
//! lives on; the far host promotes the leg as soon as it may, and works on it as the local disk of
//! a mirror of its own; then the old disk is given back, becomes the leg of that mirror and gets
//! what differs. Any of it is cut at any operation, and done again.
//!
//! What has to hold: the image that is promoted has what was promised; from then on nothing that
//! the old host asks for changes the leg; and in the end both disks are equal.

mod cuts;
mod far;
mod near;
mod sites;
mod unread;

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
    /// When the far host began its present attempt to promote the leg.
    attempt: Option<Duration>,
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
    /// It is cut off from a leg without reservations, and comes back so long after the beginning of
    /// a promotion.
    returns: Option<Duration>,
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

/// When a host that was cut off from a leg without reservations comes back, counted from the
/// beginning of the attempt that watches the leg for seven seconds before it promotes it.
const RETURNS_MS: (u64, u64) = (5500, 8500);

/// Longest time that a command of a lost session may still be under way at a leg without
/// reservations: less than the two seconds that a promotion allows for it.
const LINGERS_UNFENCED: Duration = Duration::from_millis(1500);

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
        let unread = sabotage == Some(Sabotage::PromotionNotReadAgain);
        let fenced = match sabotage {
            Some(Sabotage::SignsOfLifeIgnored) => false,
            Some(Sabotage::FenceNotKept) => true,
            _ => rng.coin() && !unread,
        };
        let drawn = rng.pick(&[Fate::PowerFails, Fate::Ends, Fate::IsCutOff, Fate::Lives]);
        // Without reservations that is what a promotion has most to fear of.
        let cut_off = unread || !fenced && rng.coin();
        let fate = match drawn {
            _ if alive => Fate::Lives,
            _ if cut_off => Fate::IsCutOff,
            drawn => drawn,
        };
        let returns = (!fenced && (unread || rng.percent(75)))
            .then(|| Duration::from_millis(rng.range(RETURNS_MS.0, RETURNS_MS.1)));
        let at = rng.range(30, 400);
        scenario.troubles.clear();
        scenario.legs.truncate(1);
        let executor = Executor::new(rng.fork());
        let points = Points::new(cuts.to_vec(), verbose);
        let builder =
            Builder { executor: &executor, points: &points, scenario: &scenario, verbose };
        let (near, far, way) = builder.sites(fenced, &mut rng);
        far.legs[0].cut_link(RUN_MAX * 2);
        if !fenced {
            // What is longer on its way no promotion can wait for: that is told to whoever uses a
            // leg without reservations.
            near.legs[0].set_lingers(LINGERS_UNFENCED);
            way.move_away(Duration::from_millis(rng.pick(&[0, 100, 400])));
        }
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
            returns,
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
            near: self.near.judge.clone(),
            sabotage: self.sabotage,
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
        self.come_back();
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

    /// A host that was cut off gets through to the leg about when that is promoted.
    fn come_back(&mut self) {
        let attempt = lock(&self.board).attempt;
        let (Some(returns), Some(attempt)) = (self.returns, attempt) else { return };
        let cut_off = self.fate == Fate::IsCutOff && self.begun.is_some() && self.near_lives;
        if cut_off && self.executor.now() >= attempt + returns {
            self.returns = None;
            self.hit("takeover: a host that was cut off comes back");
            self.log(|| "the old host comes back".to_owned());
            self.near.legs[0].heal();
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
                self.near.legs[0].cut_link(if self.fenced { down } else { RUN_MAX * 2 });
            }
            Fate::Lives => self.hit("takeover: from a host that lives"),
        }
        if self.sabotage == Some(Sabotage::FenceNotKept) {
            lock(self.near.legs[0].store()).ignores_reservation = true;
        }
        self.boot_far(Duration::ZERO);
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
