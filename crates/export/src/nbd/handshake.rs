//! The server's side of the NBD handshake (fixed newstyle): bytes in, bytes out.
//!
//! Knows no socket, no clock and no device: the export is described by an [`Offer`]. Section
//! "Fixed newstyle negotiation" and "Option types" of doc/proto.md.

use nbd::wire::{
    ALLOCATION_CONTEXT, Fields, HandshakeFlags, INIT_PASSWD, InfoType, Missing, OPTION_MAGIC,
    OptionCode, OptionReply, STRING_LEN_MAX, TransmissionFlags, put_option_reply,
};

/// Longest data of an option in bytes. Enough for the longest export name and dozens of metadata
/// queries; a client that wants more wants our memory.
pub const OPTION_LEN_MAX: u32 = 64 << 10;

/// Most options one client may send. Real clients need about ten; without a limit one client
/// could keep a connection in the handshake and a core busy.
pub const OPTIONS_MAX: u32 = 256;

/// Identifies [`ALLOCATION_CONTEXT`], the only metadata context on offer, in replies to
/// BLOCK_STATUS.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// The export as the handshake describes it.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Canonical name; the empty name means this export, too.
    pub name: String,
    /// Capacity in bytes.
    pub size: u64,
    /// Transmission flags, without those that depend on the negotiation.
    pub flags: TransmissionFlags,
    /// Smallest unit in bytes.
    pub block_size_minimum: u32,
    /// Best unit in bytes.
    pub block_size_preferred: u32,
    /// Longest payload of a request in bytes.
    pub payload_len_max: u32,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// READ is answered by structured replies.
    pub structured_replies: bool,
    /// BLOCK_STATUS may be asked for `base:allocation`.
    pub allocation_context: bool,
    /// The client asked for the block sizes and so has promised to keep to them.
    pub block_sizes_known: bool,
}

/// What is to be done after [`Handshake::handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The input holds no complete message: call again with more. Nothing was consumed.
    Incomplete,
    /// A message was handled; there may be another one in the input.
    Continue,
    /// Send the output, then go on with requests.
    Transmission(Session),
    /// Send the output, then close.
    Closed,
}

/// Why a client cannot be served. All are reasons to close without a word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The client set a flag that was not offered.
    #[error("unknown client flags {0:#x}")]
    UnknownFlags(u32),
    /// The stream is out of step, or the client does not speak NBD.
    #[error("option magic is {0:#018x}")]
    BadMagic(u64),
    /// The option is longer than [`OPTION_LEN_MAX`].
    #[error("option {option:?} has {length} bytes of data, {OPTION_LEN_MAX} are allowed")]
    OptionTooLong {
        /// The option.
        option: OptionCode,
        /// Its length.
        length: u32,
    },
    /// The client sent more than [`OPTIONS_MAX`] options.
    #[error("more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// EXPORT_NAME has no way to report an error but to close.
    #[error("no export named {0:?}")]
    UnknownExport(String),
}

/// The state of one handshake.
///
/// Send [`greeting`](Self::greeting), then call [`handle`](Self::handle) with what has been
/// received until the outcome is `Transmission` or `Closed`.
#[derive(Debug)]
pub struct Handshake {
    offer: Offer,
    /// None until the client has sent its flags.
    client_flags: Option<HandshakeFlags>,
    options: u32,
    session: Session,
}

/// Bytes of an option before its data: magic, option, length.
const OPTION_HEADER_LEN: usize = 16;

/// Zeroes after the reply to EXPORT_NAME for clients without NO_ZEROES.
const EXPORT_NAME_PADDING: usize = 124;

const OFFERED_FLAGS: HandshakeFlags =
    HandshakeFlags::FIXED_NEWSTYLE.with(HandshakeFlags::NO_ZEROES);

impl Handshake {
    /// A handshake about to begin.
    pub fn new(offer: Offer) -> Self {
        Self { offer, client_flags: None, options: 0, session: Session::default() }
    }

    /// What the server sends first.
    pub fn greeting(&self) -> Vec<u8> {
        let mut greeting = Vec::with_capacity(18);
        greeting.extend_from_slice(&INIT_PASSWD.to_be_bytes());
        greeting.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        greeting.extend_from_slice(&OFFERED_FLAGS.0.to_be_bytes());
        greeting
    }

    /// Handles at most one message at the front of `input`, appends replies to `output`, and
    /// returns how many bytes of `input` were used.
    ///
    /// # Errors
    /// [`HandshakeError`]: close the connection.
    pub fn handle(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Outcome), HandshakeError> {
        let Some(client_flags) = self.client_flags else {
            return self.handle_client_flags(input);
        };
        let mut fields = Fields(input);
        let Ok((magic, option, length)) = option_header(&mut fields) else {
            return Ok((0, Outcome::Incomplete));
        };
        if magic != OPTION_MAGIC {
            return Err(HandshakeError::BadMagic(magic));
        }
        if length > OPTION_LEN_MAX {
            return Err(HandshakeError::OptionTooLong { option, length });
        }
        let Ok(data) = fields.bytes("option data", length as usize) else {
            return Ok((0, Outcome::Incomplete));
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(HandshakeError::TooManyOptions);
        }
        let outcome = self.handle_option(client_flags, option, data, output)?;
        Ok((OPTION_HEADER_LEN + data.len(), outcome))
    }

    fn handle_client_flags(&mut self, input: &[u8]) -> Result<(usize, Outcome), HandshakeError> {
        let Ok(flags) = Fields(input).u32("client flags") else {
            return Ok((0, Outcome::Incomplete));
        };
        if flags & !u32::from(OFFERED_FLAGS.0) != 0 {
            return Err(HandshakeError::UnknownFlags(flags));
        }
        // The offered flags fit into 16 bits, so nothing is cut off.
        self.client_flags = Some(HandshakeFlags(flags as u16));
        Ok((size_of::<u32>(), Outcome::Continue))
    }

    fn handle_option(
        &mut self,
        client_flags: HandshakeFlags,
        option: OptionCode,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, HandshakeError> {
        let mut reply = |kind, data: &[u8]| put_option_reply(output, option, kind, data);
        match option {
            OptionCode::EXPORT_NAME => return self.handle_export_name(client_flags, data, output),
            OptionCode::ABORT => {
                reply(OptionReply::ACK, &[]);
                return Ok(Outcome::Closed);
            }
            OptionCode::INFO | OptionCode::GO => return Ok(self.handle_info(option, data, output)),
            OptionCode::LIST_META_CONTEXT | OptionCode::SET_META_CONTEXT => {
                self.handle_meta_context(option, data, output);
            }
            OptionCode::LIST | OptionCode::STRUCTURED_REPLY if !data.is_empty() => {
                reply(OptionReply::ERR_INVALID, b"no data expected");
            }
            OptionCode::LIST => {
                reply(OptionReply::SERVER, &string_with_length(&self.offer.name));
                reply(OptionReply::ACK, &[]);
            }
            OptionCode::STRUCTURED_REPLY => {
                self.session.structured_replies = true;
                reply(OptionReply::ACK, &[]);
            }
            _ => reply(OptionReply::ERR_UNSUP, &[]),
        }
        Ok(Outcome::Continue)
    }

    fn handle_export_name(
        &mut self,
        client_flags: HandshakeFlags,
        name: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, HandshakeError> {
        if !self.is_our_export(name) {
            let shown = &name[..name.len().min(STRING_LEN_MAX)];
            let shown = String::from_utf8_lossy(shown).into_owned();
            return Err(HandshakeError::UnknownExport(shown));
        }
        output.extend_from_slice(&self.offer.size.to_be_bytes());
        output.extend_from_slice(&self.transmission_flags().0.to_be_bytes());
        if !client_flags.contains(HandshakeFlags::NO_ZEROES) {
            output.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        Ok(Outcome::Transmission(self.session))
    }

    fn handle_info(&mut self, option: OptionCode, data: &[u8], output: &mut Vec<u8>) -> Outcome {
        let (name, wanted) = match parse_info(data) {
            Ok(parsed) => parsed,
            Err(missing) => {
                let text = missing.to_string();
                put_option_reply(output, option, OptionReply::ERR_INVALID, text.as_bytes());
                return Outcome::Continue;
            }
        };
        if !self.is_our_export(name) {
            put_option_reply(output, option, OptionReply::ERR_UNKNOWN, b"no such export");
            return Outcome::Continue;
        }
        let mut info = |kind: InfoType, data: &[u8]| {
            let item = [&kind.0.to_be_bytes(), data].concat();
            put_option_reply(output, option, OptionReply::INFO, &item);
        };
        let flags = self.transmission_flags().0.to_be_bytes();
        info(InfoType::EXPORT, &[&self.offer.size.to_be_bytes(), flags.as_slice()].concat());
        if wanted.contains(&InfoType::NAME) {
            info(InfoType::NAME, self.offer.name.as_bytes());
        }
        let block_sizes_wanted = wanted.contains(&InfoType::BLOCK_SIZE);
        if block_sizes_wanted {
            let sizes = [
                self.offer.block_size_minimum,
                self.offer.block_size_preferred,
                self.offer.payload_len_max,
            ];
            info(InfoType::BLOCK_SIZE, sizes.map(u32::to_be_bytes).as_flattened());
        }
        put_option_reply(output, option, OptionReply::ACK, &[]);
        if option != OptionCode::GO {
            return Outcome::Continue;
        }
        self.session.block_sizes_known = block_sizes_wanted;
        Outcome::Transmission(self.session)
    }

    fn handle_meta_context(&mut self, option: OptionCode, data: &[u8], output: &mut Vec<u8>) {
        let set = option == OptionCode::SET_META_CONTEXT;
        if set {
            // Replaces the earlier choice, also when it fails.
            self.session.allocation_context = false;
        }
        let mut reply = |kind, data: &[u8]| put_option_reply(output, option, kind, data);
        if !self.session.structured_replies {
            return reply(OptionReply::ERR_INVALID, b"structured replies come first");
        }
        let (name, queries) = match parse_meta_context(data) {
            Ok(parsed) => parsed,
            Err(missing) => {
                return reply(OptionReply::ERR_INVALID, missing.to_string().as_bytes());
            }
        };
        if !self.is_our_export(name) {
            return reply(OptionReply::ERR_UNKNOWN, b"no such export");
        }
        let matches =
            |query: &&[u8]| *query == ALLOCATION_CONTEXT.as_bytes() || (!set && *query == b"base:");
        if queries.iter().any(matches) || (!set && queries.is_empty()) {
            let id = if set { ALLOCATION_CONTEXT_ID } else { 0 };
            let context = [&id.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()].concat();
            reply(OptionReply::META_CONTEXT, &context);
            self.session.allocation_context |= set;
        }
        reply(OptionReply::ACK, &[]);
    }

    fn is_our_export(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.offer.name.as_bytes()
    }

    fn transmission_flags(&self) -> TransmissionFlags {
        self.offer.flags.with_if(self.session.structured_replies, TransmissionFlags::SEND_DF)
    }
}

fn option_header(fields: &mut Fields<'_>) -> Result<(u64, OptionCode, u32), Missing> {
    let magic = fields.u64("option magic")?;
    Ok((magic, OptionCode(fields.u32("option")?), fields.u32("option length")?))
}

fn parse_info(data: &[u8]) -> Result<(&[u8], Vec<InfoType>), Missing> {
    let mut fields = Fields(data);
    let name_len = fields.u32("export name length")?;
    let name = fields.bytes("export name", name_len as usize)?;
    let count = fields.u16("number of information requests")?;
    let wanted = fields.bytes("information requests", usize::from(count) * 2)?;
    let wanted = wanted.chunks_exact(2).map(|w| InfoType(u16::from_be_bytes([w[0], w[1]])));
    Ok((name, wanted.collect()))
}

fn parse_meta_context(data: &[u8]) -> Result<(&[u8], Vec<&[u8]>), Missing> {
    let mut fields = Fields(data);
    let name_len = fields.u32("export name length")?;
    let name = fields.bytes("export name", name_len as usize)?;
    let count = fields.u32("number of queries")?;
    // No capacity from the wire: every query takes at least four bytes of the data we hold.
    let mut queries = Vec::new();
    for _ in 0..count {
        let query_len = fields.u32("query length")?;
        queries.push(fields.bytes("query", query_len as usize)?);
    }
    Ok((name, queries))
}

fn string_with_length(string: &str) -> Vec<u8> {
    // Names are at most STRING_LEN_MAX, which `ExportConfig` has checked.
    let length = u32::try_from(string.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), string.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer() -> Offer {
        Offer {
            name: "disk".into(),
            size: 1 << 20,
            flags: TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_FLUSH),
            block_size_minimum: 512,
            block_size_preferred: 4096,
            payload_len_max: 32 << 20,
        }
    }

    fn begun() -> Handshake {
        let mut handshake = Handshake::new(offer());
        let step = handshake.handle(&3u32.to_be_bytes(), &mut Vec::new());
        assert_eq!(step, Ok((4, Outcome::Continue)));
        handshake
    }

    fn option(code: OptionCode, data: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(code.0.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Sends one option; returns the outcome and the types and data of the replies.
    fn ask(
        handshake: &mut Handshake,
        code: OptionCode,
        data: &[u8],
    ) -> (Outcome, Vec<(OptionReply, Vec<u8>)>) {
        let input = option(code, data);
        let mut output = Vec::new();
        let (used, outcome) = handshake.handle(&input, &mut output).unwrap();
        assert_eq!(used, input.len());
        let mut fields = Fields(&output);
        let mut replies = Vec::new();
        while !fields.0.is_empty() {
            assert_eq!(fields.u64("magic"), Ok(OPTION_REPLY_MAGIC));
            assert_eq!(fields.u32("option"), Ok(code.0));
            let kind = OptionReply(fields.u32("type").unwrap());
            let len = fields.u32("length").unwrap() as usize;
            replies.push((kind, fields.bytes("data", len).unwrap().to_vec()));
        }
        (outcome, replies)
    }

    use nbd::wire::OPTION_REPLY_MAGIC;

    fn go(name: &str, wanted: &[InfoType]) -> Vec<u8> {
        let mut data = string_with_length(name);
        data.extend((wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|w| data.extend(w.0.to_be_bytes()));
        data
    }

    fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = string_with_length(name);
        data.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(string_with_length(query)));
        data
    }

    #[test]
    fn export_name_pads_only_for_old_clients() {
        for (flags, len) in [(1u32, 8 + 2 + 124), (3, 8 + 2)] {
            let mut handshake = Handshake::new(offer());
            handshake.handle(&flags.to_be_bytes(), &mut Vec::new()).unwrap();
            let mut output = Vec::new();
            let step = handshake.handle(&option(OptionCode::EXPORT_NAME, b"disk"), &mut output);
            assert_eq!(step, Ok((20, Outcome::Transmission(Session::default()))));
            assert_eq!(output.len(), len);
        }
    }

    #[test]
    fn export_name_of_another_export_closes() {
        let step = begun().handle(&option(OptionCode::EXPORT_NAME, b"other"), &mut Vec::new());
        assert_eq!(step, Err(HandshakeError::UnknownExport("other".into())));
    }

    #[test]
    fn go_gives_what_was_asked_for() {
        let wanted = [InfoType::BLOCK_SIZE, InfoType::NAME, InfoType(999)];
        let (outcome, replies) = ask(&mut begun(), OptionCode::GO, &go("", &wanted));
        let session = Session { block_sizes_known: true, ..Session::default() };
        assert_eq!(outcome, Outcome::Transmission(session));
        let lens: Vec<_> = replies.iter().map(|(kind, data)| (*kind, data.len())).collect();
        let info = OptionReply::INFO;
        assert_eq!(lens, [(info, 12), (info, 6), (info, 14), (OptionReply::ACK, 0)]);
    }

    #[test]
    fn info_and_unknown_names_do_not_start_transmission() {
        let mut handshake = begun();
        assert_eq!(ask(&mut handshake, OptionCode::INFO, &go("disk", &[])).0, Outcome::Continue);
        let (outcome, replies) = ask(&mut handshake, OptionCode::GO, &go("nothing", &[]));
        assert_eq!((outcome, replies[0].0), (Outcome::Continue, OptionReply::ERR_UNKNOWN));
    }

    #[test]
    fn metadata_contexts_need_structured_replies_and_the_last_choice_counts() {
        let mut handshake = begun();
        let set = OptionCode::SET_META_CONTEXT;
        let data = contexts("disk", &["x-other:", ALLOCATION_CONTEXT]);
        assert_eq!(ask(&mut handshake, set, &data).1[0].0, OptionReply::ERR_INVALID);
        ask(&mut handshake, OptionCode::STRUCTURED_REPLY, &[]);
        let (_, replies) = ask(&mut handshake, set, &data);
        assert_eq!(replies[0].0, OptionReply::META_CONTEXT);
        assert!(handshake.session.allocation_context);
        // A wildcard selects nothing, and so undoes the choice.
        let (_, replies) = ask(&mut handshake, set, &contexts("disk", &["base:"]));
        assert_eq!(replies.len(), 1);
        assert!(!handshake.session.allocation_context);
        let list = OptionCode::LIST_META_CONTEXT;
        assert_eq!(ask(&mut handshake, list, &contexts("disk", &["base:"])).1.len(), 2);
        assert_eq!(ask(&mut handshake, list, &contexts("disk", &[])).1.len(), 2);
        assert_eq!(ask(&mut handshake, list, &contexts("disk", &["qemu:"])).1.len(), 1);
    }

    #[test]
    fn malformed_and_unknown_options_are_answered_with_errors() {
        let mut handshake = begun();
        let mut error = |code, data: &[u8]| ask(&mut handshake, code, data).1[0].0;
        assert_eq!(error(OptionCode::LIST, b"x"), OptionReply::ERR_INVALID);
        assert_eq!(error(OptionCode::STARTTLS, b""), OptionReply::ERR_UNSUP);
        assert_eq!(error(OptionCode::EXTENDED_HEADERS, b""), OptionReply::ERR_UNSUP);
        assert_eq!(error(OptionCode(0xdead), b"xyz"), OptionReply::ERR_UNSUP);
        assert_eq!(error(OptionCode::INFO, &[0xff; 4]), OptionReply::ERR_INVALID);
        assert_eq!(error(OptionCode::GO, &[0, 0, 0, 0, 0xff, 0xff]), OptionReply::ERR_INVALID);
        ask(&mut handshake, OptionCode::STRUCTURED_REPLY, &[]);
        let mut data = contexts("disk", &[]);
        let count = data.len() - 4;
        data[count..].fill(0xff);
        let (_, replies) = ask(&mut handshake, OptionCode::SET_META_CONTEXT, &data);
        assert_eq!(replies[0].0, OptionReply::ERR_INVALID);
    }

    #[test]
    fn limits_close_the_connection() {
        let mut long = option(OptionCode::LIST, &[]);
        long[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        let error = begun().handle(&long, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, HandshakeError::OptionTooLong { length: u32::MAX, .. }));

        let mut handshake = begun();
        for _ in 0..OPTIONS_MAX {
            ask(&mut handshake, OptionCode::LIST, &[]);
        }
        let step = handshake.handle(&option(OptionCode::LIST, &[]), &mut Vec::new());
        assert_eq!(step, Err(HandshakeError::TooManyOptions));

        let step = Handshake::new(offer()).handle(&[0xff; 4], &mut Vec::new());
        assert_eq!(step, Err(HandshakeError::UnknownFlags(u32::MAX)));
    }

    proptest! {
        /// Any bytes, in any portions, end or wait for more; what is consumed was there.
        #[test]
        fn arbitrary_bytes_do_no_harm(flags in 0u32..5, bytes: Vec<u8>) {
            let mut handshake = Handshake::new(offer());
            let mut input = flags.to_be_bytes().to_vec();
            input.extend(bytes);
            let mut rest = input.as_slice();
            while let Ok((used, outcome)) = handshake.handle(rest, &mut Vec::new()) {
                prop_assert!(used <= rest.len());
                rest = &rest[used..];
                if outcome != Outcome::Continue { break; }
            }
        }

        /// The same with well-formed headers, so that every option sees arbitrary data, and one
        /// message split anywhere is the same as one message.
        #[test]
        fn arbitrary_option_data_is_answered(
            code in 0u32..14, data in proptest::collection::vec(any::<u8>(), 0..64), cut: usize,
        ) {
            prop_assume!(code != OptionCode::EXPORT_NAME.0);
            let input = option(OptionCode(code), &data);
            let cut = cut % input.len();
            let mut handshake = begun();
            let mut output = Vec::new();
            let step = handshake.handle(&input[..cut], &mut output);
            prop_assert_eq!(step, Ok((0, Outcome::Incomplete)));
            prop_assert!(output.is_empty());
            let step = handshake.handle(&input, &mut output);
            prop_assert_eq!(step.map(|(used, _)| used), Ok(input.len()));
            prop_assert!(!output.is_empty());
        }
    }
}
