//! The mirror: a local device whose content is kept at up to three remote legs as well, each of
//! them a plain device of any kind.
//!
//! Promised: at every moment the image at a leg is one that the local device might have had after
//! a power cut at some moment not longer ago than the lag (docs/mirror.md). How it is kept is
//! decided by parts that do no I/O: `generation` (who has which history), `bitmap` and `activity`
//! (which blocks may differ), `epoch` (what may be sent when), `leg` (the states of a leg).
//!
//! [`engine`] does what they decide. Not here: that a leg is remote, how it is reached, and what
//! else its device can do ([`link`]); time, tasks and randomness ([`host`]).

pub mod activity;
pub mod bitmap;
mod carried;
pub mod config;
mod device;
pub mod engine;
pub mod epoch;
pub mod error;
pub mod failback;
#[cfg(test)]
mod format_doc;
pub mod generation;
pub mod host;
pub mod inspect;
mod lag;
pub mod layout;
pub mod leg;
pub mod link;
pub mod members;
pub mod promote;
pub mod redo;
pub mod restore;
pub mod status;
pub mod stopped;
pub mod store;
pub mod superblock;

pub use config::{Config, Lag, Mode, OnLag, OnLoss, ResyncRate, VerifyEvery};
pub use engine::{CreateOptions, Discard, Mirror, Parts, VerifyOptions, VerifyReport};
pub use error::MirrorError;
pub use failback::{HandedBack, hand_back, primary_of_leg};
pub use host::{Host, TokioHost};
pub use inspect::{Inspection, inspect};
pub use link::{
    CopyInside, CopyLimits, CopyRun, Fence, LegSource, MayOverwrite, OpenLeg, OrderedWrites,
};
pub use members::{Removed, grow, remove_leg};
pub use promote::{PromoteOptions, Promoted, promote, promoted_device, reservation_key};
pub use restore::{RestoreProgress, restore_local};
pub use status::{
    Gathered, Guard, Home, HomeWay, LegState, LegStatus, Order, Sending, Status, Verdict, Way,
};
pub use stopped::Stopped;

/// Remote legs at most.
pub const LEGS_MAX: usize = 3;

/// Unit of the dirty bitmap, of all metadata and of what is copied, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
