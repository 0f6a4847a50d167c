//! A mirror as a process: its configuration, what an operator can ask of it while it runs, and what
//! it tells about itself.
//!
//! What it is not: it decides nothing about what is written where ([`block::mirror`] does), and it
//! exports nothing.

pub mod config;
pub mod control;
mod fencing;
pub mod files;
mod gate;
pub mod hook;
pub mod inspected;
pub(crate) mod lun;
pub(crate) mod metrics;
pub mod next;
mod pace;
pub mod parts;
mod path_leg;
pub mod report;
mod reshape;
pub mod running;
pub mod shape;

pub use path_leg::PathLeg;
