//! What the way to the device can do: bytes per second and the shortest time of a read, from reads
//! that completed. Pure: the time is an argument.
//!
//! A rate is sampled as BBR does: bytes delivered by all reads while one was under way, over the
//! time it took. So the rate is that of the whole path, however many reads share it.

use std::time::Duration;

use tokio::time::Instant;

/// Extremes are remembered for one to two of these, then the path is measured anew.
const MEMORY: Duration = Duration::from_secs(10);

/// What reads have told so far.
#[derive(Debug)]
pub(super) struct Path {
    delivered_bytes: u64,
    /// Of this period and of the one before.
    periods: [Extremes; 2],
    period_start: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Extremes {
    rate_max: u64,
    latency_min: Option<Duration>,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    delivered_bytes: u64,
    at: Instant,
}

impl Path {
    pub(super) fn new() -> Self {
        Self { delivered_bytes: 0, periods: [Extremes::default(); 2], period_start: None }
    }

    /// A read begins.
    pub(super) fn depart(&self, now: Instant) -> Departure {
        Departure { delivered_bytes: self.delivered_bytes, at: now }
    }

    /// It has brought `bytes`.
    pub(super) fn arrive(&mut self, departure: Departure, bytes: u64, now: Instant) {
        self.delivered_bytes += bytes;
        let took = now.saturating_duration_since(departure.at).max(Duration::from_micros(1));
        let delivered = self.delivered_bytes - departure.delivered_bytes;
        let rate = u128::from(delivered) * 1_000_000 / took.as_micros().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        let start = *self.period_start.get_or_insert(now);
        if now.saturating_duration_since(start) >= MEMORY {
            self.periods = [Extremes::default(), self.periods[0]];
            self.period_start = Some(now);
        }
        let current = &mut self.periods[0];
        current.rate_max = current.rate_max.max(rate);
        current.latency_min = Some(current.latency_min.map_or(took, |least| least.min(took)));
    }

    /// Best rate of late in bytes per second; 0 without a read.
    pub(super) fn rate(&self) -> u64 {
        self.periods[0].rate_max.max(self.periods[1].rate_max)
    }

    /// Rate × shortest latency: bytes under way that fill the path.
    pub(super) fn product_bytes(&self) -> u64 {
        let least = self.periods.iter().filter_map(|period| period.latency_min).min();
        let micros = least.unwrap_or_default().as_micros();
        let bytes = u128::from(self.rate()) * micros / 1_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_read_at_a_time_is_its_own_product() {
        let (mut path, now) = (Path::new(), Instant::now());
        assert_eq!(path.product_bytes(), 0);
        let departure = path.depart(now);
        path.arrive(departure, 100_000, now + 50 * MS);
        assert_eq!(path.rate(), 2_000_000);
        assert_eq!(path.product_bytes(), 100_000);
    }

    #[test]
    fn many_at_once_show_the_rate_of_the_path() {
        let (mut path, start) = (Path::new(), Instant::now());
        // 100 reads at once over 50 ms and 1 ms of line each.
        let departure = path.depart(start);
        for index in 1..=100 {
            path.arrive(departure, 125_000, start + (50 + index) * MS);
        }
        // All of them in 150 ms, and the first came after 51.
        assert_eq!(path.rate(), 100 * 125_000 * 1000 / 150);
        assert_eq!(path.product_bytes(), path.rate() * 51 / 1000);
    }

    #[test]
    fn what_was_is_forgotten() {
        let (mut path, start) = (Path::new(), Instant::now());
        let departure = path.depart(start);
        path.arrive(departure, 1_000_000, start + MS);
        for second in [11, 22] {
            let now = start + Duration::from_secs(second);
            let departure = path.depart(now);
            path.arrive(departure, 1000, now + 10 * MS);
        }
        assert_eq!(path.rate(), 100_000);
    }
}
