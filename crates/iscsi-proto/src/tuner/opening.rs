//! How much may be under way while a path is new: a little more than was carried, again and again.
//!
//! The slow starts of N connections double together, and the round that overruns the path's queue
//! overruns it by as much as the path holds: all of them lose hundreds of packets, and those whose
//! retransmissions are lost as well creep for many round trips. With what is under way limited to
//! a quarter more than the path was seen to hold, the queue shows before it is full, and the
//! [`super::Pacer`] takes over.

use super::Sample;

/// Shorter paths (in seconds) are filled and repaired before anybody notices.
const RTT_MIN_S: f64 = 0.001;
/// Under way at first: connections need a few round trips until their windows hold that much.
const FIRST_BYTES: f64 = 1048576.0;
/// So much more than the path was seen to hold: less where the excess would be large.
const GAIN_SMALL: f64 = 1.5;
const GAIN: f64 = 1.25;
const SMALL_BYTES: f64 = 4.0 * 1048576.0;
/// Below this part of the limit it is something else that limits, for instance slow storage; after
/// so many samples of that without a rise (windows that grow rise) the limit goes.
const FILLED_SHARE: f64 = 0.55;
const UNFILLED_MAX: u32 = 12;
const RISE: f64 = 1.05;
/// More than any window needs: the path is wide open.
const LAST_BYTES: f64 = 256.0 * 1048576.0;

/// The limit of what is under way on a new path.
#[derive(Clone, Debug)]
pub struct Opening {
    bytes: f64,
    unfilled: u32,
    best_bytes_per_s: f64,
    done: bool,
}

impl Default for Opening {
    fn default() -> Self {
        Self { bytes: FIRST_BYTES, unfilled: 0, best_bytes_per_s: 0.0, done: false }
    }
}

impl Opening {
    /// Payload under way, in bytes, before anything was measured; none on a short path.
    pub fn first(&self, rtt_s: f64) -> Option<f64> {
        (rtt_s >= RTT_MIN_S && !self.done).then_some(self.bytes)
    }

    /// Takes a sample and answers how much may be under way; none is no limit, from then on.
    pub fn handle_sample(&mut self, sample: &Sample) -> Option<f64> {
        let rtt_us = sample.typical(|tcp| tcp.min_rtt_us.or(tcp.rtt_us)).unwrap_or(0.0);
        let rtt_s = rtt_us / 1e6;
        let known = sample.pace.bytes_per_s.is_some() || rtt_s < RTT_MIN_S;
        if self.done || known {
            self.done = true;
            return None;
        }
        if sample.bytes_per_s <= 0.0 {
            return Some(self.bytes);
        }
        let held = sample.bytes_per_s * rtt_s;
        let rises = sample.bytes_per_s > RISE * self.best_bytes_per_s;
        self.best_bytes_per_s = self.best_bytes_per_s.max(sample.bytes_per_s);
        if held < FILLED_SHARE * self.bytes {
            self.unfilled = if rises { 0 } else { self.unfilled + 1 };
        } else {
            self.unfilled = 0;
            let gain = if held < SMALL_BYTES { GAIN_SMALL } else { GAIN };
            self.bytes = self.bytes.max(gain * held);
        }
        self.done = self.unfilled >= UNFILLED_MAX || self.bytes > LAST_BYTES;
        (!self.done).then_some(self.bytes)
    }
}
