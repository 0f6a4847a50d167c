//! One direction of the line as a pure model: serialisation, DropTail queue, delay, random loss.
//!
//! No clock, no sockets, no packets: segments are sizes, time is an argument. Departure is
//! `max(now, busy until) + size / rate`, delivery is departure + delay.

use std::collections::VecDeque;

use serde::Serialize;

use crate::config::{DirectionConfig, ETHERNET_MIN_WIRE_BYTES, ETHERNET_OVERHEAD_BYTES};

const NANOS_PER_S: u64 = 1_000_000_000;

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Delivered {
        /// On the clock that `now_ns` was read from.
        at_ns: u64,
    },
    /// The queue was full.
    DroppedQueue,
    /// It left, took its time on the line and was lost there.
    DroppedLoss,
}

/// What a direction has done with the segments offered to it; their sum is what was offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Segments carried to the other end.
    pub segments: u64,
    /// IP bytes of these segments.
    pub bytes: u64,
    /// Segments that found the queue full.
    pub dropped_queue: u64,
    /// Segments lost at random.
    pub dropped_loss: u64,
    /// The most segments that ever waited or were being sent.
    pub queue_packets_max: u64,
}

/// One direction of the line.
#[derive(Debug)]
pub struct Link {
    rate_bits_per_s: u64,
    delay_ns: u64,
    queue_packets: usize,
    loss: f64,
    random: SplitMix64,
    /// When the last accepted segment will have left.
    busy_until_ns: u64,
    /// What division by the rate left over, in bits × 1e9: without it, rounding to whole
    /// nanoseconds would make a fast line up to a percent too fast.
    remainder: u64,
    /// Departures of the segments still in the queue, oldest first.
    departures_ns: VecDeque<u64>,
    counters: Counters,
}

impl Link {
    /// An idle line.
    #[must_use]
    pub fn new(config: &DirectionConfig) -> Self {
        Self {
            rate_bits_per_s: config.rate_bits_per_s.max(1),
            delay_ns: u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX),
            queue_packets: config.queue_packets,
            loss: config.loss,
            random: SplitMix64(config.seed),
            busy_until_ns: 0,
            remainder: 0,
            departures_ns: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Offers a segment of `ip_bytes` to the line. Times must not run backwards.
    pub fn enqueue(&mut self, now_ns: u64, ip_bytes: u32) -> Fate {
        while self.departures_ns.front().is_some_and(|&departure_ns| departure_ns <= now_ns) {
            self.departures_ns.pop_front();
        }
        if self.departures_ns.len() >= self.queue_packets {
            self.counters.dropped_queue += 1;
            return Fate::DroppedQueue;
        }
        let departure_ns = self.serialise(now_ns, ip_bytes);
        self.departures_ns.push_back(departure_ns);
        self.counters.queue_packets_max =
            self.counters.queue_packets_max.max(self.departures_ns.len() as u64);
        if self.loss > 0.0 && self.random.next_unit() < self.loss {
            self.counters.dropped_loss += 1;
            return Fate::DroppedLoss;
        }
        self.counters.segments += 1;
        self.counters.bytes += u64::from(ip_bytes);
        Fate::Delivered { at_ns: departure_ns.saturating_add(self.delay_ns) }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
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

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): small, and the
/// same on every machine, so that a seed means the same losses everywhere.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, with the 53 bits that a double can tell apart.
    fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn line(rate_bits_per_s: u64, queue_packets: usize) -> DirectionConfig {
        DirectionConfig { rate_bits_per_s, queue_packets, ..DirectionConfig::default() }
    }

    fn at(fate: Fate) -> u64 {
        match fate {
            Fate::Delivered { at_ns } => at_ns,
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
            dropped_loss: 0,
            queue_packets_max: 3,
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
                if let Fate::Delivered { at_ns } = link.enqueue(now_ns, bytes) {
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
