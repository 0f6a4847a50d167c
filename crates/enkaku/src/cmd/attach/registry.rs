//! What is attached at this host: a file for each process that attaches, locked as long as it
//! lives. `attach --list` and `detach` read it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use iscsi::initiator::{lock_directories, lock_directory};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// Begins the name of such a file; the process's number is the rest.
const PREFIX: &str = "attached-";

/// Longest file that is read: far above what a URL and some paths take.
const LEN_MAX: u64 = 64 << 10;

/// A volume that is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The process that does it; none for a device whose process is gone.
    pub(crate) pid: Option<u32>,
    /// Its URL, without user and password.
    pub(crate) volume: String,
    /// What it is attached as: a file, a socket, an address, a device and its link.
    pub(crate) places: Vec<String>,
    /// Since when, in seconds since 1970.
    pub(crate) since_s: u64,
    /// Why it did not end well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<String>,
}

impl Entry {
    /// It is what somebody means by these words: the volume, or one of its places.
    pub(crate) fn is(&self, what: &str) -> bool {
        let found = |path: &str| fs::canonicalize(path).ok();
        // The folder of a FUSE mount means the file in it.
        let folder = Some(what.trim_end_matches('/')).filter(|folder| !folder.is_empty());
        let same = |place: &String| {
            place == what
                || folder.is_some_and(|folder| Path::new(place).parent() == Some(Path::new(folder)))
                || found(place).is_some_and(|place| found(what) == Some(place))
        };
        self.volume == what || self.places.iter().any(same)
    }
}

/// The file of this process.
#[derive(Debug, Default)]
pub(super) struct Registered(Option<(PathBuf, File, Entry)>);

impl Registered {
    /// Tells others of it. That it cannot be told is no reason not to attach.
    pub(super) fn tell(&mut self, volume: &str, places: &[&str]) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            pid: Some(std::process::id()),
            volume: volume.to_owned(),
            places: places.iter().map(|place| absolute(place)).collect(),
            since_s: since.as_secs(),
            failed: None,
        };
        let Some(folder) = lock_directory() else {
            warn!(
                "no folder in /run or XDG_RUNTIME_DIR: `attach --list` will not show this volume"
            );
            return;
        };
        match create(&folder, &entry) {
            Ok((path, file)) => self.0 = Some((path, file, entry)),
            Err(error) => warn!(%error, "`attach --list` will not show this volume"),
        }
    }

    /// It is attached no more; who waits for that learns what went wrong.
    pub(super) fn end(self, failed: Option<String>) {
        let Some((path, file, mut entry)) = self.0 else { return };
        let left = match failed {
            None => fs::remove_file(&path),
            Some(failed) => {
                entry.failed = Some(failed);
                file.set_len(0).and_then(|()| write(&file, &entry))
            }
        };
        if let Err(error) = left {
            warn!(%error, file = %path.display(), "what is attached is not told right");
        }
    }
}

/// Paths of files hold from every folder; addresses are what they are.
fn absolute(place: &str) -> String {
    let path = Path::new(place);
    match path.exists().then(|| std::path::absolute(path)) {
        Some(Ok(path)) => path.display().to_string(),
        _ => place.to_owned(),
    }
}

/// The file is there once it is locked and whole.
fn create(folder: &Path, entry: &Entry) -> io::Result<(PathBuf, File)> {
    let name = format!("{PREFIX}{}", std::process::id());
    let new = folder.join(format!(".{name}"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc_nofollow());
    let file = options.open(&new)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    write(&file, entry)?;
    let path = folder.join(name);
    fs::rename(&new, &path)?;
    Ok((path, file))
}

fn libc_nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

fn write(mut file: &File, entry: &Entry) -> io::Result<()> {
    io::Seek::rewind(&mut file)?;
    file.write_all(serde_json::to_string(entry)?.as_bytes())
}

/// A file that another process has, or had.
pub(crate) struct Found {
    path: PathBuf,
    pub(crate) entry: Entry,
}

impl Found {
    /// Whether its process is gone; why it did not end well, if it said so. What is left of it is
    /// removed then.
    pub(crate) fn ended(&self) -> Option<Option<String>> {
        match read(&self.path) {
            Ok((_, true)) => None,
            Ok((entry, false)) => {
                let _gone_already = fs::remove_file(&self.path);
                let died = || "its process died before it was detached".to_owned();
                Some(Some(entry.failed.unwrap_or_else(died)))
            }
            // Not there, so it ended well; whatever else it is, it is no lock.
            Err(_) => Some(None),
        }
    }
}

/// What processes of this user have attached; what dead ones have left is removed.
pub(crate) fn found() -> Vec<Found> {
    let mut found: Vec<Found> = folders().iter().flat_map(|folder| within(folder)).collect();
    found.sort_by_key(|one| (one.entry.since_s, one.entry.pid));
    found
}

/// Where such files may be: a service that attaches has a folder of its own.
fn folders() -> Vec<PathBuf> {
    let services = PathBuf::from("/run/enkaku-root/enkaku");
    let mut folders: Vec<PathBuf> = lock_directories().chain([services]).collect();
    folders.sort();
    folders.dedup();
    folders
}

fn within(folder: &Path) -> Vec<Found> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let paths = names.filter(|name| name.starts_with(PREFIX)).map(|name| folder.join(name));
    let living = paths.filter_map(|path| match read(&path) {
        Ok((entry, true)) => Some(Found { path, entry }),
        Ok((_, false)) => {
            let _gone_already = fs::remove_file(&path);
            None
        }
        Err(_) => None,
    });
    living.collect()
}

/// What a file says, and whether its process lives.
fn read(path: &Path) -> io::Result<(Entry, bool)> {
    let file = OpenOptions::new().read(true).custom_flags(libc_nofollow()).open(path)?;
    let lives = match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => false,
        Err(rustix::io::Errno::WOULDBLOCK) => true,
        Err(error) => return Err(error.into()),
    };
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text)?;
    Ok((serde_json::from_str(&text)?, lives))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(places: &[&str]) -> Entry {
        Entry {
            pid: Some(std::process::id()),
            volume: "iscsi://h/iqn.2026-11.org.example:a/0".to_owned(),
            places: places.iter().map(ToString::to_string).collect(),
            since_s: 1,
            failed: None,
        }
    }

    #[test]
    fn a_volume_is_known_by_its_url_and_by_its_places() {
        let folder = std::env::temp_dir().join(format!("enkaku-entry-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (node, link) = (folder.join("nbd0"), folder.join("link"));
        fs::write(&node, "").unwrap();
        std::os::unix::fs::symlink(&node, &link).unwrap();
        let one = entry(&[node.to_str().unwrap(), "127.0.0.1:3260"]);
        for what in [one.volume.as_str(), node.to_str().unwrap(), link.to_str().unwrap()] {
            assert!(one.is(what), "{what}");
        }
        assert!(one.is(&format!("{}/", folder.display())));
        assert!(one.is("127.0.0.1:3260"));
        assert!(!one.is("127.0.0.1:3261") && !one.is("/") && !one.is(""));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_a_process_leaves_is_told_once() {
        let folder = std::env::temp_dir().join(format!("enkaku-found-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, file) = create(&folder, &entry(&["/a"])).unwrap();
        let found = within(&folder);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].entry, entry(&["/a"]));
        assert_eq!(found[0].ended(), None);
        Registered(Some((path.clone(), file, entry(&["/a"])))).end(Some("no space".to_owned()));
        assert_eq!(found[0].ended(), Some(Some("no space".to_owned())));
        assert_eq!(found[0].ended(), Some(None), "it was told already");
        let (_, file) = create(&folder, &entry(&["/a"])).unwrap();
        drop(file); // killed
        assert!(within(&folder).is_empty() && !path.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
