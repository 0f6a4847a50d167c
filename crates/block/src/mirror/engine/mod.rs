//! [`Mirror`]: the engine. It moves data between the devices as the pure parts decide, one task a
//! leg besides the user's operations. Runs on any [`Host`]: no runtime is named here.

mod allowance;
mod atomic;
mod batch;
mod before;
mod block_set;
mod books;
mod catch_up;
pub(super) mod change;
mod create;
mod go_on;
pub(super) mod guard;
mod handshake;
mod home;
mod leg_task;
mod legs;
pub(super) mod local;
pub(super) mod logged;
mod look;
mod nearing;
mod open;
mod order;
mod piece;
pub(super) mod put;
pub(super) mod read;
mod redo;
mod resolve;
mod resync_rate;
mod rounds;
mod sender;
mod session;
pub(super) mod settling;
pub(super) mod shared;
pub(super) mod signal;
mod signs;
mod span;
mod stream;
pub(super) mod tail;
mod tracking;
mod under_way;
mod verify;
mod verify_every;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;

use serde::Serialize;

use self::shared::{Phase, Shared};
use self::signal::either;
use super::config::{Config, Mode, ResyncRate};
use super::device::MirrorDevice;
use super::error::MirrorError;
use super::host::Host;
use super::leg::LegEvent;
use super::link::LegSource;
use super::status::{LegState, Status};
use crate::Device;

/// What a mirror is made of.
#[derive(Clone)]
pub struct Parts {
    /// Whose content is mirrored.
    pub local: Device,
    /// Where the mirror keeps what it knows.
    pub metadata: Device,
    /// The ways to the legs, 1 to [`LEGS_MAX`](super::LEGS_MAX), in the order of their numbers.
    pub legs: Vec<Arc<dyn LegSource>>,
    /// Time, tasks and randomness.
    pub host: Arc<dyn Host>,
}

/// How to create a mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The legs hold what the local device holds, or its content does not matter: nothing is
    /// copied.
    pub skip_initial_copy: bool,
    /// Overwrites the metadata of another mirror.
    pub force: bool,
}

/// How to verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Bytes a second at most.
    pub bytes_per_s: Option<u64>,
    /// What differs is written to the leg again.
    pub heal: bool,
}

/// What [`Mirror::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Bytes compared.
    pub bytes: u64,
    /// Bytes that were not compared, because they are not yet at the leg.
    pub skipped_bytes: u64,
    /// Blocks of [`BLOCK_BYTES`](super::BLOCK_BYTES) that differ.
    pub mismatches: u64,
    /// Of these, blocks that were written to the leg again.
    pub healed: u64,
    /// Offsets in bytes of the first that differ, a few of them.
    pub offsets: Vec<u64>,
}

/// Whose changes are given up where both sides have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The local device's: it gets the content of this leg.
    Local {
        /// The leg whose content is kept.
        keep: usize,
    },
    /// This leg's: it gets the local content.
    Leg(usize),
}

/// A mirror in use. Dropped, it ends as by a power cut; [`close`](Self::close) ends it cleanly.
pub struct Mirror {
    shared: Arc<Shared>,
    device: Device,
}

impl Mirror {
    /// Formats metadata and legs. What already holds a mirror is refused, unless forced.
    ///
    /// # Errors
    /// [`MirrorError::Exists`], sizes that do not fit, and what the devices say.
    pub async fn create(
        parts: &Parts,
        config: &Config,
        options: CreateOptions,
    ) -> Result<(), MirrorError> {
        create::create(parts, config, options).await
    }

    /// Makes a device a leg of a mirror that does not run, the last in the order.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn add_leg(
        parts: &Parts,
        config: &Config,
        leg: &dyn LegSource,
        options: CreateOptions,
    ) -> Result<(), MirrorError> {
        create::add_leg(parts, config, leg, options).await
    }

    /// Recovers the metadata and offers the device at once; legs are reached in the background.
    ///
    /// # Errors
    /// Metadata that is missing, damaged or another's; what the devices say.
    pub async fn open(parts: Parts, config: Config) -> Result<Self, MirrorError> {
        let shared = open::open(parts, config).await?;
        let device = MirrorDevice::new(shared.clone());
        for leg in 0..shared.legs().count() {
            shared.host().spawn(Box::pin(leg_task::run(shared.clone(), leg)));
        }
        if config.mode == Mode::Async {
            shared.host().spawn(Box::pin(legs::watch(shared.clone())));
        }
        if let Some(every) = config.verify {
            shared.host().spawn(Box::pin(verify_every::run(shared.clone(), every)));
        }
        Ok(Self { shared, device: Arc::new(device) })
    }

    /// What the user reads and writes.
    pub fn device(&self) -> Device {
        self.device.clone()
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let (written_bytes, guest_wait, lag_wait) = self.shared.counts();
        let mut status = Status {
            size: self.shared.size(),
            mode: self.shared.config().mode,
            generation: self.shared.books().generation().to_string(),
            written_bytes,
            guest_wait,
            lag_wait,
            local_failure: self.shared.local().failure(),
            legs: self.shared.legs().status(),
        };
        verify_every::tell(&self.shared, &mut status);
        status
    }

    /// Ends at the first change of a leg's state after this call: call it before
    /// [`status`](Self::status), and no change is missed.
    pub fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.shared.legs().changed()
    }

    /// Sends nothing to the leg until [`resume`](Self::resume); what changes is noted. Where writes
    /// wait for the leg, they go on.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`].
    pub async fn pause(&self, leg: usize) -> Result<(), MirrorError> {
        self.check(leg)?;
        let message = "paused by a person".to_owned();
        self.shared.legs().end_use(leg, None, LegEvent::Pause, message);
        Ok(())
    }

    /// Takes the leg up again after [`pause`](Self::pause), or tries one that has failed.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] where it is in use.
    pub async fn resume(&self, leg: usize) -> Result<(), MirrorError> {
        self.check(leg)?;
        if self.shared.legs().resume(leg) {
            return Ok(());
        }
        Err(self.state_error(leg, "it is in use already"))
    }

    /// Sends what differs now rather than at the next attempt; with `whole`, everything.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] where the leg waits for a person.
    pub async fn resync(&self, leg: usize, whole: bool) -> Result<(), MirrorError> {
        self.check(leg)?;
        if !self.shared.legs().state(leg).is_tried() {
            return Err(self.state_error(leg, "`enkaku mirror resume` has it tried again"));
        }
        if whole {
            // It is left and reached anew: in between it is no legal image, and has to say so
            // first.
            let message = "everything is copied again".to_owned();
            self.shared.legs().end_use(leg, None, LegEvent::Lost, message);
            self.shared.legs().all_differ(leg);
        }
        self.shared.legs().hurry(leg);
        Ok(())
    }

    /// How fast copies may go from now on, those under way too.
    pub fn set_resync_rate(&self, rate: ResyncRate) {
        self.shared.set_resync_rate(rate);
    }

    /// Compares the leg with the local device, while both are in use.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] unless in sync, and what the devices say.
    pub async fn verify(
        &self,
        leg: usize,
        options: VerifyOptions,
    ) -> Result<VerifyReport, MirrorError> {
        self.check(leg)?;
        match self.shared.legs().session(leg) {
            Some(session) if self.shared.legs().state(leg) == LegState::InSync => {
                let report = verify::verify(&self.shared, leg, &session, options).await?;
                let noted = verify_every::note(&self.shared, leg, &report).await;
                let what = "writing the mirror's metadata";
                noted.map_err(|source| MirrorError::device(what, source))?;
                Ok(report)
            }
            _ => Err(self.state_error(leg, "only a leg in sync can be verified")),
        }
    }

    /// Decides where both sides have written.
    ///
    /// # Errors
    /// [`MirrorError::NoSuchLeg`], [`MirrorError::State`] where there is nothing to decide.
    pub async fn resolve(&self, discard: Discard) -> Result<(), MirrorError> {
        match discard {
            Discard::Leg(leg) => {
                self.check(leg)?;
                resolve::discard_leg(&self.shared, leg).await
            }
            Discard::Local { keep } => {
                self.check(keep)?;
                let hint = "what is written here changes under its user otherwise: stop the mirror, then \
                            `enkaku mirror resolve --discard local --keep` does it";
                Err(self.state_error(keep, hint))
            }
        }
    }

    /// Flushes, and writes down that nothing was under way. Operations that come later fail.
    ///
    /// # Errors
    /// What the devices say.
    pub async fn close(self) -> Result<(), MirrorError> {
        let shared = &self.shared;
        shared.enter_phase(Phase::Closing);
        // What waits for a leg that may never come back is not waited for.
        let mut patience = shared.host().sleep(shared.config().remote_timeout);
        either(shared.idle(), &mut patience).await;
        let mut flushed = change::flush_all(shared).await;
        if shared.config().mode == Mode::Async {
            shared.legs().close_early();
            either(logged::drained(shared), &mut patience).await;
            // What is stable at the legs by now needs this flush to be known as equal.
            flushed = flushed.and(change::flush_all(shared).await);
        }
        shared.enter_phase(Phase::Ending);
        shared.no_tasks().await;
        flushed.map_err(|source| MirrorError::device("flushing at the end", source))?;
        let closed = shared.books().close().await;
        closed.map_err(|source| MirrorError::device("writing the mirror's metadata", source))
    }

    fn check(&self, leg: usize) -> Result<(), MirrorError> {
        let legs = self.shared.legs().count();
        if leg < legs { Ok(()) } else { Err(MirrorError::NoSuchLeg { leg, legs }) }
    }

    fn state_error(&self, leg: usize, hint: &'static str) -> MirrorError {
        let name = self.shared.source(leg).name();
        let state = format!("{:?}", self.shared.legs().state(leg));
        MirrorError::State { name, state, hint }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.shared.enter_phase(Phase::Ending);
    }
}
