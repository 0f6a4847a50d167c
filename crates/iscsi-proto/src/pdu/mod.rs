//! Every PDU of RFC 7143 §11 as bytes and as a typed value, one topic per file.
//!
//! Two layers: [`Header`] is 48 bytes and AHSs and can hold anything; [`Pdu`] is what they mean.
//! Data segments are not here: they never pass through the codec. What they hold is text
//! ([`crate::keys`]), sense ([`encode_sense`]) or data.

#[macro_use]
mod code;

mod ahs;
mod async_message;
mod data;
mod header;
mod login;
mod logout;
mod nop;
mod r2t;
mod reject;
mod scsi;
mod snack;
mod task_management;
mod text;

pub use ahs::EXTENDED_CDB_MAX;
pub use async_message::{AsyncEvent, AsyncMessage};
pub use data::{DataIn, DataInStatus, DataOut};
pub use header::{BHS_LEN, DATA_SEGMENT_LENGTH_LIMIT, Header, Opcode};
pub use login::{LoginRequest, LoginResponse, LoginStatus, Stage, VERSION};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResponseCode};
pub use nop::{NopIn, NopOut};
pub use r2t::R2t;
pub use reject::{Reject, RejectReason};
pub use scsi::{
    Residual, ResponseCode, ScsiCommand, ScsiResponse, TaskAttribute, encode_sense, parse_sense,
};
pub use snack::{SnackKind, SnackRequest};
pub use task_management::{
    TaskManagementFunction, TaskManagementRequest, TaskManagementResponse,
    TaskManagementResponseCode,
};
pub use text::{TextRequest, TextResponse};

/// Why a header is not a PDU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PduError {
    /// No PDU has this opcode: answered with Reject, "command not supported".
    #[error("unknown opcode {opcode}")]
    Opcode {
        /// The opcode.
        opcode: Opcode,
    },
    /// AHSs in a PDU that has none (§11.2.1.5).
    #[error("{opcode} with {length} bytes of AHS")]
    UnexpectedAhs {
        /// Opcode of the PDU.
        opcode: Opcode,
        /// TotalAHSLength in bytes.
        length: usize,
    },
    /// `ahs` and TotalAHSLength differ, or a segment ends behind the last one's end.
    #[error("AHS at byte {at} exceeds TotalAHSLength")]
    AhsTruncated {
        /// Offset of the segment in the AHS area.
        at: usize,
    },
    /// Reserved AHSType.
    #[error("reserved AHSType {kind}")]
    AhsType {
        /// The type.
        kind: u8,
    },
    /// The same AHSType twice.
    #[error("AHSType {kind} twice")]
    AhsRepeated {
        /// The type.
        kind: u8,
    },
    /// A length that this AHSType cannot have.
    #[error("AHSType {kind} of length {length}")]
    AhsLength {
        /// The type.
        kind: u8,
        /// AHSLength in bytes.
        length: usize,
    },
    /// Overflow and underflow at once (§11.4.1).
    #[error("{opcode}: overflow and underflow bits both set")]
    Residual {
        /// Opcode of the PDU.
        opcode: Opcode,
    },
    /// A Data-In with the status bit but without the final bit (§11.7.3).
    #[error("Data-In: flags {flags:#04x} contradict each other")]
    DataInFlags {
        /// Byte 1 of the header.
        flags: u8,
    },
    /// F and C both set (§11.10.2, §11.12.3).
    #[error("{opcode}: final (transit) and continue bits both set")]
    FinalAndContinue {
        /// Opcode of the PDU.
        opcode: Opcode,
    },
}

/// Defines [`Pdu`]: one variant per type, parsed by opcode.
macro_rules! pdus {
    ($($(#[$doc:meta])* $name:ident = $opcode:ident,)*) => {
        /// A PDU's header, typed.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Pdu {
            $($(#[$doc])* $name($name),)*
        }

        impl Pdu {
            /// Reads what a header means.
            ///
            /// # Errors
            /// [`PduError`] if the opcode is unknown or fields contradict each other.
            pub fn parse(header: &Header) -> Result<Self, PduError> {
                if header.ahs.len() != header.total_ahs_length() {
                    return Err(PduError::AhsTruncated { at: header.ahs.len() });
                }
                let opcode = header.opcode();
                //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.5
                //# The TotalAHSLength is only used in PDUs that have an AHS and MUST be 0 in all
                //# other PDUs.
                let has_ahs = opcode == Opcode::SCSI_COMMAND || opcode.name().is_none();
                if !header.ahs.is_empty() && !has_ahs {
                    return Err(PduError::UnexpectedAhs { opcode, length: header.ahs.len() });
                }
                match opcode {
                    $(Opcode::$opcode => Ok(Self::$name($name::parse(header)?)),)*
                    opcode => Err(PduError::Opcode { opcode }),
                }
            }

            /// Writes the header; see each type's `encode`.
            pub fn encode(&self, data_segment_length: u32) -> Header {
                match self {
                    $(Self::$name(pdu) => pdu.encode(data_segment_length),)*
                }
            }

            /// The PDU's opcode.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$name(_) => Opcode::$opcode,)*
                }
            }
        }

        $(impl From<$name> for Pdu {
            fn from(pdu: $name) -> Self {
                Self::$name(pdu)
            }
        })*
    };
}

pdus! {
    /// NOP-Out.
    NopOut = NOP_OUT,
    /// SCSI Command.
    ScsiCommand = SCSI_COMMAND,
    /// Task Management Function Request.
    TaskManagementRequest = TASK_MANAGEMENT_REQUEST,
    /// Login Request.
    LoginRequest = LOGIN_REQUEST,
    /// Text Request.
    TextRequest = TEXT_REQUEST,
    /// SCSI Data-Out.
    DataOut = DATA_OUT,
    /// Logout Request.
    LogoutRequest = LOGOUT_REQUEST,
    /// SNACK Request.
    SnackRequest = SNACK_REQUEST,
    /// NOP-In.
    NopIn = NOP_IN,
    /// SCSI Response.
    ScsiResponse = SCSI_RESPONSE,
    /// Task Management Function Response.
    TaskManagementResponse = TASK_MANAGEMENT_RESPONSE,
    /// Login Response.
    LoginResponse = LOGIN_RESPONSE,
    /// Text Response.
    TextResponse = TEXT_RESPONSE,
    /// SCSI Data-In.
    DataIn = DATA_IN,
    /// Logout Response.
    LogoutResponse = LOGOUT_RESPONSE,
    /// Ready To Transfer.
    R2t = R2T,
    /// Asynchronous Message.
    AsyncMessage = ASYNC_MESSAGE,
    /// Reject.
    Reject = REJECT,
}
