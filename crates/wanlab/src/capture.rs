//! A capture: what was offered to each line, when, and what became of it, as pcapng
//! (draft-ietf-opsawg-pcapng) for Wireshark and tcpdump.
//!
//! Each direction is an interface. Segments of a super-packet are logged one by one; what the
//! line dropped carries the reason as a comment. The time is that of arrival at the queue.
//! Checksums are those that the kernel left to the hardware, so they are incomplete. The Ethernet
//! header is made up, with the line's number in the addresses: libpcap refuses pcapng files with
//! several interfaces of bare IP.
//!
//! The emulator must never wait for a disk: records gather in buffers that a thread of its own
//! writes. Where that falls behind, records are left out and counted, the line is not held up.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::warn;

use crate::link::{Counters, Fate};

/// Captured bytes of each packet unless said otherwise: Ethernet, IPv6 and TCP headers with all
/// options, and some payload.
pub const SNAP_BYTES_DEFAULT: u32 = 144;

/// A buffer goes to the writer when it holds so much, or when the line rests.
const BUFFER_BYTES: usize = 1 << 18;
/// Buffers on their way to the disk: 8 MB.
const BUFFERS_MAX: usize = 32;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;
const ETHERNET_HEADER_LEN: usize = 14;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const OPT_COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const ISB_OSDROP: u16 = 7;
/// Time in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Where packets are logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The file, which is replaced.
    pub path: PathBuf,
    /// Bytes kept of each packet, of which the Ethernet header takes 14.
    pub snap_bytes: u32,
}

/// Takes the records of all lines.
#[derive(Debug)]
pub(crate) struct Recorder {
    snap_bytes: usize,
    /// The lab's clock at zero, as wall-clock time.
    epoch_unix_ns: u64,
    buffer: Vec<u8>,
    /// Records in the buffer.
    records: u64,
    /// Records that did not fit between the emulator and the disk.
    missed: u64,
    to_writer: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
    interfaces: usize,
}

impl Recorder {
    /// Creates the file with one interface per name.
    pub(crate) fn create(config: &CaptureConfig, interfaces: &[String]) -> io::Result<Self> {
        let mut file = File::create(&config.path)?;
        let mut head = Vec::new();
        section_header(&mut head);
        for name in interfaces {
            interface_description(&mut head, name, config.snap_bytes);
        }
        file.write_all(&head)?;
        let (to_writer, buffers) = sync_channel::<Vec<u8>>(BUFFERS_MAX);
        let path = config.path.clone();
        let writer = thread::Builder::new().name("wanlab-pcapng".into()).spawn(move || {
            for buffer in buffers {
                if let Err(error) = file.write_all(&buffer) {
                    warn!(%error, path = %path.display(), "the capture ends here");
                    return;
                }
            }
        })?;
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            snap_bytes: config.snap_bytes as usize,
            epoch_unix_ns: since_1970.as_nanos() as u64,
            buffer: Vec::new(),
            records: 0,
            missed: 0,
            to_writer: Some(to_writer),
            writer: Some(writer),
            interfaces: interfaces.len(),
        })
    }

    /// One segment offered to the line `interface`.
    pub(crate) fn record(&mut self, interface: usize, now_ns: u64, ip: &[u8], fate: Fate) {
        let comment = match fate {
            Fate::Delivered { marked, .. } | Fate::Waits { marked, .. } => {
                marked.then_some("marked: congestion experienced")
            }
            Fate::DroppedPolice => Some("dropped: policer"),
            Fate::DroppedQueue => Some("dropped: queue full"),
            Fate::DroppedEcn => Some("dropped: above ECN threshold, cannot be marked"),
            Fate::DroppedLoss => Some("dropped: random loss"),
            Fate::DroppedBurst => Some("dropped: burst loss"),
        };
        let at_ns = self.epoch_unix_ns + now_ns;
        let kept = self.snap_bytes.saturating_sub(ETHERNET_HEADER_LEN).min(ip.len());
        block(&mut self.buffer, ENHANCED_PACKET, |body| {
            for number in [
                interface as u32,
                (at_ns >> 32) as u32,
                at_ns as u32,
                (ETHERNET_HEADER_LEN + kept) as u32,
                (ETHERNET_HEADER_LEN + ip.len()) as u32,
            ] {
                body.extend(number.to_ne_bytes());
            }
            let [high, low] = (interface as u16).to_be_bytes();
            for end in [1, 0] {
                // Locally administered.
                body.extend([2, 0, 0, high, low, end]);
            }
            let v6 = ip.first().is_some_and(|first| first >> 4 == 6);
            body.extend(if v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 });
            body.extend_from_slice(&ip[..kept]);
            pad(body);
            if let Some(comment) = comment {
                option(body, OPT_COMMENT, comment.as_bytes());
                option(body, 0, &[]);
            }
        });
        self.records += 1;
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    /// Hands over what there is.
    pub(crate) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let next = Vec::with_capacity(BUFFER_BYTES + BUFFER_BYTES / 8);
        let full = std::mem::replace(&mut self.buffer, next);
        let taken = self.to_writer.as_ref().is_some_and(|to| to.try_send(full).is_ok());
        if !taken {
            self.missed += self.records;
        }
        self.records = 0;
    }

    /// Ends the file with what each line counted, and waits for the disk.
    pub(crate) fn finish(&mut self, now_ns: u64, counters: &[&Counters]) {
        self.flush();
        let at_ns = self.epoch_unix_ns + now_ns;
        let mut tail = Vec::new();
        for (interface, counters) in counters.iter().enumerate().take(self.interfaces) {
            let dropped = counters.dropped();
            block(&mut tail, INTERFACE_STATISTICS, |body| {
                for number in [interface as u32, (at_ns >> 32) as u32, at_ns as u32] {
                    body.extend(number.to_ne_bytes());
                }
                option(body, ISB_IFRECV, &(counters.segments + dropped).to_ne_bytes());
                option(body, ISB_IFDROP, &dropped.to_ne_bytes());
                // One writer for all: what it missed is not known per line.
                option(body, ISB_OSDROP, &self.missed.to_ne_bytes());
                option(body, 0, &[]);
            });
        }
        if let Some(to_writer) = self.to_writer.take() {
            // An error says that the writer has ended, and why is logged.
            let _ended = to_writer.send(tail);
        }
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            warn!("the capture's thread has panicked");
        }
        if self.missed > 0 {
            warn!(records = self.missed, "the capture could not keep up");
        }
    }
}

fn section_header(out: &mut Vec<u8>) {
    block(out, SECTION_HEADER, |body| {
        body.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        body.extend(1_u16.to_ne_bytes());
        body.extend(0_u16.to_ne_bytes());
        // The length of the section is not known.
        body.extend(u64::MAX.to_ne_bytes());
    });
}

fn interface_description(out: &mut Vec<u8>, name: &str, snap_bytes: u32) {
    block(out, INTERFACE_DESCRIPTION, |body| {
        body.extend(LINKTYPE_ETHERNET.to_ne_bytes());
        body.extend(0_u16.to_ne_bytes());
        body.extend(snap_bytes.to_ne_bytes());
        option(body, IF_NAME, name.as_bytes());
        option(body, IF_TSRESOL, &[NANOSECONDS]);
        option(body, 0, &[]);
    });
}

/// Type, length, body, length.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 4]);
    body(out);
    let length = (out.len() - start + 4) as u32;
    out[start + 4..start + 8].copy_from_slice(&length.to_ne_bytes());
    out.extend(length.to_ne_bytes());
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_ne_bytes());
    out.extend((value.len() as u16).to_ne_bytes());
    out.extend_from_slice(value);
    pad(out);
}

/// To a multiple of four; all blocks start at one.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let number = |bytes: &[u8]| u32::from_ne_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let length = number(&bytes[4..]) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(number(&bytes[length - 4..]) as usize, length);
            blocks.push((number(bytes), bytes[8..length - 4].to_vec()));
            bytes = &bytes[length..];
        }
        blocks
    }

    #[test]
    fn each_segment_is_a_block_with_its_fate() {
        let folder = tempfile::tempdir().unwrap();
        let config = CaptureConfig { path: folder.path().join("log"), snap_bytes: 20 };
        let names = ["a to b".to_owned(), "b to a".to_owned()];
        let mut recorder = Recorder::create(&config, &names).unwrap();
        let carried = Fate::Delivered { at_ns: 5, departs_ns: 4, marked: false };
        recorder.record(0, 1000, &[0x45; 5], carried);
        recorder.record(1, 2000, &[0x60; 1500], Fate::DroppedQueue);
        recorder.record(1, 3000, &[0x60; 7], Fate::DroppedBurst);
        let counters = Counters { segments: 1, ..Counters::default() };
        recorder.finish(9000, &[&counters; 2]);
        let blocks = blocks(&std::fs::read(&config.path).unwrap());
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, 1, 1, 6, 6, 6, 5, 5]);
        assert!(blocks[2].1.windows(6).any(|part| part == b"b to a"));
        let number = |block: usize, at: usize| {
            u32::from_ne_bytes(blocks[block].1[at..at + 4].try_into().unwrap())
        };
        assert_eq!((number(3, 0), number(3, 12), number(3, 16)), (0, 19, 19));
        assert_eq!(blocks[3].1.len(), 20 + 20);
        assert_eq!((number(4, 0), number(4, 12), number(4, 16)), (1, 20, 1514));
        assert_eq!(blocks[4].1[20 + 12..20 + 16], [0x86, 0xdd, 0x60, 0x60]);
        let has = |block: usize, text: &[u8]| {
            blocks[block].1.windows(text.len()).any(|part| part == text)
        };
        assert!(has(4, b"dropped: queue full") && has(5, b"dropped: burst loss"));
        let (first, second) = (number(3, 8), number(4, 8));
        assert_eq!(second.wrapping_sub(first), 1000);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_an_error_at_once() {
        let path = PathBuf::from("/no/such/folder/log.pcapng");
        assert!(Recorder::create(&CaptureConfig { path, snap_bytes: 64 }, &[]).is_err());
    }
}
