//! The path controller's policies: samples of what a transfer achieves go in, the wanted number of
//! connections (with buffers and congestion control) comes out.
//!
//! What it is not: it opens and closes nothing, reads no clock and draws no random number. A policy
//! is a function of the samples it was given; whoever owns the connections takes the samples and
//! does what the [`Decision`] says. One algorithm per file: [`fixed`], [`golden`], [`adaptive`];
//! [`opening`] lets a new path fill and [`pacer`] finds the line's rate, whatever the policy.
//! Source of `golden`: iSCSI-APT, "automatic control of the number of TCP connections" (2009).

pub mod adaptive;
pub mod fixed;
pub mod golden;
mod limit;
mod modelled;
pub mod opening;
pub mod pacer;
mod recent;
mod sample;
mod stretch;
mod why;
mod windows;

use std::cmp::Ordering;
use std::str::FromStr;

pub use crate::limit::Bottleneck;
pub use crate::paths::TEXT_BYTES_MAX as PATHS_TEXT_BYTES_MAX;
pub use crate::{Paths, Remembered};
pub use adaptive::{Adaptive, AdaptiveConfig};
pub use fixed::Fixed;
pub use golden::{Golden, GoldenConfig};
pub use limit::limit_of;
pub use modelled::{ModelConfig, Modelled, sample_of};
pub use opening::{Opening, Room};
pub use pacer::{Pace, Pacer, part, part_in_background, sending};
pub use sample::{CongestionControl, Connection, ConnectionId, Sample, Tcp};
pub use why::Why;

/// Connections a session starts with; the APT study's initial N, and few enough for any target.
pub const CONNECTIONS_INITIAL: u32 = 4;
/// Connections a policy may ask for unless told otherwise: what our target grants (MaxConnections).
pub const CONNECTIONS_MAX: u32 = 64;

/// From this round trip on, in seconds, a path is long: a shorter one is filled and repaired before
/// anybody notices, and a command of 256 KiB alone takes 2 ms at 1 Gbit/s.
pub const LONG_RTT_S: f64 = 0.001;

/// A path is losing if something was lost within this time, in seconds.
const LOSING_S: f64 = 1.0;

/// By what part a rate may rise at once into what is not known. What is too much must find room in
/// a queue until that has been seen and answered: two round trips and a sample. Small queues hold
/// 1.5 MB, those of fast lines 20 ms.
fn rise_share(bytes_per_s: f64, rtt_s: f64) -> f64 {
    const QUEUE_BYTES: f64 = 1.5e6;
    const QUEUE_S: f64 = 0.02;
    const SAMPLE_S: f64 = 0.1;
    let queue_s = QUEUE_S.max(QUEUE_BYTES / bytes_per_s.max(1.0));
    (queue_s / (2.0 * rtt_s + SAMPLE_S)).clamp(0.03, 0.2)
}

/// An algorithm that chooses the number of connections from samples.
pub trait Policy: std::fmt::Debug + Send {
    /// The name a user chooses it by.
    fn name(&self) -> &'static str;

    /// Takes one sample and answers what should be. Samples come in the order of their time; one
    /// that lies before its predecessor changes nothing.
    fn handle_sample(&mut self, sample: &Sample) -> Decision;

    /// Forgets what was learnt and searches again from the present number of connections.
    fn restart(&mut self);

    /// Before the first command, from a round trip in seconds and the connections that are open:
    /// how many to have at once and what may go over them; none of a policy that waits for samples
    /// and leaves the rate to the [`Pacer`].
    fn first(&mut self, _rtt_s: f64, _open: u32) -> Option<(u32, Pacing)> {
        None
    }

    /// What may go, of a policy that finds the rate itself.
    fn pacing(&self) -> Option<Pacing> {
        None
    }

    /// What limits, of a policy that has a model of it.
    fn limit(&self) -> Option<Bottleneck> {
        None
    }

    /// The sessions were set up again: what was learnt may be another path's.
    fn forget(&mut self) {}

    /// What was learnt of this path before, for a policy that can use it; to be told before
    /// [`Policy::first`].
    fn remember(&mut self, _known: Option<Remembered>) {}

    /// What is worth remembering of the path.
    fn remembered(&self) -> Option<Remembered> {
        None
    }

    /// What became of what it was told to remember, in a word; none if it makes no use of that.
    fn memory(&self) -> Option<&'static str> {
        None
    }
}

/// What may go, as a policy that finds the rate itself says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pacing {
    /// Payload of all connections together in bytes a second; none leaves it to TCP.
    pub bytes_per_s: Option<f64>,
    /// Payload under way, in bytes; none sets no limit.
    pub window_bytes: Option<f64>,
    /// The path is being filled: connections grow unevenly, and none has a part of the rate.
    pub is_startup: bool,
    /// Others are let go first.
    pub is_background: bool,
}

/// What a policy wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Wanted connections, at least one.
    pub connections: u32,
    /// What the policy is doing.
    pub phase: Phase,
    /// Why, as one sentence.
    pub why: Why,
    /// Socket buffers that would hold a connection's share of bandwidth × delay, if the present
    /// ones do not.
    pub socket_buffer_bytes: Option<u64>,
    /// Congestion control for connections made from now on, if another than the present one helps.
    pub congestion_control: Option<CongestionControl>,
    /// Which connection to close first, when there are more than wanted
    /// ([`Decision::next_to_close`]).
    pub close: Option<ConnectionId>,
    /// The line's losses are over: what it was found to carry before them is the rate to keep to,
    /// with new connections, and the old ones are closed.
    pub renewed: Option<Line>,
}

/// A line as it was filled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Payload in bytes a second.
    pub bytes_per_s: f64,
    /// Connections that filled it.
    pub connections: u32,
}

impl Decision {
    fn new(sample: &Sample, connections: u32, phase: Phase, why: Why) -> Self {
        let decision = Self {
            connections,
            phase,
            why,
            socket_buffer_bytes: None,
            congestion_control: None,
            close: None,
            renewed: None,
        };
        decision.closing(sample)
    }

    /// With the connection that is to be closed first, if there are more than wanted.
    fn closing(mut self, sample: &Sample) -> Self {
        let surplus = self.connections < sample.connections_open;
        self.close = if surplus { self.next_to_close(&sample.connections) } else { None };
        self
    }

    /// Which of these connections to close when there is one too many: [`close_candidate`], but the
    /// oldest where new ones take the place of those that lost.
    pub fn next_to_close(&self, connections: &[Connection]) -> Option<ConnectionId> {
        match self.renewed {
            Some(_) => connections.iter().max_by(|a, b| by_age(a, b)).map(|c| c.id),
            None => close_candidate(connections),
        }
    }
}

/// What a policy is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// `fixed`: nothing ever changes.
    Fixed,
    /// `golden`: doubling until the throughput falls.
    Bracket,
    /// `golden`: golden section inside the bracket.
    Section,
    /// `golden`: the bracket is small, the search has ended.
    Done,
    /// `adaptive`: the first measurement at the present number of connections.
    Measure,
    /// `adaptive`: more connections are tried.
    Grow,
    /// `adaptive`: fewer connections are tried.
    Shrink,
    /// `adaptive`: nothing is tried; the path is watched.
    Hold,
    /// `adaptive`: there is too little traffic to learn from.
    Idle,
}

impl Phase {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Bracket => "bracket",
            Self::Section => "section",
            Self::Done => "done",
            Self::Measure => "measure",
            Self::Grow => "grow",
            Self::Shrink => "shrink",
            Self::Hold => "hold",
            Self::Idle => "idle",
        }
    }
}

/// The policies by name: what a user writes, and the factory.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyConfig {
    /// This many connections, always.
    Fixed(u32),
    /// The APT study's search.
    Golden(GoldenConfig),
    /// Ours.
    Adaptive(AdaptiveConfig),
    /// One model of the path for the rate and the number (crate `path`); experimental.
    Model(ModelConfig),
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self::Adaptive(AdaptiveConfig::default())
    }
}

impl PolicyConfig {
    /// A policy that has seen nothing yet.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            Self::Fixed(connections) => Box::new(Fixed::new(connections)),
            Self::Golden(config) => Box::new(Golden::new(config)),
            Self::Adaptive(config) => Box::new(Adaptive::new(config)),
            Self::Model(config) => Box::new(Modelled::new(config)),
        }
    }

    /// The same policy with another most connections.
    pub fn connections_max(mut self, connections_max: u32) -> Self {
        let connections_max = connections_max.max(1);
        match &mut self {
            Self::Fixed(connections) => *connections = (*connections).min(connections_max),
            Self::Golden(config) => config.connections_max = connections_max,
            Self::Adaptive(config) => config.connections_max = connections_max,
            Self::Model(config) => config.connections_max = connections_max,
        }
        self
    }
}

/// A policy's name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy: adaptive, model, golden, fixed or fixed:N with N of at least 1")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyConfig {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        match text.split_once(':') {
            None if text == "adaptive" => Ok(Self::default()),
            None if text == "model" => Ok(Self::Model(ModelConfig::default())),
            None if text == "golden" => Ok(Self::Golden(GoldenConfig::default())),
            None if text == "fixed" => Ok(Self::Fixed(CONNECTIONS_INITIAL)),
            Some(("fixed", count)) => {
                let count: u32 = count.parse().map_err(|_| unknown())?;
                if count == 0 { Err(unknown()) } else { Ok(Self::Fixed(count)) }
            }
            _ => Err(unknown()),
        }
    }
}

/// The share of the median rate below which a connection counts as a laggard.
const LAGGARD_SHARE: f64 = 0.5;

/// Which connection to close when there is one too many: the slowest, if it delivers less than half
/// of the median (it scatters the read times of all); otherwise the youngest, whose window is the
/// least warm; of two equally young ones the one with the higher id.
pub fn close_candidate(connections: &[Connection]) -> Option<ConnectionId> {
    let mut rates: Vec<f64> = connections.iter().filter_map(|c| c.bytes_per_s).collect();
    if rates.len() == connections.len() {
        let median = windows::median(&mut rates)?;
        let slowest = connections
            .iter()
            .min_by(|a, b| a.bytes_per_s.unwrap_or(0.0).total_cmp(&b.bytes_per_s.unwrap_or(0.0)))?;
        if slowest.bytes_per_s.unwrap_or(0.0) < LAGGARD_SHARE * median {
            return Some(slowest.id);
        }
    }
    connections.iter().min_by(|a, b| by_age(a, b)).map(|c| c.id)
}

/// The younger first, and of two equally young ones the one with the higher id. An unknown age is
/// the youngest: nothing says that its window is warm.
fn by_age(a: &Connection, b: &Connection) -> Ordering {
    let age = |c: &Connection| c.age_s.unwrap_or(0.0);
    age(a).total_cmp(&age(b)).then_with(|| b.id.cmp(&a.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(id: u32, age_s: f64, bytes_per_s: f64) -> Connection {
        Connection {
            id: ConnectionId(id),
            age_s: Some(age_s),
            bytes_per_s: Some(bytes_per_s),
            tcp: Tcp::default(),
        }
    }

    #[test]
    fn the_laggard_is_closed_first_then_the_youngest() {
        let mut all = vec![connection(1, 9.0, 10.0), connection(2, 1.0, 11.0)];
        all.push(connection(3, 5.0, 9.0));
        assert_eq!(close_candidate(&all), Some(ConnectionId(2)));
        all[0].bytes_per_s = Some(4.0);
        assert_eq!(close_candidate(&all), Some(ConnectionId(1)));
        all[0].bytes_per_s = None; // not comparable: age decides
        assert_eq!(close_candidate(&all), Some(ConnectionId(2)));
        all[2].age_s = Some(1.0);
        assert_eq!(close_candidate(&all), Some(ConnectionId(3)));
        assert_eq!(close_candidate(&[]), None);
    }

    #[test]
    fn policies_are_chosen_by_name() {
        assert_eq!("fixed:7".parse(), Ok(PolicyConfig::Fixed(7)));
        assert_eq!("adaptive".parse(), Ok(PolicyConfig::default()));
        for wrong in ["", "fixed:", "fixed:0", "fixed:-1", "golden:3", "Adaptive"] {
            let error = wrong.parse::<PolicyConfig>().unwrap_err().to_string();
            assert!(error.contains("fixed:N"), "{error}");
        }
        for name in ["fixed", "golden", "adaptive", "model"] {
            assert_eq!(name.parse::<PolicyConfig>().unwrap().build().name(), name);
        }
    }
}
