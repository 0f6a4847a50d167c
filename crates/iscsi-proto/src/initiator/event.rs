//! What the session tells its owner, and why it ends connections. Data only.

use std::time::Duration;

use bytes::Bytes;

use super::{Command, ConnectionId};
use crate::ids::{Cid, Itt};
use crate::pdu::{
    AsyncEvent, LogoutReason, LogoutResponseCode, Opcode, PduError, RejectReason, Residual,
    ResponseCode, TaskManagementResponseCode,
};
use crate::serial::{CmdSn, StatSn};

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
        /// The number under which the target had it, `None` if it was never sent.
        cmd_sn: Option<CmdSn>,
    },
    /// The command's fate is unknown, and it is certain that the target does nothing more about
    /// it: send it again. At the end of a session, in a new one; they come in order of submission.
    /// At level 2 also while the session goes on: the target had lost the command with its
    /// connection, or its answer could not be repaired.
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
        /// Additional Response Information of a query (RFC 7144 §6.4.1), else 0.
        information: [u8; 3],
    },
    /// A text exchange is over.
    TextDone {
        /// Tag of the request.
        itt: Itt,
        /// All response text, reassembled.
        text: Bytes,
    },
    /// A text exchange ended with its connection, while the session goes on: ask again.
    TextLost {
        /// Tag of the request.
        itt: Itt,
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
    /// A connection failed. `SessionEnded` follows, or at level 2 a [`Recovery::Started`].
    ConnectionFailed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        error: ConnectionError,
    },
    /// Error recovery at level 1 or 2 did something. For logs and counters: nothing needs to be
    /// done about it.
    Recovery {
        /// The connection it is about.
        connection: ConnectionId,
        /// Its CID.
        cid: Cid,
        /// What was done.
        what: Recovery,
    },
    /// The session is over; every command has been given back.
    SessionEnded {
        /// Why; `None` after a logout that we asked for.
        error: Option<ConnectionError>,
    },
}

/// What error recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Data-In PDUs are asked for again.
    DataSnack {
        /// The command.
        itt: Itt,
        /// First DataSN.
        first: u32,
        /// How many.
        length: u32,
    },
    /// R2Ts are asked for again.
    R2tSnack {
        /// The command.
        itt: Itt,
        /// First R2TSN.
        first: u32,
        /// How many.
        length: u32,
    },
    /// Answers are asked for again.
    StatusSnack {
        /// First StatSN.
        first: StatSn,
        /// How many.
        length: u32,
    },
    /// The target asks for data of a write again (recovery R2T).
    R2tAgain {
        /// The command.
        itt: Itt,
        /// First byte.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// A command that the target has dropped is sent again as it was.
    CommandRetry {
        /// The command.
        itt: Itt,
    },
    /// The connection is lost, and its tasks are going to move to others of the session.
    Started {
        /// Commands that the target may have.
        tasks: u32,
    },
    /// The connection's tasks are dealt with; its CID is free.
    Finished {
        /// Commands that went on elsewhere (TASK REASSIGN).
        reassigned: u32,
        /// Commands that had not arrived and were sent again as they were.
        retried: u32,
        /// Commands that were given back with [`Event::TaskRequeue`].
        requeued: u32,
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
    /// More holes in the numbers of one command than can be kept.
    #[error("more than {0} holes in one command's data")]
    TooManyHoles(usize),
    /// A SNACK Tag that was never sent (§11.4.6).
    #[error("SNACK tag {0:#x} was never sent")]
    SnackTag(u32),
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
    /// The target does not send again what was damaged (§7.8).
    #[error("connection {cid}: damaged or missing PDUs could not be had again")]
    NotRepaired {
        /// The connection.
        cid: Cid,
    },
    /// The target does not let the tasks of a lost connection go on elsewhere (§7.2.2).
    #[error("connection {cid}: its tasks cannot be reassigned ({response})")]
    NotReassigned {
        /// The connection that was lost.
        cid: Cid,
        /// What the target said.
        response: TaskManagementResponseCode,
    },
    /// The tasks of a lost connection were not reassigned within Time2Retain.
    #[error("connection {cid}: not recovered in time")]
    RecoveryTimeout {
        /// The connection that was lost.
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
    /// A task management function or a text request was not answered in time.
    #[error("connection {cid}: no answer to request {itt}")]
    NotAnswered {
        /// The connection.
        cid: Cid,
        /// Initiator task tag of the request.
        itt: Itt,
    },
    /// The transport was lost.
    #[error("connection {cid}: lost")]
    TransportLost {
        /// The connection.
        cid: Cid,
    },
    /// The target has dropped it, and said so (§11.9.1).
    #[error("connection {cid}: dropped by the target")]
    Dropped {
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
    /// The session was reset with I_T NEXUS RESET (RFC 7144 §6.3).
    #[error("I_T nexus reset")]
    NexusReset,
    /// The owner gave up the session.
    #[error("session abandoned")]
    Abandoned,
}
