//! What TCP did under an iSCSI session, and what limits the transfer.
//!
//! Sources (the kernel's counters, captures) are turned into facts about commands and connections;
//! the model turns facts into a [`verdict`]. Nothing here sends a byte of iSCSI: a session is
//! watched from beside, whoever its initiator and its target are.

pub mod capture;
pub mod diag;
pub mod ethtool;
pub mod events;
pub mod model;
pub mod pdus;
pub mod row;
pub mod sample;
pub mod stream;
pub mod verdict;
pub mod watch;
