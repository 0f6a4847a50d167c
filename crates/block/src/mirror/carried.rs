//! [`Carried`]: how many bytes of the log become stable at a leg in a second, so that no more is
//! taken than gets there within the lag. Pure.
//!
//! Steps that end are a measurement, round trips and flushes included, as soon as they have taken
//! half a second: over less, answers that come in a heap look like a fast line. It is one of what
//! the leg can take only where more was waiting to be sent behind each of them; steps that had all
//! there was say no more than that at least this much is possible.

use std::time::Duration;

/// Bytes a second before anything is known: 20 Mbit/s, a slow line of today. A faster one shows
/// with its first steps.
const BYTES_PER_S_FIRST: f64 = 2.5e6;

/// Bytes of a step below which it measures round trips, and nothing of the line.
pub(crate) const STEP_BYTES_MIN: u64 = 256 << 10;

/// Time that is measured over.
const MEASURED_OVER: Duration = Duration::from_millis(500);

/// What may be waiting takes this part of the lag. A step takes a quarter of the lag, and its stamp
/// comes with the next one.
const PART_OF_LAG: f64 = 0.625;

/// What a leg takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    bytes_per_s: f64,
    measuring: Measuring,
}

/// Steps since the last measurement.
#[derive(Clone, Copy, Debug)]
struct Measuring {
    bytes: u64,
    took: Duration,
    /// More was waiting behind each.
    full: bool,
}

impl Default for Measuring {
    fn default() -> Self {
        Self { bytes: 0, took: Duration::ZERO, full: true }
    }
}

impl Default for Carried {
    fn default() -> Self {
        Self { bytes_per_s: BYTES_PER_S_FIRST, measuring: Measuring::default() }
    }
}

impl Carried {
    /// A step of `bytes` became stable within `took`, while `waiting` bytes were still to be sent.
    pub(crate) fn step(&mut self, bytes: u64, took: Duration, waiting: u64) {
        if bytes < STEP_BYTES_MIN {
            return;
        }
        let steps = &mut self.measuring;
        (steps.bytes, steps.took) = (steps.bytes + bytes, steps.took + took);
        steps.full &= waiting >= bytes;
        if steps.took < MEASURED_OVER {
            return;
        }
        let Measuring { bytes, took, full } = std::mem::take(steps);
        let measured = bytes as f64 / took.as_secs_f64();
        if full || measured > self.bytes_per_s {
            self.bytes_per_s = measured;
        }
    }

    /// Bytes that may be on their way to the leg, so that they get there within `lag`.
    pub(crate) fn within(&self, lag: Duration) -> u64 {
        (self.bytes_per_s * lag.as_secs_f64() * PART_OF_LAG) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(steps: &[(u64, Duration, u64)]) -> u64 {
        let mut carried = Carried::default();
        steps.iter().for_each(|(bytes, took, waiting)| carried.step(*bytes, *took, *waiting));
        carried.within(4 * SECOND)
    }

    #[test]
    fn a_line_of_which_nothing_is_known_is_a_slow_one() {
        assert_eq!(after(&[]), 6_250_000);
        let round_trips = (8192, SECOND, 8192);
        assert_eq!(after(&[round_trips; 9]), 6_250_000);
    }

    #[test]
    fn what_was_carried_may_be_taken_and_less_counts_where_more_was_waiting() {
        let quick = (100_000_000, SECOND, 0);
        assert_eq!(after(&[quick]), 250_000_000);
        assert_eq!(after(&[quick, (1_000_000, SECOND, 999_999)]), 250_000_000);
        assert_eq!(after(&[quick, (1_000_000, SECOND, 1_000_000)]), 2_500_000);
    }

    #[test]
    fn what_comes_in_a_heap_is_measured_with_the_time_before_it() {
        let stalled = (1_000_000, SECOND * 4 / 10, 1_000_000);
        let heap = (1_000_000, SECOND / 10, 1_000_000);
        assert_eq!(after(&[heap]), 6_250_000);
        assert_eq!(after(&[stalled, heap]), 10_000_000);
    }
}
