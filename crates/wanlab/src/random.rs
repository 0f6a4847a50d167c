//! The generator behind losses and jitter: small, seeded, and the same on every machine.
//!
//! Not for secrets. Each impairment draws from a stream of its own, so that switching one on does
//! not change what another one does to the n-th segment.

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Debug, Clone)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, with the 53 bits that a double can tell apart.
    pub(crate) fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `(0, 1]`, for logarithms.
    pub(crate) fn next_unit_above_zero(&mut self) -> f64 {
        1.0 - self.next_unit()
    }

    /// Mean 0, standard deviation 1 (Box and Muller, 1958; one of the pair is given away).
    pub(crate) fn next_normal(&mut self) -> f64 {
        let radius = (-2.0 * self.next_unit_above_zero().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        // Reference values of splitmix64 for seed 1234567.
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normal_values_have_the_mean_and_the_deviation() {
        let mut random = SplitMix64::new(3);
        let n = 200_000;
        let values: Vec<f64> = (0..n).map(|_| random.next_normal()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance / f64::from(n) - 1.0).abs() < 0.02, "{variance}");
    }
}
