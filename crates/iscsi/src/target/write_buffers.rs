//! [`WriteBuffers`]: the data of writes while it arrives, charged as it does.
//!
//! A command says how long its data will be, and its peer may never send it. So a write is charged
//! what has come, in steps; one that finds no memory at some point is refused, what it had is given
//! back, and the rest of its data is thrown away.

use std::collections::HashMap;
use std::sync::Arc;

use block::Buf;
use bytes::Bytes;
use iscsi_proto::ids::Itt;

use super::budget::{Account, Charge};

/// Bytes charged at a time: a page, which is what the kernel gives for its first byte.
const STEP_BYTES: usize = 4096;

/// Data of the writes that one connection is collecting.
pub(super) struct WriteBuffers {
    account: Arc<Account>,
    writes: HashMap<Itt, Collecting>,
}

/// Data of one write so far, with the memory it is charged.
#[derive(Default)]
pub(super) struct Collecting {
    buf: Option<Buf>,
    /// Bytes that have come.
    arrived: usize,
    charge: Option<Charge>,
    /// There was no memory for it: its data is thrown away.
    refused: bool,
}

/// A write whose data is complete.
pub(super) struct Collected {
    pub(super) data: Bytes,
    /// To be kept for as long as the data.
    pub(super) charge: Option<Charge>,
    /// Answer TASK SET FULL instead of executing it.
    pub(super) refused: bool,
}

impl WriteBuffers {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Self { account, writes: HashMap::new() }
    }

    /// A buffer of at least `len` bytes with what has arrived already, for `coming` bytes more, or
    /// `None`: throw the data away. It grows once at most, when memory is promised to a write that
    /// had to wait for it. What nothing has come for costs nothing: the kernel gives memory as it
    /// is touched.
    pub(super) fn fill(&mut self, itt: Itt, len: usize, coming: usize) -> Option<Buf> {
        let write = self.writes.entry(itt).or_default();
        if write.refused {
            return None;
        }
        write.arrived = write.arrived.saturating_add(coming);
        if !write.pay(&self.account, len) {
            *write = Collecting { refused: true, ..Collecting::default() };
            return None;
        }
        let old = write.buf.take();
        if old.as_ref().is_some_and(|buf| buf.len() >= len) {
            return old;
        }
        let mut buf = Buf::new(len);
        if let Some(short) = old {
            buf[..short.len()].copy_from_slice(&short);
        }
        Some(buf)
    }

    /// The buffer is filled.
    pub(super) fn put_back(&mut self, itt: Itt, buf: Buf) {
        if let Some(write) = self.writes.get_mut(&itt) {
            write.buf = Some(buf);
        }
    }

    /// The write is over; its buffer may be with the receiver still, and goes from there.
    pub(super) fn forget(&mut self, itt: Itt) {
        self.writes.remove(&itt);
    }

    /// Goes on with a write of a connection that was lost.
    pub(super) fn adopt(&mut self, itt: Itt, write: Collecting) {
        self.writes.insert(itt, write);
    }

    /// The writes, for the connections that will take them over.
    pub(super) fn into_writes(self) -> impl Iterator<Item = (Itt, Collecting)> {
        self.writes.into_iter()
    }

    pub(super) fn collect(&mut self, itt: Itt) -> Collected {
        if self.writes.is_empty() {
            // Among reads nothing has to be hashed.
            return Collected { data: Bytes::new(), charge: None, refused: false };
        }
        let Collecting { buf, charge, refused, .. } = self.writes.remove(&itt).unwrap_or_default();
        Collected { data: buf.map_or_else(Bytes::new, Buf::freeze), charge, refused }
    }
}

impl Collecting {
    /// Memory for what has come, of a write of `len` bytes; false if there is none.
    fn pay(&mut self, account: &Arc<Account>, len: usize) -> bool {
        let wanted = self.arrived.next_multiple_of(STEP_BYTES).min(len) as u64;
        let charge = self.charge.get_or_insert_with(|| Charge::none(account));
        let missing = wanted.saturating_sub(charge.bytes());
        missing == 0 || charge.grow(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::Budget;
    use super::*;

    #[test]
    fn a_write_without_memory_loses_its_data_and_nothing_else() {
        let budget = Budget::new(4096 * 8, 2);
        let mut buffers = WriteBuffers::new(budget.open("a"));
        let buf = buffers.fill(Itt(1), 4096, 4096).unwrap();
        buffers.put_back(Itt(1), buf);
        assert!(buffers.fill(Itt(2), 1 << 20, 1 << 20).is_none());
        assert!(buffers.fill(Itt(2), 4096, 512).is_none(), "refused once, refused to its end");
        assert!(buffers.collect(Itt(2)).refused);
        let collected = buffers.collect(Itt(1));
        assert!(!collected.refused && budget.used() == 4096);
        drop(collected);
        assert_eq!((budget.used(), budget.refusals()), (0, 1));
    }

    #[test]
    fn a_write_is_charged_what_has_come() {
        const LEN: usize = 16 << 20;
        let budget = Budget::new(96 << 20, 1024);
        let mut buffers = WriteBuffers::new(budget.open("a"));
        // As many as would fill the budget twice, with 512 bytes each.
        for itt in 0..8 {
            let buf = buffers.fill(Itt(itt), LEN, 512).unwrap();
            buffers.put_back(Itt(itt), buf);
        }
        assert_eq!(budget.used(), 8 * STEP_BYTES as u64);
        // One that sends all of it, half of that twice.
        for _ in 0..LEN / STEP_BYTES * 3 / 2 {
            let buf = buffers.fill(Itt(9), LEN, STEP_BYTES).unwrap();
            buffers.put_back(Itt(9), buf);
        }
        assert_eq!(budget.used(), 8 * STEP_BYTES as u64 + LEN as u64);
        // A second one does not fit what one initiator may have; it gives back what it had.
        let before = budget.used();
        let mut filled = 0;
        while let Some(buf) = buffers.fill(Itt(10), LEN, STEP_BYTES) {
            buffers.put_back(Itt(10), buf);
            filled += STEP_BYTES;
        }
        assert!(filled > 0 && filled < LEN && budget.used() == before);
        assert!(buffers.collect(Itt(10)).refused);
        (0..10).for_each(|itt| buffers.forget(Itt(itt)));
        assert_eq!(budget.used(), 0);
    }
}
