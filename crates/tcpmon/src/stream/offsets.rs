//! 32-bit sequence numbers of one direction as 64-bit offsets that do not wrap.

/// Turns sequence numbers into offsets. The low 32 bits of an offset are the sequence number.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offsets {
    near: Option<u64>,
}

impl Offsets {
    /// The offset of `seq`, taken to be within 2 GiB of the last one. The first one ever lies a
    /// whole circle above zero, so that what came before it has an offset too.
    pub fn of(&mut self, seq: u32) -> u64 {
        let offset = match self.near {
            None => (1 << 32) | u64::from(seq),
            Some(near) => {
                let step = seq.wrapping_sub(near as u32) as i32;
                // Saturating: a hostile capture may walk backwards below the start.
                near.saturating_add_signed(i64::from(step))
            }
        };
        self.near = Some(offset);
        offset
    }

    /// The offset of `seq` if anything of this direction was seen before; the memory stays.
    pub fn peek(&self, seq: u32) -> Option<u64> {
        let mut copy = *self;
        self.near.map(|_| copy.of(seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_and_offsets_do_not() {
        let mut offsets = Offsets::default();
        let first = offsets.of(u32::MAX - 10);
        assert_eq!(offsets.of(5) - first, 16);
        assert_eq!(offsets.of(u32::MAX), first + 10);
        assert_eq!(offsets.peek(20).unwrap() - first, 31);
        let mut all = Offsets::default();
        let begin = all.of(0);
        for step in 1..=12_u64 {
            assert_eq!(all.of((step << 30) as u32) - begin, step << 30);
        }
        assert_eq!(Offsets::default().peek(1), None);
    }
}
