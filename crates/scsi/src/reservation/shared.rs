//! [`SharedStore`]: where several targets that serve one unit keep its registrations and
//! reservation, so that each knows what initiators have done at another.
//!
//! **When a change holds.** Every target reads the store again and again
//! ([`Target::refresh`](crate::Target::refresh)), and answers commands only as long as what it read
//! last is not older than [`LEASE`]; then it says BUSY. Whoever changes the state answers its
//! initiator a lease after it was stored: by then every other target has read it, or answers
//! nobody. So a reservation that was told to be there holds at all of them, also at one that slept
//! meanwhile, without a list of who they are.
//!
//! Times are measured from before a question to after an answer, by each machine's own clock, of
//! which only the rate has to be right.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::state::Registrations;
use super::store::{StateError, decode_shared, encode_shared};
use super::versioned::{Changed, Known, SharedState, Versioned};

/// How long what was read from a store may be acted upon.
pub const LEASE: Duration = Duration::from_millis(1500);

/// Longest state that is read: every registration there may be, of the longest names.
const STATE_LEN_MAX: u64 = 1 << 20;

/// What is stored, and what it is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Grows with every change; 0 is the version of nothing.
    pub version: u64,
    /// The state.
    pub state: Vec<u8>,
}

/// Keeps a few kilobytes for several targets, and lets them change it one after the other.
pub trait SharedStore: Send + Sync + std::fmt::Debug {
    /// What is stored; `None` when nothing ever was. May block.
    ///
    /// # Errors
    /// It cannot be read, or is not what was stored.
    fn load(&self) -> io::Result<Option<Stored>>;

    /// Replaces what has this version (0: nothing was stored), atomically and on stable storage
    /// when it returns, and tells the new version; `None` if it had another by now. May block.
    ///
    /// # Errors
    /// It is not known whether it was replaced.
    fn replace(&self, version: u64, state: &[u8]) -> io::Result<Option<u64>>;
}

/// A file in a folder that all targets see, on a file system with locks that hold among them (NFS
/// 4, CephFS, GFS2, or one machine's). It is replaced by way of `NAME.new` under a lock on
/// `NAME.lock`.
#[derive(Clone, Debug)]
pub struct SharedFileStore {
    path: PathBuf,
}

impl SharedFileStore {
    /// A store in this file. The folder must exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(ending);
        self.path.with_file_name(name)
    }
}

/// First line of such a file, before the version.
const HEAD: &str = "enkaku shared ";

impl SharedStore for SharedFileStore {
    fn load(&self) -> io::Result<Option<Stored>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(STATE_LEN_MAX).read_to_end(&mut bytes)?;
        let damaged = || {
            let what = format!("{} is damaged", self.path.display());
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| damaged())?;
        let version = head.strip_prefix(HEAD).and_then(|version| version.parse().ok());
        let version = version.filter(|version| *version > 0).ok_or_else(damaged)?;
        Ok(Some(Stored { version, state: bytes.split_off(end + 1) }))
    }

    fn replace(&self, version: u64, state: &[u8]) -> io::Result<Option<u64>> {
        let lock = File::create(self.beside(".lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let found = self.load()?.map_or(0, |stored| stored.version);
        if found != version {
            return Ok(None);
        }
        let new = self.beside(".new");
        let mut file = File::create(&new)?;
        file.write_all(format!("{HEAD}{}\n", version + 1).as_bytes())?;
        file.write_all(state)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        // The rename itself is stable only with its folder.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        drop(lock); // until here nobody else writes
        Ok(Some(version + 1))
    }
}

impl SharedState for Registrations {
    type Error = StateError;

    fn encode(&self) -> Vec<u8> {
        encode_shared(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        decode_shared(bytes)
    }
}

/// A store, and how long what was read from it may be acted upon.
#[derive(Debug)]
pub(crate) struct Shared {
    states: Versioned<Registrations>,
    begin: Instant,
    /// In microseconds since `begin`.
    fresh_until_us: AtomicU64,
}

impl Shared {
    pub(crate) fn new(store: Arc<dyn SharedStore>) -> Self {
        let states = Versioned::new(store);
        Self { states, begin: Instant::now(), fresh_until_us: AtomicU64::new(0) }
    }

    /// What was read last may be acted upon.
    pub(crate) fn is_fresh(&self) -> bool {
        self.us(Instant::now()) < self.fresh_until_us.load(Ordering::Acquire)
    }

    /// Reads the store.
    pub(crate) fn load(&self) -> Result<Known<Registrations>, StateError> {
        let asked = Instant::now();
        let known = self.states.load()?;
        // The lease counts from before the question: what was stored after it may not be in it.
        self.fresh_until_us.fetch_max(self.us(asked + LEASE), Ordering::AcqRel);
        Ok(known)
    }

    /// Changes what is stored. That holds everywhere once [`wait`](Self::wait) has returned.
    pub(crate) fn change<T, E>(
        &self,
        change: impl FnMut(&mut Registrations) -> Result<T, E>,
    ) -> Result<Changed<Registrations, T, E>, StateError> {
        self.states.change(change)
    }

    /// Until the last reader of what was there before has read it anew, or answers nobody.
    pub(crate) fn wait(&self) {
        std::thread::sleep(LEASE);
    }

    fn us(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.begin).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("scsi-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_version_is_replaced_once() {
        let folder = folder("shared");
        let store = SharedFileStore::new(folder.join("lun0"));
        assert_eq!(store.load().unwrap(), None);
        assert_eq!(store.replace(1, b"x").unwrap(), None);
        assert_eq!(store.replace(0, b"one\ntwo").unwrap(), Some(1));
        assert_eq!(store.replace(0, b"late").unwrap(), None);
        let stored = store.load().unwrap().unwrap();
        assert_eq!((stored.version, stored.state), (1, b"one\ntwo".to_vec()));
        assert_eq!(store.replace(1, b"").unwrap(), Some(2));
        assert_eq!(store.load().unwrap().unwrap().version, 2);
        std::fs::write(folder.join("lun0"), b"enkaku shared 0\n").unwrap();
        assert!(store.load().unwrap_err().to_string().contains("damaged"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn changes_of_many_are_one_after_the_other() {
        let folder = folder("race");
        let store = SharedFileStore::new(folder.join("lun0"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        loop {
                            let found = store.load().unwrap();
                            let version = found.as_ref().map_or(0, |stored| stored.version);
                            let count = found.map_or(0, |stored| stored.state.len());
                            if store.replace(version, &vec![b'x'; count + 1]).unwrap().is_some() {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(store.load().unwrap().unwrap().state.len(), 100);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
