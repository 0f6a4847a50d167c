//! What the kernel knows of a TCP connection's path: `TCP_INFO` (tcp(7), linux/tcp.h), the socket's
//! buffers and its congestion control. Reads only; `socket_options` sets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// A connection's path at one moment. What an older kernel does not tell is `None`; sums count from
/// the connection's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpStats {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rtt_variation: Duration,
    /// Shortest round-trip time of the last minutes.
    pub min_rtt: Option<Duration>,
    /// Round-trip time as it shows in what is received: from an acknowledgement of ours to the data
    /// that it let go.
    pub receive_rtt: Option<Duration>,
    /// Segments sent again.
    pub retransmits: u64,
    /// Segments that came before others that should have come first: the peer's losses, as a rule.
    pub out_of_order: Option<u64>,
    /// Congestion window in segments.
    pub congestion_window: u32,
    /// Segments that are neither acknowledged nor given up.
    pub unacked: u32,
    /// Payload bytes of a segment that we send.
    pub segment_bytes: u32,
    /// Bytes that the peer acknowledged.
    pub acked_bytes: Option<u64>,
    /// Bytes received in order.
    pub received_bytes: Option<u64>,
    /// Rate at which data was delivered lately, in bytes a second.
    pub delivery_rate: Option<u64>,
    /// That rate was measured while we had too little to send.
    pub app_limited: bool,
    /// Time with something to send or to be acknowledged.
    pub busy: Option<Duration>,
    /// Of that, held up by the peer's window.
    pub peer_window_limited: Option<Duration>,
    /// Of that, held up by the send buffer.
    pub send_buffer_limited: Option<Duration>,
    /// Window that the peer announces, in bytes.
    pub peer_window: Option<u32>,
    /// Window that we announce, in bytes.
    pub own_window: Option<u32>,
}

/// Room for `struct tcp_info` of kernels to come; a longer one is cut by the kernel.
const INFO_LEN: usize = 512;

/// Shortest answer that is understood: up to `tcpi_total_retrans` (Linux 2.6).
const INFO_LEN_MIN: usize = 104;

/// TCP_CLOSE and TCP_CLOSE_WAIT (net/tcp_states.h).
const CLOSED_BY_PEER: [u8; 2] = [7, 8];

/// The kernel's answer: fields by their offset in `struct tcp_info`, which never change, because
/// programs of any age read them. (libc's own type ends where that of 2008 did.)
struct Info {
    bytes: [u8; INFO_LEN],
    len: usize,
}

impl Info {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes[..self.len].get(at..at + N)?.try_into().ok()
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    fn micros(&self, at: usize) -> Option<Duration> {
        self.u64(at).map(Duration::from_micros)
    }

    fn stats(&self) -> TcpStats {
        let must = |at| self.u32(at).unwrap_or(0); // the length was checked
        let min_rtt = self.u32(148).filter(|us| *us != 0 && *us != u32::MAX);
        TcpStats {
            rtt: Duration::from_micros(must(68).into()),
            rtt_variation: Duration::from_micros(must(72).into()),
            min_rtt: min_rtt.map(|us| Duration::from_micros(us.into())),
            receive_rtt: self
                .u32(92)
                .filter(|us| *us != 0)
                .map(|us| Duration::from_micros(us.into())),
            retransmits: must(100).into(),
            out_of_order: self.u32(224).map(u64::from),
            congestion_window: must(80),
            unacked: must(24),
            segment_bytes: must(16),
            acked_bytes: self.u64(120),
            received_bytes: self.u64(128),
            delivery_rate: self.u64(160),
            app_limited: self.bytes[7] & 1 != 0,
            busy: self.micros(168),
            peer_window_limited: self.micros(176),
            send_buffer_limited: self.micros(184),
            peer_window: self.u32(228),
            own_window: self.u32(232),
        }
    }
}

/// Asks the kernel.
///
/// # Errors
/// It does not know this socket, or is older than the numbers asked for.
pub fn tcp_stats(socket: impl AsFd) -> io::Result<TcpStats> {
    Ok(ask(socket)?.stats())
}

/// The peer has closed its end or reset the connection, whatever of it is still to be read. False
/// where the kernel does not say.
pub(crate) fn is_closed_by_peer(socket: impl AsFd) -> bool {
    ask(socket).is_ok_and(|info| CLOSED_BY_PEER.contains(&info.bytes[0]))
}

fn ask(socket: impl AsFd) -> io::Result<Info> {
    let mut info = Info { bytes: [0; INFO_LEN], len: 0 };
    let mut len = INFO_LEN as libc::socklen_t;
    // SAFETY: `info.bytes` is writable for `len` bytes and `len` for itself; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    info.len = (len as usize).min(INFO_LEN);
    if info.len < INFO_LEN_MIN {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn a_connection_over_loopback_has_a_window_and_counts_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let before = tcp_stats(&near).unwrap();
        assert!(before.congestion_window > 0 && before.rtt > Duration::ZERO, "{before:?}");
        near.write_all(&[1; 5000]).unwrap();
        let mut buf = [0; 5000];
        far.read_exact(&mut buf).unwrap();
        far.write_all(&[2; 300]).unwrap();
        near.read_exact(&mut buf[..300]).unwrap();
        let after = tcp_stats(&near).unwrap();
        // The bytes that came back carry the acknowledgement; a SYN counts as one byte.
        let acked = after.acked_bytes.zip(before.acked_bytes).map(|(a, b)| a - b);
        assert!(acked.is_none_or(|bytes| bytes == 5000), "{after:?}");
        assert!(after.received_bytes.is_none_or(|bytes| bytes == 300), "{after:?}");
        assert!(tcp_stats(std::fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn what_an_old_kernel_does_not_tell_is_unknown() {
        let mut info = Info { bytes: [0; INFO_LEN], len: INFO_LEN_MIN };
        info.bytes[68..72].copy_from_slice(&1500_u32.to_ne_bytes());
        let stats = info.stats();
        assert_eq!(stats.rtt, Duration::from_micros(1500));
        assert_eq!((stats.min_rtt, stats.acked_bytes, stats.busy), (None, None, None));
        info.len = 192;
        info.bytes[148..152].copy_from_slice(&700_u32.to_ne_bytes());
        info.bytes[184..192].copy_from_slice(&9_u64.to_ne_bytes());
        let stats = info.stats();
        assert_eq!(stats.min_rtt, Some(Duration::from_micros(700)));
        assert_eq!(stats.send_buffer_limited, Some(Duration::from_micros(9)));
        assert_eq!(stats.peer_window, None);
    }
}
