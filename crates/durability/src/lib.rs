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
//!   the next flush or write with FUA, once.
//! * A target may tell a failure only once, to any flush or forced write that is under way. So one
//!   that ends with GOOD is held until all that were under way with it are over, our own among
//!   them, and fails if one of them has failed ([`Ended`]). One of them that ends without an answer
//!   may have been told: what was held for it is sent again, when what is kept has been written
//!   again. For the same reason what may have been in a write-back that failed and is acknowledged
//!   only then, and what is kept when a forced write fails, is latched for the next.
//!
//! What is not here: retries of a command, and what a status means. iSCSI's initiator
//! (`iscsi_proto::initiator`) and the NBD client (`nbd`) are its owners.

#![forbid(unsafe_code)]

mod effect;
mod own;
mod replay;
mod tellers;
#[cfg(test)]
mod tests;
mod unflushed;

pub use effect::Effect;
pub use replay::{Input, Stage};
pub use unflushed::{Content, Mark, Unflushed};

use own::OwnFlush;
use tellers::{Tellers, Way, Worth};

/// Parts of the limit written again before a flush: an incarnation lost midway repeats the rest.
const PORTIONS: u64 = 8;

/// What a command has to remember of the time when it was asked for and sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    mark: Mark,
    told: u64,
    failures: u64,
    /// The cache was taken for volatile.
    volatile: bool,
    way: Way,
}

/// What becomes of a command that ended with GOOD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended<F> {
    /// Its caller is told so.
    Good,
    /// Its caller is told this failure in place of success: data that the command would vouch for
    /// was lost, or may be.
    Failed(F),
    /// Its caller has to wait: to be asked again, with the same ticket, when others have ended.
    Held,
    /// It vouches for nothing, and is sent again as a command without an answer is.
    Again,
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

/// Decides about one unit. `F` is the owner's description of a failure.
#[derive(Clone, Debug)]
pub struct Durability<F> {
    stage: Stage,
    log: Unflushed,
    cache: Cache,
    writers: Writers,
    own_flush: OwnFlush,
    tellers: Tellers,
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
            tellers: Tellers::default(),
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
            way: Way::Away,
        }
    }

    /// It is sent, perhaps not for the first time: a flush covers what is acknowledged by now, and
    /// no write-back that has failed by now had it. It ends with [`Self::done`], [`Self::failed`],
    /// [`Self::undone`], [`Self::unanswered`] or, with all others, [`Self::lost`].
    pub fn sent(&mut self, effect: &Effect, ticket: &mut Ticket) {
        ticket.mark = self.log.mark();
        ticket.failures = self.failures;
        ticket.volatile = self.is_volatile();
        if effect.is_teller() {
            self.tellers.sent(&mut ticket.way);
        }
    }

    /// Whether a command of this effect may be sent now.
    pub fn admit(&self, effect: &Effect) -> Admission {
        match effect {
            // It has to make room first.
            Effect::Volatile(..) if self.keeps() && self.log.is_full() => Admission::Wait,
            _ => Admission::Go,
        }
    }

    /// A command of the user ended with GOOD.
    pub fn done(&mut self, effect: &Effect, ticket: &mut Ticket) -> Ended<F> {
        match effect {
            Effect::None => {}
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
            }
            Effect::Undefined(offset, len) => self.log.forget(*offset, *len),
            Effect::Stable(..) | Effect::Flushed => {
                self.tellers.good(&mut ticket.way);
                let ended = self.vouch(effect, ticket);
                self.settle_own_flush();
                return ended;
            }
        }
        Ended::Good
    }

    /// What GOOD of a flush or forced write is worth.
    fn vouch(&mut self, effect: &Effect, ticket: &Ticket) -> Ended<F> {
        match self.tellers.worth(ticket.way) {
            Worth::Unknown => return Ended::Held,
            Worth::Failed => {
                if let Some(failure) = self.take_latched().or(self.last_failure.clone()) {
                    return Ended::Failed(failure);
                }
            }
            Worth::Lost => return Ended::Again,
            Worth::All => {}
        }
        if let Effect::Stable(offset, len) = effect {
            // What was acknowledged meanwhile may have come after it, and replaced what only the
            // unit's cache holds replaced now.
            self.log.forget_before(*offset, *len, ticket.mark);
        }
        if let Some(failure) = self.take_latched() {
            return Ended::Failed(failure);
        }
        if *effect == Effect::Flushed {
            if ticket.told != self.told
                && let Some(failure) = &self.last_failure
            {
                return Ended::Failed(failure.clone());
            }
            self.log.flushed(ticket.mark);
            self.own_flush = self.own_flush.after_a_success();
        }
        Ended::Good
    }

    /// A command was answered without having been carried out, or not sent after all.
    pub fn undone(&mut self, ticket: &mut Ticket) {
        self.tellers.over(&mut ticket.way);
        self.settle_own_flush();
    }

    /// A command that was sent came back without an answer although its session goes on. True: the
    /// incarnation is to be ended. Sent again it might end with GOOD because a failure was told
    /// with the answer that is lost, and only writing again makes up for that.
    pub fn unanswered(&mut self, ticket: &mut Ticket) -> bool {
        let may_have_been_told = self.tellers.unanswered(&mut ticket.way);
        self.settle_own_flush();
        may_have_been_told && self.stage == Stage::Up && !self.log.is_empty()
    }

    /// A command of the user failed for good at the unit, and its caller is told so.
    pub fn failed(&mut self, effect: &Effect, ticket: &mut Ticket, failure: F) {
        match effect {
            Effect::None => {}
            // It went no further than the cache.
            Effect::Volatile(..) | Effect::Undefined(..) if self.cache == Cache::Volatile => {}
            Effect::Volatile(..) | Effect::Undefined(..) | Effect::Stable(..) => {
                self.note_failure(&failure);
                if effect.is_teller() {
                    self.tellers.failed(&mut ticket.way);
                }
                // Its caller takes it for a failure of this write alone.
                if !self.log.is_empty() {
                    self.latch(failure);
                }
            }
            Effect::Flushed => {
                // What is latched needs no telling of its own: nothing is vouched for by this
                // flush.
                self.latched = None;
                self.note_failure(&failure);
                self.tellers.failed(&mut ticket.way);
                self.note_told(failure);
            }
        }
        self.settle_own_flush();
    }

    /// The caller that [`Self::done`] had a failure for has gone: the next one is told.
    pub fn not_told(&mut self, failure: F) {
        self.latch(failure);
    }

    /// The failure that nobody was told of, to be told now.
    fn take_latched(&mut self) -> Option<F> {
        let failure = self.latched.take()?;
        self.note_told(failure.clone());
        Some(failure)
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
    pub fn lost(&mut self) {
        self.stage = Stage::Down;
        self.tellers.lost();
        self.own_flush = self.own_flush.after_a_loss();
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
