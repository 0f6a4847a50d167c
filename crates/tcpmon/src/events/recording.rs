//! Events in a recording: pcapng blocks of a type for local use, so that other programs pass over
//! them, with times on the packets' clock.

use std::io::{self, Read, Write};

use pcap_parser::pcapng::Block;
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};

use super::Event;
use crate::capture::{CaptureError, Writer};

/// Type of the blocks ("EK", and the bit that means local use).
const BLOCK_TYPE: u32 = 0x8000_454b;
/// What a block begins with: others may use the same type.
const MAGIC: &[u8; 8] = b"enkakuEV";
/// Bytes of the file held at once: more than the longest block of a recording, a packet of 64 KiB.
const BUFFER_BYTES: usize = 1 << 20;

/// Says that events are recorded from here on, though none may happen.
///
/// # Errors
/// Those of the writer, here and below.
pub fn write_begin<W: Write>(to: &mut Writer<W>) -> io::Result<()> {
    to.local_block(BLOCK_TYPE, MAGIC)
}

/// An event as the kernel gave it, at a time in nanoseconds since 1970. Returns the bytes it takes.
pub fn write_event<W: Write>(to: &mut Writer<W>, at_ns: u64, event: &[u8]) -> io::Result<u64> {
    let body = [MAGIC, at_ns.to_le_bytes().as_slice(), event].concat();
    to.local_block(BLOCK_TYPE, &body)?;
    Ok(body.len() as u64 + 12)
}

/// What a file says of events besides the events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Whether events were recorded at all: none may have happened.
    pub recorded: bool,
    /// Events in the file.
    pub events: u64,
    /// Events that nobody fetched from the kernel in time.
    pub lost: u32,
}

/// Hands every event of a file to `each`, in the order of the file; [`Event::at_ns`] is nanoseconds
/// since 1970, as the packets'. Damage ends the reading; reading the packets says where it is.
///
/// # Errors
/// [`CaptureError`] if the beginning is no capture.
pub fn read_events(
    input: impl Read + Send,
    mut each: impl FnMut(Event),
) -> Result<Recorded, CaptureError> {
    let mut reader = create_reader(BUFFER_BYTES, input).map_err(|error| match error {
        PcapError::Eof => CaptureError::Empty,
        PcapError::Incomplete(_) | PcapError::UnexpectedEof => CaptureError::Cut,
        PcapError::ReadError => CaptureError::Read(std::io::ErrorKind::Other.into()),
        _ => CaptureError::Format,
    })?;
    let mut recorded = Recorded::default();
    loop {
        match reader.next() {
            Ok((length, block)) => {
                if let Some(event) = recorded.take(&block) {
                    each(event);
                }
                drop(block);
                if length == 0 {
                    return Ok(recorded);
                }
                reader.consume(length);
            }
            Err(PcapError::Incomplete(_)) => {
                let before = reader.data().len();
                if reader.refill().is_err() || reader.data().len() == before {
                    return Ok(recorded);
                }
            }
            Err(_) => return Ok(recorded),
        }
    }
}

impl Recorded {
    /// The event of a block, if there is one.
    fn take(&mut self, block: &PcapBlockOwned<'_>) -> Option<Event> {
        let PcapBlockOwned::NG(Block::Unknown(block)) = block else { return None };
        let body = block.data.strip_prefix(MAGIC).filter(|_| block.block_type == BLOCK_TYPE)?;
        self.recorded = true;
        let (at_ns, event) = body.split_first_chunk()?;
        let event = Event { at_ns: u64::from_le_bytes(*at_ns), ..Event::decode(event)? };
        self.lost = self.lost.max(event.lost);
        self.events += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::tests::raw;
    use super::*;
    use crate::capture::read_capture;

    fn recording(kinds: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 65_600).unwrap();
        write_begin(&mut writer).unwrap();
        writer.packet(1_000, 40, &[0x45, 0, 0, 40]).unwrap();
        for (at, kind) in (0..).zip(kinds) {
            let bytes = write_event(&mut writer, (7 << 32) + at, &raw(*kind, libc::AF_INET));
            assert_eq!(bytes.unwrap(), 140);
        }
        writer.finish(2_000, 1, 0).unwrap();
        file
    }

    #[test]
    fn events_come_back_with_the_time_of_the_packets() {
        let file = recording(&[1, 2, 99, 6]);
        let mut events = Vec::new();
        let recorded = read_events(file.as_slice(), |event| {
            events.push((event.event.as_str(), event.at_ns - (7 << 32)));
        });
        // Kinds of a later version are passed over.
        assert_eq!(events, [("probe", 0), ("retransmit", 1), ("send_wait", 3)]);
        assert_eq!(recorded.unwrap(), Recorded { recorded: true, events: 3, lost: 60 });
        let empty = recording(&[]);
        let none = read_events(empty.as_slice(), |_| {}).unwrap();
        assert_eq!(none, Recorded { recorded: true, events: 0, lost: 0 });
    }

    #[test]
    fn events_are_no_packets() {
        let file = recording(&[1, 2]);
        let summary = read_capture(file.as_slice(), |_| {}).unwrap();
        assert_eq!((summary.unknown_link, summary.packets), (0, 1));
    }

    #[test]
    fn other_files_have_none_and_damage_ends_the_reading() {
        let file = recording(&[1, 2]);
        let cut = &file[..file.len() - 100];
        assert_eq!(read_events(cut, |_| {}).unwrap().events, 1);
        assert!(read_events(&b"no capture at all, whatever it is"[..], |_| {}).is_err());
        assert!(read_events(&[][..], |_| {}).is_err());
        let mut plain = Vec::new();
        Writer::new(&mut plain, 65_600).unwrap().finish(0, 0, 0).unwrap();
        assert_eq!(read_events(plain.as_slice(), |_| {}).unwrap(), Recorded::default());
    }
}
