//! The other end's losses, as far as the end that receives can see them.

use std::collections::BTreeSet;

use crate::transport::tcp_info::TcpStats;

/// Connections on which segments came out of order.
#[derive(Debug, Default)]
pub(super) struct Disorder {
    now: BTreeSet<u32>,
    before: BTreeSet<u32>,
}

impl Disorder {
    /// An interval begins.
    pub(super) fn next(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Losses of a connection's interval: 1 when segments began to come out of order in it, 0 while that
    /// goes on, because behind one loss everything does until it is repaired. None if the kernel does
    /// not count them (before Linux 5.5).
    pub(super) fn losses(&mut self, serial: u32, old: &TcpStats, new: &TcpStats) -> Option<f64> {
        let (old, new) = (old.out_of_order?, new.out_of_order?);
        let begins = new > old && self.now.insert(serial) && !self.before.contains(&serial);
        Some(f64::from(u8::from(begins)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(out_of_order: u64) -> TcpStats {
        TcpStats { out_of_order: Some(out_of_order), ..TcpStats::default() }
    }

    #[test]
    fn disorder_counts_when_it_begins() {
        let mut disorder = Disorder::default();
        let mut counts = [5, 5, 9, 30, 31, 31, 40].map(stats).into_iter();
        let mut old = counts.next().unwrap();
        let mut losses = Vec::new();
        for new in counts {
            disorder.next();
            losses.push(disorder.losses(1, &old, &new).unwrap());
            assert_eq!(disorder.losses(2, &stats(7), &stats(7)), Some(0.0), "another one");
            old = new;
        }
        assert_eq!(losses, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(disorder.losses(3, &TcpStats::default(), &stats(1)), None);
    }
}
