//! [`Lease`]: the use of a home by one request. As long as there is one, the home is not let go.

use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use block::BlockError;
use bytes::Bytes;
use files::Error;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tracing::warn;

use crate::aside::aside;
use crate::body::Holder;
use crate::home::{Home, Off, Opened};
use crate::respond::Resource;
use crate::watching::Watching;

/// What is kept of a file system is looked at anew after this time, so that a file that was
/// replaced is seen. A seek of a player soon after its start costs no more round trips.
const REFRESH_AFTER: Duration = Duration::from_secs(2);

/// How long it may take until a file is found.
const LOOK_UP_TIME_MAX: Duration = Duration::from_secs(15);

/// Use of a home.
pub struct Lease {
    home: Arc<Home>,
    opened: Arc<Opened>,
}

/// Why a file cannot be had.
#[derive(Debug)]
pub enum Missing {
    /// There is no such file.
    NoFile(Error),
    /// It is damaged, or something that cannot be read.
    Unreadable(Error),
    /// Its storage is off.
    Off(Off),
}

impl Lease {
    pub(crate) fn new(home: &Arc<Home>, opened: &Arc<Opened>) -> Self {
        Self { home: Arc::clone(home), opened: Arc::clone(opened) }
    }

    /// A file of the volume.
    ///
    /// # Errors
    /// [`Missing`].
    pub async fn file(&self, path: &str) -> Result<Resource, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move { look_up(&opened, &path).await }).await
    }

    /// A file of the volume, whose line this viewer shares with others, and what others who watch
    /// the same have got over it.
    ///
    /// # Errors
    /// [`Missing`].
    pub(crate) async fn shared_file(
        &self,
        path: &str,
        viewer: String,
    ) -> Result<Resource, Missing> {
        let (resource, opened) = (self.file(path).await?, &self.opened);
        let version = resource.version();
        Ok(resource
            .through(|device| opened.recent.shared(opened.line.shared(device, viewer), &version)))
    }

    /// All bytes of a small file.
    ///
    /// # Errors
    /// [`Missing`]; it is larger.
    pub async fn content(&self, path: &str, bytes_max: u64) -> Result<Bytes, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move {
            let resource = look_up(&opened, &path).await?;
            let (file, size) = (resource.file(), resource.file().size());
            if size > bytes_max {
                return Err(Error::TooMuch { place: path, what: "bytes", max: bytes_max });
            }
            file.read_at(0, usize::try_from(size).unwrap_or(usize::MAX)).await
        })
        .await
    }

    /// Lists a folder, or tells the one file that a path leads to.
    ///
    /// # Errors
    /// [`Missing`].
    pub async fn list(&self, path: &[u8]) -> Result<Vec<files::Entry>, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move {
            let files = opened.files.read().await;
            let entry = files.find(path).await?;
            match entry.kind {
                files::EntryKind::Folder => files.list(&entry).await,
                _ => Ok(vec![entry]),
            }
        })
        .await
    }

    /// What the volume is, wherever it is plugged in.
    pub async fn identity(&self) -> files::Identity {
        self.opened.files.read().await.identity()
    }

    async fn within_time<T, F>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, Missing>
    where
        T: Send + 'static,
        F: Future<Output = files::Result<T>>,
    {
        let lost = |why: &str| Err(Missing::Off(self.home.lost(&self.opened, why)));
        match tokio::time::timeout(LOOK_UP_TIME_MAX, aside(work)).await {
            Ok(Some(done)) => done.map_err(|error| self.judge(error)),
            Ok(None) => lost("looking for a file went wrong"),
            Err(_) => lost(&format!("no answer within {LOOK_UP_TIME_MAX:?}")),
        }
    }

    fn judge(&self, error: Error) -> Missing {
        match error {
            Error::NotFound { .. }
            | Error::NotAFile { .. }
            | Error::NotAFolder { .. }
            | Error::Link { .. }
            | Error::Path { .. } => Missing::NoFile(error),
            error if is_lost(&error) => {
                Missing::Off(self.home.lost(&self.opened, &error.to_string()))
            }
            error => {
                warn!(home = self.home.spec().name, %error, "cannot be read");
                Missing::Unreadable(error)
            }
        }
    }
}

async fn look_up(opened: &Opened, path: &str) -> files::Result<Resource> {
    let is_old = {
        let mut refreshed = opened.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = refreshed.elapsed() >= REFRESH_AFTER;
        if is_old {
            *refreshed = Instant::now();
        }
        is_old
    };
    if is_old {
        opened.files.write().await.refresh().await?;
    }
    let files = opened.files.read().await;
    let entry = files.find(path).await?;
    let file = files.open_file(&entry).await?;
    Ok(Resource::new(file, &opened.id, &entry.name, entry.version))
}

/// Does it say that the storage is gone, and not that a place on it is damaged?
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Device { source, .. } if !matches!(source, BlockError::Medium(_)))
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.opened.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// A lease that is being sent, and its place among those.
pub(crate) struct Streaming {
    pub(crate) lease: Lease,
    /// Held, and given back with it.
    pub(crate) _place: OwnedSemaphorePermit,
    pub(crate) watching: Watching,
}

impl Holder for Streaming {
    fn failed(&self, error: &Error) {
        if is_lost(error) {
            self.lease.home.lost(&self.lease.opened, &error.to_string());
        }
    }

    fn sent(&self, bytes: u64) {
        self.watching.sent(bytes);
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<String> {
        self.watching.poll_end(context)
    }
}
