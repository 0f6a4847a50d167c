//! What [`Legs`](super::Legs) keeps of one leg, and what of it is told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::super::BLOCK_BYTES;
use super::super::super::epoch::Backlog;
use super::super::super::leg::LegEvent;
use super::super::super::status::{Gathered, Guard, Home, LegState, LegStatus, Sending, Way};
use super::super::session::Session;
use super::super::tracking::Tracking;

/// The way on which changes get to a leg.
#[derive(Clone)]
pub(super) enum Route {
    /// Nothing is sent: bits are set.
    None,
    /// Each change is sent at once, and completes when the leg has answered.
    Direct {
        session: Arc<Session>,
        /// Flushes wait for it, and nothing completes without it.
        takes_part: bool,
    },
    /// Changes go into the epoch log, which a task of the leg sends.
    Logged {
        /// None while the leg is out of reach: the log is kept for it.
        session: Option<Arc<Session>>,
        /// It has all that is not in the log.
        takes_part: bool,
    },
    /// What is owed goes into its redo log, and changes only set bits: the image is not touched.
    Redo { session: Arc<Session> },
}

pub(super) struct Leg {
    pub(super) name: String,
    pub(super) state: LegState,
    pub(super) since: Duration,
    pub(super) message: Option<String>,
    pub(super) guard: Guard,
    /// When its superblock was last written, if it was since the mirror was opened.
    pub(super) told_at: Option<Duration>,
    /// When its superblock was written for the first time after a silence.
    pub(super) claimed_at: Option<Duration>,
    pub(super) sending: Option<Sending>,
    pub(super) tracking: Tracking,
    pub(super) route: Route,
    pub(super) excluded: bool,
    /// How often everything has been there: who waits for the leg goes on at the next time.
    pub(super) times_in_sync: u64,
    pub(super) consistent: bool,
    pub(super) image_time: Option<SystemTime>,
    pub(super) copied_blocks: u64,
    /// Bytes of them that have got from the redo log to their place.
    pub(super) home_bytes: u64,
    /// As many of these were when the present batch began.
    pub(super) home_before: u64,
    /// The leg's superblock names the batch in its redo log: whoever promotes it gets that, too.
    pub(super) is_committed: bool,
    pub(super) copy_rate: Rate,
    pub(super) sent_bytes: u64,
    /// Bytes of data that copies have read there, to send only what differs.
    pub(super) compared_bytes: u64,
    /// All of its image counts as differing: when it is in sync again, what a verification has
    /// found before does not hold any more.
    pub(super) is_renewed: bool,
    /// A person wants the next attempt now.
    pub(super) hurry: bool,
    /// What is known of whoever keeps its image before that is written over.
    pub(super) keeping: Keeping,
    /// Changes are not sent there but left to the copy, so that nobody waits behind it.
    pub(super) far_behind: bool,
    /// What is owed may be there already: a copy looks before it sends.
    pub(super) compares: bool,
    /// Since then nothing of what waits for it has become stable there.
    pub(super) silent_since: Option<Duration>,
    /// What it was owed is in its redo log and not home: the log goes on behind that.
    pub(super) behind_batch: bool,
    /// It has all but the log, and what waits there may be older than the lag.
    pub(super) nearing: bool,
    /// Its task does nothing but look after it, and can send a batch.
    pub(super) attended: bool,
    /// What its sender wants of its task, in the asynchronous mode.
    pub(super) batch: Wish,
    /// Batches that were sent to it.
    pub(super) batches: u64,
    /// Why the last of them was, or is being.
    pub(super) batch_why: Option<String>,
    /// How it is caught up with.
    pub(super) way: Way,
    /// How what is in its redo log gets home.
    pub(super) home: Option<Home>,
    /// Catch-ups that could not be carried through by its redo log.
    pub(super) fallbacks: u64,
    /// Bytes of its redo log.
    pub(super) redo_bytes: u64,
}

/// Whether a batch is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    /// No.
    #[default]
    Nothing,
    /// By the task of the leg, and its sender waits.
    Batch,
    /// There was none to send: the next step goes by itself.
    Step,
}

/// What was answered to the question whether an image may be written over.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keeping {
    /// It may be: the image that is there now has been kept.
    pub(super) kept: bool,
    /// Times in a row that it must not.
    pub(super) refusals: u32,
    /// The last attempt has ended by that.
    pub(super) refused: bool,
}

/// How fast something goes, over the last [`RATE_OVER`] or so.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    /// Time and count at two moments, the older first.
    marks: [Option<(Duration, u64)>; 2],
    count: u64,
}

/// Long enough that a window's ups and downs do not show, short enough that a change does.
const RATE_OVER: Duration = Duration::from_secs(5);

impl Rate {
    pub(super) fn note(&mut self, now: Duration, count: u64) {
        let newer = *self.marks[1].get_or_insert((now, self.count));
        if now.saturating_sub(newer.0) >= RATE_OVER {
            self.marks = [Some(newer), Some((now, self.count))];
        }
        self.count = count;
    }

    fn bytes_per_s(&self, now: Duration) -> u64 {
        let Some((since, count)) = self.marks[0].or(self.marks[1]) else { return 0 };
        let took = now.saturating_sub(since).as_secs_f64();
        if took > 0.0 { ((self.count - count) as f64 / took) as u64 } else { 0 }
    }
}

impl Leg {
    /// One that was not reached yet.
    pub(super) fn new(name: String, tracking: Tracking, excluded: bool, since: Duration) -> Self {
        Self {
            name,
            state: LegState::Connecting,
            since,
            message: None,
            guard: Guard::default(),
            told_at: None,
            claimed_at: None,
            sending: None,
            tracking,
            route: Route::None,
            excluded,
            times_in_sync: 0,
            consistent: false,
            image_time: None,
            copied_blocks: 0,
            home_bytes: 0,
            home_before: 0,
            is_committed: false,
            copy_rate: Rate::default(),
            sent_bytes: 0,
            compared_bytes: 0,
            is_renewed: false,
            hurry: false,
            keeping: Keeping::default(),
            far_behind: false,
            compares: false,
            silent_since: None,
            behind_batch: false,
            nearing: false,
            attended: false,
            batch: Wish::default(),
            batches: 0,
            batch_why: None,
            way: Way::default(),
            home: None,
            fallbacks: 0,
            redo_bytes: 0,
        }
    }

    pub(super) fn step(&mut self, event: LegEvent, message: Option<String>, now: Duration) -> bool {
        let Some(next) = self.state.next(event) else { return false };
        if next != self.state {
            self.since = now;
        }
        if event != LegEvent::Lost {
            self.keeping.kept = false; // Its image may change, or be somebody else's.
        }
        self.attended &= event == LegEvent::CaughtUp;
        (self.state, self.message) = (next, message);
        true
    }

    /// What is told of a copy is of the one that begins now.
    pub(super) fn copy_begins(&mut self) {
        (self.copied_blocks, self.copy_rate) = (0, Rate::default());
        (self.home_bytes, self.home_before, self.is_committed) = (0, 0, false);
    }

    /// Bytes that the present copy has sent.
    pub(super) fn copied_bytes(&self) -> u64 {
        self.copied_blocks * BLOCK_BYTES
    }

    /// The present copy has moved more.
    pub(super) fn note_rate(&mut self, now: Duration) {
        self.copy_rate.note(now, self.copied_bytes() + self.home_bytes);
    }

    pub(super) fn session(&self) -> Option<&Arc<Session>> {
        match &self.route {
            Route::Direct { session, .. } | Route::Redo { session } => Some(session),
            Route::Logged { session, .. } => session.as_ref(),
            Route::None => None,
        }
    }

    pub(super) fn uses(&self, session: &Arc<Session>) -> bool {
        self.session().is_some_and(|used| Arc::ptr_eq(used, session))
    }

    pub(super) fn used_by(&mut self, session: &Arc<Session>) -> Option<&mut Self> {
        self.uses(session).then_some(self)
    }

    pub(super) fn has_route(&self) -> bool {
        !matches!(self.route, Route::None)
    }

    /// Changes are sent to it, or wait for it in the log.
    pub(super) fn gets_changes(&self) -> bool {
        matches!(self.route, Route::Direct { .. } | Route::Logged { .. })
    }

    /// What was copied to it can be read there.
    pub(super) fn is_at_its_place(&self) -> bool {
        self.gets_changes() && !self.behind_batch
    }

    pub(super) fn is_logged(&self) -> bool {
        matches!(self.route, Route::Logged { .. })
    }

    pub(super) fn takes_part(&self) -> bool {
        matches!(
            self.route,
            Route::Direct { takes_part: true, .. } | Route::Logged { takes_part: true, .. }
        )
    }

    /// Blocks that a promotion would lack, but for what the log brings.
    fn missing_blocks(&self) -> u64 {
        let in_redo = matches!(self.route, Route::Redo { .. }) || self.behind_batch;
        match in_redo && !self.is_committed {
            true => self.tracking.not_logged(),
            false => self.tracking.owed(),
        }
    }

    /// What is there is a legal image of a moment within the lag, and the log brings what is newer.
    pub(super) fn is_promised(&self) -> bool {
        let has_image = self.consistent && !self.excluded && !self.behind_batch;
        self.is_logged() && has_image && !self.nearing
    }

    /// The way to it is lost, and the log is kept for it.
    pub(super) fn line_lost(&mut self, now: Duration) -> Option<Arc<Session>> {
        self.tracking.line_lost();
        let Route::Logged { session, .. } = &mut self.route else { return None };
        let session = session.take();
        if let Some(session) = &session {
            self.silent_since.get_or_insert(now.saturating_sub(session.silence()));
        }
        session
    }

    pub(super) fn status(
        &self,
        backlog: Backlog,
        now: Duration,
        wall_clock: SystemTime,
    ) -> LegStatus {
        let current = self.state == LegState::InSync && backlog.epochs == 0;
        let copying = matches!(self.state, LegState::Copying | LegState::CatchingUp);
        let copy_bytes_per_s = if copying { self.copy_rate.bytes_per_s(now) } else { 0 };
        let owed = self.tracking.owed() * BLOCK_BYTES;
        let left_bytes = match self.way {
            Way::Atomic => 2 * owed + self.copied_bytes().saturating_sub(self.home_bytes),
            Way::InPlace | Way::Unset => owed,
        };
        let left = Duration::try_from_secs_f64(left_bytes as f64 / copy_bytes_per_s as f64);
        let gathered = |why: &String| Gathered { now: self.batch == Wish::Batch, why: why.clone() };
        LegStatus {
            name: self.name.clone(),
            state: self.state,
            since: now.saturating_sub(self.since),
            message: self.message.clone(),
            guard: self.guard,
            sending: self.sending.clone(),
            consistent: self.consistent,
            lag_bytes: backlog.bytes,
            lag: backlog.age,
            dirty_bytes: self.missing_blocks() * BLOCK_BYTES,
            epochs: backlog.epochs,
            image_time: if current { Some(wall_clock) } else { self.image_time },
            copied_bytes: self.copied_bytes(),
            home_bytes: self.home_bytes,
            left_bytes,
            copy_bytes_per_s,
            copy_time_left: left.ok().filter(|_| copying),
            sent_bytes: self.sent_bytes,
            redo_bytes: self.redo_bytes,
            way: self.way,
            home: self.home.clone(),
            batches: self.batches,
            gathered: self.batch_why.as_ref().map(gathered),
            fallbacks: self.fallbacks,
            verified: None,
            verifying: None,
        }
    }
}
