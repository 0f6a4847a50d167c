//! One direction of the line as a pure model: policer, DropTail queue with or without classes and
//! an ECN threshold, serialisation, delay and jitter, random and bursty loss.
//!
//! No clock, no sockets, no packets: segments are sizes and marks, time is an argument. Departure
//! is
//! `max(now, busy until) + size / rate`, delivery is departure + delay. Segments keep their order
//! unless the jitter says otherwise, with classes those of each class. Without classes a segment's
//! departure is known when it comes; with them whatever comes later may leave sooner, so a segment
//! waits until [`Link::departure`] takes it.

use std::collections::VecDeque;

use crate::burst::Burst;
use crate::config::{DirectionConfig, ETHERNET_MIN_WIRE_BYTES, ETHERNET_OVERHEAD_BYTES, Queue};
pub use crate::counters::{ClassCounters, Counters};
use crate::ip::CONGESTION_EXPERIENCED;
use crate::jitter::Wander;
use crate::policer::Bucket;
use crate::random::SplitMix64;
use crate::scheduler::{Scheduler, Waiting};

pub(crate) const NANOS_PER_S: u64 = 1_000_000_000;

/// Tell the streams of random numbers apart that one seed stands for.
const SEED_BURST: u64 = 0x6275_7273_7400_0000;
const SEED_JITTER: u64 = 0x6a69_7474_6572_0000;

/// What a single class is called, where there are none.
const ALL: &str = "all";

/// The ECN field of a packet (RFC 3168 §5).
const ECN_BITS: u8 = 3;
const NOT_ECN_CAPABLE: u8 = 0;

/// What the line wants to know of a segment. A number stands for one without marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Length of the IP packet.
    pub ip_bytes: u32,
    /// IPv4's DS field or IPv6's traffic class: DSCP and ECN.
    pub traffic_class: u8,
}

impl From<u32> for Segment {
    fn from(ip_bytes: u32) -> Self {
        Self { ip_bytes, traffic_class: 0 }
    }
}

impl Segment {
    fn dscp(self) -> u8 {
        self.traffic_class >> 2
    }

    fn ecn(self) -> u8 {
        self.traffic_class & ECN_BITS
    }
}

/// What became of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time.
    Delivered {
        /// On the clock that `now_ns` was read from.
        at_ns: u64,
        /// When its last bit is on the line.
        departs_ns: u64,
        /// Whether it tells of congestion now.
        marked: bool,
    },
    /// It waits in its class; [`Link::departure`] says when it leaves.
    Waits {
        /// Which class.
        class: usize,
        /// Whether it tells of congestion now.
        marked: bool,
    },
    /// It exceeded the policer's rate and burst, and never came to the queue.
    DroppedPolice,
    /// The queue was full.
    DroppedQueue,
    /// More waited than the ECN threshold, and it could not be marked.
    DroppedEcn,
    /// It left, took its time on the line and was lost there.
    DroppedLoss,
    /// The same, in a burst.
    DroppedBurst,
}

/// A segment that leaves its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// Which one.
    pub class: usize,
    /// When its last bit is on the line.
    pub departs_ns: u64,
    /// When it arrives; `None` if it is lost.
    pub at_ns: Option<u64>,
}

/// One direction of the line.
#[derive(Debug)]
pub struct Link {
    rate_bits_per_s: u64,
    delay_ns: u64,
    queue: Queue,
    ecn: Option<Queue>,
    scheduler: Option<Scheduler>,
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
    /// The segments still in the queue whose departure is known, oldest first: departure and IP
    /// bytes. With classes that is the one being sent.
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
            ecn: None,
            scheduler: None,
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
    /// with [`Link::deliveries_moved`] which is the latest now. Where [`Link::changes_classes`], it
    /// takes all departures first: what waits leaves in the order that held when it came.
    pub fn set(&mut self, now_ns: u64, config: &DirectionConfig) -> Option<Retiming> {
        if config.seed != self.seed {
            self.seed = config.seed;
            self.random = SplitMix64::new(config.seed);
            (self.burst, self.jitter) = (None, None);
        }
        self.delay_ns = u64::try_from(config.delay.as_nanos()).unwrap_or(u64::MAX);
        self.queue = config.queue;
        self.ecn = config.ecn;
        self.loss = config.loss;
        if self.changes_classes(config) || self.counters.classes.is_empty() {
            self.scheduler = config.classes.map(Scheduler::new);
            let names = config.classes.map_or_else(|| vec![ALL.to_owned()], |all| all.names());
            self.counters.name_classes(names);
        }
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

    /// Whether what comes waits in a class until [`Link::departure`] takes it.
    #[must_use]
    pub fn has_classes(&self) -> bool {
        self.scheduler.is_some()
    }

    /// Whether the classes would be others.
    #[must_use]
    pub fn changes_classes(&self, config: &DirectionConfig) -> bool {
        self.scheduler.as_ref().map(Scheduler::classes) != config.classes.as_ref()
    }

    /// The part of the line that a class has in any case; all of it without classes.
    #[must_use]
    pub fn part(&self, traffic_class: u8) -> f64 {
        let part = |scheduler: &Scheduler| {
            let classes = scheduler.classes();
            classes.part(classes.of(Segment { ip_bytes: 0, traffic_class }.dscp()))
        };
        self.scheduler.as_ref().map_or(1.0, part)
    }

    /// How long a segment is being sent.
    #[must_use]
    pub fn wire_ns(&self, ip_bytes: u32) -> u64 {
        u64::from(wire_bytes(ip_bytes)) * 8 * NANOS_PER_S / self.rate_bits_per_s
    }

    /// Offers a segment to the line. Times must not run backwards, and with classes all departures
    /// up to now must have been taken.
    pub fn enqueue(&mut self, now_ns: u64, segment: impl Into<Segment>) -> Fate {
        let segment = segment.into();
        let ip_bytes = segment.ip_bytes;
        self.forget_departed(now_ns);
        // A policer stands before the line, and what it lets pass may still find no room there.
        if self.policer.as_mut().is_some_and(|bucket| !bucket.passes(now_ns, wire_bytes(ip_bytes)))
        {
            self.counters.dropped_police += 1;
            return Fate::DroppedPolice;
        }
        let class = self.scheduler.as_ref().map_or(0, |line| line.classes().of(segment.dscp()));
        if self.exceeds(class, self.queue, ip_bytes) {
            self.counters.dropped_queue += 1;
            self.counters.classes[class].dropped_queue += 1;
            return Fate::DroppedQueue;
        }
        let congested = self.ecn.is_some_and(|threshold| self.exceeds(class, threshold, ip_bytes));
        if congested && segment.ecn() == NOT_ECN_CAPABLE {
            self.counters.dropped_ecn += 1;
            self.counters.classes[class].dropped_ecn += 1;
            return Fate::DroppedEcn;
        }
        let marked = congested && segment.ecn() != CONGESTION_EXPERIENCED;
        self.counters.marked += u64::from(marked);
        self.counters.classes[class].marked += u64::from(marked);
        let lost = self.draw_loss();
        let left = self.accept(now_ns, class, ip_bytes, lost.is_some());
        if let Some(fate) = lost {
            return fate;
        }
        let counters = &mut self.counters;
        counters.segments += 1;
        counters.bytes += u64::from(ip_bytes);
        counters.classes[class].segments += 1;
        counters.classes[class].bytes += u64::from(ip_bytes);
        match left {
            Some(departs_ns) => {
                Fate::Delivered { at_ns: self.arrival_ns(departs_ns), departs_ns, marked }
            }
            None => Fate::Waits { class, marked },
        }
    }

    /// Takes the next segment that waits in a class, if its first bit is on the line by now.
    pub fn departure(&mut self, now_ns: u64) -> Option<Departure> {
        if self.busy_until_ns > now_ns {
            return None;
        }
        let (class, segment) = self.scheduler.as_mut()?.next()?;
        let begins_ns = self.busy_until_ns;
        let queued = &mut self.counters.classes[class].queued;
        queued.add(begins_ns.saturating_sub(segment.arrived_ns));
        let departs_ns = self.serialise(begins_ns, segment.ip_bytes);
        self.queued.push_back((departs_ns, segment.ip_bytes));
        self.queued_bytes += u64::from(segment.ip_bytes);
        let at_ns = (!segment.lost).then(|| self.arrival_ns(departs_ns));
        Some(Departure { class, departs_ns, at_ns })
    }

    /// When so many segments of a class that are not lost can have arrived at the soonest; `None`
    /// if fewer wait.
    #[must_use]
    pub fn soonest_ns(&self, class: usize, carried: usize) -> Option<u64> {
        let bytes = self.scheduler.as_ref()?.wire_bytes_of(class, carried)?;
        let sending_ns =
            u128::from(bytes) * 8 * u128::from(NANOS_PER_S) / u128::from(self.rate_bits_per_s);
        let sending_ns = u64::try_from(sending_ns).unwrap_or(u64::MAX);
        // Jitter may make the delay shorter.
        let delay_ns = if self.jitter.is_some() { 0 } else { self.delay_ns };
        Some(self.busy_until_ns.saturating_add(sending_ns).saturating_add(delay_ns))
    }

    /// What has happened so far; what waits is as of [`note_queue`](Self::note_queue).
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Brings what waits up to date.
    pub fn note_queue(&mut self, now_ns: u64) {
        self.forget_departed(now_ns);
        self.counters.queue_bytes = self.held().1;
    }

    /// Segments and IP bytes that wait or are being sent.
    fn held(&self) -> (u64, u64) {
        let (packets, bytes) = self.scheduler.as_ref().map_or((0, 0), Scheduler::held);
        (packets + self.queued.len() as u64, bytes + self.queued_bytes)
    }

    fn forget_departed(&mut self, now_ns: u64) {
        while let Some(&(departs_ns, bytes)) = self.queued.front()
            && departs_ns <= now_ns
        {
            self.queued.pop_front();
            self.queued_bytes -= u64::from(bytes);
        }
    }

    fn exceeds(&self, class: usize, limit: Queue, ip_bytes: u32) -> bool {
        match &self.scheduler {
            Some(scheduler) => scheduler.exceeds(class, limit, ip_bytes),
            None => limit.is_exceeded(self.queued.len(), self.queued_bytes, ip_bytes),
        }
    }

    /// Puts a segment into its queue: when it departs, if that is known already.
    fn accept(&mut self, now_ns: u64, class: usize, ip_bytes: u32, lost: bool) -> Option<u64> {
        let begins_ns = self.busy_until_ns.max(now_ns);
        let departs_ns = if let Some(scheduler) = &mut self.scheduler {
            if scheduler.is_empty() && self.busy_until_ns < now_ns {
                (self.busy_until_ns, self.remainder) = (now_ns, 0);
            }
            let wire_bytes = wire_bytes(ip_bytes);
            scheduler.push(class, Waiting { ip_bytes, wire_bytes, arrived_ns: now_ns, lost });
            None
        } else {
            self.counters.classes[class].queued.add(begins_ns - now_ns);
            let departs_ns = self.serialise(now_ns, ip_bytes);
            self.queued.push_back((departs_ns, ip_bytes));
            self.queued_bytes += u64::from(ip_bytes);
            Some(departs_ns)
        };
        let (packets, bytes) = self.held();
        let counters = &mut self.counters;
        counters.queue_packets_max = counters.queue_packets_max.max(packets);
        counters.queue_bytes_max = counters.queue_bytes_max.max(bytes);
        let of_class = self.scheduler.as_ref().map_or(bytes, |scheduler| scheduler.bytes(class));
        let most = &mut counters.classes[class].queue_bytes_max;
        *most = (*most).max(of_class);
        departs_ns
    }

    /// How a segment is lost on the line, if it is. Each kind draws its number in any case, so that
    /// one does not shift what the other loses.
    fn draw_loss(&mut self) -> Option<Fate> {
        let lost = self.loss > 0.0 && self.random.next_unit() < self.loss;
        let lost_in_burst = self.burst.as_mut().is_some_and(Burst::loses);
        self.counters.dropped_loss += u64::from(lost || lost_in_burst);
        self.counters.dropped_burst += u64::from(lost_in_burst && !lost);
        match (lost, lost_in_burst) {
            (true, _) => Some(Fate::DroppedLoss),
            (false, true) => Some(Fate::DroppedBurst),
            (false, false) => None,
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
