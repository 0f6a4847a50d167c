//! Two files that change together: the configuration says which legs there are, and the metadata
//! does. The metadata decides; the configuration's next text is beside it until then.
//!
//! ```text
//! NAME.toml.next written → metadata committed → NAME.toml.next becomes NAME.toml
//! ```
//!
//! Cut off anywhere, [`settle`] finds out by the number of legs which of the two texts is true.
//! Metadata in a new file ([`NewMetadata`]) takes the old one's place whole in the same way.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Device;
use block::backend::{FileDevice, FileOptions};
use block::mirror::{Inspection, inspect};
use tracing::{info, warn};

use super::config::MirrorConfig;
use super::files::{CONFIG_MODE, Files, make_folder_of};
use super::parts::{self, PartsError};
use crate::whole_file::{self, sync_folder_of};

impl Files {
    /// The configuration that is to take the place of the present one.
    fn next_config(&self) -> PathBuf {
        self.config().with_extension("toml.next")
    }
}

/// Writes the text that becomes the configuration when the metadata says the same. It counts only
/// then, so that half of it does no harm.
pub(crate) fn prepare(files: &Files, text: &str) -> io::Result<()> {
    let next = files.next_config();
    whole_file::write(&next, CONFIG_MODE, text)?;
    sync_folder_of(&next)
}

/// The metadata is committed or is not: the configuration follows. Returns whether the next text
/// is the configuration now.
///
/// # Errors
/// The system's: then the next start does it.
pub(crate) async fn decide(files: &Files, metadata: &Device) -> io::Result<bool> {
    let next = files.next_config();
    let text = match std::fs::read_to_string(&next) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let known = match inspect(metadata).await.map_err(io::Error::other)? {
        Inspection::Metadata(found) => found.legs.iter().flatten().count(),
        _ => 0,
    };
    let legs = |config: Result<MirrorConfig, _>| config.map_or(0, |config| config.legs.len());
    let (then, now) = (MirrorConfig::load(files.config()), MirrorConfig::parse(&next, &text));
    let taken = legs(now) == known && legs(then) != known;
    if taken {
        std::fs::rename(&next, files.config())?;
    } else {
        std::fs::remove_file(&next)?;
    }
    sync_folder_of(files.config())?;
    Ok(taken)
}

/// Brings to its end what was cut off when the legs changed. A mirror that somebody has open is
/// left alone.
///
/// # Errors
/// The system's.
pub async fn settle(files: &Files) -> io::Result<()> {
    if !files.next_config().exists() {
        return Ok(());
    }
    let Ok(config) = MirrorConfig::load(files.config()) else { return Ok(()) };
    let Ok(metadata) = FileDevice::open(&config.metadata, &FileOptions::default()) else {
        return Ok(());
    };
    let metadata: Device = Arc::new(metadata);
    let taken = decide(files, &metadata).await?;
    let which = if taken { "new" } else { "old" };
    info!("a change of the legs was cut off: the {which} configuration holds");
    Ok(())
}

/// Metadata in a file that takes the place of another one in the end, so that the old ones are
/// there until then.
pub struct NewMetadata {
    device: Device,
    /// Where it is, and where it belongs.
    beside: Option<(PathBuf, PathBuf)>,
}

impl NewMetadata {
    /// Of so many bytes, beside `path`.
    ///
    /// # Errors
    /// The folder cannot be made, or the file.
    pub fn beside(path: &Path, bytes: u64) -> Result<Self, PartsError> {
        make_folder_of(path).map_err(|error| PartsError::Folder(path.to_owned(), error))?;
        let new = Self::path(path);
        let device = parts::create_metadata(&new, bytes)?;
        Ok(Self { device, beside: Some((new, path.to_owned())) })
    }

    /// A device that is used where it is.
    pub fn in_place(device: Device) -> Self {
        Self { device, beside: None }
    }

    /// Where it is until it takes its place.
    pub(crate) fn path(path: &Path) -> PathBuf {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        new.into()
    }

    /// To be written.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// It takes its place, for good when this returns.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(mut self) -> io::Result<()> {
        let Some((new, path)) = &self.beside else { return Ok(()) };
        File::open(new)?.sync_all()?;
        std::fs::rename(new, path)?;
        let synced = sync_folder_of(path);
        self.beside = None;
        synced
    }
}

impl Drop for NewMetadata {
    fn drop(&mut self) {
        if let Some((new, _)) = &self.beside
            && let Err(error) = std::fs::remove_file(new)
        {
            warn!(%error, "{} stays, and is overwritten the next time", new.display());
        }
    }
}
