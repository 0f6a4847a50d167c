//! The queues of a line's classes, and which segment leaves next: strict priority, or deficit round
//! robin (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", SIGCOMM
//! 1995). What is being sent is never interrupted; segments of a class keep their order.
//!
//! Pure, as the line: segments are sizes, and nothing here knows when a segment leaves.

use std::collections::VecDeque;

use crate::classes::{Classes, Order};
use crate::config::Queue;

/// What a weight of the least class is worth in a round: a full segment of the usual MTU, so that a
/// round is short. Longer ones save for several rounds.
const QUANTUM_BYTES: u64 = 1538;

/// A segment that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) ip_bytes: u32,
    pub(crate) wire_bytes: u32,
    pub(crate) arrived_ns: u64,
    /// It will be lost on the line, after it took its time there.
    pub(crate) lost: bool,
}

/// The queues of all classes.
#[derive(Debug)]
pub(crate) struct Scheduler {
    classes: Classes,
    queues: Vec<ClassQueue>,
    /// Whose turn it is.
    turn: usize,
    /// Whether the class whose turn it is still has to get its quantum.
    begins: bool,
}

#[derive(Debug, Default)]
struct ClassQueue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    quantum: u64,
    /// What it may still send in its turn, on the wire.
    deficit: u64,
}

impl Scheduler {
    pub(crate) fn new(classes: Classes) -> Self {
        let least = classes.weights().min().unwrap_or(1);
        let queue = |weight: u16| ClassQueue {
            quantum: QUANTUM_BYTES * u64::from(weight) / u64::from(least.max(1)),
            ..ClassQueue::default()
        };
        let queues = classes.weights().map(queue).collect();
        Self { classes, queues, turn: 0, begins: true }
    }

    pub(crate) fn classes(&self) -> &Classes {
        &self.classes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// Segments that wait, and their IP bytes.
    pub(crate) fn held(&self) -> (u64, u64) {
        let held = |sum: (u64, u64), queue: &ClassQueue| {
            (sum.0 + queue.waiting.len() as u64, sum.1 + queue.bytes)
        };
        self.queues.iter().fold((0, 0), held)
    }

    /// IP bytes that wait in a class.
    pub(crate) fn bytes(&self, class: usize) -> u64 {
        self.queues[class].bytes
    }

    /// Whether a class holds so much that a segment of this size would exceed it.
    pub(crate) fn exceeds(&self, class: usize, limit: Queue, ip_bytes: u32) -> bool {
        let queue = &self.queues[class];
        limit.is_exceeded(queue.waiting.len(), queue.bytes, ip_bytes)
    }

    pub(crate) fn push(&mut self, class: usize, segment: Waiting) {
        let queue = &mut self.queues[class];
        queue.bytes += u64::from(segment.ip_bytes);
        queue.waiting.push_back(segment);
    }

    /// Takes the segment that leaves next, and of which class it is.
    pub(crate) fn next(&mut self) -> Option<(usize, Waiting)> {
        let class = match self.classes.order() {
            Order::Strict => self.queues.iter().position(|queue| !queue.waiting.is_empty())?,
            Order::Weighted => self.next_in_turn()?,
        };
        let queue = &mut self.queues[class];
        let segment = queue.waiting.pop_front()?;
        queue.bytes -= u64::from(segment.ip_bytes);
        queue.deficit = queue.deficit.saturating_sub(u64::from(segment.wire_bytes));
        if queue.waiting.is_empty() && self.classes.order() == Order::Weighted {
            // Who has nothing to send saves nothing for later.
            queue.deficit = 0;
            self.pass_on();
        }
        Some((class, segment))
    }

    /// Bytes on the wire until so many segments of a class that are not lost have left, if it has
    /// the line for itself; `None` if it has fewer.
    pub(crate) fn wire_bytes_of(&self, class: usize, carried: usize) -> Option<u64> {
        let mut bytes = 0;
        let mut left = carried;
        for segment in &self.queues[class].waiting {
            bytes += u64::from(segment.wire_bytes);
            left -= usize::from(!segment.lost).min(left);
            if left == 0 {
                return Some(bytes);
            }
        }
        None
    }

    /// The class whose first segment fits into what it may send; some class must have one.
    fn next_in_turn(&mut self) -> Option<usize> {
        if self.is_empty() {
            return None;
        }
        loop {
            let queue = &mut self.queues[self.turn];
            if let Some(first) = queue.waiting.front() {
                if std::mem::take(&mut self.begins) {
                    queue.deficit += queue.quantum;
                }
                if u64::from(first.wire_bytes) <= queue.deficit {
                    return Some(self.turn);
                }
            }
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        self.turn = (self.turn + 1) % self.queues.len();
        self.begins = true;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scheduler(text: &str) -> Scheduler {
        Scheduler::new(Classes::parse(text).unwrap())
    }

    /// `arrived_ns` is its number here.
    fn segment(wire_bytes: u32, number: u64) -> Waiting {
        Waiting { ip_bytes: wire_bytes - 38, wire_bytes, arrived_ns: number, lost: false }
    }

    /// Bytes that each class sends of a line for so many segments, while each always has segments
    /// of its size waiting.
    fn served(scheduler: &mut Scheduler, sizes: &[u32], segments: usize) -> Vec<u64> {
        let mut sent = vec![0; sizes.len()];
        for (class, &size) in sizes.iter().enumerate() {
            (0..3).for_each(|number| scheduler.push(class, segment(size, number)));
        }
        for _ in 0..segments {
            let (class, gone) = scheduler.next().unwrap();
            sent[class] += u64::from(gone.wire_bytes);
            scheduler.push(class, segment(sizes[class], 0));
        }
        sent
    }

    #[test]
    fn a_weighted_pair_gets_its_shares() {
        for (text, part, sizes) in [
            ("weighted,ef=1,rest=1", 0.5, [1538, 1538]),
            ("weighted,ef=3,rest=1", 0.75, [1538, 1538]),
            ("weighted,ef=3,rest=1", 0.75, [84, 1538]),
            ("weighted,ef=1,rest=9", 0.1, [1538, 700]),
            ("weighted,ef=7,rest=5", 7.0 / 12.0, [9038, 1538]),
            ("weighted,ef=1000,rest=1", 1000.0 / 1001.0, [1538, 1538]),
        ] {
            let sent = served(&mut scheduler(text), &sizes, 50_000);
            let got = sent[0] as f64 / (sent[0] + sent[1]) as f64;
            assert!((got - part).abs() < 0.02 * part, "{text} {sizes:?}: {got} of {part}");
        }
    }

    #[test]
    fn what_a_class_does_not_use_others_get() {
        let mut scheduler = scheduler("weighted,ef=9,rest=1");
        for number in 0..100 {
            scheduler.push(1, segment(1538, number));
        }
        for number in 0..100 {
            assert_eq!(scheduler.next().unwrap(), (1, segment(1538, number)));
        }
        assert!(scheduler.next().is_none() && scheduler.is_empty());
        // It saved nothing: a class that comes back waits for a round at most.
        let sent = served(&mut scheduler, &[1538, 1538], 20);
        assert!(sent[1] >= 1538, "{sent:?}");
    }

    /// However much the others have waiting: none of them leaves before the first class is empty.
    #[test]
    fn strict_order_lets_nobody_before_the_first() {
        let mut scheduler = scheduler("strict,ef,rest,le");
        for number in 0..5 {
            (0..3).for_each(|class| scheduler.push(class, segment(1538, number)));
        }
        let order: Vec<usize> = std::iter::from_fn(|| scheduler.next()).map(|(c, _)| c).collect();
        assert_eq!(order, [[0; 5], [1; 5], [2; 5]].concat());
        scheduler.push(2, segment(1538, 0));
        scheduler.push(2, segment(1538, 1));
        assert_eq!(scheduler.next().unwrap().0, 2);
        scheduler.push(0, segment(84, 2));
        assert_eq!(scheduler.next().unwrap().0, 0);
    }

    #[test]
    fn limits_are_of_each_class() {
        let mut scheduler = scheduler("strict,ef,rest");
        for number in 0..4 {
            assert!(!scheduler.exceeds(1, Queue::Packets(4), 1500));
            scheduler.push(1, segment(1538, number));
        }
        assert!(scheduler.exceeds(1, Queue::Packets(4), 1500));
        assert!(!scheduler.exceeds(0, Queue::Packets(4), 1500));
        assert!(scheduler.exceeds(1, Queue::Bytes(7499), 1500));
        assert!(!scheduler.exceeds(1, Queue::Bytes(7500), 1500));
        assert_eq!((scheduler.held(), scheduler.bytes(1)), ((4, 6000), 6000));
    }

    #[test]
    fn how_long_until_some_have_left() {
        let mut scheduler = scheduler("strict,ef,rest");
        for number in 0..4 {
            let lost = number == 1;
            scheduler.push(0, Waiting { lost, ..segment(1000, number) });
        }
        assert_eq!(scheduler.wire_bytes_of(0, 1), Some(1000));
        assert_eq!(scheduler.wire_bytes_of(0, 2), Some(3000));
        assert_eq!(scheduler.wire_bytes_of(0, 4), None);
        assert_eq!(scheduler.wire_bytes_of(1, 1), None);
    }

    proptest! {
        /// Whatever comes and goes: all that came leaves, once, each class in its order, and no
        /// class that has something waiting is passed over for longer than a round.
        #[test]
        fn no_reordering_within_a_class(
            strict: bool,
            steps in prop::collection::vec((0_usize..3, 84_u32..9038, 0_usize..3), 1..400),
        ) {
            let text = if strict { "strict,ef,rest,le" } else { "weighted,ef=5,rest=2,le=1" };
            let mut scheduler = scheduler(text);
            let mut came = [0_u64; 3];
            let mut left = [0_u64; 3];
            let mut others = [0_u64; 3];
            let mut take = |scheduler: &mut Scheduler| {
                let before: Vec<bool> =
                    scheduler.queues.iter().map(|queue| !queue.waiting.is_empty()).collect();
                let Some((class, gone)) = scheduler.next() else { return Ok(false) };
                prop_assert_eq!(gone.arrived_ns, left[class]);
                left[class] += 1;
                for other in 0..3 {
                    others[other] = if other != class && before[other] {
                        others[other] + u64::from(gone.wire_bytes)
                    } else {
                        0
                    };
                    // Six rounds for the longest segment, of eight quanta, and one begun.
                    prop_assert!(strict || others[other] < 7 * 8 * QUANTUM_BYTES + 2 * 9038);
                }
                Ok(true)
            };
            for (class, bytes, takes) in steps {
                scheduler.push(class, segment(bytes, came[class]));
                came[class] += 1;
                for _ in 0..takes {
                    take(&mut scheduler)?;
                }
            }
            while take(&mut scheduler)? {}
            prop_assert_eq!(left, came);
            prop_assert_eq!(scheduler.held(), (0, 0));
        }
    }
}
