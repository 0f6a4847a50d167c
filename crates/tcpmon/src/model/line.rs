//! How fast the line is: the rate at which a train of data was acknowledged. Data that were sent
//! together leave the bottleneck one behind the other, so the acknowledgements of a train tell the
//! rate of the bottleneck even where the mean rate is far below it.

use std::collections::VecDeque;

/// A train is at least so long: shorter ones are packets that some buffer let through together.
const TRAIN_BYTES_MIN: u64 = 48 << 10;
/// A train is at least so many acknowledgements: one of them may be late or early.
const TRAIN_ACKS_MIN: usize = 3;
/// Acknowledgements remembered; a train is found within them or not at all.
const ACKS_MAX: usize = 256;
/// Steps of the histogram for each doubling of the rate.
const STEPS: f64 = 8.0;
const BUCKETS: usize = 40 * 8;
/// The line is as fast as all but the fastest of the trains were: some are compressed behind it.
const QUANTILE: f64 = 0.75;
/// Fewer bytes in trains say nothing.
const BYTES_MIN: f64 = (512 << 10) as f64;

/// Gathers acknowledgements of one direction.
#[derive(Debug)]
pub(crate) struct LineRate {
    acks: VecDeque<(u64, u64)>,
    bytes_by_rate: Vec<f64>,
}

impl Default for LineRate {
    fn default() -> Self {
        Self { acks: VecDeque::new(), bytes_by_rate: vec![0.0; BUCKETS] }
    }
}

impl LineRate {
    /// `offset` was acknowledged. `pause_ns`: a pause this long ends a train.
    pub(crate) fn handle_ack(&mut self, time_ns: u64, offset: u64, pause_ns: u64) {
        if let Some(&(last_ns, last)) = self.acks.back() {
            if offset <= last {
                return;
            }
            if time_ns.saturating_sub(last_ns) > pause_ns || time_ns < last_ns {
                self.acks.clear();
            }
        }
        self.acks.push_back((time_ns, offset));
        if self.acks.len() > ACKS_MAX {
            self.acks.pop_front();
        }
        let Some(&(first_ns, first)) = self.acks.front() else { return };
        let (bytes, ns) = (offset - first, time_ns - first_ns);
        if bytes >= TRAIN_BYTES_MIN && self.acks.len() > TRAIN_ACKS_MIN && ns > 0 {
            let rate = bytes as f64 * 1e9 / ns as f64;
            let bucket = (rate.log2() * STEPS).clamp(0.0, (BUCKETS - 1) as f64);
            self.bytes_by_rate[bucket as usize] += bytes as f64;
            let last = self.acks.back().copied();
            self.acks.clear();
            self.acks.extend(last);
        }
    }

    /// Bytes per second, if there were trains enough.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        let total: f64 = self.bytes_by_rate.iter().sum();
        if total < BYTES_MIN {
            return None;
        }
        let mut below = 0.0;
        let bucket = self.bytes_by_rate.iter().position(|bytes| {
            below += bytes;
            below >= QUANTILE * total
        })?;
        Some(2.0_f64.powf((bucket as f64 + 0.5) / STEPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_tell_the_line_and_pauses_do_not() {
        let mut line = LineRate::default();
        let (mut now, mut offset) = (0, 0);
        for _ in 0..30 {
            for _ in 0..40 {
                // 2896 bytes at 1 Gbit/s.
                now += 23_168;
                offset += 2896;
                line.handle_ack(now, offset, 5_000_000);
            }
            now += 20_000_000;
        }
        let rate = line.bytes_per_s().unwrap();
        assert!((rate / 125e6 - 1.0).abs() < 0.1, "{rate}");
    }

    #[test]
    fn little_says_nothing() {
        let mut line = LineRate::default();
        for step in 0..20 {
            line.handle_ack(step * 1000, step * 1000, 1_000_000);
        }
        assert_eq!(line.bytes_per_s(), None);
    }
}
