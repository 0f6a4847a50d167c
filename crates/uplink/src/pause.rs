//! [`Pause`]: when a home dials its server again. The first tries are quick, so that a home is back
//! before a player's buffer is empty; all are at different times in different homes, so that a
//! server that comes back is not met by all of them at once.

use std::time::Duration;

/// Pauses before they are shortened by chance; the last one stays. With a time-out of a dead server
/// not above it, a home is back five seconds after its server is.
const PAUSES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1600),
    Duration::from_millis(3200),
];

/// A control connection that held for so long was a good one: after it, all begins anew.
const GOOD_AFTER: Duration = Duration::from_secs(5);

/// Growing pauses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    taken: usize,
}

impl Pause {
    /// The pause before the next try: between half of what its turn is and all of it, by chance.
    pub fn take(&mut self, chance: u8) -> Duration {
        let pause = PAUSES[self.taken.min(PAUSES.len() - 1)];
        self.taken = self.taken.saturating_add(1);
        pause / 2 + pause / 2 * u32::from(chance) / u32::from(u8::MAX)
    }

    /// A connection has ended that the server had welcomed so long ago.
    pub fn note_held(&mut self, time: Duration) {
        if time >= GOOD_AFTER {
            self.taken = 0;
        }
    }

    /// Longest pause.
    pub const fn longest() -> Duration {
        PAUSES[PAUSES.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_try_is_at_once_and_all_are_within_half_and_whole() {
        for chance in [0, 1, 77, 255] {
            let mut pause = Pause::default();
            assert_eq!(pause.take(chance), Duration::ZERO);
            for whole in PAUSES.into_iter().skip(1).chain([Pause::longest(); 3]) {
                let taken = pause.take(chance);
                assert!(taken >= whole / 2 && taken <= whole, "{taken:?} of {whole:?}");
            }
        }
        assert!(Pause::longest() < Duration::from_secs(4));
    }

    #[test]
    fn a_server_that_throws_out_at_once_is_not_called_again_at_once() {
        let mut pause = Pause::default();
        assert!((0..4).all(|_| pause.take(255) < Duration::from_millis(500)));
        pause.note_held(Duration::from_millis(50));
        assert_eq!(pause.take(255), Duration::from_millis(800));
        pause.note_held(Duration::from_secs(3600));
        assert_eq!(pause.take(255), Duration::ZERO);
    }
}
