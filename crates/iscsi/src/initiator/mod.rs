//! The initiator: a logical unit of a target as a [`block::BlockDevice`], over one or several
//! connections, that survives the loss of them and a restart of the target.
//!
//! From the outside in: [`RemoteDisk`] turns block operations into SCSI commands (`disk`, `cdb`);
//! `shared` and `state` hold what is under way and decide what becomes of a command that ended;
//! `role` is a connection as the driver loop sees it; `supervisor` keeps sessions alive, with
//! `group`, `growth`, `extra`, `connect` and `probe`; `path` chooses their number, `stride` how
//! long a command is. What a volatile cache may lose, and what follows from that, is decided in
//! `iscsi_proto::initiator::durability`; the protocol itself is `iscsi_proto::initiator`.

pub mod cdb;
mod config;
mod connect;
mod dial;
mod discovery;
mod disk;
mod extended_copy;
mod extra;
mod failure;
mod fence;
mod group;
mod growth;
mod inside;
mod isid;
mod leg;
mod life;
mod mark;
mod member;
mod op;
mod ordered;
mod outage;
mod path;
mod probe;
mod rejoin;
mod replay;
mod report;
mod reservation;
mod role;
pub mod sense;
mod shared;
mod state;
mod stride;
mod supervisor;
mod throttle;
mod units;
pub mod url;

pub use config::{Config, ERROR_RECOVERY_LEVEL_DEFAULT, ERROR_RECOVERY_LEVEL_MAX};
pub use connect::ConnectError;
pub use dial::{Dial, Dialling};
pub use discovery::discover;
pub use disk::RemoteDisk;
pub use iscsi_proto::keys::send_targets::TargetRecord;
pub use iscsi_proto::login::chap::{Algorithm, ChapCredentials, Secret};
pub use isid::{IsidChoice, lock_directories, lock_directory};
pub use leg::RemoteLeg;
pub use mark::WriteMark;
pub use path::{PathChange, PathConnection, PathReport, Share, ShareError};
pub use probe::{ProbeError, UnitIdentity};
pub use report::{ConnectionReport, SessionReport};
pub use units::{UnitFound, UnitsFound, units};
pub use url::{CredentialsError, PASSWORD_VARIABLE, Portal, Url, UrlError, credentials};
