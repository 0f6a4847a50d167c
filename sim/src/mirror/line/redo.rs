//! The redo log of a leg: what of it passes, and what a mirror might do wrong with it.

use block::Bytes;
use block::mirror::Mode;
use block::mirror::superblock::Consistency;

use super::wrong::{Ask, Flushing, Wrong};
use super::{Change, State};

/// Where a batch is.
#[derive(Default)]
pub(super) struct Batch {
    /// Records that were sent since a flush was asked for.
    unflushed: u64,
    /// Records ever sent.
    records: u64,
    /// The superblock that was sent last names one.
    pub(super) named: bool,
    /// That was so when the session began.
    found: bool,
    /// The release of the one before was left out.
    unreleased: bool,
    /// Changes of the image while it is named.
    home: u64,
    /// What the batch before has changed.
    kept: [Vec<Change>; 2],
}

impl Batch {
    pub(super) fn begin(&mut self) {
        (self.unflushed, self.home, self.unreleased) = (0, 0, false);
        self.found = self.named;
        self.kept[0].clear();
    }
}

impl State {
    /// A record is about to be written: whether that is left out.
    pub(super) fn record(&mut self) -> bool {
        self.batch.unflushed += 1;
        self.batch.records += 1;
        let left_out =
            self.wrong == Some(Wrong::RecordLeftOut) && self.batch.records.is_multiple_of(3);
        self.made += u64::from(left_out);
        left_out
    }

    /// A superblock is about to be written: what is asked of the leg instead.
    pub(super) fn superblock_of_batch(&mut self, consistency: &Consistency) -> Ask {
        let batch = &mut self.batch;
        let was_named =
            std::mem::replace(&mut batch.named, matches!(consistency, Consistency::Applying(_)));
        let mut ask = Ask::AsItIs;
        match (was_named, consistency) {
            (false, Consistency::Applying(_)) => {
                self.seen.hit("redo: a batch is committed");
                if self.mode == Mode::Async && self.changes > 0 {
                    self.seen.hit("redo: many epochs are one batch");
                }
                (batch.home, batch.unreleased) = (0, false);
                if self.wrong == Some(Wrong::CommitNotAwaited) {
                    ask = Ask::AndTellAtOnce;
                }
            }
            (true, Consistency::Consistent) => {
                let found = std::mem::take(&mut batch.found);
                self.seen.hit(match found {
                    true => "redo: a batch is copied home by whoever finds it",
                    false => "redo: a batch is released",
                });
                let now = std::mem::take(&mut batch.kept[0]);
                if !now.is_empty() {
                    batch.kept[1] = now;
                }
                match self.wrong {
                    Some(Wrong::ReleaseNotAwaited) => ask = Ask::AndTellAtOnce,
                    Some(Wrong::ReleaseLeftOut) => {
                        ask = Ask::Nothing;
                        batch.unreleased = true;
                    }
                    _ => {}
                }
            }
            // It goes on being named, whatever else the superblock is to say.
            (false, Consistency::Consistent) if batch.unreleased => ask = Ask::Nothing,
            _ => {}
        }
        self.made += u64::from(!matches!(ask, Ask::AsItIs));
        ask
    }

    /// A change of the image is about to be sent while a batch is named.
    pub(super) fn goes_home(&mut self, change: &Change) -> Ask {
        self.batch.home += 1;
        let ask = match self.wrong {
            Some(Wrong::HomeLeftOut) if self.batch.home == 1 => Ask::Nothing,
            Some(Wrong::HomeNotAwaited) => Ask::AndTellAtOnce,
            Some(Wrong::OldBatchAgain) => {
                self.batch.kept[0].push(change.copied());
                return Ask::AsItIs;
            }
            _ => return Ask::AsItIs,
        };
        self.made += 1;
        ask
    }

    /// A flush is about to be asked for.
    pub(super) fn flushes_batch(&mut self) -> Option<Flushing> {
        let batch = &mut self.batch;
        let (records, home) =
            (std::mem::take(&mut batch.unflushed), std::mem::take(&mut batch.home));
        let flushing = match self.wrong {
            Some(Wrong::RecordsNotFlushed) if records > 0 => Flushing::Nothing,
            Some(Wrong::HomeNotFlushed) if batch.named && home > 0 => Flushing::Nothing,
            Some(Wrong::OldBatchAgain)
                if !batch.named && !batch.kept[1].is_empty() && self.step > 0 =>
            {
                Flushing::Behind(batch.kept[1].clone())
            }
            _ => return None,
        };
        self.made += 1;
        Some(flushing)
    }
}

impl Change {
    /// With data of its own: what the guest gave is not to be held for longer.
    pub(super) fn copied(&self) -> Self {
        match self {
            Self::Write(offset, data) => Self::Write(*offset, Bytes::copy_from_slice(data)),
            other => other.clone(),
        }
    }
}
