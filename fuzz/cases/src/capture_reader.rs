//! The readers of pcap and pcapng on files that are built from the input, so that lengths lead the
//! fuzzer past the headers: true ones, and lies where the input asks for them.
//!
//! Three things hold for every file: it does not matter in which pieces it is read; what is cut off
//! behind a place takes nothing from what stands before it; and a cut or a lie in a file is said.

use std::io::Read;
use std::net::SocketAddr;

use tcpmon::capture::{CaptureError, CaptureSummary, TcpOptions, read_capture};

use crate::reader::Reader;

/// Ethernet, raw IP in its many numbers, loopback, cooked, and one that nobody knows.
const LINKS: [u32; 10] = [1, 101, 0, 108, 113, 276, 228, 229, 12, 9999];
/// A frame that is stretched is so long: longer than what a reader holds at first.
const STRETCHED_BYTES: usize = 300_000;

/// A file and whether, and where, it may be cut without anybody noticing.
struct File {
    bytes: Vec<u8>,
    /// Behind the headers and behind each block; empty where a length in the file lies.
    boundaries: Vec<usize>,
    packets: u64,
}

/// A pcap file in either byte order and either resolution.
pub fn pcap(data: &[u8]) {
    let mut input = Reader(data);
    let (flags, link) = (input.u8(), input.u8());
    let big = flags & 1 != 0;
    let put = |out: &mut Vec<u8>, word: u32| out.extend(ordered(word, big));
    let mut file = File { bytes: Vec::new(), boundaries: Vec::new(), packets: 0 };
    let magic = if flags & 2 != 0 { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    put(&mut file.bytes, magic);
    let version: [u16; 2] = [2, 4];
    for half in version {
        file.bytes.extend(if big { half.to_be_bytes() } else { half.to_le_bytes() });
    }
    let link = LINKS[usize::from(link) % LINKS.len()];
    for word in [0, 0, 262_144, link] {
        put(&mut file.bytes, word);
    }
    file.boundaries.push(file.bytes.len());
    let (mut honest, mut stretched) = (true, false);
    while !input.is_empty() {
        let kind = input.u8();
        let frame = frame(&mut input, kind, link, &mut stretched);
        let len = frame.len() as u32;
        let caplen = if kind & 3 == 3 { word(&mut input) } else { len };
        let origlen = if kind & 0x20 != 0 { word(&mut input) } else { len };
        honest &= caplen == len;
        for word in [word(&mut input), u32::from(input.u16()), caplen, origlen] {
            put(&mut file.bytes, word);
        }
        file.bytes.extend(frame);
        file.boundaries.push(file.bytes.len());
        file.packets += 1;
    }
    if !honest {
        file.boundaries.clear();
    }
    check(&file, flags >> 2);
}

/// A pcapng file: sections in either byte order, interfaces, packets of both kinds, statistics,
/// options, and blocks that nobody knows.
pub fn pcapng(data: &[u8]) {
    let mut input = Reader(data);
    let flags = input.u8();
    let mut made = Blocks {
        big: flags & 1 != 0,
        links: vec![LINKS[usize::from(flags >> 1 & 7)]],
        file: File { bytes: Vec::new(), boundaries: Vec::new(), packets: 0 },
        honest: true,
        stretched: false,
    };
    section(&mut made.file.bytes, made.big);
    // Without a block behind it a section is as good as nothing: that cut is no boundary.
    interface(&mut made.file.bytes, made.big, made.links[0], &[]);
    made.file.boundaries.push(made.file.bytes.len());
    while !input.is_empty() {
        let kind = input.u8();
        if let Some((block_type, body)) = made.block(kind, &mut input) {
            made.framed(kind, &mut input, block_type, body);
        }
        made.file.boundaries.push(made.file.bytes.len());
    }
    if !made.honest {
        made.file.boundaries.clear();
    }
    check(&made.file, flags >> 4);
}

/// A pcapng file in the making.
struct Blocks {
    file: File,
    /// Of the section.
    big: bool,
    links: Vec<u32>,
    honest: bool,
    stretched: bool,
}

impl Blocks {
    /// Type and body of the next block; `None` for one that is already in the file.
    fn block(&mut self, kind: u8, input: &mut Reader<'_>) -> Option<(u32, Vec<u8>)> {
        let big = self.big;
        let mut body = Vec::new();
        let block_type = match kind >> 5 {
            0 | 1 => {
                self.packet(kind, input, &mut body);
                6
            }
            2 => {
                let len = usize::from(input.u8());
                body.extend(ordered(len as u32, big));
                body.extend(input.filled(len));
                self.honest = false; // Its length depends on the interface's snap length.
                3
            }
            3 => {
                let link = LINKS[usize::from(input.u8()) % LINKS.len()];
                let options = options(input, big, &mut self.honest);
                interface(&mut self.file.bytes, big, link, &options);
                self.links.push(link);
                return None;
            }
            4 => {
                for word in [u32::from(input.u8()), 0, word(input)] {
                    body.extend(ordered(word, big));
                }
                body.extend(options(input, big, &mut self.honest));
                5
            }
            5 => {
                self.big = kind & 1 != 0;
                section(&mut self.file.bytes, self.big);
                self.links.clear();
                return None;
            }
            _ => {
                self.honest = false;
                let len = usize::from(input.u8());
                body.extend(input.take(len));
                [4, 10, 0x0bad, word(input)][usize::from(kind & 3)]
            }
        };
        Some((block_type, body))
    }

    /// The body of an Enhanced Packet Block, of an interface that may not exist.
    fn packet(&mut self, kind: u8, input: &mut Reader<'_>, body: &mut Vec<u8>) {
        let number = usize::from(input.u8()) % (self.links.len() + 1);
        let link = self.links.get(number).copied().unwrap_or(1);
        let (high, low) = (u32::from(input.u16()), word(input));
        let frame = frame(input, kind, link, &mut self.stretched);
        let len = frame.len() as u32;
        let caplen = if kind & 3 == 3 { word(input) } else { len };
        self.honest &= caplen == len;
        for word in [number as u32, high, low, caplen, len] {
            body.extend(ordered(word, self.big));
        }
        body.extend(frame);
        self.file.packets += u64::from(number < self.links.len());
    }

    /// A body with its type and lengths, of which the first may lie.
    fn framed(&mut self, kind: u8, input: &mut Reader<'_>, block_type: u32, mut body: Vec<u8>) {
        body.resize(body.len().next_multiple_of(4), 0);
        let total = body.len() as u32 + 12;
        let lie = kind & 0x1c == 0x1c;
        self.honest &= !lie;
        let front = if lie { word(input) } else { total };
        for word in [block_type, front] {
            self.file.bytes.extend(ordered(word, self.big));
        }
        self.file.bytes.extend(body);
        self.file.bytes.extend(ordered(total, self.big));
    }
}

fn ordered(word: u32, big: bool) -> [u8; 4] {
    if big { word.to_be_bytes() } else { word.to_le_bytes() }
}

fn word(input: &mut Reader<'_>) -> u32 {
    u32::from_be_bytes(input.array())
}

/// Section Header Block of unknown length.
fn section(out: &mut Vec<u8>, big: bool) {
    for word in [0x0a0d_0d0a, 28, 0x1a2b_3c4d] {
        out.extend(ordered(word, big));
    }
    let version: [u16; 2] = [1, 0];
    for half in version {
        out.extend(if big { half.to_be_bytes() } else { half.to_le_bytes() });
    }
    for word in [u32::MAX, u32::MAX, 28] {
        out.extend(ordered(word, big));
    }
}

/// Interface Description Block.
fn interface(out: &mut Vec<u8>, big: bool, link: u32, options: &[u8]) {
    let total = 20 + options.len() as u32;
    for word in [1, total] {
        out.extend(ordered(word, big));
    }
    let halves = [link as u16, 0];
    for half in halves {
        out.extend(if big { half.to_be_bytes() } else { half.to_le_bytes() });
    }
    out.extend(ordered(0, big));
    out.extend(options);
    out.extend(ordered(total, big));
}

/// Options of a block: of true length, or bytes as they come.
fn options(input: &mut Reader<'_>, big: bool, honest: &mut bool) -> Vec<u8> {
    let half = |half: u16| if big { half.to_be_bytes() } else { half.to_le_bytes() };
    let mut out = Vec::new();
    match input.u8() {
        0 => {}
        // The resolution of times, their offset, and counts of packets lost.
        kind @ 1..=200 => {
            for (code, len) in [(9, 1), (14, 8), (5, 8), (7, 8)].iter().take(usize::from(kind % 5))
            {
                out.extend(half(*code));
                out.extend(half(*len));
                out.extend(input.filled(usize::from(*len)));
                out.resize(out.len().next_multiple_of(4), 0);
            }
            out.extend([0; 4]);
        }
        _ => {
            *honest = false;
            let len = usize::from(input.u8());
            out.extend(input.take(len));
            out.resize(out.len().next_multiple_of(4), 0);
        }
    }
    out
}

/// Link layer, IP and TCP around bytes of the input, or these bytes alone.
fn frame(input: &mut Reader<'_>, kind: u8, link: u32, stretched: &mut bool) -> Vec<u8> {
    let len = usize::from(input.u8()) << (kind >> 3 & 1);
    let payload = input.take(len);
    let mut packet = match kind >> 3 & 3 {
        0 => return payload.to_vec(),
        1 => ip4(&tcp(input, payload)),
        2 => ip6(&tcp(input, payload)),
        _ => ip4(payload),
    };
    if kind & 4 != 0 && !std::mem::replace(stretched, true) {
        packet.resize(STRETCHED_BYTES, 0);
    }
    let six = packet.first().is_some_and(|first| first >> 4 == 6);
    let ether_type: [u8; 2] = if six { [0x86, 0xdd] } else { [8, 0] };
    let head: Vec<u8> = match link {
        1 => [&[2; 12][..], &ether_type].concat(),
        0 => vec![if six { 10 } else { 2 }, 0, 0, 0],
        108 => vec![0, 0, 0, if six { 10 } else { 2 }],
        113 => [&[0; 14][..], &ether_type].concat(),
        276 => [&ether_type[..], &[0; 18]].concat(),
        _ => Vec::new(),
    };
    [head, packet].concat()
}

/// A TCP header with options of the input.
fn tcp(input: &mut Reader<'_>, payload: &[u8]) -> Vec<u8> {
    let (ports, flags, words) = (input.u8(), input.u8(), usize::from(input.u8() % 12));
    let [src, dst] = if ports & 1 == 0 { [40_000_u16, 3260] } else { [3260, 40_000] };
    let mut out = Vec::new();
    out.extend(src.to_be_bytes());
    out.extend(dst.to_be_bytes());
    out.extend(input.array::<8>());
    out.extend([(5 + words as u8) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend(input.filled(words * 4));
    out.extend(payload);
    out
}

fn ip4(payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut out = vec![0x45, 0];
    out.extend(len.to_be_bytes());
    out.extend([0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    out.extend(payload);
    out
}

fn ip6(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x60, 0, 0, 0];
    out.extend((payload.len() as u16).to_be_bytes());
    out.extend([6, 64]);
    out.extend([[1; 16], [2; 16]].concat());
    out.extend(payload);
    out
}

/// What of a segment must be the same however it was read.
#[derive(Debug, PartialEq)]
struct Seen {
    time_ns: u64,
    ends: [SocketAddr; 2],
    numbers: (u32, Option<u32>, u16, u32),
    flags: [bool; 3],
    options: TcpOptions,
    payload: Vec<u8>,
}

type Outcome = (Vec<Seen>, Result<CaptureSummary, CaptureError>);

fn read(input: impl Read + Send) -> Outcome {
    let mut seen = Vec::new();
    let summary = read_capture(input, |one| {
        assert!(one.payload.len() as u64 <= u64::from(one.payload_len));
        seen.push(Seen {
            time_ns: one.time_ns,
            ends: [one.src, one.dst],
            numbers: (one.seq, one.ack, one.window, one.payload_len),
            flags: [one.syn, one.fin, one.rst],
            options: one.options,
            payload: one.payload.to_vec(),
        });
    });
    (seen, summary)
}

fn check(file: &File, choice: u8) {
    let (seen, summary) = read(&file.bytes[..]);
    if let Ok(summary) = &summary {
        let known = summary.segments
            + summary.not_tcp
            + summary.fragments
            + summary.cut_headers
            + summary.unknown_link;
        assert_eq!(known, summary.packets);
        assert_eq!(summary.segments, seen.len() as u64);
    }
    let trickled = read(Trickle { rest: &file.bytes, step: 1 + usize::from(choice) * 5 });
    assert_eq!(seen, trickled.0);
    assert_eq!(summary.is_ok(), trickled.1.is_ok());
    if let (Ok(one), Ok(other)) = (&summary, &trickled.1) {
        assert_eq!(one, other);
    }
    // Half of the file, and one byte less than all of it.
    let half = file.bytes.len() / 2;
    for at in [half, file.bytes.len() - 1] {
        let (less, cut) = read(&file.bytes[..at]);
        assert!(less.len() <= seen.len() && less[..] == seen[..less.len()], "cut at {at}");
        let said = match &cut {
            Err(_) => true,
            Ok(summary) => {
                assert_eq!(summary.stopped.is_some(), summary.not_read_bytes > 0);
                summary.stopped.is_some()
            }
        };
        let must_say = file.boundaries.first().is_some_and(|&first| at > first)
            && !file.boundaries.contains(&at);
        assert!(said || !must_say, "a cut at {at} is not said: {:?}", file.boundaries);
    }
    if !file.boundaries.is_empty() {
        match summary {
            Ok(summary) => {
                assert_eq!(summary.stopped, None, "{:?}", file.boundaries);
                assert_eq!(summary.packets, file.packets);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gives little at a time, as a pipe may.
struct Trickle<'a> {
    rest: &'a [u8],
    step: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.step.min(self.rest.len()).min(buffer.len());
        let (given, rest) = self.rest.split_at(len);
        buffer[..len].copy_from_slice(given);
        self.rest = rest;
        Ok(len)
    }
}
