//! A mirror as a process: its configuration, what an operator can ask of it while it runs, and what
//! it tells about itself.
//!
//! What it is not: it decides nothing about what is written where ([`block::mirror`] does), and it
//! exports nothing.

pub mod config;
pub mod control;
mod fencing;
pub mod files;
pub mod inspected;
mod metrics;
mod pace;
pub mod parts;
mod path_leg;
pub mod report;
pub mod running;

pub use path_leg::PathLeg;
