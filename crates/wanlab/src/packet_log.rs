//! Packets on their way: a first-in first-out log of bytes with a delivery time each.
//!
//! Packets lie one behind the other in chunks that are used again, so that a super-packet is read
//! from the device straight into its place and nothing is allocated per packet. A long line at
//! 4 Gbit/s and 200 ms holds 100 MB; memory grows to what is under way and no further.

use std::collections::VecDeque;

/// Large enough that the unused end of a chunk (less than one super-packet) is a small part.
const CHUNK_BYTES: usize = 1 << 20;

/// Packets in order of arrival, which is their order of delivery.
#[derive(Debug)]
pub(crate) struct PacketLog {
    /// The largest packet that [`PacketLog::space`] makes room for.
    packet_bytes_max: usize,
    /// Oldest first; the last one is being filled.
    chunks: VecDeque<Chunk>,
    spare: Vec<Box<[u8]>>,
    entries: VecDeque<Entry>,
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
    deliver_at_ns: u64,
    offset: usize,
    len: usize,
}

impl PacketLog {
    pub(crate) fn new(packet_bytes_max: usize) -> Self {
        Self {
            packet_bytes_max,
            chunks: VecDeque::new(),
            spare: Vec::new(),
            entries: VecDeque::new(),
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
    pub(crate) fn commit(&mut self, len: usize, deliver_at_ns: u64) {
        if let Some(chunk) = self.chunks.back_mut() {
            let offset = chunk.used;
            chunk.used += len;
            chunk.pending += 1;
            self.entries.push_back(Entry { deliver_at_ns, offset, len });
        }
    }

    /// Copies a packet in.
    pub(crate) fn append(&mut self, packet: &[u8], deliver_at_ns: u64) {
        self.space()[..packet.len()].copy_from_slice(packet);
        self.commit(packet.len(), deliver_at_ns);
    }

    /// When the oldest packet is to be delivered.
    pub(crate) fn next_delivery_ns(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.deliver_at_ns)
    }

    /// The oldest packet, if it is due.
    pub(crate) fn due(&self, now_ns: u64) -> Option<&[u8]> {
        let entry = self.entries.front().filter(|entry| entry.deliver_at_ns <= now_ns)?;
        let chunk = self.chunks.iter().find(|chunk| chunk.pending > 0)?;
        Some(&chunk.bytes[entry.offset..][..entry.len])
    }

    /// Forgets the oldest packet.
    pub(crate) fn pop(&mut self) {
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

    #[test]
    fn a_packet_is_due_at_its_time_and_not_before() {
        let mut log = PacketLog::new(PACKET_MAX);
        assert_eq!(log.next_delivery_ns(), None);
        log.append(b"one", 10);
        log.append(b"two", 20);
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
                log.append(&[round as u8; PACKET_MAX], round);
            }
            for _ in 0..40 {
                assert_eq!(log.due(round).map(|packet| packet[9]), Some(round as u8));
                log.pop();
            }
        }
        assert!(log.chunks.len() + log.spare.len() <= 4);
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(
            steps in prop::collection::vec((0..PACKET_MAX, 0_usize..4), 1..200),
        ) {
            let mut log = PacketLog::new(PACKET_MAX);
            let mut model = VecDeque::new();
            for (i, (len, pops)) in steps.into_iter().enumerate() {
                let packet = vec![i as u8; len];
                log.append(&packet, i as u64);
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
