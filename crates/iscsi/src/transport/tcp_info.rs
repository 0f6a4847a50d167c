//! What the kernel knows of a TCP connection's path: `TCP_INFO` (tcp(7)).

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A connection's path at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variation: Duration,
    /// Segments sent again, since the connection began.
    pub retransmits: u64,
    /// Congestion window in segments.
    pub congestion_window: u32,
    /// Segments that are neither acknowledged nor given up.
    pub unacked: u32,
}

/// Asks the kernel.
///
/// # Errors
/// It does not know this socket, or is older than the numbers asked for.
pub fn tcp_stats(socket: impl AsFd) -> io::Result<TcpStats> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is writable for `len` bytes and `len` for itself; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all of its fields are integers, for which any bits will do, and it was zeroed.
    let info = unsafe { info.assume_init() };
    Ok(TcpStats {
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
        rtt_variation: Duration::from_micros(info.tcpi_rttvar.into()),
        retransmits: info.tcpi_total_retrans.into(),
        congestion_window: info.tcpi_snd_cwnd,
        unacked: info.tcpi_unacked,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_over_loopback_has_a_window() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stats = tcp_stats(&stream).unwrap();
        assert!(stats.congestion_window > 0 && stats.rtt > Duration::ZERO, "{stats:?}");
        assert!(tcp_stats(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
