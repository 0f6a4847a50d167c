//! The messages of a control connection, and the one that a data connection begins with
//! (docs/uplink.md, "Messages"): a kind, the length of what follows, and that.

use std::fmt;

/// Bytes before the body: its kind, and its length (big endian).
const HEAD_LEN: usize = 3;

/// Longest body. What follows a longer one is not waited for.
pub const BODY_MAX: usize = 512;

/// Longest message.
pub const MESSAGE_MAX: usize = HEAD_LEN + BODY_MAX;

/// Longest text in a message: a reason, or a name.
pub const TEXT_MAX: usize = 256;

/// Version of the protocol that is spoken here.
pub const VERSION: u16 = 1;

const TOKEN_LEN: usize = 16;

mod kind {
    pub(super) const HELLO: u8 = 0x01;
    pub(super) const TOKEN: u8 = 0x02;
    pub(super) const FAILED: u8 = 0x03;
    pub(super) const ALIVE: u8 = 0x10;
    pub(super) const WELCOME: u8 = 0x81;
    pub(super) const DIAL: u8 = 0x82;
    pub(super) const REFUSED: u8 = 0x83;
}

/// What a data connection has to show: 128 random bits, good once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub [u8; TOKEN_LEN]);

/// Its beginning, by which it is found in both ends' logs: it lets nobody in.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The home's first word on a control connection.
    Hello {
        /// Version of the protocol that it speaks.
        version: u16,
    },
    /// The home's only word on a data connection.
    Token(Token),
    /// The home cannot make the connection that it was asked for.
    Failed {
        /// Which.
        token: Token,
        /// Why not, for people.
        why: String,
    },
    /// Either end is there. Nothing is answered.
    Alive,
    /// The server's answer to [`Hello`](Self::Hello).
    Welcome {
        /// What the home is called there.
        name: String,
    },
    /// The server wants a data connection.
    Dial {
        /// What it has to show.
        token: Token,
        /// How long that is good.
        valid_ms: u32,
    },
    /// The server ends the control connection.
    Refused {
        /// Why, for people.
        why: String,
    },
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// No message is of this kind.
    #[error("kind {0:#04x} of a message: there is none")]
    Kind(u8),
    /// Longer than any.
    #[error("a message of kind {kind:#04x} with {len} bytes; at most {BODY_MAX} are allowed")]
    Long {
        /// Its kind.
        kind: u8,
        /// Bytes of its body.
        len: usize,
    },
    /// Not as long as one of its kind.
    #[error("a message of kind {kind:#04x} with {len} bytes, which is not its length")]
    Length {
        /// Its kind.
        kind: u8,
        /// Bytes of its body.
        len: usize,
    },
    /// Not text, or too much of it.
    #[error(
        "a message of kind {kind:#04x}, whose text is not UTF-8 of at most {TEXT_MAX} bytes \
         without control characters"
    )]
    Text {
        /// Its kind.
        kind: u8,
    },
}

impl Message {
    /// The message that `bytes` begin with, and its length; `None`: it goes on behind them.
    ///
    /// # Errors
    /// They begin with none. That is known with its first three bytes, so that nobody has to be
    /// waited for whose message would be refused.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, WireError> {
        let Some((&[kind, high, low], rest)) = bytes.split_first_chunk::<HEAD_LEN>() else {
            return match bytes.first() {
                Some(kind) if !is_known(*kind) => Err(WireError::Kind(*kind)),
                _ => Ok(None),
            };
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if !is_known(kind) {
            return Err(WireError::Kind(kind));
        }
        if len > BODY_MAX {
            return Err(WireError::Long { kind, len });
        }
        let (least, most) = lengths(kind);
        if !(least..=most).contains(&len) {
            return Err(WireError::Length { kind, len });
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        Ok(Some((Self::parse_body(kind, body)?, HEAD_LEN + len)))
    }

    fn parse_body(kind: u8, body: &[u8]) -> Result<Self, WireError> {
        let wrong = || WireError::Length { kind, len: body.len() };
        let text = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok().filter(|text| is_text(text));
            text.map(str::to_owned).ok_or(WireError::Text { kind })
        };
        let token = || body.split_first_chunk().map(|(token, rest)| (Token(*token), rest));
        Ok(match kind {
            kind::HELLO => {
                Self::Hello { version: u16::from_be_bytes(body.try_into().map_err(|_| wrong())?) }
            }
            kind::TOKEN => Self::Token(token().ok_or_else(wrong)?.0),
            kind::FAILED => {
                let (token, why) = token().ok_or_else(wrong)?;
                Self::Failed { token, why: text(why)? }
            }
            kind::ALIVE => Self::Alive,
            kind::WELCOME => Self::Welcome { name: text(body)? },
            kind::DIAL => {
                let (token, valid) = token().ok_or_else(wrong)?;
                let valid_ms = u32::from_be_bytes(valid.try_into().map_err(|_| wrong())?);
                Self::Dial { token, valid_ms }
            }
            kind::REFUSED => Self::Refused { why: text(body)? },
            _ => return Err(WireError::Kind(kind)),
        })
    }

    /// Its bytes. Text that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello { version } => (kind::HELLO, version.to_be_bytes().to_vec()),
            Self::Token(token) => (kind::TOKEN, token.0.to_vec()),
            Self::Failed { token, why } => {
                (kind::FAILED, [&token.0, sendable(why).as_bytes()].concat())
            }
            Self::Alive => (kind::ALIVE, Vec::new()),
            Self::Welcome { name } => (kind::WELCOME, sendable(name).into_bytes()),
            Self::Dial { token, valid_ms } => {
                (kind::DIAL, [&token.0[..], &valid_ms.to_be_bytes()].concat())
            }
            Self::Refused { why } => (kind::REFUSED, sendable(why).into_bytes()),
        };
        let len = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&[kind][..], &len, &body].concat()
    }

    /// A word for the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "HELLO",
            Self::Token(_) => "TOKEN",
            Self::Failed { .. } => "FAILED",
            Self::Alive => "ALIVE",
            Self::Welcome { .. } => "WELCOME",
            Self::Dial { .. } => "DIAL",
            Self::Refused { .. } => "REFUSED",
        }
    }
}

fn is_known(kind: u8) -> bool {
    use kind::{ALIVE, DIAL, FAILED, HELLO, REFUSED, TOKEN, WELCOME};
    [HELLO, TOKEN, FAILED, ALIVE, WELCOME, DIAL, REFUSED].contains(&kind)
}

/// Least and most bytes of a body.
fn lengths(kind: u8) -> (usize, usize) {
    match kind {
        kind::HELLO => (2, 2),
        kind::TOKEN => (TOKEN_LEN, TOKEN_LEN),
        kind::FAILED => (TOKEN_LEN, TOKEN_LEN + TEXT_MAX),
        kind::DIAL => (TOKEN_LEN + 4, TOKEN_LEN + 4),
        kind::WELCOME | kind::REFUSED => (0, TEXT_MAX),
        _ => (0, 0),
    }
}

/// May a peer's text go to a log or a page as it is?
fn is_text(text: &str) -> bool {
    text.len() <= TEXT_MAX && !text.chars().any(char::is_control)
}

/// As much of a text as may be sent.
fn sendable(text: &str) -> String {
    let mut sent = String::new();
    for letter in text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
        if sent.len() + letter.len_utf8() > TEXT_MAX {
            break;
        }
        sent.push(letter);
    }
    sent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> Vec<Message> {
        let token = Token(std::array::from_fn(|at| at as u8));
        vec![
            Message::Hello { version: 1 },
            Message::Token(token),
            Message::Failed { token, why: "no way to the server".into() },
            Message::Failed { token, why: String::new() },
            Message::Alive,
            Message::Welcome { name: "attic".into() },
            Message::Dial { token, valid_ms: 10_000 },
            Message::Refused { why: "unbekannt – 知らない".into() },
        ]
    }

    #[test]
    fn every_message_cut_at_every_byte_is_waited_for_and_whole_it_is_read() {
        for message in all() {
            let bytes = message.encode();
            for cut in 0..bytes.len() {
                assert_eq!(Message::parse(&bytes[..cut]), Ok(None), "{message:?} cut at {cut}");
            }
            let behind = [&bytes[..], &[0xff; 9]].concat();
            for bytes in [&bytes, &behind] {
                let read = Message::parse(bytes);
                assert_eq!(read, Ok(Some((message.clone(), message.encode().len()))));
            }
        }
    }

    #[test]
    fn what_is_no_message_is_known_with_its_head() {
        let long = [kind::REFUSED, 0xff, 0xff];
        assert_eq!(Message::parse(&[0x47]), Err(WireError::Kind(0x47)), "the G of GET");
        let (kind, len) = (kind::REFUSED, 0xffff);
        assert_eq!(Message::parse(&long), Err(WireError::Long { kind, len }));
        for message in all() {
            let mut bytes = message.encode();
            let kind = bytes[0];
            let (least, most) = lengths(kind);
            for wrong in [least.wrapping_sub(1), most + 1] {
                let Ok(wrong) = u16::try_from(wrong) else { continue };
                bytes[1..3].copy_from_slice(&wrong.to_be_bytes());
                let error = Message::parse(&bytes[..HEAD_LEN]).unwrap_err();
                let len = usize::from(wrong);
                let expected = if len > BODY_MAX {
                    WireError::Long { kind, len }
                } else {
                    WireError::Length { kind, len }
                };
                assert_eq!(error, expected, "{message:?}, which has {len}");
            }
        }
    }

    #[test]
    fn text_is_cut_and_never_controls_a_terminal() {
        let why = format!("\u{1b}[2J{}ä", "x".repeat(TEXT_MAX - 5));
        let bytes = Message::Refused { why }.encode();
        let (read, _) = Message::parse(&bytes).unwrap().unwrap();
        let Message::Refused { why } = read else { unreachable!("{read:?}") };
        assert!(why.starts_with(" [2J") && why.len() <= TEXT_MAX, "{why:?}");
        for text in [&b"\x1b[2J"[..], b"\xff", b"a\nb"] {
            let bytes = [&[kind::REFUSED, 0, text.len() as u8][..], text].concat();
            let kind = kind::REFUSED;
            assert_eq!(Message::parse(&bytes), Err(WireError::Text { kind }));
        }
    }

    #[test]
    fn a_token_is_not_told_to_logs() {
        let token = Token([0xab; 16]);
        assert_eq!(format!("{token} {token:?}"), "abababab… Token(abababab…)");
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(Some((message, len))) = Message::parse(&bytes) {
                prop_assert!(len <= bytes.len() && len <= MESSAGE_MAX);
                prop_assert_eq!(&message.encode()[..], &bytes[..len]);
            }
        }
    }
}
