//! How long packets waited in a queue: the mean, and percentiles from a histogram of sixteen steps
//! to a doubling, which is exact to 6 %. Memory does not grow with what is counted.

use serde::Serialize;
use serde::ser::SerializeStruct;

use crate::link::NANOS_PER_S;

/// Steps to a doubling, as a power of two.
const STEPS_LOG2: u32 = 4;
const STEPS: usize = 1 << STEPS_LOG2;

/// Waits are told to a microsecond; what is shorter than a step of that counts as such.
const UNIT_NS: u64 = 1000;

/// Above it lies only the last step: no queue that fits into memory lasts longer.
const LONGEST_NS: u64 = 1000 * NANOS_PER_S;

/// The waits of all packets so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Waits {
    count: u64,
    sum_ns: u128,
    /// By [`step`]; as long as the longest wait needs.
    steps: Vec<u64>,
}

impl Waits {
    /// One packet more.
    pub(crate) fn add(&mut self, waited_ns: u64) {
        let step = step(waited_ns);
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
        self.count += 1;
        self.sum_ns += u128::from(waited_ns);
    }

    /// Those of another queue as well.
    pub(crate) fn plus(&mut self, other: &Self) {
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        for (sum, count) in self.steps.iter_mut().zip(&other.steps) {
            *sum += count;
        }
        self.count += other.count;
        self.sum_ns += other.sum_ns;
    }

    /// Microseconds; 0 if nothing has waited.
    #[must_use]
    pub fn mean_us(&self) -> f64 {
        self.sum_ns as f64 / 1e3 / self.count.max(1) as f64
    }

    /// What this part of the packets did not exceed, in microseconds: the upper end of its step.
    #[must_use]
    pub fn percentile_us(&self, part: f64) -> f64 {
        let wanted = (self.count as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reached = self.steps.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0.0, |step| end_ns(step) as f64 / 1e3)
    }
}

/// `mean_us` and `p99_us`: the histogram itself is nobody's business.
impl Serialize for Waits {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let tenth = |us: f64| (us * 10.0).round() / 10.0;
        let mut waits = to.serialize_struct("Waits", 2)?;
        waits.serialize_field("mean_us", &tenth(self.mean_us()))?;
        waits.serialize_field("p99_us", &tenth(self.percentile_us(0.99)))?;
        waits.end()
    }
}

/// Whole units up to a doubling's number of steps one by one, then so many steps to each doubling.
/// No wait at all is the first, so that an empty queue is told as 0.
fn step(waited_ns: u64) -> usize {
    let units = waited_ns.min(LONGEST_NS).div_ceil(UNIT_NS);
    let doublings = (units >> STEPS_LOG2).checked_ilog2().map_or(0, |log2| log2 + 1);
    let within = units >> doublings.saturating_sub(1);
    if doublings == 0 {
        return within as usize;
    }
    doublings as usize * STEPS + within as usize - STEPS
}

/// The longest wait of a step.
fn end_ns(step: usize) -> u64 {
    let (doublings, within) = (step / STEPS, (step % STEPS) as u64);
    let units = match doublings {
        0 => within,
        _ => ((within + STEPS as u64 + 1) << (doublings - 1)) - 1,
    };
    units * UNIT_NS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mean_and_percentiles() {
        let mut waits = Waits::default();
        assert_eq!((waits.mean_us(), waits.percentile_us(0.99)), (0.0, 0.0));
        for _ in 0..98 {
            waits.add(0);
        }
        waits.add(10_000);
        assert_eq!(waits.percentile_us(0.5), 0.0);
        assert_eq!(waits.percentile_us(0.99), 10.0);
        waits.add(1_000_000);
        waits.add(1_000_000);
        let p99 = waits.percentile_us(0.99);
        assert!((1000.0..1060.0).contains(&p99), "{p99}");
        let json = serde_json::to_value(&waits).unwrap();
        assert_eq!(json["mean_us"], 19.9);
        let mut both = Waits::default();
        both.plus(&waits);
        both.plus(&waits);
        assert_eq!((both.mean_us(), both.percentile_us(0.99)), (waits.mean_us(), p99));
    }

    proptest! {
        /// A step's end lies at or above what is in it, by no more than a sixteenth.
        #[test]
        fn steps_are_as_exact_as_they_say(ns in 0..LONGEST_NS) {
            let end = end_ns(step(ns));
            prop_assert!(end >= ns, "{ns} in a step up to {end}");
            prop_assert!(end - ns <= ns / STEPS as u64 + UNIT_NS, "{ns} in a step up to {end}");
        }

        #[test]
        fn longer_waits_are_in_later_steps(a in 0..LONGEST_NS, b in 0..LONGEST_NS) {
            prop_assert_eq!(step(a.min(b)).cmp(&step(a.max(b))).is_gt(), false);
        }

        #[test]
        fn no_wait_needs_much_memory(ns: u64) {
            prop_assert!(step(ns) < 600);
        }
    }
}
