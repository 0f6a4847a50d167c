//! Homes that call the server because it cannot call them: their keys, which the state folder has,
//! and the server's own. [`uplink`] has the rest.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tracing::warn;
use uplink::server::{Homes, Listener, ServerError, Uplinks};
use uplink::{Identity, IdentityError, Pin};
use zeroize::Zeroizing;

use crate::state::{
    ChangeError, Stamp, StateError, StateFolder, change, check_is_private, load, write_private,
    wrong,
};

const HOMES: &str = "uplinks.json";
const KEY: &str = "uplink.key";

/// Homes that a server knows; a catalogue has as many.
const HOMES_MAX: usize = crate::catalogue::HOMES_MAX;

/// Longest name: it stands in URLs as a host does.
const NAME_LEN_MAX: usize = 63;
/// What a name may be.
pub(crate) const NAME_RULE: &str = "letters a-z, digits and - between them are allowed, 63 at most";

/// Longest key file: one key has some 250 bytes.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Why there is no uplink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UplinkError {
    /// One of the files.
    #[error(transparent)]
    File(#[from] StateError),
    /// A key.
    #[error("{0}: {1}")]
    Key(String, IdentityError),
    /// The port, or TLS.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// What is in the file: keys by name.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Stored(BTreeMap<String, String>);

impl Stored {
    /// By key. What is wrong in the file is told of and left out.
    fn homes(&self) -> Homes {
        let each = self.0.iter().filter_map(|(name, pin)| match pin.parse::<Pin>() {
            Ok(pin) => Some((pin, name.clone())),
            Err(error) => {
                warn!(name, %error, "a home of {HOMES}");
                None
            }
        });
        each.collect()
    }
}

/// May a home be called so? It has to be a host's name, which a URL can have.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The homes of a state folder.
#[derive(Clone, Debug)]
pub struct UplinkHomes {
    folder: StateFolder,
}

impl UplinkHomes {
    /// Those of this folder.
    pub fn new(folder: &StateFolder) -> Self {
        Self { folder: folder.clone() }
    }

    /// Knows a home by its key from now on.
    ///
    /// # Errors
    /// The name or the key has somebody already, or cannot be one.
    pub fn add(&self, name: &str, pin: Pin) -> Result<(), ChangeError> {
        if !is_name(name) {
            return wrong(format!("{name:?} is no name: {NAME_RULE}"));
        }
        change(&self.folder.file(HOMES), |Stored(homes): &mut Stored| {
            if homes.len() >= HOMES_MAX {
                return wrong(format!("there are {HOMES_MAX} homes already"));
            }
            if homes.contains_key(name) {
                return wrong(format!("there is a home {name} already: remove it first"));
            }
            let text = pin.to_string();
            if let Some((other, _)) = homes.iter().find(|(_, known)| **known == text) {
                return wrong(format!("home {other} has this key"));
            }
            homes.insert(name.to_owned(), text);
            Ok(())
        })
    }

    /// Knows it no more.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&self, name: &str) -> Result<(), ChangeError> {
        change(&self.folder.file(HOMES), |Stored(homes): &mut Stored| match homes.remove(name) {
            Some(_) => Ok(()),
            None => wrong(format!("there is no home {name}")),
        })
    }

    /// Names and keys.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, String)>, StateError> {
        let Stored(homes) = load(&self.folder.file(HOMES))?;
        Ok(homes.into_iter().collect())
    }

    /// The server's own key, which is made if there is none.
    ///
    /// # Errors
    /// It cannot be read or made, or others can read it.
    pub fn identity(&self) -> Result<Identity, UplinkError> {
        uplink_key(&self.folder.file(KEY))
    }
}

/// The key in a file, which is made if it is not there.
///
/// # Errors
/// It cannot be read or made, or others can read it.
pub fn uplink_key(path: &Path) -> Result<Identity, UplinkError> {
    let failed = |error: IdentityError| UplinkError::Key(path.display().to_string(), error);
    let wrong = |error: std::io::Error| StateError::new(path, error);
    if !path.try_exists().map_err(wrong)? {
        write_private(path, Identity::generate().map_err(failed)?.as_bytes()).map_err(wrong)?;
    }
    check_is_private(path)?;
    if std::fs::metadata(path).map_err(wrong)?.len() > KEY_BYTES_MAX {
        return Err(StateError::new(path, "it is too long for a key").into());
    }
    let pem = std::fs::read_to_string(path).map(Zeroizing::new).map_err(wrong)?;
    Identity::from_pem(&pem).map_err(failed)
}

/// Whom the port lets in that homes call.
pub(crate) struct Door {
    file: PathBuf,
    pin: Pin,
    uplinks: Uplinks,
    /// What told the file apart when it was last read.
    stamp: Mutex<Option<Stamp>>,
}

impl Door {
    /// Opens it. Homes are answered while the listener runs.
    pub(crate) async fn open(
        folder: &StateFolder,
        address: SocketAddr,
    ) -> Result<(Self, Listener), UplinkError> {
        let file = folder.file(HOMES);
        let stamp = Mutex::new(Stamp::of(&file));
        let known = load::<Stored>(&file)?.homes();
        let identity = UplinkHomes::new(folder).identity()?;
        let listener = Listener::bind(address, &identity, known).await?;
        let (pin, uplinks) = (identity.pin(), listener.uplinks());
        Ok((Self { file, pin, uplinks, stamp }, listener))
    }

    pub(crate) fn uplinks(&self) -> Uplinks {
        self.uplinks.clone()
    }

    pub(crate) fn pin(&self) -> Pin {
        self.pin
    }

    /// Reads the file again if it has changed: one that is gone lets nobody in, since it is never
    /// gone while it is replaced. Blocks as long as that takes.
    pub(crate) fn refresh(&self) {
        let stamp = Stamp::of(&self.file);
        let mut before = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *before, stamp) == stamp {
            return;
        }
        match load::<Stored>(&self.file) {
            Ok(stored) => self.uplinks.set_homes(stored.homes()),
            Err(error) => warn!(%error, "homes that call: those from before stay"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_kept_by_name_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        let homes = UplinkHomes::new(&state);
        let server = homes.identity().unwrap().pin();
        assert_eq!(homes.identity().unwrap().pin(), server, "it is kept");
        let pin: Pin = "ab".repeat(32).parse().unwrap();
        homes.add("attic", pin).unwrap();
        let said = |result: Result<(), ChangeError>| result.unwrap_err().to_string();
        assert!(said(homes.add("attic", server)).contains("already"));
        assert!(said(homes.add("shed", pin)).contains("home attic has this key"));
        for wrong in ["", "Attic", "a/b", "-a", "a.b", &"a".repeat(64)] {
            assert!(said(homes.add(wrong, server)).contains("letters a-z"), "{wrong}");
        }
        assert_eq!(homes.list().unwrap(), [("attic".to_owned(), pin.to_string())]);
        homes.remove("attic").unwrap();
        assert!(said(homes.remove("attic")).contains("no home attic"));
    }
}
