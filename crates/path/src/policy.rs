//! Who chooses the number of connections: the count of the model, iSCSI-APT's search, or the user.
//! The pace is the model's under each of them.

use std::str::FromStr;

use super::count::{CONNECTIONS, Count};
use super::golden::Golden;
use super::why::Why;
use super::{Config, Controller};

/// The policies by name: what a user writes, and the factory.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PolicyConfig {
    /// This many connections, always.
    Fixed(u32),
    /// The APT study's search.
    Golden(Config),
    /// As many as the model of the path asks for.
    Adaptive(Config),
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self::Adaptive(Config::default())
    }
}

impl PolicyConfig {
    /// The name in reports: what a user chooses it by, but for a mode that has an option of its
    /// own.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Golden(_) => "golden",
            Self::Adaptive(config) if config.background => "background",
            Self::Adaptive(_) => "adaptive",
        }
    }

    /// A controller that has seen nothing yet; `paces` says whether it may find a pace.
    pub fn build(self, paces: bool) -> Controller {
        let number = match self {
            Self::Fixed(connections) => Number::Fixed(connections.max(1)),
            Self::Golden(config) => Number::Golden(Golden::new(config)),
            Self::Adaptive(config) => {
                let paces = config.paces && paces;
                return Controller::new(Config { paces, ..config });
            }
        };
        Controller::with(number, Config { paces, ..Config::default() })
    }

    /// Connections that it begins with, and the most that it may ask for.
    pub fn connections(&self) -> (u32, u32) {
        match self {
            Self::Fixed(connections) => (*connections, *connections),
            Self::Golden(config) | Self::Adaptive(config) => {
                (config.connections_initial, config.connections_max)
            }
        }
    }

    /// This policy, with another limit of connections.
    pub fn connections_max(mut self, connections_max: u32) -> Self {
        let most = connections_max.max(1);
        match &mut self {
            Self::Fixed(connections) => *connections = (*connections).min(most),
            Self::Golden(config) | Self::Adaptive(config) => config.connections_max = most,
        }
        self
    }
}

/// A policy's name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no policy: adaptive, golden, fixed or fixed:N with N of at least 1")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyConfig {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy(text.to_owned());
        match text.split_once(':') {
            // The model had a name of its own while it was tried.
            None if matches!(text, "adaptive" | "model") => Ok(Self::default()),
            None if text == "golden" => Ok(Self::Golden(Config::default())),
            None if text == "fixed" => Ok(Self::Fixed(CONNECTIONS.0)),
            Some(("fixed", count)) => {
                let count: u32 = count.parse().map_err(|_| unknown())?;
                if count == 0 { Err(unknown()) } else { Ok(Self::Fixed(count)) }
            }
            _ => Err(unknown()),
        }
    }
}

/// What the search for a number is doing.
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
    /// A number is being looked for.
    Measure,
    /// Nothing is tried; the path is watched.
    Hold,
    /// There is too little traffic to learn from.
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
            Self::Hold => "hold",
            Self::Idle => "idle",
        }
    }
}

/// Who chooses the number.
#[derive(Clone, Debug)]
pub(crate) enum Number {
    Count(Count),
    Golden(Golden),
    Fixed(u32),
}

impl Number {
    /// The number wanted, what the search for it is doing, and why; `full` says that the sender had
    /// enough to fill the line.
    pub(crate) fn wanted(&self, full: bool) -> (u32, Phase, Why) {
        match self {
            Self::Count(count) if !full => (count.n, Phase::Idle, count.why),
            Self::Count(count) if count.is_searching() => (count.n, Phase::Measure, count.why),
            Self::Count(count) => (count.n, Phase::Hold, count.why),
            Self::Golden(golden) => golden.wanted(),
            Self::Fixed(connections) => (*connections, Phase::Fixed, Why::Chosen),
        }
    }

    pub(crate) fn restart(&mut self) {
        match self {
            Self::Count(count) => count.restart(),
            Self::Golden(golden) => golden.restart(),
            Self::Fixed(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_chosen_by_name() {
        assert_eq!("fixed:7".parse(), Ok(PolicyConfig::Fixed(7)));
        assert_eq!("adaptive".parse(), Ok(PolicyConfig::default()));
        assert_eq!("model".parse(), Ok(PolicyConfig::default()));
        for wrong in ["", "fixed:", "fixed:0", "fixed:-1", "golden:3", "Adaptive"] {
            let error = wrong.parse::<PolicyConfig>().unwrap_err().to_string();
            assert!(error.contains("fixed:N"), "{error}");
        }
        for name in ["fixed", "golden", "adaptive"] {
            let policy: PolicyConfig = name.parse().unwrap();
            let numbers = (policy.connections().0, policy.name());
            assert_eq!((policy.build(true).orders().connections, name), numbers);
        }
    }
}
