//! iSCSI in a byte stream, from beside: PDU headers are found, payload is stepped over, and after a
//! hole the next plausible header is looked for. Payload is never kept, but for login text.

mod decoder;
mod negotiated;
mod plausible;

pub use decoder::{DecodeCounts, Decoder, Digests, PduEvent};
pub use negotiated::Negotiated;
pub use plausible::{is_plausible, opcode_belongs};

use serde::Serialize;

/// Which way a PDU goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Initiator to target.
    ToTarget,
    /// Target to initiator.
    ToInitiator,
}

impl Direction {
    /// 0 or 1.
    pub const fn index(self) -> usize {
        match self {
            Self::ToTarget => 0,
            Self::ToInitiator => 1,
        }
    }

    /// The other one.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::ToTarget => Self::ToInitiator,
            Self::ToInitiator => Self::ToTarget,
        }
    }
}

#[cfg(test)]
mod tests;
