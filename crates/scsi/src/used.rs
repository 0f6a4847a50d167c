//! [`Used`]: the logical units that one nexus has worked with, so that nobody takes one away
//! without knowing. Costs a load for each command that reads, writes or flushes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::lun::Lun;

const WORDS: usize = (Lun::MAX as usize + 1) / u64::BITS as usize;

/// A bit for each number that there may be.
pub(crate) struct Used([AtomicU64; WORDS]);

impl Default for Used {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

impl Used {
    fn place(&self, lun: Lun) -> (&AtomicU64, u64) {
        let number = usize::from(lun.number());
        (&self.0[number / 64], 1 << (number % 64))
    }

    /// A command that reads, changes or flushes the unit is executed.
    pub(crate) fn note(&self, lun: Lun) {
        let (word, bit) = self.place(lun);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The unit is gone: one that has its number later is another.
    pub(crate) fn forget(&self, lun: Lun) {
        let (word, bit) = self.place(lun);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    pub(crate) fn has(&self, lun: Lun) -> bool {
        let (word, bit) = self.place(lun);
        word.load(Ordering::Relaxed) & bit != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_bit_of_its_own() {
        let used = Used::default();
        let numbers = [0, 1, 63, 64, 255, 256, Lun::MAX];
        let [noted, others] = [0, 1].map(|odd| {
            let every_other = numbers.iter().skip(odd).step_by(2);
            every_other.filter_map(|number| Lun::new(*number)).collect::<Vec<Lun>>()
        });
        noted.iter().for_each(|lun| used.note(*lun));
        assert!(noted.iter().all(|lun| used.has(*lun)));
        assert!(!others.iter().any(|lun| used.has(*lun)));
        noted.iter().for_each(|lun| used.forget(*lun));
        assert!(!noted.iter().any(|lun| used.has(*lun)));
    }
}
