//! `target check`: would a daemon start with this configuration? Everything is tried that starting
//! does, by the code that does it, and nothing is left behind, taken or changed.
//!
//! What only the moment of the start can tell is a warning: storage and ports that somebody has
//! now, as a daemon has that is running. Where there is neither error nor warning, `run` starts.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use block::backend::{check_fits_machine, check_folder};
use block::{BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use crate::config::reader::sort;
use crate::config::{Backing, Config, ConfigError, Problem, ServerSection};
use crate::daemon::DaemonError;
use crate::lun::Opening;
use crate::state::State;

/// What is said of a file or a port that somebody has.
pub(crate) const IN_USE: &str =
    "in use now; unless that is the daemon which this file is for, it would not start";

/// Longest path of a socket in bytes (`sun_path` of unix(7), with a zero at its end).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// Checks a configuration, and everything that starting with it would need.
///
/// # Errors
/// [`ConfigError`] with everything that is wrong, in the order of the lines.
pub fn check(path: &Path) -> Result<Config, ConfigError> {
    let (config, mut problems) = Config::examine(path);
    let Some(mut config) = config else { return Err(ConfigError(problems)) };
    match State::default().prepare(&config, Opening::Trial) {
        Ok(plan) => config.warnings.extend(plan.warnings),
        // What is wrong with a key shows again where its value is used.
        Err(more) => merge(&mut problems, more),
    }
    match metrics(&config.server) {
        Ok(warning) => config.warnings.extend(warning),
        Err(problem) => problems.push(problem),
    }
    sort(&mut problems, path);
    if problems.is_empty() { Ok(config) } else { Err(ConfigError(problems)) }
}

/// What kept a daemon from starting, and whatever else is wrong.
pub(crate) fn everything(path: &Path, mut problems: Vec<Problem>) -> ConfigError {
    if let Err(ConfigError(more)) = check(path) {
        merge(&mut problems, more);
    }
    sort(&mut problems, path);
    ConfigError(problems)
}

fn merge(problems: &mut Vec<Problem>, more: Vec<Problem>) {
    for problem in more {
        let place = |one: &Problem| (one.file.clone(), one.line, one.key.clone());
        let known = |other: &Problem| place(other) == place(&problem);
        if !problems.iter().any(known) {
            problems.push(problem);
        }
    }
}

/// The folders that hold the admin socket and the state: there, or to be made by the daemon.
pub(crate) fn folders(server: &ServerSection) -> Vec<Problem> {
    let mut problems = Vec::new();
    let socket = &server.admin_socket;
    let len = socket.as_os_str().len();
    if len > SOCKET_PATH_LEN_MAX {
        let what = format!(
            "{} has {len} bytes; the path of a socket may have {SOCKET_PATH_LEN_MAX}",
            socket.display()
        );
        problems.push(server.places.admin_socket.problem(what));
    } else if let Err(what) = usable(folder_of(socket)) {
        problems.push(server.places.admin_socket.problem(what));
    }
    if let Some(folder) = &server.state_directory
        && let Err(what) = usable(folder)
    {
        problems.push(server.places.state_directory.problem(what));
    }
    problems
}

/// A folder in which files can be made, or which can be made itself.
fn usable(folder: &Path) -> Result<(), String> {
    let shown = folder.display();
    match check_folder(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_folder(folder_of(folder))
            .map_err(|_| format!("there is no folder {shown}, and none that it could be made in")),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("no right to make files in {shown}; it has to belong to this user"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(format!("{shown} is not a folder"))
        }
        Err(error) => Err(format!("no files can be made in {shown}: {error}")),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the folders that are not there.
pub(crate) fn make_folders(server: &ServerSection) -> Result<(), DaemonError> {
    let folders = [Some(folder_of(&server.admin_socket)), server.state_directory.as_deref()];
    for folder in folders.into_iter().flatten().filter(|folder| !folder.exists()) {
        std::fs::create_dir(folder).map_err(|source| DaemonError::Io {
            what: format!("making {}", folder.display()),
            source,
        })?;
    }
    Ok(())
}

/// A warning if its port is in use.
fn metrics(server: &ServerSection) -> Result<Option<String>, Problem> {
    let Some(address) = server.metrics else { return Ok(None) };
    let place = &server.places.metrics;
    match TcpListener::bind(address) {
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Ok(Some(place.problem(IN_USE).to_string()))
        }
        Err(error) => Err(place.problem(format!("cannot listen on {address}: {error}"))),
    }
}

/// Memory disks that together are more than there is, unless that is meant.
pub(crate) fn memory(config: &Config) -> Option<Problem> {
    let luns = config.targets.values().flat_map(|target| target.luns.values());
    let mut total: u64 = 0;
    luns.filter(|lun| !lun.overcommit).find_map(|lun| {
        let Backing::Memory(bytes) = lun.backing else { return None };
        total = total.saturating_add(bytes);
        let error = check_fits_machine(total).err()?;
        Some(lun.place.problem(format!("{error} (a smaller size, or overcommit = true)")))
    })
}

/// One file behind two LUNs under two names, by links or by `..`. The same name twice is seen where
/// the file is read.
pub(crate) fn same_files(config: &Config) -> Vec<Problem> {
    let mut seen: BTreeMap<_, (&PathBuf, String)> = BTreeMap::new();
    let mut problems = Vec::new();
    for target in config.targets.values() {
        for (number, lun) in &target.luns {
            let Backing::Path(path) = &lun.backing else { continue };
            let Some(identity) = identity(path) else { continue };
            if let Some((other, who)) = seen.get(&identity).filter(|(other, _)| *other != path) {
                let what =
                    format!("is the file {}, which is behind {who} already", other.display());
                problems.push(lun.place.problem(what));
            }
            let who = format!("LUN {number} of {}", target.name);
            seen.entry(identity).or_insert((path, who));
        }
    }
    problems
}

/// What tells files apart: a device node from what it stands for, a file from its file system and
/// number; and one that is yet to be made from its folder and name.
fn identity(path: &Path) -> Option<(u64, u64, PathBuf)> {
    match std::fs::metadata(path) {
        Ok(there) if there.rdev() != 0 => Some((there.rdev(), 0, PathBuf::new())),
        Ok(there) => Some((there.dev(), there.ino(), PathBuf::new())),
        Err(_) => {
            let folder = std::fs::metadata(folder_of(path)).ok()?;
            Some((folder.dev(), folder.ino(), PathBuf::from(path.file_name()?)))
        }
    }
}

/// A device of which only the description is known.
pub(crate) struct Described(pub(crate) DeviceInfo);

fn not_open<T>() -> Io<T> {
    Io::err(BlockError::Unsupported("I/O in a trial"))
}

impl BlockDevice for Described {
    fn info(&self) -> DeviceInfo {
        self.0.clone()
    }

    fn read(&self, _offset: u64, _buf: Buf) -> Io<Buf> {
        not_open()
    }

    fn write(&self, _offset: u64, _data: Bytes, _flags: WriteFlags) -> Io<()> {
        not_open()
    }

    fn flush(&self) -> Io<()> {
        not_open()
    }

    fn trim(&self, _offset: u64, _len: u64) -> Io<()> {
        not_open()
    }

    fn zero(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> Io<()> {
        not_open()
    }

    fn extents(&self, _offset: u64, _len: u64) -> Io<Vec<Extent>> {
        not_open()
    }
}

#[cfg(test)]
mod tests;
