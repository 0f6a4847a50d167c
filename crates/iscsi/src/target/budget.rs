//! Memory for the data of commands under way, over all sessions of a server.
//!
//! Half of the budget is divided evenly: each session that may exist has a share of its own, which
//! nobody can take from it. The other half is for whoever needs more, but for one initiator at most
//! half of that. A write that finds no memory is answered TASK SET FULL and its data thrown away; a
//! read waits. So no session waits for the data of another, and none can lock out another as long
//! as its commands fit its share. Larger ones depend on the common half: who holds memory of it and
//! does not bring as much to an end while others are refused is dropped ([`Budget::hoards`]).
//!
//! What is charged is what has come (`write_buffers`), what a read may bring, and what the device
//! server needs to execute a command; never what a command merely promises.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::time::Instant;
use tokio::sync::Notify;

use super::session::now;

/// Within this time a session has to bring to an end, by executed commands, as much common memory
/// as it held at the beginning, or it hoards: longer than any path needs for the largest command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory of a whole server.
pub(super) struct Budget {
    common_max: AtomicU64,
    common_used: AtomicU64,
    own_max: AtomicU64,
    /// What sessions use of their own shares, for the metrics.
    own_used: AtomicU64,
    refusals: AtomicU64,
    refused_at_ms: AtomicU64,
    /// Reads that wait for memory. They ask again when some is given back, which may be never.
    waiting: AtomicU64,
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
    /// Common memory given back so far by commands that were executed, in bytes. An aborted one is
    /// no progress: it costs its sender nothing to send it anew.
    finished: AtomicU64,
    turnover: Mutex<Turnover>,
}

/// Since when a session has not brought to an end what it held then.
#[derive(Default)]
struct Turnover {
    since_ms: u64,
    /// What [`Account::finished`] has to reach.
    finished_wanted: u64,
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
            waiting: AtomicU64::new(0),
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
            finished: AtomicU64::new(0),
            turnover: Mutex::default(),
        })
    }

    /// Is this session in the way of others? See [`PATIENCE`]. To be asked every few seconds.
    pub(super) fn hoards(&self, account: &Account) -> bool {
        self.hoards_at(account, now())
    }

    fn hoards_at(&self, account: &Account, now: Instant) -> bool {
        let (patience, now) = (ms(Instant(PATIENCE)), ms(now));
        let stands_still = account.stands_still_for_ms(now) > patience;
        let refused = self.refused_at_ms.load(Ordering::Relaxed) + patience > now;
        let pressed = refused && self.refusals() > 0 || self.waiting.load(Ordering::Relaxed) > 0;
        stands_still && pressed
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
        let mut charge = Charge::none(self);
        charge.grow(bytes).then_some(charge)
    }

    /// How long it has not brought to an end what it held at the beginning of that time.
    fn stands_still_for_ms(&self, now_ms: u64) -> u64 {
        let mut turnover = self.turnover.lock().unwrap_or_else(PoisonError::into_inner);
        let finished = self.finished.load(Ordering::Relaxed);
        let held = self.common.load(Ordering::Relaxed);
        if held == 0 || finished >= turnover.finished_wanted {
            // Something is wanted even of one that holds nothing, so that its time begins with the
            // first byte and not with the start of the process.
            let finished_wanted = finished + held;
            *turnover = Turnover { since_ms: now_ms, finished_wanted };
        }
        now_ms.saturating_sub(turnover.since_ms)
    }

    /// Waits for memory: what others hold is given back as they are served.
    pub(super) async fn wait(self: &Arc<Self>, bytes: u64) -> Charge {
        if let Some(charge) = self.charge(bytes) {
            return charge;
        }
        // From here on whoever gives memory back tells of it, which costs a lock.
        let _in_need = Waiting::begin(&self.budget);
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

/// Somebody waits for memory, until this is dropped.
struct Waiting(Arc<Budget>);

impl Waiting {
    fn begin(budget: &Arc<Budget>) -> Self {
        budget.waiting.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // seen by whoever gives back what is not seen to be free from here
        Self(Arc::clone(budget))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Charge {
    /// Of nothing, so far.
    pub(super) fn none(account: &Arc<Account>) -> Self {
        Self { account: Arc::clone(account), own: 0, common: 0 }
    }

    /// So much more, of the session's own share or else of the common half; false, and nothing more
    /// than before, if there is none.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let (account, budget) = (&self.account, &self.account.budget);
        if take(&account.own, bytes, budget.own_max.load(Ordering::Relaxed)) {
            budget.own_used.fetch_add(bytes, Ordering::Relaxed);
            self.own += bytes;
            return true;
        }
        let common_max = budget.common_max.load(Ordering::Relaxed);
        if take(&account.initiator, bytes, common_max / 2) {
            if take(&budget.common_used, bytes, common_max) {
                account.common.fetch_add(bytes, Ordering::AcqRel);
                self.common += bytes;
                return true;
            }
            account.initiator.fetch_sub(bytes, Ordering::AcqRel);
        }
        budget.refusals.fetch_add(1, Ordering::Relaxed);
        budget.refused_at_ms.store(ms(now()), Ordering::Relaxed);
        false
    }

    /// Bytes charged.
    pub(super) fn bytes(&self) -> u64 {
        self.own + self.common
    }

    /// Gives all back: the command it was for has been executed.
    pub(super) fn finish(self) {
        self.account.finished.fetch_add(self.common, Ordering::Relaxed);
    }

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
        }
        if own + common == 0 {
            return;
        }
        fence(Ordering::SeqCst); // whoever begins to wait behind this finds what was given back
        if budget.waiting.load(Ordering::Relaxed) > 0 {
            budget.freed.notify_waiters();
        }
    }

    /// What a read has brought, charged until the last of it is sent.
    pub(super) fn cover(mut self, data: Bytes) -> Bytes {
        struct Covered(Bytes, Option<Charge>);
        impl Drop for Covered {
            fn drop(&mut self) {
                if let Some(charge) = self.1.take() {
                    charge.finish();
                }
            }
        }
        impl AsRef<[u8]> for Covered {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        if data.is_empty() {
            return data;
        }
        self.shrink_to(data.len() as u64);
        Bytes::from_owner(Covered(data, Some(self)))
    }
}

/// Data that is charged, if it is, until the last of it is gone.
pub(super) fn covered(data: Bytes, charge: Option<Charge>) -> Bytes {
    match charge {
        Some(charge) => charge.cover(data),
        None => data,
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.give(self.own, self.common);
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

    /// It is refused once, and asks again when memory is given back, which the hoarder never does.
    #[tokio::test]
    async fn a_read_that_waits_is_in_need_for_as_long_as_it_waits() {
        let budget = Budget::new(8 * MIB, 1024);
        let [hoarder, other] = ["hoarder", "other"].map(|name| budget.open(name));
        let held = [hoarder.charge(MIB).unwrap(), hoarder.charge(MIB).unwrap()];
        let more = ["a", "b"].map(|name| budget.open(name).charge(MIB).unwrap());
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.wait(MIB).await }
        });
        while budget.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        let at = |seconds| Instant(now().0 + Duration::from_secs(seconds));
        let hoards = |seconds| budget.hoards_at(&hoarder, at(seconds));
        assert!(!hoards(20), "its time begins");
        assert_eq!(
            (hoards(49), hoards(51)),
            (false, true),
            "refused longer ago than it is patient"
        );
        drop(held);
        drop(waiting.await.unwrap());
        assert_eq!(budget.waiting.load(Ordering::Relaxed), 0);
        drop(more);
    }

    /// Times of the rule in seconds: whoever holds what others wait for has to bring as much to an
    /// end in 30 s, and aborts do not count.
    #[test]
    fn only_executed_commands_are_progress_and_by_their_bytes() {
        let budget = Budget::new(8 * MIB, 1024);
        let [hoarder, worker, other] = ["hoarder", "worker", "other"].map(|name| budget.open(name));
        let held = [hoarder.charge(MIB).unwrap(), hoarder.charge(MIB).unwrap()];
        let mut work = worker.charge(MIB).unwrap();
        let at = |seconds| Instant(now().0 + Duration::from_secs(seconds));
        let look =
            |seconds| [&hoarder, &worker].map(|account| budget.hoards_at(account, at(seconds)));
        assert_eq!(look(0), [false; 2]);
        for seconds in (5..=25).step_by(5) {
            // One aborts and sends anew; the other one is served, late, and slowly.
            let again = hoarder.charge(64).unwrap();
            drop(again);
            work.finish();
            work = worker.charge(MIB).unwrap();
            assert_eq!(look(seconds), [false; 2], "at {seconds} s");
        }
        assert_eq!(look(29), [false; 2]);
        assert!(other.charge(4 * MIB).is_none(), "somebody is refused, now and then again");
        budget.refused_at_ms.store(ms(at(29)), Ordering::Relaxed);
        // A command of a few bytes is executed, which is not what is wanted of it.
        hoarder.charge(64).unwrap().finish();
        work.finish();
        assert_eq!(look(31), [true, false]);
        drop(held);
        assert_eq!(look(31), [false, false]);
    }
}
