//! Loss in bursts: the Gilbert–Elliott model (Gilbert 1960, Elliott 1963; letters as in Haßlinger
//! and Hohlfeld, MMB 2008).
//!
//! A chain of two states that takes a step per segment. In the good state a segment arrives with
//! probability k, in the bad one with h; p leads from good to bad and r back.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::random::SplitMix64;
use crate::units::{UnitError, parse_probability};

/// The four probabilities of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GilbertElliott {
    /// Good to bad, per segment.
    pub p: f64,
    /// Bad to good, per segment: a burst lasts 1/r segments in the mean.
    pub r: f64,
    /// Probability to arrive in the bad state.
    pub h: f64,
    /// Probability to arrive in the good state.
    pub k: f64,
}

impl GilbertElliott {
    /// `p,r`, `p,r,h` or `p,r,h,k`. Without h everything in the bad state is lost, without k
    /// nothing in the good one (Gilbert's simple model).
    ///
    /// # Errors
    /// When there are not two to four probabilities, or the chain could never leave a state that
    /// it enters.
    pub fn parse(input: &str) -> Result<Self, BurstError> {
        let values = input.split(',').map(parse_probability).collect::<Result<Vec<_>, _>>()?;
        let (p, r, h, k) = match *values.as_slice() {
            [p, r] => (p, r, 0.0, 1.0),
            [p, r, h] => (p, r, h, 1.0),
            [p, r, h, k] => (p, r, h, k),
            _ => return Err(BurstError::Count(input.to_owned())),
        };
        let model = Self { p, r, h, k };
        model.validate().map_err(|_| BurstError::Stuck(input.to_owned()))?;
        Ok(model)
    }

    /// The share of segments that is lost in the long run:
    /// `p/(p+r) × (1−h) + r/(p+r) × (1−k)`.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let sum = self.p + self.r;
        if sum == 0.0 {
            return 1.0 - self.k;
        }
        (self.p * (1.0 - self.h) + self.r * (1.0 - self.k)) / sum
    }

    pub(crate) fn validate(&self) -> Result<(), &'static str> {
        let all = [self.p, self.r, self.h, self.k];
        if all.iter().any(|value| !(0.0..=1.0).contains(value)) {
            return Err("burst loss takes probabilities from 0 to 1");
        }
        if self.p > 0.0 && self.r == 0.0 {
            return Err("burst loss with r = 0 would never end");
        }
        Ok(())
    }
}

/// A burst setting that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BurstError {
    /// One of the numbers.
    #[error(transparent)]
    Probability(#[from] UnitError),
    /// Not two to four numbers.
    #[error("burst loss {0:?}: give p,r or p,r,h or p,r,h,k, as in 0.001,0.25")]
    Count(String),
    /// r is zero.
    #[error("burst loss {0:?}: with r = 0 a burst would never end")]
    Stuck(String),
}

/// The chain at work.
#[derive(Debug)]
pub(crate) struct Burst {
    model: GilbertElliott,
    bad: bool,
    random: SplitMix64,
}

impl Burst {
    pub(crate) fn new(model: GilbertElliott, seed: u64) -> Self {
        Self { model, bad: false, random: SplitMix64::new(seed) }
    }

    /// Other probabilities; the state and the stream of numbers go on.
    pub(crate) fn set(&mut self, model: GilbertElliott) {
        self.model = model;
    }

    /// Whether the next segment is lost. Two numbers are drawn each time, so that the states do
    /// not depend on h and k.
    pub(crate) fn loses(&mut self) -> bool {
        let GilbertElliott { p, r, h, k } = self.model;
        let arrives = if self.bad { h } else { k };
        let lost = self.random.next_unit() >= arrives;
        let leaves = if self.bad { r } else { p };
        if self.random.next_unit() < leaves {
            self.bad = !self.bad;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(model: GilbertElliott, seed: u64, n: usize) -> Vec<bool> {
        let mut burst = Burst::new(model, seed);
        (0..n).map(|_| burst.loses()).collect()
    }

    #[test]
    fn loss_and_length_of_bursts_are_those_of_the_model() {
        let model = GilbertElliott::parse("0.002,0.2").unwrap();
        assert!((model.loss() - 0.002 / 0.202).abs() < 1e-12);
        let n = 4_000_000;
        let losses = losses(model, 11, n);
        let lost = losses.iter().filter(|lost| **lost).count() as f64;
        let bursts = losses.windows(2).filter(|two| !two[0] && two[1]).count() as f64;
        // Variance of the loss count of this chain is about (2/r − 1) times the binomial one.
        let expected = n as f64 * model.loss();
        assert!((lost - expected).abs() < 3.0 * (expected * 9.0).sqrt(), "{lost} of {expected}");
        assert!((lost / bursts - 5.0).abs() < 0.15, "mean burst {}", lost / bursts);
    }

    #[test]
    fn h_and_k_give_each_state_its_own_loss() {
        let model = GilbertElliott::parse("0.01,0.1,0.5,0.99").unwrap();
        let expected = (0.01 * 0.5 + 0.1 * 0.01) / 0.11;
        assert!((model.loss() - expected).abs() < 1e-12);
        let n = 2_000_000;
        let lost = losses(model, 5, n).iter().filter(|lost| **lost).count() as f64;
        assert!((lost / n as f64 - expected).abs() < 0.001, "{lost}");
    }

    #[test]
    fn same_seed_same_bursts() {
        let model = GilbertElliott::parse("0.01,0.3").unwrap();
        assert_eq!(losses(model, 7, 10_000), losses(model, 7, 10_000));
        assert_ne!(losses(model, 7, 10_000), losses(model, 8, 10_000));
    }

    #[test]
    fn wrong_values_are_named() {
        let message = |input: &str| GilbertElliott::parse(input).unwrap_err().to_string();
        assert!(message("0.1").contains("p,r"));
        assert!(message("0.1,0.2,0.3,0.4,0.5").contains("p,r"));
        assert!(message("0.1,2").contains("is above 1"));
        assert!(message("0.1,0").contains("never end"));
        assert!(message("").contains("not a number"));
    }
}
