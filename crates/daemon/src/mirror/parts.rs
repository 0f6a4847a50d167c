//! From a configuration to the devices and ways that a mirror is made of.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Device;
use block::backend::{FileDevice, FileOptions, OpenError};
use block::mirror::layout::{LayoutError, LegLayout, LocalLayout};
use block::mirror::{BLOCK_BYTES, LegSource, Parts, TokioHost};
use iscsi::initiator::{ChapCredentials, Config, RemoteLeg, Secret};
use path::PolicyConfig;

use super::PathLeg;
use super::config::{LegConfig, MirrorConfig, Way};
use super::fencing::Wished;
use crate::config::Problem;
use crate::config::secret::from_file;

/// Why a mirror's parts are not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartsError {
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(Problem),
    /// The local device cannot be opened.
    #[error("the local device: {0}")]
    Local(#[source] OpenError),
    /// The metadata cannot be opened.
    #[error("the mirror's metadata: {source}{}", lost_metadata(source))]
    Metadata {
        /// Why.
        source: OpenError,
    },
    /// The folder of a file cannot be made.
    #[error("the folder of {}: {}", .0.display(), .1)]
    Folder(PathBuf, #[source] std::io::Error),
}

fn no_metadata(source: OpenError) -> PartsError {
    PartsError::Metadata { source }
}

/// Without it nothing is known, so that everything would have to be copied.
fn lost_metadata(error: &OpenError) -> &'static str {
    match error {
        OpenError::NotFound { .. } => {
            " (`enkaku mirror create --force` makes it anew, and copies everything again)"
        }
        _ => "",
    }
}

/// Opens what is here and prepares the ways to the legs, which are not reached yet. Must be called
/// within a tokio runtime.
///
/// # Errors
/// [`PartsError`].
pub fn open(config: &MirrorConfig) -> Result<Parts, PartsError> {
    open_with(config, open_local(&config.local)?)
}

/// As [`open`], with the local device that is open already.
///
/// # Errors
/// [`PartsError`].
pub fn open_with(config: &MirrorConfig, local: Device) -> Result<Parts, PartsError> {
    let metadata = FileDevice::open(&config.metadata, &FileOptions::default());
    let metadata = Arc::new(metadata.map_err(no_metadata)?);
    Ok(Parts { local, metadata, legs: sources(config)?, host: Arc::new(TokioHost::current()) })
}

/// The local device, which nobody else may have open.
///
/// # Errors
/// [`PartsError::Local`].
pub fn open_local(path: &Path) -> Result<Arc<FileDevice>, PartsError> {
    let device = FileDevice::open(path, &FileOptions::default()).map_err(PartsError::Local)?;
    Ok(Arc::new(device))
}

/// Bytes of metadata that a mirror of all of a local device of this size needs.
///
/// # Errors
/// The size is none that can be mirrored whole.
pub fn metadata_bytes(local_bytes: u64) -> Result<u64, String> {
    if !local_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(format!(
            "{local_bytes} bytes are no multiple of {BLOCK_BYTES}, so that its end would not be \
             mirrored; make it {} bytes long",
            local_bytes.next_multiple_of(BLOCK_BYTES)
        ));
    }
    let layout = LocalLayout::new(local_bytes).map_err(|error| error.to_string())?;
    Ok(layout.len_bytes())
}

/// Checks that a leg has room for all of a local device. A mirror is as large as its smallest leg
/// allows, and the local disk has something on it up to its end.
///
/// # Errors
/// [`LayoutError::LegTooSmall`].
pub fn check_leg(leg_bytes: u64, local_bytes: u64) -> Result<(), LayoutError> {
    LegLayout::new(leg_bytes, 0)?.check(local_bytes, leg_bytes)
}

/// The metadata of a mirror that is being made: a file is emptied and made as large as it has to
/// be, a block device is taken as it is.
///
/// # Errors
/// [`PartsError::Metadata`].
pub fn create_metadata(path: &Path, bytes: u64) -> Result<Device, PartsError> {
    let options = FileOptions::default().with_create(bytes).with_reset(bytes);
    let device = FileDevice::open(path, &options).map_err(no_metadata)?;
    Ok(Arc::new(device))
}

/// The ways to all legs, in their order.
///
/// # Errors
/// [`PartsError::Config`]: a password file that cannot be read.
pub fn sources(config: &MirrorConfig) -> Result<Vec<Arc<dyn LegSource>>, PartsError> {
    config.legs.iter().map(source).collect()
}

/// The way to one leg.
///
/// # Errors
/// As [`sources`].
pub fn source(leg: &LegConfig) -> Result<Arc<dyn LegSource>, PartsError> {
    let source: Arc<dyn LegSource> = match &leg.way {
        Way::Path(path) => Arc::new(PathLeg::new(path, FileOptions::default())),
        Way::Url(url) => {
            let mut url = (**url).clone();
            if let Some(file) = &leg.chap_password_file {
                if url.user.is_none() {
                    let what = format!(
                        "chap_password_file, but {url} names no user; write iscsi://USER@HOST/…"
                    );
                    return Err(PartsError::Config(leg.place.problem(what)));
                }
                url.password = Some(secret(leg, file)?);
            }
            Arc::new(RemoteLeg::new(url, initiator(leg)?))
        }
    };
    Ok(Wished::of(source, leg.fence, leg.order))
}

fn initiator(leg: &LegConfig) -> Result<Config, PartsError> {
    let named = leg.initiator_name.as_deref().map_or_else(|| Ok(Config::default()), Config::new);
    let mut config = named.map_err(|error| PartsError::Config(leg.place.problem(error)))?;
    config = match leg.connections {
        Some(connections) => config.policy(PolicyConfig::Fixed(connections.into())),
        None => config.policy(PolicyConfig::default()),
    };
    config = config.digests(leg.digest, leg.digest);
    config.dscp = leg.dscp;
    if let Some((user, file)) = &leg.mutual {
        let secret = secret(leg, file)?;
        config.chap_mutual = Some(ChapCredentials { user: user.clone(), secret });
    }
    Ok(config)
}

fn secret(leg: &LegConfig, file: &Path) -> Result<Secret, PartsError> {
    let mut warnings = Vec::new();
    let secret = from_file(&leg.place, file, &mut warnings);
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    secret
        .map(|secret| Secret::new(secret.as_bytes()))
        .map_err(|what| PartsError::Config(leg.place.problem(what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_local_disk_has_to_fit() {
        check_leg((1 << 30) + (64 << 10), 1 << 30).unwrap();
        let error = check_leg(1 << 30, 1 << 30).unwrap_err().to_string();
        assert!(error.contains("1073807360"), "says how much is needed: {error}");
        let error = metadata_bytes((1 << 30) + 512).unwrap_err();
        assert!(error.contains("make it 1073745920 bytes long"), "{error}");
        // A bitmap for each of the three legs, a bit for each 4 KiB, its checksums, and little
        // more.
        let bytes = metadata_bytes(1 << 40).unwrap();
        assert!((96 << 20..104 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_password_needs_its_user() {
        let url = "iscsi://far/iqn.2026-11.org.example:a/0";
        let mut leg = LegConfig::new(Way::parse(url).unwrap());
        leg.chap_password_file = Some("/nowhere".into());
        let error = source(&leg).err().unwrap().to_string();
        assert!(error.contains("names no user"), "{error}");
        let url = url.replace("far", "user@far");
        leg.way = Way::parse(&url).unwrap();
        let error = source(&leg).err().unwrap().to_string();
        assert!(error.contains("cannot read /nowhere"), "{error}");
    }
}
