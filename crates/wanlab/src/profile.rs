//! A line that changes with time: a file of `TIME name=value …` lines, checked as a whole before
//! anything starts.
//!
//! ```text
//! # time  what changes then
//! 0s      rate=1gbit rtt=20ms
//! 10s     loss=1e-3
//! 20s     loss=0 rate=100mbit:10mbit
//! ```

use std::time::{Duration, Instant};

use thiserror::Error;

use crate::config::{ConfigError, LabConfig};
use crate::settings::{SettingError, Settings};
use crate::topology::Topology;
use crate::units::{UnitError, parse_time};

/// Settings, each at its time since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    steps: Vec<(Duration, Settings)>,
}

impl Profile {
    /// Reads a profile for a lab of this form that starts as `lab`. Whether the kernel has a sysctl
    /// and takes its value shows only when it is set.
    ///
    /// # Errors
    /// Names the first line that is wrong: its time, a setting, times that run backwards, or
    /// settings that do not go with what is in force then.
    pub fn parse(text: &str, lab: &LabConfig, form: Topology) -> Result<Self, ProfileError> {
        let mut lab = lab.clone();
        let mut steps: Vec<(Duration, Settings)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let fail = |reason| ProfileError { line: index + 1, reason };
            let (time, settings) = content
                .split_once(char::is_whitespace)
                .ok_or_else(|| fail(ProfileReason::Nothing))?;
            let time = parse_time(time).map_err(|error| fail(error.into()))?;
            if steps.last().is_some_and(|(before, _)| time < *before) {
                return Err(fail(ProfileReason::Backwards));
            }
            let settings = Settings::parse(settings).map_err(|error| fail(error.into()))?;
            lab = settings.applied_to(&lab).map_err(|error| fail(error.into()))?;
            form.validate(&lab).map_err(|error| fail(error.into()))?;
            steps.push((time, settings));
        }
        Ok(Self { steps })
    }

    /// Starts the clock.
    pub(crate) fn play(&self) -> Player {
        let started = Instant::now();
        let mut steps = self.steps.clone();
        steps.reverse();
        Player { started, left: steps }
    }
}

/// Why a profile is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("profile line {line}: {reason}")]
pub struct ProfileError {
    line: usize,
    reason: ProfileReason,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum ProfileReason {
    #[error("sets nothing: give a time and name=value")]
    Nothing,
    #[error("its time lies before the one above")]
    Backwards,
    #[error(transparent)]
    Time(#[from] UnitError),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A profile under way.
#[derive(Debug)]
pub(crate) struct Player {
    started: Instant,
    /// Last one first.
    left: Vec<(Duration, Settings)>,
}

impl Player {
    /// When the next step is due.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.left.last().map(|(time, _)| self.started + *time)
    }

    /// The next step that is due.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Settings> {
        self.next_at().filter(|at| *at <= now)?;
        self.left.pop().map(|(_, settings)| settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Profile, ProfileError> {
        Profile::parse(text, &LabConfig::default(), Topology::Pair)
    }

    #[test]
    fn steps_come_at_their_times_and_in_order() {
        let profile =
            parse("# a day\n\n0s rate=1gbit\n 2s loss=0.1 # noon\n2s loss=0\n5s rtt=1ms\n");
        let mut player = profile.unwrap().play();
        let start = player.started;
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(player.due(start).unwrap().rate.unwrap().near_to_far, 1_000_000_000);
        assert_eq!(player.due(at(1)), None);
        assert_eq!(player.next_at(), Some(at(2)));
        assert_eq!(player.due(at(3)).unwrap().loss.unwrap().near_to_far, 0.1);
        assert_eq!(player.due(at(3)).unwrap().loss.unwrap().near_to_far, 0.0);
        assert_eq!(player.due(at(3)), None);
        assert!(player.due(at(5)).is_some());
        assert_eq!(player.next_at(), None);
    }

    #[test]
    fn a_wrong_line_is_named_before_anything_starts() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert!(message("1s").contains("line 1: sets nothing"));
        assert!(message("1s loss=0\n\n0s loss=1").contains("line 3: its time"));
        assert!(message("1 loss=0").contains("line 1: time \"1\": has no unit"));
        assert!(message("1s loss=2").contains("is above 1"));
        let star = Topology::Star { nodes: 2, networks: 1 };
        let text = "1s sysctl=far.net.ipv4.tcp_sack=0";
        assert!(Profile::parse(text, &LabConfig::default(), star).is_err());
        // Each right, but not together.
        assert!(message("1s queue=2k\n2s mtu=9000").contains("line 2: near to far: queue"));
    }
}
