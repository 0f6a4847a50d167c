//! Why a negotiation fails.

use super::table::Key;
use crate::pdu::Stage;

/// Why a negotiation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NegotiationError {
    /// A key came a second time, with another value or as a second offer.
    #[error("{key} more than once")]
    Repeated {
        /// The key.
        key: Key,
    },
    /// A key that only we may send.
    #[error("{key} is not the peer's to send")]
    WrongSender {
        /// The key.
        key: Key,
    },
    /// A key that may not come in this stage.
    #[error("{key} in stage {stage}")]
    WrongStage {
        /// The key.
        key: Key,
        /// The stage.
        stage: Stage,
    },
    /// A declared value out of its range, or text longer than 255 bytes.
    #[error("{key}: value {value:?} is not valid")]
    InvalidValue {
        /// The key.
        key: Key,
        /// The value.
        value: String,
    },
    /// The answer to our offer is not one that the offer allows.
    #[error("{key}: answer {value:?} does not fit what was offered")]
    IllegalAnswer {
        /// The key.
        key: Key,
        /// The answer.
        value: String,
    },
    /// Both sides have nothing in common where they must.
    #[error("{key}: no value that both sides accept")]
    NoCommonValue {
        /// The key.
        key: Key,
    },
}
