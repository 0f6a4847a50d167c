//! The initiator's part of its sessions' names (ISID, RFC 7143 §11.12.5).
//!
//! A session that is set up under the name of an earlier one reinstates it: the target ends the
//! earlier one's commands before it answers the login (§6.3.5), and to SCSI it is the same I_T
//! nexus, so reservations go on. With a random ISID that holds for one process. With a stable one
//! it holds from one process to its successor, so what a process that was killed has left at the
//! target cannot land on what its successor writes.
//!
//! Two processes under one name would reinstate each other for ever. So a stable ISID belongs to
//! the process that holds the lock of a file; whoever comes second takes a random one and says so.
//! The file also tells how many sessions of one connection each the last holder had, so that all
//! of them are reinstated.
//!
//! A leg of a mirror has a stable ISID or no connection at all ([`ChosenIsid::of_leg`]): each of
//! its disks reinstates what the one before had.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::Config;
use super::url::Url;

/// How the ISID is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IsidChoice {
    /// Anew for each disk: for tools that may run several times at once.
    #[default]
    Random,
    /// Made of this host's identity and the volume.
    Stable,
    /// Made of this name and the volume: for what moves between hosts.
    Named(String),
}

/// Most sessions of a predecessor that are reinstated. More is no file of ours.
const SESSIONS_MAX: usize = 256;

/// The ISID of a disk, as long as the disk lives, or of a mirror's leg, over all its disks.
#[derive(Debug)]
pub(super) struct ChosenIsid {
    /// The 24 bits that all its sessions have in common; the rest counts them.
    pub(super) bits: u32,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Locked.
    file: Option<File>,
    /// Qualifiers of sessions that may be at the target.
    sessions: BTreeSet<u16>,
}

impl ChosenIsid {
    /// Chooses; a stable one is locked.
    pub(super) fn choose(url: &Url, config: &Config) -> Result<Self, getrandom::Error> {
        let host = match &config.isid {
            IsidChoice::Random => None,
            IsidChoice::Stable => host_identity(),
            IsidChoice::Named(name) => Some(name.clone()),
        };
        let directory = host.is_some().then(lock_directory).flatten();
        if let (Some(host), Some(directory)) = (host, directory) {
            match Self::stable(&host, &volume(url, config), &directory) {
                Ok(chosen) => return Ok(chosen),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => tracing::warn!(
                    "{url} is in use by another process of this host: \
                     this one is another initiator port, without its reservations"
                ),
                Err(error) => tracing::debug!(%error, "no stable ISID"),
            }
        }
        let mut bits = [0; 4];
        getrandom::fill(&mut bits)?;
        Ok(Self { bits: u32::from_be_bytes(bits), held: Mutex::default() })
    }

    /// One that nobody beside us has, and a predecessor had: where that cannot be, there is none.
    /// Without a place for locks it has nobody to share it with, for all that is known.
    ///
    /// # Errors
    /// `WouldBlock`: another process has it, or an earlier disk of this one.
    pub(super) fn of_leg(url: &Url, config: &Config) -> std::io::Result<Self> {
        let host = match &config.isid {
            IsidChoice::Named(name) => Some(name.clone()),
            IsidChoice::Random | IsidChoice::Stable => host_identity(),
        };
        let Some(host) = host else {
            let text = "this host has neither a machine ID nor a name to make a stable ISID of";
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, text));
        };
        let volume = volume(url, config);
        match lock_directory() {
            Some(directory) => Self::stable(&host, &volume, &directory),
            None => Ok(Self { bits: stable_bits(&host, &volume), held: Mutex::default() }),
        }
    }

    fn stable(host: &str, volume: &str, directory: &Path) -> std::io::Result<Self> {
        let bits = stable_bits(host, volume);
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let name = format!("isid-{:016x}", digest_long(volume) ^ u64::from(bits));
        let mut file = options.open(directory.join(name))?;
        lock(&file)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let words = text.split_whitespace().filter_map(|word| word.parse().ok());
        let sessions: BTreeSet<u16> = words.take(SESSIONS_MAX).collect();
        Ok(Self { bits, held: Mutex::new(Held { file: Some(file), sessions }) })
    }

    /// Qualifiers of sessions that a predecessor, or an earlier disk, may have left: they were
    /// noted before they were set up. None: nobody has noted anything since the host was started.
    pub(super) fn left(&self) -> BTreeSet<u16> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).sessions.clone()
    }

    /// Notes for a successor which sessions may be at the target.
    pub(super) fn note_sessions(&self, qualifiers: &BTreeSet<u16>) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.sessions.clone_from(qualifiers);
        let Some(mut file) = held.file.as_ref() else { return };
        let words: Vec<String> = qualifiers.iter().map(u16::to_string).collect();
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(words.join(" ").as_bytes()));
        if let Err(error) = written {
            tracing::debug!(%error, "a successor will not know the sessions of this process");
        }
    }
}

impl ChosenIsid {
    /// Leaves the name to others, when nothing is sent under it any more.
    pub(super) fn release(&self) {
        drop(self.held.lock().unwrap_or_else(PoisonError::into_inner).file.take());
    }
}

/// What the name is for, beside the host.
fn volume(url: &Url, config: &Config) -> String {
    format!("{} {} {}", config.initiator_name, url.target, url.lun)
}

fn stable_bits(host: &str, volume: &str) -> u32 {
    digest(&format!("{host}\n{volume}")) & 0xff_ffff
}

/// Takes the lock that ends with the file's last descriptor, so with this process.
fn lock(file: &File) -> std::io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed; flock takes no pointers.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What tells this host from others: its machine ID (machine-id(5)), else its name.
fn host_identity() -> Option<String> {
    ["/etc/machine-id", "/proc/sys/kernel/hostname"].into_iter().find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_string())
    })
}

/// Where locks are kept: a place that a restart of the host empties, and nobody else writes to.
pub fn lock_directory() -> Option<PathBuf> {
    lock_directories().find(|directory| {
        let made = std::fs::DirBuilder::new().mode(0o700).recursive(true).create(directory);
        // It may be another user's.
        made.is_ok() && access_is_ours(directory)
    })
}

/// Where they may be kept, the best first: below /run, or below the user's own XDG_RUNTIME_DIR.
pub fn lock_directories() -> impl Iterator<Item = PathBuf> {
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    [Some(PathBuf::from("/run")), user].into_iter().flatten().map(|base| base.join("enkaku"))
}

fn access_is_ours(directory: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = std::fs::symlink_metadata(directory) else { return false };
    let own = std::fs::metadata("/proc/self").map(|own| own.uid());
    found.is_dir() && found.mode() & 0o022 == 0 && own.is_ok_and(|uid| uid == found.uid())
}

/// FNV-1a: spreads well, which is all that is asked of it.
pub(super) fn digest_long(text: &str) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

fn digest(text: &str) -> u32 {
    let long = digest_long(text);
    (long ^ (long >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_the_same_name_and_one_beside_it_has_not() {
        let directory = tempfile::tempdir().unwrap();
        let stable = |volume: &str| ChosenIsid::stable("host", volume, directory.path());
        let first = stable("a").unwrap();
        assert!(first.left().is_empty());
        first.note_sessions(&(0..12).collect());
        first.note_sessions(&[0, 7].into());
        let beside = stable("a").unwrap_err();
        assert_eq!(beside.kind(), std::io::ErrorKind::WouldBlock);
        assert_ne!(stable("b").unwrap().bits, first.bits);
        let bits = first.bits;
        drop(first);
        let successor = stable("a").unwrap();
        assert_eq!((successor.bits, successor.left()), (bits, [0, 7].into()));
        let elsewhere = ChosenIsid::stable("other", "a", tempfile::tempdir().unwrap().path());
        assert_ne!(elsewhere.unwrap().bits, bits);
    }
}
