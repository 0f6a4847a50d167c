//! SIOCETHTOOL (linux/ethtool.h): every request is an array of 32-bit words whose first is the
//! command, and the kernel answers in place.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SIOCETHTOOL: u64 = 0x8946;

/// A socket that requests go through.
pub(super) struct Requests(OwnedFd);

impl Requests {
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: no pointer is passed; the result is checked before it is taken for a descriptor.
        let descriptor =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Sends a request of N words and lets the kernel answer in them. N is the size of the
    /// command's structure, which the caller owes: the kernel reads and writes no more than that.
    pub(super) fn call<const N: usize>(
        &self,
        device: &str,
        words: &mut [u32; N],
    ) -> io::Result<()> {
        // SAFETY: all zeros is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = device.as_bytes();
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains(&0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        // SAFETY: the name ends with a zero, and the data are as large as the command's structure;
        // both live across the call.
        let outcome = unsafe {
            libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request)
        };
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
