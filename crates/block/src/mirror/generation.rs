//! Who has which history: a pure function of two lineages.
//!
//! A *generation* is a stretch of time in which one side wrote and all legs in sync followed. A new
//! one begins when a leg stops being followed (its *base* is the generation that ended) and when a
//! leg is promoted. A leg holds the image of its generation up to some moment; whoever writes
//! without it is in a newer generation before a write that the leg may miss is told complete.
//!
//! In doubt more is copied: no pair in which the leg misses a write of ours that no bit tells of is
//! [`Same`](Relation::Same) or [`Behind`](Relation::Behind). What lineages cannot tell is that a
//! leg was put back to an older state of the *same* generation: [`was_put_back`].

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Generations that a lineage remembers besides the present one. A leg that is further behind is
/// taken for another mirror's: refused, never guessed.
pub const HISTORY_MAX: usize = 8;

/// A time of day in milliseconds since 1970. For people: nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct WallMs(pub u64);

impl From<SystemTime> for WallMs {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl From<WallMs> for SystemTime {
    fn from(time: WallMs) -> Self {
        UNIX_EPOCH.checked_add(Duration::from_millis(time.0)).unwrap_or(UNIX_EPOCH)
    }
}

/// The name of a generation: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GenerationId(pub u128);

/// The first 8 digits: enough for people to tell a handful apart.
impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 96)
    }
}

/// A generation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Past {
    /// Its name.
    pub id: GenerationId,
    /// When the next one began.
    pub ended: WallMs,
}

/// The present generation of an image, and those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage {
    current: GenerationId,
    /// Newest first.
    history: Vec<Past>,
}

impl Lineage {
    /// Of a new image.
    pub fn new(current: GenerationId) -> Self {
        Self { current, history: Vec::new() }
    }

    /// As it was read back; what is more than [`HISTORY_MAX`] is forgotten.
    pub(crate) fn restore(current: GenerationId, mut history: Vec<Past>) -> Self {
        history.truncate(HISTORY_MAX);
        Self { current, history }
    }

    /// The present generation.
    pub fn current(&self) -> GenerationId {
        self.current
    }

    /// Those before, newest first.
    pub fn history(&self) -> &[Past] {
        &self.history
    }

    /// The same, `next` being the present generation from `now` on.
    #[must_use]
    pub fn advanced(&self, next: GenerationId, now: WallMs) -> Self {
        let ended = Past { id: self.current, ended: now };
        let history = std::iter::once(ended).chain(self.history.iter().copied()).collect();
        Self::restore(next, history)
    }

    /// The lineage as it was in this generation; `None` if it is not known any more.
    #[must_use]
    pub fn back_to(&self, id: GenerationId) -> Option<Self> {
        if id == self.current {
            return Some(self.clone());
        }
        let at = self.history.iter().position(|past| past.id == id)?;
        Some(Self { current: id, history: self.history[at + 1..].to_vec() })
    }

    /// When the generation ended; `None` when it is not of the past.
    pub fn ended(&self, id: GenerationId) -> Option<WallMs> {
        self.history.iter().find(|past| past.id == id).map(|past| past.ended)
    }

    fn knows(&self, id: GenerationId) -> bool {
        self.current == id || self.ended(id).is_some()
    }

    /// The newest generation that both know.
    fn ancestor(&self, other: &Self) -> Option<GenerationId> {
        let own = std::iter::once(self.current).chain(self.history.iter().map(|past| past.id));
        own.into_iter().find(|id| other.knows(*id))
    }
}

/// How a leg stands to us, and so what has to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// Of our generation: what the bitmap says differs is copied.
    Same,
    /// It is where we were when we stopped following it: the same.
    Behind,
    /// It is of our past, from before we stopped following it: everything is copied.
    WholeCopy,
    /// It was promoted after us and knows all that we wrote up to then: nothing is written there;
    /// failing back is offered.
    Promoted,
    /// Both have written since they parted: nothing is written, a person decides.
    SplitBrain {
        /// The generation in which they parted.
        ancestor: GenerationId,
        /// When we left it; `None`: we are still in it.
        left_here: Option<WallMs>,
        /// When it left it.
        left_there: Option<WallMs>,
    },
    /// They have nothing in common: nothing is written there.
    Unrelated,
}

/// Compares our lineage with that of a leg; `base` is the generation in which we followed the leg
/// last.
pub fn compare(local: &Lineage, base: GenerationId, remote: &Lineage) -> Relation {
    // Looked at first: whoever has us in its past has been written by somebody else, whatever else
    // the two have in common.
    if remote.ended(local.current).is_some() {
        let contradiction =
            local.ended(remote.current).is_some() || remote.current == local.current;
        return if contradiction { split_brain(local, remote) } else { Relation::Promoted };
    }
    if remote.current == local.current {
        return Relation::Same;
    }
    if local.ended(remote.current).is_some() {
        return if remote.current == base { Relation::Behind } else { Relation::WholeCopy };
    }
    split_brain(local, remote)
}

fn split_brain(local: &Lineage, remote: &Lineage) -> Relation {
    match local.ancestor(remote) {
        None => Relation::Unrelated,
        Some(ancestor) => Relation::SplitBrain {
            ancestor,
            left_here: local.ended(ancestor),
            left_there: remote.ended(ancestor),
        },
    }
}

/// A leg was put back to an older state, or replaced by a copy of one, since we wrote to it last:
/// its superblock or its stamp is older than what we know to be stable there. Bits tell nothing of
/// what it lacks, so everything is copied, whatever [`compare`] says.
///
/// `known` and `found` are the sequence number of the superblock and the epoch of the stamp.
pub fn was_put_back(known: (u64, u64), found: (u64, u64)) -> bool {
    found.0 < known.0 || found.1 < known.1
}

#[cfg(test)]
mod tests;
