//! What is kept of a packet when a session is recorded: IP and TCP headers, iSCSI headers wherever
//! in the segment they are, and the text of logins. Payload is written as zeros and cut off behind
//! the last byte that is kept, so a recording holds no data of the volume.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use super::Segment;
use crate::pdus::{Decoder, Digests, Direction, Negotiated, PduEvent};
use crate::stream::{Chunk, Offsets};

/// Directions followed; the packets of others are kept without payload.
const DIRECTIONS_MAX: usize = 1024;
/// BHS and header digest.
const HEADER_BYTES: u64 = 52;

/// Chooses what is kept, connection by connection.
#[derive(Debug, Default)]
pub struct Slimmer {
    port: u16,
    directions: HashMap<(SocketAddr, SocketAddr), Tracked>,
}

#[derive(Debug)]
struct Tracked {
    offsets: Offsets,
    next: Option<u64>,
    decoder: Decoder,
    digests: Digests,
    negotiated: Negotiated,
}

impl Slimmer {
    /// For connections to this port.
    pub fn new(port: u16) -> Self {
        Self { port, directions: HashMap::new() }
    }

    /// Zeros what is not kept of `packet`, whose segment this is, and returns how many bytes of it
    /// are to be written.
    pub fn slim(&mut self, segment: &Segment<'_>, packet_len: usize) -> Kept {
        let headers = packet_len - segment.payload.len();
        let way = if segment.dst.port() == self.port {
            Direction::ToTarget
        } else {
            Direction::ToInitiator
        };
        let key = (segment.src, segment.dst);
        if segment.syn {
            self.directions.remove(&key);
        }
        if !self.directions.contains_key(&key) && self.directions.len() >= DIRECTIONS_MAX {
            return Kept { headers, ranges: Vec::new() };
        }
        let tracked = self.directions.entry(key).or_insert_with(|| Tracked {
            offsets: Offsets::default(),
            next: None,
            decoder: Decoder::new(way, segment.syn),
            digests: Digests::default(),
            negotiated: Negotiated::default(),
        });
        let mut ranges = tracked.keep(segment, way);
        if segment.fin || segment.rst {
            self.directions.remove(&key);
        }
        for range in &mut ranges {
            range.end = range.end.min(segment.payload.len());
        }
        ranges.retain(|range| range.start < range.end);
        Kept { headers, ranges }
    }
}

/// What is kept of one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of IP and TCP headers.
    headers: usize,
    /// Pieces of the payload, in order.
    ranges: Vec<Range<usize>>,
}

impl Kept {
    /// The packet as it is written.
    pub fn apply(&self, packet: &[u8]) -> Vec<u8> {
        let end = self.ranges.last().map_or(0, |range| range.end);
        let mut out = packet[..self.headers].to_vec();
        out.resize(self.headers + end, 0);
        for range in &self.ranges {
            let (from, to) = (self.headers + range.start, self.headers + range.end);
            out[from..to].copy_from_slice(&packet[from..to]);
        }
        out
    }
}

impl Tracked {
    /// Which bytes of the payload matter.
    fn keep(&mut self, segment: &Segment<'_>, way: Direction) -> Vec<Range<usize>> {
        let offset = self.offsets.of(segment.seq);
        if segment.syn {
            self.next = Some(offset.saturating_add(1));
            return Vec::new();
        }
        let (bytes, wire_len) = (segment.payload, u64::from(segment.payload_len));
        if wire_len == 0 {
            return Vec::new();
        }
        let next = *self.next.get_or_insert(offset);
        let chunk = Chunk::Data { offset, wire_len, bytes, time_ns: segment.time_ns };
        if offset < next {
            // Sent again, or late: what looks like a header is kept.
            let mut decoder = Decoder::new(way, false);
            let mut digests = self.digests;
            return read(&mut decoder, chunk, offset, &mut digests, &mut Negotiated::default());
        }
        if offset > next {
            let gap = Chunk::Gap { offset: next, len: offset - next };
            self.decoder.handle_chunk(gap, &mut self.digests, &mut self.negotiated, &mut |_| ());
        }
        self.next = Some(offset.saturating_add(wire_len));
        read(&mut self.decoder, chunk, offset, &mut self.digests, &mut self.negotiated)
    }
}

/// Decodes a chunk and says where its headers and login texts are, counted from `offset`.
fn read(
    decoder: &mut Decoder,
    chunk: Chunk<'_>,
    offset: u64,
    digests: &mut Digests,
    negotiated: &mut Negotiated,
) -> Vec<Range<usize>> {
    let at = |stream: u64| usize::try_from(stream.saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut ranges = Vec::new();
    // Login text that began in an earlier segment. What follows it in the same segment is another
    // login PDU, or nothing: nobody sends data before the login has ended.
    if decoder.reads_text() {
        ranges.push(0..usize::MAX);
    }
    decoder.handle_chunk(chunk, digests, negotiated, &mut |event| {
        if let PduEvent::Header { header, offset, end, .. } = event {
            let length = HEADER_BYTES + header.ahs.len() as u64;
            let end = if is_login(header.bhs[0]) { end } else { offset + length };
            ranges.push(at(offset)..at(end));
        }
    });
    if let Some(begin) = decoder.partial_header() {
        ranges.push(at(begin)..usize::MAX);
    }
    merge(ranges)
}

fn is_login(first: u8) -> bool {
    matches!(first & 0x3f, 0x03 | 0x23)
}

/// Ranges in order that do not overlap.
fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
