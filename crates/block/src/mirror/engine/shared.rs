//! [`Shared`]: the parts of an open mirror, and who may use it still.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::super::bitmap::{Bitmap, BitmapId};
use super::super::config::{Config, ResyncRate};
use super::super::host::Host;
use super::super::leg::LegEvent;
use super::super::link::LegSource;
use super::super::store::Image;
use super::super::{BLOCK_BYTES, LEGS_MAX};
use super::books::Books;
use super::go_on::{self, Asked};
use super::legs::Legs;
use super::local::Local;
use super::resync_rate::Pacer;
use super::session::Session;
use super::signal::{Signal, lock};
use crate::range_lock::RangeLocks;
use crate::{BlockError, Io, Result};

/// The parts of an open mirror.
pub(crate) struct Shared {
    me: Weak<Self>,
    host: Arc<dyn Host>,
    config: Config,
    local: Local,
    size: u64,
    sources: Vec<Arc<dyn LegSource>>,
    locks: Arc<RangeLocks>,
    legs: Legs,
    books: Books,
    resync_rate: Mutex<ResyncRate>,
    /// What the copies to each leg have been seen to carry, and when they may go on.
    pacers: Mutex<[Pacer; LEGS_MAX]>,
    usage: Mutex<Usage>,
    /// An operation has ended, or the mirror is being closed.
    usage_changed: Arc<Signal>,
}

/// Whether the mirror may be used, and what it was used for.
#[derive(Default)]
struct Usage {
    phase: Phase,
    operations: u64,
    tasks: usize,
    written_bytes: u64,
    guest_wait: Duration,
    lag_wait: Duration,
}

/// How far the end of a mirror is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In use.
    #[default]
    Open,
    /// No operation is admitted; those under way end.
    Closing,
    /// The tasks of the legs end.
    Ending,
}

/// An operation of the user under way, until dropped.
pub(crate) struct UnderWay(Arc<Shared>);

/// A task of a leg, until dropped.
pub(crate) struct Task(Arc<Shared>);

impl Shared {
    pub(crate) fn new(
        host: Arc<dyn Host>,
        config: Config,
        local: Local,
        sources: Vec<Arc<dyn LegSource>>,
        legs: Legs,
        books: Books,
        size: u64,
    ) -> Arc<Self> {
        let (locks, usage, usage_changed) = (Arc::default(), Mutex::default(), Arc::default());
        let (resync_rate, pacers) = (Mutex::new(config.resync_rate), Mutex::default());
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            host,
            config,
            local,
            size,
            sources,
            locks,
            legs,
            books,
            resync_rate,
            pacers,
            usage,
            usage_changed,
        })
    }

    pub(crate) fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn local(&self) -> &Local {
        &self.local
    }

    /// When a copy to the leg may send its next piece, where it sends one of `bytes` at `at`.
    pub(crate) fn pace(&self, leg: usize, at: Duration, bytes: u64) -> Duration {
        let (rate, done) = (*lock(&self.resync_rate), self.legs.moved_bytes(leg));
        lock(&self.pacers)[leg].next_after(rate, (self.host.now(), at), bytes, done)
    }

    /// Bytes a second at most for a copy to the leg.
    pub(crate) fn resync_limit(&self, leg: usize) -> Option<u64> {
        let rate = *lock(&self.resync_rate);
        lock(&self.pacers)[leg].limit_now(rate).filter(|limit| *limit > 0)
    }

    /// How fast copies may go from now on.
    pub(crate) fn set_resync_rate(&self, rate: ResyncRate) {
        *lock(&self.resync_rate) = rate;
    }

    /// Bytes of the image: the part of the local device that all legs have room for.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Blocks of the mirror, the last of which may be one in part.
    pub(crate) fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }

    pub(crate) fn source(&self, leg: usize) -> &Arc<dyn LegSource> {
        &self.sources[leg]
    }

    pub(crate) fn locks(&self) -> &Arc<RangeLocks> {
        &self.locks
    }

    pub(crate) fn legs(&self) -> &Legs {
        &self.legs
    }

    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    /// An operation of the user begins.
    ///
    /// # Errors
    /// As [`check_usable`](Self::check_usable), and while the mirror is being closed.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<UnderWay> {
        self.books.check()?;
        let mut usage = lock(&self.usage);
        if usage.phase != Phase::Open {
            return Err(closed());
        }
        usage.operations += 1;
        Ok(UnderWay(self.clone()))
    }

    /// Whether what was admitted may still come to an end.
    ///
    /// # Errors
    /// The mirror is at its end, or its metadata cannot be written.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.books.check()?;
        if self.phase() == Phase::Ending { Err(closed()) } else { Ok(()) }
    }

    /// A task of a leg begins.
    pub(crate) fn task(self: &Arc<Self>) -> Task {
        lock(&self.usage).tasks += 1;
        Task(self.clone())
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.usage).phase
    }

    /// The end goes on: everybody looks again.
    pub(crate) fn enter_phase(&self, phase: Phase) {
        lock(&self.usage).phase = phase;
        self.usage_changed.raise();
        self.legs.wake();
        self.legs.wake_log();
    }

    /// Ends when no operation of the user is under way.
    pub(crate) async fn idle(&self) {
        self.wait_usage(|usage| usage.operations == 0).await;
    }

    /// Ends when no task of a leg runs.
    pub(crate) async fn no_tasks(&self) {
        self.wait_usage(|usage| usage.tasks == 0).await;
    }

    async fn wait_usage(&self, done: impl Fn(&Usage) -> bool) {
        loop {
            let change = self.usage_changed.next();
            if done(&lock(&self.usage)) {
                return;
            }
            change.await;
        }
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        lock(&self.usage).written_bytes += bytes;
    }

    pub(crate) fn count_wait(&self, wait: Duration) {
        lock(&self.usage).guest_wait += wait;
    }

    pub(crate) fn count_lag_wait(&self, wait: Duration) {
        lock(&self.usage).lag_wait += wait;
    }

    /// Bytes written by the user, and how long that waited for legs, and for the lag.
    pub(crate) fn counts(&self) -> (u64, Duration, Duration) {
        let usage = lock(&self.usage);
        (usage.written_bytes, usage.guest_wait, usage.lag_wait)
    }

    /// An operation at a leg has failed: its use ends, and what the failure means is noted.
    pub(crate) fn leg_failed(&self, leg: usize, session: &Arc<Session>, error: &BlockError) {
        let event = match error {
            BlockError::Fenced => LegEvent::TakenOver,
            BlockError::NoSpace | BlockError::ReadOnly | BlockError::Unsupported(_) => {
                LegEvent::Failed
            }
            // A leg that has lost some of what was not flushed cannot say what: all of that is
            // sent again after the next connect.
            _ => LegEvent::Lost,
        };
        self.legs.end_use(leg, Some(session), event, error.to_string());
    }
}

/// What the metadata store has to know: the bits of the legs, and how the local side is made
/// stable.
impl Image for Shared {
    fn look_at_bits(&self, look: &mut dyn FnMut(usize, BitmapId, &mut Bitmap)) {
        for leg in 0..self.legs.count() {
            let Some(record) = self.books.leg(leg) else { continue };
            self.legs.with_bits(leg, |bits| look(leg, record.bitmap, bits));
        }
    }

    fn make_stable(&self) -> Io<()> {
        let flush = self.local.change(|device| device.flush());
        let Some(shared) = self.me.upgrade() else { return flush };
        Io::later(async move { go_on::outcome(&shared, Asked::Flush, flush.await).await })
    }
}

fn closed() -> BlockError {
    BlockError::Unreachable("the mirror is closed".to_owned())
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.usage).operations -= 1;
        if self.0.phase() != Phase::Open {
            self.0.usage_changed.raise();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        lock(&self.0.usage).tasks -= 1;
        self.0.usage_changed.raise();
    }
}
