//! The virtual clock: what happens next, and when. Two things due at the same time happen in the
//! order in which they were planned, so a run has no ties that anything but the seed decides.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::collections::binary_heap::{BinaryHeap, PeekMut};
use std::time::Duration;

use iscsi_proto::time::Instant;

/// Plans events and hands them out in time order; time passes only in [`Clock::next`].
#[derive(Debug)]
pub(crate) struct Clock<E> {
    now: Instant,
    planned: u64,
    heap: BinaryHeap<Reverse<Planned<E>>>,
    lanes: Vec<Lane<E>>,
}

/// Events in order, of which the first is in the heap: thousands of bytes are under way a few at a
/// time, and a heap that held all their arrivals would be most of the work.
#[derive(Debug)]
struct Lane<E> {
    waiting: VecDeque<Planned<E>>,
    /// One of this lane is in the heap.
    has_first: bool,
}

/// The numbers of `in_lane`.
type LaneId = usize;

#[derive(Debug)]
struct Planned<E> {
    at: Instant,
    order: u64,
    lane: Option<LaneId>,
    event: E,
}

impl<E> Clock<E> {
    pub(crate) fn new() -> Self {
        Self { now: Instant::default(), planned: 0, heap: BinaryHeap::new(), lanes: Vec::new() }
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Plans an event; what should have happened already happens next.
    pub(crate) fn at(&mut self, at: Instant, event: E) {
        let planned = self.plan(at, None, event);
        self.heap.push(Reverse(planned));
    }

    /// The same for an event that comes no earlier than those planned before it in its lane. Lanes
    /// have small numbers. When it happens does not depend on the lane.
    pub(crate) fn in_lane(&mut self, lane: LaneId, at: Instant, event: E) {
        let planned = self.plan(at, Some(lane), event);
        while self.lanes.len() <= lane {
            self.lanes.push(Lane { waiting: VecDeque::new(), has_first: false });
        }
        let Lane { waiting, has_first } = &mut self.lanes[lane];
        if std::mem::replace(has_first, true) {
            assert!(waiting.back().is_none_or(|last| last.at <= at), "events of a lane in order");
            waiting.push_back(planned);
        } else {
            self.heap.push(Reverse(planned));
        }
    }

    fn plan(&mut self, at: Instant, lane: Option<LaneId>, event: E) -> Planned<E> {
        let (at, order) = (at.max(self.now), self.planned);
        self.planned += 1;
        Planned { at, order, lane, event }
    }

    /// Lets time pass until the next event.
    pub(crate) fn next(&mut self) -> Option<E> {
        let mut first = self.heap.peek_mut()?;
        let lane = first.0.lane.and_then(|lane| self.lanes.get_mut(lane));
        let Reverse(Planned { at, event, .. }) = match lane {
            Some(Lane { waiting, has_first }) => match waiting.pop_front() {
                Some(next) => std::mem::replace(&mut *first, Reverse(next)),
                None => {
                    *has_first = false;
                    PeekMut::pop(first)
                }
            },
            None => PeekMut::pop(first),
        };
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
    #[test]
    fn lanes_do_not_change_what_happens_when() {
        let events = [(5, 0), (1, 1), (5, 1), (3, 2), (6, 0), (5, 2), (6, 1), (6, 2)];
        let order = |laned: bool| {
            let mut clock = Clock::new();
            for (number, (ms, lane)) in events.into_iter().enumerate() {
                let at = Instant(Duration::from_millis(ms));
                match laned && lane != 2 {
                    true => clock.in_lane(lane, at, number),
                    false => clock.at(at, number),
                }
            }
            std::iter::from_fn(|| clock.next()).collect::<Vec<_>>()
        };
        assert_eq!(order(true), [1, 3, 0, 2, 5, 4, 6, 7]);
        assert_eq!(order(true), order(false));
    }
}
