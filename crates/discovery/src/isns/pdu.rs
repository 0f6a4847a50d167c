//! The 12-byte header, and messages of one or many PDUs (RFC 4171 §5.1): what is in a message,
//! [`super::message`] knows.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::attr::ATTR_HEADER_LEN;

/// Bytes of the header.
pub const HEADER_LEN: usize = 12;

/// Largest payload of a PDU: 16 bits of length, whole words.
pub const PDU_PAYLOAD_MAX: usize = 65_532;

/// Largest message that is put together from a peer's PDUs: some ten thousand nodes. What a peer
/// can make us hold is this and one PDU.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// What is wrong with bytes that came. All of them end the connection: framing is lost, or the
/// peer speaks something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Not iSNS, or not this one.
    #[error("iSNSP version {0} in the header (1 is allowed)")]
    Version(u16),
    /// No multiple of four.
    #[error("PDU length {0} (a multiple of 4 is allowed)")]
    Length(u16),
    /// An authentication block, which would follow the payload.
    #[error("function {0}: authentication block, which is not supported (flag 2000h must be 0)")]
    Authentication(Function),
    /// A PDU that continues nothing.
    #[error(
        "transaction {xid}: first PDU has sequence {sequence}, flags {flags:04x}h \
         (0 and 0400h are allowed)"
    )]
    NotFirst {
        /// Transaction.
        xid: u16,
        /// Its number in the message.
        sequence: u16,
        /// All of them.
        flags: u16,
    },
    /// A PDU that does not continue the message that was begun.
    #[error(
        "transaction {xid}, sequence {sequence}: expected transaction {expected_xid}, \
         sequence {expected_sequence} of the message that was begun"
    )]
    NotNext {
        /// Transaction.
        xid: u16,
        /// Its number in the message.
        sequence: u16,
        /// The transaction that is under way.
        expected_xid: u16,
        /// The number that would be next.
        expected_sequence: u16,
    },
    /// Too much.
    #[error("transaction {xid}: message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLarge {
        /// Transaction.
        xid: u16,
    },
    /// An attribute that does not fit its message, or is not what its tag says.
    #[error("function {function}, transaction {xid}: {what}")]
    Format {
        /// What was asked for.
        function: Function,
        /// Transaction.
        xid: u16,
        /// What, and what is allowed.
        what: String,
    },
}

/// What a message is for (§5.1.2). Responses have the top bit set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function(pub u16);

#[rustfmt::skip]
impl Function {
    /// Register objects.
    pub const DEV_ATTR_REG: Self = Self(0x0001);
    /// Ask for attributes.
    pub const DEV_ATTR_QRY: Self = Self(0x0002);
    /// Go through objects one by one.
    pub const DEV_GET_NEXT: Self = Self(0x0003);
    /// Take objects away.
    pub const DEV_DEREG: Self = Self(0x0004);
    /// Wish to be told of changes.
    pub const SCN_REG: Self = Self(0x0005);
    /// The opposite.
    pub const SCN_DEREG: Self = Self(0x0006);
    /// Have others told of a change.
    pub const SCN_EVENT: Self = Self(0x0007);
    /// A change, told by the server.
    pub const SCN: Self = Self(0x0008);
    /// Make or change a discovery domain.
    pub const DD_REG: Self = Self(0x0009);
    /// Remove it, or members of it.
    pub const DD_DEREG: Self = Self(0x000a);
    /// Make or change a set of discovery domains.
    pub const DDS_REG: Self = Self(0x000b);
    /// Remove it, or members of it.
    pub const DDS_DEREG: Self = Self(0x000c);
    /// Are you there? Asked by the server.
    pub const ESI: Self = Self(0x000d);
    /// The server is there; has no response and no attributes.
    pub const HEARTBEAT: Self = Self(0x000e);
}

impl Function {
    const RESPONSE: u16 = 0x8000;

    /// The answer to it.
    #[must_use]
    pub fn response(self) -> Self {
        Self(self.0 | Self::RESPONSE)
    }

    /// What it answers, or itself.
    #[must_use]
    pub fn request(self) -> Self {
        Self(self.0 & !Self::RESPONSE)
    }

    /// Is it an answer?
    #[must_use]
    pub fn is_response(self) -> bool {
        self.0 & Self::RESPONSE != 0
    }

    fn name(self) -> Option<&'static str> {
        Some(match self.request() {
            Self::DEV_ATTR_REG => "DevAttrReg",
            Self::DEV_ATTR_QRY => "DevAttrQry",
            Self::DEV_GET_NEXT => "DevGetNext",
            Self::DEV_DEREG => "DevDereg",
            Self::SCN_REG => "SCNReg",
            Self::SCN_DEREG => "SCNDereg",
            Self::SCN_EVENT => "SCNEvent",
            Self::SCN => "SCN",
            Self::DD_REG => "DDReg",
            Self::DD_DEREG => "DDDereg",
            Self::DDS_REG => "DDSReg",
            Self::DDS_DEREG => "DDSDereg",
            Self::ESI => "ESI",
            Self::HEARTBEAT => "Heartbeat",
            _ => return None,
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name}{}", if self.is_response() { "Rsp" } else { "" }),
            None => write!(f, "{:#06x}", self.0),
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How a request went (§5.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

#[rustfmt::skip]
impl Status {
    /// Well.
    pub const SUCCESS: Self = Self(0);
    /// The message cannot be read.
    pub const FORMAT_ERROR: Self = Self(2);
    /// What shall be registered cannot be.
    pub const INVALID_REGISTRATION: Self = Self(3);
    /// What is asked cannot be.
    pub const INVALID_QUERY: Self = Self(5);
    /// Nobody knows who asks.
    pub const SOURCE_UNKNOWN: Self = Self(6);
    /// It is not said who asks.
    pub const SOURCE_ABSENT: Self = Self(7);
    /// Who asks may not.
    pub const SOURCE_UNAUTHORIZED: Self = Self(8);
    /// There is no such object (any more).
    pub const NO_SUCH_ENTRY: Self = Self(9);
    /// Another version of the protocol.
    pub const VERSION_NOT_SUPPORTED: Self = Self(10);
    /// The server's fault.
    pub const INTERNAL_ERROR: Self = Self(11);
    /// No room.
    pub const BUSY: Self = Self(12);
    /// The update cannot be made.
    pub const INVALID_UPDATE: Self = Self(14);
    /// A function that is not known.
    pub const MESSAGE_NOT_SUPPORTED: Self = Self(15);
    /// The event is not taken.
    pub const SCN_EVENT_REJECTED: Self = Self(16);
    /// No notifications for this node.
    pub const SCN_REGISTRATION_REJECTED: Self = Self(17);
    /// An attribute that is not known.
    pub const ATTRIBUTE_NOT_IMPLEMENTED: Self = Self(18);
    /// No inquiries.
    pub const ESI_NOT_AVAILABLE: Self = Self(21);
    /// What shall be taken away cannot be.
    pub const INVALID_DEREGISTRATION: Self = Self(22);
    /// A way of registering that is not known.
    pub const FEATURE_NOT_SUPPORTED: Self = Self(23);
}

impl Status {
    fn words(self) -> &'static str {
        match self {
            Self::SUCCESS => "success",
            Self::FORMAT_ERROR => "message format error",
            Self::INVALID_REGISTRATION => "invalid registration",
            Self::INVALID_QUERY => "invalid query",
            Self::SOURCE_UNKNOWN => "source unknown",
            Self::SOURCE_ABSENT => "source absent",
            Self::SOURCE_UNAUTHORIZED => "source unauthorized",
            Self::NO_SUCH_ENTRY => "no such entry",
            Self::VERSION_NOT_SUPPORTED => "version not supported",
            Self::INTERNAL_ERROR => "internal error",
            Self::BUSY => "busy",
            Self::INVALID_UPDATE => "invalid update",
            Self::MESSAGE_NOT_SUPPORTED => "message not supported",
            Self::SCN_EVENT_REJECTED => "SCN event rejected",
            Self::SCN_REGISTRATION_REJECTED => "SCN registration rejected",
            Self::ATTRIBUTE_NOT_IMPLEMENTED => "attribute not implemented",
            Self::ESI_NOT_AVAILABLE => "ESI not available",
            Self::INVALID_DEREGISTRATION => "invalid deregistration",
            Self::FEATURE_NOT_SUPPORTED => "registration feature not supported",
            _ => "error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.words(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bits of the header (§5.1.4).
pub(crate) mod flags {
    pub(crate) const CLIENT: u16 = 0x8000;
    pub(crate) const SERVER: u16 = 0x4000;
    pub(crate) const AUTHENTICATION: u16 = 0x2000;
    pub(crate) const REPLACE: u16 = 0x1000;
    pub(crate) const LAST: u16 = 0x0800;
    pub(crate) const FIRST: u16 = 0x0400;
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A client.
    Client,
    /// The server.
    Server,
}

/// A message, whatever it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub function: Function,
    /// Whose request it is or answers: chosen by who asks.
    pub xid: u16,
    /// What is registered takes the place of what was (§5.6.5.1).
    pub replace: bool,
    /// Attributes, behind a status in a response.
    pub payload: Bytes,
}

impl Message {
    /// The bytes of its PDUs. They are cut between attributes, where the payload has any: a peer
    /// that reads PDU by PDU reads whole ones.
    #[must_use]
    pub fn encode(&self, sender: Sender) -> Bytes {
        let mut out = BytesMut::with_capacity(self.payload.len() + HEADER_LEN);
        let mut rest = self.payload.clone();
        let mut sequence = 0_u16;
        loop {
            let len =
                if rest.len() <= PDU_PAYLOAD_MAX { rest.len() } else { self.cut(&rest, sequence) };
            let payload = rest.split_to(len);
            let mut bits = match sender {
                Sender::Client => flags::CLIENT,
                Sender::Server => flags::SERVER,
            };
            bits |= if self.replace { flags::REPLACE } else { 0 };
            bits |= if sequence == 0 { flags::FIRST } else { 0 };
            bits |= if rest.is_empty() { flags::LAST } else { 0 };
            out.put_u16(1);
            out.put_u16(self.function.0);
            out.put_u16(len as u16);
            out.put_u16(bits);
            out.put_u16(self.xid);
            out.put_u16(sequence);
            out.put_slice(&payload);
            if rest.is_empty() {
                return out.freeze();
            }
            sequence = sequence.wrapping_add(1);
        }
    }

    /// How much of it the next PDU takes.
    fn cut(&self, rest: &[u8], sequence: u16) -> usize {
        let mut end = if self.function.is_response() && sequence == 0 { 4 } else { 0 };
        while let Some(header) =
            rest.get(end..).and_then(|rest| rest.first_chunk::<ATTR_HEADER_LEN>())
        {
            let [_, _, _, _, len @ ..] = *header;
            let next = (u32::from_be_bytes(len) as usize)
                .checked_next_multiple_of(4)
                .and_then(|len| len.checked_add(end + ATTR_HEADER_LEN));
            match next.filter(|next| *next <= PDU_PAYLOAD_MAX) {
                Some(next) => end = next,
                None => break,
            }
        }
        if end == 0 { PDU_PAYLOAD_MAX } else { end }
    }
}

/// A message that is not whole yet.
#[derive(Debug)]
struct Begun {
    function: Function,
    xid: u16,
    replace: bool,
    next_sequence: u16,
    payload: BytesMut,
}

/// Messages from a stream of bytes.
#[derive(Debug, Default)]
pub struct Assembler {
    buffer: BytesMut,
    begun: Option<Begun>,
}

impl Assembler {
    /// Where received bytes go. At most one PDU lies there when every message has been taken.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next message, once all of it has come.
    ///
    /// # Errors
    /// [`ProtocolError`]; the connection is of no more use then.
    pub fn poll_message(&mut self) -> Result<Option<Message>, ProtocolError> {
        while let Some(header) = self.buffer.first_chunk::<HEADER_LEN>() {
            let mut fields = &header[..];
            let version = fields.get_u16();
            let function = Function(fields.get_u16());
            let len = fields.get_u16();
            let (bits, xid, sequence) = (fields.get_u16(), fields.get_u16(), fields.get_u16());
            if version != 1 {
                return Err(ProtocolError::Version(version));
            }
            if len % 4 != 0 {
                return Err(ProtocolError::Length(len));
            }
            if bits & flags::AUTHENTICATION != 0 {
                return Err(ProtocolError::Authentication(function));
            }
            if self.buffer.len() < HEADER_LEN + usize::from(len) {
                return Ok(None);
            }
            self.buffer.advance(HEADER_LEN);
            let payload = self.buffer.split_to(len.into());
            if let Some(message) = self.take(function, bits, xid, sequence, payload)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn take(
        &mut self,
        function: Function,
        bits: u16,
        xid: u16,
        sequence: u16,
        payload: BytesMut,
    ) -> Result<Option<Message>, ProtocolError> {
        let is_first = bits & flags::FIRST != 0;
        let mut begun = match self.begun.take() {
            None if is_first && sequence == 0 => {
                let replace = bits & flags::REPLACE != 0;
                Begun { function, xid, replace, next_sequence: 0, payload: BytesMut::new() }
            }
            None => return Err(ProtocolError::NotFirst { xid, sequence, flags: bits }),
            Some(begun)
                if !is_first
                    && (begun.function, begun.xid, begun.next_sequence)
                        == (function, xid, sequence) =>
            {
                begun
            }
            Some(begun) => {
                return Err(ProtocolError::NotNext {
                    xid,
                    sequence,
                    expected_xid: begun.xid,
                    expected_sequence: begun.next_sequence,
                });
            }
        };
        if begun.payload.len() + payload.len() > MESSAGE_BYTES_MAX {
            return Err(ProtocolError::TooLarge { xid });
        }
        if begun.payload.is_empty() {
            begun.payload = payload;
        } else {
            begun.payload.extend_from_slice(&payload);
        }
        // PDUs without payload are as good as none: numbers end before such a message does.
        begun.next_sequence =
            begun.next_sequence.checked_add(1).ok_or(ProtocolError::TooLarge { xid })?;
        if bits & flags::LAST == 0 {
            self.begun = Some(begun);
            return Ok(None);
        }
        let Begun { function, xid, replace, payload, .. } = begun;
        Ok(Some(Message { function, xid, replace, payload: payload.freeze() }))
    }
}
