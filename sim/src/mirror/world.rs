//! One run: a host with a mirror and a guest, its legs, what goes wrong, and the verdict.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::layout::LegLayout;
use block::mirror::{Config, Host, Lag};

use super::content::{Content, SECTOR_BYTES};
use super::disk::store::{Faults, Store};
use super::disk::{LocalDisk, lock};
use super::executor::{Executor, SimHost, Step};
use super::guest::Habits;
use super::intruder::Hasty;
use super::judge::Judge;
use super::leg::Leg;
use super::line::Line;
use super::operator::{Operator, Panel, Stage};
use super::points::Points;
use super::sabotage::{MADE, Sabotage};
use super::scenario::{DATA_BYTES, Scenario, Trouble};
use super::subject::{Over, Place, Subject};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// A start of the host takes no longer than this, guest and catch-up and all, or something hangs.
const BOOT_MAX: Duration = Duration::from_secs(600);

/// A way on which a step of the log takes longer than the lag allows, and that is no loss.
const FARTHER: Duration = Duration::from_millis(250);

/// Steps of a run that has gone mad.
const STEPS_MAX: u64 = 1_000_000;

/// Longest time that anything stays out of order by itself.
const DOWN_MS_MAX: u64 = 6000;

/// Operations of the guest after a start that is not the first.
const LATER_OPERATIONS: u64 = 10;

/// Starts of the host after which it does not restart by itself.
const BOOTS_MAX: u64 = 3;

/// Images of a leg's own metadata that are drawn at each look.
const TORN_DRAWS: usize = 2;

/// One run.
pub(super) struct World {
    executor: Executor,
    points: Points,
    judge: Arc<Mutex<Judge>>,
    scenario: Scenario,
    subject: Arc<dyn Subject>,
    local: LocalDisk,
    metadata: LocalDisk,
    legs: Vec<Leg>,
    sabotage: Option<Sabotage>,
    /// The same, until it has begun.
    lying: Option<Sabotage>,
    hasty: Option<Hasty>,
    panel: Arc<Mutex<Panel>>,
    rng: Rng,
    /// What was kept aside of legs, and in which session.
    remembered: BTreeMap<usize, (u64, BTreeMap<u64, Content>)>,
    boots: u64,
    booted: Duration,
    seen: Stage,
}

/// How a run went.
pub(super) struct Outcome {
    pub(super) points: u64,
    pub(super) images: u64,
    pub(super) coverage: Coverage,
    pub(super) digest: u64,
    pub(super) elapsed: Duration,
    pub(super) failure: Option<String>,
}

impl World {
    /// The world of a scenario, with `cuts` beside what it has itself.
    pub(super) fn new(
        mut rng: Rng,
        scenario: Scenario,
        cuts: &[(u64, Trouble)],
        subject: Arc<dyn Subject>,
        sabotage: Option<Sabotage>,
        verbose: bool,
    ) -> Self {
        let executor = Executor::new(rng.fork());
        let points = Points::new([&scenario.troubles[..], cuts].concat(), verbose);
        let disk = |name, kind, rng: &mut Rng| {
            LocalDisk::new(name, kind, executor.clone(), points.clone(), rng.fork())
        };
        let local = disk("local", scenario.local, &mut rng);
        let metadata = disk("metadata", scenario.metadata, &mut rng);
        let mut legs = Vec::new();
        for (number, kind) in scenario.legs.iter().enumerate() {
            let line = Line::new(layout(kind.bytes), scenario.config.mode);
            let (executor, points) = (executor.clone(), points.clone());
            let leg = Leg::new(number, *kind, executor, points, line, rng.fork());
            let faults = Faults { write: scenario.leg_errors, ..Faults::default() };
            lock(leg.store()).faults = faults;
            legs.push(leg);
        }
        let judge = Judge::new(scenario.config, DATA_BYTES, legs.len(), verbose);
        let world = Self {
            executor,
            points,
            judge: Arc::new(Mutex::new(judge)),
            scenario,
            subject,
            local,
            metadata,
            legs,
            sabotage,
            lying: sabotage,
            hasty: None,
            panel: Arc::default(),
            rng,
            remembered: BTreeMap::new(),
            boots: 0,
            booted: Duration::ZERO,
            seen: Stage::Starting,
        };
        world.fill();
        world
    }

    /// What the local disk holds before there is a mirror.
    fn fill(&self) {
        let mut judge = lock(&self.judge);
        let mut content = BTreeMap::new();
        for block in &self.scenario.filled {
            let range = block * 8..block * 8 + 8;
            let write = judge.history.begin_write(range.clone(), false, Duration::ZERO);
            judge.history.end_write(write, true, true, Duration::ZERO);
            content.extend(range.map(|at| (at, Content::Guest(write))));
        }
        lock(&self.local.store).put_back(content);
    }

    pub(super) fn run(mut self) -> Outcome {
        self.log(|| format!("{:#?}", self.scenario));
        self.boot(Duration::ZERO);
        let mut steps = 0;
        while self.seen != Stage::Closed && lock(&self.judge).failure().is_none() {
            steps += 1;
            if self.executor.step() == Step::Idle {
                self.fail(format!("nothing can happen any more: {}", self.state()));
            }
            self.look();
            for trouble in self.points.take_due() {
                self.happen(trouble);
            }
            if steps > STEPS_MAX || self.executor.now() - self.booted > BOOT_MAX {
                self.fail(format!("it hangs after {steps} steps: {}", self.state()));
            }
        }
        self.executor.end_tasks();
        let mut judge = lock(&self.judge);
        self.legs.iter().for_each(|leg| judge.coverage.merge(&leg.line().seen()));
        judge.coverage.add(MADE, self.mistakes());
        outcome(&judge, &self.points, steps, self.executor.now())
    }

    /// How often something was done wrong on purpose, beside what the guest did.
    fn mistakes(&self) -> u64 {
        let disks = lock(&self.local.store).lied + lock(&self.metadata.store).lied;
        let legs: u64 = self.legs.iter().map(|leg| leg.lied() + leg.line().made()).sum();
        disks + legs + self.hasty.as_ref().map_or(0, |hasty| hasty.made)
    }

    fn place(&self, host: Arc<SimHost>) -> Place {
        Place::on(host, (&self.local, &self.metadata), &self.legs, self.config())
    }

    /// What the mirror is told to be like; the judge has what was promised.
    fn config(&self) -> Config {
        let mut config = self.scenario.config;
        if self.sabotage == Some(Sabotage::LagUnbounded) {
            self.hit(MADE);
            config.lag = Lag { age: BOOT_MAX, bytes: u64::MAX / 4, ..config.lag };
            config.redo_bytes = Some(0); // A batch brings a long log there soon.
        }
        config
    }

    /// The host starts, after a while.
    fn boot(&mut self, downtime: Duration) {
        self.boots += 1;
        self.booted = self.executor.now();
        self.seen = Stage::Starting;
        let host = self.executor.host();
        self.legs.iter().for_each(|leg| leg.set_host(host.clone()));
        if self.sabotage == Some(Sabotage::LagUnbounded) {
            // Else the guest hardly ever writes more than gets there within the lag.
            self.legs.iter().for_each(|leg| leg.move_away(FARTHER));
        }
        let mut habits = Habits::clone(&self.scenario.habits);
        if self.boots > 1 {
            habits.operations = habits.operations.min(LATER_OPERATIONS);
        }
        let operator = Operator {
            place: self.place(host.clone()),
            subject: self.subject.clone(),
            judge: self.judge.clone(),
            panel: self.panel.clone(),
            habits: Arc::new(habits),
            sabotage: self.sabotage,
            never_differ: self.never_differ(),
            restarts: self.boots < BOOTS_MAX,
            rng: self.rng.fork(),
            seen: Vec::new(),
        };
        let host_too = host.clone();
        host.spawn(Box::pin(async move {
            host_too.sleep(downtime).await;
            let judge = operator.judge.clone();
            if let Err(wrong) = operator.work().await {
                lock(&judge).fail(wrong);
            }
        }));
    }

    /// A leg in sync never differs. One that was put back may, where nothing tells that from
    /// outside; so may one at which something else is done wrong.
    fn never_differ(&self) -> bool {
        let put_back = |(_, trouble): &(u64, Trouble)| {
            matches!(trouble, Trouble::PutBack(_) | Trouble::Replace(_))
        };
        matches!(self.sabotage, None | Some(Sabotage::VerifiedTooEarly))
            && !self.scenario.troubles.iter().any(put_back)
    }

    /// Everything that has to hold at each step.
    fn look(&mut self) {
        for (number, leg) in self.legs.iter().enumerate() {
            lock(&self.judge).session(number, leg.session());
            let mut store = lock(leg.store());
            if store.take_touched() {
                self.look_at_leg(number, leg, &store);
            }
        }
        let (stage, guest) = {
            let panel = lock(&self.panel);
            (panel.stage, panel.guest.clone())
        };
        if let Some(guest) = guest.filter(|_| stage == Stage::Busy) {
            // What is left of writes that were covered in part may keep twice as much.
            let bound = 2 * (self.scenario.config.lag.bytes + guest.busy_bytes());
            let held = guest.held_bytes();
            if held > bound {
                self.fail(format!("{held} bytes of written data are held, {bound} at most"));
            }
        }
        if self.lying.is_some() && lock(&self.panel).worked {
            self.lie();
        }
        if let Some(hasty) = &mut self.hasty {
            hasty.look(&lock(&self.metadata.store), &self.legs);
        }
        if stage == self.seen {
            return;
        }
        self.seen = stage;
        self.log(|| format!("{stage:?}: {}", self.state()));
        match stage {
            Stage::Quiet => self.legs.iter().for_each(Leg::heal),
            Stage::Settled | Stage::Closed => self.look_at_end(),
            Stage::Restart => {
                self.hit("closed and opened again");
                self.stop(false, Duration::ZERO);
            }
            Stage::Starting | Stage::Busy => {}
        }
    }

    /// The guest works: what is to be done wrong is done wrong from now on.
    fn lie(&mut self) {
        let Some(sabotage) = self.lying.take() else { return };
        self.local.set_lie(sabotage.of_local());
        self.metadata.set_lie(sabotage.of_metadata());
        self.hasty = (sabotage == Sabotage::CalledLegalEarly).then(Hasty::default);
        let tail_bytes = self.subject.tail_bytes();
        for leg in &self.legs {
            let tail = (leg.kind().bytes - tail_bytes) / SECTOR_BYTES;
            leg.set_lie(sabotage.of_legs(tail));
            leg.line().set_wrong(sabotage.of_line());
        }
    }

    fn look_at_end(&self) {
        let local = lock(&self.local.store);
        for (number, leg) in self.legs.iter().enumerate() {
            let store = lock(leg.store());
            if let Some(writes) = lock(&self.panel).replaced.get(&number) {
                if store.writes != *writes {
                    self.fail(format!("leg {number} is another unit, and was written to"));
                }
                continue;
            }
            let mut judge = lock(&self.judge);
            if judge.is_ahead(number) {
                continue; // it was put back while the mirror was ending
            }
            judge.look_at_end(number, &store, &local);
            judge.look_at_leg(number, &store, &Over::new());
            drop(judge);
            let said = self.subject.image(leg.kind().bytes, &|at| store.visible(at));
            if said != Ok(Some(Over::new())) {
                self.fail(format!("leg {number} is in sync and does not call itself consistent"));
            }
        }
    }

    /// What a cut of the leg might leave of it, where its superblock says then that it is an image.
    fn look_at_leg(&self, number: usize, leg: &Leg, store: &Store) {
        let draws = Mutex::new(Rng::new(store.writes));
        let torn = |at| {
            let possible = store.possible(at);
            let index = lock(&draws).below(possible.len() as u64) as usize;
            possible.into_iter().nth(index).unwrap_or(Content::Zero)
        };
        let oldest = |at| store.possible(at).into_iter().next().unwrap_or(Content::Zero);
        let image =
            |content: &dyn Fn(u64) -> Content| self.subject.image(leg.kind().bytes, content);
        let mut said = vec![image(&|at| store.visible(at))];
        if !store.settled(DATA_BYTES / SECTOR_BYTES..leg.kind().bytes / SECTOR_BYTES) {
            said.push(image(&oldest));
            said.extend((0..TORN_DRAWS).map(|_| image(&torn)));
        }
        let mut looked_at: Vec<Over> = Vec::new();
        let mut judge = lock(&self.judge);
        for said in said {
            match said {
                Err(wrong) => judge.fail(format!("leg {number}: {wrong}")),
                Ok(Some(over)) if !looked_at.contains(&over) => {
                    if !over.is_empty() {
                        judge.hit("images of legs with a batch in the redo log");
                    }
                    judge.look_at_leg(number, store, &over);
                    looked_at.push(over);
                }
                Ok(_) => {}
            }
        }
    }

    fn happen(&mut self, trouble: Trouble) {
        self.log(|| format!("{trouble:?}"));
        let down = Duration::from_millis(self.rng.skewed(DOWN_MS_MAX));
        match trouble {
            Trouble::CutHere => self.stop(true, down),
            Trouble::EndProcess => self.stop(false, down),
            Trouble::CutLeg(leg) => {
                self.hit("cut: power of a leg");
                self.legs[leg].cut_power(down);
            }
            Trouble::CutAll => {
                self.hit("cut: power of everything");
                self.legs.iter().for_each(|leg| leg.cut_power(down));
                self.stop(true, down);
            }
            Trouble::CutLink(leg) => {
                self.hit("cut: link");
                self.legs[leg].cut_link(down);
            }
            Trouble::Slow(leg) => {
                self.hit("leg: slow");
                self.legs[leg].slow_down(down);
            }
            Trouble::Full(leg) => {
                self.hit("leg: full");
                lock(self.legs[leg].store()).full = true;
                let leg = self.legs[leg].clone();
                self.executor.after(down, move || lock(leg.store()).full = false);
            }
            Trouble::Remember(leg) if lock(&self.panel).created => {
                let content = lock(self.legs[leg].store()).snapshot();
                self.remembered.insert(leg, (self.legs[leg].session(), content));
            }
            Trouble::Remember(_) => {}
            Trouble::PutBack(leg) => {
                let Some((session, content)) = self.remembered.remove(&leg) else { return };
                if self.legs[leg].written_in() <= session {
                    return; // nothing that the mirror knows tells it from the present one
                }
                self.hit("leg: put back to an earlier content");
                self.legs[leg].put_back(content);
                lock(&self.judge).forget(leg, self.legs[leg].session());
            }
            Trouble::Replace(leg) => self.replace(leg),
        }
    }

    fn replace(&mut self, leg: usize) {
        if !lock(&self.panel).created {
            return; // it is what the mirror is made with
        }
        self.hit("leg: another unit in its place");
        self.legs[leg].replace();
        lock(&self.judge).forget(leg, self.legs[leg].session());
        let writes = lock(self.legs[leg].store()).writes;
        lock(&self.panel).replaced.insert(leg, writes);
    }

    fn stop(&mut self, power: bool, down: Duration) {
        if self.seen != Stage::Restart {
            self.hit(if power { "cut: power here" } else { "cut: process here" });
        }
        self.hit(match self.seen {
            Stage::Restart => "restart",
            Stage::Starting => "cut: while starting",
            Stage::Busy => "cut: at work",
            Stage::Quiet => "cut: while settling",
            Stage::Settled | Stage::Closed => "cut: while closing",
        });
        self.executor.end_tasks();
        self.local.stop(power);
        self.metadata.stop(power);
        self.legs.iter().for_each(|leg| leg.cut_link(Duration::ZERO));
        {
            let mut panel = lock(&self.panel);
            (panel.mirror, panel.guest, panel.stage) = (None, None, Stage::Starting);
        }
        let store = lock(&self.local.store);
        let now = self.executor.now();
        let mut judge = lock(&self.judge);
        if let Err(wrong) = judge.history.restart(|at| store.visible(at), power, now) {
            judge.fail(wrong);
        }
        drop((store, judge));
        self.boot(down);
    }

    fn state(&self) -> String {
        let panel = lock(&self.panel);
        let mirror = panel.mirror.as_ref().map(|mirror| mirror.state());
        format!("{:?} {}", panel.stage, mirror.unwrap_or_default())
    }

    fn hit(&self, what: &'static str) {
        lock(&self.judge).hit(what);
    }

    fn fail(&self, what: String) {
        lock(&self.judge).fail(what);
    }

    fn log(&self, what: impl FnOnce() -> String) {
        let now = self.executor.now();
        if lock(&self.judge).verbose {
            let what = what();
            lock(&self.judge).log(now, || what);
        }
    }
}

/// How a run went, as its judge has it.
pub(super) fn outcome(judge: &Judge, points: &Points, steps: u64, elapsed: Duration) -> Outcome {
    let points = points.passed();
    let mix = |digest: u64, value: u64| (digest ^ value).wrapping_mul(0x100_0000_01b3);
    let values = [points, steps, elapsed.as_nanos() as u64, judge.history.moment()];
    Outcome {
        points,
        images: judge.images,
        coverage: judge.coverage.clone(),
        digest: values.into_iter().fold(0xcbf2_9ce4_8422_2325, mix),
        elapsed,
        failure: judge.failure().map(|what| format!("at {elapsed:?}: {what}")),
    }
}

fn layout(leg_bytes: u64) -> LegLayout {
    // Every leg of a scenario has room for the data and the metadata.
    LegLayout::new(leg_bytes, 0).unwrap_or_else(|error| panic!("{error}"))
}
