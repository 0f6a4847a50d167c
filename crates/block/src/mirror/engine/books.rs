//! [`Books`]: what the mirror knows durably. Decisions about legs are made one after the other
//! here, each of them written down before anybody acts on it.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::super::bitmap::BitmapId;
use super::super::config::OnLoss;
use super::super::generation::{GenerationId, Lineage, WallMs};
use super::super::host::Host;
use super::super::status::LegState;
use super::super::store::{Entered, MetadataStore};
use super::super::superblock::{LegRecord, LocalSuperblock, MirrorId, Role, Stamp, Verified};
use super::legs::Legs;
use super::session::Session;
use super::signal::lock;
use crate::range_lock::{RangeGuard, RangeLocks, held};
use crate::{BlockError, Result};

/// What the mirror knows durably.
pub(crate) struct Books {
    store: MetadataStore,
    /// As it was written last.
    superblock: Mutex<LocalSuperblock>,
    /// One decision at a time: a range that everybody takes.
    turn: Arc<RangeLocks>,
    /// Why nothing can be written down any more.
    broken: Mutex<Option<String>>,
}

impl Books {
    pub(crate) fn new(store: MetadataStore, superblock: LocalSuperblock) -> Self {
        let (superblock, turn, broken) = (Mutex::new(superblock), Arc::default(), Mutex::default());
        Self { store, superblock, turn, broken }
    }

    /// Where the extents and the bits are kept.
    pub(crate) fn store(&self) -> &MetadataStore {
        &self.store
    }

    /// The mirror is in use from now on, and begins `epochs` epochs at most.
    pub(crate) async fn opened(&self, epochs: u64) -> Result<()> {
        let _turn = self.turn().await;
        self.commit(|superblock| {
            superblock.clean = false;
            superblock.epoch_max = superblock.epoch_max.saturating_add(epochs);
        })
        .await
    }

    /// What a leg is told that has all epochs up to this one.
    pub(crate) fn stamp(&self, epoch: u64, closed: Option<SystemTime>) -> Stamp {
        let superblock = lock(&self.superblock);
        let generation = superblock.lineage.current();
        let closed = closed.map_or(WallMs(0), WallMs::from);
        Stamp { uuid: superblock.uuid, generation, epoch, closed }
    }

    /// Whether changes can be noted.
    ///
    /// # Errors
    /// The metadata could not be written.
    pub(crate) fn check(&self) -> Result<()> {
        match &*lock(&self.broken) {
            None => Ok(()),
            Some(why) => Err(unusable(why)),
        }
    }

    pub(crate) fn uuid(&self) -> MirrorId {
        lock(&self.superblock).uuid
    }

    /// The generations of the image.
    pub(crate) fn lineage(&self) -> Lineage {
        lock(&self.superblock).lineage.clone()
    }

    /// The present one.
    pub(crate) fn generation(&self) -> GenerationId {
        lock(&self.superblock).lineage.current()
    }

    /// What is known about a leg.
    pub(crate) fn leg(&self, leg: usize) -> Option<LegRecord> {
        lock(&self.superblock).legs.get(leg).cloned().flatten()
    }

    /// Notes that these bytes are about to change. They count as changing until what is returned
    /// is dropped.
    ///
    /// # Errors
    /// The metadata could not be written: nothing may be changed.
    pub(crate) async fn enter(&self, bytes: Range<u64>) -> Result<Entered> {
        self.check()?;
        self.store.enter(bytes).await
    }

    /// The legs that are out of use may miss writes from now on: a new generation begins, which
    /// they do not follow.
    pub(crate) async fn exclude(
        &self,
        legs: &Legs,
        on_loss: OnLoss,
        host: &dyn Host,
    ) -> Result<()> {
        let _turn = self.turn().await;
        let which = legs.to_exclude(on_loss);
        if which.is_empty() {
            return Ok(()); // Somebody else has done it meanwhile.
        }
        let next = GenerationId(host.random());
        let now = WallMs::from(host.wall_clock());
        self.commit(|superblock| {
            superblock.lineage = superblock.lineage.advanced(next, now);
            miss_writes(superblock, &which);
        })
        .await?;
        legs.exclude(&which);
        Ok(())
    }

    /// A leg to which nothing is owed takes part from now on. False if something is owed again.
    ///
    /// It is written down first that nothing may complete without it: from now on it may be told
    /// the present generation at any time.
    pub(crate) async fn follow(
        &self,
        legs: &Legs,
        leg: usize,
        session: &Arc<Session>,
    ) -> Result<bool> {
        let _turn = self.turn().await;
        if self.leg(leg).is_none_or(|record| record.state != LegState::InSync) {
            self.commit_leg(leg, |record| record.state = LegState::InSync).await?;
        }
        Ok(legs.take_part(leg, session))
    }

    /// The superblock of a leg was written: with this number, and if it was told the image of a
    /// generation, with that one. `acked` is the last epoch known to be stable there.
    pub(crate) async fn told(
        &self,
        leg: usize,
        superblock_sequence: u64,
        acked: Option<u64>,
        base: Option<GenerationId>,
    ) -> Result<()> {
        let _turn = self.turn().await;
        self.commit_leg(leg, |record| {
            record.superblock_sequence = superblock_sequence;
            record.acked_epoch = acked.unwrap_or(record.acked_epoch);
            record.base = base.unwrap_or(record.base);
        })
        .await
    }

    /// Everything may differ at a leg: its pages get another name.
    pub(crate) async fn all_differ(&self, leg: usize, host: &dyn Host) -> Result<()> {
        let _turn = self.turn().await;
        let id = BitmapId(host.random());
        self.commit_leg(leg, |record| record.bitmap = id).await
    }

    /// A leg gets its image anew, as if it were a new one.
    pub(crate) async fn taken_back(
        &self,
        leg: usize,
        superblock_sequence: u64,
        host: &dyn Host,
    ) -> Result<()> {
        let _turn = self.turn().await;
        let id = BitmapId(host.random());
        self.commit_leg(leg, |record| {
            record.state = LegState::Copying;
            record.superblock_sequence = superblock_sequence;
            record.bitmap = id;
        })
        .await
    }

    /// A leg was compared with the local device, or a part of it. With `known`, only if that is
    /// what is known still; else false.
    pub(crate) async fn verified(
        &self,
        leg: usize,
        known: Option<Verified>,
        verified: Verified,
    ) -> Result<bool> {
        let _turn = self.turn().await;
        let found = self.leg(leg).map(|record| record.verified);
        if known.is_some_and(|known| found != Some(known)) {
            return Ok(false);
        }
        self.commit_leg(leg, |record| record.verified = verified).await?;
        Ok(true)
    }

    /// A leg has got all of its image anew: what a verification has found before, the present one
    /// too, is of another. When the next one is due stays as it is.
    pub(crate) async fn renewed(&self, leg: usize) -> Result<()> {
        let _turn = self.turn().await;
        let Some(found) = self.leg(leg).map(|record| record.verified) else { return Ok(()) };
        let verified = Verified { at: found.at, ..Verified::default() };
        if found == verified {
            return Ok(());
        }
        self.commit_leg(leg, |record| record.verified = verified).await
    }

    /// A leg that was awaited was found, and what differs there is written down.
    pub(crate) async fn met(&self, leg: usize, leg_bytes: u64) -> Result<()> {
        let _turn = self.turn().await;
        self.commit_leg(leg, |record| record.leg_bytes = leg_bytes).await
    }

    /// A leg has a redo log of so many bytes.
    pub(crate) async fn redo_log(&self, leg: usize, bytes: u64) -> Result<()> {
        let _turn = self.turn().await;
        self.commit_leg(leg, |record| record.redo_bytes = bytes).await
    }

    /// What the unit at a leg says it is, where that was not known.
    pub(crate) async fn identified(&self, leg: usize, identity: &str) -> Result<()> {
        let _turn = self.turn().await;
        self.commit_leg(leg, |record| record.identity = identity.to_owned()).await
    }

    /// The legs that take part have the image, and the local device has it no more: a new
    /// generation begins, which it is not told. False if no leg takes part.
    pub(crate) async fn replace_local(
        &self,
        legs: &Legs,
        host: &dyn Host,
        replaced: impl FnOnce(),
    ) -> Result<bool> {
        let _turn = self.turn().await;
        if lock(&self.superblock).role == Role::Secondary {
            return Ok(true); // Somebody else has done it meanwhile.
        }
        if !legs.any_takes_part() {
            return Ok(false);
        }
        let missing = legs.not_taking_part();
        let next = GenerationId(host.random());
        let now = WallMs::from(host.wall_clock());
        self.commit(|superblock| {
            superblock.lineage = superblock.lineage.advanced(next, now);
            superblock.role = Role::Secondary;
            miss_writes(superblock, &missing);
        })
        .await?;
        replaced();
        legs.exclude(&missing);
        Ok(true)
    }

    /// Writes the bits of a leg down as they are now.
    pub(crate) async fn write_bits(&self, leg: usize) -> Result<()> {
        let saved = self.store.save(Some(leg)).await;
        self.noted(saved)
    }

    /// Nothing is under way: the bits tell everything.
    pub(crate) async fn close(&self) -> Result<()> {
        let forgotten = self.store.forget().await;
        self.noted(forgotten)?;
        let _turn = self.turn().await;
        self.commit(|superblock| superblock.clean = true).await
    }

    async fn commit_leg(&self, leg: usize, change: impl FnOnce(&mut LegRecord)) -> Result<()> {
        self.commit(|superblock| {
            if let Some(record) = superblock.legs[leg].as_mut() {
                change(record);
            }
        })
        .await
    }

    /// Writes a changed superblock; only then it is the present one.
    async fn commit(&self, change: impl FnOnce(&mut LocalSuperblock)) -> Result<()> {
        self.check()?;
        let mut superblock = lock(&self.superblock).clone();
        change(&mut superblock);
        superblock.sequence += 1;
        let written = self.store.commit(&superblock).await;
        self.noted(written)?;
        *lock(&self.superblock) = superblock;
        Ok(())
    }

    async fn turn(&self) -> RangeGuard {
        held(self.turn.exclusive(0..1)).await
    }

    /// What could not be written may be there or not: nothing can be decided any more.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let why = error.to_string();
            let error = unusable(&why);
            lock(&self.broken).get_or_insert(why);
            error
        })
    }
}

/// These legs may miss writes from now on.
fn miss_writes(superblock: &mut LocalSuperblock, which: &[usize]) {
    for leg in which {
        let record = superblock.legs[*leg].as_mut();
        // One without an image has none still.
        if let Some(record) = record.filter(|leg| leg.state != LegState::Copying) {
            record.state = LegState::Lost;
        }
    }
}

fn unusable(why: &str) -> BlockError {
    let what = format!("the mirror's metadata cannot be written ({why}); nothing is changed");
    BlockError::Medium(std::io::Error::other(what))
}
