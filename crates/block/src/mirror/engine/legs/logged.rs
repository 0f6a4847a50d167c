//! The asynchronous part of [`Legs`]: changes go into the epoch log, and the sender of each leg
//! takes them from there, in order.
//!
//! A leg that is out of reach for a while keeps its place in the log: when it is back, its stamp
//! tells from where on it goes on, and its image was a legal one all the time. It is given up when
//! the lag allows no more, or a person stops it: then what it has not got is owed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::super::super::carried::Carried;
use super::super::super::epoch::{BATCH_EPOCHS, Backlog, Batch, Content, EpochLog, Piece, Resume};
use super::super::super::leg::LegEvent;
use super::super::super::status::Sending;
use super::super::super::{BLOCK_BYTES, LEGS_MAX};
use super::super::block_set::BlockSet;
use super::super::session::Session;
use super::super::signal::{Change, Signal, lock};
use super::one::{Leg, Route, Wish};
use super::room::Waiting;
use super::{Legs, Part, UNFLUSHED_BLOCKS_MAX};

/// Bytes of a batch at most: a second of 1 Gbit/s there and back, as long as nothing is known of
/// the line.
const BATCH_BYTES_MAX: u64 = 64 << 20;

/// The epoch log and what belongs to it.
pub(super) struct Journal {
    state: Mutex<Journaled>,
    changed: Arc<Signal>,
}

pub(super) struct Journaled {
    pub(super) log: EpochLog,
    /// Blocks that the local device is being asked to change.
    issuing: BlockSet,
    /// Bytes for writes that were admitted and are not in the log yet.
    pub(super) reserved: u64,
    /// Writes that wait to be admitted, first come, first served.
    pub(super) queue: VecDeque<Waiting>,
    /// What the line of each leg carries within a fraction of the lag, in bytes.
    paces: [u64; LEGS_MAX],
    /// What of the log gets to each leg.
    pub(super) carried: [Carried; LEGS_MAX],
    /// The leg that is too far behind, and what is told to whoever writes.
    pub(super) stopped: Option<(usize, String)>,
}

impl Journal {
    /// `first` is the first epoch that was never begun.
    pub(super) fn new(first: u64) -> Self {
        let log = EpochLog::new(first);
        let (issuing, queue, carried) = Default::default();
        let (paces, stopped) = ([u64::MAX; LEGS_MAX], None);
        let state = Journaled { log, issuing, reserved: 0, queue, paces, carried, stopped };
        Self { state: Mutex::new(state), changed: Arc::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Journaled> {
        lock(&self.state)
    }

    /// Blocks have come to a leg by a copy.
    pub(super) fn copied(&self, leg: usize, blocks: &Range<u64>) {
        let mut state = self.lock();
        if state.log.follows(leg) {
            state.log.copied(leg, &bytes_of(blocks));
        }
    }

    pub(super) fn backlog(&self, leg: usize, now: Duration) -> Backlog {
        self.lock().log.backlog(leg, now).unwrap_or_default()
    }

    pub(super) fn overlay(&self, bytes: &Range<u64>) -> Vec<Piece> {
        self.lock().log.overlay(bytes)
    }
}

impl Journaled {
    /// A batch of this size takes its line a fraction of the lag: it goes over it twice.
    pub(super) fn batch_bytes_max(&self, leg: usize) -> u64 {
        self.paces[leg].saturating_mul(BATCH_EPOCHS).min(BATCH_BYTES_MAX)
    }
}

/// A change that goes into the log.
pub(crate) struct LoggedChange {
    pub(crate) offset: u64,
    pub(crate) content: Content,
    /// It is what is here already, for a leg that is owed it: nothing changes here.
    pub(crate) heals: Option<usize>,
}

impl LoggedChange {
    /// Its blocks.
    pub(crate) fn blocks(&self) -> Range<u64> {
        let end = self.offset + self.content.len();
        self.offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)
    }
}

/// What the sender of a leg does next.
pub(crate) enum Next {
    /// It sends this.
    Batch(Batch),
    /// It waits for a change of the log, or until then.
    Later(Option<Duration>),
    /// It ends: another one has taken its place, or none is wanted.
    Over,
}

/// What comes of taking up the log again.
pub(crate) enum Resumed {
    /// The leg goes on behind its stamp, and is in sync.
    Yes,
    /// What it holds cannot be what it held: everything is to be copied.
    No(String),
    /// No log was kept for it.
    NotKept,
    /// It is not wanted now.
    NotWanted,
}

impl Legs {
    /// The next change of the log.
    pub(crate) fn log_changed(&self) -> Change {
        self.journal.changed.next()
    }

    /// Everybody looks at the log again.
    pub(crate) fn wake_log(&self) {
        self.journal.changed.raise();
    }

    /// A leg that has missed nothing gets the log before it is reached.
    pub(crate) fn follow_at_once(&self, number: usize, stamp: u64) {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[number];
        if leg.excluded || !leg.tracking.is_clean() {
            return;
        }
        self.journal.lock().log.follow(number, stamp, now);
        leg.route = Route::Logged { session: None, takes_part: true };
        (leg.consistent, leg.silent_since) = (true, Some(now));
    }

    /// A change is about to be issued: its bits are set, and the log has it. Returns its epoch. The
    /// caller holds its range, and reports with [`end_logged`](Self::end_logged).
    pub(crate) fn begin_logged(&self, change: &LoggedChange) -> (Vec<Part>, u64) {
        let blocks = change.blocks();
        let now = self.host.now();
        let mut legs = self.lock();
        let mut state = self.journal.lock();
        let (mut parts, mut lacking) = (Vec::new(), Vec::new());
        for (number, leg) in legs.iter_mut().enumerate() {
            let owed = if change.heals == Some(number) { vec![] } else { owed_runs(leg, &blocks) };
            leg.tracking.changes(blocks.clone());
            if leg.is_logged() {
                leg.tracking.logs(blocks.clone());
                for run in owed {
                    lacking.push((number, bytes_of(&run)));
                    // A copy brings it: a write that overtook the copy would be a part of an epoch.
                    leg.tracking.left_to_copy(run);
                }
            }
            let (takes_part, logged) = (leg.takes_part(), leg.is_logged());
            let times_in_sync = leg.times_in_sync;
            let (session, flush) = (None, None);
            parts.push(Part { leg: number, session, takes_part, logged, times_in_sync, flush });
        }
        state.issuing.insert(blocks);
        let (due, open) = (state.log.due(), state.log.covered());
        let epoch = state.log.write(now, change.offset, &change.content, &lacking);
        let begun = due.is_none() || state.log.due() != due || state.log.covered() != open;
        drop((legs, state));
        if begun {
            self.wake_log(); // Whoever sends it has something to wait for.
        }
        (parts, epoch)
    }

    /// The local device has answered.
    pub(crate) fn end_logged(&self, blocks: &Range<u64>, well: bool) {
        let mut legs = self.lock();
        let mut state = self.journal.lock();
        state.issuing.remove(blocks.clone());
        for leg in legs.iter_mut() {
            leg.tracking.ended_here(blocks.clone(), well);
        }
        drop((legs, state));
        if !well {
            self.wake();
        }
    }

    /// What a flush covers that is issued now.
    pub(crate) fn covered(&self) -> u64 {
        self.journal.lock().log.covered()
    }

    /// What covers the writes through those of this epoch is about to be told complete.
    pub(crate) fn close_epoch(&self, covered: u64) {
        let now = self.host.now();
        self.journal.lock().log.close(now, covered);
        self.wake_log();
    }

    /// All that was written until now is to be sent. Returns the last epoch of it.
    pub(crate) fn close_early(&self) -> u64 {
        let now = self.host.now();
        let mut state = self.journal.lock();
        state.log.close_early(now);
        let last = state.log.covered();
        drop(state);
        self.wake_log();
        last
    }

    /// The last epoch that a leg is known to have, where it gets the log.
    pub(crate) fn stamp(&self, leg: usize) -> Option<u64> {
        self.journal.lock().log.stamp(leg)
    }

    /// All of it through `epoch` is stable at the leg.
    pub(crate) fn is_stable(&self, leg: usize, epoch: u64) -> bool {
        self.journal.lock().log.is_stable(leg, epoch)
    }

    /// Bytes of memory that the log holds.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.journal.lock().log.held_bytes()
    }

    /// The legs that can be reached have all that is in the log.
    pub(crate) fn is_drained(&self) -> bool {
        let now = self.host.now();
        let legs = self.lock();
        let mut each = legs.iter().enumerate();
        each.all(|(number, leg)| {
            leg.session().is_none() || self.journal.backlog(number, now).epochs == 0
        })
    }

    /// A sender begins, and how it sends the log to a leg. What the one before it wanted of the
    /// leg's task is void: where the leg is caught up first, that waits for the sender.
    pub(crate) fn sender_begins(&self, leg: usize, sending: Sending) {
        let mut legs = self.lock();
        (legs[leg].sending, legs[leg].batch) = (Some(sending), Wish::Nothing);
    }

    /// What a leg has to get next, for the sender of `session`.
    pub(crate) fn next_batch(&self, number: usize, session: &Arc<Session>) -> Next {
        let now = self.host.now();
        let legs = self.lock();
        let mut state = self.journal.lock();
        if !legs[number].uses(session) || !state.log.follows(number) {
            return Next::Over;
        }
        match state.log.next(number, now) {
            Some(batch) => Next::Batch(batch),
            None => Next::Later(state.log.due()),
        }
    }

    /// A stamp is durable at the leg: all epochs through this one are stable there.
    pub(crate) fn stamped(
        &self,
        number: usize,
        session: &Arc<Session>,
        epoch: u64,
        closed: Duration,
    ) {
        let now = self.host.now();
        let mut legs = self.lock();
        let mut state = self.journal.lock();
        let Some(leg) = legs[number].used_by(session) else { return };
        let clean = state.log.stamped(number, epoch);
        leg.silent_since = None;
        self.are_stamped(leg, &clean, &state);
        leg.image_time = self.host.wall_clock().checked_sub(now.saturating_sub(closed));
        let look = leg.nearing
            || leg.tracking.owed() > 0
            || leg.tracking.unflushed() >= UNFLUSHED_BLOCKS_MAX
            || state.log.backlog(number, now).is_none_or(|backlog| backlog.epochs == 0);
        self.serve_queue(&legs, &mut state, now);
        drop((legs, state));
        if look {
            self.wake();
        }
        self.wake_log();
    }

    fn are_stamped(&self, leg: &mut Leg, clean: &[Range<u64>], state: &Journaled) {
        for bytes in clean {
            let blocks = bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES);
            leg.tracking.stamped(blocks, &state.issuing);
        }
    }

    /// Counts bytes of data that go to a leg.
    pub(crate) fn sends(&self, leg: usize, bytes: u64) {
        self.lock()[leg].sent_bytes += bytes;
    }

    /// The line of a leg carries so many bytes within a fraction of the lag: epochs are as large as
    /// the slowest line carries.
    pub(crate) fn pace(&self, number: usize, bytes: u64) {
        let mut state = self.journal.lock();
        state.paces[number] = bytes;
        let following = (0..LEGS_MAX).filter(|leg| state.log.follows(*leg));
        let slowest = following.map(|leg| state.paces[leg]).min();
        state.log.set_epoch_bytes_max(slowest.unwrap_or(u64::MAX));
    }

    /// `bytes` of the log became stable at a leg within the time `took`, and `sent_behind` follow
    /// on the line; both still count as on their way. Only what could not be sent yet tells that
    /// the line was full: over a long way a trickle has several steps under way, too.
    pub(crate) fn carried(&self, number: usize, bytes: u64, sent_behind: u64, took: Duration) {
        let now = self.host.now();
        let legs = self.lock();
        let mut state = self.journal.lock();
        let backlog = state.log.backlog(number, now).unwrap_or_default();
        let waiting = backlog.bytes.saturating_sub(bytes + sent_behind);
        state.carried[number].step(bytes, took, waiting);
        self.serve_queue(&legs, &mut state, now);
    }

    /// As [`open_route`](Self::open_route), by the log: what is written from now on gets to the leg
    /// in epochs, behind the stamp that is there.
    pub(crate) fn open_log(
        &self,
        number: usize,
        session: &Arc<Session>,
        event: LegEvent,
        nothing_owed: bool,
        stamp: u64,
    ) -> bool {
        let now = self.host.now();
        let mut legs = self.lock();
        let leg = &mut legs[number];
        if leg.is_logged() {
            drop(self.give_up(number, leg)); // It was to be resumed, and could not.
        }
        if (nothing_owed && leg.tracking.owed() > 0) || !leg.step(event, None, now) {
            return false;
        }
        leg.copy_begins();
        leg.route = Route::Logged { session: Some(session.clone()), takes_part: false };
        leg.silent_since = None;
        self.journal.lock().log.follow(number, stamp, now);
        drop(legs);
        self.wake();
        true
    }

    /// A leg for which the log was kept is back: it goes on behind the stamp that is there.
    pub(crate) fn resume_log(&self, number: usize, session: &Arc<Session>, stamp: u64) -> Resumed {
        let now = self.host.now();
        let mut legs = self.lock();
        let mut state = self.journal.lock();
        let leg = &mut legs[number];
        let Route::Logged { session: None, .. } = leg.route else { return Resumed::NotKept };
        let clean = match state.log.resume(number, stamp) {
            Resume::From(clean) => clean,
            Resume::NotFollowing => return Resumed::NotKept,
            Resume::Older { found, known } => {
                return Resumed::No(format!(
                    "its stamp is of epoch {found}, and epoch {known} was there: it was put back, \
                     or does not keep what it has flushed"
                ));
            }
            Resume::Ahead { found, sent } => {
                return Resumed::No(format!(
                    "its stamp is of epoch {found}, and epoch {sent} was the last that was sent"
                ));
            }
        };
        if !leg.step(LegEvent::CatchUpBegins, None, now) {
            return Resumed::NotWanted;
        }
        leg.step(LegEvent::CaughtUp, None, now);
        let is_idle = state.log.backlog(number, now).is_none_or(|backlog| backlog.epochs == 0);
        self.are_stamped(leg, &clean, &state);
        leg.route = Route::Logged { session: Some(session.clone()), takes_part: true };
        leg.consistent = true;
        // What it has not got yet has waited since it was lost.
        leg.silent_since = leg.silent_since.filter(|_| !is_idle);
        leg.times_in_sync += 1;
        self.serve_queue(&legs, &mut state, now);
        drop((legs, state));
        self.wake();
        self.wake_log();
        Resumed::Yes
    }

    /// The leg gets nothing more of the log, nor anything else. Returns the session that is over.
    pub(super) fn give_up(&self, number: usize, leg: &mut Leg) -> Option<Arc<Session>> {
        let mut state = self.journal.lock();
        drop(state.log.give_up(number));
        state.stopped = state.stopped.take().filter(|(stopped, _)| *stopped != number);
        leg.tracking.lost();
        leg.silent_since = None;
        let session = leg.session().cloned();
        leg.route = Route::None;
        (leg.behind_batch, leg.nearing) = (false, false);
        session
    }

    /// What a person says about a leg that is too far behind: writes go on.
    pub(super) fn let_go(&self, number: usize) -> bool {
        let mut state = self.journal.lock();
        let stopped = state.stopped.take();
        let (this, other) = match stopped {
            Some((leg, _)) if leg == number => (true, None),
            other => (false, other),
        };
        state.stopped = other;
        this
    }
}

fn owed_runs(leg: &Leg, blocks: &Range<u64>) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut from = blocks.start;
    while let Some(run) = leg.tracking.first_owed(from..blocks.end) {
        from = run.end;
        runs.push(run);
    }
    runs
}

fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES
}
