//! The far host of a takeover: promotes the leg as soon as it may, works on it, and meets the old
//! disk again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::{Host, LegSource, MirrorError, OpenLeg, PromoteOptions, primary_of_leg};

use super::super::disk::lock;
use super::super::disk::store::Faults;
use super::super::guest::Habits;
use super::super::judge::Judge;
use super::super::leg::Leg;
use super::super::sabotage::{MADE, Sabotage};
use super::super::subject::{Over, Place, Subject};
use super::Board;
use super::sites::{content_of, guest};
use super::unread::unread;
use crate::rng::Rng;

/// Attempts after which there is no image to take over, and never will be.
const ATTEMPTS: u32 = 120;

/// The task of the host.
pub(super) struct Far {
    pub(super) subject: Arc<dyn Subject>,
    pub(super) judge: Arc<Mutex<Judge>>,
    pub(super) board: Arc<Mutex<Board>>,
    pub(super) habits: Arc<Habits>,
    pub(super) rng: Rng,
    pub(super) way: Leg,
    /// Who judges what the old host has promised.
    pub(super) near: Arc<Mutex<Judge>>,
    /// What is done wrong.
    pub(super) sabotage: Option<Sabotage>,
    pub(super) place: Place,
}

impl Far {
    pub(super) async fn work(self, downtime: Duration) {
        let judge = self.judge.clone();
        if let Err(wrong) = self.try_work(downtime).await {
            lock(&judge).fail(format!("the far host: {wrong}"));
        }
    }

    async fn try_work(mut self, downtime: Duration) -> Result<(), String> {
        let host = self.place.host.clone();
        host.sleep(downtime).await;
        if !lock(&self.board).promoted && !self.take_over().await? {
            lock(&self.board).refused = true;
            return Ok(());
        }
        let opened = self.subject.open(self.place.clone()).await;
        let mirror = opened.map_err(|error| format!("it does not open: {error}"))?;
        lock(&self.board).far = Some(mirror.clone());
        let worker = guest(&self.habits, &self.judge, &mirror, &self.place, self.rng.fork());
        while !worker.finished() {
            host.sleep(Duration::from_millis(10)).await;
        }
        lock(&self.board).worked = true;
        // While it is given back somebody works as well.
        let worker = guest(&self.habits, &self.judge, &mirror, &self.place, self.rng.fork());
        loop {
            host.sleep(Duration::from_millis(50)).await;
            mirror.look_after(0).await;
            if worker.finished() && mirror.in_sync(0) {
                worker.flush().await;
                if mirror.settled(0) {
                    break;
                }
            }
        }
        lock(&self.board).settled = true;
        mirror.close().await.map_err(|error| format!("it does not end: {error}"))?;
        lock(&self.board).closed = true;
        Ok(())
    }

    /// False if there is no image to be had.
    async fn take_over(&self) -> Result<bool, String> {
        let mut wrong = String::new();
        for _ in 0..ATTEMPTS {
            lock(&self.board).attempt = Some(self.place.host.now());
            match self.promote().await {
                Ok(()) => {
                    self.note_promoted();
                    return Ok(true);
                }
                Err(
                    error @ (MirrorError::NotPromotable { .. }
                    | MirrorError::WrittenMeanwhile { .. }
                    | MirrorError::Device { .. }),
                ) => {
                    wrong = error.to_string();
                    lock(&self.judge).hit(match &error {
                        MirrorError::WrittenMeanwhile { .. } => {
                            "takeover: refused, since the old host came back meanwhile"
                        }
                        _ if wrong.contains("its mirror lives") => {
                            "takeover: refused, since the mirror lives"
                        }
                        _ => "takeover: refused, or the leg is out of reach",
                    });
                }
                Err(error) => return Err(format!("the leg cannot be promoted: {error}")),
            }
            self.place.host.sleep(Duration::from_secs(1)).await;
        }
        match wrong.contains("no legal one") {
            true => Ok(false),
            false => Err(format!("the leg is never promoted: {wrong}")),
        }
    }

    async fn promote(&self) -> Result<(), MirrorError> {
        let leg = self.way.connect().await;
        let mut leg = leg.map_err(|source| MirrorError::device("the leg", source))?;
        let force = self.sabotage == Some(Sabotage::SignsOfLifeIgnored);
        let options = PromoteOptions { force, release: false };
        let metadata = self.place.metadata.clone();
        let mut host: Arc<dyn Host> = self.place.host.clone();
        if self.sabotage == Some(Sabotage::PromotionNotReadAgain) {
            let (device, hasty) = unread(leg.device.clone(), self.place.host.clone());
            (leg, host) = (OpenLeg { device, ..leg }, hasty);
        }
        primary_of_leg(leg, &metadata, &*host, "the old disk", options).await.map(drop)
    }

    /// The image is one of its own now: it has what was promised, and nobody else writes to it.
    fn note_promoted(&self) {
        let forced = self.sabotage == Some(Sabotage::SignsOfLifeIgnored);
        let mut store = lock(self.way.store());
        let mut judge = lock(&self.judge);
        judge.hit("takeover: promoted");
        if self.sabotage == Some(Sabotage::PromotionNotReadAgain) {
            judge.hit(MADE);
        }
        if forced {
            judge.hit(MADE);
        } else {
            lock(&self.near).look_at_leg(0, &store, &Over::new());
        }
        judge.history.take_over(content_of(&store), self.place.host.now());
        store.belongs_to(self.way.way());
        // A local disk that fails ends what is local in a mirror, and is not what a run is about.
        store.faults = Faults::default();
        lock(&self.board).promoted = true;
    }
}
