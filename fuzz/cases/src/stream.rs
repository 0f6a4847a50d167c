//! One direction of a TCP connection as a capture may show it, put together again and decoded: a
//! true stream of PDUs, cut into segments that come in any order, twice, overlapping, cut or not at
//! all, with acknowledgements of anything.
//!
//! What comes out is the stream: contiguous, each byte the one that was sent, and where nothing is
//! missing every PDU at its place.

use iscsi_proto::frame::Framing;
use iscsi_proto::pdu::{BHS_LEN, Header};
use tcpmon::pdus::{DecodeCounts, Decoder, Digests, Direction, Negotiated, PduEvent};
use tcpmon::stream::{Chunk, PENDING_BYTES_MAX, Reassembly};

use crate::reader::Reader;

/// By direction; not Login, whose PDUs have no digests whatever was negotiated.
const OPCODES: [&[u8]; 2] = [
    &[0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x10, 0x41],
    &[0x20, 0x21, 0x22, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f],
];
const PDUS_MAX: u8 = 24;
const SEGMENT_BYTES: usize = 1448;

/// The stream, and where its PDUs begin and end.
struct Sent {
    bytes: Vec<u8>,
    pdus: Vec<(u64, u64)>,
}

/// Segments of a stream, reassembled and decoded.
pub fn stream(data: &[u8]) {
    let mut input = Reader(data);
    let flags = input.u8();
    let direction = if flags & 1 == 0 { Direction::ToTarget } else { Direction::ToInitiator };
    let framing = Framing { header_digest: flags & 2 != 0, data_digest: flags & 4 != 0 };
    let (digests_known, from_start) = (flags & 8 == 0, flags & 16 == 0);
    // Offsets as a connection gives them: a circle above zero.
    let base = (1 << 32) | u64::from(input.u16());
    let sent = sent(&mut input, direction, framing, base);
    let digests = if digests_known {
        Digests { header: Some(framing.header_digest), data: Some(framing.data_digest) }
    } else {
        Digests::default()
    };
    let mut receiver = Receiver::new(&sent, base, direction, from_start, digests);
    if from_start {
        receiver.stream.start(base);
    }
    let mut whole = from_start;
    while !input.is_empty() {
        let (kind, at, len) = (input.u8(), usize::from(input.u16()), usize::from(input.u16()));
        let at = at.min(sent.bytes.len());
        let end = sent.bytes.len().min(at + len);
        match kind & 3 {
            // Behind what was received, or ahead of it.
            0 => {
                whole = false;
                receiver.ack(base + at as u64 + u64::from(kind >> 2) * 256);
            }
            1 => {
                whole = false;
                let kept = end.min(at + usize::from(kind >> 2));
                receiver.segment(at, end, kept);
            }
            2 if kind & 0x40 != 0 => {
                whole &= receiver.stream.waiting_bytes() == 0;
                receiver.give_up();
            }
            _ => receiver.segment(at, end, end),
        }
    }
    // The sender has sent all again until all is there.
    for at in (0..sent.bytes.len()).step_by(SEGMENT_BYTES) {
        let end = sent.bytes.len().min(at + SEGMENT_BYTES);
        receiver.segment(at, end, end);
    }
    receiver.check(whole, digests_known);
}

/// PDUs of the input: opcodes that belong to the direction, everything else as it comes.
fn sent(input: &mut Reader<'_>, direction: Direction, framing: Framing, base: u64) -> Sent {
    let mut sent = Sent { bytes: Vec::new(), pdus: Vec::new() };
    let opcodes = OPCODES[direction.index()];
    for _ in 0..input.u8() % PDUS_MAX {
        let (kind, fields) = (input.u8(), input.array::<8>());
        let data = usize::from(input.u8()) << (kind >> 5);
        let ahs = usize::from(kind >> 3 & 3) * 4;
        let mut bhs = [0; BHS_LEN];
        bhs[0] = opcodes[usize::from(kind) % opcodes.len()];
        bhs[1] = fields[0];
        bhs[2..4].copy_from_slice(&fields[1..3]);
        bhs[4] = (ahs / 4) as u8;
        bhs[5..8].copy_from_slice(&(data as u32).to_be_bytes()[1..]);
        bhs[16..20].copy_from_slice(&fields[3..7]);
        bhs[40] = fields[7];
        let header = Header { bhs, ahs: input.filled(ahs).into() };
        let begin = base + sent.bytes.len() as u64;
        sent.bytes.extend(framing.pdu_bytes(&header, &vec![fields[7]; data]));
        sent.pdus.push((begin, base + sent.bytes.len() as u64));
    }
    sent
}

struct Receiver<'a> {
    sent: &'a Sent,
    base: u64,
    stream: Reassembly,
    decoder: Decoder,
    digests: Digests,
    negotiated: Negotiated,
    /// Where the next chunk has to begin.
    next: Option<u64>,
    gaps: u64,
    events: Vec<PduEvent>,
}

impl<'a> Receiver<'a> {
    fn new(
        sent: &'a Sent,
        base: u64,
        direction: Direction,
        from_start: bool,
        digests: Digests,
    ) -> Self {
        Self {
            sent,
            base,
            stream: Reassembly::default(),
            decoder: Decoder::new(direction, from_start),
            digests,
            negotiated: Negotiated::default(),
            next: from_start.then_some(base),
            gaps: 0,
            events: Vec::new(),
        }
    }

    fn segment(&mut self, at: usize, end: usize, kept: usize) {
        let (offset, len) = (self.base + at as u64, (end - at) as u64);
        let bytes = &self.sent.bytes[at..kept];
        let mut stream = std::mem::take(&mut self.stream);
        stream.handle_segment(offset, len, bytes, 1, &mut |chunk| self.take(chunk));
        self.stream = stream;
        assert!(self.stream.pending_bytes() <= PENDING_BYTES_MAX);
    }

    fn ack(&mut self, offset: u64) {
        let mut stream = std::mem::take(&mut self.stream);
        stream.handle_ack(offset, &mut |chunk| self.take(chunk));
        self.stream = stream;
    }

    fn give_up(&mut self) {
        let mut stream = std::mem::take(&mut self.stream);
        stream.give_up_holes(&mut |chunk| self.take(chunk));
        assert_eq!(stream.waiting_bytes(), 0);
        self.stream = stream;
    }

    fn take(&mut self, chunk: Chunk<'_>) {
        let (begin, end) = match chunk {
            Chunk::Gap { offset, len } => {
                self.gaps += 1;
                (offset, offset + len)
            }
            Chunk::Data { offset, wire_len, bytes, .. } => {
                let at = (offset - self.base) as usize;
                assert!(bytes.len() as u64 <= wire_len);
                assert_eq!(bytes, &self.sent.bytes[at..at + bytes.len()], "at {at}");
                (offset, offset + wire_len)
            }
        };
        assert_eq!(begin, *self.next.get_or_insert(begin), "chunks are contiguous");
        assert!(end > begin, "a chunk of nothing");
        self.next = Some(end);
        let events = &mut self.events;
        self.decoder.handle_chunk(chunk, &mut self.digests, &mut self.negotiated, &mut |event| {
            events.push(event);
        });
    }

    /// `whole`: no byte was kept from the receiver.
    fn check(&self, whole: bool, digests_known: bool) {
        let counts = self.decoder.counts();
        let begins: Vec<(u64, u64)> = self
            .events
            .iter()
            .filter_map(|event| match event {
                PduEvent::Header { offset, end, .. } => Some((*offset, *end)),
                PduEvent::End { .. } => None,
            })
            .collect();
        assert_eq!(counts.pdus, begins.len() as u64);
        assert!(begins.windows(2).all(|pair| pair[0].0 < pair[1].0), "headers are in order");
        if !whole || self.sent.bytes.is_empty() {
            return;
        }
        assert_eq!(self.gaps, 0);
        assert_eq!(self.next, Some(self.base + self.sent.bytes.len() as u64));
        if digests_known {
            assert_eq!(begins, self.sent.pdus);
            let DecodeCounts { lost_sync, bytes_skipped, .. } = counts;
            assert_eq!((lost_sync, bytes_skipped), (0, 0));
        }
    }
}
