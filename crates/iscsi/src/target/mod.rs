//! The target server: listens, lets initiators log in, and runs their connections against the
//! SCSI device server. What a session may do is decided in `iscsi_proto::target`.

mod access;
mod connection;
mod host;
mod login;
mod server;
mod session;

pub use access::{Chap, ChapConfigError};
pub use iscsi_proto::target::SessionConfig;
pub use server::{BindError, Server, ServerConfig};
