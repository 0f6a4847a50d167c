//! [`Lease`]: the use of a home by one request. As long as there is one, the home is not let go.

use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use block::BlockError;
use bytes::Bytes;
use files::{Error, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tracing::warn;

use crate::aside::aside;
use crate::body::{Confirming, Holder};
use crate::escort::escorted;
use crate::home::{EDITED, Home, Off};
use crate::opened::Opened;
use crate::respond::Resource;
use crate::view::{Found, Sending, Trouble};
use crate::watching::Watching;

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

    /// A file of the volume, and when its content was last changed.
    ///
    /// # Errors
    /// [`Missing`].
    pub async fn file(&self, path: &str) -> Result<(Resource, Option<Timestamp>), Missing> {
        let found = self.find(path).await?;
        let modified = found.entry.modified;
        Ok((self.resource(found), modified))
    }

    /// A file of the volume, whose line this viewer shares with others, with what others who watch
    /// the same have got over it; and what it is known by while it is sent.
    ///
    /// # Errors
    /// [`Missing`].
    pub(crate) async fn shared_file(
        &self,
        path: &str,
        viewer: String,
    ) -> Result<(Resource, Sending), Missing> {
        let found = self.find(path).await?;
        Ok(self.shared(found, path, viewer))
    }

    /// A file as [`shared_file`](Self::shared_file) has it, by what is believed of the volume
    /// without asking: a viewer is told nothing before its first bytes are confirmed. None: ask.
    pub(crate) async fn believed_file(
        &self,
        path: &str,
        viewer: String,
    ) -> Option<(Resource, Sending)> {
        let (opened, wanted) = (Arc::clone(&self.opened), path.to_owned());
        let look = aside(move || async move { opened.view.believed(&wanted).await });
        let found = tokio::time::timeout(LOOK_UP_TIME_MAX, look).await.ok()??;
        found.map(|found| self.shared(found, path, viewer))
    }

    fn shared(&self, found: Found, path: &str, viewer: String) -> (Resource, Sending) {
        let escort = Arc::default();
        let sending = found.sending(path, &escort);
        let (resource, opened) = (self.resource(found), &self.opened);
        let (version, view) = (resource.version(), &opened.view);
        let questions = view.questions(&escort);
        let share = |device| {
            let device = opened.line.shared(escorted(device, &questions), &viewer);
            view.recent().shared(device, &version, questions)
        };
        (resource.through(share), sending)
    }

    async fn find(&self, path: &str) -> Result<Found, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move { opened.view.file(&path).await }).await
    }

    fn resource(&self, found: Found) -> Resource {
        Resource::new(found.file, &self.opened.id, &found.entry.name, found.entry.version)
    }

    /// All bytes of a small file.
    ///
    /// # Errors
    /// [`Missing`]; it is larger.
    pub async fn content(&self, path: &str, bytes_max: u64) -> Result<Bytes, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move { opened.view.small(&path, bytes_max).await }).await
    }

    /// Lists a folder, or tells the one file that a path leads to.
    ///
    /// # Errors
    /// [`Missing`].
    pub async fn list(&self, path: &[u8]) -> Result<Vec<files::Entry>, Missing> {
        let (opened, path) = (Arc::clone(&self.opened), path.to_owned());
        self.within_time(move || async move { opened.view.list(&path).await }).await
    }

    /// Whether what was read of a file before this was called is its own.
    ///
    /// # Errors
    /// Why it is not, or cannot be told: what is sent of it ends.
    async fn confirm(self: Arc<Self>, sending: &mut Option<Sending>) -> Result<(), String> {
        let Some(known) = sending.take() else { return Err(EDITED.into()) };
        let view = &self.opened.view;
        let is_still = view.is_still_at(&known).await.map_err(|trouble| self.told(&trouble))?;
        if is_still {
            *sending = Some(known);
            return Ok(());
        }
        let opened = Arc::clone(&self.opened);
        let look = move || async move {
            let mut known = known;
            opened.view.look_again(&mut known).await.map(|()| known)
        };
        match tokio::time::timeout(LOOK_UP_TIME_MAX, aside(look)).await {
            Ok(Some(Ok(known))) => {
                *sending = Some(known);
                Ok(())
            }
            Ok(Some(Err(trouble))) => Err(self.told(&trouble)),
            Ok(None) => Err("looking for its file went wrong".into()),
            Err(_) => Err(format!("no answer within {LOOK_UP_TIME_MAX:?}")),
        }
    }

    /// Bytes of a file of the volume could not be read.
    fn failed(&self, error: &Error) {
        if is_lost(error) {
            self.home.lost(&self.opened, &error.to_string());
        }
    }

    /// What a stream ends with.
    fn told(&self, trouble: &Trouble) -> String {
        match trouble {
            Trouble::Edited => EDITED.into(),
            Trouble::Files(error) => error.to_string(),
            Trouble::Silent(why) => self.home.lost(&self.opened, why).why,
        }
    }

    /// What the volume is, wherever it is plugged in.
    pub async fn identity(&self) -> files::Identity {
        self.opened.view.identity().await
    }

    async fn within_time<T, F>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> Result<T, Missing>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Trouble>>,
    {
        let lost = |why: &str| Err(Missing::Off(self.home.lost(&self.opened, why)));
        match tokio::time::timeout(LOOK_UP_TIME_MAX, aside(work)).await {
            Ok(Some(done)) => done.map_err(|trouble| match trouble {
                Trouble::Files(error) => self.judge(error),
                Trouble::Silent(why) => Missing::Off(self.home.lost(&self.opened, &why)),
                Trouble::Edited => {
                    let since = self.opened.view.edited_since();
                    Missing::Off(self.home.edited(since.unwrap_or_else(SystemTime::now)))
                }
            }),
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
    pub(crate) lease: Arc<Lease>,
    /// Held, and given back with it.
    pub(crate) _place: OwnedSemaphorePermit,
    pub(crate) watching: Watching,
    /// What the file was when it was looked at; with whoever looks again, meanwhile.
    pub(crate) sending: Arc<tokio::sync::Mutex<Option<Sending>>>,
}

impl Holder for Streaming {
    fn failed(&self, error: &Error) {
        self.lease.failed(error);
    }

    fn sent(&self, bytes: u64) {
        self.watching.sent(bytes);
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<String> {
        self.watching.poll_end(context)
    }

    fn confirm(&self) -> Confirming {
        let (lease, sending) = (Arc::clone(&self.lease), Arc::clone(&self.sending));
        Box::pin(async move { lease.confirm(&mut *sending.lock().await).await })
    }
}

/// A file that is lent to a program for one stream; each of the program's requests has a
/// [`Part`] of it.
pub(crate) struct Lent {
    pub(crate) resource: Resource,
    pub(crate) lease: Arc<Lease>,
    /// What the file was when it was looked at.
    pub(crate) sending: Sending,
    /// Why the whole stream ends, as the first of its requests finds.
    pub(crate) trouble: mpsc::Sender<String>,
}

impl Lent {
    /// For one more request. Each confirms for itself: a program drops one while it waits.
    pub(crate) fn part(&self) -> Box<Part> {
        Box::new(Part {
            lease: Arc::clone(&self.lease),
            sending: Arc::new(tokio::sync::Mutex::new(Some(self.sending.clone()))),
            trouble: self.trouble.clone(),
        })
    }
}

/// A request of a program for a file that is lent to it.
pub(crate) struct Part {
    lease: Arc<Lease>,
    sending: Arc<tokio::sync::Mutex<Option<Sending>>>,
    trouble: mpsc::Sender<String>,
}

impl Holder for Part {
    fn failed(&self, error: &Error) {
        self.lease.failed(error);
        let _ = self.trouble.try_send(error.to_string()); // or an earlier one is told already
    }

    /// What a viewer is sent is counted where it is sent.
    fn sent(&self, _: u64) {}

    /// Whoever ends the stream ends the program, and its requests with it.
    fn poll_end(&mut self, _: &mut Context<'_>) -> Poll<String> {
        Poll::Pending
    }

    fn confirm(&self) -> Confirming {
        let (lease, sending) = (Arc::clone(&self.lease), Arc::clone(&self.sending));
        let trouble = self.trouble.clone();
        Box::pin(async move {
            let confirmed = lease.confirm(&mut *sending.lock().await).await;
            if let Err(why) = &confirmed {
                let _ = trouble.try_send(why.clone()); // or an earlier one is told already
            }
            confirmed
        })
    }
}
