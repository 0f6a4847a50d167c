//! What stands between a server and ldap3, which takes messages of any length and depth, and ends
//! with a panic at one that is not as it should be, or that answers another kind of request: no
//! such message passes (RFC 4511 §4.1, §5.1).

use std::collections::HashMap;

/// Bytes of a message, which is an entry at most: all of a video, with its picture.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a message that is left out; a longer one ends the connection.
const LEFT_OUT_BYTES_MAX: usize = 64 << 20;
/// Bytes between two results: a page of entries.
pub(super) const PAGE_BYTES_MAX: usize = 64 << 20;

const INTEGER: u8 = 0x02;
const BOOLEAN: u8 = 0x01;
const OCTETS: u8 = 0x04;
const ENUMERATED: u8 = 0x0a;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const CONTROLS: u8 = 0xa0;
const REFERRAL: u8 = 0xa3;
/// Optional parts of a bind response and of an extended response (RFC 4511 §4.2.2, §4.12), told
/// apart by their tags.
const CREDENTIALS: u8 = 0x87;
const RESPONSE_NAME: u8 = 0x8a;
const RESPONSE_VALUE: u8 = 0x8b;
/// What a search is answered with: entries, and its result.
const ENTRY: u8 = 0x64;
const SEARCHED: u8 = 0x65;

/// A message as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An entry that was searched for.
    Entry {
        /// Number of the request.
        id: u32,
    },
    /// The result of an operation.
    Result {
        /// Number of the request; 0 is nobody's: the server says goodbye.
        id: u32,
        /// Which operation, by the tag of the result.
        kind: u8,
        /// 0 is success.
        code: u8,
        /// The server's own words.
        text: &'a str,
    },
    /// What nobody waits for: somebody else's address, a message between.
    Other,
}

/// Why something does not pass.
pub type Wrong = &'static str;

/// How long the message is that begins here: not known yet, or this many bytes.
///
/// # Errors
/// It is none, or longer than anything.
pub fn length(bytes: &[u8]) -> Result<Option<usize>, Wrong> {
    match bytes.first() {
        None => return Ok(None),
        Some(&SEQUENCE) => {}
        Some(_) => return Err("what it says is no LDAP"),
    }
    match header(bytes)? {
        Some((head, content)) if head + content > LEFT_OUT_BYTES_MAX => {
            Err("a message that is longer than any")
        }
        known => Ok(known.map(|(head, content)| head + content)),
    }
}

/// Bytes of tag and length, and those that they tell of.
fn header(bytes: &[u8]) -> Result<Option<(usize, usize)>, Wrong> {
    let Some(&first) = bytes.get(1) else { return Ok(None) };
    if first < 0x80 {
        return Ok(Some((2, first.into())));
    }
    let count = usize::from(first & 0x7f);
    if !(1..=4).contains(&count) {
        return Err("a length that is none");
    }
    let Some(digits) = bytes.get(2..2 + count) else { return Ok(None) };
    let content = digits.iter().fold(0, |number, digit| (number << 8) | usize::from(*digit));
    Ok(Some((2 + count, content)))
}

/// What is in a message, if all of it is as it should be.
///
/// # Errors
/// What is not.
pub fn check(message: &[u8]) -> Result<Message<'_>, Wrong> {
    let (id, mut parts) = opened(message)?;
    let (tag, content) = parts.any()?;
    if !parts.0.is_empty() {
        controls(Reader(parts.next(CONTROLS)?))?;
        parts.end()?;
    }
    match tag {
        ENTRY => entry(Reader(content), id),
        0x61 | SEARCHED | 0x67 | 0x69 | 0x6b | 0x6d | 0x6f | 0x78 => {
            result(Reader(content), id, tag)
        }
        0x73 | 0x79 => Ok(Message::Other),
        _ => Err("an answer that is none"),
    }
}

/// The number of a message, and what follows it.
fn opened(message: &[u8]) -> Result<(u32, Reader<'_>), Wrong> {
    let mut outside = Reader(message);
    let mut parts = Reader(outside.next(SEQUENCE)?);
    outside.end()?;
    let id = parts.next(INTEGER)?;
    if !(1..=4).contains(&id.len()) || id[0] >= 0x80 {
        return Err("a message without a number");
    }
    Ok((id.iter().fold(0, |number, digit| (number << 8) | u32::from(*digit)), parts))
}

/// What was asked and is not answered yet: by the number of the request, the tag of its result.
#[derive(Debug, Default)]
pub struct Asked(HashMap<u32, u8>);

impl Asked {
    /// Notes a request before it is sent.
    ///
    /// # Errors
    /// It is none.
    pub fn ask(&mut self, request: &[u8]) -> Result<(), Wrong> {
        let (id, mut parts) = opened(request)?;
        if let Some(kind) = result_of(parts.any()?.0) {
            self.0.insert(id, kind);
        }
        Ok(())
    }

    /// Whether something that is of this kind was asked under its number. A result is the last
    /// answer to a request.
    ///
    /// # Errors
    /// It was not.
    pub fn answer(&mut self, message: &Message<'_>) -> Result<(), Wrong> {
        let (id, kind, wanted) = match *message {
            Message::Other => return Ok(()), // which is not handed on
            Message::Entry { id } => (id, SEARCHED, self.0.get(&id).copied()),
            Message::Result { id, kind, .. } => (id, kind, self.0.get(&id).copied()),
        };
        match wanted {
            None => return Err("it answers what was not asked"),
            Some(wanted) if wanted != kind => {
                return Err("it answers something else than was asked for");
            }
            Some(_) => {}
        }
        if matches!(message, Message::Result { .. }) {
            self.0.remove(&id);
        }
        Ok(())
    }
}

/// The tag of a request's result, if it has one (RFC 4511 §4.2 to §4.14).
fn result_of(request: u8) -> Option<u8> {
    match request {
        0x60 => Some(0x61),     // bind
        0x63 => Some(SEARCHED), // search
        0x66 => Some(0x67),     // modify
        0x68 => Some(0x69),     // add
        0x4a => Some(0x6b),     // delete
        0x6c => Some(0x6d),     // modify the name
        0x6e => Some(0x6f),     // compare
        0x77 => Some(0x78),     // extended
        _ => None,              // unbind, abandon
    }
}

fn entry(mut parts: Reader<'_>, id: u32) -> Result<Message<'_>, Wrong> {
    parts.text(OCTETS)?;
    let mut attributes = Reader(parts.next(SEQUENCE)?);
    parts.end()?;
    while !attributes.0.is_empty() {
        let mut one = Reader(attributes.next(SEQUENCE)?);
        one.text(OCTETS)?;
        let mut values = Reader(one.next(SET)?);
        one.end()?;
        while !values.0.is_empty() {
            values.next(OCTETS)?;
        }
    }
    Ok(Message::Entry { id })
}

fn result(mut parts: Reader<'_>, id: u32, kind: u8) -> Result<Message<'_>, Wrong> {
    let &[code] = parts.next(ENUMERATED)? else { return Err("a result without a code") };
    parts.text(OCTETS)?;
    let text = parts.text(OCTETS)?;
    while !parts.0.is_empty() {
        match parts.any()? {
            (REFERRAL, content) => {
                let mut addresses = Reader(content);
                while !addresses.0.is_empty() {
                    addresses.text(OCTETS)?;
                }
            }
            (RESPONSE_NAME, content) => drop(as_text(content)?),
            (CREDENTIALS | RESPONSE_VALUE, _) => {}
            _ => return Err("a result with something unknown in it"),
        }
    }
    Ok(Message::Result { id, kind, code, text })
}

fn controls(mut all: Reader<'_>) -> Result<(), Wrong> {
    while !all.0.is_empty() {
        let mut one = Reader(all.next(SEQUENCE)?);
        one.text(OCTETS)?;
        if one.0.first() == Some(&BOOLEAN) && one.next(BOOLEAN)?.len() != 1 {
            return Err("a control that is none");
        }
        if !one.0.is_empty() {
            one.next(OCTETS)?;
        }
        one.end()?;
    }
    Ok(())
}

/// The cookie in the value of a paged result's control (RFC 2696 §2); empty at the last page.
///
/// # Errors
/// It is none.
pub fn cookie(value: &[u8]) -> Result<&[u8], Wrong> {
    let mut outside = Reader(value);
    let mut parts = Reader(outside.next(SEQUENCE)?);
    parts.next(INTEGER)?;
    parts.next(OCTETS)
}

/// Characters that are shown of what a server says.
const SHOWN_MAX: usize = 200;

/// A server's own words as they may be shown: short, and without characters that a terminal obeys.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(SHOWN_MAX).collect()
}

/// What is left of a sequence.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn any(&mut self) -> Result<(u8, &'a [u8]), Wrong> {
        const SHORT: Wrong = "a message that ends in the middle";
        let (head, len) = header(self.0)?.ok_or(SHORT)?;
        let content = self.0.get(head..head + len).ok_or(SHORT)?;
        let tag = self.0[0];
        self.0 = &self.0[head + len..];
        Ok((tag, content))
    }

    fn next(&mut self, wanted: u8) -> Result<&'a [u8], Wrong> {
        match self.any()? {
            (tag, content) if tag == wanted => Ok(content),
            _ => Err("a message whose parts are not those of an answer"),
        }
    }

    fn text(&mut self, wanted: u8) -> Result<&'a str, Wrong> {
        as_text(self.next(wanted)?)
    }

    fn end(&self) -> Result<(), Wrong> {
        if self.0.is_empty() { Ok(()) } else { Err("a message with something behind it") }
    }
}

fn as_text(bytes: &[u8]) -> Result<&str, Wrong> {
    std::str::from_utf8(bytes).map_err(|_| "a name that is not UTF-8")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A search result entry of `cn=a` with one attribute.
    const FOUND: &[u8] =
        b"\x30\x18\x02\x01\x02\x64\x13\x04\x04cn=a\x30\x0b\x30\x09\x04\x02cn\x31\x03\x04\x01a";
    /// The end of a search, with a cookie of a page.
    const DONE: &[u8] = b"\x30\x2b\x02\x01\x02\x65\x07\x0a\x01\x00\x04\x00\x04\x00\xa0\x1d\x30\x1b\
                          \x04\x161.2.840.113556.1.4.319\x04\x01c";

    #[test]
    fn what_is_as_it_should_be_passes() {
        assert_eq!(length(FOUND), Ok(Some(FOUND.len())));
        assert_eq!(check(FOUND), Ok(Message::Entry { id: 2 }));
        assert_eq!(check(DONE), Ok(Message::Result { id: 2, kind: 0x65, code: 0, text: "" }));
        assert_eq!(cookie(b"\x30\x07\x02\x01\x00\x04\x02ab"), Ok(&b"ab"[..]));
        for end in 0..FOUND.len() {
            assert!(check(&FOUND[..end]).is_err(), "{end}");
        }
        assert_eq!(length(b"\x30"), Ok(None));
        assert_eq!(length(b"\x30\x83\x01\x00"), Ok(None));
        assert_eq!(length(b"\x30\x83\x10\x00\x00"), Ok(Some(0x10_0005)));
    }

    #[test]
    fn an_answer_is_one_to_what_was_asked() {
        let request = |id, tag| [0x30, 0x05, 0x02, 0x01, id, tag, 0x00];
        let result = |id, kind| Message::Result { id, kind, code: 0, text: "" };
        let entry = |id| Message::Entry { id };
        let requests = [0x60, 0x63, 0x66, 0x68, 0x4a, 0x6c, 0x6e, 0x77];
        let kinds = [0x61, 0x65, 0x67, 0x69, 0x6b, 0x6d, 0x6f, 0x78];
        for (asks, own) in requests.into_iter().zip(kinds) {
            let mut asked = Asked::default();
            asked.ask(&request(7, asks)).unwrap();
            for kind in kinds.into_iter().filter(|kind| *kind != own) {
                assert!(asked.answer(&result(7, kind)).is_err(), "{asks:x} {kind:x}");
            }
            assert_eq!(asked.answer(&entry(7)).is_ok(), asks == 0x63, "{asks:x}");
            assert!(asked.answer(&result(8, own)).is_err() && asked.answer(&entry(8)).is_err());
            assert_eq!(asked.answer(&result(7, own)), Ok(()));
            assert!(asked.answer(&result(7, own)).is_err(), "once");
            assert!(asked.answer(&entry(7)).is_err(), "and nothing after it");
        }
        let mut asked = Asked::default();
        for without in [0x42, 0x50] {
            asked.ask(&request(9, without)).unwrap();
            assert!(kinds.iter().all(|kind| asked.answer(&result(9, *kind)).is_err()));
        }
        assert!(asked.ask(b"\x30\x03\x02\x01\x02").is_err());
    }

    #[test]
    fn what_would_end_or_fill_a_client_does_not() {
        for (bytes, why) in [
            (&b"HTTP/1.1 400"[..], "no LDAP"),
            (b"\x30\x84\xff\xff\xff\xff", "longer than any"),
            (b"\x30\x80", "a length"),
            (b"\x30\x85\0\0\0\0\0", "a length"),
        ] {
            assert!(length(bytes).unwrap_err().contains(why), "{bytes:?}");
        }
        for bytes in [
            &b"\x30\x00"[..],
            b"\x30\x03\x02\x01\x02",
            b"\x30\x05\x02\x01\x02\x64\x00",
            b"\x30\x05\x02\x01\x02\x65\x00",
            b"\x30\x05\x02\x01\x02\x7f\x00",
            b"\x30\x0c\x02\x01\x02\x65\x07\x0a\x01\x00\x04\x00\x04\x01",
        ] {
            assert!(check(bytes).is_err(), "{bytes:?}");
        }
        // Depth is that of an answer, and never recursion.
        assert!(check(&[0x30, 0x80].repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn anything_can_be_looked_at(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (length(&bytes), check(&bytes), cookie(&bytes));
        }

        #[test]
        fn a_byte_that_is_another_is_no_panic(at in 0..DONE.len(), byte in any::<u8>()) {
            let mut bytes = DONE.to_vec();
            bytes[at] = byte;
            let _ = check(&bytes);
        }
    }
}
