//! What an asynchronous mirror might do wrong with the steps of its log and with its copies, done
//! to a right one: what it asks of a leg is changed on the way.

use block::mirror::superblock::Stamp;

use super::{Change, Of, State};

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Nothing is flushed between two steps.
    StepNotFlushed,
    /// The next step is sent before the flush is answered.
    StepFlushNotAwaited,
    /// A step is flushed before its writes are answered.
    StepFlushedEarly,
    /// A stamp that goes out with a step tells of the step already.
    StampedWithStep,
    /// After a loss the stamp tells of what was sent last, stable or not.
    StampReadAhead,
    /// What was sent before a loss, and is not known to be there, is not sent again.
    StepLeftOut,
    /// Behind a step the one before is sent once more.
    OldStepAgain,
    /// A copy leaves out what it begins with.
    CopyLeftOut,
    /// A record of a batch in the redo log is not written.
    RecordLeftOut,
    /// A batch is committed before its records were flushed.
    RecordsNotFlushed,
    /// A batch goes home before it is known to be committed.
    CommitNotAwaited,
    /// A part of a batch is not copied home.
    HomeLeftOut,
    /// A batch is flushed before all of it is home.
    HomeNotAwaited,
    /// A batch is released before what was copied home was flushed.
    HomeNotFlushed,
    /// What follows is written before the release is known to be there.
    ReleaseNotAwaited,
    /// A batch is never released, and what follows is written.
    ReleaseLeftOut,
    /// A batch that was released goes home again behind what was written later.
    OldBatchAgain,
}

/// What is asked of the leg instead of a change.
pub(super) enum Ask {
    AsItIs,
    Nothing,
    AndTellAtOnce,
    WithStamp(Stamp),
}

/// What is asked of the leg instead of a flush.
pub(super) enum Flushing {
    AsItIs,
    Nothing,
    AndTellAtOnce,
    /// These again, and then the flush.
    Behind(Vec<Change>),
}

impl State {
    /// A change of the data is about to be sent. Asked before it is counted.
    pub(super) fn wrongs_change(&mut self, change: &Change) -> Ask {
        if self.batch.named {
            return self.goes_home(change);
        }
        let ask = match self.wrong {
            Some(Wrong::CopyLeftOut) if self.copies && self.changes == 0 => Ask::Nothing,
            _ if self.copies => return Ask::AsItIs,
            Some(Wrong::StepLeftOut) if self.inherited && self.flushes == 0 => Ask::Nothing,
            Some(Wrong::StepFlushedEarly) => Ask::AndTellAtOnce,
            // All that was flushed is told of by the last stamp, so this is of the step behind.
            Some(Wrong::StampedWithStep) if self.step == 0 && self.unstamped == 0 => {
                match self.stamp_ahead() {
                    Some(stamp) => Ask::WithStamp(stamp),
                    None => return Ask::AsItIs,
                }
            }
            Some(Wrong::OldStepAgain) => {
                self.kept[0].push(change.copied());
                return Ask::AsItIs;
            }
            _ => return Ask::AsItIs,
        };
        self.made += 1;
        ask
    }

    /// A flush is about to be asked for. Asked before it is counted.
    pub(super) fn wrongs_flush(&mut self) -> Flushing {
        if let Some(flushing) = self.flushes_batch() {
            return flushing;
        }
        if self.copies || self.batch.named || self.step == 0 {
            return Flushing::AsItIs;
        }
        let flushing = match self.wrong {
            Some(Wrong::StepNotFlushed) => Flushing::Nothing,
            Some(Wrong::StepFlushNotAwaited) => Flushing::AndTellAtOnce,
            Some(Wrong::OldStepAgain) if !self.kept[1].is_empty() => {
                Flushing::Behind(self.kept[1].clone())
            }
            _ => return Flushing::AsItIs,
        };
        self.made += 1;
        flushing
    }

    /// A stamp was noted, and changes of the step behind it are under way.
    pub(super) fn wrongs_stamp(&mut self, of: Of) -> Option<Stamp> {
        let with_step = self.wrong == Some(Wrong::StampedWithStep) && self.step > 0 && !self.copies;
        let stamp = self.stamp_ahead().filter(|_| of == Of::Stamp && with_step)?;
        self.made += 1;
        Some(stamp)
    }

    /// The leg is read at this offset: the stamp that is found instead, and where.
    pub(super) fn wrongs_read(&mut self, offset: u64) -> Option<(u64, Stamp)> {
        let after_a_loss = self.inherited && self.changes == 0;
        if self.wrong != Some(Wrong::StampReadAhead)
            || !after_a_loss
            || self.of(offset) != Of::Stamp
        {
            return None;
        }
        let stamp = self.stamp_ahead()?;
        self.made += 1;
        Some((self.layout.stamp(stamp.epoch), stamp))
    }

    /// The stamp of the epoch behind that of the last stamp.
    fn stamp_ahead(&self) -> Option<Stamp> {
        let stamp = self.stamp?;
        Some(Stamp { epoch: stamp.epoch + 1, ..stamp })
    }
}
