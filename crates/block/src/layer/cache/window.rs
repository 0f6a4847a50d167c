//! How far ahead of one stream to read. Pure.
//!
//! Judged once per window that the reader has consumed. It doubles while the reader had to wait and
//! the path has more to give: the last doubling made it faster, or twice rate × latency is not yet
//! under way. At its beginning it grows fourfold instead, so that it does not hold back connections
//! which are in slow start themselves. A reader that never waits keeps what it has, or less. It
//! never shrinks for a reader that waits, so a latency that is not the path's own cannot talk it
//! into standing still.

/// Windows consumed before a larger one is tried although the last one did not help: the path may
/// have changed.
const HELD_MAX: u32 = 16;

/// Growth of the window until it first fails to help. A stream that ends meanwhile has wasted at
/// most three times what it has read, and the smallest window.
const START_FACTOR: u64 = 4;

/// Windows consumed without a wait before it is halved.
const CALM_MAX: u32 = 4;

/// A growth in rate below an eighth is noise.
const NOISE_FRACTION: u64 = 8;

/// What is known of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathView {
    /// Bytes per second.
    pub(super) rate: u64,
    /// Bytes under way that fill it.
    pub(super) product_bytes: u64,
    /// Most bytes that one stream may be ahead now.
    pub(super) window_bytes_max: u64,
}

#[derive(Debug)]
pub(super) struct Window {
    bytes: u64,
    bytes_min: u64,
    consumed_bytes: u64,
    waited: bool,
    rate_before: u64,
    held: u32,
    calm: u32,
    trial: bool,
    starting: bool,
}

impl Window {
    pub(super) fn new(bytes_min: u64) -> Self {
        Self::starting_with(bytes_min, bytes_min)
    }

    /// Begins with `bytes` and never becomes smaller than `bytes_min`.
    pub(super) fn starting_with(bytes: u64, bytes_min: u64) -> Self {
        Self {
            bytes,
            bytes_min,
            consumed_bytes: 0,
            waited: false,
            rate_before: 0,
            held: 0,
            calm: 0,
            trial: false,
            starting: true,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The reader has gone on by `bytes`; `waited` if they were not there yet.
    pub(super) fn consume(&mut self, bytes: u64, waited: bool, path: PathView) {
        self.waited |= waited;
        self.consumed_bytes += bytes;
        if self.consumed_bytes >= self.bytes {
            self.judge(path);
            self.consumed_bytes = 0;
            self.waited = false;
        }
        self.bytes = self.bytes.min(path.window_bytes_max).max(self.bytes_min);
    }

    fn judge(&mut self, path: PathView) {
        let wanted = path.product_bytes.saturating_mul(2);
        if !self.waited {
            self.starting = false;
            self.calm += 1;
            if self.calm >= CALM_MAX && self.bytes / 2 >= wanted {
                self.bytes /= 2;
                self.calm = 0;
            }
            return;
        }
        self.calm = 0;
        self.held += 1;
        let improved = path.rate > self.rate_before + self.rate_before / NOISE_FRACTION;
        if improved || self.bytes < wanted {
            self.trial = false;
            self.grow(path.rate);
            return;
        }
        let too_far = std::mem::take(&mut self.starting) && self.bytes / 2 >= wanted;
        if std::mem::take(&mut self.trial) || too_far {
            self.bytes /= 2;
        } else if self.held >= HELD_MAX {
            self.trial = true;
            self.grow(path.rate);
        }
    }

    fn grow(&mut self, rate: u64) {
        let factor = if self.starting { START_FACTOR } else { 2 };
        self.bytes = self.bytes.saturating_mul(factor);
        self.rate_before = rate;
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn view(rate: u64, product_bytes: u64) -> PathView {
        PathView { rate, product_bytes, window_bytes_max: 64 * MIB }
    }

    /// A line of `rate` with `latency_ms`: what a window of `bytes` gets out of it.
    fn over(bytes: u64, rate: u64, latency_ms: u64) -> PathView {
        let got = (bytes * 1000 / latency_ms).min(rate);
        view(got, got * latency_ms / 1000)
    }

    fn settle(window: &mut Window, rate: u64, latency_ms: u64, epochs: u32) -> Vec<u64> {
        let step = |window: &mut Window| {
            let bytes = window.bytes();
            window.consume(bytes, true, over(bytes, rate, latency_ms));
            window.bytes()
        };
        (0..epochs).map(|_| step(window)).collect()
    }

    #[test]
    fn grows_to_what_fills_the_line_and_not_far_beyond() {
        for latency_ms in [10, 50, 100, 200] {
            let mut window = Window::new(MIB / 2);
            let product = 125_000_000 * latency_ms / 1000;
            let history = settle(&mut window, 125_000_000, latency_ms, 100);
            let (settled, _) = history[50..].iter().fold((0, 0), |(max, n), b| (max.max(*b), n));
            let least = *history[50..].iter().min().unwrap();
            assert!(least >= product, "{least} at {latency_ms} ms");
            // Within one doubling of twice the product, and one more while it tries.
            assert!(settled <= 8 * product.max(MIB / 8), "{settled} at {latency_ms} ms");
        }
    }

    #[test]
    fn never_shrinks_for_a_reader_that_waits() {
        let mut window = Window::new(MIB);
        settle(&mut window, 125_000_000, 50, 6);
        let before = window.bytes();
        for _ in 0..10 {
            // The shortest latency says that a tenth would do, yet the reader waits.
            window.consume(window.bytes(), true, view(125_000_000, 600_000));
            assert!(window.bytes() >= before);
        }
    }

    #[test]
    fn shrinks_for_a_slow_reader_to_what_it_needs() {
        let mut window = Window::new(MIB);
        settle(&mut window, 125_000_000, 100, 20);
        for _ in 0..100 {
            window.consume(window.bytes(), false, view(10_000_000, MIB));
        }
        assert!((2 * MIB..=4 * MIB).contains(&window.bytes()), "{}", window.bytes());
    }

    #[test]
    fn obeys_the_limit() {
        let mut window = Window::new(MIB);
        let path = PathView { window_bytes_max: 3 * MIB, ..view(1 << 30, 1 << 30) };
        for _ in 0..10 {
            window.consume(window.bytes(), true, path);
        }
        assert_eq!(window.bytes(), 3 * MIB);
    }
}
