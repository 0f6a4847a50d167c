//! The world with storage in it: faults of the storage *and* of the network in one run, with one
//! oracle. What was acknowledged and covered by a flush that ended well is on the medium; what a
//! failure swallowed is told; a read returns nothing that is older than what was acknowledged.
//!
//! Both ends are the product's own: session cores and the decisions about durability of
//! `iscsi-proto`, the device server of `scsi`, the layers of `block`. What is simulated is what
//! lies between and below: the network, the clock, and a storage whose cache forgets when the power
//! fails, and whose write-back fails.
//!
//! Not here: PDUs that are lost or damaged, and the observer of the wire (the other world of this
//! crate); the shells of `crates/iscsi`, which both ends' code here mirrors; several initiators.

mod cdb;
mod disk;
mod env;
mod logins;
mod oracle;
mod sabotage;
mod scenario;
mod sense;
mod shell;
mod target;
mod trouble;
mod world;

pub use sabotage::Sabotage;
pub use world::{Options, run, run_all};
