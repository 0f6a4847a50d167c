//! System calls that neither std nor fuser offers in the form needed: unmounting and who we are.

#![allow(unsafe_code)] // two libc calls

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

/// Unmounts `dir`; with `detach` also if it is in use. Without privilege by way of fusermount3.
pub(super) fn unmount(dir: &Path, detach: bool) -> io::Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if detach { libc::MNT_DETACH } else { 0 };
    // SAFETY: `path` is a NUL-terminated string that lives during the call.
    if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EPERM) {
        return Err(error);
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(dir).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // fusermount3 only has a text for its user; strerror(EBUSY) in it is in the C locale's words.
    if text.contains("busy") {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    Err(io::Error::other(text))
}

/// Effective user and group of this process.
pub(super) fn owner() -> (u32, u32) {
    // SAFETY: both calls take nothing, cannot fail and touch no memory of ours.
    unsafe { (libc::geteuid(), libc::getegid()) }
}
