//! Delay that varies.
//!
//! Independent delays per packet and packets that keep their order cannot both be had: on a busy
//! line everybody would wait for the slowest, and the delay would stand at its upper end. So a
//! value holds for a time before the next is drawn, as on a real path, where a queue elsewhere
//! fills and empties; a packet sent later than that sees a delay of its own.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::random::SplitMix64;
use crate::units::{UnitError, parse_time};

/// Values of the normal distribution beyond so many deviations are cut there.
const DEVIATIONS_MAX: f64 = 4.0;

/// How a delay varies around what is set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// The scale of the distribution.
    #[serde(rename = "jitter_ns", with = "nanos")]
    pub amount: Duration,
    /// Its form.
    pub distribution: Distribution,
    /// How long a value holds; zero draws for every packet.
    #[serde(rename = "hold_ns", with = "nanos")]
    pub hold: Duration,
    /// Whether a packet may overtake those before it.
    pub reorder: bool,
}

/// The form of the jitter. The whole delay never goes below zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Anything from −amount to +amount alike.
    #[default]
    Uniform,
    /// The amount is the standard deviation.
    Normal,
    /// Never earlier; the amount is the mean of what is added, as by a random queue.
    Exponential,
}

impl Jitter {
    /// `TIME[,uniform|normal|exponential][,hold=TIME][,reorder]`; `0` is none. Without `hold` a
    /// value holds for four times the amount, or for one packet where packets may overtake.
    ///
    /// # Errors
    /// When the time or one of the words is not understood.
    pub fn parse(input: &str) -> Result<Option<Self>, JitterError> {
        let mut words = input.split(',');
        let amount = parse_time(words.next().unwrap_or_default())?;
        let mut jitter = Self {
            amount,
            distribution: Distribution::default(),
            hold: Duration::ZERO,
            reorder: false,
        };
        let mut hold = None;
        for word in words {
            match word.trim() {
                "uniform" => jitter.distribution = Distribution::Uniform,
                "normal" => jitter.distribution = Distribution::Normal,
                "exponential" => jitter.distribution = Distribution::Exponential,
                "reorder" => jitter.reorder = true,
                other => match other.strip_prefix("hold=") {
                    Some(time) => hold = Some(parse_time(time)?),
                    None => return Err(JitterError::Word(input.to_owned(), other.to_owned())),
                },
            }
        }
        let usual = if jitter.reorder { Duration::ZERO } else { amount.saturating_mul(4) };
        jitter.hold = hold.unwrap_or(usual);
        Ok((!amount.is_zero()).then_some(jitter))
    }
}

/// A jitter setting that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JitterError {
    /// One of the times.
    #[error(transparent)]
    Time(#[from] UnitError),
    /// No such word.
    #[error(
        "jitter {0:?}: unknown {1:?} (allowed: uniform, normal, exponential, hold=TIME, reorder)"
    )]
    Word(String, String),
}

mod nanos {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// Jitter at work.
#[derive(Debug)]
pub(crate) struct Wander {
    jitter: Jitter,
    random: SplitMix64,
    value_ns: f64,
    /// When the next value is drawn.
    until_ns: u64,
}

impl Wander {
    pub(crate) fn new(jitter: Jitter, seed: u64) -> Self {
        Self { jitter, random: SplitMix64::new(seed), value_ns: 0.0, until_ns: 0 }
    }

    /// Another form; the stream of numbers goes on.
    pub(crate) fn set(&mut self, jitter: Jitter) {
        if self.jitter != jitter {
            self.jitter = jitter;
            self.until_ns = 0;
        }
    }

    pub(crate) fn reorders(&self) -> bool {
        self.jitter.reorder
    }

    /// The delay of a packet sent now, where `delay_ns` is the set one.
    pub(crate) fn delay_ns(&mut self, now_ns: u64, delay_ns: u64) -> u64 {
        if now_ns >= self.until_ns {
            self.value_ns = self.draw();
            let hold_ns = u64::try_from(self.jitter.hold.as_nanos()).unwrap_or(u64::MAX);
            self.until_ns = now_ns.saturating_add(hold_ns);
        }
        // A cast from floating point saturates at zero.
        (delay_ns as f64 + self.value_ns).round() as u64
    }

    fn draw(&mut self) -> f64 {
        let amount_ns = self.jitter.amount.as_nanos() as f64;
        amount_ns
            * match self.jitter.distribution {
                Distribution::Uniform => 2.0 * self.random.next_unit() - 1.0,
                Distribution::Normal => {
                    self.random.next_normal().clamp(-DEVIATIONS_MAX, DEVIATIONS_MAX)
                }
                Distribution::Exponential => -self.random.next_unit_above_zero().ln(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn delays(spec: &str, gap_ns: u64, n: u64) -> Vec<f64> {
        let jitter = Jitter::parse(spec).unwrap().unwrap();
        let mut wander = Wander::new(jitter, 9);
        (0..n).map(|i| wander.delay_ns(i * gap_ns, 20 * MS) as f64 / MS as f64).collect()
    }

    fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn distributions_have_their_mean_deviation_and_bounds() {
        let near = |a: f64, b: f64| (a - b).abs() < 0.05;
        for (spec, mean, deviation, low, high) in [
            ("5ms", 20.0, 5.0 / 3_f64.sqrt(), 15.0, 25.0),
            ("2ms,normal", 20.0, 2.0, 12.0, 28.0),
            ("3ms,exponential", 23.0, 3.0, 20.0, f64::MAX),
        ] {
            let delays = delays(spec, 100 * MS, 100_000);
            let got = mean_and_deviation(&delays);
            assert!(near(got.0, mean) && near(got.1, deviation), "{spec}: {got:?}");
            assert!(delays.iter().all(|delay| (low..=high).contains(delay)), "{spec}");
        }
    }

    #[test]
    fn a_value_holds_for_its_time() {
        let delays = delays("5ms,hold=10ms", MS, 1000);
        for hold in delays.chunks(10) {
            assert!(hold.iter().all(|delay| *delay == hold[0]), "{hold:?}");
        }
        assert_ne!(delays[0], delays[10]);
        let usual = Jitter::parse("5ms").unwrap().unwrap();
        assert_eq!((usual.hold, usual.reorder), (Duration::from_millis(20), false));
        let each = Jitter::parse("5ms,reorder").unwrap().unwrap();
        assert_eq!((each.hold, each.reorder), (Duration::ZERO, true));
    }

    #[test]
    fn a_delay_never_goes_below_zero() {
        let jitter = Jitter::parse("50ms,hold=0").unwrap().unwrap();
        let mut wander = Wander::new(jitter, 1);
        let delays: Vec<u64> = (0..1000).map(|i| wander.delay_ns(i, MS)).collect();
        assert!(delays.contains(&0) && delays.iter().all(|delay| *delay <= 51 * MS));
    }

    #[test]
    fn wrong_values_are_named() {
        assert_eq!(Jitter::parse("0"), Ok(None));
        assert!(Jitter::parse("-5ms").unwrap_err().to_string().contains("is negative"));
        assert!(Jitter::parse("5ms,gauss").unwrap_err().to_string().contains("\"gauss\""));
        assert!(Jitter::parse("5ms,hold=1").unwrap_err().to_string().contains("no unit"));
    }
}
