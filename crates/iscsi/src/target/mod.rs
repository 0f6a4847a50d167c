//! The target server: listens, lets initiators log in, and runs their connections against the
//! SCSI device server. What a session may do is decided in `iscsi_proto::target`.

mod accept;
mod access;
mod budget;
mod catalog;
mod completion;
mod connection;
mod counters;
mod departed;
mod descriptors;
mod gate;
mod host;
mod limit;
mod lobby;
mod log_limit;
mod login;
mod network;
mod overview;
mod path;
mod recovery;
mod server;
mod session;
mod shared;
mod text;
mod view;
mod write_buffers;

pub use accept::{BindError, BoundPortal};
pub use access::{AccessRule, AccessRules, Chap, ChapConfigError};
pub use catalog::{Catalog, CongestionChoice, Limits, PortalSpec, TargetSpec};
pub use counters::CounterView;
pub use descriptors::raise_descriptor_limit;
pub use iscsi_proto::target::SessionConfig;
pub use limit::{BURST_DEFAULT, BURST_MAX, BYTES_PER_S_MIN, Limit, LimitView};
pub use overview::{ConnectionView, SessionView};
pub use server::{Dropped, Server, ServerConfig};
