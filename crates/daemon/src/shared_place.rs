//! [`Opened`]: where the daemons of a pair keep what they know together, as stores of the device
//! server: files of a folder, objects of a pool of Ceph, or keys of etcd.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use backends::objects::{Object, Objects};
use etcd::{Etcd, Key};
use scsi::{SharedFileStore, SharedStore, Stored};
use tracing::warn;

use crate::config::pair::SharedPlace;
use crate::config::secret;

/// A place that is there.
pub(crate) enum Opened {
    Folder(PathBuf),
    Objects(Objects),
    Keys(Etcd),
}

impl Opened {
    /// Looks for it. May block.
    ///
    /// # Errors
    /// Why it is not to be had, for people.
    pub(crate) fn open(place: &SharedPlace) -> Result<Self, String> {
        match place {
            SharedPlace::Folder(folder) => {
                check_folder(folder)?;
                Ok(Self::Folder(folder.clone()))
            }
            SharedPlace::Objects(url) => {
                Objects::connect(url).map(Self::Objects).map_err(|error| error.to_string())
            }
            SharedPlace::Keys(url) => connect(url).map(Self::Keys),
        }
    }

    /// The store of this name in it. Names of targets hold no character that a path could not.
    ///
    /// # Errors
    /// It can be no store's name.
    pub(crate) fn store(&self, name: &str) -> Result<Arc<dyn SharedStore>, String> {
        Ok(match self {
            Self::Folder(folder) => Arc::new(SharedFileStore::new(folder.join(name))),
            Self::Objects(objects) => {
                let object = objects.object(name).map_err(|error| error.to_string())?;
                Arc::new(ObjectStore(object))
            }
            Self::Keys(etcd) => Arc::new(KeyStore(etcd.key(name))),
        })
    }
}

/// What can be known of a place without a connection.
///
/// # Errors
/// Why it could not be had.
pub(crate) fn check(place: &SharedPlace) -> Result<(), String> {
    match place {
        SharedPlace::Folder(folder) => check_folder(folder),
        SharedPlace::Objects(_) | SharedPlace::Keys(_) => Ok(()),
    }
}

fn connect(url: &etcd::url::Url) -> Result<Etcd, String> {
    let password = url.user.as_ref().map(|user| {
        let (password, warning) = secret::first_line(&user.password_file)?;
        if let Some(warning) = warning {
            warn!("{warning}");
        }
        Ok::<_, String>(password)
    });
    Etcd::connect(url, password.transpose()?).map_err(|error| error.to_string())
}

fn check_folder(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("{shown} is no folder")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

/// An object, as a store.
#[derive(Debug)]
struct ObjectStore(Object);

impl SharedStore for ObjectStore {
    fn load(&self) -> io::Result<Option<Stored>> {
        Ok(self.0.load()?.map(|(version, state)| Stored { version, state }))
    }

    fn replace(&self, version: u64, state: &[u8]) -> io::Result<Option<u64>> {
        self.0.replace(version, state)
    }
}

/// A key, as a store.
#[derive(Debug)]
struct KeyStore(Key);

impl SharedStore for KeyStore {
    fn load(&self) -> io::Result<Option<Stored>> {
        Ok(self.0.load()?.map(|(version, state)| Stored { version, state }))
    }

    fn replace(&self, version: u64, state: &[u8]) -> io::Result<Option<u64>> {
        self.0.replace(version, state)
    }
}
