//! The operator: a task that makes a mirror, starts it, waits for the guest, sees to it that the
//! legs settle, and ends it. Gone with the host's process; the next start has another one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::Host;

use super::disk::lock;
use super::guest::{Guest, Habits};
use super::judge::Judge;
use super::sabotage::Sabotage;
use super::subject::{Place, Running, Subject};
use crate::rng::Rng;

/// How often a mirror is closed at once when the guest has done its work, in percent.
const RESTARTS: u32 = 25;

/// How far a start of the host has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Starting,
    Busy,
    /// The guest has ended; whatever was broken is mended.
    Quiet,
    Settled,
    /// The mirror was closed with legs that lack something; the host starts anew.
    Restart,
    Closed,
}

/// What the operator's task shows.
#[derive(Default)]
pub(super) struct Panel {
    pub(super) stage: Stage,
    /// The mirror was made, once and for all.
    pub(super) created: bool,
    /// A guest has begun to work.
    pub(super) worked: bool,
    pub(super) mirror: Option<Arc<dyn Running>>,
    pub(super) guest: Option<Guest>,
    /// Legs in whose place another unit is found, and how often it was written to by others.
    pub(super) replaced: BTreeMap<usize, u64>,
}

/// Whoever runs the mirror.
pub(super) struct Operator {
    pub(super) place: Place,
    pub(super) subject: Arc<dyn Subject>,
    pub(super) judge: Arc<Mutex<Judge>>,
    pub(super) panel: Arc<Mutex<Panel>>,
    pub(super) habits: Arc<Habits>,
    pub(super) sabotage: Option<Sabotage>,
    /// Nothing makes a leg in sync differ: whoever tells that one does is wrong.
    pub(super) never_differ: bool,
    /// The mirror may be closed before its legs have all, to be opened again.
    pub(super) restarts: bool,
    pub(super) rng: Rng,
    /// What the mirror showed when it was looked at last.
    pub(super) seen: Vec<&'static str>,
}

impl Operator {
    /// All of it.
    pub(super) async fn work(mut self) -> Result<(), String> {
        let host = self.place.host.clone();
        let created = lock(&self.panel).created;
        if !created {
            self.create().await?;
        }
        let opened = self.subject.open(self.place.clone()).await;
        let mirror = opened.map_err(|error| format!("it does not open: {error}"))?;
        let (habits, judge, legs) =
            (self.habits.clone(), self.judge.clone(), self.place.legs.len());
        let rng = self.rng.fork();
        let mut guest = Guest::new(habits, judge, mirror.clone(), &self.place, rng);
        guest.sabotage = self.sabotage;
        {
            let mut panel = lock(&self.panel);
            (panel.mirror, panel.guest) = (Some(mirror.clone()), Some(guest.clone()));
            panel.stage = Stage::Busy;
        }
        if self.rng.coin() {
            self.wait_for_sync(&mirror).await;
        }
        lock(&self.panel).worked = true;
        guest.start();
        while !guest.finished() {
            host.sleep(Duration::from_millis(10)).await;
            self.look_after(&mirror).await;
        }
        if self.restarts && self.rng.percent(RESTARTS) {
            mirror.close().await.map_err(|error| format!("it does not end: {error}"))?;
            self.reach(Stage::Restart);
            return Ok(());
        }
        self.reach(Stage::Quiet);
        loop {
            let refused =
                |leg| lock(&self.panel).replaced.contains_key(&leg) && mirror.refuses(leg);
            if (0..legs).all(|leg| mirror.in_sync(leg) || refused(leg)) {
                guest.flush().await;
                let known = (0..legs).all(|leg| !lock(&self.judge).is_ahead(leg));
                if known && (0..legs).all(|leg| mirror.settled(leg) || refused(leg)) {
                    break;
                }
            }
            host.sleep(Duration::from_millis(50)).await;
            self.look_after(&mirror).await;
        }
        self.reach(Stage::Settled);
        mirror.close().await.map_err(|error| format!("it does not end: {error}"))?;
        self.reach(Stage::Closed);
        Ok(())
    }

    /// Lets the legs come into sync before there is anything to do, if they can.
    async fn wait_for_sync(&mut self, mirror: &Arc<dyn Running>) {
        const ATTEMPTS: u32 = 400;
        for _ in 0..ATTEMPTS {
            if (0..self.place.legs.len()).all(|leg| mirror.in_sync(leg)) {
                return;
            }
            self.place.host.sleep(Duration::from_millis(10)).await;
            self.look_after(mirror).await;
        }
    }

    /// Makes the mirror. Legs may be out of reach, so as often as it takes.
    async fn create(&self) -> Result<(), String> {
        const ATTEMPTS: u32 = 100;
        let mut result = Ok(());
        for _ in 0..ATTEMPTS {
            result = self.subject.create(self.place.clone()).await;
            if result.is_ok() {
                lock(&self.panel).created = true;
                return Ok(());
            }
            self.place.host.sleep(Duration::from_millis(500)).await;
        }
        result.map_err(|error| format!("it cannot be made: {error}"))
    }

    async fn look_after(&mut self, mirror: &Arc<dyn Running>) {
        let seen = mirror.seen();
        let new = seen.iter().filter(|what| !self.seen.contains(what));
        new.for_each(|what| lock(&self.judge).hit(what));
        self.seen = seen;
        for leg in 0..self.place.legs.len() {
            let differ = mirror.told_to_differ(leg);
            if self.never_differ && differ > 0 {
                let wrong = format!("leg {leg} is told to differ in {differ} blocks");
                lock(&self.judge).fail(wrong);
            }
            mirror.look_after(leg).await;
        }
    }

    fn reach(&self, stage: Stage) {
        lock(&self.panel).stage = stage;
    }
}
