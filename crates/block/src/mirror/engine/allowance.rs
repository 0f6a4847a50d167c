//! [`Allowance`]: how many bytes may be under way to a leg. Pure.
//!
//! It grows while operations are answered soon, up to what fills a long line, and shrinks when one
//! takes more than a part of the time after which the leg is lost: a slow line is to be filled, not
//! to be given up.

use std::time::Duration;

/// Bytes under way to begin with, before it is known what the line carries.
const BYTES_FIRST: u64 = 2 << 20;

/// An operation that takes more than this part of the time after which a leg is lost makes the
/// allowance smaller.
const LATENCY_PER_TIMEOUT: u32 = 16;

/// Bytes that may be under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    bytes: u64,
    bytes_min: u64,
    bytes_max: u64,
    latency_max: Duration,
}

impl Allowance {
    /// Between these bounds, to a leg that is lost after `timeout`.
    pub(crate) fn new(bytes_min: u64, bytes_max: u64, timeout: Duration) -> Self {
        let bytes_max = bytes_max.max(bytes_min);
        let latency_max = timeout / LATENCY_PER_TIMEOUT;
        Self { bytes: BYTES_FIRST.min(bytes_max), bytes_min, bytes_max, latency_max }
    }

    /// As it is now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An operation was answered.
    pub(crate) fn answered(&mut self, bytes: u64, took: Duration) {
        self.bytes = if took > self.latency_max {
            // Each operation of one window says so: together they halve it, about.
            self.bytes.saturating_sub(bytes / 2).max(self.bytes_min)
        } else {
            (self.bytes + bytes / 2).min(self.bytes_max)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_with_a_window_answered_in_time_and_halves_with_a_late_one() {
        let mut allowance = Allowance::new(64, 16 << 20, Duration::from_secs(16));
        assert_eq!(allowance.bytes(), 2 << 20);
        allowance.answered(2 << 20, Duration::from_secs(1));
        assert_eq!(allowance.bytes(), 3 << 20);
        (0..40).for_each(|_| allowance.answered(1 << 20, Duration::ZERO));
        assert_eq!(allowance.bytes(), 16 << 20);
        (0..16).for_each(|_| allowance.answered(1 << 20, Duration::from_secs(2)));
        assert_eq!(allowance.bytes(), 8 << 20);
        (0..99).for_each(|_| allowance.answered(1 << 20, Duration::from_secs(2)));
        assert_eq!(allowance.bytes(), 64);
    }
}
