//! pcap and pcapng files, block by block in constant memory. Damage ends the reading with a
//! statement of where; what came before it counts.

use std::io::{Read, copy, sink};

use pcap_parser::pcapng::Block;
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{PIB_MAGIC, PcapBlockOwned, PcapError, create_reader};

use super::{CaptureSummary, LinkType, Segment, decode};

/// Bytes of the file held at once.
const BUFFER_BYTES: usize = 1 << 18;
/// A block longer than this is damage: the largest packet is one of BIG TCP, 512 KiB.
const BLOCK_BYTES_MAX: usize = 1 << 22;
/// Type, length, and the length again: around every block of pcapng.
const BLOCK_FRAME_BYTES: u32 = 12;
/// Interfaces of a pcapng section; more are not looked at.
const INTERFACES_MAX: usize = 4096;

/// Why nothing can be read from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// Neither format.
    #[error("neither a pcap nor a pcapng file")]
    Format,
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// The first block is not complete.
    #[error("the file ends within its header")]
    Cut,
    /// Reading failed.
    #[error("reading failed: {0}")]
    Read(#[from] std::io::Error),
}

/// A packet as it stands in a file.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What its first bytes are.
    pub link: LinkType,
    /// When it was captured, in nanoseconds of the capture's clock.
    pub time_ns: u64,
    /// Bytes that it had on the wire.
    pub wire_len: u32,
    /// Those that were kept.
    pub bytes: &'a [u8],
}

/// Hands every TCP segment of a capture to `each`, in the order of the file.
///
/// # Errors
/// [`CaptureError`] if the beginning is no capture. Damage further on is told in the summary.
pub fn read_capture(
    input: impl Read + Send,
    mut each: impl FnMut(&Segment<'_>),
) -> Result<CaptureSummary, CaptureError> {
    read_packets(input, |_, segment| segment.into_iter().for_each(&mut each))
}

/// Hands every packet that has a time to `each`, in the order of the file, with the TCP segment
/// that it is.
///
/// # Errors
/// As those of [`read_capture`].
pub fn read_packets(
    mut input: impl Read + Send,
    mut each: impl FnMut(&Packet<'_>, Option<&Segment<'_>>),
) -> Result<CaptureSummary, CaptureError> {
    let mut reader = create_reader(BUFFER_BYTES, Full(&mut input)).map_err(no_capture)?;
    let mut summary = CaptureSummary::default();
    let mut format = Format::default();
    let mut capacity = BUFFER_BYTES;
    loop {
        let next = if format.is_too_short(reader.data()) {
            Err(PcapError::HeaderNotRecognized)
        } else {
            reader.next()
        };
        let problem = match next {
            Ok((length, block)) => {
                format.handle(&block, &mut summary, &mut each);
                drop(block);
                // A block of no length would be read for ever.
                if length > 0 {
                    reader.consume(length);
                    continue;
                }
                "a block of length 0".to_owned()
            }
            Err(PcapError::Eof) => return Ok(summary),
            Err(PcapError::Incomplete(_)) => {
                let before = reader.data().len();
                let refilled = reader.refill().is_ok();
                if refilled && (reader.data().len() > before || !reader.reader_exhausted()) {
                    continue;
                }
                if before == 0 {
                    return Ok(summary);
                }
                "the last block is cut".to_owned()
            }
            Err(PcapError::BufferTooSmall) if capacity < BLOCK_BYTES_MAX => {
                capacity *= 2;
                reader.grow(capacity);
                if reader.refill().is_ok() {
                    continue;
                }
                "reading failed".to_owned()
            }
            Err(PcapError::UnexpectedEof) => {
                if reader.data().is_empty() {
                    return Ok(summary);
                }
                "the last block is cut".to_owned()
            }
            Err(PcapError::BufferTooSmall) => {
                format!("a block of more than {BLOCK_BYTES_MAX} bytes")
            }
            Err(PcapError::ReadError) => "reading failed".to_owned(),
            Err(_) => "a damaged block".to_owned(),
        };
        let (at, held) = (reader.consumed(), reader.data().len() as u64);
        drop(reader);
        // To its end: whoever writes into a pipe must not be stopped by our trouble.
        let rest = copy(&mut input, &mut sink()).unwrap_or(0);
        summary.not_read_bytes = held.saturating_add(rest);
        summary.stopped = Some(format!(
            "{problem} at byte {at} (packet {}): the {} bytes from there on were not read",
            summary.packets + 1,
            summary.not_read_bytes
        ));
        return Ok(summary);
    }
}

/// Why the beginning cannot be read.
fn no_capture(error: PcapError<&[u8]>) -> CaptureError {
    match error {
        PcapError::Eof => CaptureError::Empty,
        PcapError::Incomplete(_) | PcapError::UnexpectedEof => CaptureError::Cut,
        PcapError::ReadError => CaptureError::Read(std::io::ErrorKind::Other.into()),
        _ => CaptureError::Format,
    }
}

/// A reader that gives all that was asked for unless the input ends: the parser takes a short
/// first read for a cut file, and pipes give short reads.
struct Full<R>(R);

impl<R: Read> Read for Full<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if filled == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(filled)
    }
}

/// What earlier blocks said about the packets that follow.
#[derive(Default)]
struct Format {
    /// Of a pcap file.
    link: Option<LinkType>,
    nanoseconds: bool,
    pcapng: bool,
    /// Of a pcapng section.
    interfaces: Vec<Interface>,
    /// Losses of the sections before, and of this one by interface (the counters are totals).
    lost_before: u64,
}

#[derive(Clone, Copy)]
struct Interface {
    link: LinkType,
    /// Units of time per second.
    resolution: u64,
    offset_s: i64,
    lost: u64,
}

impl Format {
    /// Whether the next block says that it is shorter than what frames any block. The parser
    /// subtracts the frame without a look at the length of this type (pcap-parser 0.17).
    fn is_too_short(&self, data: &[u8]) -> bool {
        let Some(head) = data.first_chunk::<8>().filter(|_| self.pcapng) else { return false };
        let [t0, t1, t2, t3, l0, l1, l2, l3] = *head;
        let little = (u32::from_le_bytes([t0, t1, t2, t3]), u32::from_le_bytes([l0, l1, l2, l3]));
        let big = (u32::from_be_bytes([t0, t1, t2, t3]), u32::from_be_bytes([l0, l1, l2, l3]));
        [little, big].iter().any(|(kind, len)| *kind == PIB_MAGIC && *len < BLOCK_FRAME_BYTES)
    }

    fn handle(
        &mut self,
        block: &PcapBlockOwned<'_>,
        summary: &mut CaptureSummary,
        each: &mut impl FnMut(&Packet<'_>, Option<&Segment<'_>>),
    ) {
        let (link, bytes, wire_len, time_ns) = match block {
            PcapBlockOwned::LegacyHeader(header) => {
                self.link = Some(LinkType(header.network.0 & 0xffff));
                self.nanoseconds = header.is_nanosecond_precision();
                return;
            }
            PcapBlockOwned::Legacy(packet) => {
                let fraction = u64::from(packet.ts_usec) * if self.nanoseconds { 1 } else { 1000 };
                let time_ns = u64::from(packet.ts_sec) * 1_000_000_000 + fraction;
                let link = self.link.unwrap_or(LinkType::ETHERNET);
                let kept = packet.data.len().min(packet.caplen as usize);
                (link, &packet.data[..kept], packet.origlen, time_ns)
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                let Some(interface) = self.interfaces.get(packet.if_id as usize) else {
                    summary.no_time += 1;
                    return;
                };
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                (interface.link, packet.packet_data(), packet.origlen, interface.time_ns(ticks))
            }
            PcapBlockOwned::NG(Block::SimplePacket(_)) => {
                summary.no_time += 1;
                return;
            }
            PcapBlockOwned::NG(other) => return self.handle_description(other, summary),
        };
        let segment = decode(link, bytes, wire_len, time_ns, summary);
        each(&Packet { link, time_ns, wire_len, bytes }, segment.as_ref());
    }

    fn handle_description(&mut self, block: &Block<'_>, summary: &mut CaptureSummary) {
        match block {
            Block::SectionHeader(_) => {
                self.pcapng = true;
                self.lost_before = summary.lost_by_capture;
                self.interfaces.clear();
            }
            Block::InterfaceDescription(found) if self.interfaces.len() < INTERFACES_MAX => {
                self.interfaces.push(Interface {
                    link: LinkType(found.linktype.0),
                    resolution: found.ts_resolution().unwrap_or(1_000_000).max(1),
                    offset_s: found.if_tsoffset,
                    lost: 0,
                });
            }
            Block::InterfaceStatistics(counts) => {
                let of = |value: Option<Result<u64, _>>| value.and_then(Result::ok).unwrap_or(0);
                let lost = of(counts.isb_ifdrop()).saturating_add(of(counts.isb_osdrop()));
                if let Some(interface) = self.interfaces.get_mut(counts.if_id as usize) {
                    interface.lost = lost;
                }
            }
            _ => {}
        }
        let now: u64 = self.interfaces.iter().map(|one| one.lost).fold(0, u64::saturating_add);
        summary.lost_by_capture = self.lost_before.saturating_add(now);
    }
}

impl Interface {
    /// Since 1970, as near as 64 bits come.
    fn time_ns(&self, ticks: u64) -> u64 {
        let ns = u128::from(ticks) * 1_000_000_000 / u128::from(self.resolution);
        let offset = i128::from(self.offset_s) * 1_000_000_000;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::write::Writer;
    use super::*;

    /// What two sections, one file after the other, say was lost.
    fn lost(counts: [u64; 2]) -> u64 {
        let mut file = Vec::new();
        for lost in counts {
            Writer::new(&mut file, 100).unwrap().finish(0, 0, lost).unwrap();
        }
        read_capture(&file[..], |_| {}).unwrap().lost_by_capture
    }

    #[test]
    fn losses_of_sections_add_up() {
        assert_eq!(lost([3, 4]), 7);
        assert_eq!(lost([u64::MAX, u64::MAX]), u64::MAX);
    }

    #[test]
    fn times_that_do_not_fit_are_the_nearest_that_do() {
        let mut interface =
            Interface { link: LinkType::RAW, resolution: 1_000_000, offset_s: 0, lost: 0 };
        assert_eq!(interface.time_ns(5), 5000);
        interface.offset_s = i64::MIN;
        assert_eq!(interface.time_ns(u64::MAX), 0);
        interface.offset_s = i64::MAX;
        assert_eq!(interface.time_ns(u64::MAX), u64::MAX);
    }
}
