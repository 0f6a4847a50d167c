//! Why a target refuses a login, and what it tells the initiator.

use super::super::chap::ChapError;
use crate::keys::NegotiationError;
use crate::keys::text::TextError;
use crate::names::{NameError, TargetAddress};
use crate::pdu::{LoginStatus, Stage};

/// A login that is over: the status to be sent and the reason for our log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("login refused with {status}: {reason}")]
pub struct LoginFailure {
    /// For the Login Response.
    pub status: LoginStatus,
    /// For the log: an initiator that is not authenticated learns the status only.
    pub reason: FailureReason,
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FailureReason {
    /// The login goes on and on.
    #[error("more than {max} login requests")]
    TooManyPdus {
        /// The limit.
        max: u32,
    },
    /// A request after the last response was due.
    #[error("login request after the end of login")]
    Over,
    /// No common version.
    #[error("versions {min}–{max} offered, 0 supported")]
    Version {
        /// Version-min.
        min: u8,
        /// Version-max.
        max: u8,
    },
    /// A field that must stay the same changed between two requests.
    #[error("{field} changed during login")]
    Changed {
        /// The field.
        field: &'static str,
    },
    /// A stage that does not follow.
    #[error("CSG {csg}, NSG {nsg} (T {transit}) while in stage {expected}")]
    Stage {
        /// Current stage as requested.
        csg: Stage,
        /// Next stage as requested.
        nsg: Stage,
        /// T bit.
        transit: bool,
        /// The stage we are in.
        expected: Stage,
    },
    /// T and C bits together.
    #[error("transit and continue bits both set")]
    TransitAndContinue,
    /// Text while our own was not sent completely.
    #[error("text in a request that should only ask for more")]
    UnexpectedText,
    /// The text is none.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A key is wrong.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// A key that the first request must carry.
    #[error("{key} is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A name is none.
    #[error("{key}: {source}")]
    Name {
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        source: NameError,
    },
    /// Refused by the authenticator: no such target, not for this initiator …
    #[error("not admitted")]
    NotAdmitted,
    /// The target is elsewhere.
    #[error("moved to {address}")]
    Moved {
        /// Where.
        address: TargetAddress,
    },
    /// No common way to authenticate.
    #[error("AuthMethod={offered}, but {method} is needed")]
    AuthMethod {
        /// What the initiator offered.
        offered: String,
        /// What we need.
        method: &'static str,
    },
    /// The initiator goes on without authentication.
    #[error("the target demands authentication")]
    AuthenticationRequired,
    /// CHAP failed.
    #[error(transparent)]
    Chap(#[from] ChapError),
}

impl FailureReason {
    /// The status for most reasons; admission has its own.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
    //# Whenever an iSCSI target gets a request or response whose keys, or their values, are not
    //# according to the step definition, it MUST answer with a Login reject with the "Initiator
    //# Error" or "Missing Parameter" status.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
    //# These statuses are not intended for cryptographically incorrect values such as the CHAP
    //# response, for which the "Authentication Failure" status MUST be specified.
    fn status(&self) -> LoginStatus {
        match self {
            Self::Version { .. } => LoginStatus::UNSUPPORTED_VERSION,
            Self::Missing { .. } | Self::Chap(ChapError::Missing { .. }) => {
                LoginStatus::MISSING_PARAMETER
            }
            Self::Chap(ChapError::Invalid { .. }) => LoginStatus::INITIATOR_ERROR,
            Self::NotAdmitted => LoginStatus::AUTHORIZATION_FAILURE,
            Self::Moved { .. } => LoginStatus::TARGET_MOVED_TEMPORARILY,
            Self::AuthMethod { .. } | Self::AuthenticationRequired | Self::Chap(_) => {
                LoginStatus::AUTHENTICATION_FAILURE
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
            //# If such an attempt is detected by the target, the target MUST respond with a Login
            //# reject (initiator error); if detected by the initiator, the initiator MUST drop the
            //# connection.
            _ => LoginStatus::INITIATOR_ERROR,
        }
    }
}

impl<R: Into<FailureReason>> From<R> for LoginFailure {
    fn from(reason: R) -> Self {
        let reason = reason.into();
        Self { status: reason.status(), reason }
    }
}
