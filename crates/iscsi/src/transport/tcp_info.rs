//! Asks the kernel what it knows of a connection of ours: `TCP_INFO` (tcp(7)). What the answer
//! means is in [`path::tcp_info`]; `socket_options` sets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use path::tcp_info::{BYTES_MAX, TcpInfo};

/// Asks the kernel.
///
/// # Errors
/// It does not know this socket, or is older than the numbers asked for.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0_u8; BYTES_MAX];
    let mut len = BYTES_MAX as libc::socklen_t;
    // SAFETY: `bytes` is writable for `len` bytes and `len` for itself; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let told = bytes.get(..len as usize).unwrap_or(&bytes);
    TcpInfo::parse(told).ok_or_else(|| io::ErrorKind::Unsupported.into())
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
        let before = tcp_info(&near).unwrap();
        assert!(before.cwnd_segments > 0 && before.rtt_us > 0, "{before:?}");
        near.write_all(&[1; 5000]).unwrap();
        let mut buf = [0; 5000];
        far.read_exact(&mut buf).unwrap();
        far.write_all(&[2; 300]).unwrap();
        near.read_exact(&mut buf[..300]).unwrap();
        let after = tcp_info(&near).unwrap();
        // The bytes that came back carry the acknowledgement; a SYN counts as one byte.
        let acked = after.acked_bytes.zip(before.acked_bytes).map(|(a, b)| a - b);
        assert!(acked.is_none_or(|bytes| bytes == 5000), "{after:?}");
        assert!(after.received_bytes.is_none_or(|bytes| bytes == 300), "{after:?}");
        assert!(tcp_info(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
