//! The NBD client: an export of somebody's server as a [`block::BlockDevice`].
//!
//! [`NbdDisk`] rides out a server that goes away and comes back: what was under way is sent again,
//! and what was acknowledged and not flushed is written again before anything else goes, so that no
//! flush vouches for what a restarted server has forgotten (docs/gateway.md).
//!
//! `handshake` and `reply` know no sockets, `state` decides without them, `session` has them, and
//! `supervisor` makes new ones. Not here: TLS, extended headers, several metadata contexts.

mod command;
mod disk;
mod error;
mod geometry;
pub mod handshake;
mod op;
mod replay;
pub mod reply;
mod session;
mod shared;
mod state;
mod supervisor;
#[cfg(test)]
mod tests;

pub use command::ServerCommand;
pub use disk::NbdDisk;
pub use error::ConnectError;

use std::time::Duration;

/// How a disk is used. The defaults are those of `iscsi::initiator::Config` where both have them.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most connections, where the server says that it knows about several: 1 to
    /// [`CONNECTIONS_MAX`]. Four keep a server with a thread for each connection busy.
    pub connections: usize,
    /// Refuse all changes here.
    pub read_only: bool,
    /// How long requests wait for a server that is gone before they fail.
    pub replacement_timeout: Duration,
    /// Most bytes, about, that are acknowledged and unflushed, and kept here to be written again.
    /// At half of it the disk flushes by itself.
    pub unflushed_len_max: u64,
    /// Others write to the export, too: after an interruption nothing is written again that could
    /// land on theirs, and the next flush fails if anything was unflushed.
    pub shared: bool,
}

/// Most connections of one disk: servers serve 16 clients and more.
pub const CONNECTIONS_MAX: usize = 16;

impl Default for Config {
    fn default() -> Self {
        Self {
            connections: 4,
            read_only: false,
            replacement_timeout: Duration::from_secs(120),
            unflushed_len_max: 256 << 20,
            shared: false,
        }
    }
}
