//! Events in a recording: pcapng packets of an interface of their own, with a link type for private
//! use, so that other programs pass over them and the packets' time axis is theirs too.

use std::collections::HashSet;
use std::io::Read;

use pcap_parser::pcapng::Block;
use pcap_parser::{PcapBlockOwned, PcapError, create_reader};

use super::Event;
use crate::capture::{CaptureError, LinkType};

/// The interface's name (`if_name`), by which events are told from others' private packets.
pub const EVENTS_INTERFACE: &str = "enkaku-events";
/// LINKTYPE_USER0, for private use.
pub const LINKTYPE_EVENTS: LinkType = LinkType(147);
/// Bytes of the file held at once: more than the longest block of a recording, a packet of 64 KiB.
const BUFFER_BYTES: usize = 1 << 20;

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
    let mut interfaces = Interfaces::default();
    loop {
        match reader.next() {
            Ok((length, block)) => {
                if let Some(event) = recorded.take(&block, &mut interfaces) {
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

/// Which interfaces of a section have events.
#[derive(Default)]
struct Interfaces {
    described: u32,
    with_events: HashSet<u32>,
}

impl Recorded {
    /// The event of a block, if there is one.
    fn take(&mut self, block: &PcapBlockOwned<'_>, interfaces: &mut Interfaces) -> Option<Event> {
        let PcapBlockOwned::NG(block) = block else { return None };
        match block {
            Block::SectionHeader(_) => *interfaces = Interfaces::default(),
            Block::InterfaceDescription(found) => {
                let ours = found.linktype.0 == LINKTYPE_EVENTS.0
                    && found.if_name().is_some_and(|name| {
                        name.is_ok_and(|name| name.trim_end_matches('\0') == EVENTS_INTERFACE)
                    });
                if ours {
                    interfaces.with_events.insert(interfaces.described);
                    self.recorded = true;
                }
                interfaces.described = interfaces.described.saturating_add(1);
            }
            Block::EnhancedPacket(packet) if interfaces.with_events.contains(&packet.if_id) => {
                let bytes = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
                let mut event = Event::decode(bytes)?;
                // Events are written in nanoseconds.
                event.at_ns = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                self.lost = self.lost.max(event.lost);
                self.events += 1;
                return Some(event);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::tests::raw;
    use super::*;
    use crate::capture::{Writer, read_capture};

    fn recording(kinds: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut writer = Writer::new(&mut file, 65_600).unwrap();
        let events = writer.interface(LINKTYPE_EVENTS, EVENTS_INTERFACE).unwrap();
        writer.packet(1_000, 40, &[0x45, 0, 0, 40]).unwrap();
        for (at, kind) in (0..).zip(kinds) {
            let bytes = raw(*kind, libc::AF_INET);
            writer.packet_on(events, (7 << 32) + at, bytes.len() as u32, &bytes).unwrap();
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
    fn events_are_no_packets_of_an_unknown_link() {
        let file = recording(&[1, 2]);
        let summary = read_capture(file.as_slice(), |_| {}).unwrap();
        assert_eq!((summary.unknown_link, summary.packets), (0, 1));
    }

    #[test]
    fn other_files_have_none_and_damage_ends_the_reading() {
        let file = recording(&[1, 2]);
        let cut = &file[..file.len() - 150];
        assert_eq!(read_events(cut, |_| {}).unwrap().events, 1);
        assert!(read_events(&b"no capture at all, whatever it is"[..], |_| {}).is_err());
        assert!(read_events(&[][..], |_| {}).is_err());
        let mut plain = Vec::new();
        Writer::new(&mut plain, 65_600).unwrap().finish(0, 0, 0).unwrap();
        assert_eq!(read_events(plain.as_slice(), |_| {}).unwrap(), Recorded::default());
    }
}
