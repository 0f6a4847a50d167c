//! [`Stalls`]: may a write into the page cache be done in the caller's thread?
//!
//! As a rule such a write is a copy and waits for nothing, and handing it to another thread would
//! cost several times as much. But the kernel may make it wait: for a journal, or when it throttles
//! those who write faster than the disk. So the first one that stalls sends the following ones to
//! the writer thread for a while, and for twice as long every time it happens again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What counts as a stall: more than the scheduler takes away from a busy thread, less than a
/// connection's peer would notice.
const STALL: Duration = Duration::from_millis(10);
const AWAY_MIN_MS: u64 = 250;
const AWAY_MAX_MS: u64 = 32_000;

pub(super) struct Stalls {
    epoch: Instant,
    /// Milliseconds since `epoch` until which writes stay away from the caller's thread.
    away_until_ms: AtomicU64,
    away_ms: AtomicU64,
}

impl Stalls {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { epoch: Instant::now(), away_until_ms: zero(), away_ms: zero() }
    }

    /// A write that starts now may be done in the caller's thread.
    pub(super) fn none_lately(&self, now: Instant) -> bool {
        self.ms(now) >= self.away_until_ms.load(Ordering::Relaxed)
    }

    /// Takes note of how long a write took.
    pub(super) fn record(&self, start: Instant, end: Instant) {
        let now_ms = self.ms(end);
        let away_ms = self.away_ms.load(Ordering::Relaxed);
        let quiet_ms = now_ms.saturating_sub(self.away_until_ms.load(Ordering::Relaxed));
        if end.duration_since(start) >= STALL {
            let away_ms = (2 * away_ms).clamp(AWAY_MIN_MS, AWAY_MAX_MS);
            self.away_ms.store(away_ms, Ordering::Relaxed);
            self.away_until_ms.store(now_ms + away_ms, Ordering::Relaxed);
        } else if away_ms > 0 && quiet_ms > 2 * away_ms {
            self.away_ms.store(0, Ordering::Relaxed); // forgiven
        }
    }

    fn ms(&self, at: Instant) -> u64 {
        at.duration_since(self.epoch).as_millis() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_keep_writes_away_for_longer_and_longer() {
        let stalls = Stalls::new();
        let at = |ms| stalls.epoch + Duration::from_millis(ms);
        assert!(stalls.none_lately(at(0)));
        stalls.record(at(0), at(9));
        assert!(stalls.none_lately(at(9)));
        stalls.record(at(0), at(10));
        assert!(!stalls.none_lately(at(259)) && stalls.none_lately(at(260)));
        stalls.record(at(300), at(400));
        assert!(!stalls.none_lately(at(899)) && stalls.none_lately(at(900)));
        // Forgiven after twice as long without another.
        stalls.record(at(2000), at(2000));
        stalls.record(at(3000), at(3100));
        assert!(!stalls.none_lately(at(3349)) && stalls.none_lately(at(3350)));
        for _ in 0..20 {
            stalls.record(at(4000), at(4100));
        }
        assert!(!stalls.none_lately(at(36_099)) && stalls.none_lately(at(36_100)));
    }
}
