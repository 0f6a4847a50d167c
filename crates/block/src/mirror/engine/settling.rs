//! [`Settling`]: when a leg is asked to make stable what it was sent, while more is sent. Pure.
//!
//! A flush behind all of a large batch would take as long as the leg's disk takes for it, and a leg
//! whose flush is not answered in time counts as lost, again and again. So it is asked in between,
//! and what is sent waits where the disk is slower than the line.

/// Bytes after which a flush is due. As many may be sent while it is under way. What is answered
/// and not flushed is remembered range by range, and is what a copy that is killed sends twice.
pub(crate) const SETTLE_BYTES: u64 = 64 << 20;

/// What a leg has not been asked to make stable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settling {
    unflushed: u64,
    flushing: bool,
}

impl Settling {
    /// `bytes` were sent. True: a flush is due, and counts as begun.
    pub(crate) fn sent(&mut self, bytes: u64) -> bool {
        self.unflushed += bytes;
        let due = self.unflushed >= SETTLE_BYTES && !self.flushing;
        if due {
            (self.unflushed, self.flushing) = (0, true);
        }
        due
    }

    /// That flush has ended.
    pub(crate) fn flushed(&mut self) {
        self.flushing = false;
    }

    /// More may be sent before it has ended.
    pub(crate) fn has_room(&self) -> bool {
        !self.flushing || self.unflushed < SETTLE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flush_is_under_way_and_no_more_than_another_one_makes_stable_is_sent_beside_it() {
        let mut settling = Settling::default();
        assert!(!settling.sent(SETTLE_BYTES - 1) && settling.has_room());
        assert!(settling.sent(1) && settling.has_room());
        assert!(!settling.sent(SETTLE_BYTES) && !settling.has_room());
        settling.flushed();
        assert!(settling.has_room() && settling.sent(0), "what was sent meanwhile is the next");
    }
}
