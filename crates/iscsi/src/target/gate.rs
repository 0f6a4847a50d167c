//! [`Gate`]: connections of a server, counted. Who is logging in, and who has to go when there are
//! too many of those, is the `lobby`'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Places that are taken. The limit comes with each attempt, as it may change.
#[derive(Default)]
pub(super) struct Gate {
    taken: AtomicUsize,
    left: Notify,
}

/// A place; free again when dropped.
pub(super) struct Place(Arc<Gate>);

impl Gate {
    /// A place, unless there are `max`.
    pub(super) fn enter(self: &Arc<Self>, max: usize) -> Option<Place> {
        let one_more = |taken: usize| (taken < max).then_some(taken + 1);
        let entered = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        entered.is_ok().then(|| Place(Arc::clone(self)))
    }

    /// Places taken.
    pub(super) fn count(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// Completes when nobody is in.
    pub(super) async fn empty(&self) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
        self.0.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_and_come_back() {
        let gate = Arc::new(Gate::default());
        let places = [gate.enter(2).unwrap(), gate.enter(2).unwrap()];
        assert!(gate.enter(2).is_none());
        assert!(gate.enter(3).is_some(), "another limit");
        drop(places);
        gate.empty().await;
        assert_eq!(gate.count(), 0);
    }
}
