//! How much may be read ahead in vain: a loan that is paid back by what is read of it. Pure.
//!
//! Each stream looks like one at its beginning, and among random reads many do. Whether reading
//! ahead pays on a volume is known from what became of it so far, over all of its streams.

/// What a chunk pays back when a part of it is read, in its own size: reading ahead goes on while a
/// quarter of the chunks is read. A reader at equal distances reads a little of every one.
const USED_FACTOR: u64 = 4;

/// One byte in so many that are read from the device itself may be read ahead in vain, so that a
/// stream which begins later is found out as one.
const DEMAND_SHARE: u64 = 16;

/// The account of a volume.
#[derive(Debug)]
pub(super) struct Credit {
    bytes: u64,
    bytes_max: u64,
}

impl Credit {
    /// All of it: `bytes_max`, which a reader who needs the largest window has under way.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes: bytes_max, bytes_max }
    }

    /// `bytes` are about to be read ahead. False: they may not be, and nothing is taken.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.unwrap_or(self.bytes);
        left.is_some()
    }

    /// A part of a chunk of this length was read, for the first time.
    pub(super) fn used(&mut self, chunk_bytes: u64) {
        self.repay(chunk_bytes.saturating_mul(USED_FACTOR));
    }

    /// `bytes` were asked of the device itself, since they were not read ahead.
    pub(super) fn demanded(&mut self, bytes: u64) {
        self.repay(bytes / DEMAND_SHARE);
    }

    /// `bytes` may be read ahead once more, up to the whole loan.
    pub(super) fn repay(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes).min(self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 256 << 10;
    const MAX: u64 = 128 << 20;

    #[test]
    fn what_is_read_in_vain_is_bounded_by_the_loan_and_a_share_of_what_is_read() {
        let mut credit = Credit::new(MAX);
        let (mut vain, mut read) = (0, 0);
        for _ in 0..1_000_000 {
            read += 4096;
            credit.demanded(4096);
            vain += if credit.take(CHUNK) { CHUNK } else { 0 };
        }
        assert!(vain <= MAX + read / DEMAND_SHARE, "{vain} beside {read}");
        assert!(vain >= MAX, "{vain}");
    }

    #[test]
    fn a_reader_of_every_fourth_chunk_goes_on_and_one_of_every_fifth_does_not() {
        let asked = |every: u64| {
            let mut credit = Credit::new(MAX);
            let chunks = (0..100_000).take_while(|n| {
                let may = credit.take(CHUNK);
                if n % every == 0 {
                    credit.used(CHUNK);
                }
                may
            });
            chunks.count()
        };
        assert_eq!((asked(4), asked(1)), (100_000, 100_000));
        assert!(asked(5) < 4000);
    }

    #[test]
    fn a_reader_who_follows_on_many_in_vain_has_his_window_after_some_round_trips() {
        let mut credit = Credit::new(MAX);
        while credit.take(CHUNK) {}
        // What he reads meanwhile is not there; from the first chunk on it is.
        credit.demanded(DEMAND_SHARE * CHUNK);
        let mut rounds = 0;
        let mut window = 0;
        while window < (64 << 20) / CHUNK {
            window = 0;
            while credit.take(CHUNK) {
                window += 1;
            }
            (0..window).for_each(|_| credit.used(CHUNK));
            rounds += 1;
        }
        assert!(rounds <= 5, "{rounds}");
    }
}
