//! Network paths: samples of what a transfer achieves go in; how many connections there should be,
//! how fast they may send and what limits them come out.
//!
//! What it is not: it knows no socket, no iSCSI and no clock; it opens, closes and holds back
//! nothing. Four parts:
//! * [`tcp_info`]: the kernel's table of what TCP counts, for all who read it.
//! * One model of a path; docs/design/path.md explains it on one page. [`model`] turns samples into
//!   an estimate and has every threshold about the path; [`rate`] and [`count`] decide from the
//!   estimate alone. An incident may change an estimator, never add a branch to a decision.
//! * [`tuner`]: the policies that a user chooses among, that model being one of them.
//! * [`law`]: what a path will allow before anything is sent over it.

#![forbid(unsafe_code)]

mod background;
pub mod count;
pub mod law;
pub mod limit;
pub mod memory;
pub mod model;
pub mod paths;
pub mod rate;
mod recent;
pub mod tcp;
pub mod tcp_info;
pub mod tuner;

pub use count::{CONNECTIONS, Count, Why};
pub use limit::Bottleneck;
pub use memory::{Phase, Remembered, Resume};
pub use model::{Estimate, Model};
pub use paths::Paths;
pub use rate::{Pacing, Rate, State};
pub use tcp::{CongestionControl, Connection, ConnectionId, Sample, Tcp, UnknownCongestionControl};
pub use tcp_info::TcpInfo;

/// What the controller is told. The defaults are for a path of 1 Gbit/s between hosts with Linux'
/// default buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Connections that a transfer begins with.
    pub connections_initial: u32,
    /// The most that are asked for.
    pub connections_max: u32,
    /// What the kernel lets a socket have under way by itself, in bytes (`tcp_wmem`, `tcp_rmem`).
    pub window_bytes: f64,
    /// A pace is looked for; otherwise TCP alone decides.
    pub paces: bool,
    /// It takes what others leave ([`rate`]), and needs a pace for that whatever else is said.
    pub background: bool,
    /// What was learnt of this path before.
    pub remembered: Option<Remembered>,
}

impl Default for Config {
    fn default() -> Self {
        let (connections_initial, connections_max) = CONNECTIONS;
        let window_bytes = 3e6;
        Self {
            connections_initial,
            connections_max,
            window_bytes,
            paces: true,
            background: false,
            remembered: None,
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
    /// Why so many.
    pub why: Why,
    /// A number is being looked for.
    pub searching: bool,
    /// What may go.
    pub pacing: Pacing,
    /// What the rate is doing.
    pub state: State,
}

/// The controller of one path.
#[derive(Clone, Debug)]
pub struct Controller {
    config: Config,
    model: Model,
    rate: Rate,
    count: Count,
    resume: Resume,
    begun: bool,
}

impl Controller {
    /// One that has seen nothing.
    pub fn new(config: Config) -> Self {
        let count = Count::new(config.connections_initial, config.connections_max);
        let resume = Resume::new(config.remembered.filter(|_| !config.background));
        let (model, rate) = match config.background {
            true => (Model::in_background(), Rate::in_background()),
            false => (Model::default(), Rate::default()),
        };
        Self { config, model, rate, count, resume, begun: false }
    }

    /// Before the first command, from the round trip of the login and the connections that are
    /// open: how many to have at once, and what may go over them.
    pub fn first(&mut self, rtt_s: Option<f64>, open: u32) -> Orders {
        if let Some(rtt_s) = rtt_s.filter(|rtt_s| *rtt_s >= model::SHORT_RTT_S) {
            self.begun = true;
            self.begin(rtt_s);
        }
        if self.paces() {
            self.rate.first(rtt_s, open);
        }
        self.orders()
    }

    /// Takes one sample and answers what should be.
    pub fn handle_sample(&mut self, sample: &Sample) -> Orders {
        let now = *self.model.handle_sample(sample, self.rate.pacing().bytes_per_s);
        if now.t_s < sample.t_s || sample.t_s.is_nan() {
            return self.orders();
        }
        if !self.begun {
            let rtt_s = now.rtt_s.filter(|rtt_s| *rtt_s >= model::SHORT_RTT_S);
            if let Some(rtt_s) = rtt_s {
                self.begin(rtt_s);
            }
            self.begun = true;
        }
        if let Some(carried) = self.resume.handle(&now) {
            self.rate.retreat(carried);
        }
        self.rate.believe(self.resume.belief());
        if self.paces() {
            self.rate.handle(&now);
        }
        // Neither a path that fills nor what others leave tells of a level.
        self.count.handle(&now, self.rate.is_passing() || now.shared);
        self.orders()
    }

    /// It takes what others leave.
    pub fn is_background(&self) -> bool {
        self.config.background
    }

    fn paces(&self) -> bool {
        self.config.paces || self.config.background
    }

    /// The round trip of a path whose first commands go out is known.
    fn begin(&mut self, rtt_s: f64) {
        let known = self.resume.begin(rtt_s);
        self.count.first(rtt_s, self.config.window_bytes, known.as_ref());
        self.rate.believe(self.resume.belief());
    }

    /// What was learnt of this path before; to be told before the first command. In the background
    /// nothing is made of it: it is haste, and so many connections, that a memory is good for.
    pub fn remember(&mut self, known: Option<Remembered>) {
        let known = known.filter(|_| !self.config.background);
        self.config.remembered = known;
        self.resume = Resume::new(known);
    }

    /// What is worth remembering of this path: nothing of a transfer in the background, whose rate
    /// and number are what others left. A number of connections that somebody chose tells
    /// nothing of it, and neither does one that is on trial.
    pub fn remembered(&self) -> Option<Remembered> {
        if self.config.background {
            return None;
        }
        let chosen = self.config.connections_initial != CONNECTIONS.0;
        let before = self.resume.saved().map_or(0, |saved| saved.connections);
        let connections = match self.count.is_searching() {
            _ if chosen => 0,
            true => before,
            false => self.count.connections(),
        };
        Remembered::of(self.model.estimate(), connections)
    }

    /// What became of the memory ([`Resume::outcome`]).
    pub fn memory(&self) -> Option<&'static str> {
        self.resume.outcome()
    }

    /// The path as it is known.
    pub fn estimate(&self) -> &Estimate {
        self.model.estimate()
    }

    /// Searches for the number of connections again; what is known of the path stays.
    pub fn restart(&mut self) {
        self.count.restart();
    }

    /// The sessions were set up again: windows are small, and the path may be another one.
    pub fn forget(&mut self) {
        *self = Self::new(self.config.clone());
    }

    /// What was decided last.
    pub fn orders(&self) -> Orders {
        Orders {
            connections: self.count.connections(),
            why: self.why(),
            searching: self.count.is_searching(),
            pacing: self.rate.pacing(),
            state: self.rate.state(),
        }
    }

    fn why(&self) -> Why {
        let begins = self.rate.state() == State::Startup || self.resume.phase() != Phase::Normal;
        match self.resume.saved().zip(self.resume.outcome()).filter(|_| begins) {
            Some((saved, outcome)) => Why::Remembered(saved.bandwidth, outcome),
            None => self.count.why(),
        }
    }
}
