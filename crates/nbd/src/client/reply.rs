//! What a server answers to one request: which bytes belong where, and when the answer is whole.
//!
//! Pure: headers and short payloads in, places for data out. Whatever a server sends that it may
//! not is a [`Violation`], after which the stream means nothing any more. Sections "Simple reply
//! message", "Structured reply chunk message" and "Error values" of doc/proto.md.

use std::ops::Range;

use super::handshake::{printable, told};
use crate::wire::{ChunkHeader, ChunkType, ErrorCode, Fields, Missing, STATE_HOLE, STATE_ZERO};

/// Most extents in a reply to BLOCK_STATUS: more than any server sends; the protocol has 2^20.
const EXTENTS_MAX: u32 = 1 << 20;

/// Bytes of a chunk that are not data: an error and its text, or extents.
const TEXT_LEN_MAX: u32 = 4096 + 16;

/// Runs of received data that have a gap between them. Servers answer in order, or from some
/// threads; who sends every other byte wants our memory.
const RUNS_MAX: usize = 1024;

/// Longest text of a server that is told to users, in bytes.
const SHOWN_LEN_MAX: usize = 512;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// READ of so many bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// BLOCK_STATUS of so many bytes.
    Status {
        /// Bytes.
        len: u32,
        /// The number of `base:allocation`.
        context: u32,
    },
    /// Anything else: it is done, or not.
    Other,
}

/// What an extent of BLOCK_STATUS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes, not 0.
    pub len: u64,
    /// Nothing is allocated, and it reads as zeroes.
    pub hole: bool,
}

/// A request failed at the server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code:?}{}", told(.text))]
pub struct ServerError {
    /// Why, for programs.
    pub code: ErrorCode,
    /// Why, for people; may be empty.
    pub text: String,
}

/// The server broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// READ has to be answered by structured replies once they are agreed on.
    #[error("a simple reply to a request that needs a structured one")]
    Simple,
    /// A chunk that does not answer what was asked.
    #[error("a chunk {kind:?} of {length} bytes in the reply to {asked:?}")]
    Chunk {
        /// Its type.
        kind: ChunkType,
        /// Its length.
        length: u32,
        /// What was asked.
        asked: Asked,
    },
    /// The chunk ends within a field.
    #[error("in a chunk: {0}")]
    Missing(#[from] Missing),
    /// Data for bytes that were not asked for, or came already.
    #[error("data for {offset}+{len}, which was not asked for or is there already")]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Too many pieces with gaps between them.
    #[error("more than {RUNS_MAX} pieces of data with gaps between them")]
    Scattered,
    /// The reply is over although something is missing.
    #[error("a reply ended without everything that was asked for")]
    Incomplete,
    /// An extent of no bytes.
    #[error("an extent of 0 bytes")]
    EmptyExtent,
}

/// Where the rest of a chunk belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is no rest.
    Nowhere,
    /// The data that follows goes there in the buffer of the request.
    Data(Range<usize>),
    /// This part of the buffer is to be zeroed; nothing follows.
    Zeroes(Range<usize>),
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The buffer of the READ is filled, or the request is done.
    Done,
    /// The extents from the first byte on: not all of them, but one at least.
    Extents(Vec<Status>),
}

/// The answer to one request so far.
#[derive(Clone, Debug)]
pub struct Answer {
    asked: Asked,
    /// Parts of the buffer that are filled: sorted, with gaps between them.
    filled: Vec<Range<usize>>,
    extents: Option<Vec<Status>>,
    error: Option<ServerError>,
}

impl Answer {
    /// Nothing has come yet.
    pub fn new(asked: Asked) -> Self {
        Self { asked, filled: Vec::new(), extents: None, error: None }
    }

    /// A simple reply has come. `structured`: structured replies are agreed on.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn simple(
        &mut self,
        error: Option<ErrorCode>,
        structured: bool,
    ) -> Result<Place, Violation> {
        if let Some(code) = error {
            self.error = Some(ServerError { code, text: String::new() });
        }
        match self.asked {
            Asked::Read { .. } if structured => Err(Violation::Simple),
            Asked::Read { offset, len } if error.is_none() => {
                self.fill(offset, len.into()).map(Place::Data)
            }
            Asked::Status { .. } if error.is_none() => Err(Violation::Simple),
            _ => Ok(Place::Nowhere),
        }
    }

    /// How many bytes of the chunk's payload [`chunk`](Self::chunk) has to see.
    ///
    /// # Errors
    /// [`Violation`]: the chunk does not belong here, or is too long.
    pub fn head_len(&self, header: &ChunkHeader) -> Result<usize, Violation> {
        let ChunkHeader { kind, length, .. } = *header;
        let is_allowed = match (kind, self.asked) {
            (ChunkType::NONE, _) => length == 0 && header.done,
            (ChunkType::OFFSET_DATA, Asked::Read { len, .. }) => {
                length > 8 && u64::from(length) <= 8 + u64::from(len)
            }
            (ChunkType::OFFSET_HOLE, Asked::Read { .. }) => length == 12,
            (ChunkType::BLOCK_STATUS, Asked::Status { .. }) => {
                length >= 12 && length % 8 == 4 && (length - 4) / 8 <= EXTENTS_MAX
            }
            (kind, _) if is_error(kind) => (6..=TEXT_LEN_MAX).contains(&length),
            _ => false,
        };
        match kind {
            _ if !is_allowed => Err(Violation::Chunk { kind, length, asked: self.asked }),
            ChunkType::OFFSET_DATA => Ok(8),
            _ => Ok(length as usize),
        }
    }

    /// A chunk has come, as far as [`head_len`](Self::head_len) said.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn chunk(&mut self, header: &ChunkHeader, head: &[u8]) -> Result<Place, Violation> {
        let mut fields = Fields(head);
        match header.kind {
            ChunkType::NONE => {}
            ChunkType::OFFSET_DATA => {
                let offset = fields.u64("offset of the data")?;
                return self.fill(offset, u64::from(header.length) - 8).map(Place::Data);
            }
            ChunkType::OFFSET_HOLE => {
                let offset = fields.u64("offset of the hole")?;
                let len = fields.u32("length of the hole")?;
                return self.fill(offset, len.into()).map(Place::Zeroes);
            }
            ChunkType::BLOCK_STATUS => self.status(fields)?,
            _ => {
                let code = ErrorCode(fields.u32("error")?);
                let len = fields.u16("length of the error's text")?;
                let text = fields.bytes("text of the error", len.into())?;
                // The first error tells most.
                self.error
                    .get_or_insert(ServerError { code, text: printable(text, SHOWN_LEN_MAX) });
            }
        }
        Ok(Place::Nowhere)
    }

    /// Notes that a part of what was asked for is there.
    fn fill(&mut self, at: u64, len: u64) -> Result<Range<usize>, Violation> {
        let wrong = Violation::Range { offset: at, len };
        let Asked::Read { offset, len: asked } = self.asked else { return Err(wrong) };
        let Some(start) = at.checked_sub(offset) else { return Err(wrong) };
        let Some(end) = start.checked_add(len).filter(|end| *end <= asked.into()) else {
            return Err(wrong);
        };
        if len == 0 {
            return Err(wrong);
        }
        // Within a length of 32 bits.
        let (start, end) = (start as usize, end as usize);
        let next = self.filled.partition_point(|run| run.end < start);
        self.insert(next, start..end, wrong)?;
        Ok(start..end)
    }

    /// Puts a run at its place and joins it with its neighbours. All runs before `at` end before
    /// it begins.
    fn insert(&mut self, at: usize, run: Range<usize>, wrong: Violation) -> Result<(), Violation> {
        let mut joined = run.clone();
        let mut end = at;
        while let Some(other) = self.filled.get(end).filter(|other| other.start <= run.end) {
            if other.start < run.end && run.start < other.end {
                return Err(wrong);
            }
            joined = joined.start.min(other.start)..joined.end.max(other.end);
            end += 1;
        }
        self.filled.splice(at..end, [joined]);
        if self.filled.len() > RUNS_MAX { Err(Violation::Scattered) } else { Ok(()) }
    }

    fn status(&mut self, mut fields: Fields<'_>) -> Result<(), Violation> {
        let Asked::Status { context, .. } = self.asked else { return Ok(()) };
        if fields.u32("number of the context")? != context {
            return Ok(()); // another context, which nobody asked for
        }
        let mut extents = Vec::with_capacity(fields.0.len() / 8);
        while !fields.0.is_empty() {
            let len = fields.u32("length of an extent")?;
            let state = fields.u32("state of an extent")?;
            if len == 0 {
                return Err(Violation::EmptyExtent);
            }
            let hole = state & (STATE_HOLE | STATE_ZERO) == STATE_HOLE | STATE_ZERO;
            extents.push(Status { len: len.into(), hole });
        }
        self.extents = Some(extents);
        Ok(())
    }

    /// The reply is over: what came of the request.
    ///
    /// # Errors
    /// [`Violation::Incomplete`].
    pub fn finish(self) -> Result<Result<Whole, ServerError>, Violation> {
        if let Some(error) = self.error {
            return Ok(Err(error));
        }
        match self.asked {
            Asked::Other => Ok(Ok(Whole::Done)),
            Asked::Read { len, .. } if self.is_full(len as usize) => Ok(Ok(Whole::Done)),
            Asked::Status { .. } => match self.extents {
                Some(extents) => Ok(Ok(Whole::Extents(extents))),
                None => Err(Violation::Incomplete),
            },
            Asked::Read { .. } => Err(Violation::Incomplete),
        }
    }

    /// One run without a gap.
    fn is_full(&self, len: usize) -> bool {
        matches!(self.filled.as_slice(), [all] if *all == (0..len))
    }
}

/// Also of types that nobody knows yet.
fn is_error(kind: ChunkType) -> bool {
    kind.0 & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const READ: Asked = Asked::Read { offset: 1000, len: 100 };

    fn header(kind: ChunkType, length: u32, done: bool) -> ChunkHeader {
        ChunkHeader { done, kind, cookie: 1, length }
    }

    fn data(answer: &mut Answer, offset: u64, len: u32) -> Result<Place, Violation> {
        let header = header(ChunkType::OFFSET_DATA, 8 + len, false);
        assert_eq!(answer.head_len(&header)?, 8);
        answer.chunk(&header, &offset.to_be_bytes())
    }

    fn hole(answer: &mut Answer, offset: u64, len: u32) -> Result<Place, Violation> {
        let header = header(ChunkType::OFFSET_HOLE, 12, false);
        assert_eq!(answer.head_len(&header)?, 12);
        answer.chunk(&header, &[&offset.to_be_bytes()[..], &len.to_be_bytes()].concat())
    }

    #[test]
    fn a_read_is_whole_when_every_byte_has_come_once() {
        let mut answer = Answer::new(READ);
        assert_eq!(data(&mut answer, 1050, 50), Ok(Place::Data(50..100)));
        assert_eq!(answer.clone().finish(), Err(Violation::Incomplete));
        assert!(matches!(hole(&mut answer, 1040, 11), Err(Violation::Range { .. })));
        assert!(matches!(hole(&mut answer, 999, 2), Err(Violation::Range { .. })));
        assert!(matches!(hole(&mut answer, 1000, 0), Err(Violation::Range { .. })));
        assert!(matches!(data(&mut answer, u64::MAX, 2), Err(Violation::Range { .. })));
        assert!(matches!(data(&mut answer, 1000, 101), Err(Violation::Chunk { .. })));
        assert_eq!(hole(&mut answer, 1000, 50), Ok(Place::Zeroes(0..50)));
        assert_eq!(answer.finish(), Ok(Ok(Whole::Done)));
    }

    #[test]
    fn a_simple_reply_answers_a_read_only_where_nothing_else_is_agreed_on() {
        assert_eq!(Answer::new(READ).simple(None, true), Err(Violation::Simple));
        assert_eq!(Answer::new(READ).simple(None, false), Ok(Place::Data(0..100)));
        let mut failed = Answer::new(READ);
        assert_eq!(failed.simple(Some(ErrorCode::EIO), false), Ok(Place::Nowhere));
        assert_eq!(failed.finish().unwrap().unwrap_err().code, ErrorCode::EIO);
        let mut done = Answer::new(Asked::Other);
        assert_eq!(done.simple(None, true), Ok(Place::Nowhere));
        assert_eq!(done.finish(), Ok(Ok(Whole::Done)));
    }

    #[test]
    fn errors_are_told_without_what_steers_a_terminal() {
        let mut answer = Answer::new(READ);
        assert_eq!(data(&mut answer, 1000, 100), Ok(Place::Data(0..100)));
        let text = b"no\x1b[2J luck\n";
        let payload = [&5u32.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
        let header = header(ChunkType::ERROR, payload.len() as u32, true);
        assert_eq!(answer.head_len(&header), Ok(payload.len()));
        assert_eq!(answer.chunk(&header, &payload), Ok(Place::Nowhere));
        let error = answer.finish().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "EIO: no [2J luck");
    }

    #[test]
    fn extents_are_those_of_the_context() {
        let asked = Asked::Status { len: 100, context: 7 };
        let payload = |context: u32, extents: &[(u32, u32)]| {
            let mut bytes = context.to_be_bytes().to_vec();
            for (len, state) in extents {
                bytes.extend([len.to_be_bytes(), state.to_be_bytes()].concat());
            }
            bytes
        };
        let give = |answer: &mut Answer, payload: &[u8]| {
            let header = header(ChunkType::BLOCK_STATUS, payload.len() as u32, true);
            assert_eq!(answer.head_len(&header)?, payload.len());
            answer.chunk(&header, payload)
        };
        let mut answer = Answer::new(asked);
        give(&mut answer, &payload(8, &[(1, 0)])).unwrap();
        assert_eq!(answer.clone().finish(), Err(Violation::Incomplete));
        give(&mut answer, &payload(7, &[(40, 3), (10, 2), (200, 0)])).unwrap();
        let found = [(40, true), (10, false), (200, false)];
        let found = found.map(|(len, hole)| Status { len, hole }).to_vec();
        assert_eq!(answer.finish(), Ok(Ok(Whole::Extents(found))));
        assert_eq!(
            give(&mut Answer::new(asked), &payload(7, &[(0, 0)])),
            Err(Violation::EmptyExtent)
        );
        assert!(give(&mut Answer::new(asked), &payload(7, &[])).is_err());
        assert!(give(&mut Answer::new(READ), &payload(7, &[(1, 0)])).is_err());
    }

    #[test]
    fn who_sends_every_other_byte_is_cut_off() {
        let mut answer = Answer::new(Asked::Read { offset: 0, len: 1 << 20 });
        let ended = (0..1 << 19).map(|n| hole(&mut answer, n * 2, 1)).find(Result::is_err);
        assert_eq!(ended, Some(Err(Violation::Scattered)));
    }

    proptest! {
        /// In whatever order pieces come, a read is whole exactly when all of it has come.
        #[test]
        fn pieces_in_any_order(order in Just((0..10u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut answer = Answer::new(READ);
            for (count, piece) in order.iter().enumerate() {
                prop_assert_eq!(answer.clone().finish(), Err(Violation::Incomplete), "{}", count);
                prop_assert!(hole(&mut answer, 1000 + piece * 10, 10).is_ok());
                prop_assert!(hole(&mut answer, 1000 + piece * 10 + 3, 1).is_err());
            }
            prop_assert_eq!(answer.finish(), Ok(Ok(Whole::Done)));
        }
    }
}
