//! Time as the cores see it: a point on the driver's monotonic clock, given as an argument.

use std::time::Duration;

/// A point in time, counted from an epoch that the driver chose and keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub Duration);

impl Instant {
    /// Time since `earlier`, zero if `earlier` lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;

    fn add(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(delay))
    }
}
