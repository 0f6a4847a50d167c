//! Hashes of blocks: SHA-256 with a salt in front, cut to 128 bits.
//!
//! A hash is compared with the one of the same place in the run before, never with those of other
//! places, so that accidents have a chance of 2⁻¹²⁸ for each block that changes. The salt is random
//! and known to the state file only: whoever writes to the source cannot prepare two contents that
//! look alike.

use sha2::{Digest, Sha256};

/// Bytes of a hash.
pub const HASH_BYTES: usize = 16;

/// What the hashes of one state file are made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt(pub [u8; 16]);

/// The hash of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub [u8; HASH_BYTES]);

impl Hash {
    /// What the block holds is not known. A block whose hash is this one by chance is sent in every
    /// run.
    pub const UNKNOWN: Self = Self([0; HASH_BYTES]);

    /// Whether it says what the block holds.
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }
}

/// Makes hashes.
#[derive(Clone)]
pub struct Hasher {
    salted: Sha256,
    /// The hash of a whole block of zeroes, and of the source's last one, which may be shorter.
    zero: Hash,
    zero_last: Hash,
    block_bytes: usize,
}

impl Hasher {
    /// For blocks of so many bytes, the last of which has `last_bytes`.
    pub fn new(salt: Salt, block_bytes: usize, last_bytes: usize) -> Self {
        let salted = Sha256::new().chain_update(salt.0);
        let zeroes = vec![0; block_bytes];
        let zero = digest(&salted, &zeroes);
        let zero_last = digest(&salted, &zeroes[..last_bytes.min(block_bytes)]);
        Self { salted, zero, zero_last, block_bytes }
    }

    /// The hash of a block's content.
    pub fn hash(&self, content: &[u8]) -> Hash {
        if crate::copy::is_zero(content) {
            return self.of_zeroes(content.len());
        }
        digest(&self.salted, content)
    }

    /// The hash of a block of zeroes: a whole one, or the last one.
    pub fn of_zeroes(&self, bytes: usize) -> Hash {
        if bytes == self.block_bytes { self.zero } else { self.zero_last }
    }
}

fn digest(salted: &Sha256, content: &[u8]) -> Hash {
    let whole = salted.clone().chain_update(content).finalize();
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(&whole[..HASH_BYTES]);
    Hash(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_have_the_hash_of_zeroes_and_salts_differ() {
        let hasher = Hasher::new(Salt([1; 16]), 4096, 512);
        let salted = Sha256::new().chain_update([1; 16]);
        assert_eq!(hasher.hash(&[0; 4096]), digest(&salted, &[0; 4096]));
        assert_eq!(hasher.hash(&[0; 512]), digest(&salted, &[0; 512]));
        assert_ne!(hasher.of_zeroes(4096), hasher.of_zeroes(512));
        let other = Hasher::new(Salt([2; 16]), 4096, 512);
        assert_ne!(hasher.hash(&[5; 4096]), other.hash(&[5; 4096]));
        assert!(hasher.hash(&[5; 4096]).is_known());
    }
}
