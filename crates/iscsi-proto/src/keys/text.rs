//! Text as login and text PDUs carry it: `key=value` pairs, each ended by a zero byte, cut into
//! PDUs with the C bit (RFC 7143 §6.1, §6.2). It knows no key.

use bytes::Bytes;

/// Longest key name (§6.1).
pub const KEY_NAME_MAX: usize = 63;

/// Longest value of any key: a CHAP value of 1024 bytes in hex. Keys with text or numbers end at
/// 255, which the table checks.
pub const VALUE_MAX: usize = 2 + 2 * 1024;

/// Most text one side may send in one go during login. All keys that exist, with the longest CHAP
/// values in hex, take under 8 KiB; double that bounds a peer whose C bit never ends.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
//# Any iSCSI target or initiator MUST support receiving at least 8192 bytes of key=value data in a
//# negotiation sequence.
pub const LOGIN_TEXT_MAX: usize = 16 * 1024;

/// Why bytes are not text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The last pair has no zero byte behind it.
    #[error("text at byte {at} is not terminated")]
    Unterminated {
        /// Offset of the pair.
        at: usize,
    },
    /// No `=` in a pair.
    #[error("no '=' in the pair at byte {at}")]
    NoEquals {
        /// Offset of the pair.
        at: usize,
    },
    /// Empty, too long, or with a character no key name has.
    #[error("invalid key name at byte {at}")]
    KeyName {
        /// Offset of the pair.
        at: usize,
    },
    /// Too long for any key.
    #[error("value of {key} has {length} bytes, more than any key's")]
    ValueLength {
        /// The key.
        key: String,
        /// Length of the value in bytes.
        length: usize,
    },
    /// Not UTF-8, or with control characters.
    #[error("value of {key} is not printable UTF-8")]
    ValueEncoding {
        /// The key.
        key: String,
    },
    /// The peer sends text without end.
    #[error("more than {max} bytes of text")]
    TooLong {
        /// The limit.
        max: usize,
    },
}

/// One `key=value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Key name, checked for length and characters.
    pub key: &'a str,
    /// Value, checked for length and to be printable.
    pub value: &'a str,
}

/// Splits complete text into its pairs. Zero bytes in a row are skipped: some implementations count
/// their padding into the segment.
///
/// # Errors
/// [`TextError`] names the place of the first fault.
pub fn parse(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let mut pairs = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
        //# Every key=value pair, including the last or only pair in a LTDS, MUST be followed by one
        //# null (0x00) delimiter.
        let length =
            rest.iter().position(|&byte| byte == 0).ok_or(TextError::Unterminated { at })?;
        if length > 0 {
            pairs.push(parse_pair(&rest[..length], at)?);
        }
        at += length + 1;
    }
    Ok(pairs)
}

fn parse_pair(item: &[u8], at: usize) -> Result<Pair<'_>, TextError> {
    let equals = item.iter().position(|&byte| byte == b'=').ok_or(TextError::NoEquals { at })?;
    let (key, value) = (&item[..equals], &item[equals + 1..]);
    let key = std::str::from_utf8(key)
        .ok()
        .filter(|key| is_key_name(key))
        .ok_or(TextError::KeyName { at })?;
    if value.len() > VALUE_MAX {
        return Err(TextError::ValueLength { key: key.to_owned(), length: value.len() });
    }
    let value = std::str::from_utf8(value)
        .ok()
        .filter(|value| !value.chars().any(char::is_control))
        .ok_or_else(|| TextError::ValueEncoding { key: key.to_owned() })?;
    Ok(Pair { key, value })
}

/// Letters, digits, dot, minus, plus, at, underscore (§6.1), and the hash of `X#…` keys (§13.26).
fn is_key_name(key: &str) -> bool {
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b".-+@_#".contains(&c);
    (1..=KEY_NAME_MAX).contains(&key.len()) && key.bytes().all(allowed)
}

/// Collects pairs to be sent.
#[derive(Clone, Debug, Default)]
pub struct TextWriter {
    text: Vec<u8>,
}

impl TextWriter {
    /// Appends a pair.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
    //# Every key=value pair, including the last or only pair in a LTDS, MUST be followed by one
    //# null (0x00) delimiter.
    pub fn push(&mut self, key: &str, value: impl std::fmt::Display) {
        self.text.extend_from_slice(format!("{key}={value}\0").as_bytes());
    }

    /// Nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text.
    pub fn finish(self) -> Bytes {
        self.text.into()
    }
}

/// Puts together text that comes in several PDUs with the C bit.
#[derive(Clone, Debug)]
pub struct TextReader {
    text: Vec<u8>,
    max: usize,
}

impl TextReader {
    /// A reader that takes at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { text: Vec::new(), max }
    }

    /// Adds a PDU's data segment; without the C bit the text is complete and returned.
    ///
    /// # Errors
    /// [`TextError::TooLong`] if there is more than was allowed for.
    pub fn push(&mut self, data: &[u8], continues: bool) -> Result<Option<Vec<u8>>, TextError> {
        if data.len() > self.max - self.text.len() {
            return Err(TextError::TooLong { max: self.max });
        }
        self.text.extend_from_slice(data);
        Ok((!continues).then(|| std::mem::take(&mut self.text)))
    }

    /// Some text has come, and more was announced.
    pub fn is_partial(&self) -> bool {
        !self.text.is_empty()
    }
}

/// Cuts text to be sent into PDUs.
#[derive(Clone, Debug, Default)]
pub struct TextSender {
    rest: Bytes,
}

impl TextSender {
    /// Starts to send `text`; whatever was left of an earlier one is dropped.
    pub fn start(&mut self, text: Bytes) {
        self.rest = text;
    }

    /// Part of a text is still to be sent.
    pub fn is_pending(&self) -> bool {
        !self.rest.is_empty()
    }

    /// The next data segment of at most `max` bytes; `true` is the C bit: more follows.
    pub fn next_segment(&mut self, max: usize) -> (Bytes, bool) {
        let segment = self.rest.split_to(self.rest.len().min(max));
        (segment, self.is_pending())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    //= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
    //= type=test
    //# Every key=value pair, including the last or only pair in a LTDS, MUST be followed by one
    //# null (0x00) delimiter.
    #[test]
    fn pairs() {
        let pair = |key, value| Pair { key, value };
        assert_eq!(parse(b""), Ok(vec![]));
        assert_eq!(
            parse(b"A=1\0B=\0C==x\0"),
            Ok(vec![pair("A", "1"), pair("B", ""), pair("C", "=x")])
        );
        assert_eq!(parse(b"A=1\0\0\0B=2\0\0"), Ok(vec![pair("A", "1"), pair("B", "2")]));
        assert_eq!(parse(b"A=1\0B=2"), Err(TextError::Unterminated { at: 4 }));
        assert_eq!(parse(b"A=1\0B\0"), Err(TextError::NoEquals { at: 4 }));
        assert_eq!(parse(b"=1\0"), Err(TextError::KeyName { at: 0 }));
        assert_eq!(parse(b"A B=1\0"), Err(TextError::KeyName { at: 0 }));
        let encoding = Err(TextError::ValueEncoding { key: "A".to_owned() });
        assert_eq!(parse(b"A=\xff\0"), encoding);
        assert_eq!(parse(b"A=x\x1b[2J\0"), encoding);
        let name = "K".repeat(KEY_NAME_MAX);
        assert!(parse(format!("{name}=\0").as_bytes()).is_ok());
        assert_eq!(parse(format!("{name}K=\0").as_bytes()), Err(TextError::KeyName { at: 0 }));
        let value = "v".repeat(VALUE_MAX + 1);
        assert!(parse(format!("A={}\0", &value[1..]).as_bytes()).is_ok());
        assert!(parse(format!("A={value}\0").as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn cut_and_put_together(text in proptest::collection::vec(any::<u8>(), 0..500), max in 1usize..100) {
            let mut sender = TextSender::default();
            sender.start(text.clone().into());
            let mut reader = TextReader::new(500);
            loop {
                let (segment, continues) = sender.next_segment(max);
                prop_assert!(segment.len() <= max);
                prop_assert_eq!(continues, sender.is_pending());
                if let Some(whole) = reader.push(&segment, continues).unwrap() {
                    prop_assert_eq!(whole, text);
                    break;
                }
            }
        }
    }

    #[test]
    fn readers_stop_at_their_limit() {
        let mut reader = TextReader::new(4);
        assert_eq!(reader.push(b"abc", true), Ok(None));
        assert_eq!(reader.push(b"de", false), Err(TextError::TooLong { max: 4 }));
        assert_eq!(reader.push(b"d", false), Ok(Some(b"abcd".to_vec())));
        assert!(!reader.is_partial());
    }
}
