//! pcapng as `enkaku monitor record` writes it (draft-ietf-opsawg-pcapng): one interface of raw
//! IP, nanoseconds, and at the end how much the kernel lost.

use std::io::{self, Write};

use super::LinkType;

const NANOSECONDS: u8 = 9;
const IF_TSRESOL: u16 = 9;
const ISB_IFRECV: u16 = 4;
const ISB_OSDROP: u16 = 7;

/// Writes packets of raw IP.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    /// Writes the head of the file.
    ///
    /// # Errors
    /// Those of `to`, here and below.
    pub fn new(mut to: W, snap_bytes: u32) -> io::Result<Self> {
        section(&mut to)?;
        interface(&mut to, LinkType::RAW, snap_bytes)?;
        Ok(Self { to })
    }

    /// A packet of `wire_len` bytes of which `bytes` are kept.
    pub fn packet(&mut self, time_ns: u64, wire_len: u32, bytes: &[u8]) -> io::Result<()> {
        block(&mut self.to, 6, &packet(0, time_ns, wire_len, bytes))
    }

    /// A block of our own: types with the highest bit set are for local use, and other programs
    /// pass over them.
    pub fn local_block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        block(&mut self.to, kind | 1 << 31, body)
    }

    /// The end: packets seen, and packets that the kernel had no room for.
    pub fn finish(mut self, time_ns: u64, seen: u64, lost: u64) -> io::Result<()> {
        let mut body = 0_u32.to_le_bytes().to_vec();
        body.extend(((time_ns >> 32) as u32).to_le_bytes());
        body.extend((time_ns as u32).to_le_bytes());
        option(&mut body, ISB_IFRECV, &seen.to_le_bytes());
        option(&mut body, ISB_OSDROP, &lost.to_le_bytes());
        option(&mut body, 0, &[]);
        block(&mut self.to, 5, &body)?;
        self.to.flush()
    }
}

/// The head of a file.
pub(super) fn section(to: &mut impl Write) -> io::Result<()> {
    let section = [[0x4d, 0x3c, 0x2b, 0x1a], [1, 0, 0, 0], [0xff; 4], [0xff; 4]].concat();
    block(to, 0x0a0d_0d0a, &section)
}

/// An interface whose times are nanoseconds.
pub(super) fn interface(to: &mut impl Write, link: LinkType, snap_bytes: u32) -> io::Result<()> {
    let mut body = (link.0 as u16).to_le_bytes().to_vec();
    body.extend([0, 0]);
    body.extend(snap_bytes.to_le_bytes());
    option(&mut body, IF_TSRESOL, &[NANOSECONDS]);
    option(&mut body, 0, &[]);
    block(to, 1, &body)
}

/// The body of an Enhanced Packet Block without its options.
pub(super) fn packet(interface: u32, time_ns: u64, wire_len: u32, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes.len() + 24);
    body.extend(interface.to_le_bytes());
    body.extend(((time_ns >> 32) as u32).to_le_bytes());
    body.extend((time_ns as u32).to_le_bytes());
    body.extend((bytes.len() as u32).to_le_bytes());
    body.extend(wire_len.to_le_bytes());
    body.extend(bytes);
    body
}

pub(super) fn block(to: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let padded = body.len().next_multiple_of(4);
    let total = (padded + 12) as u32;
    to.write_all(&kind.to_le_bytes())?;
    to.write_all(&total.to_le_bytes())?;
    to.write_all(body)?;
    to.write_all(&[0; 3][..padded - body.len()])?;
    to.write_all(&total.to_le_bytes())
}

pub(super) fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}
