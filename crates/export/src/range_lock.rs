//! Locks on ranges of blocks, so that read-modify-write of a part of a block loses no other write.
//!
//! Whole-block writes share a range with each other (the device does not order them either);
//! a read-modify-write excludes everything else from its blocks. First come, first served: who
//! waits also holds back later comers, so a stream of whole-block writes starves nobody.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

/// How a holder shares its blocks with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// With other shared holders.
    Shared,
    /// With nobody.
    Exclusive,
}

/// The ranges of one device that are being changed now.
#[derive(Default)]
pub(crate) struct RangeLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_ticket: u64,
    /// In order of arrival. As long as the requests in flight, so a scan beats a tree.
    entries: Vec<Entry>,
}

struct Entry {
    ticket: u64,
    start: u64,
    end: u64,
    mode: Mode,
    /// There while the entry waits for its turn.
    waiter: Option<oneshot::Sender<()>>,
}

impl Entry {
    fn conflicts(&self, start: u64, end: u64, mode: Mode) -> bool {
        self.start < end && start < self.end && (self.mode, mode) != (Mode::Shared, Mode::Shared)
    }
}

/// A held or awaited range. Released, or given up, when dropped.
pub(crate) struct RangeGuard {
    locks: Arc<RangeLocks>,
    ticket: u64,
    turn: Option<oneshot::Receiver<()>>,
}

impl RangeLocks {
    /// Queues for `start..end`. The range is held once [`RangeGuard::is_held`].
    pub(crate) fn acquire(self: &Arc<Self>, start: u64, end: u64, mode: Mode) -> RangeGuard {
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        let (waiter, turn) = if state.entries.iter().any(|e| e.conflicts(start, end, mode)) {
            let (sender, receiver) = oneshot::channel();
            (Some(sender), Some(receiver))
        } else {
            (None, None)
        };
        state.entries.push(Entry { ticket, start, end, mode, waiter });
        RangeGuard { locks: Arc::clone(self), ticket, turn }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn release(&self, ticket: u64) {
        let mut state = self.lock();
        let Some(position) = state.entries.iter().position(|e| e.ticket == ticket) else {
            return;
        };
        state.entries.remove(position);
        for index in position..state.entries.len() {
            let (earlier, later) = state.entries.split_at_mut(index);
            let entry = &mut later[0];
            let blocked =
                || earlier.iter().any(|e| e.conflicts(entry.start, entry.end, entry.mode));
            if entry.waiter.is_some()
                && !blocked()
                && let Some(waiter) = entry.waiter.take()
            {
                // Its receiver may be gone: then its guard is being dropped and releases.
                let _ = waiter.send(());
            }
        }
    }
}

impl RangeGuard {
    /// Whether the range is held already.
    pub(crate) fn is_held(&self) -> bool {
        self.turn.is_none()
    }

    /// Waits until the range is held.
    pub(crate) async fn held(&mut self) {
        if let Some(turn) = &mut self.turn {
            // The sender lives in the entry, which only our drop removes: no error possible.
            let _ = turn.await;
            self.turn = None;
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.locks.release(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(guard: &mut RangeGuard) -> bool {
        guard.turn.as_mut().is_none_or(|turn| turn.try_recv().is_ok())
    }

    #[test]
    fn shared_holders_overlap_and_exclusive_ones_do_not() {
        let locks = Arc::new(RangeLocks::default());
        let one = locks.acquire(0, 10, Mode::Shared);
        let two = locks.acquire(5, 15, Mode::Shared);
        assert!(one.is_held() && two.is_held());
        let mut exclusive = locks.acquire(9, 10, Mode::Exclusive);
        assert!(!exclusive.is_held());
        drop(one);
        assert!(!granted(&mut exclusive), "the second holder is still there");
        drop(two);
        assert!(granted(&mut exclusive));
    }

    #[test]
    fn neighbours_do_not_wait() {
        let locks = Arc::new(RangeLocks::default());
        let _one = locks.acquire(0, 4, Mode::Exclusive);
        assert!(locks.acquire(4, 8, Mode::Exclusive).is_held());
    }

    #[test]
    fn a_waiter_is_not_overtaken_and_may_give_up() {
        let locks = Arc::new(RangeLocks::default());
        let first = locks.acquire(0, 4, Mode::Shared);
        let waiting = locks.acquire(0, 4, Mode::Exclusive);
        let mut late = locks.acquire(0, 4, Mode::Shared);
        assert!(!late.is_held(), "would starve the exclusive waiter");
        drop(waiting);
        assert!(granted(&mut late));
        drop(first);
    }
}
