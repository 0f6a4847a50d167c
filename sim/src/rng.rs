//! The one source of chance: xoshiro256** seeded by SplitMix64 (Blackman and Vigna, "Scrambled
//! linear pseudorandom number generators", 2021). Written out here so that a seed means the same
//! run for ever, whatever becomes of a crate's generator. Not for secrets.

/// A deterministic generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng([u64; 4]);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = seed;
        Self(std::array::from_fn(|_| split_mix(&mut state)))
    }

    /// A generator of its own for one part of the run, so that more draws there change nothing
    /// elsewhere.
    pub(crate) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `n`, 0 if `n` is 0. The bias of 2⁻⁶⁴·n does not matter here.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64 // the upper half fits by nature
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Mostly small numbers up to `high`: the number of digits is uniform.
    pub(crate) fn skewed(&mut self, high: u64) -> u64 {
        let bits = 64 - high.leading_zeros();
        let bits = self.range(0, u64::from(bits));
        self.range(0, (1u64 << bits.min(63)).min(high))
    }

    pub(crate) fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < u64::from(chance)
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.percent(50)
    }

    /// Any of some values.
    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_same_seed_is_the_same_sequence_for_ever() {
        let mut rng = Rng::new(0);
        let first = [rng.next(), rng.next(), rng.next()];
        // xoshiro256** after SplitMix64(0), as the authors' C code computes it.
        assert_eq!(first, [0x99ec_5f36_cb75_f2b4, 0xbf6e_1f78_4956_452a, 0x1a5f_849d_4933_e6e0]);
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut rng = Rng::new(7);
        for _ in 0..1000 {
            assert!((3..=5).contains(&rng.range(3, 5)));
            assert!(rng.skewed(100) <= 100);
            assert_eq!(rng.below(0), 0);
        }
    }
}
