//! The process that clears up when the lab is gone, however it went.
//!
//! A signal for the death of the parent reaches direct children only. The guardian is forked
//! before anything runs in the lab and waits for the end of a pipe that the lab holds, which the
//! kernel closes even after SIGKILL. Then it kills every process whose network namespace is one of
//! the lab's, daemons that left their process group included, until none is left.
//!
//! The lab may live in a program with threads, so the code between `fork` and `_exit` uses system
//! calls and its own stack only: no allocation, no locks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::netns::Namespace;
use crate::sys;

/// How often the guardian looks again for processes that were being started or are still dying.
const ROUNDS_MAX: u32 = 500;
const ROUND_PAUSE_NS: libc::c_long = 2_000_000;

type Identity = (libc::dev_t, libc::ino_t);

/// Kills all processes in the namespaces when dropped, or when this process dies.
#[derive(Debug)]
pub(crate) struct Guardian {
    pid: libc::pid_t,
    /// The guardian sees the end of the pipe when this is closed.
    lifeline: Option<OwnedFd>,
}

impl Guardian {
    pub(crate) fn start(namespaces: [&Namespace; 2]) -> io::Result<Self> {
        let identities = [
            sys::identity(namespaces[0].fd().as_fd())?,
            sys::identity(namespaces[1].fd().as_fd())?,
        ];
        let (watch, lifeline) = sys::pipe()?;
        // The namespaces stay open there, so that their inodes cannot be given to others before
        // the guardian has finished.
        let keep = [watch.as_raw_fd(), namespaces[0].raw(), namespaces[1].raw()];
        let lab = std::process::id() as libc::pid_t;
        // SAFETY: the child calls `guard` only, which keeps to system calls and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => guard(keep, identities, lab),
            pid => Ok(Self { pid, lifeline: Some(lifeline) }),
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.lifeline = None;
        let mut status = 0;
        // SAFETY: `status` is a valid place for the result; the child is ours and not yet reaped.
        while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// The life of the guardian.
fn guard(keep: [RawFd; 3], namespaces: [Identity; 2], lab: libc::pid_t) -> ! {
    // SAFETY: system calls on memory of this function; none of them allocates or takes a lock.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"wanlab-guardian".as_ptr());
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        close_others(keep);
        let mut byte = 0_u8;
        // Nothing is ever written: this returns 0 at the end, or an error worth no further wait.
        libc::read(keep[0], (&raw mut byte).cast(), 1);
        for _ in 0..ROUNDS_MAX {
            if kill_members(namespaces, lab) == 0 {
                break;
            }
            let pause = libc::timespec { tv_sec: 0, tv_nsec: ROUND_PAUSE_NS };
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
        libc::_exit(0)
    }
}

/// Closes everything but `keep`, standard streams included: a reader of the lab's output must see
/// its end, and other labs' pipes must not be held open here.
fn close_others(keep: [RawFd; 3]) {
    let mut keep = keep.map(|fd| fd as libc::c_uint);
    keep.sort_unstable();
    let mut from = 0;
    for fd in keep {
        if fd > from {
            // SAFETY: nothing in this process uses the descriptors that are closed.
            unsafe { libc::close_range(from, fd - 1, 0) };
        }
        from = fd + 1;
    }
    // SAFETY: as above.
    unsafe { libc::close_range(from, libc::c_uint::MAX, 0) };
}

/// Kills whoever is in one of the namespaces; how many there were.
fn kill_members(namespaces: [Identity; 2], lab: libc::pid_t) -> usize {
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
    // SAFETY: all-zero bytes are a valid `stat`; the path ends with a zero byte.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let done = libc::fstatat(proc, path.as_ptr().cast(), &raw mut stat, 0);
        (done == 0).then_some((stat.st_dev, stat.st_ino))
    }
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
