//! The process that clears up when the lab is gone, however it went.
//!
//! A signal for the death of the parent reaches direct children only. The guardian is forked
//! before anything runs in the lab and waits for the end of a pipe that the lab holds, which the
//! kernel closes even after SIGKILL. Then it kills every process whose network namespace is one of
//! the lab's, daemons that left their process group included, until none is left. A lab that others
//! control through a socket gives its file to the guardian as well.
//!
//! The lab may live in a program with threads, so the code between `fork` and `_exit` uses system
//! calls and its own stack only: no allocation, no locks.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::netns::Namespace;
use crate::sys;

/// How often the guardian looks again for processes that were being started or are still dying.
const ROUNDS_MAX: u32 = 500;
const ROUND_PAUSE_NS: libc::c_long = 2_000_000;

pub(crate) type Identity = (libc::dev_t, libc::ino_t);

/// A file to remove when the lab is gone, unless another one has taken its place.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) path: CString,
    pub(crate) identity: Identity,
}

/// What the guardian needs to know, made before it is forked.
struct Duty {
    /// The end of the lifeline.
    watch: RawFd,
    /// This and the namespaces, ascending. They stay open so that their inodes cannot be given to
    /// others before the guardian has finished.
    keep: Vec<libc::c_uint>,
    namespaces: Vec<Identity>,
    lab: libc::pid_t,
    leftover: Option<Leftover>,
}

/// Kills all processes in the namespaces when dropped, or when this process dies.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: libc::pid_t,
    /// The guardian sees the end of the pipe when this is closed.
    lifeline: Option<OwnedFd>,
}

impl Guardian {
    pub(crate) fn start(namespaces: &[Namespace], leftover: Option<Leftover>) -> io::Result<Self> {
        let identities = namespaces.iter().map(|namespace| sys::identity(namespace.fd().as_fd()));
        let identities = identities.collect::<io::Result<Vec<_>>>()?;
        let (watch, lifeline) = sys::pipe()?;
        let mut keep: Vec<libc::c_uint> =
            namespaces.iter().map(|namespace| namespace.raw() as libc::c_uint).collect();
        keep.push(watch.as_raw_fd() as libc::c_uint);
        keep.sort_unstable();
        let duty = Duty {
            watch: watch.as_raw_fd(),
            keep,
            namespaces: identities,
            lab: std::process::id() as libc::pid_t,
            leftover,
        };
        // SAFETY: the child calls `guard` only, which keeps to system calls and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => guard(&duty),
            pid => Ok(Self { pid, lifeline: Some(lifeline) }),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.lifeline = None;
        sys::reap(self.pid);
    }
}

/// The life of the guardian.
fn guard(duty: &Duty) -> ! {
    // SAFETY: system calls on memory of this function and its caller; none of them allocates or
    // takes a lock.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"wanlab-guardian".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        close_others(&duty.keep);
        let mut byte = 0_u8;
        // Nothing is ever written: this returns 0 at the end, or an error worth no further wait.
        libc::read(duty.watch, (&raw mut byte).cast(), 1);
        if let Some(leftover) = &duty.leftover
            && identity_at(libc::AT_FDCWD, leftover.path.as_ptr()) == Some(leftover.identity)
        {
            libc::unlink(leftover.path.as_ptr());
        }
        for _ in 0..ROUNDS_MAX {
            if kill_members(&duty.namespaces, duty.lab) == 0 {
                break;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: ROUND_PAUSE_NS };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

/// Closes everything but `keep` (ascending), standard streams included: a reader of the lab's
/// output must see its end, and other labs' pipes must not be held open here.
fn close_others(keep: &[libc::c_uint]) {
    let mut from = 0;
    for &fd in keep {
        if fd > from {
            // SAFETY: nothing in this process uses the descriptors that are closed.
            unsafe { libc::close_range(from, fd - 1, 0) };
        }
        from = fd + 1;
    }
    // SAFETY: as above.
    unsafe { libc::close_range(from, libc::c_uint::MAX, 0) };
}

/// Device and inode of a file.
///
/// # Safety
/// `path` must end with a zero byte.
unsafe fn identity_at(directory: RawFd, path: *const libc::c_char) -> Option<Identity> {
    // SAFETY: all-zero bytes are a valid `stat`, which lives until the call returns.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let done = libc::fstatat(directory, path, &raw mut stat, 0);
        (done == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

/// Kills whoever is in one of the namespaces; how many there were.
fn kill_members(namespaces: &[Identity], lab: libc::pid_t) -> usize {
    let mut found = 0;
    // SAFETY: the directory's entries are read into `entries` and looked at within what the kernel
    // says it has written; all paths end with a zero byte.
    unsafe {
        let proc = libc::open(c"/proc".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        if proc < 0 {
            return 0;
        }
        let mut entries = [0_u8; 16_384];
        loop {
            let n = libc::syscall(libc::SYS_getdents64, proc, entries.as_mut_ptr(), entries.len());
            if n <= 0 {
                break;
            }
            let mut rest = &entries[..n as usize];
            while let Some((pid, len)) = entry(rest) {
                rest = &rest[len..];
                if let Some(pid) = pid
                    && pid != lab
                    && namespace_of(proc, pid).is_some_and(|of| namespaces.contains(&of))
                {
                    libc::kill(pid, libc::SIGKILL);
                    found += 1;
                }
            }
        }
        libc::close(proc);
    }
    found
}

/// The first entry of `linux_dirent64` records: its name if that is a process, and its length.
/// Layout: inode 8, offset 8, record length 2, type 1, name with a zero byte.
fn entry(records: &[u8]) -> Option<(Option<libc::pid_t>, usize)> {
    let length = records.get(16..18)?;
    let length = usize::from(u16::from_ne_bytes([length[0], length[1]]));
    let name = records.get(19..length)?;
    let mut pid: Option<libc::pid_t> = None;
    for &byte in name.iter().take_while(|&&byte| byte != 0) {
        if !byte.is_ascii_digit() {
            return Some((None, length));
        }
        let digit = libc::pid_t::from(byte - b'0');
        // No process identifier comes near the limit of its type.
        pid = Some(pid.unwrap_or(0).wrapping_mul(10).wrapping_add(digit));
    }
    Some((pid, length))
}

/// The network namespace of a process: what `/proc/PID/ns/net` points to.
fn namespace_of(proc: RawFd, pid: libc::pid_t) -> Option<Identity> {
    const SUFFIX: &[u8] = b"/ns/net\0";
    let mut path = [0_u8; 24];
    let mut digits = [0_u8; 11];
    let mut at = digits.len();
    let mut left = pid;
    while left > 0 && at > 0 {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    let len = digits.len() - at;
    path.get_mut(..len)?.copy_from_slice(&digits[at..]);
    path.get_mut(len..len + SUFFIX.len())?.copy_from_slice(SUFFIX);
    // SAFETY: the path ends with a zero byte.
    unsafe { identity_at(proc, path.as_ptr().cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_records() {
        let record = |name: &[u8]| {
            let mut record = vec![0; 19];
            record.extend(name);
            record.resize((record.len() + 8) / 8 * 8, 0);
            let length = record.len() as u16;
            record[16..18].copy_from_slice(&length.to_ne_bytes());
            record
        };
        assert_eq!(entry(&record(b"4321")), Some((Some(4321), 24)));
        assert_eq!(entry(&record(b"sys")), Some((None, 24)));
        assert_eq!(entry(&record(b"12x")), Some((None, 24)));
        assert_eq!(entry(b""), None);
    }

    #[test]
    fn the_namespace_of_this_process() {
        let proc = sys::open(c"/proc", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let own = sys::open(c"/proc/self/ns/net", libc::O_RDONLY).unwrap();
        let of = namespace_of(proc.as_raw_fd(), std::process::id() as libc::pid_t);
        assert_eq!(of, Some(sys::identity(own.as_fd()).unwrap()));
    }
}
