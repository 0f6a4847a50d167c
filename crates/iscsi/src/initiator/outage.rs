//! What a user is told of an outage: which volume, since when, what it means for the I/O, and how
//! long it took. Incarnations and sessions are told at debug level, elsewhere.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::shared::Shared;

/// The time from the end of the sessions to the next ones.
pub(super) struct Outage {
    since: std::time::Instant,
}

impl Outage {
    /// The sessions have ended.
    pub(super) fn begin(shared: &Shared, why: &str) -> Self {
        let seconds = shared.config.replacement_timeout.as_secs();
        let (url, portal) = (&shared.url, &shared.url.portal);
        let clock = time_of_day(SystemTime::now());
        tracing::warn!(
            "{url}: no connection to {portal} since {clock}; I/O waits up to {seconds} s ({why})"
        );
        Self { since: std::time::Instant::now() }
    }

    /// It has lasted for too long.
    pub(super) fn give_up(shared: &Shared, why: &str) {
        let seconds = shared.config.replacement_timeout.as_secs();
        let (url, portal) = (&shared.url, &shared.url.portal);
        tracing::error!("{url}: no connection to {portal} for {seconds} s: I/O fails ({why})");
    }

    /// Commands go out again.
    pub(super) fn end(self, shared: &Shared) {
        let seconds = self.since.elapsed().as_secs_f64();
        let (url, portal) = (&shared.url, &shared.url.portal);
        tracing::warn!("{url}: connection to {portal} back after {seconds:.1} s");
    }
}

/// Hours, minutes and seconds in UTC, as the log has them.
fn time_of_day(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_readable() {
        let at = UNIX_EPOCH + Duration::from_secs(1_000 * 86_400 + 12 * 3600 + 3 * 60 + 7);
        assert_eq!(time_of_day(at), "12:03:07 UTC");
    }
}
