//! One TCP connection from its packets: both directions put in order, decoded, and joined into the
//! initiator's view.

use std::collections::VecDeque;
use std::net::SocketAddr;

use iscsi_proto::pdu::{Header, Opcode, Pdu};

use super::flow::{Flow, Pause};
use super::report::{ConnectionReport, RoundTrip};
use super::timeline::{Path, Timeline};
use crate::capture::Segment;
use crate::pdus::{Decoder, Digests, Direction, Negotiated, PduEvent};
use crate::stream::{Offsets, Reassembly};

/// What the target sent and what has not reached the initiator yet.
const ARRIVALS_MAX: usize = 1 << 15;
/// What one of them takes, about: a PDU and its header.
const ARRIVAL_BYTES: usize = 512;
/// Segments remembered to know a second copy of a packet, and for how long.
const COPIES: usize = 64;
const COPY_NS_MAX: u64 = 2_000_000;

#[derive(Debug)]
struct Half {
    offsets: Offsets,
    stream: Reassembly,
    /// `None` until the first data: only then it is known whether the start was seen.
    decoder: Option<Decoder>,
    started: bool,
    recent: VecDeque<(u64, u16, u32, Option<u32>, u32)>,
}

impl Half {
    fn new() -> Self {
        Self {
            offsets: Offsets::default(),
            stream: Reassembly::default(),
            decoder: None,
            started: false,
            recent: VecDeque::new(),
        }
    }

    /// Captures on several devices see a packet more than once.
    fn is_copy(&mut self, segment: &Segment<'_>) -> bool {
        let Some(id) = segment.ip_id.filter(|&id| id != 0) else { return false };
        let key = (id, segment.seq, segment.ack, segment.payload_len);
        let copy = self.recent.iter().any(|&(time, id, seq, ack, len)| {
            (id, seq, ack, len) == key && segment.time_ns.saturating_sub(time) <= COPY_NS_MAX
        });
        if self.recent.len() == COPIES {
            self.recent.pop_front();
        }
        self.recent.push_back((segment.time_ns, key.0, key.1, key.2, key.3));
        copy
    }
}

/// One segment and what is known when it has passed.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentTrace {
    /// When it was captured.
    pub time_ns: u64,
    /// Which way it goes.
    pub direction: Direction,
    /// Payload.
    pub payload_bytes: u32,
    /// Retransmissions of its direction so far.
    pub retransmissions: u64,
    /// Data in flight in its direction.
    pub in_flight_bytes: u64,
    /// The window that its receiver announced last.
    pub window_bytes: Option<u64>,
    /// PDUs whose headers it completed.
    pub opcodes: Vec<Opcode>,
}

/// Something of the target on its way to the initiator.
#[derive(Debug)]
enum Arrival {
    Segment(Pause),
    Pdu(Box<(Pdu, Header)>),
    End(Box<Header>),
    Lost,
}

/// A connection under analysis.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) initiator: SocketAddr,
    pub(crate) target: SocketAddr,
    halves: [Half; 2],
    flows: [Flow; 2],
    digests: Digests,
    negotiated: Negotiated,
    timeline: Timeline,
    arrivals: VecDeque<(u64, Arrival)>,
    first_ns: u64,
    pub(crate) last_ns: u64,
    syn_ns: [Option<u64>; 2],
    syn_again: bool,
    /// Where each direction ends, from its FIN on; RST ends both.
    ends: [Option<u64>; 2],
    acked: [u64; 2],
    reset: bool,
    copies: u64,
    pub(crate) pdus: u64,
    /// Opcodes of the headers that the present segment completed.
    opcodes: Vec<Opcode>,
}

impl Connection {
    pub(crate) fn new(initiator: SocketAddr, target: SocketAddr, now: u64, origin_ns: u64) -> Self {
        Self {
            initiator,
            target,
            halves: [Half::new(), Half::new()],
            flows: [Flow::default(), Flow::default()],
            digests: Digests::default(),
            negotiated: Negotiated::default(),
            timeline: Timeline::new(origin_ns),
            arrivals: VecDeque::new(),
            first_ns: now,
            last_ns: now,
            syn_ns: [None; 2],
            syn_again: false,
            ends: [None; 2],
            acked: [0; 2],
            reset: false,
            copies: 0,
            pdus: 0,
            opcodes: Vec::new(),
        }
    }

    /// Least time from the capture to this direction's receiver and back.
    fn part_ns(&self, direction: Direction) -> u64 {
        self.flows[direction.index()].receiver_ns().unwrap_or(0)
    }

    fn rtt_ns(&self) -> u64 {
        self.part_ns(Direction::ToTarget).saturating_add(self.part_ns(Direction::ToInitiator))
    }

    fn path(&self) -> Path {
        Path {
            rtt_ns: self.rtt_ns(),
            first_burst: self.negotiated.first_burst_bytes.map(u64::from),
        }
    }

    fn direction(&self, segment: &Segment<'_>) -> Direction {
        if segment.src == self.initiator { Direction::ToTarget } else { Direction::ToInitiator }
    }

    /// What [`Self::handle_segment`] made of this segment.
    pub(crate) fn trace(&mut self, segment: &Segment<'_>) -> SegmentTrace {
        let direction = self.direction(segment);
        let flow = &self.flows[direction.index()];
        SegmentTrace {
            time_ns: segment.time_ns,
            direction,
            payload_bytes: segment.payload_len,
            retransmissions: flow.counts().retransmissions,
            in_flight_bytes: flow.in_flight(),
            window_bytes: flow.window(),
            opcodes: std::mem::take(&mut self.opcodes),
        }
    }

    pub(crate) fn handle_segment(&mut self, segment: &Segment<'_>) {
        let direction = self.direction(segment);
        self.opcodes.clear();
        let (mine, other) = (direction.index(), direction.reverse().index());
        if self.halves[mine].is_copy(segment) {
            self.copies += 1;
            return;
        }
        let now = segment.time_ns.max(self.last_ns);
        let segment = &Segment { time_ns: now, ..segment.clone() };
        self.last_ns = now;
        self.arrive(now);
        if segment.syn {
            self.handle_syn(segment, direction);
        } else if self.syn_ns[other].is_some() && self.syn_ns[mine].is_some() {
            self.handle_handshake_end(segment, direction);
        }
        if let Some((value, _)) = segment.options.timestamps {
            self.flows[other].handle_clock(value, now);
        }
        let offset = self.halves[mine].offsets.of(segment.seq);
        if let Some(ack) = segment.ack {
            self.handle_ack(segment, direction, ack);
        }
        if segment.payload_len > 0 && !segment.syn {
            self.handle_data(segment, direction, offset);
        }
        if segment.fin {
            let end = offset.saturating_add(u64::from(segment.payload_len)).saturating_add(1);
            self.ends[mine] = Some(end);
        }
        self.reset |= segment.rst;
    }

    /// Both directions have ended and that was acknowledged (or RST): nothing is sent again.
    pub(crate) fn is_over(&self) -> bool {
        let ended = |side: usize| self.ends[side].is_some_and(|end| self.acked[side] >= end);
        self.reset || (ended(0) && ended(1))
    }

    fn handle_syn(&mut self, segment: &Segment<'_>, direction: Direction) {
        let (mine, other) = (direction.index(), direction.reverse().index());
        let half = &mut self.halves[mine];
        let first = half.offsets.of(segment.seq).saturating_add(1);
        half.stream.start(first);
        half.started = true;
        self.flows[other].set_scale(segment.options.window_scale);
        if let Some(mss) = segment.options.mss {
            let options = if segment.options.timestamps.is_some() { 12 } else { 0 };
            self.flows[other].set_mss(u32::from(mss).saturating_sub(options));
        }
        self.syn_again |= self.syn_ns[mine].is_some();
        self.syn_ns[mine] = Some(segment.time_ns);
        // SYN → SYN+ACK measures the way to whoever answered, unless the SYN was sent twice.
        if let (Some(_), Some(syn), false) = (segment.ack, self.syn_ns[other], self.syn_again) {
            self.flows[other].handle_sample(segment.time_ns.saturating_sub(syn));
        }
    }

    /// The first segment behind a SYN+ACK.
    fn handle_handshake_end(&mut self, segment: &Segment<'_>, direction: Direction) {
        let other = direction.reverse().index();
        if let (Some(answer), false) = (self.syn_ns[other].take(), self.syn_again) {
            self.flows[other].handle_sample(segment.time_ns.saturating_sub(answer));
        }
    }

    fn handle_ack(&mut self, segment: &Segment<'_>, direction: Direction, ack: u32) {
        let (other, rtt_ns) = (direction.reverse().index(), self.rtt_ns());
        let half = &mut self.halves[other];
        // Nothing of the other direction was seen yet: the acknowledgement is where it stands.
        let offset = match half.offsets.peek(ack) {
            Some(offset) => offset,
            None => half.offsets.of(ack),
        };
        self.acked[other] = self.acked[other].max(offset);
        let sack_end = segment.options.sack.iter().flatten().map(|&(_, end)| end);
        let sack_end = sack_end.filter_map(|end| half.offsets.peek(end)).max();
        let sack_end = sack_end.filter(|&end| end > offset);
        let flow = &mut self.flows[other];
        if !segment.syn {
            flow.handle_ack(segment, offset, sack_end, rtt_ns);
        }
        let way = direction.reverse();
        let mut events = Vec::new();
        let Half { stream, decoder, .. } = half;
        if let Some(decoder) = decoder {
            stream.handle_ack(offset, &mut |chunk| {
                decoder.handle_chunk(chunk, &mut self.digests, &mut self.negotiated, &mut |e| {
                    events.push(e);
                });
            });
        }
        self.handle_events(way, segment.time_ns, events);
    }

    fn handle_data(&mut self, segment: &Segment<'_>, direction: Direction, offset: u64) {
        let (mine, now) = (direction.index(), segment.time_ns);
        let sender_ns = self.part_ns(direction.reverse());
        let rtt_ns = self.rtt_ns();
        let path = self.path();
        let pause = self.flows[mine].handle_data(segment, offset, sender_ns, rtt_ns);
        if let Some((_, echo)) = segment.options.timestamps {
            self.flows[mine].handle_echo(echo, now, pause);
        }
        match direction {
            Direction::ToTarget => {
                self.timeline.advance(now, &self.flows[0], path);
                self.timeline.handle_sent(pause, &mut self.flows[0], rtt_ns);
            }
            Direction::ToInitiator => self.push(now, Arrival::Segment(pause)),
        }
        let half = &mut self.halves[mine];
        let started = half.started;
        let decoder = half.decoder.get_or_insert_with(|| Decoder::new(direction, started));
        let before = decoder.counts().lost_sync;
        let mut events = Vec::new();
        half.stream.handle_segment(
            offset,
            u64::from(segment.payload_len),
            segment.payload,
            now,
            &mut |chunk| {
                decoder.handle_chunk(chunk, &mut self.digests, &mut self.negotiated, &mut |e| {
                    events.push(e);
                });
            },
        );
        let lost = decoder.counts().lost_sync > before;
        self.handle_events(direction, now, events);
        if lost {
            match direction {
                Direction::ToTarget => self.timeline.lose(now, &mut self.flows[0], path),
                Direction::ToInitiator => self.push(now, Arrival::Lost),
            }
        }
    }

    fn handle_events(&mut self, direction: Direction, now: u64, events: Vec<PduEvent>) {
        let path = self.path();
        for event in events {
            if let PduEvent::Header { header, .. } = &event {
                self.opcodes.push(header.opcode());
            }
            self.pdus += u64::from(matches!(event, PduEvent::Header { .. }));
            match (direction, event) {
                (Direction::ToTarget, PduEvent::Header { header, pdu, end, time_ns, .. }) => {
                    self.timeline.advance(now, &self.flows[0], path);
                    if let Some(pdu) = pdu {
                        self.timeline.handle_request(&pdu, &header, end, time_ns, path);
                    }
                }
                (Direction::ToTarget, PduEvent::End { header, .. }) => {
                    self.timeline.advance(now, &self.flows[0], path);
                    self.timeline.handle_request_end(&header, now);
                }
                (Direction::ToInitiator, PduEvent::Header { header, pdu, .. }) => {
                    if let Some(pdu) = pdu {
                        self.push(now, Arrival::Pdu(Box::new((pdu, header))));
                    }
                }
                (Direction::ToInitiator, PduEvent::End { header, .. }) => {
                    self.push(now, Arrival::End(Box::new(header)));
                }
            }
        }
    }

    /// Memory of what waits, about: behind holes, and on its way to the initiator.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let behind_holes: usize = self.halves.iter().map(|half| half.stream.waiting_bytes()).sum();
        behind_holes + self.arrivals.len() * ARRIVAL_BYTES
    }

    /// Nothing waits any longer: holes are given up, and what is on its way arrives.
    pub(crate) fn shed(&mut self) {
        let now = self.last_ns;
        for direction in [Direction::ToTarget, Direction::ToInitiator] {
            let mut events = Vec::new();
            let Half { stream, decoder, .. } = &mut self.halves[direction.index()];
            stream.give_up_holes(&mut |chunk| {
                if let Some(decoder) = decoder {
                    let digests = &mut self.digests;
                    decoder.handle_chunk(chunk, digests, &mut self.negotiated, &mut |event| {
                        events.push(event);
                    });
                }
            });
            self.handle_events(direction, now, events);
        }
        let way_ns = self.part_ns(Direction::ToInitiator);
        while !self.arrivals.is_empty() {
            self.arrive_one(way_ns);
        }
    }

    fn push(&mut self, now: u64, arrival: Arrival) {
        if self.arrivals.len() >= ARRIVALS_MAX {
            self.arrive_one(now);
        }
        self.arrivals.push_back((now, arrival));
    }

    /// What the target sent reaches the initiator, as far as that is due.
    fn arrive(&mut self, now: u64) {
        let way_ns = self.part_ns(Direction::ToInitiator);
        while self.arrivals.front().is_some_and(|(time, _)| time.saturating_add(way_ns) <= now) {
            self.arrive_one(way_ns);
        }
        self.flows[0].deliver_acks(now, way_ns);
    }

    fn arrive_one(&mut self, way_ns: u64) {
        let Some((time, arrival)) = self.arrivals.pop_front() else { return };
        let now = time.saturating_add(way_ns);
        let path = self.path();
        self.flows[0].deliver_acks(now, way_ns);
        self.timeline.advance(now, &self.flows[0], path);
        match arrival {
            Arrival::Segment(pause) => {
                self.timeline.handle_arrived(pause, &mut self.flows[1], path.rtt_ns);
            }
            Arrival::Pdu(pdu) => self.timeline.handle_reply(&pdu.0, &pdu.1, now),
            Arrival::End(header) => self.timeline.handle_reply_end(&header, now),
            Arrival::Lost => self.timeline.lose(now, &mut self.flows[0], path),
        }
    }

    /// The end of the capture.
    pub(crate) fn report(mut self) -> ConnectionReport {
        let way_ns = self.part_ns(Direction::ToInitiator);
        while !self.arrivals.is_empty() {
            self.arrive_one(way_ns);
        }
        self.timeline.finish();
        let round_trip = RoundTrip::new(self.flows[1].receiver_ns(), self.flows[0].receiver_ns());
        let counts = |half: &Half| half.decoder.as_ref().map(Decoder::counts).unwrap_or_default();
        let pdus = [counts(&self.halves[0]), counts(&self.halves[1])];
        ConnectionReport::new(
            (self.initiator, self.target),
            (self.first_ns, self.last_ns),
            self.negotiated,
            self.digests,
            round_trip,
            &self.timeline,
            &self.flows,
            pdus,
            self.copies,
        )
    }
}
