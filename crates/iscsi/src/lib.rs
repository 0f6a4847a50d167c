//! The tokio shell around `iscsi-proto`: sockets, timers and disks for both roles.
//!
//! What it is not: it decides nothing about the protocol. One loop ([`driver::drive`]) moves bytes
//! between a socket and a [`driver::Role`], which is one connection's view of a session core.

pub mod driver;
pub mod initiator;
pub mod poll;
pub mod target;
pub mod transport;
