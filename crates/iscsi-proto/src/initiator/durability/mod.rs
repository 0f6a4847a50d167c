//! Which acknowledged data a target may still lose, and what follows from that: what is written
//! again when, what a flush may vouch for, which failure has yet to be told.
//!
//! [`Durability`] decides; its owner sends. It sees no PDU, socket or clock, and knows a unit as
//! one range of bytes behind a cache that may be volatile (SBC-3 §4.15). Its rules:
//!
//! * What was acknowledged without being stable is kept ([`Unflushed`]) until a flush that was sent
//!   after the acknowledgement has ended well. A write sent while the cache was on counts as such
//!   even if it is off by the time of the answer: it may have been in the cache before that.
//! * Every new incarnation (all sessions set up anew) begins with writing it again, flushing, and
//!   only then forgetting it, portion by portion, before any command of the user ([`Step`]). It
//!   does not wait to be told of a power-on: there are targets that never tell, and what told of it
//!   may have been lost with a connection. Where other initiators write to the unit, old content
//!   must not land on theirs: there nothing is written again ([`Writers::Several`]).
//! * A failure of what nobody waits for (a flush of our own, writing again) is latched, and told to
//!   the next flush or write with FUA, once. A flush that was under way when a failure was told
//!   fails as well: a target may have told it only once. For the same reason what may have been in
//!   that write-back and is acknowledged only then, and what is kept when a forced write fails, is
//!   latched for the next.
//!
//! What is not here: retries of a command, and what a status means.

mod replay;
#[cfg(test)]
mod tests;
mod unflushed;

pub use replay::{Input, Stage};
pub use unflushed::{Content, Mark, Unflushed};

/// Parts of the limit written again before a flush: an incarnation lost midway repeats the rest.
const PORTIONS: u64 = 8;

/// What success of a command means for what is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// This content is at this offset now, in a volatile cache if the unit has one.
    Volatile(u64, Content),
    /// This range (offset, length) is undefined now: nothing of it is to be written again.
    Undefined(u64, u64),
    /// A write with FUA: this range (offset, length) is stable.
    Stable(u64, u64),
    /// A flush: everything acknowledged before it was sent is stable.
    Flushed,
}

impl Effect {
    /// The range that the command changes: offset and length in bytes.
    pub fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::None | Self::Flushed => None,
            Self::Volatile(offset, content) => Some((*offset, content.len())),
            Self::Undefined(offset, len) | Self::Stable(offset, len) => Some((*offset, *len)),
        }
    }
}

/// What a command has to remember of the time when it was asked for and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    mark: Mark,
    told: u64,
    failures: u64,
    /// The cache was taken for volatile.
    volatile: bool,
}

/// What is known of the unit's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Acknowledged is stable.
    Absent,
    /// Acknowledged is not stable before a flush.
    Volatile,
    /// Nobody said: as `Volatile`.
    Unknown,
    /// As `Volatile`, and the unit knows no flush. It tells so with every flush of the user, so
    /// there is nothing to vouch for.
    Unflushable,
}

/// Who writes to the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Only we do.
    One,
    /// Others may have written since: what a power-on took is told, not written again.
    Several,
}

/// What a new incarnation has to do next, before any command of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write all of this, in any order; then [`Durability::written`].
    Write(Vec<(u64, Content)>),
    /// Flush; then [`Durability::stable`].
    Flush,
    /// Commands of the user may go.
    Open,
}

/// Why a step of writing again did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal<F> {
    /// It failed; what is kept stays kept.
    Failed(F),
    /// The unit is reserved for somebody else, who may have written since: what is kept is not ours
    /// to write any more (SPC-4 §5.13).
    Fenced(F),
}

/// Whether a command may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Go,
    /// Not before a flush of our own has ended.
    Wait,
}

/// The flush of our own that keeps what is unflushed within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnFlush {
    /// None is needed yet.
    Idle,
    /// It was sent.
    UnderWay,
    /// The last one failed: the next one only when there is no more room, so that a unit that
    /// cannot flush is not asked after every write.
    Failed,
}

/// Decides about one unit. `F` is the owner's description of a failure.
#[derive(Clone, Debug)]
pub struct Durability<F> {
    stage: Stage,
    log: Unflushed,
    cache: Cache,
    writers: Writers,
    own_flush: OwnFlush,
    /// The failure that nobody was told of.
    latched: Option<F>,
    /// How many failures our callers were told of.
    told: u64,
    /// How many the target told us of that may have been of a write-back, and the last of either.
    failures: u64,
    last_failure: Option<F>,
    /// The unit said that it was powered on, and what it lost has not been written again.
    power_on: bool,
    /// Pieces that begin in this range are being written again.
    portion: std::ops::Range<u64>,
    /// One of them was refused.
    refused: bool,
}

impl<F: Clone> Durability<F> {
    /// Keeps up to about `limit` bytes of what is unflushed; 0 keeps nothing.
    pub fn new(limit: u64, writers: Writers) -> Self {
        Self {
            stage: Stage::Down,
            log: Unflushed::new(limit),
            cache: Cache::Unknown,
            writers,
            own_flush: OwnFlush::Idle,
            latched: None,
            told: 0,
            failures: 0,
            last_failure: None,
            power_on: false,
            portion: 0..0,
            refused: false,
        }
    }

    /// Where the present incarnation stands.
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// What is kept.
    pub const fn unflushed(&self) -> &Unflushed {
        &self.log
    }

    /// A failure waits to be told.
    pub const fn has_failure(&self) -> bool {
        self.latched.is_some()
    }

    /// A power-on was told, and what it took is not written again yet.
    pub const fn is_power_on_pending(&self) -> bool {
        self.power_on
    }

    /// What is known of the unit's cache.
    pub const fn cache(&self) -> Cache {
        self.cache
    }

    /// The unit was asked again (its mode pages changed), or has to be (`Unknown`).
    pub const fn set_cache(&mut self, cache: Cache) {
        self.cache = cache;
    }

    // Commands of the user.

    /// A command is asked for.
    pub const fn ask(&self) -> Ticket {
        Ticket {
            mark: self.log.mark(),
            told: self.told,
            failures: self.failures,
            volatile: self.is_volatile(),
        }
    }

    /// It is sent, perhaps not for the first time: a flush covers what is acknowledged by now, and
    /// no write-back that has failed by now had it.
    pub const fn sent(&self, ticket: &mut Ticket) {
        ticket.mark = self.log.mark();
        ticket.failures = self.failures;
        ticket.volatile = self.is_volatile();
    }

    /// Whether a command of this effect may be sent now.
    pub fn admit(&self, effect: &Effect) -> Admission {
        match effect {
            // It has to make room first.
            Effect::Volatile(..) if self.keeps() && self.log.is_full() => Admission::Wait,
            // A target may tell a failure once, and tell our flush: the user's, which finds nothing
            // wrong any more, must not be answered before.
            Effect::Flushed if self.own_flush == OwnFlush::UnderWay => Admission::Wait,
            _ => Admission::Go,
        }
    }

    /// A command of the user ended with GOOD.
    ///
    /// # Errors
    /// Its caller is to be told this failure in place of success: data that the command would
    /// vouch for was lost, or may be.
    pub fn done(&mut self, effect: &Effect, ticket: Ticket) -> Result<(), F> {
        match effect {
            Effect::None => Ok(()),
            Effect::Volatile(offset, content) => {
                match self.keeps() || ticket.volatile && self.is_keeping_older() {
                    true => self.log.acknowledged(*offset, content.clone()),
                    false => self.log.forget(*offset, content.len()),
                }
                if ticket.failures != self.failures
                    && (ticket.volatile || self.cache != Cache::Absent)
                    && let Some(failure) = self.last_failure.clone()
                {
                    self.latch(failure);
                }
                Ok(())
            }
            Effect::Undefined(offset, len) => {
                self.log.forget(*offset, *len);
                Ok(())
            }
            Effect::Stable(offset, len) => {
                // What was acknowledged meanwhile may have come after it, and replaced what only
                // the unit's cache holds replaced now.
                self.log.forget_before(*offset, *len, ticket.mark);
                self.tell_latched()
            }
            Effect::Flushed => {
                self.tell_latched()?;
                if ticket.told != self.told
                    && let Some(failure) = &self.last_failure
                {
                    return Err(failure.clone());
                }
                self.log.flushed(ticket.mark);
                self.own_flush = OwnFlush::Idle;
                Ok(())
            }
        }
    }

    /// A command of the user failed for good at the unit, and its caller is told so.
    pub fn failed(&mut self, effect: &Effect, failure: F) {
        match effect {
            Effect::None => {}
            // It went no further than the cache.
            Effect::Volatile(..) | Effect::Undefined(..) if self.cache == Cache::Volatile => {}
            Effect::Volatile(..) | Effect::Undefined(..) | Effect::Stable(..) => {
                self.note_failure(&failure);
                // Its caller takes it for a failure of this write alone.
                if !self.log.is_empty() {
                    self.latch(failure);
                }
            }
            Effect::Flushed => {
                // What is latched needs no telling of its own: nothing is vouched for by this flush.
                self.latched = None;
                self.note_failure(&failure);
                self.note_told(failure);
            }
        }
    }

    /// The caller that [`Self::done`] had a failure for is gone: the next one is told.
    pub fn not_told(&mut self, failure: F) {
        self.latch(failure);
    }

    fn tell_latched(&mut self) -> Result<(), F> {
        match self.latched.take() {
            Some(failure) => {
                self.note_told(failure.clone());
                Err(failure)
            }
            None => Ok(()),
        }
    }

    fn note_told(&mut self, failure: F) {
        self.told += 1;
        self.last_failure = Some(failure);
    }

    /// The target told it, perhaps once, and it may have been that of a write-back.
    fn note_failure(&mut self, failure: &F) {
        self.failures += 1;
        self.last_failure = Some(failure.clone());
    }

    /// The first failure tells most.
    fn latch(&mut self, failure: F) {
        self.latched.get_or_insert(failure);
    }

    const fn keeps(&self) -> bool {
        self.log.limit() > 0 && self.is_volatile()
    }

    /// What was sent before the cache was turned off is still kept.
    const fn is_keeping_older(&self) -> bool {
        self.log.limit() > 0 && matches!(self.cache, Cache::Absent)
    }

    const fn is_volatile(&self) -> bool {
        matches!(self.cache, Cache::Volatile | Cache::Unknown)
    }

    // Flushes of our own.

    /// Time to send a flush of our own. `writes_wait`: a write was not admitted.
    pub fn wants_own_flush(&self, writes_wait: bool) -> bool {
        let up = self.stage == Stage::Up;
        match self.own_flush {
            OwnFlush::Idle => up && self.log.wants_flush(),
            OwnFlush::UnderWay => false,
            OwnFlush::Failed => up && writes_wait && self.log.is_full(),
        }
    }

    /// It was sent, with this ticket.
    pub const fn own_flush_sent(&mut self) -> Ticket {
        self.own_flush = OwnFlush::UnderWay;
        self.ask()
    }

    /// It ended with GOOD.
    pub fn own_flush_done(&mut self, ticket: Ticket) {
        self.own_flush = OwnFlush::Idle;
        // After a failure of an earlier one this success may be empty: the target may have told
        // its loss. What is kept stays, as long as there is room, until the user knows.
        if self.latched.is_none() || self.log.is_full() {
            self.log.flushed(ticket.mark);
        } else {
            self.own_flush = OwnFlush::Failed;
        }
    }

    /// It failed for good. True: there is no more room, so writes that wait for it fail as well;
    /// waiting for ever is no answer, nor is forgetting.
    pub fn own_flush_failed(&mut self, failure: F) -> bool {
        self.own_flush = OwnFlush::Failed;
        self.note_failure(&failure);
        self.latch(failure);
        self.log.is_full()
    }

    /// It was not carried out: its session ended, or the unit was busy.
    pub const fn own_flush_undone(&mut self) {
        self.own_flush = OwnFlush::Idle;
    }

    /// The unit has no flush at all: nothing can ever be vouched for, as every flush tells.
    pub fn no_flush(&mut self) {
        self.own_flush = OwnFlush::Idle;
        self.cache = Cache::Unflushable;
        self.log.clear();
    }

    // Incarnations.

    /// The unit said that it was powered on, to whichever command. True: the present incarnation is
    /// to be ended, because what it was given may be gone.
    pub const fn power_on(&mut self) -> bool {
        self.power_on = true;
        match self.stage.after(Input::PowerOn) {
            Some(stage) => {
                self.stage = stage;
                true
            }
            None => false,
        }
    }

    /// The incarnation ended, or one could not be set up.
    pub const fn lost(&mut self) {
        self.stage = Stage::Down;
        if matches!(self.own_flush, OwnFlush::UnderWay) {
            self.own_flush = OwnFlush::Idle;
        }
    }

    /// Every session of a new incarnation is up, and the unit has told all its attentions. `lost`
    /// describes the failure that so many bytes cannot be written again.
    pub fn begin(&mut self, cache: Cache, lost: impl FnOnce(u64) -> F) -> Step {
        self.cache = cache;
        self.portion = 0..0;
        self.take(Input::Begin);
        if self.writers == Writers::One || self.log.is_empty() {
            return self.next_portion();
        }
        if self.power_on {
            let failure = lost(self.log.cost());
            self.latch(failure);
            self.log.clear();
            return self.next_portion();
        }
        // A target that lived on still has what it acknowledged, and is asked to make it stable.
        self.portion = 0..u64::MAX;
        self.refused = false;
        self.take(Input::Written);
        Step::Flush
    }

    /// Every write of [`Step::Write`] has ended.
    pub fn written(&mut self, refusal: Option<Refusal<F>>) -> Step {
        match refusal {
            None => {}
            Some(Refusal::Failed(failure)) => {
                self.refused = true;
                self.latch(failure);
            }
            Some(Refusal::Fenced(failure)) => {
                self.latch(failure);
                self.log.clear();
                return self.open();
            }
        }
        self.take(Input::Written);
        Step::Flush
    }

    /// The flush of [`Step::Flush`] has ended.
    pub fn stable(&mut self, refusal: Option<Refusal<F>>) -> Step {
        match refusal {
            Some(Refusal::Failed(failure) | Refusal::Fenced(failure)) => self.latch(failure),
            None if self.refused => {}
            None => self.log.forget_beginning_in(self.portion.clone()),
        }
        self.take(Input::Flushed);
        self.next_portion()
    }

    fn next_portion(&mut self) -> Step {
        let len = (self.log.limit() / PORTIONS).max(1);
        let (pieces, end) = self.log.portion(self.portion.end, len);
        if pieces.is_empty() {
            return self.open();
        }
        self.portion = self.portion.end..end;
        self.refused = false;
        Step::Write(pieces)
    }

    fn open(&mut self) -> Step {
        self.power_on = false;
        self.take(Input::Complete);
        Step::Open
    }

    /// Whoever gives an input that the table does not know has lost the incarnation on the way:
    /// the stage stays, and nothing opens.
    fn take(&mut self, input: Input) {
        debug_assert!(self.stage.after(input).is_some(), "{input:?} in {:?}", self.stage);
        if let Some(stage) = self.stage.after(input) {
            self.stage = stage;
        }
    }
}
