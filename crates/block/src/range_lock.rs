//! [`RangeLocks`]: which bytes of a device are being changed, so that read-modify-write of some of
//! them (a part of a block, COMPARE AND WRITE) loses no other change.
//!
//! Changes are shared among each other (the order of overlapping writes is the business of whoever
//! sends them); an exclusive holder waits for the earlier ones that overlap and holds back the
//! later ones. First come, first served, so nobody starves. The mutex is held for bookkeeping only,
//! never across I/O; without an exclusive range around, taking and leaving a range is a push and a
//! remove. It needs no runtime.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Ranges in use and waiting, in bytes.
#[derive(Default)]
pub struct RangeLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_ticket: u64,
    /// In order of arrival as long as there is an exclusive one; the order does not matter before.
    entries: Vec<Entry>,
    exclusive: usize,
}

struct Entry {
    ticket: u64,
    range: Range<u64>,
    exclusive: bool,
    waiting: bool,
    waker: Option<Waker>,
}

/// A range in use, until dropped.
pub struct RangeGuard {
    locks: Arc<RangeLocks>,
    ticket: u64,
}

/// A range that is waited for. Dropped, it gives up its place.
pub struct Waiting(Option<RangeGuard>);

/// The range, as soon as it is free.
pub async fn held(taken: Result<RangeGuard, Waiting>) -> RangeGuard {
    match taken {
        Ok(guard) => guard,
        Err(waiting) => waiting.await,
    }
}

impl RangeLocks {
    /// Takes a range for a change that may overlap with others.
    ///
    /// # Errors
    /// The place in the queue, where the range is not free.
    pub fn shared(self: &Arc<Self>, range: Range<u64>) -> Result<RangeGuard, Waiting> {
        self.take(range, false)
    }

    /// Takes a range for a change that may not.
    ///
    /// # Errors
    /// The place in the queue, where the range is not free.
    pub fn exclusive(self: &Arc<Self>, range: Range<u64>) -> Result<RangeGuard, Waiting> {
        self.take(range, true)
    }

    fn take(self: &Arc<Self>, range: Range<u64>, exclusive: bool) -> Result<RangeGuard, Waiting> {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.exclusive += usize::from(exclusive);
        state.entries.push(Entry { ticket, range, exclusive, waiting: false, waker: None });
        let last = state.entries.len() - 1;
        let waiting = state.exclusive > 0 && state.blocked(last);
        state.entries[last].waiting = waiting;
        drop(state);
        let guard = RangeGuard { locks: self.clone(), ticket };
        if waiting { Err(Waiting(Some(guard))) } else { Ok(guard) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exclusive entries that are looked at first when one asks whether another is blocked. Where many
/// wait for the same range (the lock of a cluster), the first of them blocks all the others.
const LOOKED_AT_FIRST_MAX: usize = 4;

impl Entry {
    /// They overlap, and one of the two is exclusive.
    fn conflicts(&self, other: &Self) -> bool {
        #[cfg(test)]
        COMPARISONS.with(|count| count.set(count.get() + 1));
        (self.exclusive || other.exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

impl State {
    /// An earlier entry is in the way.
    fn blocked(&self, index: usize) -> bool {
        let this = &self.entries[index];
        self.entries[..index].iter().any(|other| this.conflicts(other))
    }

    fn remove(&mut self, ticket: u64) -> Vec<Waker> {
        let Some(index) = self.entries.iter().position(|entry| entry.ticket == ticket) else {
            return Vec::new();
        };
        if self.exclusive == 0 {
            self.entries.swap_remove(index);
            return Vec::new();
        }
        let removed = self.entries.remove(index);
        self.exclusive -= usize::from(removed.exclusive);
        let mut wakers = Vec::new();
        let mut first: Vec<usize> = Vec::new();
        for index in index..self.entries.len() {
            let entry = &self.entries[index];
            // Nothing changes for one that the removed one did not block.
            if !entry.waiting || !entry.conflicts(&removed) {
                continue;
            }
            let exclusive = entry.exclusive;
            let behind = first.iter().any(|earlier| entry.conflicts(&self.entries[*earlier]));
            if !behind && !self.blocked(index) {
                self.entries[index].waiting = false;
                wakers.extend(self.entries[index].waker.take());
            }
            if exclusive && first.len() < LOOKED_AT_FIRST_MAX {
                first.push(index);
            }
        }
        wakers
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let wakers = self.locks.lock().remove(self.ticket);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Future for Waiting {
    type Output = RangeGuard;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        let Some(guard) = &self.0 else {
            panic!("Waiting polled after completion"); // our bug, as for every future
        };
        let ticket = guard.ticket;
        let mut state = guard.locks.lock();
        let entry = state.entries.iter_mut().find(|entry| entry.ticket == ticket);
        if let Some(entry) = entry.filter(|entry| entry.waiting) {
            entry.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        match self.0.take() {
            Some(guard) => Poll::Ready(guard),
            None => Poll::Pending, // not reached: it was there above
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Pairs of entries compared by this thread.
    static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One range that everybody wants, behind as many others that are held: what hundreds of
    /// commands of a dozen sessions come to when they compare and write the same block.
    #[test]
    fn a_crowd_at_one_range_costs_a_look_at_each_and_not_at_each_pair() {
        const CROWD: u64 = 1000;
        let locks = Arc::<RangeLocks>::default();
        let take = |n: u64| locks.exclusive(n..n + 1);
        let elsewhere: Vec<_> = (1..=CROWD).map(|n| take(n).ok().unwrap()).collect();
        let mut holder = take(0).ok().unwrap();
        let crowd: Vec<_> = (0..CROWD).map(|_| take(0).err().unwrap()).collect();
        COMPARISONS.with(|count| count.set(0));
        for mut waiting in crowd {
            drop(holder);
            holder = ready(&mut waiting).expect("its turn has come");
        }
        let compared = COMPARISONS.with(std::cell::Cell::get);
        // A look at each that waits, and one along those that are held, for each that leaves.
        assert!(compared <= CROWD * (3 * CROWD), "{compared} comparisons");
        drop((holder, elsewhere));
        assert!(locks.lock().entries.is_empty());
    }

    fn ready(waiting: &mut Waiting) -> Option<RangeGuard> {
        match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shared_ranges_do_not_meet() {
        let locks = Arc::<RangeLocks>::default();
        let guards: Vec<_> = (0..100).map(|_| locks.shared(0..10).ok().unwrap()).collect();
        drop(guards);
        assert!(locks.lock().entries.is_empty());
    }

    #[test]
    fn an_exclusive_range_waits_and_holds_back() {
        let locks = Arc::<RangeLocks>::default();
        let early = locks.shared(0..10).ok().unwrap();
        let elsewhere = locks.exclusive(20..30).ok().unwrap();
        let mut exclusive = locks.exclusive(5..15).err().unwrap();
        let mut late = locks.shared(14..16).err().unwrap();
        let beside = locks.shared(15..20).ok().unwrap();
        assert!(ready(&mut exclusive).is_none() && ready(&mut late).is_none());
        drop(early);
        let held = ready(&mut exclusive).unwrap();
        assert!(ready(&mut late).is_none());
        drop(held);
        let late = ready(&mut late).unwrap();
        drop((late, beside, elsewhere));
        let state = locks.lock();
        assert!(state.entries.is_empty() && state.exclusive == 0);
    }

    #[test]
    fn giving_up_lets_the_next_one_in() {
        let locks = Arc::<RangeLocks>::default();
        let early = locks.shared(0..10).ok().unwrap();
        let waiting = locks.exclusive(0..10).err().unwrap();
        let mut late = locks.shared(0..10).err().unwrap();
        drop(waiting);
        assert!(ready(&mut late).is_some());
        drop(early);
        assert!(locks.lock().entries.is_empty());
    }
}
