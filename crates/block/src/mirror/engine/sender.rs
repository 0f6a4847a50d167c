//! The sender of a leg in the asynchronous mode: takes step after step from the epoch log. Where
//! the leg keeps an order they go out in one `stream`. Everywhere else each waits for the answers,
//! is flushed, and only then the next one is taken: two round trips a step on any target.
//!
//! The stamp of a step goes out with the next one, or alone where there is none: whatever it tells
//! of was flushed before it is sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::super::BLOCK_BYTES;
use super::super::carried::STEP_BYTES_MIN;
use super::super::epoch::{Batch, Content, Piece};
use super::super::layout::LegLayout;
use super::super::link::OrderedWrites;
use super::super::superblock::Stamp;
use super::allowance::{Allowance, Allowances, BYTES_FIRST, Sent};
use super::legs::Next;
use super::order;
use super::put::put;
use super::session::{Operation, Session, SessionDevice};
use super::shared::{Phase, Shared};
use super::signal::either;
use super::stream::Stream;
use super::tail;
use crate::Result;

/// Bytes of data of a write at most, and at least where more follows.
const DATA_BYTES: (u64, u64) = (1 << 20, 64 << 10);

/// Writes that fill what may be under way at least. With fewer, a line that is so slow that it
/// carries one within the time of an answer stands still between them.
const WRITES_PER_WINDOW: u64 = 8;

/// Bytes that a leg is told to zero at once at most: some targets write them one by one.
pub(super) const ZERO_BYTES_MAX: u64 = 4 << 20;

/// Bytes of zeroes under way at most: a target may have done at once.
const ZEROES_MAX: u64 = 2 << 30;

/// Writes under way at most.
const WRITES_MAX: usize = 2048;

/// What a write costs on the line beside its data, in bytes: a long row of small ones is a window.
const WRITE_OVERHEAD_BYTES: u64 = 256;

/// A full epoch is to take about this part of the lag: a step is [`BATCH_EPOCHS`] of them at most,
/// so that two of these take half of it.
///
/// [`BATCH_EPOCHS`]: super::super::epoch::BATCH_EPOCHS
const EPOCHS_PER_LAG: u32 = 16;

/// A step that is stable at the leg, and whose stamp is not.
#[derive(Clone, Copy)]
pub(super) struct Done {
    pub(super) epoch: u64,
    pub(super) closed: Duration,
}

/// What became of something under way.
enum Answered {
    Write { zero: bool, sent: Sent },
    Stamp(Done),
}

type UnderWay = Pin<Box<dyn Future<Output = Result<Answered>> + Send>>;

/// Begins to send the log to a leg whose route was just opened or resumed.
pub(crate) fn start(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>, layout: LegLayout) {
    let timeout = shared.config().remote_timeout;
    let allow = |max| Allowance::new(BYTES_FIRST, (BLOCK_BYTES, max), timeout);
    let data = allow(shared.config().resync_window_bytes);
    let sender = Sender {
        shared: shared.clone(),
        leg,
        session: session.clone(),
        layout,
        allowed: Allowances { data, zeroes: allow(ZEROES_MAX) },
        done: None,
        known: (Duration::ZERO, None),
    };
    let task = shared.task();
    let (sending, ordered) = order::choose(session.leg());
    shared.legs().sender_begins(leg, sending);
    shared.host().spawn(Box::pin(async move {
        match ordered {
            Some(ordered) => sender.stream(ordered).await,
            None => sender.run().await,
        }
        drop(task);
    }));
}

pub(super) struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) leg: usize,
    pub(super) session: Arc<Session>,
    pub(super) layout: LegLayout,
    pub(super) allowed: Allowances,
    done: Option<Done>,
    /// What a small step took, and bytes a second of the line, once it is known.
    known: (Duration, Option<u64>),
}

impl Sender {
    async fn run(mut self) {
        loop {
            let change = self.shared.legs().log_changed();
            if self.session.why_ended().is_some() || self.shared.phase() == Phase::Ending {
                return;
            }
            let (took, rate) = self.known;
            if self.shared.legs().is_for_batch(self.leg, &self.session, took, rate) {
                // Its stamp says all that one of ours would; an older one must not come behind it.
                self.wait(change, None).await;
                let stamp = self.shared.legs().stamp(self.leg).unwrap_or_default();
                self.done = self.done.filter(|done| done.epoch > stamp);
                continue;
            }
            let sent = match self.shared.legs().next_batch(self.leg, &self.session) {
                Next::Over => return,
                Next::Batch(batch) => self.step(batch).await,
                Next::Later(due) => match self.done.take() {
                    Some(done) => self.stamp(done).await,
                    None => {
                        self.wait(change, due).await;
                        Ok(())
                    }
                },
            };
            if let Err(error) = sent {
                self.shared.leg_failed(self.leg, &self.session, &error);
                return;
            }
        }
    }

    /// Without waiting for anything.
    async fn stream(mut self, ordered: Arc<dyn OrderedWrites>) {
        if let Err(error) = Stream::new(&mut self, ordered).run().await {
            self.shared.leg_failed(self.leg, &self.session, &error);
        }
    }

    pub(super) async fn wait(&self, change: impl Future<Output = ()>, due: Option<Duration>) {
        let change = either(change, self.session.over());
        let Some(due) = due else {
            change.await;
            return;
        };
        let left = due.saturating_sub(self.shared.host().now());
        either(change, self.shared.host().sleep(left)).await;
    }

    /// Sends a step, and waits until it is stable.
    async fn step(&mut self, batch: Batch) -> Result<()> {
        let begun = self.shared.host().now();
        let done = Done { epoch: batch.epoch, closed: batch.closed };
        let step_bytes = batch.held_bytes();
        let mut under_way: FuturesUnordered<UnderWay> = FuturesUnordered::new();
        if let Some(before) = self.done.take() {
            under_way.push(self.begin_stamp(before));
        }
        let mut writes = batch.into_writes(self.allowed.write_bytes(), ZERO_BYTES_MAX);
        let mut next = writes.next();
        loop {
            while under_way.len() < WRITES_MAX
                && self.allowed.have_room()
                && let Some(piece) = next.take()
            {
                under_way.push(self.begin_write(piece));
                next = writes.next();
            }
            match under_way.next().await.transpose()? {
                None => break,
                Some(Answered::Write { zero, sent }) => {
                    self.allowed.of(zero).answered(sent, self.shared.host().now());
                }
                Some(Answered::Stamp(done)) => self.stamped(done),
            }
        }
        // With the time of any other operation: at the lag's bound, writes wait behind it.
        self.session.run(|device| device.flush()).await?;
        self.pace(step_bytes, 0, self.shared.host().now().saturating_sub(begun));
        self.done = Some(done);
        Ok(())
    }

    /// Writes the stamp of a step where nothing else is to be sent.
    async fn stamp(&mut self, done: Done) -> Result<()> {
        if let Answered::Stamp(done) = self.begin_stamp(done).await? {
            self.stamped(done);
        }
        Ok(())
    }

    pub(super) fn stamped(&self, done: Done) {
        self.shared.legs().stamped(self.leg, &self.session, done.epoch, done.closed);
    }

    fn begin_stamp(&self, done: Done) -> UnderWay {
        let (device, layout) = (SessionDevice(self.session.clone()), self.layout);
        self.shared.legs().sends(self.leg, BLOCK_BYTES);
        let stamp = self.stamp_of(done);
        Box::pin(async move {
            tail::write_stamp(&device, &layout, &stamp).await?;
            Ok(Answered::Stamp(done))
        })
    }

    pub(super) fn stamp_of(&self, done: Done) -> Stamp {
        let age = self.shared.host().now().saturating_sub(done.closed);
        let closed = self.shared.host().wall_clock().checked_sub(age);
        self.shared.books().stamp(done.epoch, closed)
    }

    fn begin_write(&mut self, piece: Piece) -> UnderWay {
        let (zero, bytes) = cost(&piece);
        let sent = self.allowed.of(zero).sent(bytes, self.shared.host().now());
        let write = self.write(piece);
        Box::pin(async move { write.await.map(|()| Answered::Write { zero, sent }) })
    }

    /// Asks the leg for it.
    pub(super) fn write(&self, piece: Piece) -> Operation<()> {
        self.shared.legs().sends(self.leg, piece.content.data_bytes());
        self.session.run(|device| put(&**device, piece))
    }

    /// A step took so long, and so many bytes were sent behind it already: the next ones are as
    /// large as the line carries within a part of the lag.
    pub(super) fn pace(&mut self, bytes: u64, sent_behind: u64, took: Duration) {
        if bytes < STEP_BYTES_MIN || took.is_zero() {
            self.known.0 = took;
            return;
        }
        let rate = bytes as f64 / took.as_secs_f64();
        self.known.1 = Some(rate as u64);
        let part = (self.shared.config().lag.age / EPOCHS_PER_LAG).as_secs_f64();
        self.shared.legs().pace(self.leg, (rate * part) as u64);
        self.shared.legs().carried(self.leg, bytes, sent_behind, took);
    }
}

impl Allowances {
    /// How large a write of data is made.
    pub(super) fn write_bytes(&self) -> u64 {
        let (max, min) = DATA_BYTES;
        (self.data.bytes() / WRITES_PER_WINDOW / min * min).clamp(min, max)
    }
}

/// What a write counts as: whether it is zeroes, and bytes.
pub(super) fn cost(piece: &Piece) -> (bool, u64) {
    match &piece.content {
        Content::Data(data) => (false, data.len() as u64 + WRITE_OVERHEAD_BYTES),
        Content::Zero(len) => (true, *len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_as_small_as_a_slow_line_needs_and_as_large_as_a_fast_one_likes() {
        let of = |bytes| {
            let data = Allowance::new(bytes, (BLOCK_BYTES, bytes), Duration::from_secs(10));
            Allowances { data, zeroes: data }.write_bytes()
        };
        assert_eq!([of(4096), of(1 << 20), of(2 << 20)], [64 << 10, 128 << 10, 256 << 10]);
        assert_eq!([of((2 << 20) - 1), of(64 << 20)], [192 << 10, 1 << 20]);
    }
}
