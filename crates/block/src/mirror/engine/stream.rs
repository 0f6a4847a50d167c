//! The epochs of a leg in one stream, where its target carries out barriers: no answer is waited
//! for.
//!
//! A step is sent as `[its writes][the stamp of the step before][barrier]`, the next one right
//! behind. Nothing behind a barrier takes effect before everything in front of it is stable, so at
//! each moment the leg holds all steps below k and any part of k: what the epoch log wants of it.
//!
//! The stamp of k lies between the barriers of k and of k + 1. It is there only if k is stable, and
//! it is stable before anything of k + 2 takes effect. So whatever becomes of the line, the leg has
//! no more than a part of the step behind the one that is sent first then, and sending that again
//! takes it back within one step.
//!
//! A step that fails must not be followed: a leg whose order ends with the first failure
//! ([`OrderedWrites`]) has nothing of what is behind, so its stamp tells the truth, and from there
//! on everything is sent again by another session.
//!
//! Not here: which legs are sent to in this way (`order`).

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::super::BLOCK_BYTES;
use super::super::carried::STEP_BYTES_MIN;
use super::super::epoch::{Batch, Content, Piece};
use super::super::link::OrderedWrites;
use super::allowance::Sent;
use super::legs::Next;
use super::sender::{Done, Sender, ZERO_BYTES_MAX, cost};
use super::session::SessionDevice;
use super::shared::Phase;
use super::signal::{Either, either};
use super::tail;
use crate::{BlockError, Result};

/// Commands under way at most. Our own target takes more at once; what it does not take would wait
/// in a queue, and count there as unanswered.
const COMMANDS_MAX: usize = 512;

/// What became of something under way, of a step with this number.
enum Answered {
    Write { zero: bool, sent: Sent },
    Stamp,
    Barrier,
}

type UnderWay = Pin<Box<dyn Future<Output = Result<(u64, Answered)>> + Send>>;

/// What lies between two barriers, and the second of them.
struct Step {
    /// The step whose stamp goes with it.
    stamps: Option<Done>,
    unanswered: usize,
    /// Its barrier was sent.
    is_whole: bool,
    bytes: u64,
}

/// The step of which not all has been sent.
struct Current {
    done: Done,
    writes: std::iter::Peekable<Box<dyn Iterator<Item = Piece> + Send>>,
    /// Zeroes of it under way. To a leg they are several commands, so the barrier waits for them.
    zeroes: usize,
}

/// Why no more was sent.
enum Filled {
    /// The log has nothing more, until then.
    Later(Option<Duration>),
    /// As much is under way as may be.
    Full,
    /// Another sender has taken its place, or none is wanted.
    Over,
}

/// The stream to a leg in one session.
pub(super) struct Stream<'a> {
    sender: &'a mut Sender,
    ordered: Arc<dyn OrderedWrites>,
    under_way: FuturesUnordered<UnderWay>,
    /// Oldest first.
    steps: VecDeque<Step>,
    /// Number of the first of them.
    first: u64,
    current: Option<Current>,
    /// The last step that was sent, while its stamp was not.
    last: Option<Done>,
    pace: Pace,
}

impl<'a> Stream<'a> {
    pub(super) fn new(sender: &'a mut Sender, ordered: Arc<dyn OrderedWrites>) -> Self {
        let pace = Pace { since: sender.shared.host().now(), bytes: 0 };
        let (under_way, steps) = Default::default();
        Self { sender, ordered, under_way, steps, first: 0, current: None, last: None, pace }
    }

    /// Sends until the session ends, or the log is not this sender's any more.
    ///
    /// # Errors
    /// The first failure; the session is not to be used further.
    pub(super) async fn run(mut self) -> Result<()> {
        // The order begins with a barrier.
        self.begin_step();
        self.end_step(None);
        loop {
            let change = self.sender.shared.legs().log_changed();
            let sender = &*self.sender;
            if sender.session.why_ended().is_some() || sender.shared.phase() == Phase::Ending {
                return Ok(());
            }
            let answer = match self.fill() {
                Filled::Over => return Ok(()),
                Filled::Full => self.under_way.next().await,
                Filled::Later(due) if self.steps.is_empty() => {
                    match self.last.take() {
                        Some(done) => {
                            self.begin_step();
                            self.end_step(Some(done));
                        }
                        None => self.sender.wait(change, due).await,
                    }
                    None
                }
                Filled::Later(due) => {
                    let waiting = self.sender.wait(change, due);
                    match either(self.under_way.next(), waiting).await {
                        Either::Left(answer) => answer,
                        Either::Right(()) => None,
                    }
                }
            };
            match answer {
                Some(Ok((step, answered))) => self.answered(step, answered),
                Some(Err(error)) => return Err(self.reason(error)),
                None => {}
            }
        }
    }

    /// Sends as much as may be under way.
    fn fill(&mut self) -> Filled {
        loop {
            if !self.send_current() {
                return Filled::Full;
            }
            if !self.has_room() {
                return Filled::Full;
            }
            match self.sender.shared.legs().next_batch(self.sender.leg, &self.sender.session) {
                Next::Over => return Filled::Over,
                Next::Later(due) => return Filled::Later(due),
                Next::Batch(batch) => self.begin(batch),
            }
        }
    }

    fn has_room(&self) -> bool {
        self.under_way.len() < COMMANDS_MAX && self.sender.allowed.have_room()
    }

    fn begin(&mut self, batch: Batch) {
        if self.steps.is_empty() {
            self.pace = Pace { since: self.sender.shared.host().now(), bytes: 0 };
        }
        self.begin_step();
        if let Some(step) = self.steps.back_mut() {
            step.bytes = batch.held_bytes();
        }
        let done = Done { epoch: batch.epoch, closed: batch.closed };
        let writes: Box<dyn Iterator<Item = Piece> + Send> =
            Box::new(batch.into_writes(self.sender.allowed.write_bytes(), ZERO_BYTES_MAX));
        self.current = Some(Current { done, writes: writes.peekable(), zeroes: 0 });
    }

    /// Goes on with the step of which a part was sent. False: there is more of it.
    fn send_current(&mut self) -> bool {
        loop {
            let has_room = self.has_room();
            let Some(current) = &mut self.current else { return true };
            if current.writes.peek().is_some() && !has_room {
                return false;
            }
            let Some(piece) = current.writes.next() else { break };
            current.zeroes += usize::from(matches!(piece.content, Content::Zero(_)));
            self.begin_write(piece);
        }
        match self.current.take_if(|current| current.zeroes == 0) {
            None => false,
            Some(current) => {
                let before = self.last.replace(current.done);
                self.end_step(before);
                true
            }
        }
    }

    fn begin_step(&mut self) {
        let (stamps, is_whole) = (None, false);
        self.steps.push_back(Step { stamps, unanswered: 0, is_whole, bytes: 0 });
    }

    /// Sends the stamp of `before` and the barrier behind the last step.
    fn end_step(&mut self, before: Option<Done>) {
        if let Some(done) = before {
            let stamp = self.begin_stamp(done);
            self.send(stamp);
        }
        let (number, ordered) = (self.newest(), self.ordered.clone());
        let barrier = self.sender.session.run(|_| ordered.barrier());
        self.send(Box::pin(async move { barrier.await.map(|()| (number, Answered::Barrier)) }));
        if let Some(step) = self.steps.back_mut() {
            (step.stamps, step.is_whole) = (before, true);
        }
    }

    /// Of the step that was begun last.
    fn newest(&self) -> u64 {
        self.first + self.steps.len() as u64 - 1
    }

    fn send(&mut self, command: UnderWay) {
        self.under_way.push(command);
        if let Some(step) = self.steps.back_mut() {
            step.unanswered += 1;
        }
    }

    fn begin_write(&mut self, piece: Piece) {
        let (number, (zero, bytes)) = (self.newest(), cost(&piece));
        let sent = self.sender.allowed.of(zero).sent(bytes, self.sender.shared.host().now());
        let write = self.sender.write(piece);
        self.send(Box::pin(async move {
            write.await.map(|()| (number, Answered::Write { zero, sent }))
        }));
    }

    /// Not forced: the barrier behind it makes it stable, and it counts from then on.
    fn begin_stamp(&self, done: Done) -> UnderWay {
        let number = self.newest();
        self.sender.shared.legs().sends(self.sender.leg, BLOCK_BYTES);
        let device = SessionDevice(self.sender.session.clone());
        let stamp = self.sender.stamp_of(done);
        let write = tail::begin_stamp(&device, &self.sender.layout, &stamp);
        Box::pin(async move { write.await.map(|()| (number, Answered::Stamp)) })
    }

    fn answered(&mut self, number: u64, answered: Answered) {
        if let Answered::Write { zero, sent } = answered {
            self.sender.allowed.of(zero).answered(sent, self.sender.shared.host().now());
            // Zeroes of a step that is whole have all been answered.
            if zero && let Some(current) = &mut self.current {
                current.zeroes -= 1;
            }
        }
        let index = (number - self.first) as usize;
        if let Some(step) = self.steps.get_mut(index) {
            step.unanswered -= 1;
        }
        // In their order: what a later one has said rests on all before it.
        while self.steps.front().is_some_and(|step| step.is_whole && step.unanswered == 0)
            && let Some(step) = self.steps.pop_front()
        {
            self.first += 1;
            if let Some(done) = step.stamps {
                self.sender.stamped(done);
            }
            self.take_pace(step.bytes);
        }
    }

    /// What the line carries, while there is always something under way.
    fn take_pace(&mut self, bytes: u64) {
        self.pace.bytes += bytes;
        let now = self.sender.shared.host().now();
        if self.pace.bytes >= STEP_BYTES_MIN {
            let sent: u64 = self.steps.iter().map(|step| step.bytes).sum();
            self.sender.pace(self.pace.bytes, sent, now.saturating_sub(self.pace.since));
            self.pace = Pace { since: now, bytes: 0 };
        }
    }

    /// Of failures that came together, the one that says the most: with the first one all that is
    /// behind it fails.
    fn reason(&mut self, first: BlockError) -> BlockError {
        if !matches!(first, BlockError::Unreachable(_)) {
            return first;
        }
        while let Some(Some(answer)) = self.under_way.next().now_or_never() {
            match answer {
                Err(error) if !matches!(error, BlockError::Unreachable(_)) => return error,
                _ => {}
            }
        }
        first
    }
}

/// Bytes that became stable since a moment.
struct Pace {
    since: Duration,
    bytes: u64,
}
