//! Segments of one direction → its bytes in order. What a segment was cut by (snap length) and what
//! the capture missed is handed on as missing, so that whoever knows lengths can step over it.

use std::collections::BTreeMap;

/// Captured bytes that may wait behind a hole: as much as a large receive window, because that is
/// what arrives before a lost segment is sent again.
pub const PENDING_BYTES_MAX: usize = 16 << 20;
/// Segments that may wait behind a hole; those that are cut to their headers weigh little else.
const PENDING_PIECES_MAX: usize = 1 << 15;
/// What a segment takes that waits, beside its bytes: its place in the tree and its own allocation.
const PIECE_BYTES: usize = 96;

/// The next piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// `wire_len` bytes, of which the first ones were captured.
    Data {
        /// Stream offset of the first byte.
        offset: u64,
        /// Bytes in the stream.
        wire_len: u64,
        /// The first of them.
        bytes: &'a [u8],
        /// When the segment was captured.
        time_ns: u64,
    },
    /// Bytes that the capture does not have.
    Gap {
        /// Stream offset of the first one.
        offset: u64,
        /// How many.
        len: u64,
    },
}

#[derive(Debug)]
struct Piece {
    wire_len: u64,
    bytes: Box<[u8]>,
    time_ns: u64,
}

/// Puts one direction in order.
#[derive(Debug, Default)]
pub struct Reassembly {
    next: Option<u64>,
    acked: u64,
    pending: BTreeMap<u64, Piece>,
    pending_bytes: usize,
}

impl Reassembly {
    /// The stream begins here: the byte behind a SYN.
    pub fn start(&mut self, offset: u64) {
        self.next.get_or_insert(offset);
    }

    /// Offset of the next byte in order.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// Bytes that wait behind a hole.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Memory that what waits behind a hole takes, about.
    pub fn waiting_bytes(&self) -> usize {
        self.pending_bytes + self.pending.len() * PIECE_BYTES
    }

    /// Nothing waits any longer: what is missing before it is given up as a gap.
    pub fn give_up_holes(&mut self, each: &mut impl FnMut(Chunk<'_>)) {
        while let Some((&first, _)) = self.pending.first_key_value() {
            self.skip_to(first, each);
            self.drain(each);
        }
    }

    /// The receiver has everything below `offset`: what is missing there was missed by the capture.
    pub fn handle_ack(&mut self, offset: u64, each: &mut impl FnMut(Chunk<'_>)) {
        self.acked = self.acked.max(offset);
        if let (Some(next), Some((&first, _))) = (self.next, self.pending.first_key_value())
            && self.acked > next
        {
            self.skip_to(first.min(self.acked), each);
            self.drain(each);
        }
    }

    /// A segment: `wire_len` bytes at `offset`, the first of them captured.
    pub fn handle_segment(
        &mut self,
        offset: u64,
        wire_len: u64,
        bytes: &[u8],
        time_ns: u64,
        each: &mut impl FnMut(Chunk<'_>),
    ) {
        let next = *self.next.get_or_insert(offset);
        let end = offset.saturating_add(wire_len);
        if end <= next {
            return;
        }
        if offset > next && self.pending.is_empty() && self.acked >= offset {
            self.skip_to(offset, each);
        }
        let next = self.next.unwrap_or(offset);
        if offset <= next {
            self.emit(offset, wire_len, bytes, time_ns, each);
            self.drain(each);
            return;
        }
        let known = self.pending.get(&offset).map_or(0, |piece| piece.wire_len);
        if known < wire_len {
            let piece = Piece { wire_len, bytes: bytes.into(), time_ns };
            if let Some(old) = self.pending.insert(offset, piece) {
                self.pending_bytes -= old.bytes.len();
            }
            self.pending_bytes += bytes.len();
        }
        while self.pending_bytes > PENDING_BYTES_MAX || self.pending.len() > PENDING_PIECES_MAX {
            let Some((&first, _)) = self.pending.first_key_value() else { break };
            self.skip_to(first, each);
            self.drain(each);
        }
    }

    fn skip_to(&mut self, offset: u64, each: &mut impl FnMut(Chunk<'_>)) {
        if let Some(next) = self.next
            && offset > next
        {
            each(Chunk::Gap { offset: next, len: offset - next });
            self.next = Some(offset);
        }
    }

    /// What of a segment lies at `next` and behind it.
    fn emit(
        &mut self,
        offset: u64,
        wire_len: u64,
        bytes: &[u8],
        time_ns: u64,
        each: &mut impl FnMut(Chunk<'_>),
    ) {
        let next = self.next.unwrap_or(offset);
        let known = next.saturating_sub(offset);
        if known >= wire_len {
            return;
        }
        let bytes = bytes.get(usize::try_from(known).unwrap_or(usize::MAX)..).unwrap_or_default();
        let wire_len = wire_len - known;
        each(Chunk::Data { offset: next, wire_len, bytes, time_ns });
        self.next = Some(next.saturating_add(wire_len));
    }

    fn drain(&mut self, each: &mut impl FnMut(Chunk<'_>)) {
        while let Some(entry) = self.pending.first_entry()
            && self.next.is_some_and(|next| *entry.key() <= next)
        {
            let (offset, piece) = entry.remove_entry();
            self.pending_bytes -= piece.bytes.len();
            self.emit(offset, piece.wire_len, &piece.bytes, piece.time_ns, each);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The stream that came out, with `None` for a byte that is missing.
    fn collect(run: impl FnOnce(&mut Reassembly, &mut dyn FnMut(Chunk<'_>))) -> Vec<Option<u8>> {
        let mut out = Vec::new();
        let mut each = |chunk: Chunk<'_>| match chunk {
            Chunk::Data { wire_len, bytes, .. } => {
                out.extend(bytes.iter().copied().map(Some));
                out.resize(out.len() + wire_len as usize - bytes.len(), None);
            }
            Chunk::Gap { len, .. } => out.resize(out.len() + len as usize, None),
        };
        run(&mut Reassembly::default(), &mut each);
        out
    }

    #[test]
    fn a_hole_is_filled_by_the_retransmission() {
        let all = collect(|stream, mut each| {
            stream.start(100);
            stream.handle_segment(102, 2, b"cd", 2, &mut each);
            stream.handle_segment(104, 1, b"e", 3, &mut each);
            stream.handle_segment(100, 3, b"abc", 4, &mut each);
            stream.handle_segment(101, 2, b"xx", 5, &mut each);
        });
        assert_eq!(all, b"abcde".map(Some));
    }

    #[test]
    fn what_was_acknowledged_and_never_seen_is_a_gap() {
        let all = collect(|stream, mut each| {
            stream.start(0);
            stream.handle_segment(0, 1, b"a", 1, &mut each);
            stream.handle_segment(3, 1, b"d", 1, &mut each);
            stream.handle_ack(4, &mut each);
            stream.handle_ack(6, &mut each);
            stream.handle_segment(6, 3, b"g", 1, &mut each);
        });
        let expected = [Some(b'a'), None, None, Some(b'd'), None, None, Some(b'g'), None, None];
        assert_eq!(all, expected);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut stream = Reassembly::default();
        stream.start(0);
        let mut gaps = 0;
        let segment = vec![7; 1 << 16];
        for number in 1..=600_u64 {
            let offset = number << 17;
            stream.handle_segment(offset, 1 << 16, &segment, 1, &mut |chunk| {
                gaps += usize::from(matches!(chunk, Chunk::Gap { .. }));
            });
            assert!(stream.pending_bytes() <= PENDING_BYTES_MAX + segment.len());
        }
        assert!(gaps > 300, "{gaps}");
    }

    proptest! {
        #[test]
        fn any_order_and_any_repetition_gives_the_stream(
            cuts in proptest::collection::vec(1_usize..40, 1..30),
            order in proptest::collection::vec(any::<proptest::sample::Index>(), 0..90),
        ) {
            let total: usize = cuts.iter().sum();
            let stream: Vec<u8> = (0..total).map(|at| at as u8).collect();
            let mut segments = Vec::new();
            let mut at = 0;
            for cut in &cuts {
                segments.push((at, &stream[at..at + cut]));
                at += cut;
            }
            let picked: Vec<_> = order.iter().map(|index| *index.get(&segments)).collect();
            let all = collect(|out, mut each| {
                out.start(0);
                for (at, bytes) in picked.iter().chain(&segments) {
                    out.handle_segment(*at as u64, bytes.len() as u64, bytes, 1, &mut each);
                }
            });
            prop_assert_eq!(all, stream.into_iter().map(Some).collect::<Vec<_>>());
        }
    }
}
