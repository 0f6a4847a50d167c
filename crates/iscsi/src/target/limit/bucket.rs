//! [`Bucket`]: commands are let through as fast as a [`Limit`] allows, over real time.
//!
//! Instead of tokens that are filled in, each of the two limits has the time at which the next
//! command may go (the virtual scheduling form of a leaky bucket, ITU-T I.371 annex A). A command
//! that goes moves that time on by what it costs, however much: a large one goes at once and leaves
//! a debt, so no command is too large for a burst. As long as commands wait, that time moves on
//! from where it was and not from when a timer fired, so a late timer takes nothing away, and small
//! limits are exact.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::fair::{Flow, Queue};
use super::{Cost, Limit};

/// Longest debt that one command leaves.
const DEBT_MAX: Duration = Duration::from_secs(24 * 3600);

/// A limit with the commands that wait for it.
pub(super) struct Bucket {
    state: Mutex<State>,
    /// The limit has changed while commands wait.
    changed: Notify,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) waiting: usize,
    pub(super) commands: u64,
    pub(super) bytes: u64,
    pub(super) delayed: u64,
    pub(super) waited: Duration,
}

struct State {
    limit: Limit,
    /// When the next command may go, as far as bytes are concerned.
    bytes_due: Instant,
    /// And as far as the number of commands is.
    commands_due: Instant,
    /// Since when commands have been waiting, while there are any: that time counts.
    busy_since: Instant,
    queue: Queue<Waiting>,
    /// A task lets commands through when it is time.
    is_driven: bool,
    counts: Counts,
}

struct Waiting {
    cost: Cost,
    since: Instant,
    go: oneshot::Sender<()>,
}

/// A command in the queue; completes when it may go. Dropped, it costs nothing.
pub(super) struct Ticket {
    bucket: Arc<Bucket>,
    flow: Flow,
    number: u64,
    gone: oneshot::Receiver<()>,
}

impl Bucket {
    pub(super) fn new(limit: Limit) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            state: Mutex::new(State {
                limit,
                bytes_due: now,
                commands_due: now,
                busy_since: now,
                queue: Queue::default(),
                is_driven: false,
                counts: Counts::default(),
            }),
            changed: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limit(&self) -> Limit {
        self.lock().limit
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.lock();
        Counts { waiting: state.queue.len(), ..state.counts }
    }

    /// Nothing waits and no debt is left: a new one would be the same, but for its counts.
    pub(super) fn is_settled(&self) -> bool {
        let state = self.lock();
        state.queue.is_empty() && state.due() <= Instant::now()
    }

    /// Another limit from now on. What is owed is owed in commands and bytes, so that its time
    /// shrinks or grows with the rate.
    pub(super) fn set_limit(&self, limit: Limit) {
        let mut state = self.lock();
        if state.limit == limit {
            return;
        }
        let (old, now) = (state.limit, Instant::now());
        state.bytes_due = rescaled(state.bytes_due, now, old.bytes_per_s, limit.bytes_per_s);
        state.commands_due = rescaled(state.commands_due, now, old.iops, limit.iops);
        state.busy_since = now;
        state.limit = limit;
        drop(state);
        self.changed.notify_one();
    }

    /// Lets a command through at once, if it need not wait.
    pub(super) fn try_take(&self, cost: Cost) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        let goes = state.queue.is_empty() && state.due() <= now;
        if goes {
            state.charge(cost, now);
        }
        goes
    }

    /// Puts a command into the queue.
    pub(super) fn wait(self: &Arc<Self>, flow: &Flow, cost: Cost) -> Ticket {
        let (go, gone) = oneshot::channel();
        let since = Instant::now();
        let mut state = self.lock();
        if state.queue.is_empty() {
            state.busy_since = since;
        }
        let number = state.queue.push(flow, Waiting { cost, since, go });
        if !std::mem::replace(&mut state.is_driven, true) {
            tokio::spawn(Arc::clone(self).drive());
        }
        Ticket { bucket: Arc::clone(self), flow: Arc::clone(flow), number, gone }
    }

    /// Lets commands through when it is time, until none waits.
    async fn drive(self: Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                match state.let_through(Instant::now()) {
                    Some(due) => due,
                    None => {
                        state.is_driven = false;
                        return;
                    }
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.changed.notified() => {}
            }
        }
    }
}

impl State {
    /// When the next command may go.
    fn due(&self) -> Instant {
        let bytes = self.limit.bytes_per_s.map(|_| self.bytes_due);
        let commands = self.limit.iops.map(|_| self.commands_due);
        let due = bytes.into_iter().chain(commands).max();
        due.unwrap_or(self.busy_since)
    }

    /// Lets through what may go by `now`; then the time of the next one, if one waits.
    fn let_through(&mut self, now: Instant) -> Option<Instant> {
        while !self.queue.is_empty() {
            let due = self.due();
            if due > now {
                return Some(due);
            }
            let limit = self.limit;
            let waiting = self.queue.pop(|waiting| limit.time_of(waiting.cost).as_nanos())?;
            let (cost, since) = (waiting.cost, waiting.since);
            if waiting.go.send(()).is_err() {
                continue; // nobody waits any more
            }
            // Where the queue would have let it through, had anybody looked all the time.
            self.charge(cost, due.max(self.busy_since));
            self.counts.delayed += 1;
            self.counts.waited += now.saturating_duration_since(since);
        }
        None
    }

    /// A command goes at this time.
    fn charge(&mut self, cost: Cost, at: Instant) {
        let Limit { bytes_per_s, iops, burst } = self.limit;
        // What was saved up before is too old to be used.
        let oldest = at.checked_sub(burst).unwrap_or(at);
        if let Some(rate) = bytes_per_s {
            self.bytes_due = self.bytes_due.max(oldest) + time_of(cost.bytes, rate);
        }
        if let Some(rate) = iops {
            self.commands_due = self.commands_due.max(oldest) + time_of(1, rate);
        }
        self.counts.commands += 1;
        self.counts.bytes += cost.bytes;
    }
}

impl Limit {
    /// How long a command uses up what the limit allows.
    fn time_of(&self, cost: Cost) -> Duration {
        let bytes = self.bytes_per_s.map(|rate| time_of(cost.bytes, rate));
        let commands = self.iops.map(|rate| time_of(1, rate));
        bytes.into_iter().chain(commands).max().unwrap_or_default()
    }
}

fn time_of(amount: u64, per_s: u64) -> Duration {
    let nanos = u128::from(amount) * 1_000_000_000 / u128::from(per_s.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(DEBT_MAX)
}

/// When a debt is paid off at another rate.
fn rescaled(due: Instant, now: Instant, old: Option<u64>, new: Option<u64>) -> Instant {
    let owed = due.saturating_duration_since(now).as_secs_f64();
    match (old, new) {
        (Some(old), Some(new)) if owed > 0.0 => {
            let time = owed * old as f64 / new.max(1) as f64;
            now + Duration::from_secs_f64(time.min(DEBT_MAX.as_secs_f64()))
        }
        _ => now,
    }
}

impl Future for Ticket {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // An error would mean that the bucket is gone, and this keeps it.
        let _gone = ready!(Pin::new(&mut self.gone).poll(context));
        Poll::Ready(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.bucket.lock();
        let removed = state.queue.remove(&self.flow, self.number);
        drop(state);
        drop(removed); // its receiver is ours
    }
}

#[cfg(test)]
mod tests;
