//! The part of [`Legs`] about a leg whose image is not touched while it gets what it lacks: that
//! goes into its redo log, and changes only set bits, until all of it is home.

use std::sync::Arc;
use std::time::Duration;

use super::super::super::epoch::{Batch, Unsent};
use super::super::super::leg::LegEvent;
use super::super::super::status::{Home, Way};
use super::super::batch::{self, Waiting};
use super::super::session::Session;
use super::super::tracking::Flushing;
use super::Legs;
use super::one::{Route, Wish};

impl Legs {
    /// What is owed to the leg goes into its redo log from now on. False, and nothing is done, if
    /// it is not wanted now.
    pub(crate) fn open_redo(&self, leg: usize, session: &Arc<Session>, event: LegEvent) -> bool {
        let now = self.host.now();
        let mut legs = self.lock();
        let number = leg;
        let leg = &mut legs[number];
        if leg.is_logged() {
            drop(self.give_up(number, leg)); // It was to be resumed, and could not.
        }
        if !leg.step(event, None, now) {
            return false;
        }
        leg.copy_begins();
        leg.way = Way::Atomic;
        leg.route = Route::Redo { session: session.clone() };
        drop(legs);
        self.wake();
        true
    }

    /// All that is owed by now is in the batch, and no change is under way: what of it becomes
    /// clean once it is home and flushed. `None` if something is owed, or the leg is not in use.
    pub(crate) fn cut(&self, leg: usize, session: &Arc<Session>) -> Option<Flushing> {
        let mut legs = self.lock();
        let leg = legs[leg].used_by(session).filter(|leg| leg.tracking.owed() == 0)?;
        Some(leg.tracking.flushes(true))
    }

    /// At the same moment as [`cut`](Self::cut): what is written from now on goes into the epoch
    /// log, and is sent when the batch is home. Returns the last epoch that the batch makes stable.
    pub(crate) fn log_behind_batch(
        &self,
        number: usize,
        session: &Arc<Session>,
        stamp: u64,
    ) -> Option<u64> {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = legs[number].used_by(session)?;
        leg.route = Route::Logged { session: Some(session.clone()), takes_part: false };
        (leg.silent_since, leg.behind_batch) = (None, true);
        let first = self.journal.lock().log.follow(number, stamp, now);
        Some(first - 1)
    }

    /// The leg's superblock names the batch that ended at the time `closed`: a promotion gets that.
    pub(crate) fn committed(&self, leg: usize, session: &Arc<Session>, closed: Duration) {
        let age = self.host.now().saturating_sub(closed);
        let mut legs = self.lock();
        if let Some(leg) = legs[leg].used_by(session) {
            leg.is_committed = true;
            leg.image_time = self.host.wall_clock().checked_sub(age);
        }
    }

    /// `bytes` of the present batch have got from the redo log of a leg to their place. A copy home
    /// that is begun again, in another way, counts when it gets beyond what was told before.
    pub(crate) fn gets_home(&self, leg: usize, bytes: u64) {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        leg.home_bytes = (leg.home_before + bytes).clamp(leg.home_bytes, leg.copied_bytes());
        leg.note_rate(now);
    }

    /// The batch is home, and both sides have flushed since.
    pub(crate) fn home(&self, leg: usize, session: &Arc<Session>, flush: Flushing) {
        let mut legs = self.lock();
        if let Some(leg) = legs[leg].used_by(session) {
            leg.tracking.flushed(flush);
            (leg.behind_batch, leg.is_committed) = (false, false);
            (leg.home_bytes, leg.home_before) = (leg.copied_bytes(), leg.copied_bytes());
        }
        drop(legs);
        self.wake();
        self.wake_log();
    }

    /// Each change is sent to the leg at once from now on: everything is at its place there.
    pub(crate) fn redo_is_done(&self, leg: usize, session: &Arc<Session>) {
        let mut legs = self.lock();
        if let Some(leg) = legs[leg].used_by(session) {
            leg.route = Route::Direct { session: session.clone(), takes_part: false };
            leg.far_behind = false;
        }
    }

    /// The redo log is not the way for this leg: what is in it and not home is owed again. The leg
    /// is opened anew.
    pub(crate) fn leave_redo(&self, leg: usize, session: &Arc<Session>, why: &str) {
        let now = self.host.now();
        let mut legs = self.lock();
        let Some(leg) = legs[leg].used_by(session) else { return };
        tracing::info!(leg = %leg.name, why, "a catch-up goes on in place");
        leg.step(LegEvent::Lost, Some(why.to_owned()), now);
        leg.tracking.line_lost();
        leg.route = Route::None;
        (leg.way, leg.fallbacks) = (Way::InPlace, leg.fallbacks + 1);
        drop(legs);
        self.wake();
    }

    /// A copy in place begins.
    pub(crate) fn goes_in_place(&self, leg: usize) {
        self.lock()[leg].way = Way::InPlace;
    }

    /// Bytes of the redo log of a leg that was reached.
    pub(crate) fn note_redo(&self, leg: usize, bytes: u64) {
        self.lock()[leg].redo_bytes = bytes;
    }

    /// How what is in its redo log gets to its place from now on.
    pub(crate) fn note_home(&self, leg: usize, home: Home) {
        self.lock()[leg].home = Some(home);
    }

    /// For the sender of a leg: whether many steps are to go in one batch now, which the leg's task
    /// sends. The sender waits for a change of the log then, and asks again.
    pub(crate) fn is_for_batch(
        &self,
        number: usize,
        session: &Arc<Session>,
        step_took: Duration,
        rate: Option<u64>,
    ) -> bool {
        let mut legs = self.lock();
        let Some(leg) = legs[number].used_by(session) else { return false };
        match leg.batch {
            Wish::Batch => return true,
            Wish::Step => {
                leg.batch = Wish::Nothing;
                return false;
            }
            Wish::Nothing => {}
        }
        // Before that its task does something else, and may wait for the sender.
        if !leg.attended || leg.redo_bytes == 0 {
            return false;
        }
        let Unsent { steps, bytes } = self.journal.lock().log.unsent(number);
        let waiting = Waiting { steps, bytes, step_took, rate };
        if !batch::is_sooner(waiting) {
            return false;
        }
        (leg.batch, leg.batch_why) = (Wish::Batch, Some(batch::why(waiting)));
        drop(legs);
        self.wake();
        true
    }

    /// For the task of a leg: a batch is to be sent.
    pub(crate) fn wants_batch(&self, leg: usize) -> bool {
        self.lock()[leg].batch == Wish::Batch
    }

    /// It was sent, or there was none: the sender goes on.
    pub(crate) fn batch_ended(&self, leg: usize, sent: bool) {
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        leg.batch = if sent { Wish::Nothing } else { Wish::Step };
        leg.batches += u64::from(sent);
        drop(legs);
        self.wake_log();
    }

    /// What a leg has to get next, as far as it takes so many bytes of memory: for a batch.
    pub(crate) fn next_folded(
        &self,
        number: usize,
        session: &Arc<Session>,
        bytes_max: u64,
    ) -> Option<Batch> {
        let legs = self.lock();
        let mut state = self.journal.lock();
        let used = legs[number].uses(session) && state.log.follows(number);
        let bytes_max = bytes_max.min(state.batch_bytes_max(number));
        if used { state.log.next_folded(number, bytes_max) } else { None }
    }

    /// As a stamp that was written says, without anything that it makes clean.
    pub(crate) fn note_stamp(&self, leg: usize, session: &Arc<Session>, epoch: u64, at: Duration) {
        if epoch > 0 {
            self.stamped(leg, session, epoch, at);
        }
    }
}
