//! [`Shape`]: which legs a mirror has and how large it is, and how that changes while the mirror is
//! not open. The metadata decides when a change has taken place; what is cut off before it has not.
//!
//! Not here: how a mirror in use is brought to be not open for a moment (`reshape`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::BlockError;
use block::backend::FileDevice;
use block::mirror::{
    CreateOptions, LegSource, Mirror, MirrorError, OpenLeg, Parts, Removed, ResyncRate, Stopped,
    grow, remove_leg,
};
use tracing::{info, warn};

use super::config::{LegConfig, MirrorConfig, without_leg};
use super::files::Files;
use super::hook::hooked;
use super::next::{self, NewMetadata};
use super::parts::{self, PartsError};
use crate::config::ConfigError;

/// So long a leg may take to be reached where that is all that is waited for.
const REACH_MAX: Duration = Duration::from_secs(20);

/// Attempts to reach what becomes a leg, beyond the first, and the pause between them.
const REACH_AGAIN: u32 = 20;
const REACH_PAUSE: Duration = Duration::from_millis(100);

/// Why a mirror did not get another shape.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was asked for cannot be.
    #[error("{0}")]
    Asked(String),
    /// The parts are not to be had.
    #[error(transparent)]
    Parts(#[from] PartsError),
    /// A leg was not reached.
    #[error("{name}{hint}: {source}")]
    Leg {
        /// Its URL or path.
        name: String,
        /// What else can be done.
        hint: &'static str,
        /// Why.
        source: BlockError,
    },
    /// The mirror refuses.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// A file cannot be written.
    #[error("{what}: {source}")]
    Io {
        /// Which.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// What a mirror is made of, and where that is written down.
pub struct Shape {
    files: Files,
    config: MirrorConfig,
    parts: Parts,
    local: Arc<FileDevice>,
}

/// A device that can become a leg.
pub struct NewLeg {
    /// The configuration with it.
    text: String,
    config: LegConfig,
    source: Arc<dyn LegSource>,
}

impl Shape {
    /// Reads the configuration and opens what is here. A change of the legs that was cut off is
    /// brought to its end first. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub async fn open(files: Files) -> Result<Self, ShapeError> {
        let settled = next::settle(&files).await;
        settled.map_err(|source| file_error(files.config(), source))?;
        let config = MirrorConfig::load(files.config())?;
        let local = parts::open_local(&config.local)?;
        let parts = parts::open_with(&config, Arc::clone(&local) as _)?;
        Ok(Self { files, config, parts, local })
    }

    /// Goes on with a growth that was cut off. What is in its way is told to the log: the mirror is
    /// as large as it was until then.
    pub async fn finish_growth(&mut self) {
        let new = NewMetadata::path(&self.config.metadata);
        if !new.is_file() {
            return;
        }
        match self.grow().await {
            Ok(size) => info!("a growth that was cut off is done: {size} bytes"),
            Err(error) => warn!("a growth that was cut off is not done: {error}"),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &MirrorConfig {
        &self.config
    }

    /// Copies may go so fast until the configuration is read again.
    pub(crate) fn set_resync_rate(&mut self, rate: ResyncRate) {
        self.config.behaviour.resync_rate = rate;
    }

    /// Where its files are.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// What a mirror is opened from.
    pub fn parts(&self) -> Parts {
        hooked(&self.parts, self.config.hook.as_ref(), self.files.name())
    }

    /// The local device.
    pub fn local(&self) -> &Arc<FileDevice> {
        &self.local
    }

    /// URLs and paths of the legs, in their order.
    pub fn leg_names(&self) -> Vec<String> {
        self.parts.legs.iter().map(|leg| leg.name()).collect()
    }

    /// What becomes a leg; `leg` is its table in the configuration. It was reached, so that nobody
    /// has to wait for it later.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub async fn new_leg(&self, leg: &str) -> Result<NewLeg, ShapeError> {
        let text = format!("{}\n{leg}", self.text()?.trim_end());
        let config = MirrorConfig::parse(self.files.config(), &text);
        let mut config = config.map_err(without_places)?;
        let new = config.legs.pop();
        let new = new.filter(|_| same_legs(&config, &self.config));
        let new = new.ok_or_else(|| self.changed_by_hand())?;
        let source = parts::source(&new)?;
        // Whoever has just looked at it may not have let go of it yet.
        let mut left = REACH_AGAIN;
        loop {
            match reach(&*source, "").await {
                Ok(_) => return Ok(NewLeg { text, config: new, source }),
                Err(_) if left > 0 => left -= 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(REACH_PAUSE).await;
        }
    }

    /// Makes a device the last leg. It gets its first copy when the mirror is open again.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub async fn add_leg(&mut self, new: NewLeg, force: bool) -> Result<usize, ShapeError> {
        let NewLeg { text, config, source } = new;
        self.prepare(&text)?;
        let options = CreateOptions { skip_initial_copy: false, force };
        let added = Mirror::add_leg(&self.parts, &self.config.behaviour, &*source, options).await;
        // Also where it failed, since what the metadata say then counts.
        if self.decide().await? {
            self.config.legs.push(config);
            self.parts.legs.push(source);
        }
        added?;
        Ok(self.parts.legs.len())
    }

    /// Removes the leg at this place, whose image stays; with `force`, also one out of reach.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub async fn remove_leg(&mut self, place: usize, force: bool) -> Result<Removed, ShapeError> {
        let text = self.text()?;
        let now = MirrorConfig::parse(self.files.config(), &text)?;
        if !same_legs(&now, &self.config) {
            return Err(self.changed_by_hand());
        }
        let text = without_leg(&text, place);
        let hint = " (--force forgets a leg that is not reached)";
        let leg = match reach(&*self.parts.legs[place], hint).await {
            Ok(leg) => Some(leg),
            Err(_) if force => None,
            Err(error) => return Err(error),
        };
        self.prepare(&text)?;
        let removed = remove_leg(&self.stopped(), place, leg).await;
        if self.decide().await? {
            self.config.legs.remove(place);
            self.parts.legs.remove(place);
        }
        Ok(removed?)
    }

    /// Takes the size that the local device has by now. All legs have to be larger, too.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub async fn grow(&mut self) -> Result<u64, ShapeError> {
        let bytes = self.metadata_bytes()?;
        let mut legs = Vec::new();
        for source in &self.parts.legs {
            legs.push(reach(&**source, "").await?);
        }
        let metadata = NewMetadata::beside(&self.config.metadata, bytes)?;
        let size = grow(&self.stopped(), metadata.device(), legs).await?;
        let device = metadata.device().clone();
        let kept = metadata.keep();
        kept.map_err(|source| file_error(&self.config.metadata, source))?;
        self.parts.metadata = device;
        Ok(size)
    }

    /// Bytes of metadata for the size that the local device has by now.
    ///
    /// # Errors
    /// It has not grown, or cannot be mirrored whole; or the metadata cannot be replaced.
    pub fn metadata_bytes(&self) -> Result<u64, ShapeError> {
        let local = self.config.local.display();
        let grown = self.local.grow();
        grown.map_err(|source| file_error(&self.config.local, source))?;
        if std::fs::metadata(&self.config.metadata).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(ShapeError::Asked(
                "its metadata are on a block device, where old and new ones cannot be side by \
                 side; `enkaku mirror create --force` begins anew"
                    .into(),
            ));
        }
        let size = block::BlockDevice::info(&*self.local).size;
        parts::metadata_bytes(size).map_err(|why| ShapeError::Asked(format!("{local}: {why}")))
    }

    fn stopped(&self) -> Stopped {
        let (local, metadata) = (self.parts.local.clone(), self.parts.metadata.clone());
        Stopped { local, metadata, host: self.parts.host.clone() }
    }

    fn text(&self) -> Result<String, ShapeError> {
        let path = self.files.config();
        std::fs::read_to_string(path).map_err(|source| file_error(path, source))
    }

    fn prepare(&self, text: &str) -> Result<(), ShapeError> {
        let path = self.files.config();
        next::prepare(&self.files, text).map_err(|source| file_error(path, source))
    }

    async fn decide(&self) -> Result<bool, ShapeError> {
        let decided = next::decide(&self.files, &self.parts.metadata).await;
        decided.map_err(|source| file_error(self.files.config(), source))
    }

    fn changed_by_hand(&self) -> ShapeError {
        ShapeError::Asked(format!(
            "the legs in {} are not those of the mirror any more: put them back, or start it anew",
            self.files.config().display()
        ))
    }
}

fn same_legs(one: &MirrorConfig, other: &MirrorConfig) -> bool {
    let names = |config: &MirrorConfig| {
        config.legs.iter().map(|leg| leg.way.to_string()).collect::<Vec<_>>()
    };
    names(one) == names(other)
}

/// Nothing is written yet, so that lines of a file help nobody.
fn without_places(ConfigError(problems): ConfigError) -> ShapeError {
    let what: Vec<String> = problems.into_iter().map(|problem| problem.what).collect();
    ShapeError::Asked(what.join("; "))
}

/// In one line, also the mistakes of a configuration.
pub(crate) fn said(error: ShapeError) -> String {
    match error {
        ShapeError::Config(config) => {
            let lines: Vec<String> = config.0.iter().map(ToString::to_string).collect();
            lines.join("; ")
        }
        other => other.to_string(),
    }
}

fn file_error(path: &Path, source: io::Error) -> ShapeError {
    ShapeError::Io { what: path.display().to_string(), source }
}

async fn reach(source: &dyn LegSource, hint: &'static str) -> Result<OpenLeg, ShapeError> {
    let late = || BlockError::Unreachable(format!("not reached within {} s", REACH_MAX.as_secs()));
    let reached = tokio::time::timeout(REACH_MAX, source.connect()).await;
    let reached = reached.unwrap_or_else(|_| Err(late()));
    reached.map_err(|error| ShapeError::Leg { name: source.name(), hint, source: error })
}
