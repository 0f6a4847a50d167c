//! How long sockets are asked before a thread sleeps: a pure decision from what asking and sleeping
//! have brought. As a hypervisor's halt polling does it: asking in vain makes it shorter, down to
//! nothing; a sleep so short that asking would have spared it brings it back.

use std::time::Duration;

/// A window below this part of the longest one finds next to nothing, and is none.
const SHORTEST_PART: u32 = 8;

/// The time to ask before sleeping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    longest: Duration,
    length: Duration,
}

impl Window {
    pub(super) const fn new(longest: Duration) -> Self {
        Self { longest, length: longest }
    }

    /// So long is to be asked now; zero is not at all.
    pub(super) const fn length(&self) -> Duration {
        self.length
    }

    /// It was asked for the whole length, and nothing came.
    pub(super) fn in_vain(&mut self) {
        self.length /= 2;
        if self.length < self.longest / SHORTEST_PART {
            self.length = Duration::ZERO;
        }
    }

    /// Something came after so long a sleep.
    pub(super) fn slept(&mut self, slept: Duration) {
        if slept <= self.longest {
            self.length = self.longest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);

    #[test]
    fn asking_in_vain_ends_soon_and_a_short_sleep_begins_it_again() {
        let mut window = Window::new(LONGEST);
        let mut burned = Duration::ZERO;
        let mut times = 0;
        while !window.length().is_zero() {
            burned += window.length();
            window.in_vain();
            times += 1;
            assert!(times < 10, "it goes on: {window:?}");
        }
        assert!(burned < 2 * LONGEST, "{burned:?}");
        window.slept(LONGEST * 20);
        assert!(window.length().is_zero(), "asking would not have spared that sleep");
        window.slept(LONGEST);
        assert_eq!(window.length(), LONGEST);
    }
}
