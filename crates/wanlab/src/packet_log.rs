//! Packets on their way: a first-in first-out log of bytes with a delivery time each, and beside
//! it the few that overtake.
//!
//! Packets lie one behind the other in chunks that are used again, so that a super-packet is read
//! from the device straight into its place and nothing is allocated per packet. A long line at
//! 4 Gbit/s and 200 ms holds 100 MB; memory grows to what is under way and no further.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::link::Retiming;

/// Large enough that the unused end of a chunk (less than one super-packet) is a small part.
const CHUNK_BYTES: usize = 1 << 20;

/// Packets in order of arrival, which is their order of delivery but for those that overtake.
#[derive(Debug)]
pub(crate) struct PacketLog {
    /// The largest packet that [`PacketLog::space`] makes room for.
    packet_bytes_max: usize,
    /// Oldest first; the last one is being filled.
    chunks: VecDeque<Chunk>,
    spare: Vec<Box<[u8]>>,
    entries: VecDeque<Entry>,
    /// Packets to be delivered before one that came earlier.
    overtaking: BinaryHeap<Reverse<Overtaking>>,
    /// How many ever overtook, which keeps those of the same time in order.
    overtaken: u64,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    used: usize,
    /// Packets in this chunk that are still to be delivered.
    pending: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    times: Times,
    offset: usize,
    len: usize,
}

/// When a packet leaves the queue and when it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) departs_ns: u64,
    pub(crate) at_ns: u64,
}

impl Times {
    fn moved(self, retiming: Retiming) -> Self {
        let departs_ns = retiming.departure_ns(self.departs_ns);
        let travel_ns = self.at_ns.saturating_sub(self.departs_ns);
        Self { departs_ns, at_ns: departs_ns.saturating_add(travel_ns) }
    }
}

/// Compared by time, then by the order of arrival.
#[derive(Debug, PartialEq, Eq)]
struct Overtaking {
    times: Times,
    number: u64,
    bytes: Box<[u8]>,
}

impl Ord for Overtaking {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.times.at_ns, self.number).cmp(&(other.times.at_ns, other.number))
    }
}

impl PartialOrd for Overtaking {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PacketLog {
    pub(crate) fn new(packet_bytes_max: usize) -> Self {
        Self {
            packet_bytes_max,
            chunks: VecDeque::new(),
            spare: Vec::new(),
            entries: VecDeque::new(),
            overtaking: BinaryHeap::new(),
            overtaken: 0,
        }
    }

    /// Room for one packet of the largest size; [`PacketLog::commit`] makes it part of the log.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let size = self.packet_bytes_max;
        if self.chunks.back().is_none_or(|chunk| chunk.bytes.len() - chunk.used < size) {
            let chunk_bytes = CHUNK_BYTES.max(size);
            let bytes = self.spare.pop().unwrap_or_else(|| vec![0; chunk_bytes].into_boxed_slice());
            self.chunks.push_back(Chunk { bytes, used: 0, pending: 0 });
        }
        // One chunk at least was pushed above.
        let chunk = self.chunks.back_mut().map(|chunk| &mut chunk.bytes[chunk.used..][..size]);
        chunk.unwrap_or_default()
    }

    /// Keeps the first `len` bytes of [`PacketLog::space`] as a packet.
    pub(crate) fn commit(&mut self, len: usize, times: Times) {
        if self.entries.back().is_some_and(|last| times.at_ns < last.times.at_ns) {
            let bytes = Box::from(&self.space()[..len]);
            self.overtaken += 1;
            self.overtaking.push(Reverse(Overtaking { times, number: self.overtaken, bytes }));
            return;
        }
        if let Some(chunk) = self.chunks.back_mut() {
            let offset = chunk.used;
            chunk.used += len;
            chunk.pending += 1;
            self.entries.push_back(Entry { times, offset, len });
        }
    }

    /// Copies a packet in.
    pub(crate) fn append(&mut self, packet: &[u8], times: Times) {
        self.space()[..packet.len()].copy_from_slice(packet);
        self.commit(packet.len(), times);
    }

    /// When the next packet is to be delivered.
    pub(crate) fn next_delivery_ns(&self) -> Option<u64> {
        let in_order = self.entries.front().map(|entry| entry.times.at_ns);
        let overtaking = self.overtaking.peek().map(|Reverse(packet)| packet.times.at_ns);
        in_order.into_iter().chain(overtaking).min()
    }

    /// The rate has changed: what has not left yet leaves, and arrives, at another time. Packets
    /// in order stay so. Returns the latest delivery now.
    pub(crate) fn retime(&mut self, retiming: Retiming) -> Option<u64> {
        let mut last_ns = 0;
        for entry in &mut self.entries {
            entry.times = entry.times.moved(retiming);
            entry.times.at_ns = entry.times.at_ns.max(last_ns);
            last_ns = entry.times.at_ns;
        }
        let overtaking = std::mem::take(&mut self.overtaking).into_iter();
        self.overtaking = overtaking
            .map(|Reverse(packet)| {
                Reverse(Overtaking { times: packet.times.moved(retiming), ..packet })
            })
            .collect();
        let latest = self.overtaking.iter().map(|Reverse(packet)| packet.times.at_ns).max();
        latest.into_iter().chain(self.entries.back().map(|entry| entry.times.at_ns)).max()
    }

    /// The next packet, if it is due.
    pub(crate) fn due(&self, now_ns: u64) -> Option<&[u8]> {
        if let Some(packet) = self.first_overtaking() {
            return (packet.times.at_ns <= now_ns).then_some(&packet.bytes);
        }
        let entry = self.entries.front().filter(|entry| entry.times.at_ns <= now_ns)?;
        let chunk = self.chunks.iter().find(|chunk| chunk.pending > 0)?;
        Some(&chunk.bytes[entry.offset..][..entry.len])
    }

    /// The next packet, if that is one that overtakes.
    fn first_overtaking(&self) -> Option<&Overtaking> {
        let Reverse(packet) = self.overtaking.peek()?;
        let first = self.entries.front().is_none_or(|entry| packet.times.at_ns < entry.times.at_ns);
        first.then_some(packet)
    }

    /// Forgets the next packet.
    pub(crate) fn pop(&mut self) {
        if self.first_overtaking().is_some() {
            self.overtaking.pop();
            return;
        }
        if self.entries.pop_front().is_none() {
            return;
        }
        // A chunk that was filled and emptied at the front is used again; one that is still being
        // filled starts over when it runs empty.
        while let Some(chunk) = self.chunks.front()
            && chunk.pending == 0
            && self.chunks.len() > 1
        {
            self.spare.extend(self.chunks.pop_front().map(|chunk| chunk.bytes));
        }
        let only = self.chunks.len() == 1;
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.pending = chunk.pending.saturating_sub(1);
            if chunk.pending == 0 && only {
                chunk.used = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PACKET_MAX: usize = 70_000;

    fn at(at_ns: u64) -> Times {
        Times { departs_ns: at_ns, at_ns }
    }

    fn drain(log: &mut PacketLog) -> Vec<(u64, Vec<u8>)> {
        let mut all = Vec::new();
        while let Some(at_ns) = log.next_delivery_ns() {
            all.push((at_ns, log.due(at_ns).unwrap().to_vec()));
            log.pop();
        }
        all
    }

    #[test]
    fn what_overtakes_comes_at_its_time() {
        let mut log = PacketLog::new(PACKET_MAX);
        for (name, at_ns) in [(b'a', 10), (b'b', 30), (b'c', 20), (b'd', 20), (b'e', 5), (b'f', 31)]
        {
            log.append(&[name], at(at_ns));
        }
        let order: Vec<u8> = drain(&mut log).into_iter().map(|(_, packet)| packet[0]).collect();
        assert_eq!(order, b"eacdbf");
    }

    #[test]
    fn a_new_rate_moves_what_has_not_left() {
        let line = |rate_bits_per_s| crate::DirectionConfig {
            rate_bits_per_s,
            ..crate::DirectionConfig::default()
        };
        let mut link = crate::link::Link::new(&line(1_000_000));
        let retiming = link.set(100, &line(2_000_000)).unwrap();
        let mut log = PacketLog::new(PACKET_MAX);
        log.append(b"left", Times { departs_ns: 50, at_ns: 1050 });
        log.append(b"waits", Times { departs_ns: 300, at_ns: 1300 });
        assert_eq!(log.retime(retiming), Some(1200));
        let expected = [(1050, b"left".to_vec()), (1200, b"waits".to_vec())];
        assert_eq!(drain(&mut log), expected);
        assert_eq!(log.retime(retiming), None);
    }

    #[test]
    fn a_packet_is_due_at_its_time_and_not_before() {
        let mut log = PacketLog::new(PACKET_MAX);
        assert_eq!(log.next_delivery_ns(), None);
        log.append(b"one", at(10));
        log.append(b"two", at(20));
        assert_eq!(log.due(9), None);
        assert_eq!(log.due(10), Some(&b"one"[..]));
        log.pop();
        assert_eq!(log.next_delivery_ns(), Some(20));
        assert_eq!(log.due(10), None);
        assert_eq!(log.due(20), Some(&b"two"[..]));
        log.pop();
        assert_eq!(log.due(u64::MAX), None);
    }

    #[test]
    fn memory_is_used_again() {
        let mut log = PacketLog::new(PACKET_MAX);
        for round in 0..1000_u64 {
            for _ in 0..40 {
                log.append(&[round as u8; PACKET_MAX], at(round));
            }
            for _ in 0..40 {
                assert_eq!(log.due(round).map(|packet| packet[9]), Some(round as u8));
                log.pop();
            }
        }
        assert!(log.chunks.len() + log.spare.len() <= 4);
    }

    proptest! {
        /// Whatever changes when: packets keep their order, none is early for its line, and all
        /// that the line carried arrives.
        #[test]
        fn order_is_kept_while_the_line_changes(
            steps in prop::collection::vec((0_u64..3_000_000, 0_u8..8, 1_u64..1000), 1..300),
        ) {
            let mut config = crate::DirectionConfig {
                rate_bits_per_s: 100_000_000,
                jitter: crate::Jitter::parse("1ms,hold=0").unwrap(),
                ..crate::DirectionConfig::default()
            };
            let mut link = crate::link::Link::new(&config);
            let mut log = PacketLog::new(PACKET_MAX);
            let (mut now_ns, mut sent, mut arrived) = (0, 0_u64, Vec::new());
            for (gap_ns, what, value) in steps {
                now_ns += gap_ns;
                while let Some(packet) = log.due(now_ns) {
                    arrived.push(u64::from_ne_bytes(packet[..8].try_into().unwrap()));
                    log.pop();
                }
                match what {
                    0 => config.rate_bits_per_s = value * 1_000_000,
                    1 => config.delay = std::time::Duration::from_micros(value * 20),
                    _ => {
                        let fate = link.enqueue(now_ns, 1500);
                        if let crate::link::Fate::Delivered { at_ns, departs_ns, .. } = fate {
                            prop_assert!(now_ns < departs_ns && departs_ns <= at_ns);
                            log.append(&sent.to_ne_bytes(), Times { departs_ns, at_ns });
                            sent += 1;
                        }
                    }
                }
                if let Some(retiming) = link.set(now_ns, &config) {
                    let last_at_ns = log.retime(retiming);
                    link.deliveries_moved(last_at_ns);
                }
            }
            prop_assert!(log.overtaking.is_empty());
            arrived.extend(
                drain(&mut log)
                    .into_iter()
                    .map(|(_, packet)| u64::from_ne_bytes(packet[..8].try_into().unwrap())),
            );
            prop_assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
            prop_assert_eq!(link.counters().segments, sent);
        }

        #[test]
        fn what_goes_in_comes_out_in_order(
            steps in prop::collection::vec((0..PACKET_MAX, 0_usize..4), 1..200),
        ) {
            let mut log = PacketLog::new(PACKET_MAX);
            let mut model = VecDeque::new();
            for (i, (len, pops)) in steps.into_iter().enumerate() {
                let packet = vec![i as u8; len];
                log.append(&packet, at(i as u64));
                model.push_back(packet);
                for _ in 0..pops {
                    let expected = model.pop_front();
                    prop_assert_eq!(log.due(u64::MAX), expected.as_deref());
                    log.pop();
                }
            }
            for packet in model {
                prop_assert_eq!(log.due(u64::MAX), Some(&packet[..]));
                log.pop();
            }
            prop_assert_eq!(log.due(u64::MAX), None);
        }
    }
}
