//! NBD messages as bytes: magic numbers, codes, headers. Knows neither order nor sockets.
//!
//! Source: the NBD protocol, doc/proto.md of NetworkBlockDevice/nbd. All integers are big-endian.

use std::fmt;

/// "NBDMAGIC", the first eight bytes a server sends.
pub const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", precedes the handshake flags and every option of the client.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Precedes every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Precedes every request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Precedes a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Precedes a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Longest string of the protocol in bytes (section "Values", limits on strings).
pub const STRING_LEN_MAX: usize = 4096;

/// The metadata context that tells holes and zeroes.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// In a status of [`ALLOCATION_CONTEXT`]: nothing is allocated.
pub const STATE_HOLE: u32 = 1;
/// In a status of [`ALLOCATION_CONTEXT`]: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// A code on the wire: any value can be held, known ones have a name.
macro_rules! wire_code {
    ($(#[$meta:meta])* $name:ident($int:ty) {
        $($(#[$item:meta])* $constant:ident = $value:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item])* pub const $constant: Self = Self($value);)*
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$constant => f.write_str(stringify!($constant)),)*
                    Self(other) => write!(f, concat!(stringify!($name), "({:#x})"), other),
                }
            }
        }
    };
}

/// Flags on the wire: a set of bits.
macro_rules! wire_flags {
    ($(#[$meta:meta])* $name:ident($int:ty) {
        $($(#[$item:meta])* $constant:ident = $value:expr,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$item])* pub const $constant: Self = Self($value);)*

            /// Whether all bits of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The bits of both.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of both if `condition`, else only those of `self`.
            pub const fn with_if(self, condition: bool, other: Self) -> Self {
                if condition { self.with(other) } else { self }
            }

            /// The bits that are not in `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }
    };
}

wire_flags! {
    /// Handshake flags of the server; the client answers with the same bits.
    HandshakeFlags(u16) {
        /// The fixed newstyle protocol is spoken.
        FIXED_NEWSTYLE = 1,
        /// The 124 zeroes after EXPORT_NAME can be left out.
        NO_ZEROES = 1 << 1,
    }
}

wire_flags! {
    /// What the export can do, sent at the end of the handshake.
    TransmissionFlags(u16) {
        /// Always set.
        HAS_FLAGS = 1,
        /// Writes are refused.
        READ_ONLY = 1 << 1,
        /// FLUSH is supported.
        SEND_FLUSH = 1 << 2,
        /// The FUA flag is supported.
        SEND_FUA = 1 << 3,
        /// TRIM is supported.
        SEND_TRIM = 1 << 5,
        /// WRITE_ZEROES is supported.
        SEND_WRITE_ZEROES = 1 << 6,
        /// The DF flag is supported (structured replies only).
        SEND_DF = 1 << 7,
        /// Flush on one connection covers the writes of all.
        CAN_MULTI_CONN = 1 << 8,
        /// CACHE is supported.
        SEND_CACHE = 1 << 10,
        /// The FAST_ZERO flag is supported.
        SEND_FAST_ZERO = 1 << 11,
    }
}

wire_flags! {
    /// Flags of one request.
    CommandFlags(u16) {
        /// Stable before the reply.
        FUA = 1,
        /// WRITE_ZEROES must not make a hole.
        NO_HOLE = 1 << 1,
        /// READ is answered with one content chunk at most.
        DF = 1 << 2,
        /// BLOCK_STATUS wants one extent only.
        REQ_ONE = 1 << 3,
        /// WRITE_ZEROES fails unless it is faster than a write.
        FAST_ZERO = 1 << 4,
    }
}

wire_code! {
    /// Option type of the handshake.
    OptionCode(u32) {
        /// Choose an export and start, without a reply.
        EXPORT_NAME = 1,
        /// End the session.
        ABORT = 2,
        /// List the exports.
        LIST = 3,
        /// Switch to TLS.
        STARTTLS = 5,
        /// Describe an export.
        INFO = 6,
        /// Describe an export and start.
        GO = 7,
        /// Use structured replies.
        STRUCTURED_REPLY = 8,
        /// List metadata contexts.
        LIST_META_CONTEXT = 9,
        /// Choose metadata contexts.
        SET_META_CONTEXT = 10,
        /// Use 64-bit lengths.
        EXTENDED_HEADERS = 11,
    }
}

wire_code! {
    /// Type of a reply to an option.
    OptionReply(u32) {
        /// Done, or end of a list.
        ACK = 1,
        /// An export of LIST.
        SERVER = 2,
        /// An item of INFO and GO.
        INFO = 3,
        /// A metadata context.
        META_CONTEXT = 4,
        /// The option is not known.
        ERR_UNSUP = 0x8000_0001,
        /// The option is malformed or out of place.
        ERR_INVALID = 0x8000_0003,
        /// TLS comes first.
        ERR_TLS_REQD = 0x8000_0005,
        /// There is no such export.
        ERR_UNKNOWN = 0x8000_0006,
        /// The request is too large to process.
        ERR_TOO_BIG = 0x8000_0009,
    }
}

wire_code! {
    /// Type of an information item.
    InfoType(u16) {
        /// Size and transmission flags.
        EXPORT = 0,
        /// Canonical name.
        NAME = 1,
        /// Text for humans.
        DESCRIPTION = 2,
        /// Size constraints.
        BLOCK_SIZE = 3,
    }
}

wire_code! {
    /// Type of a request.
    Command(u16) {
        /// Read bytes.
        READ = 0,
        /// Write the bytes that follow.
        WRITE = 1,
        /// End the session.
        DISC = 2,
        /// Make completed writes stable.
        FLUSH = 3,
        /// The range is not needed any more.
        TRIM = 4,
        /// The range will be needed soon.
        CACHE = 5,
        /// Make the range read as zeroes.
        WRITE_ZEROES = 6,
        /// Describe the range by the chosen metadata contexts.
        BLOCK_STATUS = 7,
    }
}

wire_code! {
    /// Error number of a reply; fixed by the protocol, whatever errno says elsewhere.
    ErrorCode(u32) {
        /// Operation not permitted (read-only).
        EPERM = 1,
        /// Input/output error.
        EIO = 5,
        /// No memory for it.
        ENOMEM = 12,
        /// Invalid argument.
        EINVAL = 22,
        /// No space left, or a write beyond the end.
        ENOSPC = 28,
        /// Value too large.
        EOVERFLOW = 75,
        /// Operation not supported (FAST_ZERO).
        ENOTSUP = 95,
        /// The server is shutting down.
        ESHUTDOWN = 108,
    }
}

wire_code! {
    /// Type of a chunk of a structured reply.
    ChunkType(u16) {
        /// No payload.
        NONE = 0,
        /// Bytes of the export.
        OFFSET_DATA = 1,
        /// Zeroes of the export.
        OFFSET_HOLE = 2,
        /// Extents of one metadata context.
        BLOCK_STATUS = 5,
        /// The request failed.
        ERROR = 0x8001,
        /// The request failed at an offset.
        ERROR_OFFSET = 0x8002,
    }
}

/// Last chunk of its reply.
pub const REPLY_FLAG_DONE: u16 = 1;

/// Bytes of a request header.
pub const REQUEST_HEADER_LEN: usize = 28;

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Flags.
    pub flags: CommandFlags,
    /// What is asked.
    pub command: Command,
    /// Opaque; comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The first four bytes of a request are not its magic number: the stream is out of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request magic is {0:#010x}")]
pub struct BadMagic(pub u32);

impl RequestHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`BadMagic`]; every other value is representable.
    pub fn parse(bytes: &[u8; REQUEST_HEADER_LEN]) -> Result<Self, BadMagic> {
        let magic = u32::from_be_bytes(array(bytes, 0));
        if magic != REQUEST_MAGIC {
            return Err(BadMagic(magic));
        }
        Ok(Self {
            flags: CommandFlags(u16::from_be_bytes(array(bytes, 4))),
            command: Command(u16::from_be_bytes(array(bytes, 6))),
            cookie: u64::from_be_bytes(array(bytes, 8)),
            offset: u64::from_be_bytes(array(bytes, 16)),
            length: u32::from_be_bytes(array(bytes, 24)),
        })
    }

    /// Writes the header, as a client does.
    pub fn to_bytes(&self) -> [u8; REQUEST_HEADER_LEN] {
        let mut bytes = [0; REQUEST_HEADER_LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.0.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// `N` bytes of `bytes` from `at`; the caller's ranges are constants within a constant size.
fn array<const N: usize>(bytes: &[u8; REQUEST_HEADER_LEN], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

/// Bytes of a simple reply.
pub const SIMPLE_REPLY_LEN: usize = 16;

/// The header of a simple reply; no error is 0.
pub fn simple_reply(error: Option<ErrorCode>, cookie: u64) -> [u8; SIMPLE_REPLY_LEN] {
    let mut bytes = [0; SIMPLE_REPLY_LEN];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, |e| e.0).to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Bytes of the header of a structured reply chunk.
pub const CHUNK_HEADER_LEN: usize = 20;

/// The header of the last (here always the only) chunk of a structured reply.
pub fn chunk_header(kind: ChunkType, cookie: u64, length: u32) -> [u8; CHUNK_HEADER_LEN] {
    let mut bytes = [0; CHUNK_HEADER_LEN];
    bytes[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&REPLY_FLAG_DONE.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.0.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The header of a chunk as a client gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Last chunk of its reply.
    pub done: bool,
    /// What it carries.
    pub kind: ChunkType,
    /// The request's.
    pub cookie: u64,
    /// Bytes that follow.
    pub length: u32,
}

impl ChunkHeader {
    /// Bytes of the header behind its magic number.
    pub const LEN: usize = CHUNK_HEADER_LEN - 4;

    /// Reads what follows the magic number.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [f0, f1, k0, k1, c0, c1, c2, c3, c4, c5, c6, c7, l0, l1, l2, l3] = *bytes;
        Self {
            done: u16::from_be_bytes([f0, f1]) & REPLY_FLAG_DONE != 0,
            kind: ChunkType(u16::from_be_bytes([k0, k1])),
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }
}

/// A simple reply as a client gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// `None` is success.
    pub error: Option<ErrorCode>,
    /// The request's.
    pub cookie: u64,
}

impl SimpleReply {
    /// Bytes of the reply behind its magic number.
    pub const LEN: usize = SIMPLE_REPLY_LEN - 4;

    /// Reads what follows the magic number.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [e0, e1, e2, e3, c0, c1, c2, c3, c4, c5, c6, c7] = *bytes;
        let error = u32::from_be_bytes([e0, e1, e2, e3]);
        Self {
            error: (error != 0).then_some(ErrorCode(error)),
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        }
    }
}

/// Appends a reply to an option.
pub fn put_option_reply(out: &mut Vec<u8>, option: OptionCode, reply: OptionReply, data: &[u8]) {
    // Replies are composed here, far below 4 GiB: names are at most STRING_LEN_MAX.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    out.extend_from_slice(&reply.0.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(data);
}

/// Takes big-endian fields off the front of a slice; says which one was missing.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

/// The data ended within a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {wanted} bytes wanted, {left} left")]
pub struct Missing {
    /// The field that could not be read.
    pub field: &'static str,
    /// Its length in bytes.
    pub wanted: usize,
    /// Bytes that were left.
    pub left: usize,
}

impl<'a> Fields<'a> {
    /// Takes `len` bytes.
    ///
    /// # Errors
    /// [`Missing`] names `field`.
    pub fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], Missing> {
        let left = self.0.len();
        let (head, tail) =
            self.0.split_at_checked(len).ok_or(Missing { field, wanted: len, left })?;
        self.0 = tail;
        Ok(head)
    }

    /// Takes `N` bytes as an array.
    ///
    /// # Errors
    /// [`Missing`] names `field`.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Missing> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(field, N)?);
        Ok(array)
    }

    /// Takes 16 bits.
    ///
    /// # Errors
    /// [`Missing`] names `field`.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, Missing> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    /// Takes 32 bits.
    ///
    /// # Errors
    /// [`Missing`] names `field`.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, Missing> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    /// Takes 64 bits.
    ///
    /// # Errors
    /// [`Missing`] names `field`.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, Missing> {
        Ok(u64::from_be_bytes(self.array(field)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn request_headers_survive_a_round_trip(
            flags: u16, command: u16, cookie: u64, offset: u64, length: u32,
        ) {
            let header = RequestHeader {
                flags: CommandFlags(flags), command: Command(command), cookie, offset, length,
            };
            prop_assert_eq!(RequestHeader::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn unknown_codes_print_in_hex() {
        assert_eq!(format!("{:?}", OptionCode::GO), "GO");
        assert_eq!(format!("{:?}", Command(0x1234)), "Command(0x1234)");
    }

    #[test]
    fn the_missing_field_is_named() {
        let missing = Fields(&[1, 2]).u32("export name length").unwrap_err();
        assert_eq!(missing.to_string(), "export name length: 4 bytes wanted, 2 left");
    }
}
