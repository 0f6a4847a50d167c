//! What the handles of a disk, its supervisor and its connections share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Buf, DeviceInfo};
use tokio::sync::{Notify, oneshot, watch};

use super::Config;
use super::op::{Failure, Op, Origin, Output};
use super::reply::{ServerError, Whole};
use super::session::Source;
use super::state::{After, Receiving, State};

/// One disk.
pub(super) struct Shared {
    pub(super) source: Source,
    pub(super) config: Config,
    pub(super) growth: watch::Sender<u64>,
    /// The first connections are in use.
    pub(super) up: Notify,
    state: Mutex<State>,
}

/// The answer to a request, when it is there.
pub(super) type Pending = oneshot::Receiver<Result<Output, Failure>>;

impl Shared {
    pub(super) fn new(source: Source, config: Config, state: State) -> Self {
        let growth = watch::Sender::new(state.info.size);
        Self { source, config, growth, up: Notify::new(), state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn info(&self) -> DeviceInfo {
        self.lock().info.clone()
    }

    pub(super) fn ask(&self, op: Op, buf: Option<Buf>, origin: Origin) -> Pending {
        self.lock().ask(op, buf, origin)
    }

    /// The state, unless other connections have taken the place of those of `generation`.
    fn of(&self, generation: u64) -> Option<MutexGuard<'_, State>> {
        Some(self.lock()).filter(|state| state.generation == generation)
    }

    pub(super) fn receive(&self, generation: u64, link: usize, cookie: u64) -> Option<Receiving> {
        self.of(generation)?.receive(link, cookie)
    }

    pub(super) fn received(&self, generation: u64, cookie: u64, receiving: Receiving) {
        if let Some(mut state) = self.of(generation) {
            state.received(cookie, receiving);
        }
    }

    pub(super) fn answered(
        &self,
        generation: u64,
        cookie: u64,
        buf: Option<Buf>,
        result: Result<Whole, ServerError>,
    ) -> After {
        match self.of(generation) {
            Some(mut state) => state.answered(cookie, buf, result),
            None => After::GoOn,
        }
    }
}
