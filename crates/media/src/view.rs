//! [`View`]: the file system of a volume that somebody else may write to meanwhile. What is
//! believed of it was read while nobody wrote, as the volume's own count of writes tells
//! ([`Marks`]).
//!
//! Every page of metadata that is kept was read after a moment, and holds as long as the volume is
//! still at that moment. So whoever looks something up asks afterwards how it is, and looks again
//! if it is another one. The same question goes before each byte of a file that is handed on: if
//! the volume has moved, the file's own metadata are looked at anew, and where they are as before,
//! the bytes are its own, whatever else was written.
//!
//! That asks one thing of the writer: that no block gets other content as long as the disk says
//! that it belongs to the file. A mounted file system may keep what it has changed in memory for
//! half a minute, and write content first. So once somebody writes to a disk that says of itself
//! that it is mounted, it is left alone until nobody has written for [`QUIET_IN_USE`]; unless it
//! has a journal, in which everything is committed in an order that keeps that promise. Of what
//! was never written it commits only later that there is content now: a file with holes is left
//! alone there, too.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use files::{Entry, FileExtent, FileReader, Mounted, Volume as FileSystem};
use tokio::sync::RwLock;
use tokio::time::Instant;

use crate::escort::{EACH, Questions};
use crate::recent::Recent;
use crate::writers::{Escort, Look, Marks};

/// Where writes are not counted, what is kept of a file system is looked at anew after this time,
/// so that a file that was replaced is seen. A seek of a player soon after its start costs no more
/// round trips.
const REFRESH_AFTER: Duration = Duration::from_secs(2);

/// How long nobody may have written before what a disk says is believed, once somebody has: most
/// tools write content, table and folder one after the other.
const QUIET: Duration = Duration::from_secs(1);

/// How long nobody may have written to a disk that says that it is mounted: Linux writes what has
/// been changed for 30 s, and looks every 5 s (`dirty_expire_centisecs`,
/// `dirty_writeback_centisecs`).
pub(crate) const QUIET_IN_USE: Duration = Duration::from_secs(40);

/// How long somebody who looks something up waits for quiet.
const WAIT_MAX: Duration = Duration::from_secs(6);

/// Pauses between looks at a volume that is being written to.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long it is said that a volume is being edited, after that was last seen, and how long it
/// counts as the same editing when it is seen again.
const EDITED_FOR: Duration = Duration::from_secs(10);
const EDITED_AGAIN: Duration = Duration::from_secs(60);

/// A file system, and the moment since which all that is kept of it was read.
struct Content {
    files: FileSystem,
    moment: Option<u64>,
    refreshed: Instant,
}

/// A file system that others may write to.
pub(crate) struct View {
    content: RwLock<Content>,
    marks: Arc<Marks>,
    /// What came of its files, since the last moment that anybody has asked for.
    recent: Recent,
    edited: Mutex<Option<Edited>>,
}

#[derive(Clone, Copy)]
struct Edited {
    since: SystemTime,
    seen: Instant,
}

/// Why something cannot be had of it.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It is not there, or cannot be read.
    Files(files::Error),
    /// Somebody writes to the volume.
    Edited,
    /// The volume does not answer.
    Silent(String),
}

/// A file, and the moment at which it was so.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) file: FileReader,
    moment: Option<u64>,
}

/// What was looked up.
struct Looked<T> {
    found: T,
    /// There are bytes of it that were never written, as the disk has it. ext4 gives blocks to new
    /// content first, commits that and the size of the file, and only after the next commit these
    /// blocks are no hole any more (`dioread_nolock`): up to then they would be read as zeroes.
    has_holes: bool,
}

/// What somebody is being sent of, to be compared.
#[derive(Clone)]
pub(crate) struct Sending {
    path: String,
    version: u64,
    extents: Vec<FileExtent>,
    moment: Option<u64>,
    escort: Arc<Escort>,
}

impl Found {
    /// It is being sent from now on, with this escort.
    pub(crate) fn sending(&self, path: &str, escort: &Arc<Escort>) -> Sending {
        Sending {
            path: path.to_owned(),
            version: self.entry.version,
            extents: self.file.extents().to_vec(),
            moment: self.moment,
            escort: Arc::clone(escort),
        }
    }
}

impl View {
    /// Of what was read after the look.
    pub(crate) fn new(files: FileSystem, marks: Marks, before: Option<Look>) -> Self {
        // A reservation is told of also where writes are not counted, and ends there untold.
        let unreserved = before.filter(|look| !look.told.is_reserved);
        let moment = unreserved.map(|look| look.told.moment);
        let content = RwLock::new(Content { files, moment, refreshed: Instant::now() });
        let (recent, edited) = (Recent::default(), Mutex::default());
        Self { content, marks: Arc::new(marks), recent, edited }
    }

    /// What came of its files, for others who want the same.
    pub(crate) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// How the volume is at some moment from now on; what came of its files before that and may be
    /// of another one is forgotten.
    async fn fresh(&self) -> Result<Option<Look>, Trouble> {
        let look = self.marks.fresh().await.map_err(Trouble::Silent)?;
        Ok(look.map(|look| self.noted(look)))
    }

    fn noted(&self, look: Look) -> Look {
        self.recent.move_to(look.told.moment);
        look
    }

    /// Since when somebody has been writing to it, if somebody was seen to a moment ago.
    pub(crate) fn edited_since(&self) -> Option<SystemTime> {
        let edited = *self.edited.lock().unwrap_or_else(PoisonError::into_inner);
        edited.filter(|edited| edited.seen.elapsed() < EDITED_FOR).map(|edited| edited.since)
    }

    /// What the volume is, wherever it is plugged in.
    pub(crate) async fn identity(&self) -> files::Identity {
        self.content.read().await.files.identity()
    }

    /// A file by its path.
    ///
    /// # Errors
    /// [`Trouble`].
    pub(crate) async fn file(&self, path: &str) -> Result<Found, Trouble> {
        let find = async |files: &FileSystem| {
            let (entry, file) = find(files, path).await?;
            let has_holes = file.has_holes();
            Ok(Looked { found: (entry, file), has_holes })
        };
        let ((entry, file), moment) = self.consistent(find).await?;
        Ok(Found { entry, file, moment })
    }

    /// A file by its path as it was at the last moment that is known, if what the disk said then
    /// was to be believed: nobody is asked whether it still holds. Whoever reads of it asks before
    /// he hands anything on.
    pub(crate) async fn believed(&self, path: &str) -> Option<Found> {
        let content = self.content.read().await;
        let look = self.marks.known().filter(|look| content.moment == Some(look.told.moment))?;
        let mounted = content.files.mounted().await.ok()?;
        let is_edited = self.edited.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if look.told.is_reserved || is_edited {
            return None;
        }
        let (entry, file) = find(&content.files, path).await.ok()?;
        if !missing_quiet(&look, mounted, file.has_holes()).is_zero() {
            return None;
        }
        Some(Found { entry, file, moment: content.moment })
    }

    /// The questions of a stream.
    pub(crate) fn questions(&self, escort: &Arc<Escort>) -> Arc<Questions> {
        Questions::new(&self.marks, escort, EACH)
    }

    /// What a folder has, or the one file that a path leads to.
    ///
    /// # Errors
    /// [`Trouble`].
    pub(crate) async fn list(&self, path: &[u8]) -> Result<Vec<Entry>, Trouble> {
        let list = async |files: &FileSystem| {
            let entry = files.find(path).await?;
            let found = match entry.kind {
                files::EntryKind::Folder => files.list(&entry).await?,
                _ => vec![entry],
            };
            Ok(Looked { found, has_holes: false })
        };
        Ok(self.consistent(list).await?.0)
    }

    /// All bytes of a file, if it has no more than so many.
    ///
    /// # Errors
    /// [`Trouble`]; it has more.
    pub(crate) async fn small(&self, path: &str, bytes_max: u64) -> Result<Bytes, Trouble> {
        let read = async |files: &FileSystem| {
            let (_, file) = find(files, path).await?;
            let size = file.size();
            if size > bytes_max {
                let place = path.to_owned();
                return Err(files::Error::TooMuch { place, what: "bytes", max: bytes_max });
            }
            let found = file.read_at(0, usize::try_from(size).unwrap_or(usize::MAX)).await?;
            Ok(Looked { found, has_holes: file.has_holes() })
        };
        Ok(self.consistent(read).await?.0)
    }

    /// Nobody has written since the file was looked up, or it is not known: what was read of it
    /// before this was called is its own.
    ///
    /// # Errors
    /// The volume does not answer.
    pub(crate) async fn is_still_at(&self, sending: &Sending) -> Result<bool, Trouble> {
        let look = match self.marks.look_behind(&sending.escort).await {
            Some(look) => Some(self.noted(look)),
            None => self.fresh().await?,
        };
        let is_at = |look: Look| !look.told.is_reserved && sending.moment == Some(look.told.moment);
        Ok(look.is_none_or(is_at))
    }

    /// Somebody has written: is the file as it was nevertheless? Then what was read of it before
    /// this was called is its own.
    ///
    /// # Errors
    /// [`Trouble::Edited`]: it may be another's, or it cannot be told; the volume does not answer.
    pub(crate) async fn look_again(&self, sending: &mut Sending) -> Result<(), Trouble> {
        match self.file(&sending.path).await {
            Ok(found) if found.is_still(sending) => {
                sending.moment = found.moment;
                Ok(())
            }
            // It is another file now, or gone, or what describes it is being written.
            Ok(_) | Err(Trouble::Edited) => Err(self.is_edited()),
            Err(Trouble::Files(error)) => match error {
                files::Error::Device { .. } => Err(Trouble::Files(error)),
                _ => Err(self.is_edited()),
            },
            Err(silent) => Err(silent),
        }
    }

    /// Looks something up until nobody has written meanwhile.
    async fn consistent<T>(
        &self,
        read: impl AsyncFn(&FileSystem) -> files::Result<Looked<T>>,
    ) -> Result<(T, Option<u64>), Trouble> {
        let begin = Instant::now();
        // Whoever finds that the volume has moved looks again at once, the first time.
        let mut pause = Duration::ZERO;
        loop {
            self.refresh_uncounted().await.map_err(Trouble::Files)?;
            let (outcome, mounted, moment) = {
                let content = self.content.read().await;
                let outcome = read(&content.files).await;
                (outcome, content.files.mounted().await, content.moment)
            };
            let Some(look) = self.fresh().await? else {
                return outcome.map(|looked| (looked.found, None)).map_err(Trouble::Files);
            };
            if look.told.is_reserved {
                return Err(self.is_edited());
            }
            if moment == Some(look.told.moment) {
                // An error is one of the disk's then, and not of a moment.
                let has_holes = outcome.as_ref().is_ok_and(|looked| looked.has_holes);
                let wait = missing_quiet(&look, mounted.map_err(Trouble::Files)?, has_holes);
                if wait.is_zero() {
                    *self.edited.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    return outcome.map(|looked| (looked.found, moment)).map_err(Trouble::Files);
                }
                pause = pause.max(wait);
            } else {
                self.refresh(&look).await?;
            }
            if begin.elapsed() + pause > WAIT_MAX {
                return Err(self.is_edited());
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        }
    }

    /// Forgets what was read before this look.
    async fn refresh(&self, look: &Look) -> Result<(), Trouble> {
        let mut content = self.content.write().await;
        if content.moment >= Some(look.told.moment) {
            return Ok(()); // somebody else has, with a later one
        }
        match content.files.refresh().await {
            Ok(_) => {}
            // Superblock or journal were met half written: whoever wants something tries again.
            Err(files::Error::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(Trouble::Files(error)),
        }
        content.moment = Some(look.told.moment);
        content.refreshed = Instant::now();
        Ok(())
    }

    /// Where nobody counts writes, what is old is forgotten.
    async fn refresh_uncounted(&self) -> files::Result<()> {
        let is_old = {
            let content = self.content.read().await;
            content.moment.is_none() && content.refreshed.elapsed() >= REFRESH_AFTER
        };
        if is_old {
            let mut content = self.content.write().await;
            content.refreshed = Instant::now();
            content.files.refresh().await?;
        }
        Ok(())
    }

    fn is_edited(&self) -> Trouble {
        let mut edited = self.edited.lock().unwrap_or_else(PoisonError::into_inner);
        let since = edited.filter(|edited| edited.seen.elapsed() < EDITED_AGAIN);
        let since = since.map_or_else(SystemTime::now, |edited| edited.since);
        *edited = Some(Edited { since, seen: Instant::now() });
        Trouble::Edited
    }
}

impl Found {
    fn is_still(&self, sending: &Sending) -> bool {
        self.entry.version == sending.version && self.file.extents() == sending.extents
    }
}

/// How much longer nobody may write before what the disk says of something is believed.
fn missing_quiet(look: &Look, mounted: Mounted, has_holes: bool) -> Duration {
    let wanted = match mounted {
        Mounted::Unordered => QUIET_IN_USE,
        Mounted::Journaled if has_holes => QUIET_IN_USE,
        Mounted::No if look.has_moved => QUIET,
        Mounted::No | Mounted::Journaled => Duration::ZERO,
    };
    wanted.saturating_sub(look.quiet())
}

async fn find(files: &FileSystem, path: &str) -> files::Result<(Entry, FileReader)> {
    let entry = files.find(path.as_bytes()).await?;
    let file = files.open_file(&entry).await?;
    Ok((entry, file))
}

#[cfg(test)]
mod tests;
