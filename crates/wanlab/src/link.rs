//! One direction of the line as a pure model: policer, serialisation, DropTail queue, delay and
//! jitter, random and bursty loss.
//!
//! No clock, no sockets, no packets: segments are sizes, time is an argument. Departure is
//! `max(now, busy until) + size / rate`, delivery is departure + delay. Segments keep their order
//! unless the jitter says otherwise.

use std::collections::VecDeque;

use serde::Serialize;

use crate::burst::Burst;
use crate::config::{DirectionConfig, ETHERNET_MIN_WIRE_BYTES, ETHERNET_OVERHEAD_BYTES, Queue};
use crate::jitter::Wander;
use crate::policer::Bucket;
use crate::random::SplitMix64;

pub(crate) const NANOS_PER_S: u64 = 1_000_000_000;

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
    /// It exceeded the policer's rate and burst, and never came to the queue.
    DroppedPolice,
    /// The queue was full.
    DroppedQueue,
    /// It left, took its time on the line and was lost there.
    DroppedLoss,
    /// The same, in a burst.
    DroppedBurst,
}

/// What a direction has done with the segments offered to it; segments and the three kinds of
/// drops make up what was offered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Segments carried to the other end.
    pub segments: u64,
    /// IP bytes of these segments.
    pub bytes: u64,
    /// Segments that exceeded what the policer lets pass.
    pub dropped_police: u64,
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
    /// What was offered and did not arrive.
    #[must_use]
    pub fn dropped(self) -> u64 {
        self.dropped_police + self.dropped_queue + self.dropped_loss
    }

    /// Of two lines together; the longest queue is that of either.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            bytes: self.bytes + other.bytes,
            dropped_police: self.dropped_police + other.dropped_police,
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
    policer: Option<Bucket>,
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
            policer: None,
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
        match (config.police, &mut self.policer) {
            (Some(policer), Some(bucket)) => bucket.set(now_ns, policer),
            (policer, bucket) => *bucket = policer.map(Bucket::new),
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
        // A policer stands before the line, and what it lets pass may still find no room there.
        if self.policer.as_mut().is_some_and(|bucket| !bucket.passes(now_ns, wire_bytes(ip_bytes)))
        {
            self.counters.dropped_police += 1;
            return Fate::DroppedPolice;
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
        let numerator = u64::from(wire_bytes(ip_bytes)) * 8 * NANOS_PER_S + self.remainder;
        self.busy_until_ns = self.busy_until_ns.saturating_add(numerator / self.rate_bits_per_s);
        self.remainder = numerator % self.rate_bits_per_s;
        self.busy_until_ns
    }
}

/// What an IP packet takes of an Ethernet line.
fn wire_bytes(ip_bytes: u32) -> u32 {
    (ip_bytes + ETHERNET_OVERHEAD_BYTES).max(ETHERNET_MIN_WIRE_BYTES)
}

#[cfg(test)]
mod tests;
