//! The virtual clock: what happens next, and when. Two things due at the same time happen in the
//! order in which they were planned, so a run has no ties that anything but the seed decides.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use iscsi_proto::time::Instant;

/// Plans events and hands them out in time order; time passes only in [`Clock::next`].
#[derive(Debug)]
pub(crate) struct Clock<E> {
    now: Instant,
    planned: u64,
    heap: BinaryHeap<Reverse<Planned<E>>>,
}

#[derive(Debug)]
struct Planned<E> {
    at: Instant,
    order: u64,
    event: E,
}

impl<E> Clock<E> {
    pub(crate) fn new() -> Self {
        Self { now: Instant::default(), planned: 0, heap: BinaryHeap::new() }
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Plans an event; what should have happened already happens next.
    pub(crate) fn at(&mut self, at: Instant, event: E) {
        let (at, order) = (at.max(self.now), self.planned);
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, order, event }));
    }

    /// Lets time pass until the next event.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(Planned { at, event, .. }) = self.heap.pop()?;
        self.now = at;
        Some(event)
    }
}

impl<E> Planned<E> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.order)
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Planned<E> {}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_decides_and_then_the_order_of_planning() {
        let mut clock = Clock::new();
        for (ms, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            clock.after(Duration::from_millis(ms), event);
        }
        let order: String = std::iter::from_fn(|| clock.next()).collect();
        assert_eq!(order, "abcd");
        assert_eq!(clock.now(), Instant(Duration::from_millis(5)));
    }
}
