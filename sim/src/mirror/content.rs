//! What sectors hold. A sector written by the guest names the write it comes from and its own
//! place, so a reader knows from the bytes alone what it has before it.

use std::sync::Arc;

/// Bytes of a sector: what a power cut does not tear.
pub(crate) const SECTOR: usize = 512;

/// [`SECTOR`] as an offset.
pub(crate) const SECTOR_BYTES: u64 = SECTOR as u64;

/// What a sector holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeroes.
    Zero,
    /// What the guest's write of this number left at this place.
    Guest(u32),
    /// Anything else: metadata.
    Raw(Arc<[u8; SECTOR]>),
}

impl Content {
    /// What bytes are at a sector.
    pub(crate) fn of(sector: u64, bytes: &[u8]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let first = words.first().copied().unwrap_or_default();
        if words.iter().all(|word| *word == first) {
            let [a, b, c, d, place @ ..] = first;
            let write = u32::from_be_bytes([a, b, c, d]);
            if write == 0 && place == [0; 4] {
                return Self::Zero;
            }
            if u64::from(u32::from_be_bytes(place)) == sector {
                return Self::Guest(write);
            }
        }
        let mut raw = [0; SECTOR];
        raw.iter_mut().zip(bytes).for_each(|(out, byte)| *out = *byte);
        Self::Raw(Arc::new(raw))
    }

    /// The bytes of it at a sector.
    pub(crate) fn fill(&self, sector: u64, out: &mut [u8]) {
        match self {
            Self::Zero => out.fill(0),
            Self::Raw(raw) => out.copy_from_slice(&raw[..]),
            Self::Guest(write) => {
                let mut word = [0; 8];
                word[..4].copy_from_slice(&write.to_be_bytes());
                // Places are below 2³²: the devices have megabytes.
                word[4..].copy_from_slice(&(sector as u32).to_be_bytes());
                out.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_say_what_they_are_and_where() {
        let mut bytes = [0; SECTOR];
        for content in [Content::Zero, Content::Guest(7), Content::Raw(Arc::new([3; SECTOR]))] {
            content.fill(9, &mut bytes);
            assert_eq!(Content::of(9, &bytes), content);
        }
        Content::Guest(7).fill(9, &mut bytes);
        assert!(matches!(Content::of(10, &bytes), Content::Raw(_)));
    }
}
