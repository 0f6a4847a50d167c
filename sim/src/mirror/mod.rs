//! The mirror in a world without time and sockets: the product's engine (`block::mirror::Mirror`)
//! over disks that forget, links that fail and a metadata disk that tears, with an oracle that
//! knows what each image may hold, and a cut at every operation.
//!
//! A seed is a run without cuts that are not its own, then the same run again and again, each time
//! with a cut at another of its operations: of the power here, of a leg, of everything, of a link,
//! or the end of the process. Afterwards the mirror is opened, let settle and looked at.
//!
//! Not here: that a leg is iSCSI (the other worlds of this crate).

mod content;
mod disk;
mod engine;
mod executor;
mod guest;
mod history;
mod intruder;
mod judge;
mod leg;
mod line;
mod operator;
mod points;
mod sabotage;
mod scenario;
mod seeds;
mod subject;
mod takeover;
#[cfg(test)]
mod toy;
mod world;

pub use line::Wrong;
pub use sabotage::Sabotage;
pub use seeds::{Cuts, Options, run, run_all};
