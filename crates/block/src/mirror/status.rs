//! What a mirror tells about itself, for `status`, metrics and the live view.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::config::Mode;

/// Where a leg stands. The first line of each is what an operator wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LegState {
    /// Never reached since the mirror was opened.
    Connecting,
    /// Its first copy is under way: no image yet.
    Copying,
    /// Everything that was written is there or on its way in order.
    InSync,
    /// Out of reach or left behind; its image is a legal one, and what changes here is noted.
    Lost,
    /// What changed is being sent. Whether the image is a legal one meanwhile, `consistent` tells.
    CatchingUp,
    /// A person has stopped it.
    Paused,
    /// Somebody else took it over: nothing is written there.
    Fenced,
    /// Both sides have written since they parted (split-brain): nothing is written anywhere but
    /// here, and a person decides.
    Diverged,
    /// Another mirror's leg, or none at all: nothing was written to it.
    Unrelated,
    /// It cannot be used: too small, full, read-only. The message tells.
    Failed,
}

/// What keeps others from writing to a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// The leg was not reached yet.
    #[default]
    Unknown,
    /// Nothing. That somebody else has taken it over is seen when its superblock is looked at,
    /// which is done at every connect and every few seconds.
    Superblock,
    /// A persistent reservation: the leg's own target refuses others, and us once it is taken over.
    Reservation,
}

/// How a leg is caught up with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// It is not, or nothing is owed to it.
    #[default]
    Unset,
    /// Through its redo log: the image is a legal one all the time. Each block is sent twice,
    /// unless its target copies it from there ([`Home`]).
    Atomic,
    /// Each block at its place: until all of them are there, the image is of no moment.
    InPlace,
}

/// How the epochs get to a leg of an asynchronous mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One behind the other, parted by barriers that the target carries out.
    Stream,
    /// Each when the one before is known to be stable: two round trips for each.
    Waited,
}

/// What is done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// In which order.
    pub order: Order,
    /// Because of this.
    pub why: String,
}

/// How a catch-up's batch gets from the redo log to its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HomeWay {
    /// The leg's target copies it.
    Inside,
    /// It goes over the line a second time.
    SentAgain,
}

/// What is done, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// In which way.
    pub way: HomeWay,
    /// Because of this.
    pub why: String,
}

/// What the last verification of a leg found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// When it had ended.
    pub at: SystemTime,
    /// Bytes compared.
    pub bytes: u64,
    /// Blocks of 4 KiB that differed.
    pub mismatches: u64,
}

/// Why epochs go to a leg many at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// A batch is under way; else this is said of the last one.
    pub now: bool,
    /// Because of this.
    pub why: String,
}

/// A leg.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LegStatus {
    /// Its URL or path.
    pub name: String,
    /// Where it stands.
    pub state: LegState,
    /// For so long.
    pub since: Duration,
    /// Why, where there is more to say.
    pub message: Option<String>,
    /// What keeps others from writing there, as found when it was reached last.
    pub guard: Guard,
    /// How epochs get there, in the asynchronous mode and once it was reached.
    pub sending: Option<Sending>,
    /// The image there is a legal one.
    pub consistent: bool,
    /// Bytes written here that are not stable there.
    pub lag_bytes: u64,
    /// Age of the oldest of them.
    pub lag: Duration,
    /// Bytes of blocks that may differ and are not on their way: with
    /// [`lag_bytes`](Self::lag_bytes) what a promotion would lack. What is in the redo log is among
    /// them until it is committed.
    pub dirty_bytes: u64,
    /// Epochs that are not stable there.
    pub epochs: u64,
    /// The moment whose image is there, as far as is known.
    pub image_time: Option<SystemTime>,
    /// Bytes that the present copy has sent: to their place, or into the redo log.
    pub copied_bytes: u64,
    /// Bytes of these that have got from the redo log to their place.
    pub home_bytes: u64,
    /// Bytes that a copy has to move yet, where through the redo log each block counts twice.
    pub left_bytes: u64,
    /// Bytes a second that it has done lately.
    pub copy_bytes_per_s: u64,
    /// So long it takes at that rate; `None` while there is no copy or it does not move.
    pub copy_time_left: Option<Duration>,
    /// Bytes sent to it since the mirror was opened, data and metadata.
    pub sent_bytes: u64,
    /// Bytes of its redo log, as known since it was reached; 0 without.
    pub redo_bytes: u64,
    /// How it is caught up with.
    pub way: Way,
    /// How what is in its redo log gets to its place, once it was reached.
    pub home: Option<Home>,
    /// Batches of many epochs that were sent through the redo log since the mirror was opened.
    pub batches: u64,
    /// Why the last of them was sent, or is being.
    pub gathered: Option<Gathered>,
    /// Catch-ups since the mirror was opened for which its redo log was too small after all.
    pub fallbacks: u64,
    /// What the last verification found, once one has come to its end.
    pub verified: Option<Verdict>,
    /// Bytes of the image that are behind the verification which the mirror makes by itself; `None`
    /// while there is none.
    pub verifying: Option<u64>,
}

impl LegStatus {
    /// Bytes that the present copy has moved. Through the redo log each block is moved twice: into
    /// it, and from there to its place.
    pub fn done_bytes(&self) -> u64 {
        match self.way {
            Way::Atomic => self.copied_bytes + self.home_bytes,
            Way::InPlace | Way::Unset => self.copied_bytes,
        }
    }
}

/// A mirror.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Size of what is offered, in bytes.
    pub size: u64,
    /// When a write is told complete.
    pub mode: Mode,
    /// Short name of the present generation.
    pub generation: String,
    /// Bytes written by the user since the mirror was opened.
    pub written_bytes: u64,
    /// Time that writes waited for a leg, in total.
    pub guest_wait: Duration,
    /// Time that writes waited because a leg was as far behind as it may be, in total.
    pub lag_wait: Duration,
    /// Why the local device does not do its work: what is written is at the legs alone, or nowhere.
    pub local_failure: Option<String>,
    /// The legs, in their order.
    pub legs: Vec<LegStatus>,
}
