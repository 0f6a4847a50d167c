//! The transmission phase without I/O: which requests are admitted, and what replies look like.
//!
//! Sections "Transmission", "Command flags", "Request types" and "Error values" of doc/proto.md.

use block::{BlockError, DeviceInfo, Extent};
use nbd::wire::{
    CHUNK_HEADER_LEN, ChunkType, Command, CommandFlags, ErrorCode, RequestHeader, STATE_HOLE,
    STATE_ZERO, TransmissionFlags, chunk_header, simple_reply,
};

use super::handshake::{ALLOCATION_CONTEXT_ID, Session};
use crate::byte_device::ReadData;

/// Longest payload of one request in bytes. The protocol asks for at least this much
/// ("Size constraints") where nothing else is agreed on.
pub(super) const PAYLOAD_LEN_MAX: u32 = 32 << 20;

/// Most extents in one reply to BLOCK_STATUS. The protocol allows 2^20; a client asks again for
/// the rest, and half a megabyte per reply is no burden.
const EXTENTS_MAX: usize = 1 << 16;

/// Set in the status of a hole: nothing is allocated, and it reads as zeroes.
const STATE_HOLE_ZERO: u32 = STATE_HOLE | STATE_ZERO;

/// A request that makes sense, to be handed to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    Zero { fua: bool, may_trim: bool },
    Cache,
    BlockStatus { one: bool },
    Disconnect,
}

/// Why a request fails: the code for the client's program, the text for its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: ErrorCode,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(super) fn shutdown() -> Self {
        Self::new(ErrorCode::ESHUTDOWN, "the server is shutting down")
    }
}

impl From<BlockError> for Refusal {
    fn from(error: BlockError) -> Self {
        let code = match error {
            BlockError::ReadOnly => ErrorCode::EPERM,
            BlockError::NoSpace => ErrorCode::ENOSPC,
            BlockError::OutOfRange { .. }
            | BlockError::Misaligned { .. }
            | BlockError::Unsupported(_) => ErrorCode::EINVAL,
            _ => ErrorCode::EIO,
        };
        Self::new(code, error.to_string())
    }
}

/// The transmission flags of a device, without those that depend on the handshake.
pub(super) fn transmission_flags(info: &DeviceInfo) -> TransmissionFlags {
    let writable = !info.read_only;
    TransmissionFlags::HAS_FLAGS
        .with(TransmissionFlags::SEND_CACHE)
        .with_if(info.read_only, TransmissionFlags::READ_ONLY)
        .with_if(info.can_flush, TransmissionFlags::SEND_FLUSH)
        .with_if(writable && can_fua(info), TransmissionFlags::SEND_FUA)
        .with_if(writable && info.can_trim, TransmissionFlags::SEND_TRIM)
        // Zeroes are better written here than sent by the client.
        .with_if(writable, TransmissionFlags::SEND_WRITE_ZEROES)
        .with_if(writable, TransmissionFlags::SEND_FAST_ZERO)
        .with_if(info.can_multi_conn, TransmissionFlags::CAN_MULTI_CONN)
}

/// FUA is kept either by the device or by a flush after the write.
fn can_fua(info: &DeviceInfo) -> bool {
    info.can_fua || info.can_flush
}

/// Bytes that follow the header of a request.
pub(super) fn payload_len(header: &RequestHeader) -> u32 {
    if header.command == Command::WRITE { header.length } else { 0 }
}

/// Bytes of memory that a request needs until its reply is sent.
pub(super) fn memory_len(header: &RequestHeader) -> u32 {
    match header.command {
        Command::READ | Command::WRITE => header.length.min(PAYLOAD_LEN_MAX),
        Command::CACHE => cache_len(header),
        _ => 0,
    }
}

/// Bytes of a CACHE request that are read: it is advice, so its first part will do.
pub(super) fn cache_len(header: &RequestHeader) -> u32 {
    header.length.min(PAYLOAD_LEN_MAX)
}

/// Decides whether a request is carried out.
pub(super) fn admit(
    header: &RequestHeader,
    session: &Session,
    info: &DeviceInfo,
) -> Result<Action, Refusal> {
    let fua = header.flags.contains(CommandFlags::FUA);
    let offered = transmission_flags(info);
    let (action, flags, offered_by) = match header.command {
        Command::READ if session.structured_replies => {
            (Action::Read, CommandFlags::DF, TransmissionFlags::HAS_FLAGS)
        }
        Command::READ => (Action::Read, CommandFlags(0), TransmissionFlags::HAS_FLAGS),
        Command::WRITE => (Action::Write { fua }, CommandFlags(0), TransmissionFlags::HAS_FLAGS),
        Command::DISC => return Ok(Action::Disconnect),
        Command::FLUSH => (Action::Flush, CommandFlags(0), TransmissionFlags::SEND_FLUSH),
        Command::TRIM => (Action::Trim { fua }, CommandFlags(0), TransmissionFlags::SEND_TRIM),
        Command::CACHE => (Action::Cache, CommandFlags(0), TransmissionFlags::SEND_CACHE),
        Command::WRITE_ZEROES => (
            Action::Zero { fua, may_trim: !header.flags.contains(CommandFlags::NO_HOLE) },
            CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            TransmissionFlags::SEND_WRITE_ZEROES,
        ),
        Command::BLOCK_STATUS if session.allocation_context && header.length == 0 => {
            return Err(Refusal::new(ErrorCode::EINVAL, "an empty range has no extents"));
        }
        Command::BLOCK_STATUS if session.allocation_context => {
            let one = header.flags.contains(CommandFlags::REQ_ONE);
            let flags = CommandFlags::REQ_ONE;
            (Action::BlockStatus { one }, flags, TransmissionFlags::HAS_FLAGS)
        }
        Command::BLOCK_STATUS => {
            return Err(Refusal::new(ErrorCode::EINVAL, "no metadata context was chosen"));
        }
        other => return Err(Refusal::new(ErrorCode::EINVAL, format!("unknown command {other:?}"))),
    };
    // Clients are known to set FUA on commands that write nothing; the server ignores it there.
    let flags = flags.with_if(can_fua(info), CommandFlags::FUA);
    let surplus = header.flags.without(flags);
    if surplus != CommandFlags(0) {
        let text = format!("flags {:#x} do not belong to {:?}", surplus.0, header.command);
        return Err(Refusal::new(ErrorCode::EINVAL, text));
    }
    if matches!(action, Action::Write { .. } | Action::Trim { .. } | Action::Zero { .. })
        && info.read_only
    {
        return Err(BlockError::ReadOnly.into());
    }
    if !offered.contains(offered_by) {
        let text = format!("{:?} is not supported", header.command);
        return Err(Refusal::new(ErrorCode::EINVAL, text));
    }
    if action != Action::Flush {
        admit_range(header, action, session, info)?;
    }
    Ok(action)
}

fn admit_range(
    header: &RequestHeader,
    action: Action,
    session: &Session,
    info: &DeviceInfo,
) -> Result<(), Refusal> {
    let RequestHeader { offset, length, .. } = *header;
    let len = u64::from(length);
    if offset.checked_add(len).is_none_or(|end| end > info.size) {
        // Past the end is "no space" for what writes, else an invalid argument.
        let writes = matches!(action, Action::Write { .. } | Action::Zero { .. });
        let code = if writes { ErrorCode::ENOSPC } else { ErrorCode::EINVAL };
        let text = BlockError::OutOfRange { offset, len, size: info.size }.to_string();
        return Err(Refusal::new(code, text));
    }
    if action == Action::Read && length > PAYLOAD_LEN_MAX {
        let code =
            if session.structured_replies { ErrorCode::EOVERFLOW } else { ErrorCode::EINVAL };
        return Err(Refusal::new(code, format!("{length} bytes are more than {PAYLOAD_LEN_MAX}")));
    }
    // Clients that did not ask for the block sizes may use any; parts of blocks work, slowly.
    if session.block_sizes_known {
        info.check(offset, len)?;
    }
    if header.flags.contains(CommandFlags::FAST_ZERO) && !info.can_zero {
        let text = "zeroing is as slow as writing";
        return Err(Refusal::new(ErrorCode::ENOTSUP, text));
    }
    Ok(())
}

/// Longest head of a reply: chunk header, offset and length of a hole.
const HEAD_LEN_MAX: usize = CHUNK_HEADER_LEN + 8 + 4;

/// A reply as the pieces that go to the socket: head and body are never joined by a copy.
pub(super) struct Reply {
    head: [u8; HEAD_LEN_MAX],
    head_len: usize,
    body: Body,
}

enum Body {
    None,
    Data(ReadData),
    Text(Vec<u8>),
}

impl Reply {
    fn of(head: &[&[u8]], body: Body) -> Self {
        let mut reply = Self { head: [0; HEAD_LEN_MAX], head_len: 0, body };
        for part in head {
            let end = reply.head_len + part.len();
            reply.head[reply.head_len..end].copy_from_slice(part);
            reply.head_len = end;
        }
        reply
    }

    /// Success without a payload.
    pub(super) fn done(header: &RequestHeader) -> Self {
        // Also where structured replies are negotiated: allowed for all but READ, and shorter.
        Self::of(&[&simple_reply(None, header.cookie)], Body::None)
    }

    pub(super) fn refused(header: &RequestHeader, session: &Session, refusal: &Refusal) -> Self {
        if !session.structured_replies {
            return Self::of(&[&simple_reply(Some(refusal.code), header.cookie)], Body::None);
        }
        let text = shortened(&refusal.text).as_bytes();
        let mut payload = refusal.code.0.to_be_bytes().to_vec();
        payload.extend_from_slice(&(text.len() as u16).to_be_bytes());
        payload.extend_from_slice(text);
        let chunk = chunk_header(ChunkType::ERROR, header.cookie, payload.len() as u32);
        Self::of(&[&chunk], Body::Text(payload))
    }

    pub(super) fn data(header: &RequestHeader, session: &Session, data: ReadData) -> Self {
        let cookie = header.cookie;
        if !session.structured_replies {
            return Self::of(&[&simple_reply(None, cookie)], Body::Data(data));
        }
        let offset = header.offset.to_be_bytes();
        let len = data.len() as u32;
        if data.is_empty() {
            Self::of(&[&chunk_header(ChunkType::NONE, cookie, 0)], Body::None)
        } else if is_zero(&data) {
            let chunk = chunk_header(ChunkType::OFFSET_HOLE, cookie, 8 + 4);
            Self::of(&[&chunk, &offset, &len.to_be_bytes()], Body::None)
        } else {
            let chunk = chunk_header(ChunkType::OFFSET_DATA, cookie, 8 + len);
            Self::of(&[&chunk, &offset], Body::Data(data))
        }
    }

    pub(super) fn block_status(header: &RequestHeader, extents: &[Extent], one: bool) -> Self {
        let mut payload = ALLOCATION_CONTEXT_ID.to_be_bytes().to_vec();
        for extent in extents.iter().take(if one { 1 } else { EXTENTS_MAX }) {
            // Within the request, whose length has 32 bits.
            let status = if extent.hole { STATE_HOLE_ZERO } else { 0 };
            payload.extend_from_slice(&(extent.len as u32).to_be_bytes());
            payload.extend_from_slice(&status.to_be_bytes());
        }
        let chunk = chunk_header(ChunkType::BLOCK_STATUS, header.cookie, payload.len() as u32);
        Self::of(&[&chunk], Body::Text(payload))
    }

    /// The bytes to send, in order.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        let body = match &self.body {
            Body::None => &[],
            Body::Data(data) => &**data,
            Body::Text(text) => text.as_slice(),
        };
        [&self.head[..self.head_len], body]
    }
}

/// A text as long as its 16-bit length and common sense allow; the protocol's limit is 4096.
fn shortened(text: &str) -> &str {
    const TEXT_LEN_MAX: usize = 1024;
    let mut end = text.len().min(TEXT_LEN_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Whether all bytes are zero. Data usually shows in the first step, so that only holes are
/// scanned as a whole, and a scan is cheaper than sending them.
fn is_zero(data: &[u8]) -> bool {
    const STEP: usize = 256;
    let steps = data.chunks_exact(STEP);
    let rest = steps.remainder();
    // Without a branch per byte, which the compiler turns into wide instructions.
    let zero = |part: &[u8]| part.iter().fold(0, |bits, byte| bits | byte) == 0;
    zero(rest) && { steps }.all(zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRUCTURED: Session =
        Session { structured_replies: true, allocation_context: true, block_sizes_known: true };

    fn request(command: Command, flags: CommandFlags, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: 7, offset, length }
    }

    fn code(header: &RequestHeader, session: &Session, info: &DeviceInfo) -> Option<ErrorCode> {
        admit(header, session, info).err().map(|refusal| refusal.code)
    }

    #[test]
    fn errors_are_those_of_the_protocol() {
        let none = CommandFlags(0);
        let mut info = DeviceInfo::new(1 << 30, 512);
        let past = |command| request(command, none, (1 << 30) - 512, 1024);
        let check = |header, info: &DeviceInfo| code(&header, &STRUCTURED, info);
        assert_eq!(check(past(Command::READ), &info), Some(ErrorCode::EINVAL));
        assert_eq!(check(past(Command::WRITE), &info), Some(ErrorCode::ENOSPC));
        assert_eq!(check(past(Command::WRITE_ZEROES), &info), Some(ErrorCode::ENOSPC));
        assert_eq!(check(past(Command::BLOCK_STATUS), &info), Some(ErrorCode::EINVAL));
        let wraps = request(Command::READ, none, u64::MAX - 511, 1024);
        assert_eq!(check(wraps, &info), Some(ErrorCode::EINVAL));
        let odd = request(Command::WRITE, none, 1, 512);
        assert_eq!(check(odd, &info), Some(ErrorCode::EINVAL));
        assert_eq!(code(&odd, &Session::default(), &info), None, "no block size was promised");
        let long = request(Command::READ, none, 0, PAYLOAD_LEN_MAX + 512);
        assert_eq!(check(long, &info), Some(ErrorCode::EOVERFLOW));
        assert_eq!(code(&long, &Session::default(), &info), Some(ErrorCode::EINVAL));
        assert_eq!(check(request(Command(99), none, 0, 0), &info), Some(ErrorCode::EINVAL));
        let fast = request(Command::WRITE_ZEROES, CommandFlags::FAST_ZERO, 0, 512);
        assert_eq!(check(fast, &info), Some(ErrorCode::ENOTSUP));
        info.can_zero = true;
        assert_eq!(check(fast, &info), None);
        let trim = request(Command::TRIM, none, 0, 512);
        assert_eq!(check(trim, &info), Some(ErrorCode::EINVAL), "not offered");
        info.read_only = true;
        for command in [Command::WRITE, Command::WRITE_ZEROES, Command::TRIM] {
            let header = request(command, none, 0, 512);
            assert_eq!(check(header, &info), Some(ErrorCode::EPERM));
        }
    }

    #[test]
    fn flags_belong_to_their_command() {
        let mut info = DeviceInfo::new(1 << 30, 512);
        let check = |command, flags, session: &Session, info: &DeviceInfo| {
            code(&request(command, flags, 0, 512), session, info).is_none()
        };
        assert!(check(Command::READ, CommandFlags::DF, &STRUCTURED, &info));
        assert!(!check(Command::READ, CommandFlags::DF, &Session::default(), &info));
        assert!(!check(Command::WRITE, CommandFlags::NO_HOLE, &STRUCTURED, &info));
        assert!(!check(Command::WRITE, CommandFlags(0x8000), &STRUCTURED, &info));
        assert!(check(Command::READ, CommandFlags::FUA, &STRUCTURED, &info));
        info.can_flush = false;
        assert!(!check(Command::WRITE, CommandFlags::FUA, &STRUCTURED, &info));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened("short"), "short");
        assert_eq!(shortened(&"é".repeat(1000)).len(), 1024);
        assert_eq!(shortened(&"x".repeat(1023)).len(), 1023);
        assert_eq!(shortened(&format!("x{}", "é".repeat(1000))).len(), 1023);
    }

    #[test]
    fn zero_is_found_at_every_position() {
        let mut data = vec![0; 1000];
        assert!(is_zero(&data));
        for at in [0, 255, 256, 767, 768, 999] {
            data[at] = 1;
            assert!(!is_zero(&data), "byte {at}");
            data[at] = 0;
        }
    }
}
