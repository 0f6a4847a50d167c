//! One direction's chunks → PDU headers with their times. Lengths in the headers lead from one to
//! the next, so missing payload does no harm; a missing header does, and then the next plausible
//! one is looked for at the beginning of what comes.
//!
//! Digests are as the login in the capture said. Without a login they are found out: a header
//! digest by its value, a data digest by where the next header is.

use iscsi_proto::frame::{DIGEST_LEN, Framing, pad_len};
use iscsi_proto::pdu::{BHS_LEN, Header, Opcode, Pdu};
use serde::Serialize;

use super::negotiated::LOGIN_TEXT_BYTES_MAX;
use super::{Direction, Negotiated, is_plausible, opcode_belongs};
use crate::stream::Chunk;

/// Digests of a connection; `None`: not known yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Digests {
    /// A CRC32C behind each header.
    pub header: Option<bool>,
    /// A CRC32C behind each data segment.
    pub data: Option<bool>,
}

/// What happened in the stream.
#[derive(Clone, Debug, PartialEq)]
pub enum PduEvent {
    /// A header is complete.
    Header {
        /// BHS and AHS.
        header: Header,
        /// What it means; `None` if its fields contradict each other.
        pdu: Option<Pdu>,
        /// Stream offset of its first byte.
        offset: u64,
        /// Stream offset behind the PDU.
        end: u64,
        /// When its first byte was captured.
        time_ns: u64,
    },
    /// The last byte of a PDU with a data segment has come.
    End {
        /// Its header.
        header: Header,
        /// When.
        time_ns: u64,
    },
}

/// What was found and what could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DecodeCounts {
    /// PDUs.
    pub pdus: u64,
    /// How often the place of the next header was lost.
    pub lost_sync: u64,
    /// Bytes stepped over while it was looked for.
    pub bytes_skipped: u64,
    /// Headers whose fields contradict each other.
    pub malformed: u64,
}

#[derive(Debug)]
enum State {
    /// Gathering a header (with what may follow it).
    Header { bytes: Vec<u8>, begin: u64, time_ns: u64 },
    /// Gathering the digest of a header.
    Digest { header: Header, begin: u64, bytes: Vec<u8> },
    /// Stepping over data, padding and data digest.
    Payload { header: Header, left: u64, text: Option<Vec<u8>> },
    /// Looking for a header.
    Lost,
}

/// Reads one direction.
#[derive(Debug)]
pub struct Decoder {
    direction: Direction,
    state: State,
    /// The PDU before had data and it is not known whether a digest followed.
    maybe_digest: bool,
    in_login: bool,
    /// Text of the login was not captured, so its keys may be missing.
    text_cut: bool,
    counts: DecodeCounts,
}

impl Decoder {
    /// `from_start`: the first chunk is the first byte of the connection.
    pub fn new(direction: Direction, from_start: bool) -> Self {
        let state = if from_start { State::new_header() } else { State::Lost };
        let counts = DecodeCounts::default();
        Self { direction, state, maybe_digest: false, in_login: false, text_cut: false, counts }
    }

    /// What was read so far.
    pub fn counts(&self) -> DecodeCounts {
        self.counts
    }

    /// Stream offset of a header that has begun and is not complete.
    pub fn partial_header(&self) -> Option<u64> {
        match &self.state {
            State::Header { bytes, begin, .. } if !bytes.is_empty() => Some(*begin),
            State::Digest { begin, .. } => Some(*begin),
            _ => None,
        }
    }

    /// In the middle of a login's text.
    pub fn reads_text(&self) -> bool {
        matches!(self.state, State::Payload { text: Some(_), .. })
    }

    /// Reads a chunk; digests and negotiated keys belong to the connection, so both directions
    /// share them.
    pub fn handle_chunk(
        &mut self,
        chunk: Chunk<'_>,
        digests: &mut Digests,
        negotiated: &mut Negotiated,
        each: &mut impl FnMut(PduEvent),
    ) {
        match chunk {
            Chunk::Gap { len, .. } => self.handle_missing(len, 0, each),
            Chunk::Data { mut offset, mut wire_len, mut bytes, time_ns } => {
                while !bytes.is_empty() {
                    let used = self.step(offset, bytes, time_ns, digests, negotiated, each);
                    // Nothing is taken only where a search has found a header.
                    let used = used.min(bytes.len());
                    bytes = &bytes[used..];
                    offset += used as u64;
                    wire_len = wire_len.saturating_sub(used as u64);
                }
                if wire_len > 0 {
                    self.handle_missing(wire_len, time_ns, each);
                }
            }
        }
    }

    /// Bytes that were not captured: harmless in payload.
    fn handle_missing(&mut self, len: u64, time_ns: u64, each: &mut impl FnMut(PduEvent)) {
        if let State::Payload { left, text, header } = &mut self.state {
            *text = None;
            if len < *left {
                *left -= len;
                return;
            }
            let rest = len - *left;
            each(PduEvent::End { header: header.clone(), time_ns });
            self.state = State::new_header();
            if rest == 0 {
                return;
            }
        }
        self.lose_sync();
        self.counts.bytes_skipped += len;
    }

    fn lose_sync(&mut self) {
        if !matches!(self.state, State::Lost) {
            self.counts.lost_sync += 1;
            self.state = State::Lost;
        }
    }

    /// Takes some of the captured bytes; returns how many.
    fn step(
        &mut self,
        offset: u64,
        input: &[u8],
        time_ns: u64,
        digests: &mut Digests,
        negotiated: &mut Negotiated,
        each: &mut impl FnMut(PduEvent),
    ) -> usize {
        match &mut self.state {
            State::Lost => self.search(input),
            State::Payload { left, text, .. } => {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                if let Some(text) = text {
                    text.extend_from_slice(&input[..take]);
                }
                *left -= take as u64;
                if *left == 0 {
                    self.end_payload(time_ns, digests, negotiated, each);
                }
                take
            }
            State::Digest { bytes, .. } => {
                let take = (DIGEST_LEN - bytes.len()).min(input.len());
                bytes.extend_from_slice(&input[..take]);
                if bytes.len() == DIGEST_LEN {
                    self.end_digest(time_ns, digests, negotiated, each);
                }
                take
            }
            State::Header { bytes, begin, time_ns: first_ns } => {
                if bytes.is_empty() {
                    (*begin, *first_ns) = (offset, time_ns);
                }
                let wanted = header_bytes_wanted(bytes, self.direction, self.maybe_digest);
                let take = wanted.saturating_sub(bytes.len()).min(input.len());
                bytes.extend_from_slice(&input[..take]);
                // With 48 bytes it is known whether more are needed.
                if bytes.len() >= header_bytes_wanted(bytes, self.direction, self.maybe_digest) {
                    self.end_header(digests, negotiated, each);
                }
                take
            }
        }
    }

    /// The first plausible header in these bytes; what comes before it is stepped over.
    fn search(&mut self, input: &[u8]) -> usize {
        let found = input.windows(BHS_LEN).position(|window| {
            window.first_chunk().is_some_and(|bhs| is_plausible(bhs, self.direction))
        });
        let skipped = found.unwrap_or(input.len());
        self.counts.bytes_skipped += skipped as u64;
        if found.is_some() {
            self.state = State::new_header();
            self.maybe_digest = false;
        }
        skipped
    }

    fn end_header(
        &mut self,
        digests: &mut Digests,
        negotiated: &Negotiated,
        each: &mut impl FnMut(PduEvent),
    ) {
        let State::Header { bytes, begin, time_ns } = &mut self.state else { return };
        let (mut begin, time_ns) = (*begin, *time_ns);
        let bytes = std::mem::take(bytes);
        let Some((bhs, rest)) = bytes.split_first_chunk::<BHS_LEN>() else { return };
        let (bhs, rest) = if self.maybe_digest && !is_plausible(bhs, self.direction) {
            // 52 bytes were gathered: the header may stand behind a data digest.
            match bytes[DIGEST_LEN.min(bytes.len())..].split_first_chunk::<BHS_LEN>() {
                Some((shifted, rest)) if is_plausible(shifted, self.direction) => {
                    digests.data = Some(true);
                    begin += DIGEST_LEN as u64;
                    (shifted, rest)
                }
                _ => return self.lose_sync(),
            }
        } else {
            if self.maybe_digest {
                digests.data = Some(false);
            }
            (bhs, rest)
        };
        self.maybe_digest = false;
        let mut header = Header { bhs: *bhs, ahs: Default::default() };
        if !opcode_belongs(header.opcode(), self.direction) {
            return self.lose_sync();
        }
        let ahs_len = header.total_ahs_length();
        if rest.len() < ahs_len {
            // Now that the length is known, gather the AHS too.
            let bytes = [&bhs[..], rest].concat();
            self.state = State::Header { bytes, begin, time_ns };
            return;
        }
        header.ahs = rest[..ahs_len].to_vec().into();
        self.in_login = matches!(header.opcode(), Opcode::LOGIN_REQUEST | Opcode::LOGIN_RESPONSE);
        if self.in_login {
            *digests = Digests { header: Some(false), data: Some(false) };
        }
        self.emit(&header, begin, time_ns, *digests, each);
        if digests.header == Some(false) {
            self.begin_payload(header, digests, negotiated);
        } else {
            self.state = State::Digest { header, begin, bytes: Vec::new() };
        }
    }

    fn emit(
        &mut self,
        header: &Header,
        offset: u64,
        time_ns: u64,
        digests: Digests,
        each: &mut impl FnMut(PduEvent),
    ) {
        let pdu = Pdu::parse(header).ok();
        self.counts.pdus += 1;
        self.counts.malformed += u64::from(pdu.is_none());
        let digest = if digests.header == Some(true) { DIGEST_LEN } else { 0 };
        let headers = (BHS_LEN + header.ahs.len() + digest) as u64;
        let end = offset + headers + payload_len(header, digests);
        each(PduEvent::Header { header: header.clone(), pdu, offset, end, time_ns });
    }

    /// Four bytes behind a header: its digest, or already its data or the next header.
    fn end_digest(
        &mut self,
        time_ns: u64,
        digests: &mut Digests,
        negotiated: &mut Negotiated,
        each: &mut impl FnMut(PduEvent),
    ) {
        let State::Digest { header, begin, bytes, .. } =
            std::mem::replace(&mut self.state, State::Lost)
        else {
            return;
        };
        let framing = Framing { header_digest: true, data_digest: false };
        let expected = framing.header_bytes(&header);
        let matches = expected[expected.len() - DIGEST_LEN..] == bytes[..];
        if digests.header.is_none() {
            digests.header = Some(matches);
        }
        let offset = begin + (BHS_LEN + header.ahs.len()) as u64;
        self.begin_payload(header, digests, negotiated);
        if digests.header == Some(false) {
            // No digest: the four bytes belong to what comes now.
            let chunk = Chunk::Data { offset, wire_len: DIGEST_LEN as u64, bytes: &bytes, time_ns };
            self.handle_chunk(chunk, digests, negotiated, each);
        }
    }

    fn begin_payload(&mut self, header: Header, digests: &mut Digests, negotiated: &Negotiated) {
        let left = payload_len(&header, *digests);
        if left == 0 {
            self.end_login(&header, digests, negotiated);
            self.state = State::new_header();
            return;
        }
        self.maybe_digest = digests.data.is_none();
        let wants_text = self.in_login && left <= LOGIN_TEXT_BYTES_MAX as u64;
        self.state = State::Payload { header, left, text: wants_text.then(Vec::new) };
    }

    fn end_payload(
        &mut self,
        time_ns: u64,
        digests: &mut Digests,
        negotiated: &mut Negotiated,
        each: &mut impl FnMut(PduEvent),
    ) {
        let State::Payload { header, text, .. } =
            std::mem::replace(&mut self.state, State::new_header())
        else {
            return;
        };
        match text {
            Some(text) => negotiated.read(&text, self.direction),
            None => self.text_cut |= self.in_login,
        }
        self.end_login(&header, digests, negotiated);
        each(PduEvent::End { header, time_ns });
    }

    /// Behind the Login Response that leads to full-feature phase, digests are as negotiated
    /// (RFC 7143 §13.1).
    fn end_login(&mut self, header: &Header, digests: &mut Digests, negotiated: &Negotiated) {
        let to_full_feature = header.bhs[1] & 0x83 == 0x83 && header.bhs[36] == 0;
        if header.opcode() == Opcode::LOGIN_RESPONSE && to_full_feature {
            let known = |digest: Option<bool>| digest.or((!self.text_cut).then_some(false));
            digests.header = known(negotiated.header_digest);
            digests.data = known(negotiated.data_digest);
        }
    }
}

impl State {
    fn new_header() -> Self {
        Self::Header { bytes: Vec::new(), begin: 0, time_ns: 0 }
    }
}

/// Data segment, padding and data digest of a PDU.
fn payload_len(header: &Header, digests: Digests) -> u64 {
    let data = header.data_segment_length() as usize;
    let digest = if digests.data == Some(true) && data > 0 { DIGEST_LEN } else { 0 };
    (data + pad_len(data) + digest) as u64
}

/// Bytes to gather before the header can be judged again.
fn header_bytes_wanted(bytes: &[u8], direction: Direction, maybe_digest: bool) -> usize {
    let Some((bhs, _)) = bytes.split_first_chunk::<BHS_LEN>() else { return BHS_LEN };
    if maybe_digest && !is_plausible(bhs, direction) {
        return BHS_LEN + DIGEST_LEN;
    }
    BHS_LEN + usize::from(bhs[4]) * 4
}
