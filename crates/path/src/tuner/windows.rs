//! Robust estimates over measuring windows: medians, and noise by the median absolute deviation.
//! Samples of a few milliseconds are gathered until a window is full; a window is one value.

use std::collections::VecDeque;

/// Windows remembered: at 250 ms each, the last eight seconds.
const WINDOWS_MAX: usize = 32;
/// The median absolute deviation of a normal distribution, as a standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Relative noise assumed while there is no estimate: a loaded path of the usual kind.
const NOISE_UNKNOWN: f64 = 0.04;
/// Noise never counts as less: schedulers alone make this much.
const NOISE_MIN: f64 = 0.003;
/// Noise never counts as more: with more, nothing could be decided any more.
const NOISE_MAX: f64 = 0.25;
/// Differences that make an estimate of noise.
const NOISE_DIFFERENCES_MIN: usize = 4;

/// The median; sorts its argument. None of nothing.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Windows since the last move, and the noise seen over all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    bytes: f64,
    seconds: f64,
    full: VecDeque<f64>,
    /// Relative differences of neighbouring windows.
    differences: VecDeque<f64>,
    /// The last intervals, newest last, and their relative second differences.
    samples: VecDeque<f64>,
    bends: VecDeque<f64>,
    samples_per_window: f64,
}

impl Windows {
    /// Forgets the windows; the estimate of the noise stays.
    pub(super) fn clear(&mut self) {
        self.bytes = 0.0;
        self.seconds = 0.0;
        self.full.clear();
        self.samples.clear();
    }

    /// Adds an interval; the window's mean, if that fills it.
    pub(super) fn push(&mut self, bytes_per_s: f64, seconds: f64, window_s: f64) -> Option<f64> {
        self.bend(bytes_per_s);
        self.samples_per_window = (window_s / seconds).max(1.0);
        self.bytes += bytes_per_s * seconds;
        self.seconds += seconds;
        // Sums of intervals miss their total by rounding.
        if self.seconds < window_s * 0.999 {
            return None;
        }
        let mean = self.bytes / self.seconds;
        (self.bytes, self.seconds) = (0.0, 0.0);
        push_bounded(&mut self.full, mean);
        Some(mean)
    }

    /// Takes the last two windows as a measure of noise: to be called when nothing was changing.
    pub(super) fn learn_noise(&mut self) {
        let count = self.full.len();
        if count >= 2 {
            let (a, b) = (self.full[count - 2], self.full[count - 1]);
            if a + b > 0.0 {
                let relative = (a - b).abs() / ((a + b) / 2.0);
                push_bounded(&mut self.differences, relative);
            }
        }
    }

    /// A second difference does not see a steady rise, so that it works during a slow start.
    fn bend(&mut self, bytes_per_s: f64) {
        push_bounded(&mut self.samples, bytes_per_s);
        if let [.., a, b, c] = *self.samples.make_contiguous()
            && b > 0.0
        {
            push_bounded(&mut self.bends, (a - 2.0 * b + c).abs() / b);
        }
    }

    /// Standard deviation of one window, relative to its value: the greater of what neighbouring
    /// windows say (they see slow waves) and what neighbouring samples say (they are there soon).
    pub(super) fn noise(&self) -> f64 {
        // √2 and √6: how much more the differences scatter than the values.
        let windows = deviation(&self.differences).map(|d| d / 2_f64.sqrt());
        let samples = deviation(&self.bends).map(|d| d / 6_f64.sqrt());
        let samples = samples.map(|d| d / self.samples_per_window.sqrt());
        match (windows, samples) {
            (None, None) => NOISE_UNKNOWN,
            (windows, samples) => {
                let most = windows.unwrap_or(0.0).max(samples.unwrap_or(0.0));
                most.clamp(NOISE_MIN, NOISE_MAX)
            }
        }
    }

    /// Windows since the last move.
    pub(super) fn count(&self) -> usize {
        self.full.len()
    }

    /// The last window but `back`.
    pub(super) fn last(&self, back: usize) -> Option<f64> {
        self.full.len().checked_sub(1 + back).map(|index| self.full[index])
    }

    /// Median of the last `count` windows.
    pub(super) fn recent(&self, count: usize) -> Option<f64> {
        let mut values: Vec<f64> = self.full.iter().rev().take(count).copied().collect();
        median(&mut values)
    }
}

/// Standard deviation of differences, if there are enough of them.
fn deviation(differences: &VecDeque<f64>) -> Option<f64> {
    if differences.len() < NOISE_DIFFERENCES_MIN {
        return None;
    }
    let mut differences: Vec<f64> = differences.iter().copied().collect();
    median(&mut differences).map(|mad| MAD_TO_SIGMA * mad)
}

fn push_bounded(values: &mut VecDeque<f64>, value: f64) {
    if values.len() == WINDOWS_MAX {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_mean_over_its_time() {
        let mut windows = Windows::default();
        assert_eq!(windows.push(10.0, 0.1, 0.25), None);
        assert_eq!(windows.push(20.0, 0.1, 0.25), None);
        assert_eq!(windows.push(30.0, 0.1, 0.25).map(f64::round), Some(20.0));
        assert_eq!(windows.push(7.0, 1.0, 0.25), Some(7.0)); // longer than a window
        assert_eq!((windows.count(), windows.last(0)), (2, Some(7.0)));
        windows.clear();
        assert_eq!((windows.count(), windows.last(0), windows.recent(3)), (0, None, None));
    }

    #[test]
    fn one_wild_window_moves_neither_median_nor_noise() {
        let mut windows = Windows::default();
        for i in 0..20 {
            let value = if i == 10 { 1000.0 } else { 100.0 + f64::from(i % 2) };
            windows.push(value, 1.0, 1.0);
            windows.learn_noise();
        }
        assert!((windows.recent(20).unwrap() - 100.5).abs() < 1.0);
        assert!(windows.noise() < 0.02, "{}", windows.noise());
    }
}
