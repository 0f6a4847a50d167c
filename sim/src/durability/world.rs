//! One run: both ends, the storage, what breaks, and the verdict.

use std::time::Duration;

use super::disk::Disk;
use super::env::{Env, Event, Stage, Todo};
use super::oracle::Oracle;
use super::sabotage::Sabotage;
use super::scenario::Scenario;
use super::shell::Shell;
use super::target::Target;
use super::trouble::{Breakage, Moment, Troubles};
use crate::clock::Clock;
use crate::coverage::Coverage;
use crate::net::{Fault, Link, Network, Side};
use crate::rng::Rng;
use crate::world::Report;

/// No operation ends for this long: something waits for ever. Every timeout is much shorter.
const STALL: Duration = Duration::from_secs(900);

/// Events of a run that has gone mad.
const EVENTS_MAX: u64 = 5_000_000;

/// Longest time that a process takes to start again.
const RESTART_MAX: Duration = Duration::from_secs(2);

/// How long an operation that hangs does so, in seconds.
const HANG_S: (u64, u64) = (10, 50);

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tell the whole story.
    pub verbose: bool,
    /// Runs at once; one for each core if not said.
    pub jobs: Option<std::num::NonZeroUsize>,
    /// Do something wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Runs a seed.
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::new(seed, options);
    let result = world.run();
    let failure = result.err().map(|what| {
        let target = world.target.as_ref().map_or("no target".into(), Target::state);
        format!("at {:?}: {what}\n{}\ntarget: {target}", world.env.now().0, world.shell.state())
    });
    let Env { coverage, digest, .. } = world.env;
    Report { seed, coverage, digest, elapsed: world.ended, failure }
}

/// Runs seeds, several at once. `each` gets every report, in the order in which runs end, and says
/// whether to go on.
pub fn run_all(seeds: std::ops::Range<u64>, options: Options, each: impl FnMut(Report) -> bool) {
    crate::world::run_many(seeds, options.jobs, |seed| run(seed, options), each);
}

struct World {
    env: Env,
    shell: Shell,
    target: Option<Target>,
    write_cache: bool,
    /// Sessions of all targets that there were.
    sessions: u32,
    ended: Duration,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::new(&mut rng);
        if let Some(sabotage) = options.sabotage {
            scenario = scenario.inviting(sabotage);
        }
        let net = Network::new(rng.fork());
        let disk = Disk::new(scenario.disk, options.sabotage, rng.fork());
        let env = Env {
            clock: Clock::new(),
            rng,
            net,
            disk,
            oracle: Oracle::new(),
            coverage: Coverage::default(),
            troubles: Troubles::new(scenario.troubles.clone()),
            scenario,
            sabotage: options.sabotage,
            verbose: options.verbose,
            todo: Default::default(),
            stage: Stage::Down,
            boot: 0,
            powered: false,
            calm: false,
            progress: Default::default(),
            digest: seed,
        };
        env.log(|| format!("{:#?}", env.scenario));
        let write_cache = env.scenario.write_cache;
        let shell = Shell::new(&env);
        Self { env, shell, target: None, write_cache, sessions: 0, ended: Duration::ZERO }
    }

    fn run(&mut self) -> Result<(), String> {
        self.start_target()?;
        let Env { clock, rng, scenario, .. } = &mut self.env;
        let seconds = Duration::from_secs;
        clock.after(Duration::ZERO, Event::Dial);
        clock.after(Duration::ZERO, Event::GoOn);
        clock.after(scenario.write_back_every, Event::WriteBack);
        clock.after(seconds(4), Event::Watch);
        clock.after(seconds(10), Event::Operator);
        for _ in 0..scenario.shortages {
            let begins = Duration::from_micros(rng.skewed(20_000_000));
            clock.after(begins, Event::Space(true));
            clock.after(begins + Duration::from_micros(rng.skewed(5_000_000)), Event::Space(false));
        }
        for _ in 0..scenario.mode_selects {
            clock.after(Duration::from_micros(rng.skewed(20_000_000)), Event::ModeSelect);
        }
        let mut events = 0;
        while let Some(event) = self.env.clock.next() {
            events += 1;
            self.step(event)?;
            self.settle()?;
            self.ended = self.env.now().0;
            if self.shell.app.finished {
                return Ok(());
            }
            let waited = self.env.now().since(self.env.progress);
            if waited > STALL || events > EVENTS_MAX {
                return Err(format!("nothing has ended for {waited:?}"));
            }
        }
        Err("nothing can happen any more".into())
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        let Self { env, shell, .. } = self;
        match event {
            Event::Arrive(link, Side::Initiator) => shell.arrive(env, link),
            Event::InitiatorTimer => shell.timer(env),
            Event::Watch => shell.watch(env),
            Event::LoginTimeout(link, Side::Initiator) => shell.login_timeout(env, link),
            Event::Retry(id) => shell.retry(env, id),
            Event::GoOn => shell.work(env),
            Event::Dial => {
                let link = shell.dial(env)?;
                self.connected(link);
                Ok(())
            }
            Event::Join => {
                let link = shell.join(env)?;
                self.connected(link);
                Ok(())
            }
            Event::Disk(id) => {
                env.disk.finish(id);
                Ok(())
            }
            Event::WriteBack => {
                env.disk.write_back();
                env.clock.after(env.scenario.write_back_every, Event::WriteBack);
                Ok(())
            }
            Event::Space(full) => {
                env.log(|| format!("storage full: {full}"));
                env.disk.set_full(full);
                Ok(())
            }
            Event::Break(link, breakage) if !env.calm => self.break_something(link, breakage),
            Event::Break(..) => Ok(()),
            Event::PowerOn => self.start_target(),
            Event::Operator => self.look_after_target(),
            event => self.target_event(event),
        }
    }

    fn target_event(&mut self, event: Event) -> Result<(), String> {
        let Self { env, target: Some(target), .. } = self else { return Ok(()) };
        match event {
            Event::Arrive(link, Side::Target) => target.arrive(env, link),
            Event::TargetTimer(link) => target.timer(env, link),
            Event::TargetRetains(key, conn) => target.retention_over(env, key, conn),
            Event::TargetCloses(link, deadline) => target.close_when_sent(env, link, deadline),
            Event::LoginTimeout(link, Side::Target) => target.login_timeout(env, link),
            Event::ModeSelect if !env.calm => {
                target.mode_select(env);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn connected(&mut self, link: Option<Link>) {
        if let (Some(link), Some(target)) = (link, &mut self.target) {
            target.accept(&mut self.env, link);
        }
    }

    /// Does everything that is due now.
    fn settle(&mut self) -> Result<(), String> {
        let Self { env, shell, target, .. } = self;
        loop {
            let mut any = false;
            while let Some(todo) = env.todo.pop_front() {
                any = true;
                match (todo, target.as_mut()) {
                    (Todo::Writable(link, Side::Initiator), _) => shell.writable(env, link)?,
                    (Todo::Writable(link, Side::Target), Some(target)) => {
                        target.writable(env, link)?;
                    }
                    (Todo::TargetInput(link), Some(target)) => target.process(env, link)?,
                    (_, None) => {}
                }
            }
            if let Some(target) = target.as_mut() {
                any |= target.run_ready(env)?;
            }
            for id in env.disk.take_fresh() {
                any = true;
                let delay = match env.rng.below(1000) < env.scenario.hangs && !env.calm {
                    true => {
                        env.coverage.hit("disk: hang");
                        Duration::from_secs(env.rng.range(HANG_S.0, HANG_S.1))
                    }
                    false => {
                        let max = env.scenario.disk_delay_max.as_micros() as u64;
                        Duration::from_micros(env.rng.skewed(max))
                    }
                };
                env.clock.after(delay, Event::Disk(id));
                env.moment(Moment::Storage, None);
            }
            for note in env.disk.take_notes() {
                env.coverage.hit(note);
                env.log(|| note.to_owned());
            }
            if !any {
                return Ok(());
            }
        }
    }

    fn start_target(&mut self) -> Result<(), String> {
        let env = &mut self.env;
        if env.powered {
            return Ok(());
        }
        env.boot += 1;
        env.powered = true;
        if env.boot > 1 && env.rng.percent(env.scenario.cache_changes) {
            self.write_cache = !self.write_cache;
            env.coverage.hit("WCE changed by a restart");
        }
        let (boot, write_cache) = (env.boot, self.write_cache);
        env.log(|| format!("target starts for the time {boot}, write cache {write_cache}"));
        self.target = Some(Target::start(env, write_cache, self.sessions)?);
        Ok(())
    }

    fn break_something(&mut self, link: Option<Link>, what: Breakage) -> Result<(), String> {
        match what {
            Breakage::PowerCut => self.stop_target(true),
            Breakage::Restart => self.stop_target(false),
            Breakage::Connection(fault) => {
                if let Some(link) = link {
                    self.break_link(link, fault);
                }
            }
            Breakage::AllConnections(fault) => {
                self.shell.open_links().into_iter().for_each(|link| self.break_link(link, fault));
            }
        }
        Ok(())
    }

    /// The power fails, or only the process ends.
    fn stop_target(&mut self, power: bool) {
        let Some(target) = self.target.take() else {
            return self.env.coverage.hit("cut: while it was down");
        };
        self.sessions = target.sessions();
        drop(target);
        let env = &mut self.env;
        env.powered = false;
        let (what, longest) = match power {
            true => ("power cut", env.scenario.downtime_max),
            false => ("process restarted", RESTART_MAX),
        };
        env.coverage.hit(what);
        env.coverage.hit(match env.stage {
            Stage::Down => "cut: without a session",
            Stage::LoggingIn => "cut: in login",
            Stage::Settling | Stage::Asking => "cut: in set-up",
            Stage::Replaying | Stage::Flushing => "cut: in replay",
            Stage::Up => "cut: at work",
        });
        env.log(|| what.into());
        match power {
            true => env.disk.cut(),
            false => env.disk.process_dies(),
        }
        let downtime = Duration::from_micros(env.rng.skewed(longest.as_micros() as u64));
        env.clock.after(downtime, Event::PowerOn);
        for link in self.shell.open_links() {
            let silent = power && self.env.rng.percent(25);
            let fault = if silent { Fault::BlackHole } else { Fault::Reset };
            self.break_link(link, fault);
        }
    }

    fn break_link(&mut self, link: Link, fault: Fault) {
        let env = &mut self.env;
        if !self.shell.is_open(link) {
            return;
        }
        env.coverage.hit(fault.counter());
        env.log(|| format!("{link}: {fault:?}"));
        let now = env.now();
        for (side, due) in env.net.break_link(link, fault, now) {
            env.clock.at(due, Event::Arrive(link, side));
        }
    }

    /// Somebody notices that all flushes fail, and restarts the target.
    fn look_after_target(&mut self) -> Result<(), String> {
        self.env.clock.after(Duration::from_secs(10), Event::Operator);
        if self.target.is_some() && self.env.disk.refuses_flushes() {
            self.env.coverage.hit("restarted after a failed flush");
            self.stop_target(false);
        }
        Ok(())
    }
}
