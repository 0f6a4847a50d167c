//! One request of a disk: what it asks, what its success means for what is kept, who waits for it.

use std::io;

use block::{BlockError, Buf, Bytes};
use durability::{Content, Effect, Ticket};
use tokio::sync::oneshot;

use super::reply::{Answer, Asked, ServerError, Status};
use crate::wire::{Command, CommandFlags, ErrorCode, RequestHeader};

/// Times that a request may be under way while the connection is lost. One that always kills the
/// server must not kill it for ever.
pub(super) const ATTEMPTS_MAX: u32 = 8;

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Read { offset: u64, len: u32 },
    Write { offset: u64, data: Bytes, fua: bool },
    Flush,
    Trim { offset: u64, len: u32 },
    Zero { offset: u64, len: u32, fua: bool, may_trim: bool },
    Status { offset: u64, len: u32, context: u32 },
}

impl Op {
    /// What success means for what is acknowledged.
    pub(super) fn effect(&self) -> Effect {
        match self {
            Self::Read { .. } | Self::Status { .. } => Effect::None,
            Self::Write { offset, data, fua: true } => Effect::Stable(*offset, data.len() as u64),
            Self::Write { offset, data, fua: false } => {
                Effect::Volatile(*offset, Content::Data(data.clone()))
            }
            Self::Flush => Effect::Flushed,
            Self::Trim { offset, len } => Effect::Undefined(*offset, (*len).into()),
            Self::Zero { offset, len, fua: true, .. } => Effect::Stable(*offset, (*len).into()),
            Self::Zero { offset, len, fua: false, .. } => {
                Effect::Volatile(*offset, Content::Zeroes((*len).into()))
            }
        }
    }

    /// What a reply has to hold.
    pub(super) const fn asked(&self) -> Asked {
        match *self {
            Self::Read { offset, len } => Asked::Read { offset, len },
            Self::Status { len, context, .. } => Asked::Status { len, context },
            _ => Asked::Other,
        }
    }

    /// The header on the wire.
    pub(super) fn header(&self, cookie: u64) -> RequestHeader {
        let none = CommandFlags(0);
        let (command, flags, offset, length) = match self {
            Self::Read { offset, len } => (Command::READ, none, *offset, *len),
            Self::Write { offset, data, fua } => {
                // Cut to the longest payload, which has 32 bits.
                let flags = none.with_if(*fua, CommandFlags::FUA);
                (Command::WRITE, flags, *offset, data.len() as u32)
            }
            Self::Flush => (Command::FLUSH, none, 0, 0),
            Self::Trim { offset, len } => (Command::TRIM, none, *offset, *len),
            Self::Zero { offset, len, fua, may_trim } => {
                let flags = none
                    .with_if(*fua, CommandFlags::FUA)
                    .with_if(!*may_trim, CommandFlags::NO_HOLE);
                (Command::WRITE_ZEROES, flags, *offset, *len)
            }
            Self::Status { offset, len, .. } => (Command::BLOCK_STATUS, none, *offset, *len),
        };
        RequestHeader { flags, command, cookie, offset, length }
    }

    /// The data behind the header.
    pub(super) fn payload(&self) -> Bytes {
        match self {
            Self::Write { data, .. } => data.clone(),
            _ => Bytes::new(),
        }
    }

    /// About how many bytes it moves.
    pub(super) fn weight(&self) -> u64 {
        /// So that requests without data are spread over the connections as well.
        const HEADER: u64 = 512;
        HEADER
            + match self {
                Self::Read { len, .. } => u64::from(*len),
                Self::Write { data, .. } => data.len() as u64,
                _ => 0,
            }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Read { .. } => "reading",
            Self::Write { .. } => "writing",
            Self::Flush => "flushing",
            Self::Trim { .. } => "trimming",
            Self::Zero { .. } => "zeroing",
            Self::Status { .. } => "asking for extents",
        }
    }

    /// A server's error in the words of a block device.
    pub(super) fn failure(&self, error: &ServerError) -> Failure {
        match error.code {
            ErrorCode::EPERM => Failure::ReadOnly,
            ErrorCode::ENOSPC => Failure::NoSpace,
            ErrorCode::ENOTSUP => Failure::Unsupported(self.name()),
            _ => Failure::Medium(format!("{} failed at the NBD server: {error}", self.name())),
        }
    }
}

/// Did the server look at the request and do nothing, so that no failure of its storage can have
/// been told with the answer?
pub(super) fn is_refusal(failure: &Failure) -> bool {
    matches!(failure, Failure::ReadOnly | Failure::Unsupported(_))
}

/// Why a request failed. Unlike [`BlockError`] it can be told to several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    ReadOnly,
    NoSpace,
    Unsupported(&'static str),
    Medium(String),
    /// The server is gone, and did not come back in time.
    Unreachable(String),
}

impl From<Failure> for BlockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::ReadOnly => Self::ReadOnly,
            Failure::NoSpace => Self::NoSpace,
            Failure::Unsupported(what) => Self::Unsupported(what),
            Failure::Medium(text) => Self::Medium(io::Error::other(text)),
            Failure::Unreachable(text) => Self::Unreachable(text),
        }
    }
}

/// What a request gives back.
#[derive(Debug)]
pub(super) enum Output {
    Done,
    Data(Buf),
    Extents(Vec<Status>),
}

/// Who waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A caller of the disk.
    User,
    /// Nobody: a flush that keeps what is kept within its limit.
    OwnFlush,
    /// The supervisor, which writes again what may be lost.
    Replay,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not sent yet, or to be sent again.
    Waiting,
    /// Sent over this connection.
    Sent(usize),
    /// Answered well; others have to end before that counts.
    Held,
}

/// A request until its caller has the answer.
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) effect: Effect,
    pub(super) ticket: Ticket,
    pub(super) origin: Origin,
    pub(super) way: Way,
    pub(super) answer: Answer,
    /// Of a READ; away while data is received into it.
    pub(super) buf: Option<Buf>,
    pub(super) attempts: u32,
    pub(super) done: oneshot::Sender<Result<Output, Failure>>,
}

impl Request {
    /// Nothing of an earlier answer counts any more.
    pub(super) fn start_again(&mut self) {
        self.way = Way::Waiting;
        self.answer = Answer::new(self.op.asked());
    }
}
