//! SIGINT, SIGTERM and SIGHUP as bytes in a pipe, so that a run can wait for them and for its
//! commands at once, on any thread of any program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::sys;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
const NOBODY: i32 = -1;

/// Where the handler writes.
static PIPE: AtomicI32 = AtomicI32::new(NOBODY);

/// While this lives, the signals do not end the process.
///
/// Handlers belong to the process: of several at a time, only the first gets the signals.
pub(crate) struct Signals {
    came: OwnedFd,
    /// Kept open for the handler.
    _tell: OwnedFd,
    before: Option<[libc::sigaction; SIGNALS.len()]>,
}

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let (came, tell) = sys::pipe()?;
        let claimed = PIPE
            .compare_exchange(NOBODY, tell.as_raw_fd(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        let mut signals = Self { came, _tell: tell, before: None };
        if claimed {
            signals.before = Some(SIGNALS.map(install));
        }
        Ok(signals)
    }

    /// Can be read when a signal has come.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.came.as_fd()
    }

    /// The signal that has come; waits for it.
    pub(crate) fn take(&self) -> io::Result<u8> {
        let mut signal = [0];
        sys::read(self.came.as_fd(), &mut signal)?;
        Ok(signal[0])
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            for (signal, action) in SIGNALS.into_iter().zip(before) {
                // SAFETY: `action` is what the kernel said was installed.
                unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            }
            PIPE.store(NOBODY, Ordering::SeqCst);
        }
    }
}

/// Installs the handler and returns what was there. A signal that is ignored stays so, as `nohup`
/// wants it.
fn install(signal: libc::c_int) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction`; both live until the calls return, and the
    // handler only does what a signal handler may.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut before);
        if before.sa_sigaction != libc::SIG_IGN {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = tell as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
        before
    }
}

extern "C" fn tell(signal: libc::c_int) {
    let byte = signal as u8;
    // SAFETY: `write` is allowed in a handler, which must leave `errno` as it was.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        libc::write(PIPE.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
        *errno = before;
    }
}
