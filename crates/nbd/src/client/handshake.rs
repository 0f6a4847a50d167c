//! The client's side of the NBD handshake (fixed newstyle): bytes in, bytes out.
//!
//! Asks for structured replies, `base:allocation` and block sizes, and does without what a server
//! does not know. Knows no socket and no clock. Section "Fixed newstyle negotiation" and "Option
//! types" of doc/proto.md. Not here: TLS, oldstyle servers.

use crate::wire::{
    ALLOCATION_CONTEXT, Fields, HandshakeFlags, INIT_PASSWD, InfoType, Missing, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionCode, OptionReply, TransmissionFlags,
};

/// Longest data of a reply in bytes: a name of 4096 bytes and its description are far below.
pub const REPLY_LEN_MAX: u32 = 64 << 10;

/// Most replies to all options together: there are about ten.
pub const REPLIES_MAX: u32 = 256;

/// Longest payload in bytes that may be sent where nothing is agreed on ("Size constraints"), and
/// the longest that is sent in any case.
pub const PAYLOAD_LEN_MAX: u32 = 32 << 20;

/// Follows INIT_PASSWD where a server speaks oldstyle.
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Zeroes after the reply to EXPORT_NAME from servers without NO_ZEROES.
const EXPORT_NAME_PADDING: usize = 124;

/// Longest text of a server that is told to users, in bytes.
const TEXT_LEN_MAX: usize = 512;

/// The export and the connection as agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Capacity in bytes.
    pub size: u64,
    /// What the export can do.
    pub flags: TransmissionFlags,
    /// Smallest unit in bytes, a power of two up to 64 KiB.
    pub block_size_minimum: u32,
    /// Best unit in bytes, a power of two, at least the smallest one.
    pub block_size_preferred: u32,
    /// Longest payload of a request in bytes: a multiple of the smallest unit.
    pub payload_len_max: u32,
    /// READ is answered by structured replies.
    pub structured_replies: bool,
    /// The number of `base:allocation` in replies to BLOCK_STATUS.
    pub allocation_context: Option<u32>,
}

/// What is to be done after [`Handshake::handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The input holds no complete message: call again with more. Nothing was consumed.
    Incomplete,
    /// A message was handled; there may be another one in the input.
    Continue,
    /// Requests may be sent.
    Ready(Agreed),
}

/// Why a server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// It does not begin as NBD servers do.
    #[error("this is no NBD server: it begins with {0:#018x}")]
    NotNbd(u64),
    /// A server from before 2011.
    #[error("the server speaks NBD's {0}; fixed newstyle is needed")]
    TooOld(&'static str),
    /// The stream is out of step.
    #[error("the magic number of a reply is {0:#018x}")]
    BadMagic(u64),
    /// The reply belongs to another option.
    #[error("a reply to {got:?} came where {wanted:?} was asked")]
    WrongOption {
        /// What was asked.
        wanted: OptionCode,
        /// What was answered.
        got: OptionCode,
    },
    /// The reply is longer than [`REPLY_LEN_MAX`].
    #[error("a reply to {option:?} has {length} bytes, {REPLY_LEN_MAX} are allowed")]
    ReplyTooLong {
        /// The option.
        option: OptionCode,
        /// Its length.
        length: u32,
    },
    /// More than [`REPLIES_MAX`] replies.
    #[error("more than {REPLIES_MAX} replies to options")]
    TooManyReplies,
    /// The reply ends within a field.
    #[error("a reply to {option:?}: {missing}")]
    Malformed {
        /// The option.
        option: OptionCode,
        /// What is missing.
        missing: Missing,
    },
    /// The server wants TLS first.
    #[error("the server wants TLS, which is not supported")]
    TlsRequired,
    /// There is no such export.
    #[error("the server has no export named {export:?}{}", told(.text))]
    UnknownExport {
        /// What was asked for.
        export: String,
        /// What the server says.
        text: String,
    },
    /// Another refusal.
    #[error("the server refuses {option:?} with {code:?}{}", told(.text))]
    Refused {
        /// The option.
        option: OptionCode,
        /// Why.
        code: OptionReply,
        /// What the server says.
        text: String,
    },
    /// GO was acknowledged without saying how large the export is.
    #[error("the server did not describe the export")]
    NotDescribed,
    /// The server contradicts the protocol.
    #[error(
        "the server's block sizes make no sense: {minimum} to {maximum} bytes, best {preferred}"
    )]
    BlockSizes {
        /// Smallest.
        minimum: u32,
        /// Best.
        preferred: u32,
        /// Largest.
        maximum: u32,
    },
}

/// What a server says, behind what we say.
pub(super) fn told(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// What is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Greeting,
    StructuredReply,
    MetaContext,
    Go,
    ExportName,
}

/// The state of one handshake: call [`handle`](Self::handle) with what has been received, and send
/// what it appends to the output, until it is `Ready`.
#[derive(Debug)]
pub struct Handshake {
    export: String,
    awaited: Awaited,
    no_zeroes: bool,
    replies: u32,
    structured_replies: bool,
    allocation_context: Option<u32>,
    described: Option<(u64, TransmissionFlags)>,
    block_sizes: Option<[u32; 3]>,
}

impl Handshake {
    /// For this export; the empty name is the server's default.
    pub fn new(export: impl Into<String>) -> Self {
        Self {
            export: export.into(),
            awaited: Awaited::Greeting,
            no_zeroes: false,
            replies: 0,
            structured_replies: false,
            allocation_context: None,
            described: None,
            block_sizes: None,
        }
    }

    /// Handles at most one message at the front of `input`, appends what is to be sent to `output`,
    /// and returns how many bytes of `input` were used.
    ///
    /// # Errors
    /// [`HandshakeError`]: close the connection.
    pub fn handle(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Progress), HandshakeError> {
        let option = match self.awaited {
            Awaited::Greeting => return self.greeting(input, output),
            Awaited::ExportName => return self.export_name(input),
            Awaited::StructuredReply => OptionCode::STRUCTURED_REPLY,
            Awaited::MetaContext => OptionCode::SET_META_CONTEXT,
            Awaited::Go => OptionCode::GO,
        };
        let mut fields = Fields(input);
        let Ok((magic, got, kind, length)) = reply_header(&mut fields) else {
            return Ok((0, Progress::Incomplete));
        };
        if magic != OPTION_REPLY_MAGIC {
            return Err(HandshakeError::BadMagic(magic));
        }
        if got != option {
            return Err(HandshakeError::WrongOption { wanted: option, got });
        }
        if length > REPLY_LEN_MAX {
            return Err(HandshakeError::ReplyTooLong { option, length });
        }
        let Ok(data) = fields.bytes("reply data", length as usize) else {
            return Ok((0, Progress::Incomplete));
        };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(HandshakeError::TooManyReplies);
        }
        let progress = self.reply(option, kind, data, output)?;
        Ok((input.len() - fields.0.len(), progress))
    }

    fn greeting(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Progress), HandshakeError> {
        let mut fields = Fields(input);
        let Ok(password) = fields.u64("greeting") else { return Ok((0, Progress::Incomplete)) };
        if password != INIT_PASSWD {
            return Err(HandshakeError::NotNbd(password));
        }
        let Ok(magic) = fields.u64("greeting") else { return Ok((0, Progress::Incomplete)) };
        match magic {
            OPTION_MAGIC => {}
            OLDSTYLE_MAGIC => return Err(HandshakeError::TooOld("oldstyle")),
            other => return Err(HandshakeError::NotNbd(other)),
        }
        let Ok(flags) = fields.u16("flags") else { return Ok((0, Progress::Incomplete)) };
        let flags = HandshakeFlags(flags);
        if !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            return Err(HandshakeError::TooOld("newstyle without options"));
        }
        self.no_zeroes = flags.contains(HandshakeFlags::NO_ZEROES);
        let ours =
            HandshakeFlags::FIXED_NEWSTYLE.with_if(self.no_zeroes, HandshakeFlags::NO_ZEROES);
        output.extend_from_slice(&u32::from(ours.0).to_be_bytes());
        put_option(output, OptionCode::STRUCTURED_REPLY, &[]);
        self.awaited = Awaited::StructuredReply;
        Ok((input.len() - fields.0.len(), Progress::Continue))
    }

    fn reply(
        &mut self,
        option: OptionCode,
        kind: OptionReply,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Progress, HandshakeError> {
        let malformed = |missing| HandshakeError::Malformed { option, missing };
        match self.awaited {
            _ if kind == OptionReply::ERR_TLS_REQD => return Err(HandshakeError::TlsRequired),
            Awaited::StructuredReply => {
                self.structured_replies = kind == OptionReply::ACK;
                match self.structured_replies {
                    true => self.ask_for_context(output),
                    false => self.go(output),
                }
            }
            Awaited::MetaContext if kind == OptionReply::META_CONTEXT => {
                let mut fields = Fields(data);
                let id = fields.u32("number of the context").map_err(malformed)?;
                if fields.0 == ALLOCATION_CONTEXT.as_bytes() {
                    self.allocation_context = Some(id);
                }
            }
            Awaited::MetaContext => {
                if kind != OptionReply::ACK {
                    self.allocation_context = None;
                }
                self.go(output);
            }
            _ if kind == OptionReply::INFO => self.info(data).map_err(malformed)?,
            _ if kind == OptionReply::ACK => return self.agreed().map(Progress::Ready),
            _ if kind == OptionReply::ERR_UNSUP => {
                put_option(output, OptionCode::EXPORT_NAME, self.export.as_bytes());
                self.awaited = Awaited::ExportName;
            }
            _ => return Err(self.refused(option, kind, data)),
        }
        Ok(Progress::Continue)
    }

    fn ask_for_context(&mut self, output: &mut Vec<u8>) {
        let mut data = string_with_length(&self.export);
        data.extend_from_slice(&1u32.to_be_bytes());
        data.extend_from_slice(&string_with_length(ALLOCATION_CONTEXT));
        put_option(output, OptionCode::SET_META_CONTEXT, &data);
        self.awaited = Awaited::MetaContext;
    }

    fn go(&mut self, output: &mut Vec<u8>) {
        let mut data = string_with_length(&self.export);
        data.extend_from_slice(&1u16.to_be_bytes());
        data.extend_from_slice(&InfoType::BLOCK_SIZE.0.to_be_bytes());
        put_option(output, OptionCode::GO, &data);
        self.awaited = Awaited::Go;
    }

    fn info(&mut self, data: &[u8]) -> Result<(), Missing> {
        let mut fields = Fields(data);
        match InfoType(fields.u16("type of information")?) {
            InfoType::EXPORT => {
                let size = fields.u64("size of the export")?;
                let flags = TransmissionFlags(fields.u16("transmission flags")?);
                self.described = Some((size, flags));
            }
            InfoType::BLOCK_SIZE => {
                let minimum = fields.u32("minimum block size")?;
                let preferred = fields.u32("preferred block size")?;
                self.block_sizes = Some([minimum, preferred, fields.u32("maximum block size")?]);
            }
            // Names and descriptions are for people.
            _ => {}
        }
        Ok(())
    }

    fn refused(&self, option: OptionCode, code: OptionReply, text: &[u8]) -> HandshakeError {
        let text = printable(text, TEXT_LEN_MAX);
        match code {
            OptionReply::ERR_UNKNOWN => {
                HandshakeError::UnknownExport { export: self.export.clone(), text }
            }
            code => HandshakeError::Refused { option, code, text },
        }
    }

    fn export_name(&mut self, input: &[u8]) -> Result<(usize, Progress), HandshakeError> {
        let mut fields = Fields(input);
        let padding = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING };
        let (Ok(size), Ok(flags), Ok(_)) = (
            fields.u64("size of the export"),
            fields.u16("transmission flags"),
            fields.bytes("padding", padding),
        ) else {
            return Ok((0, Progress::Incomplete));
        };
        self.described = Some((size, TransmissionFlags(flags)));
        Ok((input.len() - fields.0.len(), Progress::Ready(self.agreed()?)))
    }

    fn agreed(&self) -> Result<Agreed, HandshakeError> {
        let (size, flags) = self.described.ok_or(HandshakeError::NotDescribed)?;
        let [minimum, preferred, maximum] = self.block_sizes.unwrap_or([1, 4096, PAYLOAD_LEN_MAX]);
        let payload_len_max = maximum.min(PAYLOAD_LEN_MAX) / minimum.max(1) * minimum.max(1);
        if !minimum.is_power_of_two() || minimum > 1 << 16 || payload_len_max == 0 {
            return Err(HandshakeError::BlockSizes { minimum, preferred, maximum });
        }
        let is_sensible = preferred.is_power_of_two() && preferred >= minimum;
        Ok(Agreed {
            size,
            flags,
            block_size_minimum: minimum,
            block_size_preferred: if is_sensible { preferred } else { minimum.max(4096) },
            payload_len_max,
            structured_replies: self.structured_replies,
            allocation_context: self.allocation_context,
        })
    }
}

fn reply_header(fields: &mut Fields<'_>) -> Result<(u64, OptionCode, OptionReply, u32), Missing> {
    let magic = fields.u64("reply magic")?;
    let option = OptionCode(fields.u32("option")?);
    let kind = OptionReply(fields.u32("type of reply")?);
    Ok((magic, option, kind, fields.u32("length of the reply")?))
}

fn put_option(output: &mut Vec<u8>, option: OptionCode, data: &[u8]) {
    // Composed here of names up to STRING_LEN_MAX.
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    output.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    output.extend_from_slice(&option.0.to_be_bytes());
    output.extend_from_slice(&length.to_be_bytes());
    output.extend_from_slice(data);
}

fn string_with_length(string: &str) -> Vec<u8> {
    // Names are at most STRING_LEN_MAX, which `Url` has checked.
    let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), string.as_bytes()].concat()
}

/// What a server says, cut, without what could steer a terminal.
pub(super) fn printable(text: &[u8], len_max: usize) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(len_max)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put_option_reply;

    const FLAGS: TransmissionFlags =
        TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_FLUSH);

    fn greeting(flags: u16) -> Vec<u8> {
        let flags = flags.to_be_bytes();
        [&INIT_PASSWD.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &flags].concat()
    }

    fn reply(option: OptionCode, kind: OptionReply, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_option_reply(&mut bytes, option, kind, data);
        bytes
    }

    fn described(block_sizes: Option<[u32; 3]>) -> Vec<u8> {
        let kind = InfoType::EXPORT.0.to_be_bytes();
        let export = [&kind[..], &8192u64.to_be_bytes(), &FLAGS.0.to_be_bytes()].concat();
        let mut bytes = reply(OptionCode::GO, OptionReply::INFO, &export);
        if let Some(sizes) = block_sizes {
            let kind = InfoType::BLOCK_SIZE.0.to_be_bytes();
            let sizes = sizes.map(u32::to_be_bytes);
            let info = [&kind[..], sizes.as_flattened()].concat();
            bytes.extend(reply(OptionCode::GO, OptionReply::INFO, &info));
        }
        bytes.extend(reply(OptionCode::GO, OptionReply::ACK, &[]));
        bytes
    }

    /// What a server says, byte by byte; what was agreed, and what was asked for.
    fn run(said: &[&[u8]]) -> Result<(Option<Agreed>, Vec<u8>), HandshakeError> {
        let mut handshake = Handshake::new("disk");
        let (mut input, mut output) = (Vec::new(), Vec::new());
        for byte in said.concat() {
            input.push(byte);
            let (used, progress) = handshake.handle(&input, &mut output)?;
            assert_eq!(used == 0, progress == Progress::Incomplete);
            input.drain(..used);
            if let Progress::Ready(agreed) = progress {
                return Ok((Some(agreed), output));
            }
        }
        Ok((None, output))
    }

    #[test]
    fn a_server_that_knows_everything_is_asked_for_everything() {
        let context = [&7u32.to_be_bytes()[..], ALLOCATION_CONTEXT.as_bytes()].concat();
        let (agreed, asked) = run(&[
            &greeting(3),
            &reply(OptionCode::STRUCTURED_REPLY, OptionReply::ACK, &[]),
            &reply(OptionCode::SET_META_CONTEXT, OptionReply::META_CONTEXT, &context),
            &reply(OptionCode::SET_META_CONTEXT, OptionReply::ACK, &[]),
            &described(Some([512, 4096, 1 << 20])),
        ])
        .unwrap();
        let agreed = agreed.unwrap();
        assert_eq!((agreed.size, agreed.flags), (8192, FLAGS));
        assert_eq!((agreed.block_size_minimum, agreed.payload_len_max), (512, 1 << 20));
        assert_eq!((agreed.structured_replies, agreed.allocation_context), (true, Some(7)));
        assert_eq!(asked[..4], 3u32.to_be_bytes());
        assert!(asked.windows(4).any(|name| name == b"disk"));
    }

    #[test]
    fn a_server_that_knows_nothing_will_do() {
        let refused = |option| reply(option, OptionReply::ERR_UNSUP, b"no");
        let end = [&8192u64.to_be_bytes()[..], &FLAGS.0.to_be_bytes()].concat();
        for (flags, padding) in [(3, 0), (1, EXPORT_NAME_PADDING)] {
            let (agreed, _) = run(&[
                &greeting(flags),
                &refused(OptionCode::STRUCTURED_REPLY),
                &refused(OptionCode::GO),
                &end,
                &vec![0; padding],
            ])
            .unwrap();
            let agreed = agreed.expect("not before the padding, and with it");
            assert_eq!((agreed.structured_replies, agreed.block_size_minimum), (false, 1));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let plain = reply(OptionCode::STRUCTURED_REPLY, OptionReply::ERR_UNSUP, &[]);
        let go = |kind, text: &[u8]| {
            let said = [greeting(3), plain.clone(), reply(OptionCode::GO, kind, text)].concat();
            run(&[&said]).unwrap_err().to_string()
        };
        let sized = |sizes| run(&[&greeting(3), &plain, &described(Some(sizes))]);
        let old = [&INIT_PASSWD.to_be_bytes()[..], &OLDSTYLE_MAGIC.to_be_bytes()].concat();
        assert_eq!(run(&[&old]), Err(HandshakeError::TooOld("oldstyle")));
        assert!(matches!(run(&[&greeting(0)]), Err(HandshakeError::TooOld(_))));
        assert!(matches!(run(&[b"SSH-2.0-OpenSSH"]), Err(HandshakeError::NotNbd(_))));
        assert!(go(OptionReply::ERR_TLS_REQD, b"").contains("TLS"));
        assert_eq!(
            go(OptionReply::ERR_UNKNOWN, b"try\x1b disk2"),
            "the server has no export named \"disk\": try  disk2"
        );
        assert!(go(OptionReply(0x8000_0002), b"").contains("OptionReply(0x80000002)"));
        assert!(go(OptionReply::ACK, b"").contains("did not describe"));
        for sizes in [[3, 4096, 8192], [0, 1, 2], [512, 512, 0], [1 << 17, 1 << 17, 1 << 20]] {
            assert!(matches!(sized(sizes), Err(HandshakeError::BlockSizes { .. })), "{sizes:?}");
        }
        assert_eq!(sized([512, 100, u32::MAX]).unwrap().0.unwrap().block_size_preferred, 4096);
        let mut long = reply(OptionCode::STRUCTURED_REPLY, OptionReply::ACK, &[]);
        long[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        let too_long = run(&[&greeting(3), &long]);
        assert!(matches!(too_long, Err(HandshakeError::ReplyTooLong { .. })));
        let strange = reply(OptionCode::LIST, OptionReply::ACK, &[]);
        let wrong = run(&[&greeting(3), &strange]);
        assert!(matches!(wrong, Err(HandshakeError::WrongOption { .. })));
        let info = reply(OptionCode::GO, OptionReply::INFO, &[0, 0, 1]);
        let short = run(&[&greeting(3), &plain, &info]);
        assert!(matches!(short, Err(HandshakeError::Malformed { .. })));
        let name = reply(OptionCode::GO, OptionReply::INFO, &[0, 1]);
        let endless = vec![name.as_slice(); REPLIES_MAX as usize + 1].concat();
        assert_eq!(run(&[&greeting(3), &plain, &endless]), Err(HandshakeError::TooManyReplies));
    }
}
