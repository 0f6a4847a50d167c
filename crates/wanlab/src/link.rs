//! One direction of the line as a pure model: serialisation, DropTail queue, delay and jitter,
//! random and bursty loss.
//!
//! No clock, no sockets, no packets: segments are sizes, time is an argument. Departure is
//! `max(now, busy until) + size / rate`, delivery is departure + delay. Segments keep their order
//! unless the jitter says otherwise.

use std::collections::VecDeque;

use serde::Serialize;

use crate::burst::Burst;
use crate::config::{DirectionConfig, ETHERNET_MIN_WIRE_BYTES, ETHERNET_OVERHEAD_BYTES, Queue};
use crate::jitter::Wander;
use crate::random::SplitMix64;

const NANOS_PER_S: u64 = 1_000_000_000;

/// Tell the streams of random numbers apart that one seed stands for.
const SEED_BURST: u64 = 0x6275_7273_7400_0000;
const SEED_JITTER: u64 = 0x6a69_7474_6572_0000;

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Delivered {
        /// On the clock that `now_ns` was read from.
        at_ns: u64,
        /// When its last bit is on the line.
        departs_ns: u64,
    },
    /// The queue was full.
    DroppedQueue,
    /// It left, took its time on the line and was lost there.
    DroppedLoss,
    /// The same, in a burst.
    DroppedBurst,
}

/// What a direction has done with the segments offered to it; segments and the two kinds of drops
/// make up what was offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Segments carried to the other end.
    pub segments: u64,
    /// IP bytes of these segments.
    pub bytes: u64,
    /// Segments that found the queue full.
    pub dropped_queue: u64,
    /// Segments lost on the line, in bursts or not.
    pub dropped_loss: u64,
    /// Of these, the ones lost in bursts.
    pub dropped_burst: u64,
    /// The most segments that ever waited or were being sent.
    pub queue_packets_max: u64,
    /// The most IP bytes that ever waited or were being sent.
    pub queue_bytes_max: u64,
}

impl Counters {
    /// Of two lines together; the longest queue is that of either.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            bytes: self.bytes + other.bytes,
            dropped_queue: self.dropped_queue + other.dropped_queue,
            dropped_loss: self.dropped_loss + other.dropped_loss,
            dropped_burst: self.dropped_burst + other.dropped_burst,
            queue_packets_max: self.queue_packets_max.max(other.queue_packets_max),
            queue_bytes_max: self.queue_bytes_max.max(other.queue_bytes_max),
        }
    }
}

/// One direction of the line.
#[derive(Debug)]
pub struct Link {
    rate_bits_per_s: u64,
    delay_ns: u64,
    queue: Queue,
    loss: f64,
    seed: u64,
    random: SplitMix64,
    burst: Option<Burst>,
    jitter: Option<Wander>,
    /// When the last accepted segment will have left.
    busy_until_ns: u64,
    /// What division by the rate left over, in bits × 1e9: without it, rounding to whole
    /// nanoseconds would make a fast line up to a percent too fast.
    remainder: u64,
    /// The segments still in the queue, oldest first: departure and IP bytes.
    queued: VecDeque<(u64, u32)>,
    queued_bytes: u64,
    /// The latest delivery so far, before which nothing may arrive that keeps its order.
    last_at_ns: u64,
    counters: Counters,
}

/// How departures move when the rate changes: what is still in the queue leaves at the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retiming {
    now_ns: u64,
    from_bits_per_s: u64,
    to_bits_per_s: u64,
}

impl Retiming {
    /// The new departure of a segment that was to depart at `departs_ns`.
    #[must_use]
    pub fn departure_ns(&self, departs_ns: u64) -> u64 {
        let Some(left_ns) = departs_ns.checked_sub(self.now_ns) else {
            return departs_ns;
        };
        let left_ns =
            u128::from(left_ns) * u128::from(self.from_bits_per_s) / u128::from(self.to_bits_per_s);
        self.now_ns.saturating_add(u64::try_from(left_ns).unwrap_or(u64::MAX))
    }
}

impl Link {
    /// An idle line.
    #[must_use]
    pub fn new(config: &DirectionConfig) -> Self {
        let mut link = Self {
            rate_bits_per_s: config.rate_bits_per_s.max(1),
            delay_ns: 0,
            queue: config.queue,
            loss: 0.0,
            seed: config.seed,
            random: SplitMix64::new(config.seed),
            burst: None,
            jitter: None,
            busy_until_ns: 0,
            remainder: 0,
            queued: VecDeque::new(),
            queued_bytes: 0,
            last_at_ns: 0,
            counters: Counters::default(),
        };
        link.set(0, config);
        link
    }

    /// Makes this another line from now on; counters go on, and so do the streams of random
    /// numbers unless the seed changes. Segments under way keep the delay they left with, those in
    /// the queue leave at the new rate, and a queue that is too long now only takes no more.
    ///
    /// The caller must move the deliveries it keeps by the difference of their departures, and say
    /// with [`Link::deliveries_moved`] which is the latest now.
    pub fn set(&mut self, now_ns: u64, config: &DirectionConfig) -> Option<Retiming> {
        if config.seed != self.seed {
            self.seed = config.seed;
            self.random = SplitMix64::new(config.seed);
            (self.burst, self.jitter) = (None, None);
        }
        self.delay_ns = u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX);
        self.queue = config.queue;
        self.loss = config.loss;
        match (config.burst, &mut self.burst) {
            (Some(model), Some(burst)) => burst.set(model),
            (model, burst) => {
                *burst = model.map(|model| Burst::new(model, config.seed ^ SEED_BURST));
            }
        }
        match (config.jitter, &mut self.jitter) {
            (Some(jitter), Some(wander)) => wander.set(jitter),
            (jitter, wander) => {
                *wander = jitter.map(|jitter| Wander::new(jitter, config.seed ^ SEED_JITTER));
            }
        }
        let rate = config.rate_bits_per_s.max(1);
        if rate == self.rate_bits_per_s {
            return None;
        }
        let retiming =
            Retiming { now_ns, from_bits_per_s: self.rate_bits_per_s, to_bits_per_s: rate };
        self.rate_bits_per_s = rate;
        self.remainder = 0;
        self.busy_until_ns = retiming.departure_ns(self.busy_until_ns);
        for (departs_ns, _) in &mut self.queued {
            *departs_ns = retiming.departure_ns(*departs_ns);
        }
        Some(retiming)
    }

    /// The latest delivery after a [`Retiming`]; `None` if nothing is under way.
    pub fn deliveries_moved(&mut self, last_at_ns: Option<u64>) {
        self.last_at_ns = last_at_ns.unwrap_or(0);
    }

    /// Whether packets may overtake each other.
    #[must_use]
    pub fn reorders(&self) -> bool {
        self.jitter.as_ref().is_some_and(Wander::reorders)
    }

    /// Offers a segment of `ip_bytes` to the line. Times must not run backwards.
    pub fn enqueue(&mut self, now_ns: u64, ip_bytes: u32) -> Fate {
        while let Some(&(departs_ns, bytes)) = self.queued.front()
            && departs_ns <= now_ns
        {
            self.queued.pop_front();
            self.queued_bytes -= u64::from(bytes);
        }
        if self.is_full(ip_bytes) {
            self.counters.dropped_queue += 1;
            return Fate::DroppedQueue;
        }
        let departs_ns = self.serialise(now_ns, ip_bytes);
        self.queued.push_back((departs_ns, ip_bytes));
        self.queued_bytes += u64::from(ip_bytes);
        let counters = &mut self.counters;
        counters.queue_packets_max = counters.queue_packets_max.max(self.queued.len() as u64);
        counters.queue_bytes_max = counters.queue_bytes_max.max(self.queued_bytes);
        // Each draws its number in any case, so that one does not shift what the other loses.
        let lost = self.loss > 0.0 && self.random.next_unit() < self.loss;
        let lost_in_burst = self.burst.as_mut().is_some_and(Burst::loses);
        if lost || lost_in_burst {
            self.counters.dropped_loss += 1;
            if lost {
                return Fate::DroppedLoss;
            }
            self.counters.dropped_burst += 1;
            return Fate::DroppedBurst;
        }
        self.counters.segments += 1;
        self.counters.bytes += u64::from(ip_bytes);
        Fate::Delivered { at_ns: self.arrival_ns(departs_ns), departs_ns }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn is_full(&self, ip_bytes: u32) -> bool {
        match self.queue {
            Queue::Packets(packets) => self.queued.len() >= packets,
            Queue::Bytes(bytes) => self.queued_bytes + u64::from(ip_bytes) > bytes,
        }
    }

    fn arrival_ns(&mut self, departs_ns: u64) -> u64 {
        let delay_ns = match &mut self.jitter {
            Some(jitter) => jitter.delay_ns(departs_ns, self.delay_ns),
            None => self.delay_ns,
        };
        let at_ns = departs_ns.saturating_add(delay_ns);
        if self.reorders() {
            self.last_at_ns = self.last_at_ns.max(at_ns);
            return at_ns;
        }
        self.last_at_ns = self.last_at_ns.max(at_ns);
        self.last_at_ns
    }

    fn serialise(&mut self, now_ns: u64, ip_bytes: u32) -> u64 {
        if self.busy_until_ns < now_ns {
            self.busy_until_ns = now_ns;
            self.remainder = 0;
        }
        let wire_bytes = (ip_bytes + ETHERNET_OVERHEAD_BYTES).max(ETHERNET_MIN_WIRE_BYTES);
        let numerator = u64::from(wire_bytes) * 8 * NANOS_PER_S + self.remainder;
        self.busy_until_ns = self.busy_until_ns.saturating_add(numerator / self.rate_bits_per_s);
        self.remainder = numerator % self.rate_bits_per_s;
        self.busy_until_ns
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn line(rate_bits_per_s: u64, queue_packets: usize) -> DirectionConfig {
        let queue = Queue::Packets(queue_packets);
        DirectionConfig { rate_bits_per_s, queue, ..DirectionConfig::default() }
    }

    fn at(fate: Fate) -> u64 {
        match fate {
            Fate::Delivered { at_ns, .. } => at_ns,
            other => panic!("expected a delivery, got {other:?}"),
        }
    }

    #[test]
    fn a_segment_takes_its_wire_time_and_the_delay() {
        let config = DirectionConfig { delay: Duration::from_millis(10), ..line(1_000_000_000, 9) };
        let mut link = Link::new(&config);
        // 1538 bytes at 1 Gbit/s take 12,304 ns.
        assert_eq!(at(link.enqueue(1000, 1500)), 1000 + 12_304 + 10_000_000);
        // The second waits for the first; an idle line starts at once.
        assert_eq!(at(link.enqueue(1000, 1500)), 1000 + 2 * 12_304 + 10_000_000);
        assert_eq!(at(link.enqueue(1_000_000, 1500)), 1_000_000 + 12_304 + 10_000_000);
    }

    #[test]
    fn a_short_packet_takes_the_shortest_frame() {
        let mut link = Link::new(&line(1_000_000_000, 9));
        assert_eq!(at(link.enqueue(0, 40)), 84 * 8);
        assert_eq!(at(link.enqueue(1_000_000, 46)), 1_000_000 + 84 * 8);
        assert_eq!(at(link.enqueue(2_000_000, 47)), 2_000_000 + 85 * 8);
    }

    #[test]
    fn the_queue_drops_its_tail_and_frees_a_place_at_each_departure() {
        let mut link = Link::new(&line(1_000_000_000, 3));
        for _ in 0..3 {
            at(link.enqueue(0, 1500));
        }
        assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
        assert_eq!(link.enqueue(12_303, 1500), Fate::DroppedQueue);
        assert_eq!(at(link.enqueue(12_304, 1500)), 4 * 12_304);
        assert_eq!(link.enqueue(12_304, 1500), Fate::DroppedQueue);
        let expected = Counters {
            segments: 4,
            bytes: 6000,
            dropped_queue: 3,
            queue_packets_max: 3,
            queue_bytes_max: 4500,
            ..Counters::default()
        };
        assert_eq!(link.counters(), expected);
    }

    #[test]
    fn rounding_does_not_change_the_rate() {
        // 7 Gbit/s: 1538 bytes are 1757.71… ns.
        let mut link = Link::new(&line(7_000_000_000, usize::MAX));
        let last = (0..700_000).map(|_| at(link.enqueue(0, 1500))).last().unwrap();
        assert_eq!(last, 1538 * 8 * 700_000 / 7);
    }

    #[test]
    fn a_lost_segment_still_takes_the_line() {
        let mut link = Link::new(&DirectionConfig { loss: 1.0, ..line(1_000_000_000, 2) });
        assert_eq!(link.enqueue(0, 1500), Fate::DroppedLoss);
        assert_eq!(link.enqueue(0, 1500), Fate::DroppedLoss);
        assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
        assert_eq!(link.counters().dropped_loss, 2);
    }

    #[test]
    fn the_same_seed_loses_the_same_segments() {
        let losses = |seed| {
            let config = DirectionConfig { loss: 0.1, seed, ..line(1_000_000_000, usize::MAX) };
            let mut link = Link::new(&config);
            (0..1000).map(|_| link.enqueue(0, 1500) == Fate::DroppedLoss).collect::<Vec<_>>()
        };
        assert_eq!(losses(7), losses(7));
        assert_ne!(losses(7), losses(8));
    }

    #[test]
    fn the_loss_rate_lies_in_its_binomial_interval() {
        for (loss, seed) in [(1e-4, 1), (1e-3, 2), (1e-2, 3), (0.5, 4)] {
            let n = 2_000_000_u32;
            let config = DirectionConfig { loss, seed, ..line(1_000_000_000, usize::MAX) };
            let mut link = Link::new(&config);
            for i in 0..n {
                link.enqueue(u64::from(i) * 20_000, 1500);
            }
            let expected = f64::from(n) * loss;
            let sigma = (expected * (1.0 - loss)).sqrt();
            let lost = link.counters().dropped_loss as f64;
            assert!((lost - expected).abs() < 2.576 * sigma, "{loss}: {lost} lost of {n}");
        }
    }

    fn jittered(spec: &str) -> DirectionConfig {
        let jitter = crate::jitter::Jitter::parse(spec).unwrap();
        let delay = Duration::from_millis(10);
        DirectionConfig { jitter, delay, ..line(1_000_000_000, usize::MAX) }
    }

    #[test]
    fn a_queue_of_bytes_drops_what_does_not_fit() {
        let queue = Queue::Bytes(4000);
        let mut link = Link::new(&DirectionConfig { queue, ..line(1_000_000_000, 1) });
        at(link.enqueue(0, 1500));
        at(link.enqueue(0, 1500));
        assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
        at(link.enqueue(0, 1000));
        assert_eq!(link.enqueue(0, 1), Fate::DroppedQueue);
        at(link.enqueue(12_304, 1500));
        assert_eq!(link.counters().queue_bytes_max, 4000);
    }

    #[test]
    fn jitter_keeps_the_order_unless_asked_not_to() {
        let arrivals = |spec: &str| {
            let mut link = Link::new(&jittered(spec));
            (0..10_000_u64).map(|i| at(link.enqueue(i * 20_000, 1500))).collect::<Vec<_>>()
        };
        for spec in ["5ms", "5ms,hold=0", "5ms,normal", "5ms,exponential"] {
            let kept = arrivals(spec);
            assert!(kept.is_sorted(), "{spec}");
            assert_eq!(kept, arrivals(spec));
        }
        assert!(!arrivals("5ms,reorder").is_sorted());
    }

    /// A delay that falls must not let later segments overtake earlier ones either.
    #[test]
    fn a_delay_that_falls_keeps_the_order() {
        let config = |ms| DirectionConfig {
            delay: Duration::from_millis(ms),
            ..line(1_000_000_000, usize::MAX)
        };
        let mut link = Link::new(&config(50));
        let before = at(link.enqueue(0, 1500));
        assert_eq!(link.set(1000, &config(10)), None);
        assert_eq!(at(link.enqueue(20_000, 1500)), before);
        assert_eq!(at(link.enqueue(60_000_000, 1500)), 60_000_000 + 12_304 + 10_000_000);
    }

    #[test]
    fn what_waits_leaves_at_the_new_rate() {
        let mut link = Link::new(&line(10_000_000, 100));
        // 1538 bytes at 10 Mbit/s take 1,230,400 ns; half of the first has left at the change.
        for _ in 0..10 {
            at(link.enqueue(0, 1500));
        }
        let half = 615_200;
        let retiming = link.set(half, &line(100_000_000, 100)).unwrap();
        assert_eq!(retiming.departure_ns(100), 100);
        assert_eq!(retiming.departure_ns(1_230_400), half + half / 10);
        let last = half + (10 * 1_230_400 - half) / 10;
        assert_eq!(retiming.departure_ns(10 * 1_230_400), last);
        link.deliveries_moved(Some(last));
        assert_eq!(at(link.enqueue(half, 1500)), last + 123_040);
        // And back: slower again.
        let retiming = link.set(half, &line(10_000_000, 100)).unwrap();
        assert_eq!(retiming.departure_ns(last), 10 * 1_230_400);
    }

    #[test]
    fn settings_that_change_do_not_shift_the_losses() {
        let lossy = |rate| DirectionConfig { loss: 0.1, ..line(rate, usize::MAX) };
        let losses = |change_at: u64| {
            let mut link = Link::new(&lossy(1_000_000_000));
            let mut lost = Vec::new();
            for i in 0..1000 {
                if i == change_at {
                    link.set(
                        i,
                        &DirectionConfig {
                            burst: Some(crate::GilbertElliott { p: 0.1, r: 0.5, h: 0.0, k: 1.0 }),
                            delay: Duration::from_millis(1),
                            ..lossy(2_000_000_000)
                        },
                    );
                }
                lost.push(link.enqueue(i, 1500) == Fate::DroppedLoss);
            }
            (lost, link.counters())
        };
        let (before, counters) = losses(u64::MAX);
        let (after, changed) = losses(500);
        assert_eq!(before, after);
        assert_eq!(counters.dropped_burst, 0);
        assert!(changed.dropped_burst > 0 && changed.dropped_loss > changed.dropped_burst);
        assert_eq!(changed.segments + changed.dropped_loss, 1000);
    }

    proptest! {
        /// Whatever is offered whenever: deliveries keep their order, the queue never holds more
        /// than its limit, and a queue of q packets delays by at most q × packet / rate.
        #[test]
        fn order_and_queue_delay(
            rate in 10_000_u64..20_000_000_000,
            queue in 1_usize..50,
            offers in prop::collection::vec((0_u64..5_000_000, 20_u32..1500), 1..300),
        ) {
            let mut link = Link::new(&line(rate, queue));
            let (mut now_ns, mut last_ns) = (0, 0);
            let mut delivered = 0;
            let bound_ns = (queue as u64 * 1538 * 8 * NANOS_PER_S).div_ceil(rate);
            for (gap_ns, bytes) in offers {
                now_ns += gap_ns;
                if let Fate::Delivered { at_ns, .. } = link.enqueue(now_ns, bytes) {
                    prop_assert!(at_ns >= last_ns);
                    prop_assert!(at_ns - now_ns <= bound_ns);
                    last_ns = at_ns;
                    delivered += 1;
                }
                prop_assert!(link.counters().queue_packets_max <= queue as u64);
            }
            prop_assert_eq!(link.counters().segments, delivered);
        }
    }
}
