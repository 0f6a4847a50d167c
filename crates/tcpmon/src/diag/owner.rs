//! Whose a connection is: the process that has its socket open, found by the socket's inode in
//! /proc/PID/fd. Without root only one's own processes can be looked into; what could not is
//! counted.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Descriptors that one search looks at, so that a host with a million of them is not held up.
const DESCRIPTORS_MAX: usize = 200_000;
/// A search for sockets that nobody has shown is not repeated sooner.
const SEARCH_PAUSE: Duration = Duration::from_secs(2);

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// Its id, in the PID namespace of whoever asks.
    pub pid: u32,
    /// Its name, at most 15 bytes (proc(5), comm).
    pub comm: String,
}

/// The processes behind sockets, remembered from look to look.
#[derive(Default)]
pub struct Owners {
    known: HashMap<u32, Owner>,
    searched: Option<Instant>,
    /// Processes of other users that could not be looked into.
    pub hidden_processes: usize,
    /// The search was cut short at a limit.
    pub cut_short: bool,
}

impl Owners {
    /// The process of a socket, if it has been found.
    pub fn of(&self, inode: u32) -> Option<&Owner> {
        self.known.get(&inode)
    }

    /// Searches /proc if one of the sockets is not known yet, at most every two seconds.
    pub fn find(&mut self, inodes: impl Iterator<Item = u32>) {
        let wanted: HashSet<u32> = inodes.filter(|inode| *inode != 0).collect();
        self.known.retain(|inode, _| wanted.contains(inode));
        let due = self.searched.is_none_or(|last| last.elapsed() >= SEARCH_PAUSE);
        if !due || wanted.iter().all(|inode| self.known.contains_key(inode)) {
            return;
        }
        self.searched = Some(Instant::now());
        self.search(&wanted);
    }

    fn search(&mut self, wanted: &HashSet<u32>) {
        (self.hidden_processes, self.cut_short) = (0, false);
        let mut left = DESCRIPTORS_MAX;
        let Ok(processes) = fs::read_dir("/proc") else { return };
        for process in processes.flatten() {
            let name = process.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let sockets = match socket_inodes(pid, &mut left) {
                Ok(sockets) => sockets,
                Err(error) => {
                    let hidden = error.kind() == io::ErrorKind::PermissionDenied;
                    self.hidden_processes += usize::from(hidden);
                    continue;
                }
            };
            for inode in sockets.intersection(wanted) {
                // A socket that was handed to a child belongs to the first that shows it.
                self.known.entry(*inode).or_insert_with(|| Owner { pid, comm: comm(pid) });
            }
            if left == 0 {
                self.cut_short = true;
                return;
            }
        }
    }
}

/// Inodes of the sockets that a process has open.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn sockets_of(pid: u32) -> io::Result<HashSet<u32>> {
    socket_inodes(pid, &mut { DESCRIPTORS_MAX })
}

/// Whether a process is in this one's network namespace; only such a one's connections are seen.
///
/// # Errors
/// There is no such process, or it is another user's.
pub fn same_network_namespace(pid: u32) -> io::Result<bool> {
    let theirs = fs::read_link(format!("/proc/{pid}/ns/net"))?;
    Ok(theirs == fs::read_link("/proc/self/ns/net")?)
}

fn socket_inodes(pid: u32, left: &mut usize) -> io::Result<HashSet<u32>> {
    let mut inodes = HashSet::new();
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        if *left == 0 {
            break;
        }
        *left -= 1;
        inodes.extend(fs::read_link(descriptor.path()).ok().and_then(|link| socket_inode(&link)));
    }
    Ok(inodes)
}

/// The number in `socket:[12345]`.
fn socket_inode(link: &Path) -> Option<u32> {
    link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn comm(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_sockets_are_told_from_others() {
        assert_eq!(socket_inode(Path::new("socket:[123]")), Some(123));
        for other in ["pipe:[123]", "socket:[]", "socket:[12", "/dev/null", "socket:[x]"] {
            assert_eq!(socket_inode(Path::new(other)), None, "{other}");
        }
    }
}
