//! What a session tells the shell, and the names both use.

use bytes::Bytes;

use super::admission::Admission;
use super::task::Execute;
use crate::ids::{Cid, Itt, Lun};
use crate::pdu::TaskManagementFunction;
use crate::serial::CmdSn;

/// A connection within its session; never used twice in one session (a CID may be).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// The peer broke the protocol so that the connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (CID {cid}, ITT {itt}, ExpCmdSN {exp_cmd_sn})")]
pub struct SessionError {
    /// What was wrong.
    pub what: &'static str,
    /// Connection it came on.
    pub cid: Cid,
    /// Task it named.
    pub itt: Itt,
    /// Where the session stood.
    pub exp_cmd_sn: CmdSn,
}

/// What the shell has to do for a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Call [`Session::admit`](super::Session::admit) when the command may go on: at once, or
    /// later. Asked while [`Session::set_holding`](super::Session::set_holding) says so.
    Admit(Admission),
    /// Execute a SCSI command, then call [`Session::complete`](super::Session::complete).
    Execute(Execute),
    /// The task is over without a response: drop its buffer.
    Dropped(Itt),
    /// Answer a text request, then call [`Session::text_reply`](super::Session::text_reply).
    Text {
        /// The request's task.
        itt: Itt,
        /// Its whole text.
        text: Bytes,
    },
    /// Carry out what a task management function means beyond this session (other sessions' tasks,
    /// the logical unit's state), then call
    /// [`Session::management_done`](super::Session::management_done).
    Management {
        /// The request's task.
        itt: Itt,
        /// What to do.
        function: TaskManagementFunction,
        /// Where.
        lun: Lun,
    },
    /// Close the connection, after what is queued has been sent.
    Close {
        /// Why.
        reason: &'static str,
        /// Do not wait for that: the initiator takes nothing from it any more, or has given it up
        /// and others wait for its tasks.
        at_once: bool,
    },
    /// Nothing to do: something lost was made up for, which is worth a line in a log.
    Recovery(Recovery),
}

/// What was done about a loss (RFC 7143 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recovery {
    /// Data of a write was lost and is asked for again.
    RecoveryR2t {
        /// The write.
        itt: Itt,
        /// First byte.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// An R2T is sent again.
    R2tAgain {
        /// The write.
        itt: Itt,
        /// Its number.
        r2t_sn: u32,
    },
    /// Data-In is sent again.
    DataAgain {
        /// The read.
        itt: Itt,
        /// Number of the first PDU.
        data_sn: u32,
        /// PDUs.
        pdus: u32,
    },
    /// Data-In is sent again in other segments.
    DataRecut {
        /// The read.
        itt: Itt,
    },
    /// Answers are sent again.
    StatusAgain {
        /// The first one's number.
        stat_sn: u32,
        /// PDUs.
        pdus: u32,
    },
    /// A task goes on on this connection.
    Reassigned {
        /// The task.
        itt: Itt,
    },
}

/// The data segment of the PDU under way, as [`Placement`](crate::connection::Placement) asked for
/// it.
#[derive(Clone, Debug)]
pub enum Received {
    /// No data, or it lies where it was placed, or it was thrown away.
    Placed,
    /// A scratch segment.
    Scratch(Bytes),
}
