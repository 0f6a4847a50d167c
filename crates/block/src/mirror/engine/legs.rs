//! [`Legs`]: where each leg stands, what its tracking says, and whether the user's operations may
//! complete without it. The mutex is held for bookkeeping only, never across I/O.
//!
//! A leg *takes part* from the moment at which nothing is owed to it any more: then every flush
//! waits for it, and no write completes without it. It is *excluded* when the local metadata says,
//! durably, that it may miss writes: then nothing waits for it. In between (it was lost a moment
//! ago, or was in sync when the mirror was last used and has not been reached yet) writes wait.
//!
//! In the asynchronous mode changes get to the legs by the epoch log instead ([`logged`]).

mod copying;
mod keeping;
mod logged;
mod one;
mod redo;
mod room;
mod signs;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use self::logged::Journal;
pub(crate) use self::logged::{LoggedChange, Next, Resumed};
use self::one::{Leg, Route};
pub(crate) use self::room::{enter, watch};
use super::super::BLOCK_BYTES;
use super::super::bitmap::Bitmap;
use super::super::config::{Config, Mode, OnLoss};
use super::super::epoch::Piece;
use super::super::host::Host;
use super::super::leg::LegEvent;
use super::super::status::{LegState, LegStatus, Way};
use super::session::Session;
use super::signal::{Change, Signal, lock};
use super::tracking::{Flushing, Tracking};

/// Blocks that a leg in sync has answered before it is flushed without the user asking for it:
/// 64 MiB. What is kept for each of them until then is a part of the mirror's memory.
pub(crate) const UNFLUSHED_BLOCKS_MAX: u64 = 16 << 10;

/// What an operation of the user has to do with one leg.
pub(crate) struct Part {
    /// Its number.
    pub(crate) leg: usize,
    /// The operation is to be sent there.
    pub(crate) session: Option<Arc<Session>>,
    /// It is complete at that leg when the leg has answered.
    takes_part: bool,
    /// It gets there by the log, and nothing waits for that.
    logged: bool,
    times_in_sync: u64,
    flush: Option<Flushing>,
}

/// How an operation ended at a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The block may hold anything.
    Unknown,
    /// A flush makes it stable.
    Written,
    /// It is stable, here and there.
    Stable,
}

/// The legs of a mirror.
pub(crate) struct Legs {
    host: Arc<dyn Host>,
    config: Config,
    legs: Mutex<Vec<Leg>>,
    changed: Arc<Signal>,
    /// Taken behind `legs`, where both are.
    journal: Journal,
}

impl Legs {
    /// Legs that were not reached yet: names, what may differ, and whether each is excluded.
    /// `epoch` is the first that was never begun.
    pub(crate) fn new(
        host: Arc<dyn Host>,
        config: Config,
        epoch: u64,
        legs: Vec<(String, Tracking, bool)>,
    ) -> Self {
        let since = host.now();
        let leg = |(name, tracking, excluded)| Leg::new(name, tracking, excluded, since);
        let legs = Mutex::new(legs.into_iter().map(leg).collect());
        Self { host, config, legs, changed: Arc::default(), journal: Journal::new(epoch) }
    }

    /// The next change of anything that somebody may wait for.
    pub(crate) fn changed(&self) -> Change {
        self.changed.next()
    }

    /// Everybody looks again.
    pub(crate) fn wake(&self) {
        self.changed.raise();
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// A change of `blocks` is about to be issued: their bits are set, and it is said where it is
    /// to be sent. The caller holds their range, and reports with [`answered`](Self::answered).
    pub(crate) fn begin_change(&self, blocks: Range<u64>) -> Vec<Part> {
        let begin = |(number, leg): (usize, &mut Leg)| {
            // A copy brings what is owed: a live write that overtook it would have to be waited for
            // by every later one, and the copy would not end.
            let left_to_copy = leg.far_behind || leg.tracking.any_owed(blocks.clone());
            leg.tracking.changes(blocks.clone());
            let (session, takes_part) = match &leg.route {
                Route::Direct { session, takes_part } if !left_to_copy => {
                    leg.tracking.sends(blocks.clone());
                    leg.sent_bytes += (blocks.end - blocks.start) * BLOCK_BYTES;
                    (Some(session.clone()), *takes_part)
                }
                _ => (None, false),
            };
            let times_in_sync = leg.times_in_sync;
            Part { leg: number, session, takes_part, logged: false, times_in_sync, flush: None }
        };
        self.lock().iter_mut().enumerate().map(begin).collect()
    }

    /// What was sent to a leg has ended.
    pub(crate) fn answered(
        &self,
        leg: usize,
        session: &Arc<Session>,
        blocks: Range<u64>,
        outcome: Outcome,
    ) {
        let mut legs = self.lock();
        let Some(leg) = legs[leg].used_by(session) else { return };
        match outcome {
            Outcome::Unknown => leg.tracking.sent(blocks, false),
            Outcome::Written => leg.tracking.sent(blocks, true),
            Outcome::Stable => leg.tracking.sent_stable(blocks),
        }
        let look = leg.tracking.owed() > 0 || leg.tracking.unflushed() >= UNFLUSHED_BLOCKS_MAX;
        if look && leg.takes_part() {
            drop(legs);
            self.wake(); // Its task has something to do.
        }
    }

    /// A flush is about to be issued: where it is to be sent. With `only`, at that leg alone.
    pub(crate) fn begin_flush(&self, only: Option<usize>) -> Vec<Part> {
        let begin = |(number, leg): (usize, &mut Leg)| {
            let (session, takes_part) = match &leg.route {
                Route::Direct { session, takes_part } if *takes_part || only.is_some() => {
                    (Some(session.clone()), *takes_part)
                }
                Route::Logged { session, takes_part } if only.is_some() => {
                    (session.clone(), *takes_part)
                }
                _ => (None, false),
            };
            let logged = leg.is_logged();
            let covers = session.is_some() || logged;
            let flush = covers.then(|| leg.tracking.flushes(session.is_some()));
            let times_in_sync = leg.times_in_sync;
            Part { leg: number, session, takes_part, logged, times_in_sync, flush }
        };
        let mut legs = self.lock();
        let legs = legs.iter_mut().enumerate();
        legs.filter(|(number, _)| only.is_none_or(|only| only == *number)).map(begin).collect()
    }

    /// The leg and the local device have both flushed.
    pub(crate) fn flushed(&self, part: &Part) {
        let Some(flush) = part.flush else { return };
        let mut legs = self.lock();
        let leg = &mut legs[part.leg];
        // Where the leg was not asked, only what is stable there already becomes clean.
        if part.session.as_ref().is_none_or(|session| leg.uses(session)) {
            leg.tracking.flushed(flush);
        }
    }

    /// What was begun may be told complete as far as this leg is concerned. `well`: it was sent
    /// there and ended well.
    pub(crate) fn is_settled(&self, part: &Part, well: bool) -> bool {
        let legs = self.lock();
        let leg = &legs[part.leg];
        let done = part.logged || (well && part.takes_part);
        done || leg.excluded || leg.times_in_sync > part.times_in_sync
    }

    /// The leg can be used: from now on changes of what is not owed are sent to it, or, where
    /// something may be owed, once it is [near](Self::is_near). False, and nothing is done, if it
    /// is no longer wanted, or something is owed to it and `nothing_owed` is asked for.
    pub(crate) fn open_route(
        &self,
        leg: usize,
        session: &Arc<Session>,
        event: LegEvent,
        nothing_owed: bool,
    ) -> bool {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        if (nothing_owed && leg.tracking.owed() > 0) || !leg.step(event, None, now) {
            return false;
        }
        leg.copy_begins();
        leg.far_behind = !nothing_owed;
        leg.route = Route::Direct { session: session.clone(), takes_part: false };
        drop(legs);
        self.wake();
        true
    }

    /// Nothing waits for the leg to be excluded any more, since it takes part from now on. False,
    /// and nothing is done, while something is owed to it or it is no longer in use.
    pub(crate) fn take_part(&self, leg: usize, session: &Arc<Session>) -> bool {
        let mut legs = self.lock();
        let Some(leg) = legs[leg].used_by(session) else { return false };
        if leg.tracking.owed() > 0 {
            return false;
        }
        if let Route::Direct { takes_part, .. } | Route::Logged { takes_part, .. } = &mut leg.route
        {
            *takes_part = true;
        }
        (leg.excluded, leg.far_behind) = (false, false);
        true
    }

    /// It is in sync, and says so itself.
    pub(crate) fn in_sync(&self, leg: usize, session: &Arc<Session>) -> bool {
        let now = self.host.now();
        let mut legs = self.lock();
        let Some(leg) = legs[leg].used_by(session) else { return false };
        let stepped = leg.step(LegEvent::CaughtUp, None, now);
        leg.compares &= !stepped;
        leg.consistent |= stepped;
        leg.nearing &= !stepped;
        leg.way = if stepped { Way::Unset } else { leg.way };
        leg.times_in_sync += u64::from(stepped);
        drop(legs);
        self.wake();
        stepped
    }

    /// From now on its task sends a batch when its sender wants one.
    pub(crate) fn is_attended(&self, leg: usize, session: &Arc<Session>) {
        if let Some(leg) = self.lock()[leg].used_by(session) {
            leg.attended = true;
        }
        self.wake_log();
    }

    /// What was owed to a leg that takes part has been brought: whoever waits for that goes on.
    pub(crate) fn healed(&self, leg: usize, session: &Arc<Session>) {
        let mut legs = self.lock();
        if let Some(leg) = legs[leg].used_by(session).filter(|leg| leg.tracking.owed() == 0) {
            leg.times_in_sync += 1;
        }
        drop(legs);
        self.wake();
    }

    /// Something has happened to the leg that ends its use. Of a session that is not its present
    /// one nothing is believed.
    pub(crate) fn end_use(
        &self,
        leg: usize,
        session: Option<&Arc<Session>>,
        event: LegEvent,
        message: String,
    ) -> bool {
        let now = self.host.now();
        let mut legs = self.lock();
        let number = leg;
        let leg = &mut legs[number];
        if session.is_some_and(|session| !leg.uses(session) && leg.session().is_some()) {
            return false;
        }
        // Each of its operations ends with the same.
        let known = leg.state == LegState::Lost && leg.message.as_ref() == Some(&message);
        let stepped = leg.step(event, Some(message.clone()), now);
        if stepped && !known {
            tracing::info!(leg = %leg.name, ?event, %message, "the use of a leg ends");
        }
        if !stepped && leg.has_route() {
            return false;
        }
        let session = if event == LegEvent::Lost && leg.is_promised() {
            leg.line_lost(now)
        } else {
            self.give_up(number, leg)
        };
        drop(legs);
        if let Some(session) = session {
            session.end(&message);
        }
        self.wake();
        self.wake_log();
        stepped
    }

    /// A person has the leg tried again.
    pub(crate) fn resume(&self, leg: usize) -> bool {
        let now = self.host.now();
        let stepped = self.lock()[leg].step(LegEvent::Resume, None, now);
        let let_go = self.let_go(leg);
        self.wake();
        stepped || let_go
    }

    /// The next attempt at a lost leg is made now.
    pub(crate) fn hurry(&self, leg: usize) {
        self.lock()[leg].hurry = true;
        self.wake();
    }

    /// Whether that was asked for since the last look.
    pub(crate) fn take_hurry(&self, leg: usize) -> bool {
        std::mem::take(&mut self.lock()[leg].hurry)
    }

    /// The present session of a leg.
    pub(crate) fn session(&self, leg: usize) -> Option<Arc<Session>> {
        self.lock()[leg].session().cloned()
    }

    /// This is its present session.
    pub(crate) fn uses(&self, leg: usize, session: &Arc<Session>) -> bool {
        self.lock()[leg].uses(session)
    }

    /// Nothing completes without this leg.
    pub(crate) fn takes_part(&self, leg: usize) -> bool {
        self.lock()[leg].takes_part()
    }

    /// Nothing completes without one of them.
    pub(crate) fn any_takes_part(&self) -> bool {
        self.lock().iter().any(Leg::takes_part)
    }

    /// Those that do not take part, and may miss writes from now on.
    pub(crate) fn not_taking_part(&self) -> Vec<usize> {
        let legs = self.lock();
        let missing = legs.iter().enumerate().filter(|(_, leg)| !leg.takes_part());
        missing.map(|(number, _)| number).collect()
    }

    /// Writes need not wait for this leg, if it is noted first that it may miss them.
    pub(crate) fn may_exclude(&self, leg: usize, on_loss: OnLoss) -> bool {
        let legs = self.lock();
        let leg = &legs[leg];
        match on_loss {
            _ if leg.excluded || leg.takes_part() => false,
            OnLoss::Stop => leg.state == LegState::Paused,
            // A leg to which nothing is owed takes part in a moment, or is lost. One that gets the
            // log may be reached in a moment as well, but nothing waits for that.
            OnLoss::Continue => {
                let soon = leg.state == LegState::Connecting && self.config.mode == Mode::Sync;
                !(soon || leg.gets_changes() && leg.tracking.owed() == 0)
            }
        }
    }

    /// Legs that do not take part and are not excluded, and may be.
    pub(crate) fn to_exclude(&self, on_loss: OnLoss) -> Vec<usize> {
        (0..self.count()).filter(|leg| self.may_exclude(*leg, on_loss)).collect()
    }

    /// It is durable that these legs may miss writes. One that takes part meanwhile is left alone:
    /// it cannot be, as long as both are decided one after the other.
    pub(crate) fn exclude(&self, which: &[usize]) {
        let mut legs = self.lock();
        for number in which {
            let leg = &mut legs[*number];
            leg.excluded = !leg.takes_part();
        }
        drop(legs);
        self.wake();
    }

    /// Where a leg stands.
    pub(crate) fn state(&self, leg: usize) -> LegState {
        self.lock()[leg].state
    }

    /// Nothing waits for this leg.
    pub(crate) fn is_excluded(&self, leg: usize) -> bool {
        self.lock()[leg].excluded
    }

    /// Blocks that the leg has answered and no flush has covered.
    pub(crate) fn unflushed(&self, leg: usize) -> u64 {
        self.lock()[leg].tracking.unflushed()
    }

    /// These blocks may differ, at all legs or at one.
    pub(crate) fn differ(&self, leg: Option<usize>, blocks: Range<u64>) {
        for (number, each) in self.lock().iter_mut().enumerate() {
            if leg.is_none_or(|leg| leg == number) {
                each.tracking.changes(blocks.clone());
            }
        }
        self.wake();
    }

    /// All blocks of a leg may differ.
    pub(crate) fn all_differ(&self, leg: usize) {
        let mut legs = self.lock();
        if legs[leg].is_logged() {
            drop(self.give_up(leg, &mut legs[leg]));
        }
        legs[leg].tracking.all_differ();
        legs[leg].is_renewed = true;
    }

    /// Whether the leg gets all of its image anew, or has got it. Told once.
    pub(crate) fn take_renewed(&self, leg: usize) -> bool {
        std::mem::take(&mut self.lock()[leg].is_renewed)
    }

    /// Whether the image there is a legal one, and of when, as its superblock says.
    pub(crate) fn note_image(&self, leg: usize, consistent: bool, time: Option<SystemTime>) {
        let mut legs = self.lock();
        let leg = &mut legs[leg];
        (leg.consistent, leg.image_time) = (consistent, time);
    }

    /// A session to read `bytes` from, if the leg holds what was written last, but for what is put
    /// over it.
    pub(crate) fn reader(
        &self,
        leg: usize,
        bytes: Range<u64>,
    ) -> Option<(Arc<Session>, Vec<Piece>)> {
        let legs = self.lock();
        let leg = &legs[leg];
        let blocks = bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES);
        let known = leg.is_at_its_place() && !leg.tracking.any_owed(blocks);
        let session = leg.session().filter(|_| known)?;
        let over = if leg.is_logged() { self.journal.overlay(&bytes) } else { Vec::new() };
        Some((session.clone(), over))
    }

    /// Some of the blocks may differ from what is here, for all that is known.
    pub(crate) fn may_differ(&self, leg: usize, blocks: Range<u64>) -> bool {
        let legs = self.lock();
        let tracking = &legs[leg].tracking;
        tracking.any_owed(blocks.clone()) || tracking.any_logged(blocks)
    }

    /// Looks at the bits of a leg, to write them down.
    pub(crate) fn with_bits<T>(&self, leg: usize, look: impl FnOnce(&mut Bitmap) -> T) -> T {
        look(self.lock()[leg].tracking.dirty_mut())
    }

    /// For people.
    pub(crate) fn status(&self) -> Vec<LegStatus> {
        let now = self.host.now();
        let wall_clock = self.host.wall_clock();
        let legs = self.lock();
        let each = legs.iter().enumerate();
        each.map(|(number, leg)| leg.status(self.journal.backlog(number, now), now, wall_clock))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Leg>> {
        lock(&self.legs)
    }
}
