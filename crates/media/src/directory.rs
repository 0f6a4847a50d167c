//! A catalogue in a directory (docs/directory.md): [`Follower`] reads it again and again for a
//! server, [`put`] has what `publish` has found told there.

mod entry;
mod known;
mod put;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use discovery::isns;
use discovery::ldap::{Client, Directory, LdapError};
use tracing::{info, warn};

pub use self::entry::{VideoEntry, VolumeEntry};
use self::known::Known;
pub use self::put::{DirectoryJob, Put, PutError, put};
use crate::catalogue::Catalogue;

/// A catalogue that is kept in a directory.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where.
    pub directory: Client,
    /// Server, with its port, that knows where targets are which have no portal in the directory.
    pub isns: Option<String>,
    /// Who asks it.
    pub initiator_name: String,
    /// File whose first line is the password of users whom volumes name.
    pub password_file: Option<PathBuf>,
    /// How often it is read again.
    pub every: Duration,
}

/// What a server knows of a directory.
pub(crate) struct Follower {
    source: Source,
    known: Known,
    /// Where iSNS said last that targets are.
    portals: HashMap<String, String>,
    /// It did not answer when it was last asked.
    is_away: bool,
    /// The iSNS server did not answer when it was last asked.
    is_isns_away: bool,
}

impl Follower {
    /// Reads all of it.
    ///
    /// # Errors
    /// [`LdapError`].
    pub(crate) async fn start(source: Source) -> Result<(Self, Catalogue), LdapError> {
        let (known, portals) = (Known::default(), HashMap::new());
        let mut follower = Self { source, known, portals, is_away: false, is_isns_away: false };
        let catalogue = follower.read().await?.unwrap_or_default();
        Ok((follower, catalogue))
    }

    /// Waits for the catalogue to be another one. While the directory is away, it is not.
    pub(crate) async fn changed(&mut self) -> Catalogue {
        loop {
            tokio::time::sleep(self.source.every).await;
            let directory = self.source.directory.name();
            match self.read().await {
                Ok(changed) => {
                    if std::mem::take(&mut self.is_away) {
                        info!(directory, "the directory is back");
                    }
                    if let Some(catalogue) = changed {
                        return catalogue;
                    }
                }
                Err(error) if !self.is_away => {
                    self.is_away = true;
                    warn!(%error, "the directory cannot be read: what was there before stays");
                }
                Err(_) => {}
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Catalogue>, LdapError> {
        let has_changed = self.known.read(&self.source.directory).await?;
        let has_moved = self.ask_isns().await;
        if !has_changed && !has_moved {
            return Ok(None);
        }
        Ok(Some(self.known.catalogue(&self.portals, self.source.password_file.as_ref())))
    }

    /// Asks where targets are; tells whether one is elsewhere. Where iSNS does not answer, they are
    /// where they were.
    async fn ask_isns(&mut self) -> bool {
        let Some(server) = self.source.isns.as_ref() else { return false };
        if self.known.without_portal().next().is_none() {
            return false;
        }
        let found = async {
            let mut client = isns::Client::connect(server, false).await?;
            client.targets(&self.source.initiator_name).await
        };
        let found = match found.await {
            Ok(found) => found,
            Err(error) => {
                if !std::mem::replace(&mut self.is_isns_away, true) {
                    warn!(%error, "targets are where they were before");
                }
                return false;
            }
        };
        self.is_isns_away = false;
        let found = found.into_iter().filter_map(|target| {
            let portal = target.portals.iter().find_map(|(key, _)| key.socket())?;
            Some((target.name, portal.to_string()))
        });
        let mut found: HashMap<String, String> = found.collect();
        let wanted: Vec<&str> = self.known.without_portal().collect();
        found.retain(|target, _| wanted.contains(&target.as_str()));
        let has_moved = found != self.portals;
        self.portals = found;
        has_moved
    }
}
