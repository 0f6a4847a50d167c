//! [`Allowance`]: how many bytes are under way to a leg, and how many may be. Pure.
//!
//! It grows while operations are answered soon, up to what fills a long line, and shrinks when one
//! takes more than a part of the time after which the leg is lost: a slow line is to be filled, not
//! to be given up.

use std::time::Duration;

/// Bytes that may be under way before it is known what the line carries.
pub(super) const BYTES_FIRST: u64 = 2 << 20;

/// An operation that takes more than this part of the time after which a leg is lost makes the
/// allowance smaller.
const LATENCY_PER_TIMEOUT: u32 = 16;

/// Data and zeroes: what the line carries bounds the one, what a target can zero the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowances {
    pub(super) data: Allowance,
    pub(super) zeroes: Allowance,
}

impl Allowances {
    /// More may be sent, of whichever kind.
    pub(super) fn have_room(&self) -> bool {
        self.data.has_room() && self.zeroes.has_room()
    }

    /// The allowance of zeroes, or of data.
    pub(super) fn of(&mut self, zero: bool) -> &mut Allowance {
        if zero { &mut self.zeroes } else { &mut self.data }
    }
}

/// Bytes of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    under_way: u64,
    bytes: u64,
    bytes_min: u64,
    bytes_max: u64,
    latency_max: Duration,
}

impl Allowance {
    /// Begins with `first` bytes and stays between the bounds, of which the upper one gives way, to
    /// a leg that is lost after `timeout`.
    pub(super) fn new(first: u64, (min, max): (u64, u64), timeout: Duration) -> Self {
        let (bytes_min, bytes_max) = (min, max.max(min));
        let latency_max = timeout / LATENCY_PER_TIMEOUT;
        Self { under_way: 0, bytes: first.min(bytes_max), bytes_min, bytes_max, latency_max }
    }

    /// Bytes that may be under way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// More may be sent. One operation may always be under way, however large it is.
    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.bytes
    }

    /// An operation is sent.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.under_way += bytes;
    }

    /// It was answered.
    pub(super) fn answered(&mut self, bytes: u64, took: Duration) {
        self.under_way -= bytes;
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
        let mut allowance = Allowance::new(2 << 20, (64, 16 << 20), Duration::from_secs(16));
        let mut after = |times, bytes, took| {
            for _ in 0..times {
                allowance.sent(bytes);
                allowance.answered(bytes, took);
            }
            allowance.bytes()
        };
        assert_eq!(after(0, 0, Duration::ZERO), 2 << 20);
        assert_eq!(after(1, 2 << 20, Duration::from_secs(1)), 3 << 20);
        assert_eq!(after(40, 1 << 20, Duration::ZERO), 16 << 20);
        assert_eq!(after(16, 1 << 20, Duration::from_secs(2)), 8 << 20);
        assert_eq!(after(99, 1 << 20, Duration::from_secs(2)), 64);
    }

    #[test]
    fn there_is_room_up_to_what_is_allowed_and_for_one_that_is_larger() {
        let mut allowance = Allowance::new(100, (64, 100), Duration::from_secs(16));
        for (bytes, room) in [(0, true), (99, true), (1, false)] {
            allowance.sent(bytes);
            assert_eq!(allowance.has_room(), room);
        }
        allowance.answered(100, Duration::ZERO);
        assert!(allowance.has_room());
        allowance.sent(1000);
        assert!(!allowance.has_room());
    }
}
