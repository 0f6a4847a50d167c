//! What the session tells its owner, and why it ends connections. Data only.

use std::time::Duration;

use bytes::Bytes;

use super::{Command, ConnectionId};
use crate::ids::{Cid, Itt};
use crate::pdu::{
    AsyncEvent, LogoutReason, LogoutResponseCode, Opcode, PduError, RejectReason, Residual,
    ResponseCode, TaskManagementResponseCode,
};

/// Something the owner of a session wants to know.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<T> {
    /// A command is over; exactly one of this and `TaskRequeue` comes for each.
    TaskDone {
        /// Its tag, free again.
        itt: Itt,
        /// The command, in case it has to be sent again.
        command: Command,
        /// What the owner gave with it.
        context: T,
        /// How it ended.
        outcome: TaskOutcome,
    },
    /// The session is gone and the command's fate unknown: send it again in a new session. Comes
    /// in order of submission.
    TaskRequeue {
        /// The command.
        command: Command,
        /// What the owner gave with it.
        context: T,
        /// Some of it was handed out for transmission, so the target may have executed it.
        sent: bool,
    },
    /// A task management function was answered.
    TaskManagementDone {
        /// Tag of the request.
        itt: Itt,
        /// What the target said.
        response: TaskManagementResponseCode,
    },
    /// A text exchange is over.
    TextDone {
        /// Tag of the request.
        itt: Itt,
        /// All response text, reassembled.
        text: Bytes,
    },
    /// A NOP-Out was answered.
    Pong {
        /// The connection.
        connection: ConnectionId,
        /// Time from hand-over for transmission to the answer.
        rtt: Duration,
    },
    /// An asynchronous message (§11.9). The session has already acted on iSCSI events.
    Async {
        /// The connection that brought it.
        connection: ConnectionId,
        /// What happened.
        event: AsyncEvent,
        /// Parameter1 to Parameter3.
        parameters: [u16; 3],
        /// Sense data of a SCSI event, else empty or vendor data.
        data: Bytes,
    },
    /// A connection left the session in order; its transport can be closed.
    LoggedOut {
        /// The connection.
        connection: ConnectionId,
        /// What the logout asked for.
        reason: LogoutReason,
    },
    /// A connection failed. At error recovery level 0 `SessionEnded` follows.
    ConnectionFailed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        error: ConnectionError,
    },
    /// The session is over; every command has been given back.
    SessionEnded {
        /// Why; `None` after a logout that we asked for.
        error: Option<ConnectionError>,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskOutcome {
    /// The target answered with a SCSI status.
    Completed {
        /// SCSI status byte (SAM-4 §5.3).
        status: u8,
        /// Residual count as reported; an underflow is at most the expected length.
        residual: Residual,
        /// Data-In bytes that arrived, contiguous from the buffer's start.
        data_in_len: u32,
        /// Sense data without its length field, empty if none came.
        sense: Bytes,
    },
    /// iSCSI service response other than "command completed" (§11.4.3): there is no SCSI status.
    TargetFailure(ResponseCode),
    /// The target refused the PDU (§11.17).
    Rejected(RejectReason),
    /// Ended by task management, or before it was ever sent.
    Aborted,
}

/// What a peer did against the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Not a PDU at all.
    #[error("{0}")]
    Malformed(#[from] PduError),
    /// A PDU that only initiators send, or a login PDU in the full feature phase.
    #[error("a target does not send this PDU now")]
    UnexpectedPdu,
    /// The tag names no task of ours.
    #[error("no such task")]
    UnknownTask,
    /// The task exists but not on this connection (§4.2.3.1).
    #[error("task belongs to another connection")]
    Allegiance,
    /// The tag names a task of another kind, or one that was not sent yet.
    #[error("PDU does not fit the task")]
    WrongTask,
    /// StatSN is not the next one (§4.2.2.2).
    #[error("StatSN {got:#x}, expected {expected:#x}")]
    StatSn {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// DataSN or R2TSN is not the next one (§4.2.2.3).
    #[error("DataSN or R2TSN {got:#x}, expected {expected:#x}")]
    DataSn {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// Data-In not at the next offset although data is in order (§13.19).
    #[error("Data-In at offset {got}, expected {expected}")]
    DataOffset {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// Data-In beyond the command's buffer.
    #[error("Data-In {offset}+{len} exceeds the command's {limit} bytes")]
    DataOverrun {
        /// First byte.
        offset: u32,
        /// Bytes.
        len: u32,
        /// Expected data transfer length.
        limit: u32,
    },
    /// R2T for data the command does not have, or has already been asked for (§11.8).
    #[error("R2T {offset}+{len} is not what remains of the command's {limit} bytes")]
    R2tRange {
        /// Buffer offset.
        offset: u32,
        /// Desired data transfer length.
        len: u32,
        /// Length of the command's data.
        limit: u32,
    },
    /// More R2Ts than MaxOutstandingR2T, or one without a tag.
    #[error("R2T over the agreed number, or without a transfer tag")]
    R2tUnexpected,
    /// Residual underflow larger than the transfer.
    #[error("residual underflow {residual} exceeds the expected {limit} bytes")]
    ResidualRange {
        /// Reported count.
        residual: u32,
        /// Expected data transfer length.
        limit: u32,
    },
    /// Data segment that cannot belong to this PDU.
    #[error("data segment of {len} bytes does not belong here")]
    DataSegment {
        /// Its length.
        len: u32,
    },
    /// Text response beyond any sensible size.
    #[error("text response exceeds {limit} bytes")]
    TextTooLong {
        /// Our limit.
        limit: usize,
    },
    /// NOP-Ins in a row without room to answer them.
    #[error("more than {limit} unanswered NOP-Ins")]
    NopFlood {
        /// Our limit.
        limit: usize,
    },
    /// The target refused something that cannot be refused without losing the session's state.
    #[error("target rejected our PDU: {0}")]
    Rejected(RejectReason),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// The target broke the protocol.
    #[error("connection {cid}: {violation} ({opcode}, itt {itt})")]
    Protocol {
        /// The connection.
        cid: Cid,
        /// Opcode of the PDU.
        opcode: Opcode,
        /// Its initiator task tag.
        itt: Itt,
        /// What was wrong.
        violation: Violation,
    },
    /// A data digest did not match; level 0 cannot ask for the data again (§7.8).
    #[error("connection {cid}: data digest error")]
    DataDigest {
        /// The connection.
        cid: Cid,
    },
    /// The target did not answer a NOP-Out and no data moved either.
    #[error("connection {cid}: no sign of life for {} ms", silence.as_millis())]
    PingTimeout {
        /// The connection.
        cid: Cid,
        /// How long nothing moved.
        silence: Duration,
    },
    /// The transport was lost.
    #[error("connection {cid}: lost")]
    TransportLost {
        /// The connection.
        cid: Cid,
    },
    /// A logout failed or was not answered.
    #[error("connection {cid}: logout not done ({})",
        response.map_or("no response".to_string(), |r| r.to_string()))]
    Logout {
        /// The connection.
        cid: Cid,
        /// What the target said, if anything.
        response: Option<LogoutResponseCode>,
    },
    /// The target asked for a logout and the session had to end for it (§11.9.1).
    #[error("connection {cid}: target requested logout")]
    LogoutRequested {
        /// The connection.
        cid: Cid,
    },
    /// Another connection failed and took the session with it (level 0).
    #[error("session ended by a failure of another connection")]
    SessionFailed,
    /// The connection had already left the session.
    #[error("connection is not part of the session")]
    NotConnected,
    /// The owner gave up the session.
    #[error("session abandoned")]
    Abandoned,
}
