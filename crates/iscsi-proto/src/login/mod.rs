//! Login of both roles (RFC 7143 §6.3): from the first Login Request to full-feature phase.
//!
//! Neither side knows a socket: requests and responses go in and out as typed PDUs with their
//! text. Random bytes are arguments; time limits are the caller's.

pub mod chap;
pub mod initiator;
mod security;
pub mod target;

use self::chap::Algorithm;
use crate::ids::{Cid, Isid, Tsih};
use crate::keys::{ConnectionParams, SessionParams};
use crate::serial::{CmdSn, StatSn};

/// Most login PDUs of one side. An exchange with CHAP takes five; the rest is for texts of several
/// PDUs. It ends a login that makes no progress, and one whose C bit never ends.
pub const LOGIN_PDUS_MAX: u32 = 32;

/// What a login ends with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The initiator, in lower case.
    pub initiator_name: String,
    /// The target, in lower case; `None` in a discovery session.
    pub target_name: Option<String>,
    /// SessionType is Discovery: only text, NOP and logout may follow.
    pub discovery: bool,
    /// The initiator's part of the session's name.
    pub isid: Isid,
    /// At a target: as requested, 0 for a new session. At an initiator: as given.
    pub tsih: Tsih,
    /// Connection ID.
    pub cid: Cid,
    /// Agreed for the session. At a target that a connection joins (`tsih` not 0) leading-only
    /// keys were not negotiated: the session's own parameters hold, not these.
    pub session: SessionParams,
    /// Agreed for the connection; framing and limits change to it behind the last Login Response.
    pub connection: ConnectionParams,
    /// At a target: the initiator's CHAP user. At an initiator: the target's, if authentication
    /// was mutual.
    pub authenticated_as: Option<String>,
    /// At an initiator: the algorithm it proved itself with; `None` where the target wanted no
    /// proof.
    pub chap: Option<Algorithm>,
    /// CmdSN of the login requests: the session's first one, as login does not consume it.
    pub cmd_sn: CmdSn,
    /// StatSN of the next status: a target's next one, the one an initiator expects.
    pub next_stat_sn: StatSn,
    /// At an initiator: ExpCmdSN of the last response.
    pub exp_cmd_sn: CmdSn,
    /// At an initiator: MaxCmdSN of the last response.
    pub max_cmd_sn: CmdSn,
    /// The peer's alias, if it told one.
    pub peer_alias: Option<String>,
    /// TargetPortalGroupTag, if the target told it.
    pub portal_group_tag: Option<u16>,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}
