//! The verdict of a run: the guest's history, what each leg owes, and the first thing that is
//! wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use block::mirror::{Config, Mode};

use super::content::{Content, SECTOR_BYTES};
use super::disk::store::Store;
use super::history::{History, Moment};
use super::subject::Over;
use crate::coverage::Coverage;

/// Time in which a write ends that was let go before a bound was reached: some of the slowest
/// operations of the metadata's and of the local disk, one after the other.
const LAG_SLACK: Duration = Duration::from_millis(200);

/// What the guest was told is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Write,
    /// With FUA.
    Forced,
    Flush,
}

/// All that a run is judged by.
pub(crate) struct Judge {
    pub(crate) history: History,
    pub(crate) coverage: Coverage,
    pub(crate) verbose: bool,
    /// Images of legs that were looked at.
    pub(crate) images: u64,
    failure: Option<String>,
    config: Config,
    /// Bytes of the guest's data on each leg and here.
    data_bytes: u64,
    /// Each leg has what was stable at this moment, whatever becomes of it.
    owed: Vec<Moment>,
    /// The session in which each leg lost what it had, while the mirror cannot know.
    forgotten: Vec<Option<u64>>,
}

impl Judge {
    pub(crate) fn new(config: Config, data_bytes: u64, legs: usize, verbose: bool) -> Self {
        Self {
            history: History::new(),
            coverage: Coverage::default(),
            verbose,
            images: 0,
            failure: None,
            config,
            data_bytes,
            owed: vec![0; legs],
            forgotten: vec![None; legs],
        }
    }

    pub(crate) fn hit(&mut self, what: &'static str) {
        self.coverage.hit(what);
    }

    pub(crate) fn log(&self, now: Duration, what: impl FnOnce() -> String) {
        if self.verbose {
            println!(
                "{:>10.3} ms {:>5}  {}",
                now.as_secs_f64() * 1e3,
                self.history.moment(),
                what()
            );
        }
    }

    /// The first thing that is wrong is what a run is about.
    pub(crate) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    pub(crate) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// The guest was told that something is done while the leg was in sync. A flush of an
    /// asynchronous mirror waits for no leg: writes wait, so they are what the lag is counted by.
    pub(crate) fn told(&mut self, leg: usize, done: Done, now: Duration) {
        if self.forgotten[leg].is_some() {
            return;
        }
        let moment = self.history.moment();
        let owed = match self.config.mode {
            Mode::Sync if done != Done::Write => moment,
            Mode::Async if done != Done::Flush => {
                let bound = self.config.lag.age + LAG_SLACK;
                let Some(since) = now.checked_sub(bound) else { return };
                self.history.moment_at(since)
            }
            _ => return,
        };
        self.owed[leg] = self.owed[leg].max(owed);
    }

    /// A leg was put back or replaced in this session: it owes nothing any more, nor from now on
    /// until there is another session.
    pub(crate) fn forget(&mut self, leg: usize, session: u64) {
        self.owed[leg] = 0;
        self.forgotten[leg] = Some(session);
    }

    /// The mirror cannot know yet what became of a leg.
    pub(crate) fn is_ahead(&self, leg: usize) -> bool {
        self.forgotten[leg].is_some()
    }

    /// This is the present session with a leg.
    pub(crate) fn session(&mut self, leg: usize, session: u64) {
        self.forgotten[leg] = self.forgotten[leg].filter(|forgotten| *forgotten == session);
    }

    /// Whatever a cut leaves of the leg is legal, and not older than promised, when what is to be
    /// put over it was.
    pub(crate) fn look_at_leg(&mut self, leg: usize, store: &Store, over: &Over) {
        self.images += 1;
        let image = self.image(store, over);
        let owed = self.owed[leg];
        let wrong = match self.history.window(image) {
            Err(wrong) => Some(wrong),
            Ok(window) if window.killed <= owed => Some(format!(
                "its image is not newer than moment {} ({:?}), and {owed} ({:?}) was promised: {}",
                window.killed,
                self.history.time_of(window.killed),
                self.history.time_of(owed),
                self.missing(store, over, owed)
            )),
            Ok(_) => None,
        };
        if let Some(wrong) = wrong {
            self.fail(format!("leg {leg} calls itself consistent, and {wrong}"));
        }
    }

    fn image(&self, store: &Store, over: &Over) -> Vec<(u64, Vec<Content>)> {
        let mut sectors = self.sectors(store);
        sectors.extend(over.keys());
        let content = |at| match over.get(&at) {
            Some(content) => vec![content.clone()],
            None => store.possible(at),
        };
        sectors.into_iter().map(|at| (at, content(at))).collect()
    }

    fn missing(&self, store: &Store, over: &Over, moment: Moment) -> String {
        self.history.missing(self.image(store, over), moment).unwrap_or_default()
    }

    /// Legs and local disk have the same content, for good.
    pub(crate) fn look_at_end(&mut self, leg: usize, store: &Store, local: &Store) {
        let mut sectors = self.sectors(store);
        sectors.extend(local.known(0..self.data_bytes / SECTOR_BYTES));
        for at in sectors {
            let (here, there) = (local.visible(at), store.possible(at));
            if there.iter().any(|content| *content != here) {
                return self.fail(format!(
                    "leg {leg} differs: sector {at} has {there:?} there and {here:?} here"
                ));
            }
        }
    }

    fn sectors(&self, store: &Store) -> BTreeSet<u64> {
        let data = 0..self.data_bytes / SECTOR_BYTES;
        let mut sectors: BTreeSet<u64> = self.history.sectors().collect();
        sectors.extend(store.known(data.clone()));
        sectors.extend(store.flying(&data));
        sectors
    }
}
