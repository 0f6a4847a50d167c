//! [`Shelf`]: the catalogue that is served now, and the homes it names. A file that changes is read
//! again; if something is wrong with it, what was there stays.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use tracing::{info, warn};

use crate::catalogue::{Catalogue, CatalogueError};
use crate::home::{Home, Opening};
use crate::state::{Stamp, StateError, StateFolder, load, save};
use crate::text::unix_now;

/// Which homes their owner has.
const AWAY: &str = "away.json";

/// What is served.
pub(crate) struct Shelf {
    file: Option<PathBuf>,
    /// Of the file that was last read, in whatever condition.
    stamp: Mutex<Option<Stamp>>,
    opening: Opening,
    stock: RwLock<Arc<Stock>>,
    /// Homes that their owner has, since when (seconds since 1970), and where that is noted.
    away: Mutex<Away>,
    away_file: Option<PathBuf>,
}

type Away = BTreeMap<String, u64>;

/// A catalogue and its homes.
pub(crate) struct Stock {
    pub(crate) catalogue: Catalogue,
    pub(crate) homes: HashMap<String, Arc<Home>>,
}

impl Shelf {
    /// With this catalogue, for good.
    pub(crate) fn with(catalogue: Catalogue, opening: Opening) -> Self {
        let stock = Stock::new(catalogue, &opening, None, &Away::new());
        let stock = RwLock::new(Arc::new(stock));
        let (stamp, away) = (Mutex::default(), Mutex::default());
        Self { file: None, stamp, opening, stock, away, away_file: None }
    }

    /// With that of a file.
    pub(crate) fn load(file: PathBuf, opening: Opening) -> Result<Self, CatalogueError> {
        let stamp = Stamp::of(&file);
        let shelf = Self::with(Catalogue::load(&file)?, opening);
        Ok(Self { file: Some(file), stamp: Mutex::new(stamp), ..shelf })
    }

    /// Knows from a folder which homes their owner has, and notes it there.
    pub(crate) fn remember_in(self, folder: &StateFolder) -> Result<Self, StateError> {
        let file = folder.file(AWAY);
        let away: Away = load(&file)?;
        mark(&self.stock(), &away);
        Ok(Self { away: Mutex::new(away), away_file: Some(file), ..self })
    }

    /// The owner takes a home away, or has it back. Blocks as long as it takes to note it.
    ///
    /// # Errors
    /// It cannot be noted: then it is so as long as this server runs.
    pub(crate) fn set_away(&self, name: &str, is_away: bool) -> Result<(), StateError> {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        match is_away {
            true => drop(away.entry(name.to_owned()).or_insert_with(unix_now)),
            false => drop(away.remove(name)),
        }
        let stock = self.stock();
        mark(&stock, &away);
        if let Some(home) = stock.homes.get(name).filter(|_| !is_away) {
            home.take_back();
        }
        self.away_file.as_ref().map_or(Ok(()), |file| save(file, &*away))
    }

    /// What is served now.
    pub(crate) fn stock(&self) -> Arc<Stock> {
        Arc::clone(&self.stock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the file again if it has changed. Blocks as long as that takes.
    pub(crate) fn refresh(&self) {
        let Some(file) = &self.file else { return };
        // A file that is gone is perhaps being replaced.
        let Some(stamp) = Stamp::of(file) else { return };
        let before = self.stamp.lock().unwrap_or_else(PoisonError::into_inner).replace(stamp);
        if before == Some(stamp) {
            return;
        }
        match Catalogue::load(file) {
            Ok(catalogue) => self.replace(catalogue),
            Err(error) => warn!(%error, "the catalogue is wrong: what was there before stays"),
        }
    }

    /// Serves another catalogue from now on.
    pub(crate) fn replace(&self, catalogue: Catalogue) {
        info!(videos = catalogue.videos().len(), "the catalogue has changed");
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        let stock = Stock::new(catalogue, &self.opening, Some(&self.stock()), &away);
        *self.stock.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(stock);
    }

    /// Logs out where nobody has wanted anything for so long.
    pub(crate) fn let_go_after(&self, idle: Duration) {
        self.stock().homes.values().for_each(|home| home.let_go_after(idle));
    }

    /// Logs out of homes that may not call this server any more.
    pub(crate) async fn close_removed(&self) {
        for home in self.stock().homes.values() {
            home.close_if_removed().await;
        }
    }

    /// Logs out everywhere.
    pub(crate) async fn close(&self) {
        for home in self.stock().homes.values() {
            home.close().await;
        }
    }
}

impl Stock {
    /// Homes that are as before stay open; others are let go with the stock they were of.
    fn new(catalogue: Catalogue, opening: &Opening, before: Option<&Self>, away: &Away) -> Self {
        let homes = catalogue.homes().iter().map(|spec| {
            let same = before.and_then(|stock| stock.homes.get(&spec.name));
            let home = match same.filter(|home| home.spec().is_same(spec)) {
                Some(home) => Arc::clone(home),
                None => Arc::new(Home::new(spec.clone(), opening.clone()).logged()),
            };
            (spec.name.clone(), home)
        });
        let homes = homes.collect();
        let stock = Self { catalogue, homes };
        mark(&stock, away);
        stock
    }
}

/// Marks homes that their owner has.
fn mark(stock: &Stock, away: &Away) {
    for (name, since) in away {
        if let Some(home) = stock.homes.get(name) {
            home.set_away(UNIX_EPOCH + Duration::from_secs(*since));
        }
    }
}
