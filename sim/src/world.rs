//! One run: both ends, what happens between them, and the verdict.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::coverage::Coverage;
use crate::cuts::Cuts;
use crate::damage::Damage;
use crate::env::{Env, Event, Todo};
use crate::host::Host;
use crate::model::Model;
use crate::net::{Fault, Link, Network, Side};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::scenario::{Scenario, Trouble};
use crate::server::Server;
use crate::wire_check::WireCheck;
use crate::workload::{BLOCKS, Extent, UNITS};

/// No operation ends for this long: something waits for ever. Every timeout of either core is much
/// shorter.
const STALL: Duration = Duration::from_secs(300);

/// Events of a run that has gone mad.
const EVENTS_MAX: u64 = 20_000_000;

/// How to run a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Print every PDU.
    pub verbose: bool,
    /// Runs at once; one for each core if not said.
    pub jobs: Option<std::num::NonZeroUsize>,
    /// Do something wrong on purpose.
    pub sabotage: Option<Sabotage>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// What happened in it.
    pub coverage: Coverage,
    /// Equal for equal runs.
    pub digest: u64,
    /// Virtual time it took.
    pub elapsed: Duration,
    /// What was wrong, if anything.
    pub failure: Option<String>,
}

/// Runs a seed.
pub fn run(seed: u64, options: Options) -> Report {
    let mut world = World::new(seed, options);
    let result = world.run();
    let failure = result
        .err()
        .map(|what| format!("at {:?}: {what}\n{}", world.env.now().0, world.host.state()));
    let Env { coverage, digest, .. } = world.env;
    Report { seed, coverage, digest, elapsed: world.ended, failure }
}

/// Runs seeds, several at once. `each` gets every report, in the order in which runs end, and says
/// whether to go on.
pub fn run_all(seeds: std::ops::Range<u64>, options: Options, each: impl FnMut(Report) -> bool) {
    run_many(seeds, options.jobs, |seed| run(seed, options), each);
}

/// Runs seeds of any world, several at once.
pub(crate) fn run_many(
    seeds: std::ops::Range<u64>,
    jobs: Option<std::num::NonZeroUsize>,
    run: impl Fn(u64) -> Report + Sync,
    mut each: impl FnMut(Report) -> bool,
) {
    let next = AtomicU64::new(seeds.start);
    let next_seed = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds.end);
    let jobs = jobs.or_else(|| std::thread::available_parallelism().ok());
    let threads = jobs.map_or(1, usize::from);
    // Few reports wait, so that little is run in vain after the last one that is wanted.
    let (sender, receiver) = std::sync::mpsc::sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            let (next_seed, run) = (&next_seed, &run);
            scope.spawn(move || {
                while let Some(seed) = next_seed() {
                    if sender.send(run(seed)).is_err() {
                        return; // nobody wants to know
                    }
                }
            });
        }
        drop(sender);
        for report in receiver {
            if !each(report) {
                return;
            }
        }
    });
}

/// Whether the target has limits in this run, and for how long they hold a command back at most.
/// Drawn apart from all else, so that runs without limits are what they were before there were any.
fn holding(seed: u64, sabotage: Option<Sabotage>) -> Option<Duration> {
    let mut rng = Rng::new(seed ^ 0x006c_696d_6974);
    let longest = Duration::from_millis(rng.pick(&[2, 40, 400, 5000]));
    match sabotage {
        None => rng.percent(30).then_some(longest),
        Some(Sabotage::NotHeld) => Some(longest),
        Some(_) => None,
    }
}

struct World {
    env: Env,
    host: Host,
    server: Server,
    left: Trouble,
    ended: Duration,
}

impl World {
    fn new(seed: u64, options: Options) -> Self {
        let mut rng = Rng::new(seed);
        let mut scenario = Scenario::new(&mut rng);
        scenario = match options.sabotage {
            Some(sabotage) if sabotage.is_about_recovery() => scenario.recovering(),
            Some(_) => scenario.undisturbed(),
            None => scenario,
        };
        scenario.holding = holding(seed, options.sabotage);
        let net = Network::new(rng.fork());
        let left = scenario.trouble;
        let damage = Damage::new(scenario.damage, rng.fork());
        let cuts = Cuts::new(scenario.cuts.clone());
        let env = Env {
            clock: Clock::new(),
            rng,
            net,
            wire: WireCheck::default(),
            model: Model::new(),
            coverage: Coverage::default(),
            damage,
            cuts,
            scenario,
            sabotage: options.sabotage,
            verbose: options.verbose,
            todo: Default::default(),
            progress: Default::default(),
            digest: seed,
        };
        env.log(|| format!("{:#?}", env.scenario));
        Self { env, host: Host::new(), server: Server::new(), left, ended: Duration::ZERO }
    }

    fn run(&mut self) -> Result<(), String> {
        let env = &mut self.env;
        env.clock.after(Duration::ZERO, Event::Dial);
        env.clock.after(self.left.fault_every, Event::Fault);
        env.clock.after(self.left.membership_every, Event::Membership);
        env.clock.after(self.left.management_every, Event::Management);
        if self.left.restarts > 0 {
            env.clock.after(self.left.fault_every, Event::Restart);
        }
        let mut events = 0;
        while let Some(event) = self.env.clock.next() {
            events += 1;
            self.step(event)?;
            self.settle()?;
            self.ended = self.env.now().0;
            if self.host.finished && self.server.sessions.is_empty() {
                break;
            }
            let waited = self.env.now().since(self.env.progress);
            if waited > STALL || events > EVENTS_MAX {
                return Err(format!("nothing has ended for {waited:?}: {}", self.server.state()));
            }
        }
        self.check_end()
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        let Self { env, host, server, .. } = self;
        match event {
            Event::Arrive(link, Side::Initiator) => host.arrive(env, link),
            Event::Arrive(link, Side::Target) => server.arrive(env, link),
            Event::InitiatorTimer => host.timer(env),
            Event::TargetTimer(link) => server.timer(env, link),
            Event::TargetWakes(link) => server.writable(env, link),
            Event::TargetRetains(key, conn) => server.retention_over(env, key, conn),
            Event::TargetAdmits(key, conn, itt) => server.admit(env, key, conn, itt),
            Event::Storage(id) => server.storage_done(env, id),
            Event::LoginTimeout(link, Side::Initiator) => host.login_timeout(env, link),
            Event::LoginTimeout(link, Side::Target) => server.login_timeout(env, link),
            Event::TargetCloses(link, deadline) => server.close_when_sent(env, link, deadline),
            Event::Dial => {
                let link = host.dial(env)?;
                self.connected(link);
                Ok(())
            }
            Event::Reinstate => {
                let link = host.reinstate(env)?;
                self.connected(link);
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::Cut(link, fault) => {
                self.break_link(link, fault);
                Ok(())
            }
            Event::Membership => self.membership(),
            Event::Management => self.management(),
            Event::Restart => {
                self.left.restarts -= 1;
                host.restart(env)?;
                if self.left.restarts > 0 {
                    let again = self.left.fault_every;
                    self.again(again, Event::Restart);
                }
                Ok(())
            }
        }
    }

    fn connected(&mut self, link: Option<Link>) {
        if let Some(link) = link {
            self.server.accept(&mut self.env, link);
        }
    }

    /// Does everything that is due now.
    fn settle(&mut self) -> Result<(), String> {
        let Self { env, host, server, .. } = self;
        while let Some(todo) = env.todo.pop_front() {
            match todo {
                Todo::Writable(link, Side::Initiator) => host.writable(env, link)?,
                Todo::Writable(link, Side::Target) => server.writable(env, link)?,
                Todo::TargetInput(link) => server.process(env, link)?,
            }
        }
        Ok(())
    }

    fn again(&mut self, about: Duration, event: Event) {
        let micros = about.as_micros() as u64;
        let delay = Duration::from_micros(self.env.rng.range(micros / 4, micros * 2));
        self.env.clock.after(delay, event);
    }

    fn fault(&mut self) -> Result<(), String> {
        if self.left.faults == 0 || self.host.finished {
            return Ok(());
        }
        self.again(self.left.fault_every, Event::Fault);
        let Some(link) = self.host.any_link(&mut self.env) else { return Ok(()) };
        self.left.faults -= 1;
        let fault = self.env.rng.pick(&Fault::ALL);
        self.break_link(link, fault);
        Ok(())
    }

    fn break_link(&mut self, link: Link, fault: Fault) {
        if !self.host.is_open(link) {
            return;
        }
        self.env.coverage.hit(fault.counter());
        self.env.coverage.hit(self.env.wire.activity(link));
        self.env.log(|| format!("{link}: {fault:?}"));
        let now = self.env.now();
        for (side, due) in self.env.net.break_link(link, fault, now) {
            self.env.clock.at(due, Event::Arrive(link, side));
        }
    }

    fn membership(&mut self) -> Result<(), String> {
        if self.left.memberships == 0 || self.host.finished {
            return Ok(());
        }
        self.left.memberships -= 1;
        self.again(self.left.membership_every, Event::Membership);
        let link = self.host.change_membership(&mut self.env)?;
        self.connected(link);
        Ok(())
    }

    fn management(&mut self) -> Result<(), String> {
        if self.left.managements == 0 || self.host.finished {
            return Ok(());
        }
        self.left.managements -= 1;
        self.again(self.left.management_every, Event::Management);
        self.host.manage(&mut self.env)
    }

    /// Nothing is left of anything, and the medium holds what it should.
    fn check_end(&mut self) -> Result<(), String> {
        if !self.host.finished {
            return Err(format!("nothing can happen any more: {}", self.server.state()));
        }
        if !self.server.sessions.is_empty() || !self.server.registry.is_empty() {
            return Err(format!("sessions are left at the target: {}", self.server.state()));
        }
        let all = Extent { first: 0, count: BLOCKS };
        for unit in 0..UNITS {
            let reading = self.env.model.begin_read();
            let content = self.server.storage.content(unit).to_vec();
            let verdict = self.env.model.end_read(reading, unit, all, &content);
            verdict.map_err(|what| format!("at the end: {what}"))?;
        }
        Ok(())
    }
}
