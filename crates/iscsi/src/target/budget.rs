//! Memory for the data of commands under way, over all sessions of a server.
//!
//! Half of the budget is divided evenly: each session that may exist has a share of its own, which
//! nobody can take from it. The other half is for whoever needs more, but for one initiator at most
//! half of that. A write that finds no memory is answered TASK SET FULL and its data thrown away; a
//! read waits. So no session waits for the data of another, and none can lock out another as long
//! as its commands fit its share. Larger ones depend on the common half: who holds memory of it and
//! brings nothing to an end while others are refused is dropped ([`Budget::hoarders`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use block::Buf;
use bytes::Bytes;
use iscsi_proto::ids::Itt;
use iscsi_proto::time::Instant;
use tokio::sync::Notify;

use super::session::now;

/// How long common memory may be held without bringing anything to an end while others are refused:
/// longer than any path needs for the largest command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most that a read is charged beforehand. The device server transfers no more at once, whatever
/// the initiator expects.
const READ_BYTES_MAX: u64 = 16 << 20;

/// Memory of a whole server.
pub(super) struct Budget {
    common_max: AtomicU64,
    common_used: AtomicU64,
    own_max: AtomicU64,
    /// What sessions use of their own shares, for the metrics.
    own_used: AtomicU64,
    refusals: AtomicU64,
    refused_at_ms: AtomicU64,
    freed: Notify,
    initiators: Mutex<HashMap<String, Weak<AtomicU64>>>,
}

/// What one session uses.
pub(super) struct Account {
    budget: Arc<Budget>,
    own: AtomicU64,
    common: AtomicU64,
    /// Common memory of all sessions of the initiator.
    initiator: Arc<AtomicU64>,
    /// When common memory was last given back, or taken first.
    moved_at_ms: AtomicU64,
}

/// Memory in use; given back when dropped.
pub(super) struct Charge {
    account: Arc<Account>,
    own: u64,
    common: u64,
}

impl Budget {
    pub(super) fn new(bytes_max: u64, sessions_max: usize) -> Arc<Self> {
        let budget = Self {
            common_max: AtomicU64::new(0),
            common_used: AtomicU64::new(0),
            own_max: AtomicU64::new(0),
            own_used: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
            refused_at_ms: AtomicU64::new(0),
            freed: Notify::new(),
            initiators: Mutex::default(),
        };
        budget.resize(bytes_max, sessions_max);
        Arc::new(budget)
    }

    /// Other limits. What is in use beyond them is given back as commands end.
    pub(super) fn resize(&self, bytes_max: u64, sessions_max: usize) {
        let sessions = u64::try_from(sessions_max).unwrap_or(u64::MAX).max(1);
        self.common_max.store(bytes_max / 2, Ordering::Relaxed);
        self.own_max.store(bytes_max / 2 / sessions, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.common_used.load(Ordering::Relaxed) + self.own_used.load(Ordering::Relaxed)
    }

    /// Commands that found no memory so far.
    pub(super) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// An account for a new session.
    pub(super) fn open(self: &Arc<Self>, initiator_name: &str) -> Arc<Account> {
        let mut initiators = self.initiators.lock().unwrap_or_else(PoisonError::into_inner);
        initiators.retain(|_, used| used.strong_count() > 0);
        let initiator =
            initiators.get(initiator_name).and_then(Weak::upgrade).unwrap_or_else(|| {
                let used = Arc::new(AtomicU64::new(0));
                initiators.insert(initiator_name.to_owned(), Arc::downgrade(&used));
                used
            });
        Arc::new(Account {
            budget: Arc::clone(self),
            own: AtomicU64::new(0),
            common: AtomicU64::new(0),
            initiator,
            moved_at_ms: AtomicU64::new(0),
        })
    }

    /// Is this session in the way of others? See [`PATIENCE`].
    pub(super) fn hoards(&self, account: &Account) -> bool {
        let patience = ms(Instant(PATIENCE));
        let now = ms(now());
        let pressed = self.refused_at_ms.load(Ordering::Relaxed) + patience > now
            && self.refusals() > 0
            && account.common.load(Ordering::Relaxed) > 0;
        pressed && account.moved_at_ms.load(Ordering::Relaxed) + patience < now
    }
}

fn ms(instant: Instant) -> u64 {
    u64::try_from(instant.0.as_millis()).unwrap_or(u64::MAX)
}

/// Adds, unless that would be more than `max`.
fn take(used: &AtomicU64, bytes: u64, max: u64) -> bool {
    let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= max);
    used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
}

impl Account {
    /// Memory for a command, if there is some.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        let budget = &self.budget;
        if take(&self.own, bytes, budget.own_max.load(Ordering::Relaxed)) {
            budget.own_used.fetch_add(bytes, Ordering::Relaxed);
            return Some(Charge { account: Arc::clone(self), own: bytes, common: 0 });
        }
        let common_max = budget.common_max.load(Ordering::Relaxed);
        if take(&self.initiator, bytes, common_max / 2) {
            if take(&budget.common_used, bytes, common_max) {
                if self.common.fetch_add(bytes, Ordering::AcqRel) == 0 {
                    self.moved_at_ms.store(ms(now()), Ordering::Relaxed);
                }
                return Some(Charge { account: Arc::clone(self), own: 0, common: bytes });
            }
            self.initiator.fetch_sub(bytes, Ordering::AcqRel);
        }
        budget.refusals.fetch_add(1, Ordering::Relaxed);
        budget.refused_at_ms.store(ms(now()), Ordering::Relaxed);
        None
    }

    /// Waits for memory: what others hold is given back as they are served.
    pub(super) async fn wait(self: &Arc<Self>, bytes: u64) -> Charge {
        loop {
            let freed = self.budget.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(charge) = self.charge(bytes) {
                return charge;
            }
            freed.await;
        }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.own.load(Ordering::Relaxed) + self.common.load(Ordering::Relaxed)
    }
}

impl Charge {
    /// Gives back what turned out not to be needed.
    fn shrink_to(&mut self, bytes: u64) {
        let own = self.own.saturating_sub(bytes);
        let common = self.common.saturating_sub(bytes);
        self.give(own, common);
    }

    fn give(&mut self, own: u64, common: u64) {
        let (account, budget) = (&self.account, &self.account.budget);
        if own > 0 {
            self.own -= own;
            account.own.fetch_sub(own, Ordering::AcqRel);
            budget.own_used.fetch_sub(own, Ordering::Relaxed);
        }
        if common > 0 {
            self.common -= common;
            account.common.fetch_sub(common, Ordering::AcqRel);
            account.initiator.fetch_sub(common, Ordering::AcqRel);
            budget.common_used.fetch_sub(common, Ordering::AcqRel);
            account.moved_at_ms.store(ms(now()), Ordering::Relaxed);
        }
        if own + common > 0 {
            budget.freed.notify_waiters();
        }
    }

    /// What a read has brought, charged until the last of it is sent.
    pub(super) fn cover(mut self, data: Bytes) -> Bytes {
        struct Covered(Bytes, #[expect(dead_code, reason = "held until dropped")] Charge);
        impl AsRef<[u8]> for Covered {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        if data.is_empty() {
            return data;
        }
        self.shrink_to(data.len() as u64);
        Bytes::from_owner(Covered(data, self))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give(self.own, self.common);
    }
}

/// What a read that expects so many bytes is charged beforehand.
pub(super) fn read_charge(expected_data_transfer_length: u32) -> u64 {
    u64::from(expected_data_transfer_length).min(READ_BYTES_MAX)
}

/// Data of the writes that one connection is collecting.
pub(super) struct WriteBuffers {
    account: Arc<Account>,
    writes: HashMap<Itt, Collecting>,
}

/// Data of one write so far, with the memory it is charged.
#[derive(Default)]
pub(super) struct Collecting {
    buf: Option<Buf>,
    charges: Vec<Charge>,
    /// There was no memory for it: its data is thrown away.
    refused: bool,
}

/// A write whose data is complete.
pub(super) struct Collected {
    pub(super) data: Bytes,
    /// Keep them for as long as the data.
    pub(super) charges: Vec<Charge>,
    /// Answer TASK SET FULL instead of executing it.
    pub(super) refused: bool,
}

impl WriteBuffers {
    pub(super) fn new(account: Arc<Account>) -> Self {
        Self { account, writes: HashMap::new() }
    }

    /// A buffer of at least this length with what has arrived already, or `None`: throw the data
    /// away. It grows once at most, when memory is promised to a write that had to wait for it.
    pub(super) fn fill(&mut self, itt: Itt, len: usize) -> Option<Buf> {
        let write = self.writes.entry(itt).or_default();
        if write.refused {
            return None;
        }
        let old = write.buf.take();
        let missing = len.saturating_sub(old.as_ref().map_or(0, |buf| buf.len()));
        if missing == 0 {
            return old.or_else(|| Some(Buf::new(len)));
        }
        let Some(charge) = self.account.charge(missing as u64) else {
            *write = Collecting { refused: true, ..Collecting::default() };
            return None;
        };
        write.charges.push(charge);
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
        let Collecting { buf, charges, refused } = self.writes.remove(&itt).unwrap_or_default();
        Collected { data: buf.map_or_else(Bytes::new, Buf::freeze), charges, refused }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_share_of_its_own_is_nobody_elses() {
        // 4 MiB each, 16 MiB in common, 8 MiB of that for one initiator at most.
        let budget = Budget::new(32 * MIB, 4);
        let greedy: Vec<_> = (0..3).map(|_| budget.open("greedy")).collect();
        let mut held = Vec::new();
        for account in &greedy {
            while let Some(charge) = account.charge(MIB) {
                held.push(charge);
            }
        }
        assert_eq!(budget.used(), 3 * 4 * MIB + 8 * MIB);
        let modest = budget.open("modest");
        let own = modest.charge(4 * MIB).expect("its own share");
        let common = modest.charge(8 * MIB).expect("half of the common half");
        assert!(modest.charge(1).is_none());
        drop((own, common, held));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn never_more_than_the_whole() {
        let budget = Budget::new(8 * MIB, 2);
        let accounts = ["a", "b"].map(|name| budget.open(name));
        let mut held = Vec::new();
        for account in accounts.iter().cycle().take(100) {
            held.extend(account.charge(MIB / 2));
            assert!(budget.used() <= 8 * MIB);
        }
        assert_eq!(budget.used(), 8 * MIB);
    }

    #[test]
    fn data_is_charged_until_it_is_gone() {
        let budget = Budget::new(8 * MIB, 2);
        let account = budget.open("a");
        let charge = account.charge(MIB).unwrap();
        let data = charge.cover(Bytes::from(vec![7; 1000]));
        assert_eq!(budget.used(), 1000);
        let part = data.slice(10..20);
        drop(data);
        assert_eq!((budget.used(), &part[..]), (1000, &[7; 10][..]));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_write_without_memory_loses_its_data_and_nothing_else() {
        let budget = Budget::new(4096 * 8, 2);
        let mut buffers = WriteBuffers::new(budget.open("a"));
        let buf = buffers.fill(Itt(1), 4096).unwrap();
        buffers.put_back(Itt(1), buf);
        assert!(buffers.fill(Itt(2), 1 << 20).is_none());
        assert!(buffers.fill(Itt(2), 4096).is_none(), "refused once, refused to its end");
        assert!(buffers.collect(Itt(2)).refused);
        let collected = buffers.collect(Itt(1));
        assert!(!collected.refused && budget.used() == 4096);
        drop(collected);
        assert_eq!((budget.used(), budget.refusals()), (0, 1));
    }

    #[tokio::test]
    async fn a_read_waits_until_others_are_sent() {
        let budget = Budget::new(8 * MIB, 1);
        let account = budget.open("a");
        let held = [account.charge(4 * MIB).unwrap(), account.charge(2 * MIB).unwrap()];
        let waiting = tokio::spawn({
            let account = Arc::clone(&account);
            async move { account.wait(MIB).await }
        });
        while budget.refusals() == 0 {
            tokio::task::yield_now().await;
        }
        drop(held);
        let charge = waiting.await.unwrap();
        assert_eq!((budget.used(), charge.own), (MIB, MIB));
    }
}
