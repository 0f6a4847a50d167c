//! The few Linux calls that the standard library does not wrap, each as a safe function.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// `-1` is the error of the last call.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a path without following anything else of `std::fs::OpenOptions`.
pub(crate) fn open(path: &CStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: `path` ends with a zero byte.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })?;
    // SAFETY: the call has just returned this descriptor, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A pipe: what is written to the second comes out of the first.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds: [RawFd; 2] = [-1; 2];
    // SAFETY: `fds` has room for the two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the call has just returned these descriptors, nobody else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// Moves the calling thread into a namespace of its own (`CLONE_NEW…`).
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into an existing network namespace. Safe to call after `fork`.
pub(crate) fn enter_network_namespace(namespace: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers; a descriptor of the wrong kind is an error.
    check(unsafe { libc::setns(namespace, libc::CLONE_NEWNET) }).map(drop)
}

/// Moves the calling process, which must have a single thread, into a user namespace.
pub(crate) fn enter_user_namespace(namespace: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers; a descriptor of the wrong kind is an error.
    check(unsafe { libc::setns(namespace, libc::CLONE_NEWUSER) }).map(drop)
}

/// For a process that was just forked to go on in the background: a session of its own, nothing
/// to read or write but errors into `log`, and no descriptor of the parent's but `keep`.
pub(crate) fn leave_terminal(log: Option<OwnedFd>, keep: RawFd) -> io::Result<()> {
    let nothing = open(c"/dev/null", libc::O_RDWR)?;
    let errors = log.as_ref().unwrap_or(&nothing).as_raw_fd();
    // SAFETY: takes no pointers.
    unsafe {
        check(libc::setsid())?;
        check(libc::dup2(nothing.as_raw_fd(), 0))?;
        check(libc::dup2(nothing.as_raw_fd(), 1))?;
        check(libc::dup2(errors, 2))?;
    }
    drop((nothing, log));
    let keep = keep as libc::c_uint;
    // SAFETY: the standard streams and `keep` stay; nothing else is open in this program yet.
    unsafe {
        if keep > 3 {
            check(libc::close_range(3, keep - 1, 0))?;
        }
        check(libc::close_range(keep + 1, libc::c_uint::MAX, 0)).map(drop)
    }
}

/// Waits for the end of a child.
pub(crate) fn reap(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
}

/// The signal that the calling process gets when the thread that started it ends.
pub(crate) fn set_parent_death_signal(signal: libc::c_int) -> io::Result<()> {
    // SAFETY: this option takes a number.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) }).map(drop)
}

/// How late the kernel may wake the calling thread to save wake-ups.
pub(crate) fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let slack_ns = slack.as_nanos() as libc::c_ulong;
    // SAFETY: this option takes a number.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) }).map(drop)
}

/// Lets the calling thread run before all ordinary ones.
pub(crate) fn set_realtime_priority(priority: libc::c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: process 0 is the calling thread; `parameters` lives until the call returns.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) }).map(drop)
}

/// Processor time that the calling thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; this clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reads without blocking where the descriptor says so; `None` where there is nothing to read.
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        // SAFETY: the kernel writes at most `buffer.len()` bytes into `buffer`.
        let n = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        if n >= 0 {
            return Ok(Some(n as usize));
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

/// Writes one packet.
pub(crate) fn write(fd: BorrowedFd<'_>, packet: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads `packet.len()` bytes of `packet`.
    let n = unsafe { libc::write(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Waits until one of `fds` can be read or has ended, or the time is over (`None`: for ever).
/// A signal ends the wait early without an error.
pub(crate) fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |timeout| &raw const *timeout);
    // SAFETY: `fds` and `timeout` live until the call returns.
    let ready = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout, std::ptr::null())
    };
    match check(ready) {
        Ok(ready) => Ok(ready as usize),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) => Err(e),
    }
}

/// Interest in reading `fd`.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// A descriptor that can be read when the process has ended.
pub(crate) fn pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers. The C library of Debian 12 has no wrapper in `libc`.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = check(fd as libc::c_int)?;
    // SAFETY: the call has just returned this descriptor, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal; a negative `pid` means a process group.
pub(crate) fn kill(pid: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Device and inode, which tell a namespace apart while anybody holds it open.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> io::Result<(libc::dev_t, libc::ino_t)> {
    // SAFETY: all-zero bytes are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is a valid place for the result.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) })?;
    Ok((stat.st_dev, stat.st_ino))
}
