//! The target daemon: what its configuration says, is served; what an operator changes, is changed
//! while it runs, by editing the configuration or by commands (`life`). Beside it, a mirror as a
//! process ([`mirror`]).
//!
//! What it is not: it decides nothing about the protocol. It configures [`iscsi`] and [`scsi`], and
//! reads their counters.

pub mod admin;
mod attached;
mod check;
mod clients;
pub mod config;
mod daemon;
mod http;
mod isns;
mod life;
mod limits;
mod logging;
mod lun;
mod metrics;
pub mod mirror;
mod pair;
mod shared_place;
pub mod socket;
mod state;
mod toml_text;
mod uplink;
mod volume;
mod whole_file;

pub use attached::Attached;
pub use check::check;
pub use clients::Clients;
pub use daemon::{DaemonError, run};
pub use http::MetricsListener;
