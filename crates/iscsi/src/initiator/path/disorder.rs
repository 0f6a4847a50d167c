//! The other end's losses, as far as the end that receives can see them.

use std::collections::BTreeSet;

use path::TcpInfo;

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

    /// Losses of a connection's interval: 1 when segments began to come out of order in it, 0 while
    /// that goes on, because behind one loss everything does until it is repaired. None if the
    /// kernel does not count them (before Linux 5.5).
    pub(super) fn losses(&mut self, serial: u32, old: &TcpInfo, new: &TcpInfo) -> Option<f64> {
        let (old, new) = (old.received_out_of_order_segments?, new.received_out_of_order_segments?);
        let begins = new > old && self.now.insert(serial) && !self.before.contains(&serial);
        Some(f64::from(u8::from(begins)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(out_of_order: u32) -> TcpInfo {
        TcpInfo { received_out_of_order_segments: Some(out_of_order), ..TcpInfo::default() }
    }

    #[test]
    fn disorder_counts_when_it_begins() {
        let mut disorder = Disorder::default();
        let mut counts = [5, 5, 9, 30, 31, 31, 40].map(info).into_iter();
        let mut old = counts.next().unwrap();
        let mut losses = Vec::new();
        for new in counts {
            disorder.next();
            losses.push(disorder.losses(1, &old, &new).unwrap());
            assert_eq!(disorder.losses(2, &info(7), &info(7)), Some(0.0), "another one");
            old = new;
        }
        assert_eq!(losses, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(disorder.losses(3, &TcpInfo::default(), &info(1)), None);
    }
}
