//! Both iSCSI cores joined by a simulated network under a virtual clock, with a model that knows
//! what a disk may answer and an observer that knows what may be on the wire.
//!
//! A seed decides everything: keys, limits, network, medium, work and trouble. So a failure is one
//! number, and it happens again. What is not simulated: sockets and threads (`crates/iscsi`),
//! several initiators, and R-Data SNACKs. SCSI (`crates/scsi`) and storage that forgets are in a
//! world of their own, [`durability`], where no PDU is damaged.

#![forbid(unsafe_code)]

mod clock;
mod coverage;
mod cuts;
mod damage;
pub mod durability;
mod env;
mod host;
mod logins;
pub mod mirror;
mod model;
mod net;
mod rng;
mod sabotage;
mod scenario;
mod server;
mod storage;
mod stream;
mod wire_check;
mod workload;
mod world;

pub use coverage::Coverage;
pub use net::Fault;
pub use sabotage::Sabotage;
pub use world::{Options, Report, run, run_all};
