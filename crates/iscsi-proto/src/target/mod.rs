//! The target's side of a session (RFC 7143 §4.2, §8.3): command order over N connections, data
//! phases, task management, logout. Sans-IO; which sessions exist is in [`registry`].
//!
//! [`Session`] is one struct for all connections of a session. Whoever drives it holds a lock
//! around it for header handling only. Its methods form four families:
//!
//! * `handle_*`: something happened. Per PDU: `handle_header`, the payload is read, `handle_data`.
//! * commands: `complete`, `text_reply`, `management_done`, ….
//! * `poll_*`: output. After each `handle_*` or command, drain `poll_event(conn)` for the own
//!   connection, then `poll_wake` (other connections have output now), then
//!   `poll_transmit(conn)` when the socket has room.
//! * getters.

mod admission;
mod attention;
mod attributes;
mod config;
mod connections;
mod data_in;
mod data_out;
mod event;
mod faults;
mod fence;
mod logout;
mod management;
mod order;
mod orphans;
mod query;
mod reassign;
mod receipt;
mod receive;
pub mod registry;
mod retain;
mod sequence;
mod session;
mod snack;
mod state;
mod task;
mod tasks;
mod text;
mod timer;
mod transmit;

pub use admission::Admission;
pub use config::SessionConfig;
pub use event::{ConnId, Event, Received, Recovery, SessionError};
pub use management::Rights;
pub use orphans::Orphans;
pub use receipt::{Delivery, Receipt};
pub use registry::{Attach, Registry};
pub use session::Session;
pub use state::{ConnectionEvent, ConnectionState};
pub use task::{Completion, Execute};

#[cfg(test)]
mod tests;
