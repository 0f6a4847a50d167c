//! Network paths: samples of what a transfer achieves go in; how many connections there should be,
//! how fast they may send and what limits them come out.
//!
//! What it is not: it knows no socket, no iSCSI and no clock; it opens, closes and holds back
//! nothing. Four parts:
//! * [`tcp_info`]: the kernel's table of what TCP counts, for all who read it.
//! * One model of a path; docs/design/path.md explains it on one page. [`Model`] turns samples into
//!   an estimate and has every threshold about the path; `rate`, `count` and [`sockets`] decide
//!   from the estimate alone. An incident may change an estimator, never add a branch to a
//!   decision.
//! * [`PolicyConfig`]: who chooses the number of connections instead of it, if the user wants.
//! * [`law`]: what a path will allow before anything is sent over it.

#![forbid(unsafe_code)]

mod background;
mod close;
mod count;
mod golden;
pub mod law;
pub mod limit;
mod memory;
mod model;
mod part;
pub mod paths;
mod policy;
mod rate;
mod recent;
pub mod sockets;
mod tcp;
pub mod tcp_info;
mod why;

pub use close::close_candidate;
pub use count::CONNECTIONS;
pub use limit::Bottleneck;
pub use memory::Remembered;
pub use model::{Estimate, Model};
pub use part::{is_burst, part, sending};
pub use paths::Paths;
pub use policy::{Phase, PolicyConfig, UnknownPolicy};
pub use rate::{Pacing, State};
pub use sockets::{SAMPLE, Sockets};
pub use tcp::{
    CongestionControl, Connection, ConnectionId, SHORT_RTT_S, Sample, Tcp, UnknownCongestionControl,
};
pub use tcp_info::TcpInfo;
pub use why::Why;

use count::Count;
use memory::Resume;
use policy::Number;
use rate::Rate;
use sockets::Wishes;

/// What the controller is told. The defaults are for a path of 1 Gbit/s between hosts with Linux'
/// default buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Connections that a transfer begins with: more on a longer path, unless it is another number
    /// than the default, which somebody chose then.
    pub connections_initial: u32,
    /// The most that are asked for.
    pub connections_max: u32,
    /// How long iSCSI-APT's search measures each number, its Tm, in seconds.
    pub measuring_time_s: f64,
    /// What the kernel lets a socket have under way by itself, in bytes (`tcp_wmem`, `tcp_rmem`).
    pub window_bytes: f64,
    /// The largest socket buffer that the system lets a program set, in bytes; 0 leaves buffers to
    /// the kernel (`net.core.wmem_max` and the like).
    pub socket_buffer_bytes_max: u64,
    /// The congestion controls that the kernel has; none means that the choice is not ours.
    pub congestion_controls: Vec<CongestionControl>,
    /// A pace is looked for; otherwise TCP alone decides.
    pub paces: bool,
    /// It takes what others leave, and needs a pace for that whatever else is said.
    pub background: bool,
}

impl Default for Config {
    fn default() -> Self {
        let (connections_initial, connections_max) = CONNECTIONS;
        Self {
            connections_initial,
            connections_max,
            measuring_time_s: 5.0,
            window_bytes: 3e6,
            socket_buffer_bytes_max: 0,
            congestion_controls: Vec::new(),
            paces: true,
            background: false,
        }
    }
}

impl Config {
    /// The configuration of a transfer in the background: as few connections as carry it, because
    /// each one more is a part taken from others.
    pub fn in_background() -> Self {
        Self { connections_initial: 1, background: true, ..Self::default() }
    }
}

/// What should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Orders {
    /// Connections.
    pub connections: u32,
    /// What the search for their number is doing.
    pub phase: Phase,
    /// Why so many.
    pub why: Why,
    /// What may go.
    pub pacing: Pacing,
    /// What the rate is doing.
    pub state: State,
    /// What sockets are to have.
    pub sockets: Sockets,
}

/// The controller of one path.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    model: Model,
    rate: Rate,
    number: Number,
    resume: Resume,
    wishes: Wishes,
    sockets: Sockets,
    begun: bool,
}

impl Controller {
    /// One that has seen nothing, and finds the number itself.
    pub fn new(config: Config) -> Self {
        let count = Count::new(config.connections_initial, config.connections_max);
        Self::with(Number::Count(count), config)
    }

    /// One whose number somebody else may choose; the pace is found all the same.
    fn with(number: Number, config: Config) -> Self {
        let (model, rate) = (Model::new(config.background), Rate::new(config.background));
        let (resume, wishes, sockets) = (Resume::default(), Wishes::default(), Sockets::default());
        let config = Config { paces: config.paces || config.background, ..config };
        Self { config, model, rate, number, resume, wishes, sockets, begun: false }
    }

    /// Before the first command, from the round trip of the login and the connections that are
    /// open: how many to have at once, and what may go over them.
    pub fn first(&mut self, rtt_s: Option<f64>, open: u32) -> Orders {
        if let Some(rtt_s) = rtt_s.filter(|rtt_s| *rtt_s >= SHORT_RTT_S) {
            self.begun = true;
            self.begin(rtt_s);
        }
        if self.config.paces {
            self.rate.first(rtt_s, open);
        }
        self.orders()
    }

    /// Takes one sample and answers what should be.
    pub fn handle_sample(&mut self, sample: &Sample) -> Orders {
        if let Number::Golden(golden) = &mut self.number {
            golden.handle_sample(sample);
        }
        let now = *self.model.handle_sample(sample, self.rate.pacing.bytes_per_s);
        if now.t_s < sample.t_s || sample.t_s.is_nan() {
            return self.orders();
        }
        let begun = std::mem::replace(&mut self.begun, true);
        if let Some(rtt_s) = now.rtt_s.filter(|rtt_s| !begun && *rtt_s >= SHORT_RTT_S) {
            self.begin(rtt_s);
        }
        if let Some(carried) = self.resume.handle(&now) {
            self.rate.retreat(carried);
        }
        self.rate.belief = self.resume.belief();
        if self.config.paces {
            self.rate.handle(&now);
        }
        if let Number::Count(count) = &mut self.number {
            // Neither a path that fills nor what others leave tells of a level.
            count.handle(&now, self.rate.is_passing() || now.shared);
            self.sockets = Sockets::default();
            // What is lost while a path fills, its queue has lost.
            if !self.rate.is_passing() && !self.config.background {
                self.sockets = self.wishes.handle(sample, &now, &self.config);
            }
        }
        self.orders()
    }

    /// The peer grants no more than these connections. A search that is not ours does not hear of
    /// it.
    pub fn grant(&mut self, most: u32) {
        if let Number::Count(count) = &mut self.number {
            count.grant(most);
        }
    }

    /// It takes what others leave.
    pub fn is_background(&self) -> bool {
        self.config.background
    }

    /// The pace is what the line carries: it is neither looked for yet, nor what an application has
    /// carried that waits for its answers. Nothing of what such a one asks for at a time is to go
    /// more slowly for that.
    pub fn is_line(&self) -> bool {
        let (now, fills) = (self.estimate(), self.rate.state == State::Startup);
        self.is_background() || !fills && (now.shown || now.waits)
    }

    /// Somebody chose the number that it begins with.
    fn is_number_chosen(&self) -> bool {
        self.config.connections_initial != CONNECTIONS.0
    }

    /// The round trip of a path whose first commands go out is known.
    fn begin(&mut self, rtt_s: f64) {
        let known = self.resume.begin(rtt_s);
        let chosen = self.is_number_chosen() && !self.config.background;
        if let Number::Count(count) = &mut self.number
            && !chosen
        {
            count.first(rtt_s, self.config.window_bytes, known.as_ref());
        }
        self.rate.belief = self.resume.belief();
    }

    /// What was learnt of this path before; to be told before the first command. In the background
    /// nothing is made of it: it is haste, and so many connections, that a memory is good for. A
    /// search and a user who chooses the number begin every path as a new one.
    pub fn remember(&mut self, known: Option<Remembered>) {
        let uses = matches!(self.number, Number::Count(_)) && !self.config.background;
        self.resume = Resume::new(known.filter(|_| uses));
    }

    /// What is worth remembering of this path: nothing of a transfer in the background, whose rate
    /// and number are what others left. A number of connections that somebody chose tells
    /// nothing of it, and neither does one that is on trial.
    pub fn remembered(&self) -> Option<Remembered> {
        let (Number::Count(count), false) = (&self.number, self.config.background) else {
            return None;
        };
        let connections = match count.is_searching() {
            _ if self.is_number_chosen() => 0,
            true => self.resume.saved().map_or(0, |saved| saved.connections),
            false => count.n,
        };
        Remembered::of(self.model.estimate(), connections)
    }

    /// What became of the memory: the name of its phase, or its end; none without one.
    pub fn memory(&self) -> Option<&'static str> {
        self.resume.outcome()
    }

    /// The path as it is known.
    pub fn estimate(&self) -> &Estimate {
        self.model.estimate()
    }

    /// Searches for the number of connections again; what is known of the path stays.
    pub fn restart(&mut self) {
        self.number.restart();
    }

    /// Goes on with another policy, which has seen nothing yet. The path and its pace stay known,
    /// unless one of the two lets others go first.
    pub fn choose(&mut self, policy: PolicyConfig, paces: bool) {
        let before = std::mem::replace(self, policy.build(paces));
        if !before.config.background && !self.config.background {
            (self.model, self.rate) = (before.model, before.rate);
        }
    }

    /// The sessions were set up again: windows are small, and the path may be another one. What
    /// iSCSI-APT's search has found so far stays, as the study has it.
    pub fn forget(&mut self) {
        let config = self.config.clone();
        *self = match &self.number {
            Number::Count(_) => Self::new(config),
            other => Self::with(other.clone(), config),
        };
    }

    /// What was decided last.
    pub fn orders(&self) -> Orders {
        let (connections, phase, why) = self.number.wanted(self.estimate().full);
        let known = self.resume.saved().zip(self.resume.outcome());
        let why = match known.filter(|_| self.rate.state == State::Startup) {
            Some((saved, outcome)) => Why::Remembered(saved.bandwidth, outcome),
            None => why,
        };
        let Rate { pacing, state, .. } = self.rate;
        Orders { connections, phase, why, pacing, state, sockets: self.sockets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of 100 MB/s over 50 ms, which four connections fill, and its queue in the end.
    fn samples() -> impl Iterator<Item = Sample> {
        (1..=100_u32).map(|tenth| {
            let bytes_per_s = (4e6 * f64::from(tenth)).min(100e6);
            let queue_us = if tenth > 25 { 6e3 } else { 0.0 };
            let (rtt_us, min_rtt_us) = (Some(50e3 + queue_us), Some(50e3));
            let tcp = Tcp { rtt_us, min_rtt_us, ..Tcp::default() };
            let connections = vec![Connection { tcp, ..Connection::default() }; 4];
            let (t_s, connections_open) = (f64::from(tenth) / 10.0, 4);
            Sample { t_s, connections_open, bytes_per_s, connections, ..Sample::default() }
        })
    }

    #[test]
    fn a_number_that_somebody_else_chooses_has_the_pace_of_one_that_is_found() {
        let mut found = Controller::new(Config::default());
        let mut fixed = PolicyConfig::Fixed(4).build(true);
        let mut golden = PolicyConfig::Golden(Config::default()).build(true);
        let (mut free, mut numbers) = (PolicyConfig::Fixed(4).build(false), Vec::new());
        for controller in [&mut found, &mut fixed, &mut golden, &mut free] {
            controller.first(Some(0.05), 4);
        }
        for sample in samples() {
            let pacing = found.handle_sample(&sample).pacing;
            let orders = [fixed.handle_sample(&sample), golden.handle_sample(&sample)];
            assert!(orders.iter().all(|one| one.pacing == pacing), "{pacing:?} {orders:?}");
            assert_eq!((orders[0].connections, orders[0].why), (4, Why::Chosen));
            numbers.push(orders[1].connections);
            assert_eq!(free.handle_sample(&sample).pacing, Pacing::default());
        }
        assert!(found.orders().pacing.bytes_per_s.is_some_and(|rate| rate < 110e6));
        numbers.dedup();
        assert_eq!(numbers, [4, 8], "after its five seconds");
        golden.forget();
        assert_eq!(golden.orders().connections, 8, "the search goes on");
        assert_eq!((golden.remembered(), fixed.remembered()), (None, None));
        golden.handle_sample(&Sample { t_s: 11.0, ..samples().last().unwrap() });
        let pacing = golden.orders().pacing;
        golden.choose(PolicyConfig::Fixed(7), true);
        assert_eq!((golden.orders().connections, golden.orders().pacing), (7, pacing));
        golden.choose(PolicyConfig::Adaptive(Config::in_background()), true);
        assert_eq!(golden.orders().pacing, Pacing::default(), "nothing of it is known there");
    }
}
