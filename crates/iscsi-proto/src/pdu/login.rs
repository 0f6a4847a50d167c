//! Login Request and Login Response (RFC 7143 §11.12, §11.13).

use super::text::{encode_flags, parse_flags};
use super::{Header, Opcode, PduError};
use crate::ids::{Cid, Isid, Itt, Tsih};
use crate::serial::{CmdSn, StatSn};

/// The one version of the protocol that exists (§11.12.4).
pub const VERSION: u8 = 0x00;

wire_code! {
    /// Stage of the login, CSG and NSG (§11.12.3); 2 is reserved.
    Stage(u8) {
        /// Who is it?
        SECURITY_NEGOTIATION = 0,
        /// How do we talk?
        LOGIN_OPERATIONAL_NEGOTIATION = 1,
        /// Login is over.
        FULL_FEATURE_PHASE = 3,
    }
}

wire_code! {
    /// Status-Class (high byte) and Status-Detail (low byte) of a Login Response (§11.13.5).
    LoginStatus(u16) {
        /// So far so good.
        SUCCESS = 0x0000,
        /// Try the TargetAddress given, this time.
        TARGET_MOVED_TEMPORARILY = 0x0101,
        /// Try the TargetAddress given, from now on.
        TARGET_MOVED_PERMANENTLY = 0x0102,
        /// Miscellaneous error of the initiator.
        INITIATOR_ERROR = 0x0200,
        /// The initiator could not be authenticated, or the target does not support its method.
        AUTHENTICATION_FAILURE = 0x0201,
        /// The initiator may not use this target.
        AUTHORIZATION_FAILURE = 0x0202,
        /// The target does not exist here.
        NOT_FOUND = 0x0203,
        /// The target was removed for good.
        TARGET_REMOVED = 0x0204,
        /// None of the versions offered is supported.
        UNSUPPORTED_VERSION = 0x0205,
        /// The session has as many connections as it may have.
        TOO_MANY_CONNECTIONS = 0x0206,
        /// A required key (InitiatorName, TargetName …) is missing.
        MISSING_PARAMETER = 0x0207,
        /// This connection cannot be part of that session.
        CANNOT_INCLUDE_IN_SESSION = 0x0208,
        /// The target does not do this type of session.
        SESSION_TYPE_NOT_SUPPORTED = 0x0209,
        /// There is no session of this TSIH.
        SESSION_DOES_NOT_EXIST = 0x020a,
        /// Something that is not allowed during login.
        INVALID_DURING_LOGIN = 0x020b,
        /// Miscellaneous error of the target.
        TARGET_ERROR = 0x0300,
        /// The target is not available now.
        SERVICE_UNAVAILABLE = 0x0301,
        /// The target ran out of something.
        OUT_OF_RESOURCES = 0x0302,
    }
}

impl LoginStatus {
    /// Status-Class.
    pub const fn class(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Status-Detail.
    pub const fn detail(self) -> u8 {
        self.0 as u8
    }

    /// Class 0.
    pub const fn is_success(self) -> bool {
        self.class() == 0
    }

    /// Class 1: the answer carries a TargetAddress.
    pub const fn is_redirection(self) -> bool {
        self.class() == 1
    }

    /// Class 3: the initiator may try again later; of the classes of failure the only one.
    pub const fn may_retry(self) -> bool {
        self.class() == 3
    }
}

/// Login Request (§11.12). Data segment: text. The I bit is always set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// T: ready to go on to `nsg`.
    pub transit: bool,
    /// C: the text goes on in the next PDU.
    pub continues: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage; valid with `transit`.
    pub nsg: Stage,
    /// Highest version the initiator supports.
    pub version_max: u8,
    /// Lowest version the initiator supports.
    pub version_min: u8,
    /// The initiator's part of the session's name.
    pub isid: Isid,
    /// The target's part, 0 for a new session.
    pub tsih: Tsih,
    /// Tag, the same in every request of a login.
    pub itt: Itt,
    /// Connection ID.
    pub cid: Cid,
    /// On a leading login the session's first CmdSN, later the next one; never consumed.
    pub cmd_sn: CmdSn,
    /// Next StatSN the initiator expects on this connection.
    pub exp_stat_sn: StatSn,
}

impl LoginRequest {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let (transit, continues) = parse_flags(header)?;
        Ok(Self {
            transit,
            continues,
            csg: Stage(header.bhs[1] >> 2 & 3),
            nsg: Stage(header.bhs[1] & 3),
            version_max: header.bhs[2],
            version_min: header.bhs[3],
            isid: Isid(header.array(8)),
            tsih: Tsih(header.be16(14)),
            itt: header.itt(),
            cid: Cid(header.be16(20)),
            cmd_sn: header.cmd_sn(),
            exp_stat_sn: header.exp_stat_sn(),
        })
    }

    /// The header for `data_segment_length` bytes of text.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::LOGIN_REQUEST, data_segment_length);
        header.set_immediate(true);
        header.bhs[1] =
            encode_flags(self.transit, self.continues) | (self.csg.0 & 3) << 2 | self.nsg.0 & 3;
        header.bhs[2] = self.version_max;
        header.bhs[3] = self.version_min;
        header.put(8, self.isid.0);
        header.put(14, self.tsih.0.to_be_bytes());
        header.put32(16, self.itt.0);
        header.put(20, self.cid.0.to_be_bytes());
        header.put_request_numbers(self.cmd_sn, self.exp_stat_sn);
        header
    }
}

/// Login Response (§11.13). Data segment: text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// T: the target agrees to go on to `nsg`.
    pub transit: bool,
    /// C: the text goes on in the next PDU.
    pub continues: bool,
    /// Current stage.
    pub csg: Stage,
    /// Next stage; valid with `transit`.
    pub nsg: Stage,
    /// Highest version the target supports.
    pub version_max: u8,
    /// The version chosen.
    pub version_active: u8,
    /// As in the request.
    pub isid: Isid,
    /// As in the request; in the last response of a new session the handle given to it.
    pub tsih: Tsih,
    /// As in the request.
    pub itt: Itt,
    /// Status sequence number; valid with Status-Class 0.
    pub stat_sn: StatSn,
    /// Next CmdSN the target expects; valid with Status-Class 0.
    pub exp_cmd_sn: CmdSn,
    /// Highest CmdSN the target accepts; valid with Status-Class 0.
    pub max_cmd_sn: CmdSn,
    /// Status-Class and Status-Detail.
    pub status: LoginStatus,
}

impl LoginResponse {
    pub(super) fn parse(header: &Header) -> Result<Self, PduError> {
        let (transit, continues) = parse_flags(header)?;
        Ok(Self {
            transit,
            continues,
            csg: Stage(header.bhs[1] >> 2 & 3),
            nsg: Stage(header.bhs[1] & 3),
            version_max: header.bhs[2],
            version_active: header.bhs[3],
            isid: Isid(header.array(8)),
            tsih: Tsih(header.be16(14)),
            itt: header.itt(),
            stat_sn: header.stat_sn(),
            exp_cmd_sn: header.exp_cmd_sn(),
            max_cmd_sn: header.max_cmd_sn(),
            status: LoginStatus(header.be16(36)),
        })
    }

    /// The header for `data_segment_length` bytes of text.
    ///
    /// # Panics
    /// If the data segment does not fit 24 bits.
    pub fn encode(&self, data_segment_length: u32) -> Header {
        let mut header = Header::new(Opcode::LOGIN_RESPONSE, data_segment_length);
        header.bhs[1] =
            encode_flags(self.transit, self.continues) | (self.csg.0 & 3) << 2 | self.nsg.0 & 3;
        header.bhs[2] = self.version_max;
        header.bhs[3] = self.version_active;
        header.put(8, self.isid.0);
        header.put(14, self.tsih.0.to_be_bytes());
        header.put32(16, self.itt.0);
        header.put_window(self.stat_sn, self.exp_cmd_sn, self.max_cmd_sn);
        header.put(36, self.status.0.to_be_bytes());
        header
    }
}
