//! Why a disk could not be connected.

use std::io;

use super::handshake::HandshakeError;

/// Why a server cannot be used as a disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refused.
    #[error("cannot connect: {0}")]
    Io(#[source] io::Error),
    /// No connection, or no handshake, in time.
    #[error("cannot connect: no answer within {:?}", super::session::CONNECT_TIME_MAX)]
    TimedOut,
    /// Servers do so when they do not like the export's name, or whom they talk to.
    #[error("the server closed the connection in the handshake")]
    ClosedInHandshake,
    /// The server refused, or broke the protocol.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// Smaller blocks would be needed.
    #[error(
        "the export's {size} bytes are no multiple of the block size {block_size}; \
         let the server round them up (nbdkit --filter=truncate round-up={block_size})"
    )]
    Size {
        /// Capacity in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// More than a device can have.
    #[error("the export has {0} bytes, more than a disk can have")]
    TooLarge(u64),
    /// What came back is not what was there.
    #[error("the export has changed: {0}")]
    Changed(String),
    /// The command that serves it.
    #[error("{command}: {why}")]
    Command {
        /// As it was given.
        command: String,
        /// What went wrong.
        why: String,
    },
}
