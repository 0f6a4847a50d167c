//! What both roles share of a connection: where incoming data goes, what goes out, and the
//! agreed parameters.

use bytes::Bytes;

use crate::ids::Itt;
use crate::pdu::Header;

/// Where the data segment of the PDU whose header was just handled belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// There is no data segment; the PDU is complete.
    None,
    /// Into the buffer of task `itt`, from byte `offset` on. The core has checked that the segment
    /// fits the task's buffer.
    Task {
        /// The task.
        itt: Itt,
        /// First byte in the task's buffer.
        offset: u32,
    },
    /// Into a small buffer that is handed back with `handle_data`: text, login, NOP, sense.
    Scratch,
    /// Read and thrown away.
    Discard,
}

/// One PDU to be sent: header (BHS and AHS, without digest) and payload, without padding.
/// Digests and padding are added by whoever writes it (`frame::Framing`).
#[derive(Clone, Debug)]
pub struct Transmit {
    /// BHS and AHS with both length fields set.
    pub header: Header,
    /// Data segment, shared with its owner and never copied.
    pub payload: Bytes,
}
