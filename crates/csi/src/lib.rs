//! The Container Storage Interface (github.com/container-storage-interface/spec, version 1.12):
//! volumes of a target daemon for Kubernetes and whoever else speaks it.
//!
//! Three services on one Unix socket: `identity`; [`Controller`], beside a target daemon, which it
//! asks over its admin socket; [`Node`], on each machine with workloads, which runs
//! `enkaku attach`. Neither knows anything that is not written elsewhere: both can be killed and
//! started at any time.
//!
//! What it is not: there is no iSCSI and no block of data here.

mod capability;
mod controller;
mod identity;
mod ids;
mod node;
mod operation;
mod page;
mod server;
pub mod v1;

pub use controller::{Controller, ControllerConfig};
pub use ids::initiator_name;
pub use node::{Node, NodeConfig};
pub use server::{Services, StartError, serve};

/// What the driver is called: in `CSIDriver`, storage classes, and what it answers.
pub const DRIVER: &str = "csi.enkaku.io";
