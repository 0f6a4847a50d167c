//! A volume by its URL, whoever serves it, as a [`BlockDevice`]: the one place
//! that decides what a URL means, for every command and for the daemon.
//!
//! A URL is iSCSI's ([`iscsi::initiator::Url`]), NBD's ([`nbd::url::Url`]) or Ceph's
//! ([`rbd::url::Url`]). Not here: files, memory and mirrors, which are no URLs; what a volume is
//! offered as.

#![forbid(unsafe_code)]

/// Objects of a pool of Ceph, which several daemons change one after the other.
pub mod objects {
    pub use rbd::url::Url;
    pub use rbd::{Object, Objects, OpenError};
}

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use block::{BlockDevice, BlockError, Device};
use iscsi::initiator::{
    ConnectError as IscsiError, IsidChoice, RemoteDisk, Url as IscsiUrl, UrlError,
};
use nbd::client::{ConnectError as NbdError, NbdDisk, ServerCommand};
use nbd::url::{Url as NbdUrl, UrlError as NbdUrlError};
use rbd::url::{Url as RbdUrl, UrlError as RbdUrlError};
use rbd::{OpenError as RbdError, RbdDisk};

/// The forms of a URL.
pub const FORMS: &str = "iscsi://[user@]host[:port]/target-iqn/lun, \
                         nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH or \
                         rbd:POOL/IMAGE[@SNAPSHOT]";

/// Time between two looks at the size of a volume that tells of a change only when it is asked.
const LOOK_AT_SIZE: Duration = Duration::from_secs(1);

/// Where a volume is.
#[derive(Clone, Debug)]
pub enum Location {
    /// A logical unit of an iSCSI target.
    Iscsi(Box<IscsiUrl>),
    /// An export of an NBD server.
    Nbd(NbdUrl),
    /// An image of a Ceph cluster.
    Rbd(Box<RbdUrl>),
}

/// Why a text is no URL of a volume.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LocationError {
    /// Another scheme, or none.
    #[error("{0:?} is no URL of a volume; allowed is {FORMS}")]
    Scheme(String),
    /// An iSCSI URL that is wrong.
    #[error(transparent)]
    Iscsi(#[from] UrlError),
    /// An NBD URL that is wrong.
    #[error(transparent)]
    Nbd(#[from] NbdUrlError),
    /// A wrong name of an image.
    #[error(transparent)]
    Rbd(#[from] RbdUrlError),
}

impl Location {
    /// Is this meant as a URL, right or wrong? Everything else is a path.
    pub fn is_meant(text: &str) -> bool {
        RbdUrl::is_meant(text)
            || text.split_once("://").is_some_and(|(scheme, _)| {
                let mut letters = scheme.chars();
                letters.next().is_some_and(|c| c.is_ascii_alphabetic())
                    && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
            })
    }

    /// A name of the volume that does not depend on who uses it: the URL without user and
    /// password.
    pub fn key(&self) -> String {
        match self {
            Self::Iscsi(url) => {
                let mut url = url.clone();
                (url.user, url.password) = (None, None);
                url.to_string()
            }
            Self::Nbd(url) => url.to_string(),
            Self::Rbd(url) => url.without_user().to_string(),
        }
    }
}

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        if NbdUrl::is_meant(text) {
            return Ok(Self::Nbd(text.parse()?));
        }
        if RbdUrl::is_meant(text) {
            return Ok(Self::Rbd(Box::new(text.parse()?)));
        }
        if text.starts_with("iscsi://") {
            return Ok(Self::Iscsi(Box::new(text.parse()?)));
        }
        Err(LocationError::Scheme(text.to_owned()))
    }
}

/// Without the password.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(url) => url.fmt(f),
            Self::Nbd(url) => url.fmt(f),
            Self::Rbd(url) => url.fmt(f),
        }
    }
}

/// How volumes are used, by kind.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Those behind iSCSI.
    pub iscsi: iscsi::initiator::Config,
    /// Those behind NBD.
    pub nbd: nbd::client::Config,
    /// Images of Ceph.
    pub rbd: rbd::Config,
}

impl Config {
    /// For whoever serves volumes to others: who serves one anew takes the place of the process
    /// that did.
    #[must_use]
    pub fn to_serve(read_only: bool) -> Self {
        let mut config = Self::default();
        config.iscsi.isid = IsidChoice::Stable;
        config.nbd.read_only = read_only;
        config.rbd.read_only = read_only;
        config
    }
}

/// Why a volume could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A volume of an iSCSI target.
    #[error(transparent)]
    Iscsi(#[from] IscsiError),
    /// An export of an NBD server.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// An image of Ceph.
    #[error(transparent)]
    Rbd(#[from] RbdError),
}

/// A volume in use. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub enum Volume {
    /// Behind iSCSI.
    Iscsi(RemoteDisk),
    /// Behind NBD.
    Nbd(NbdDisk),
    /// An image of a Ceph cluster.
    Rbd(RbdDisk),
}

impl Volume {
    /// Connects, once. Must run inside a tokio runtime, which then drives the connections.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(location: &Location, config: Config) -> Result<Self, OpenError> {
        Ok(match location {
            Location::Iscsi(url) => {
                Self::Iscsi(RemoteDisk::connect(url.as_ref().clone(), config.iscsi).await?)
            }
            Location::Nbd(url) => Self::Nbd(NbdDisk::connect(url.clone(), config.nbd).await?),
            Location::Rbd(url) => Self::Rbd(RbdDisk::open(url.as_ref().clone(), config.rbd).await?),
        })
    }

    /// Starts an NBD server and connects to it; it is stopped with the volume.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn start(argv: Vec<String>, config: Config) -> Result<Self, OpenError> {
        let command = ServerCommand::new(argv)?;
        Ok(Self::Nbd(NbdDisk::start(command, config.nbd).await?))
    }

    /// As a block device.
    pub fn device(&self) -> Device {
        match self {
            Self::Iscsi(disk) => Arc::new(disk.clone()),
            Self::Nbd(disk) => Arc::new(disk.clone()),
            Self::Rbd(disk) => Arc::new(disk.clone()),
        }
    }

    /// As a logical unit of a target, if it is one.
    pub const fn iscsi(&self) -> Option<&RemoteDisk> {
        match self {
            Self::Iscsi(disk) => Some(disk),
            Self::Nbd(_) | Self::Rbd(_) => None,
        }
    }

    /// Connections that are up. Ceph's client has as many as it needs, and counts as one.
    pub fn connection_count(&self) -> usize {
        match self {
            Self::Iscsi(disk) => disk.connection_count(),
            Self::Nbd(disk) => disk.connection_count(),
            Self::Rbd(disk) => usize::from(disk.is_connected()),
        }
    }

    /// Flushes and disconnects. Every later operation fails, on every handle.
    ///
    /// # Errors
    /// That of the flush; the volume is closed in any case.
    pub async fn close(&self) -> Result<(), BlockError> {
        match self {
            Self::Iscsi(disk) => disk.close().await,
            Self::Nbd(disk) => disk.close().await,
            Self::Rbd(disk) => disk.close().await,
        }
    }

    /// Tells every other capacity that it gets, until `tell` says that nobody wants to know it.
    pub async fn tell_sizes(self, mut tell: impl FnMut(u64) -> bool) {
        let size = || match &self {
            Self::Iscsi(disk) => disk.info().size,
            Self::Nbd(disk) => disk.info().size,
            Self::Rbd(disk) => disk.info().size,
        };
        let mut known = size();
        loop {
            tokio::time::sleep(LOOK_AT_SIZE).await;
            let now = size();
            if now != std::mem::replace(&mut known, now) && !tell(now) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_told_from_a_path() {
        for text in ["iscsi://h/t/0", "nbd+unix://", "rbd:x", "rbd://x", "a://b"] {
            assert!(Location::is_meant(text), "{text}");
        }
        for text in ["/a/b", "a:b", "/a://b", "://x", "mem:1G", "1a://b", "./rbd:x"] {
            assert!(!Location::is_meant(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_volume_gets_the_list_of_what_is() {
        let said = |text: &str| text.parse::<Location>().unwrap_err().to_string();
        for text in ["http://h/x", "ceph:pool/image", "x"] {
            assert!(said(text).contains("nbd+unix:///EXPORT"), "{}", said(text));
            assert!(said(text).contains("iscsi://"), "{}", said(text));
        }
        assert!(said("nbds://h/x").contains("TLS"));
        assert!(said("rbd:image").contains("pool or the image is missing"));
        assert!(said("iscsi://h").contains("target name"), "{}", said("iscsi://h"));
    }

    #[test]
    fn the_key_of_a_volume_has_no_user() {
        let of = |text: &str| text.parse::<Location>().unwrap().key();
        let plain = of("iscsi://h/iqn.2026-01.a:b/0");
        assert_eq!(of("iscsi://user%secret@h/iqn.2026-01.a:b/0"), plain);
        assert_ne!(of("iscsi://h/iqn.2026-01.a:b/1"), plain);
        assert_eq!(of("nbd://h/x"), of("nbd://h:10809/x"));
        assert_eq!(of("rbd:p/i?id=a"), of("rbd:p/i"));
        assert_ne!(of("rbd:p/i@s"), of("rbd:p/i"));
    }
}
