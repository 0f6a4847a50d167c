//! A network namespace as a value, and the right to make one.
//!
//! The namespace has no name in the file system: it lives as long as this value or a process in
//! it, so a killed lab leaves nothing behind.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::thread;

use crate::lab::LabError;
use crate::sys;

/// A network namespace of its own, with the loopback device up.
#[derive(Debug)]
pub(crate) struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Makes an empty one.
    pub(crate) fn new() -> Result<Self, LabError> {
        // A thread of its own: `unshare` moves the thread that calls it, and the caller stays.
        let fd = on_thread(|| {
            sys::unshare(libc::CLONE_NEWNET)?;
            sys::open(c"/proc/thread-self/ns/net", libc::O_RDONLY)
        })
        .map_err(|source| LabError::Namespace { source })?;
        Ok(Self { fd })
    }

    /// For `setns` in a child.
    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Runs `work` on a thread inside the namespace.
    pub(crate) fn run<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, LabError> + Send,
    ) -> Result<T, LabError> {
        on_thread(|| {
            sys::enter_network_namespace(self.raw())
                .map_err(|source| LabError::Namespace { source })?;
            work()
        })
    }
}

fn on_thread<T: Send, E: Send + From<io::Error>>(
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name("wanlab-setup".into()).spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Makes sure that this process may create network namespaces. Root may; anybody else becomes
/// root in a user namespace of this process, which is only possible while it has a single thread.
pub(crate) fn acquire_privilege() -> Result<(), LabError> {
    let probe = on_thread(|| sys::unshare(libc::CLONE_NEWNET));
    match probe {
        Ok(()) => return Ok(()),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
        Err(source) => return Err(LabError::Namespace { source }),
    }
    // SAFETY: these calls only return numbers.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    sys::unshare(libc::CLONE_NEWUSER).map_err(|source| LabError::Privilege {
        reason: match source.raw_os_error() {
            Some(libc::EINVAL) => "this process already has threads",
            Some(libc::ENOSPC) => "user.max_user_namespaces is reached",
            _ => "the kernel refuses user namespaces to this user",
        },
        source,
    })?;
    let map = |file: &str, line: String| {
        fs::write(file, line).map_err(|source| LabError::Privilege {
            reason: "the user could not be mapped to root in a user namespace",
            source,
        })
    };
    // user_namespaces(7): without a privileged helper, groups must be given up first.
    map("/proc/self/setgroups", "deny".into())?;
    map("/proc/self/uid_map", format!("0 {uid} 1"))?;
    map("/proc/self/gid_map", format!("0 {gid} 1"))
}
