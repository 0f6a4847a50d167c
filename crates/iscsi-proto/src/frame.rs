//! Framing: where a PDU begins and ends in a TCP stream, and its digests (RFC 7143 §11.1, §11.2,
//! §13.1). It holds no state and copies no payload: whoever owns the socket reads the data segment
//! to its place and tells [`DataDigest`] about the bytes. [`Framer`] is for those who would rather
//! have whole PDUs (login, simulator, tests).

use std::ops::Deref;

use bytes::{Buf, Bytes, BytesMut};

use crate::ids::Itt;
use crate::pdu::{BHS_LEN, Header, Opcode};

/// Length of a digest on the wire.
pub const DIGEST_LEN: usize = 4;

/// Longest AHS area that TotalAHSLength can express: 255 words.
pub const AHS_LENGTH_LIMIT: u16 = 1020;

/// Digests agreed for a connection; none until login has ended (§13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// A CRC32C follows BHS and AHS.
    pub header_digest: bool,
    /// A CRC32C follows a data segment that is not empty.
    pub data_digest: bool,
}

/// The longest PDU that is accepted. A longer one is an error before anything is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What we declared as MaxRecvDataSegmentLength.
    pub data_segment_length_max: u32,
    /// AHSs in bytes.
    pub ahs_length_max: u16,
}

impl Limits {
    /// Limits of the login phase. 8192 is the default of MaxRecvDataSegmentLength (§13.12), which
    /// holds until login has ended; no login PDU has an AHS.
    pub const LOGIN: Self = Self { data_segment_length_max: 8192, ahs_length_max: 0 };

    /// Limits of full-feature phase. An extended CDB (244 bytes, §11.2.2.3) and a bidirectional
    /// read length need 256 bytes of AHS with their headers.
    pub const fn full_feature(data_segment_length_max: u32) -> Self {
        Self { data_segment_length_max, ahs_length_max: 256 }
    }
}

/// Why the stream cannot be cut into PDUs any more, or a payload is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The header's digest does not fit. The PDU's length is unknown: the connection is lost
    /// (§7.7).
    #[error("header digest {received:#010x}, computed {computed:#010x}")]
    HeaderDigest {
        /// As received.
        received: u32,
        /// Over the bytes received.
        computed: u32,
    },
    /// The data segment's digest does not fit (§7.8); the stream is intact.
    #[error("data digest {received:#010x}, computed {computed:#010x}")]
    DataDigest {
        /// As received.
        received: u32,
        /// Over the bytes received.
        computed: u32,
    },
    /// DataSegmentLength over the limit.
    #[error("{opcode} itt {itt}: data segment of {length} bytes, at most {max} accepted")]
    DataSegmentTooLong {
        /// The PDU's opcode.
        opcode: Opcode,
        /// The PDU's tag.
        itt: Itt,
        /// DataSegmentLength.
        length: u32,
        /// The limit.
        max: u32,
    },
    /// TotalAHSLength over the limit.
    #[error("{opcode} itt {itt}: AHS of {length} bytes, at most {max} accepted")]
    AhsTooLong {
        /// The PDU's opcode.
        opcode: Opcode,
        /// The PDU's tag.
        itt: Itt,
        /// TotalAHSLength in bytes.
        length: usize,
        /// The limit.
        max: u16,
    },
}

/// A header that has arrived, and the lengths of what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// BHS and AHS.
    pub header: Header,
    /// Bytes of input that the header took, digest included.
    pub header_len: usize,
    /// Bytes of the data segment.
    pub data_len: usize,
    /// Padding behind it, 0–3.
    pub pad_len: usize,
    /// A data digest follows the padding.
    pub data_digest: bool,
}

impl Frame {
    /// Bytes between the end of the data and the next PDU: padding and data digest.
    pub const fn trailer_len(&self) -> usize {
        self.pad_len + if self.data_digest { DIGEST_LEN } else { 0 }
    }

    /// Bytes of the whole PDU.
    pub const fn total_len(&self) -> usize {
        self.header_len + self.data_len + self.trailer_len()
    }
}

/// Looks for a header at the start of `input`; `None` if more bytes are needed.
///
/// # Errors
/// [`FrameError`] if a length exceeds its limit or the header digest does not fit. The connection
/// cannot go on after that.
pub fn parse_header(
    input: &[u8],
    framing: Framing,
    limits: Limits,
) -> Result<Option<Frame>, FrameError> {
    let Some((bhs, rest)) = input.split_first_chunk::<BHS_LEN>() else {
        return Ok(None);
    };
    let mut header = Header { bhs: *bhs, ahs: Bytes::new() };
    let ahs_len = header.total_ahs_length();
    let digest_len = if framing.header_digest { DIGEST_LEN } else { 0 };
    if !framing.header_digest {
        // Without a digest the lengths are all there is to believe: refuse at once.
        check_lengths(&header, limits)?;
    }
    // Bounded by TotalAHSLength's one byte: at most 1020 + 4.
    if rest.len() < ahs_len + digest_len {
        return Ok(None);
    }
    let (ahs, rest) = rest.split_at(ahs_len);
    if framing.header_digest
        && let Some((digest, _)) = rest.split_first_chunk::<DIGEST_LEN>()
    {
        let received = u32::from_le_bytes(*digest);
        let computed = crc32c::crc32c_append(crc32c::crc32c(bhs), ahs);
        if received != computed {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
            //# When a target or an initiator receives any iSCSI PDU with a header digest error, it
            //# MUST either discard the header and all data up to the beginning of a later PDU or
            //# close the connection.
            return Err(FrameError::HeaderDigest { received, computed });
        }
        check_lengths(&header, limits)?;
    }
    if !ahs.is_empty() {
        header.ahs = Bytes::copy_from_slice(ahs);
    }
    let data_len = header.data_segment_length() as usize;
    Ok(Some(Frame {
        header,
        header_len: BHS_LEN + ahs_len + digest_len,
        data_len,
        pad_len: pad_len(data_len),
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.3
        //# A zero-length Data Segment also implies a zero-length Data-Digest.
        data_digest: framing.data_digest && data_len > 0,
    }))
}

fn check_lengths(header: &Header, limits: Limits) -> Result<(), FrameError> {
    let (opcode, itt) = (header.opcode(), header.itt());
    let length = header.total_ahs_length();
    let max = limits.ahs_length_max;
    if length > usize::from(max) {
        return Err(FrameError::AhsTooLong { opcode, itt, length, max });
    }
    let length = header.data_segment_length();
    let max = limits.data_segment_length_max;
    if length > max {
        return Err(FrameError::DataSegmentTooLong { opcode, itt, length, max });
    }
    Ok(())
}

/// Padding behind a segment: up to the next word (§11.1).
pub const fn pad_len(data_len: usize) -> usize {
    data_len.wrapping_neg() % 4
}

impl Framing {
    /// What goes on the wire for a header: BHS, AHS, digest.
    pub fn header_bytes(&self, header: &Header) -> HeaderBytes {
        let mut bytes = HeaderBytes { inline: [0; BHS_LEN + DIGEST_LEN], len: 0, heap: Vec::new() };
        let digest = self
            .header_digest
            .then(|| crc32c::crc32c_append(crc32c::crc32c(&header.bhs), &header.ahs).to_le_bytes());
        let digest = digest.as_ref().map_or(&[][..], |digest| &digest[..]);
        if header.ahs.is_empty() {
            bytes.len = BHS_LEN + digest.len();
            bytes.inline[..BHS_LEN].copy_from_slice(&header.bhs);
            bytes.inline[BHS_LEN..bytes.len].copy_from_slice(digest);
        } else {
            bytes.heap = [&header.bhs[..], &header.ahs, digest].concat();
        }
        bytes
    }

    /// What goes on the wire behind a payload: padding, digest. `payload` is the data segment in
    /// pieces; the pieces are only read if there is a digest.
    pub fn trailer<'a>(&self, payload: impl IntoIterator<Item = &'a [u8]>) -> Trailer {
        let mut digest = DataDigest::new();
        let mut length = 0;
        for piece in payload {
            length += piece.len();
            if self.data_digest {
                digest.update(piece);
            }
        }
        let mut trailer = Trailer { bytes: [0; 3 + DIGEST_LEN], len: pad_len(length) };
        if self.data_digest && length > 0 {
            digest.update(&[0; 3][..trailer.len]);
            trailer.bytes[trailer.len..trailer.len + DIGEST_LEN].copy_from_slice(&digest.finish());
            trailer.len += DIGEST_LEN;
        }
        trailer
    }

    /// One PDU in one piece, for login, tests and tools; the data path sends the parts instead.
    pub fn pdu_bytes(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        [&self.header_bytes(header)[..], payload, &self.trailer([payload])[..]].concat()
    }
}

/// Header as sent, without heap unless it has an AHS. Dereferences to its bytes.
#[derive(Clone, Debug)]
pub struct HeaderBytes {
    inline: [u8; BHS_LEN + DIGEST_LEN],
    len: usize,
    /// Used instead of `inline` if there is an AHS.
    heap: Vec<u8>,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.heap.is_empty() { &self.inline[..self.len] } else { &self.heap }
    }
}

impl AsRef<[u8]> for HeaderBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Padding and data digest as sent. Dereferences to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Trailer {
    bytes: [u8; 3 + DIGEST_LEN],
    len: usize,
}

impl Deref for Trailer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Trailer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// CRC32C of a data segment that comes in pieces. Padding counts: feed it too, as received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataDigest(u32);

impl DataDigest {
    /// The digest of nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds the next bytes.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
    //# The CRC MUST be calculated by a method that produces the same results as the following
    //# process:
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The digest in wire order: least significant byte first (RFC 7143 §13.1, RFC 3720 B.4).
    pub const fn finish(self) -> [u8; DIGEST_LEN] {
        self.0.to_le_bytes()
    }

    /// Compares with what came behind data and padding.
    ///
    /// # Errors
    /// [`FrameError::DataDigest`] if it differs.
    pub fn verify(self, received: [u8; DIGEST_LEN]) -> Result<(), FrameError> {
        let received = u32::from_le_bytes(received);
        if received == self.0 {
            return Ok(());
        }
        Err(FrameError::DataDigest { received, computed: self.0 })
    }
}

/// Collects bytes as they come and yields whole PDUs.
#[derive(Debug)]
pub struct Framer {
    framing: Framing,
    limits: Limits,
    buffer: BytesMut,
}

impl Framer {
    /// A framer at the start of a PDU.
    pub fn new(framing: Framing, limits: Limits) -> Self {
        Self { framing, limits, buffer: BytesMut::new() }
    }

    /// Adds bytes, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Digests and limits that hold from the next PDU on: call it when login has ended.
    pub fn set(&mut self, framing: Framing, limits: Limits) {
        self.framing = framing;
        self.limits = limits;
    }

    /// Bytes that belong to no PDU yet: handed on when another reader takes over.
    pub fn into_rest(self) -> BytesMut {
        self.buffer
    }

    /// The next PDU and its data segment, `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]. After [`FrameError::DataDigest`] the damaged PDU is gone and the next call
    /// yields the next PDU; any other error comes again.
    pub fn next_pdu(&mut self) -> Result<Option<(Header, Bytes)>, FrameError> {
        let Some(frame) = parse_header(&self.buffer, self.framing, self.limits)? else {
            return Ok(None);
        };
        if self.buffer.len() < frame.total_len() {
            return Ok(None);
        }
        self.buffer.advance(frame.header_len);
        let data = self.buffer.split_to(frame.data_len).freeze();
        let trailer = self.buffer.split_to(frame.trailer_len());
        let (padding, digest) = trailer.split_at(frame.pad_len);
        if let Some(received) = digest.first_chunk::<DIGEST_LEN>() {
            let mut digest = DataDigest::new();
            digest.update(&data);
            digest.update(padding);
            digest.verify(*received)?;
        }
        Ok(Some((frame.header, data)))
    }
}
