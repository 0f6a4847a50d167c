//! What a session's owner hands in and gets back: names of connections, commands, what login
//! left behind, and why something was not taken. Values only.

use bytes::Bytes;

use super::TASKS_MAX;
use crate::ids::{Cid, Lun, Tsih};
use crate::keys::{ConnectionParams, SessionParams};
use crate::login::Outcome;
use crate::pdu::TaskAttribute;
use crate::serial::{CmdSn, StatSn};

/// Connections of one session. One bit each in [`Wakes`]; no measured path needed half of them.
pub const CONNECTIONS_MAX: usize = 64;

/// A connection within a [`Session`](super::Session), valid until `handle_connection_lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u8);

impl ConnectionId {
    /// Index below [`CONNECTIONS_MAX`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of connections that have something to transmit or to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes(pub(super) u64);

impl Iterator for Wakes {
    type Item = ConnectionId;

    fn next(&mut self) -> Option<ConnectionId> {
        let index = self.0.trailing_zeros() as u8;
        self.0 &= self.0.wrapping_sub(1);
        (usize::from(index) < CONNECTIONS_MAX).then_some(ConnectionId(index))
    }
}

/// What login left behind: where a connection's numbers start.
#[derive(Clone, Copy, Debug)]
pub struct Established {
    /// The session's handle.
    pub tsih: Tsih,
    /// The connection's ID.
    pub cid: Cid,
    /// Agreed for the session.
    pub session: SessionParams,
    /// Agreed for the connection.
    pub connection: ConnectionParams,
    /// CmdSN of the first command.
    pub cmd_sn: CmdSn,
    /// From the final Login Response.
    pub exp_cmd_sn: CmdSn,
    /// From the final Login Response.
    pub max_cmd_sn: CmdSn,
    /// StatSN that the target's first response will carry.
    pub exp_stat_sn: StatSn,
}

/// A SCSI command. Cloning shares the payload.
#[derive(Clone, Debug)]
pub struct Command {
    /// Logical unit.
    pub lun: Lun,
    /// Command descriptor block, zero-padded.
    pub cdb: [u8; 16],
    /// Payload of a write, else empty.
    pub data_out: Bytes,
    /// Length of the buffer for a read, else 0. Not both: bidirectional commands are not offered.
    pub data_in_len: u32,
    /// Task attribute (SAM-4 §8.9).
    pub attribute: TaskAttribute,
}

/// Why a command was not taken. The context comes back with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// All tags are in use.
    #[error("all {TASKS_MAX} task tags are in use")]
    NoTag,
    /// The session has ended or is being closed, or its last connection is logging out.
    #[error("no connection takes commands")]
    NoConnection,
    /// A payload over 4 GiB, or payload both ways.
    #[error("no command moves this much data, or data both ways")]
    Transfer,
}

/// Why a connection cannot join, or cannot leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The target assigned another session handle.
    #[error("login opened session {got}, not {expected}")]
    OtherSession {
        /// TSIH of the login.
        got: Tsih,
        /// TSIH of this session.
        expected: Tsih,
    },
    /// MaxConnections, or [`CONNECTIONS_MAX`].
    #[error("session has all {0} connections it may have")]
    TooMany(usize),
    /// The CID is in use.
    #[error("connection {0} exists")]
    Duplicate(Cid),
    /// The session is over.
    #[error("session has ended")]
    Ended,
    /// The last connection leaves by closing the session.
    #[error("the session's last connection cannot be removed, only the session closed")]
    Last,
    /// No such connection, or it is leaving already.
    #[error("no such connection")]
    Unknown,
}

impl Command {
    /// What the command weighs when connections are compared.
    pub(super) fn cost(&self) -> u64 {
        self.data_out.len() as u64 + u64::from(self.data_in_len) + super::COMMAND_COST_BYTES
    }
}

impl From<&Outcome> for Established {
    fn from(outcome: &Outcome) -> Self {
        Self {
            tsih: outcome.tsih,
            cid: outcome.cid,
            session: outcome.session,
            connection: outcome.connection,
            cmd_sn: outcome.cmd_sn,
            exp_cmd_sn: outcome.exp_cmd_sn,
            max_cmd_sn: outcome.max_cmd_sn,
            exp_stat_sn: outcome.next_stat_sn,
        }
    }
}
