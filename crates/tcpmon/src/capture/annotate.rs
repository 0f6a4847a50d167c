//! A capture once more, as pcapng whose packets have comments (draft-ietf-opsawg-pcapng §3.5,
//! `opt_comment`), which Wireshark shows and `tshark -e frame.comment` prints. Packets are as they
//! were: their link type, time and bytes.

use std::io::{self, Write};

use super::write::{block, interface, option, packet, section};
use super::{LinkType, Packet};

const OPT_COMMENT: u16 = 1;
/// A comment that is longer is cut: an option's length has 16 bits, and people read it.
const COMMENT_BYTES_MAX: usize = 4096;

/// Writes packets with comments.
#[derive(Debug)]
pub struct Annotated<W> {
    to: W,
    /// Link types by the number of their interface.
    links: Vec<LinkType>,
}

impl<W: Write> Annotated<W> {
    /// Writes the head of the file.
    ///
    /// # Errors
    /// Those of `to`, here and below.
    pub fn new(mut to: W) -> io::Result<Self> {
        section(&mut to)?;
        Ok(Self { to, links: Vec::new() })
    }

    /// A packet, and what is to be said of it.
    pub fn packet(&mut self, one: &Packet<'_>, comments: &[String]) -> io::Result<()> {
        let known = self.links.iter().position(|link| *link == one.link);
        let number = match known {
            Some(number) => number,
            None => {
                interface(&mut self.to, one.link, 0)?;
                self.links.push(one.link);
                self.links.len() - 1
            }
        };
        let mut body = packet(number as u32, one.time_ns, one.wire_len, one.bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        for comment in comments {
            option(&mut body, OPT_COMMENT, cut(comment).as_bytes());
        }
        if !comments.is_empty() {
            option(&mut body, 0, &[]);
        }
        block(&mut self.to, 6, &body)
    }

    /// The end.
    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn cut(comment: &str) -> &str {
    let mut end = comment.len().min(COMMENT_BYTES_MAX);
    while !comment.is_char_boundary(end) {
        end -= 1;
    }
    &comment[..end]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::{read_capture, read_packets};
    use super::*;

    #[test]
    fn packets_are_what_they_were_and_comments_are_options() {
        let mut file = Vec::new();
        let mut writer = Annotated::new(&mut file).unwrap();
        let bytes = [0x45, 0, 1, 2, 3];
        let raw = Packet {
            link: LinkType::RAW,
            time_ns: 1_700_000_000_123_456_789,
            wire_len: 1500,
            bytes: &bytes,
        };
        let ethernet = Packet { link: LinkType::ETHERNET, bytes: &bytes[..4], ..raw };
        let long = "ä".repeat(5000);
        writer.packet(&raw, &["one".into(), "two".into()]).unwrap();
        writer.packet(&ethernet, &[]).unwrap();
        writer.packet(&raw, &[long]).unwrap();
        writer.finish().unwrap();
        let mut seen = Vec::new();
        let summary = read_packets(&file[..], |one, _| {
            seen.push((one.link, one.time_ns, one.wire_len, one.bytes.to_vec()));
        });
        assert_eq!(summary.unwrap().stopped, None);
        let of = |one: &Packet<'_>| (one.link, one.time_ns, one.wire_len, one.bytes.to_vec());
        assert_eq!(seen, [of(&raw), of(&ethernet), of(&raw)]);
        for text in ["\x01\0\x03\0one\0", "\x01\0\x03\0two\0"] {
            assert!(file.windows(text.len()).any(|window| window == text.as_bytes()), "{text:?}");
        }
        assert!(file.len() < 4096 + 512 && read_capture(&file[..], |_| {}).is_ok());
    }
}
