//! What people set, by name: `rate=1gbit:100mbit`, `loss=1e-3`, … One grammar for the command
//! line, a running lab's control socket and profile files.
//!
//! A value for both directions is given once; two values with a colon are near to far and far to
//! near (in a star: node to switch and switch to node).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::burst::{BurstError, GilbertElliott};
use crate::classes::{Classes, ClassesError};
use crate::config::{
    ConfigError, DirectionConfig, LabConfig, MTU_MAX, MTU_MIN, Queue, QueueError, SEED_BACK,
    TcpBuffer, TcpBufferError,
};
use crate::jitter::{Jitter, JitterError};
use crate::node::{self, OfNodes};
use crate::policer::{Policer, PolicerError};
use crate::topology::NODES_MAX;
use crate::units::{UnitError, parse_probability, parse_rate, parse_time};

/// A value for each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EachWay<T> {
    /// What the near end sends.
    pub near_to_far: T,
    /// What the far end sends.
    pub far_to_near: T,
}

impl<T: Copy> EachWay<T> {
    fn parse<E>(input: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<Self, E> {
        let (there, back) = input.split_once(':').unwrap_or((input, input));
        Ok(Self { near_to_far: parse(there)?, far_to_near: parse(back)? })
    }
}

/// Which namespace a sysctl belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// All of them.
    All,
    /// The near end's.
    Near,
    /// The far end's.
    Far,
}

/// A sysctl to be set inside the lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sysctl {
    /// In which namespaces.
    pub side: Side,
    /// Its dotted name, below `net`.
    pub name: String,
    /// What is written.
    pub value: String,
}

impl Sysctl {
    /// `[near.|far.]net.ipv4.NAME=VALUE`.
    ///
    /// # Errors
    /// When there is no value, or the name is not one of a network namespace.
    pub fn parse(input: &str) -> Result<Self, SettingError> {
        let fail = || SettingError::Sysctl(input.to_owned());
        let (name, value) = input.split_once('=').ok_or_else(fail)?;
        let (side, name) = match (name.strip_prefix("near."), name.strip_prefix("far.")) {
            (Some(name), _) => (Side::Near, name),
            (_, Some(name)) => (Side::Far, name),
            _ => (Side::All, name),
        };
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
        let good = name.starts_with("net.") && name.chars().all(word) && !name.contains("..");
        if !good || value.is_empty() {
            return Err(fail());
        }
        Ok(Self { side, name: name.to_owned(), value: value.to_owned() })
    }

    /// Below `/proc/sys`. A slash in the name stands for a dot in a device's, as for sysctl(8).
    pub(crate) fn path(&self) -> String {
        let swap = |c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        };
        self.name.chars().map(swap).collect()
    }
}

/// Some settings of a line; what is `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Bits per second on the wire.
    pub rate: Option<EachWay<u64>>,
    /// One way.
    pub delay: Option<EachWay<Duration>>,
    /// How the delay varies.
    pub jitter: Option<EachWay<Option<Jitter>>>,
    /// Probability of each segment.
    pub loss: Option<EachWay<f64>>,
    /// Loss in bursts.
    pub burst: Option<EachWay<Option<GilbertElliott>>>,
    /// A rate and a burst that may not be exceeded.
    pub police: Option<EachWay<Option<Policer>>>,
    /// DropTail.
    pub queue: Option<EachWay<Queue>>,
    /// Where marking and dropping by RFC 3168 begins.
    pub ecn: Option<EachWay<Option<Queue>>>,
    /// Who waits together.
    pub classes: Option<EachWay<Option<Classes>>>,
    /// Of both directions, each of which makes its own stream of it.
    pub seed: Option<u64>,
    /// Bytes of the largest IP packet.
    pub mtu: Option<u32>,
    /// `tcp_wmem`, for connections made from then on.
    pub wmem: Option<TcpBuffer>,
    /// `tcp_rmem`, for connections made from then on.
    pub rmem: Option<TcpBuffer>,
    /// Other sysctls of the namespaces.
    pub sysctls: Vec<Sysctl>,
    /// Lines of single nodes of a star.
    pub nodes: OfNodes,
}

/// The names that [`Settings::one`] knows.
const NAMES: &str = "rate, rtt, delay, jitter, loss, burst, police, queue, ecn, classes, node, seed, \
                     mtu, wmem, rmem, sysctl";

impl Settings {
    /// One setting by its name.
    ///
    /// # Errors
    /// When there is no such name, or the value is none for it.
    pub fn one(name: &str, value: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let new = &mut settings;
        match name {
            "rate" => new.rate = Some(EachWay::parse(value, parse_rate)?),
            "rtt" => {
                let rtt = parse_time(value)?;
                new.delay = Some(EachWay { near_to_far: rtt / 2, far_to_near: rtt - rtt / 2 });
            }
            "delay" => new.delay = Some(EachWay::parse(value, parse_time)?),
            "jitter" => new.jitter = Some(EachWay::parse(value, Jitter::parse)?),
            "loss" => new.loss = Some(EachWay::parse(value, parse_probability)?),
            "burst" => new.burst = Some(EachWay::parse(value, unless("0", GilbertElliott::parse))?),
            "police" => new.police = Some(EachWay::parse(value, unless("0", Policer::parse))?),
            "queue" => new.queue = Some(EachWay::parse(value, Queue::parse)?),
            "ecn" => new.ecn = Some(EachWay::parse(value, unless("0", Queue::parse))?),
            "classes" => new.classes = Some(EachWay::parse(value, unless("fifo", Classes::parse))?),
            "node" => new.nodes = node::parse(value)?,
            "seed" => {
                let seed = value.parse().map_err(|_| SettingError::Seed(value.to_owned()))?;
                new.seed = Some(seed);
            }
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (MTU_MIN..=MTU_MAX).contains(mtu));
                new.mtu = Some(mtu.ok_or_else(|| SettingError::Mtu(value.to_owned()))?);
            }
            "wmem" => new.wmem = Some(parse_buffer(value, TcpBuffer::WMEM_DEFAULT)?),
            "rmem" => new.rmem = Some(parse_buffer(value, TcpBuffer::RMEM_DEFAULT)?),
            "sysctl" => new.sysctls.push(Sysctl::parse(value)?),
            _ => return Err(SettingError::Name(name.to_owned())),
        }
        Ok(settings)
    }

    /// Several, as `name=value` with blanks between; spaces inside a value are commas.
    ///
    /// # Errors
    /// As [`Settings::one`], and when a word has no value or a setting is given twice.
    pub fn parse(text: &str) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let mut seen = Vec::new();
        for word in text.split_whitespace() {
            let (name, value) =
                word.split_once('=').ok_or_else(|| SettingError::Word(word.to_owned()))?;
            // An RTT is a delay.
            let what = if name == "rtt" { "delay" } else { name };
            if !matches!(name, "sysctl" | "node") && seen.contains(&what) {
                return Err(SettingError::Twice(name.to_owned()));
            }
            seen.push(what);
            settings.merge(Self::one(name, value)?);
        }
        Ok(settings)
    }

    /// Takes over what `other` sets.
    pub fn merge(&mut self, other: Self) {
        fn take<T>(to: &mut Option<T>, from: Option<T>) {
            if from.is_some() {
                *to = from;
            }
        }
        take(&mut self.rate, other.rate);
        take(&mut self.delay, other.delay);
        take(&mut self.jitter, other.jitter);
        take(&mut self.loss, other.loss);
        take(&mut self.burst, other.burst);
        take(&mut self.police, other.police);
        take(&mut self.queue, other.queue);
        take(&mut self.ecn, other.ecn);
        take(&mut self.classes, other.classes);
        take(&mut self.seed, other.seed);
        take(&mut self.mtu, other.mtu);
        take(&mut self.wmem, other.wmem);
        take(&mut self.rmem, other.rmem);
        self.sysctls.extend(other.sysctls);
        node::merge(&mut self.nodes, other.nodes);
    }

    /// The lab with these settings in force.
    ///
    /// # Errors
    /// When the settings do not go together.
    pub fn applied_to(&self, lab: &LabConfig) -> Result<LabConfig, ConfigError> {
        let mut lab = lab.clone();
        for there in [true, false] {
            let line = if there { &mut lab.near_to_far } else { &mut lab.far_to_near };
            self.apply_to_line(line, there);
            if let Some(seed) = self.seed {
                line.seed = if there { seed } else { seed ^ SEED_BACK };
            }
        }
        lab.mtu = self.mtu.unwrap_or(lab.mtu);
        lab.tcp_wmem = self.wmem.unwrap_or(lab.tcp_wmem);
        lab.tcp_rmem = self.rmem.unwrap_or(lab.tcp_rmem);
        for sysctl in &self.sysctls {
            lab.sysctls.retain(|old| (old.side, &old.name) != (sysctl.side, &sysctl.name));
            lab.sysctls.push(sysctl.clone());
        }
        node::apply(&mut lab, &self.nodes);
        lab.validate()?;
        Ok(lab)
    }

    /// What is set of a line, for the one there or the one back.
    pub(crate) fn apply_to_line(&self, line: &mut DirectionConfig, there: bool) {
        set(&mut line.rate_bits_per_s, self.rate, there);
        set(&mut line.delay, self.delay, there);
        set(&mut line.jitter, self.jitter, there);
        set(&mut line.loss, self.loss, there);
        set(&mut line.burst, self.burst, there);
        set(&mut line.police, self.police, there);
        set(&mut line.queue, self.queue, there);
        set(&mut line.ecn, self.ecn, there);
        set(&mut line.classes, self.classes, there);
    }
}

fn set<T: Copy>(to: &mut T, from: Option<EachWay<T>>, there: bool) {
    if let Some(EachWay { near_to_far, far_to_near }) = from {
        *to = if there { near_to_far } else { far_to_near };
    }
}

/// What parses one of a kind, or `none` for none of it.
fn unless<T, E>(
    none: &'static str,
    parse: fn(&str) -> Result<T, E>,
) -> impl Fn(&str) -> Result<Option<T>, E> {
    move |input| if input == none { Ok(None) } else { parse(input).map(Some) }
}

/// In a list of settings, commas stand for the spaces between the three numbers.
fn parse_buffer(input: &str, base: TcpBuffer) -> Result<TcpBuffer, TcpBufferError> {
    TcpBuffer::parse(&input.replace(',', " "), base)
}

/// A setting that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// A number or its unit.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// The jitter.
    #[error(transparent)]
    Jitter(#[from] JitterError),
    /// The bursts.
    #[error(transparent)]
    Burst(#[from] BurstError),
    /// The policer.
    #[error(transparent)]
    Policer(#[from] PolicerError),
    /// The queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The classes.
    #[error(transparent)]
    Classes(#[from] ClassesError),
    /// A node of a star.
    #[error(
        "node {input:?}: give NODE.NAME=VALUE or FIRST-LAST.NAME=VALUE with nodes from 1 to {NODES_MAX}, \
         as in 3.rate=100mbit or 5-8.queue=64k (allowed: {allowed})"
    )]
    Node {
        /// What was given.
        input: String,
        /// What a node can have of its own.
        allowed: String,
    },
    /// A TCP buffer.
    #[error(transparent)]
    TcpBuffer(#[from] TcpBufferError),
    /// The seed.
    #[error("seed {0:?}: not a whole number from 0")]
    Seed(String),
    /// The MTU.
    #[error("mtu {0:?}: not a number from {MTU_MIN} to {MTU_MAX}")]
    Mtu(String),
    /// A sysctl.
    #[error("sysctl {0:?}: give [near.|far.]net.NAME=VALUE, as in far.net.ipv4.tcp_sack=0")]
    Sysctl(String),
    /// No such setting.
    #[error("unknown setting {0:?} (allowed: {NAMES})")]
    Name(String),
    /// A word without `=`.
    #[error("{0:?} is no setting: give name=value")]
    Word(String),
    /// The same again.
    #[error("{0} is set twice")]
    Twice(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab(text: &str) -> LabConfig {
        Settings::parse(text).unwrap().applied_to(&LabConfig::default()).unwrap()
    }

    #[test]
    fn one_value_is_for_both_directions_and_two_are_for_each() {
        let lab = lab("rate=1gbit:100mbit rtt=21ms loss=1e-3 queue=300:64k jitter=0:2ms,normal \
                       burst=0.01,0.5:0 police=0:20mbit,64k mtu=9000 seed=7 wmem=4k,16k,64M");
        let (there, back) = (&lab.near_to_far, &lab.far_to_near);
        assert_eq!((there.rate_bits_per_s, back.rate_bits_per_s), (1_000_000_000, 100_000_000));
        assert_eq!((there.loss, back.loss), (1e-3, 1e-3));
        assert_eq!((there.queue, back.queue), (Queue::Packets(300), Queue::Bytes(65_536)));
        assert_eq!(lab.rtt(), Duration::from_millis(21));
        assert!(there.jitter.is_none() && back.jitter.is_some());
        assert!(there.burst.is_some() && back.burst.is_none());
        let police = Policer { rate_bits_per_s: 20_000_000, burst_bytes: 65_536 };
        assert_eq!((there.police, back.police), (None, Some(police)));
        assert_eq!((lab.mtu, lab.tcp_wmem.max), (9000, 64 << 20));
        assert_eq!((there.seed, back.seed), (7, 7 ^ SEED_BACK));
    }

    #[test]
    fn what_is_not_set_stays() {
        let before = lab("rate=1gbit:2gbit delay=3ms:5ms loss=0.1");
        let after = Settings::parse("loss=0").unwrap().applied_to(&before).unwrap();
        let mut expected = before;
        (expected.near_to_far.loss, expected.far_to_near.loss) = (0.0, 0.0);
        assert_eq!(after, expected);
    }

    #[test]
    fn sysctls() {
        let lab = lab("sysctl=far.net.ipv4.tcp_sack=0 sysctl=net.ipv4.tcp_ecn=1 \
                       sysctl=far.net.ipv4.tcp_sack=1");
        assert_eq!(lab.sysctls.len(), 2);
        assert_eq!(lab.sysctls[1].side, Side::Far);
        assert_eq!(lab.sysctls[1].path(), "net/ipv4/tcp_sack");
        let device = Sysctl::parse("net.ipv4.conf.eth0/1.forwarding=1").unwrap();
        assert_eq!(device.path(), "net/ipv4/conf/eth0.1/forwarding");
        for bad in ["net.ipv4.tcp_sack", "kernel.panic=1", "net...etc=1", "net./../x=1", "net.a="] {
            assert!(Sysctl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn wrong_settings_are_named() {
        let message = |text: &str| Settings::parse(text).unwrap_err().to_string();
        assert!(message("speed=1").contains("unknown setting \"speed\""));
        assert!(message("rate").contains("name=value"));
        assert!(message("loss=0 loss=1").contains("twice"));
        assert!(message("rtt=1ms delay=2ms").contains("twice"));
        assert!(message("rate=1gbit:-1gbit").contains("is negative"));
        assert!(message("queue=0").contains("1 packet or more"));
        assert!(message("ecn=-1k").contains("queue \"-1k\""));
        assert!(message("classes=strict").contains("must be rest"));
        assert!(message("node=3").contains("3.rate=100mbit"));
        assert!(message("mtu=500").contains("500"));
        let small = Settings::parse("queue=2k mtu=9000").unwrap();
        let error = small.applied_to(&LabConfig::default()).unwrap_err().to_string();
        assert!(error.contains("queue"), "{error}");
        let small = Settings::parse("police=1mbit,9000b mtu=9000").unwrap();
        let error = small.applied_to(&LabConfig::default()).unwrap_err().to_string();
        assert!(error.contains("policer's burst"), "{error}");
    }

    #[test]
    fn settings_survive_the_control_socket() {
        let text = "rate=1gbit:1mbit jitter=1ms:0 burst=0.1,0.2 police=1mbit:0 queue=2k:9 ecn=30k:0 \
             classes=weighted,ef=4,rest=1:fifo node=2.rate=1mbit sysctl=net.x=1";
        let settings = Settings::parse(text).unwrap();
        let json = serde_json::to_string(&settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
    }
}
