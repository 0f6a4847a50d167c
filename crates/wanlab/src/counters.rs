//! What a line has done: with all packets, and with those of each class.

use serde::Serialize;

use crate::waits::Waits;

/// What a direction has done with the segments offered to it; segments and the four kinds of
/// drops make up what was offered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Segments carried to the other end.
    pub segments: u64,
    /// IP bytes of these segments.
    pub bytes: u64,
    /// Segments that exceeded what the policer lets pass.
    pub dropped_police: u64,
    /// Segments that found the queue full.
    pub dropped_queue: u64,
    /// Segments that found more waiting than the ECN threshold and could not be marked.
    pub dropped_ecn: u64,
    /// Segments lost on the line, in bursts or not.
    pub dropped_loss: u64,
    /// Segments of `dropped_loss` that were lost in bursts.
    pub dropped_burst: u64,
    /// Segments that found more waiting than the ECN threshold and were marked.
    pub marked: u64,
    /// IP bytes of `bytes` that wait or are being sent.
    pub queue_bytes: u64,
    /// The most segments that ever waited or were being sent.
    pub queue_packets_max: u64,
    /// The most IP bytes that ever waited or were being sent.
    pub queue_bytes_max: u64,
    /// Counters by class; without classes there is one, `all`. Of several lines, in the order of
    /// the first that has them.
    pub classes: Vec<ClassCounters>,
}

/// The part of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ClassCounters {
    /// Its marks, joined by `+`.
    pub class: String,
    /// Segments carried to the other end.
    pub segments: u64,
    /// IP bytes of these segments.
    pub bytes: u64,
    /// Segments that found its queue full.
    pub dropped_queue: u64,
    /// Segments that could not be marked above the ECN threshold.
    pub dropped_ecn: u64,
    /// Segments marked above the ECN threshold.
    pub marked: u64,
    /// The most IP bytes that ever waited in it.
    pub queue_bytes_max: u64,
    /// From the arrival of a segment to its first bit on the line; also of those lost there.
    pub queued: Waits,
}

impl Counters {
    /// What was offered and did not arrive.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped_police + self.dropped_queue + self.dropped_ecn + self.dropped_loss
    }

    /// What two lines count together; the longest queue is the longer one of the two.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.dropped_police += other.dropped_police;
        self.dropped_queue += other.dropped_queue;
        self.dropped_ecn += other.dropped_ecn;
        self.dropped_loss += other.dropped_loss;
        self.dropped_burst += other.dropped_burst;
        self.marked += other.marked;
        self.queue_bytes += other.queue_bytes;
        self.queue_packets_max = self.queue_packets_max.max(other.queue_packets_max);
        self.queue_bytes_max = self.queue_bytes_max.max(other.queue_bytes_max);
        for class in &other.classes {
            match self.classes.iter_mut().find(|have| have.class == class.class) {
                Some(have) => have.add(class),
                None => self.classes.push(class.clone()),
            }
        }
        self
    }

    /// The classes from now on. Those whose name stays count on, the others are forgotten.
    pub(crate) fn name_classes(&mut self, names: Vec<String>) {
        let mut before = std::mem::take(&mut self.classes);
        let class = |name: String| {
            let at = before.iter().position(|class| class.class == name);
            let new = ClassCounters { class: name, ..ClassCounters::default() };
            at.map_or(new, |at| before.swap_remove(at))
        };
        self.classes = names.into_iter().map(class).collect();
    }
}

impl ClassCounters {
    fn add(&mut self, other: &Self) {
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.dropped_queue += other.dropped_queue;
        self.dropped_ecn += other.dropped_ecn;
        self.marked += other.marked;
        self.queue_bytes_max = self.queue_bytes_max.max(other.queue_bytes_max);
        self.queued.plus(&other.queued);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(classes: &[(&str, u64)]) -> Counters {
        let of = |&(name, segments): &(&str, u64)| ClassCounters {
            class: name.to_owned(),
            segments,
            ..ClassCounters::default()
        };
        let segments = classes.iter().map(|(_, segments)| segments).sum();
        Counters { segments, classes: classes.iter().map(of).collect(), ..Counters::default() }
    }

    #[test]
    fn lines_with_other_classes_add_up() {
        let sum = line(&[("ef", 1), ("rest", 2)]).plus(&line(&[("rest", 10), ("le", 20)]));
        assert_eq!(sum, line(&[("ef", 1), ("rest", 12), ("le", 20)]));
    }

    #[test]
    fn a_class_that_keeps_its_name_counts_on() {
        let mut counters = line(&[("ef", 1), ("rest", 2)]);
        counters.name_classes(vec!["le".into(), "rest".into()]);
        assert_eq!(counters.classes, line(&[("le", 0), ("rest", 2)]).classes);
    }
}
