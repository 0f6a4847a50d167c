//! Socket options that the path decides, and what this system allows of them. Sets what it is told;
//! which values are right is the path's business.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use path::CongestionControl;
use socket2::SockRef;

/// What a connection's socket is to have; `None` leaves it as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketOptions {
    /// SO_SNDBUF, in bytes as the kernel counts them (twice what is usable for payload).
    pub(crate) send_buffer: Option<usize>,
    /// SO_RCVBUF, likewise.
    pub(crate) receive_buffer: Option<usize>,
    /// TCP_CONGESTION.
    pub(crate) congestion_control: Option<CongestionControl>,
    /// SO_MAX_PACING_RATE in bytes a second.
    pub(crate) pacing_rate: Option<u64>,
}

/// Name and reason of an option that could not be set.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {source}")]
pub(crate) struct OptionError {
    pub(crate) option: &'static str,
    source: io::Error,
}

impl SocketOptions {
    /// Sets what is given. A buffer that is as large already is left to the kernel, which would
    /// stop to grow it by itself. All options are tried; the error is that of the first that
    /// failed.
    pub(crate) fn apply(&self, socket: &impl AsFd) -> Result<(), OptionError> {
        let socket = SockRef::from(socket);
        let mut first = Ok(());
        let mut note = |option, result: io::Result<()>| {
            if let (Err(source), true) = (result, first.is_ok()) {
                first = Err(OptionError { option, source });
            }
        };
        if let Some(bytes) = self.send_buffer
            && socket.send_buffer_size().is_ok_and(|present| present < bytes)
        {
            // The kernel doubles what it is told.
            note("SO_SNDBUF", socket.set_send_buffer_size(bytes / 2));
        }
        if let Some(bytes) = self.receive_buffer
            && socket.recv_buffer_size().is_ok_and(|present| present < bytes)
        {
            note("SO_RCVBUF", socket.set_recv_buffer_size(bytes / 2));
        }
        if let Some(control) = self.congestion_control {
            note("TCP_CONGESTION", set_congestion_control(&socket, control));
        }
        if let Some(rate) = self.pacing_rate {
            note("SO_MAX_PACING_RATE", set_pacing_rate(&socket, rate));
        }
        first
    }
}

/// Sets a congestion control, and asks whether it was taken.
fn set_congestion_control(socket: &SockRef<'_>, control: CongestionControl) -> io::Result<()> {
    if congestion_control(&**socket).as_deref() == Some(control.as_str()) {
        return Ok(());
    }
    socket.set_tcp_congestion(control.as_str().as_bytes())?;
    match congestion_control(&**socket) {
        Some(name) if name == control.as_str() => Ok(()),
        name => {
            let got = name.unwrap_or_default();
            Err(io::Error::other(format!("{got:?} instead of {}", control.as_str())))
        }
    }
}

/// The name of the congestion control in use.
pub(crate) fn congestion_control(socket: &impl AsFd) -> Option<String> {
    let name = SockRef::from(socket).tcp_congestion().ok()?;
    let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8(name[..len].to_vec()).ok()
}

/// A pacing rate that limits nothing, but makes TCP space its packets over the round trip (by 1.2
/// to 2 times the window over the round trip) where the congestion control does not: a window that
/// leaves at once overruns queues which the same window, spread out, does not fill.
pub(crate) const SPREAD_OUT: u64 = 1 << 40;

/// Limits what is sent. TCP paces by itself where the link has no `fq` (Linux 4.13).
fn set_pacing_rate(socket: &SockRef<'_>, rate: u64) -> io::Result<()> {
    set_number(socket, (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE), rate)
}

/// Bytes that wait in a socket for the window to open. Whatever is there is bound to its
/// connection, and a command in it has its number: where losses keep a window small, those behind
/// it on other connections wait for it. In the core a command may still go elsewhere.
const UNSENT_BYTES_MAX: libc::c_int = 128 << 10;

/// Keeps little in the socket that cannot be sent yet (TCP_NOTSENT_LOWAT).
pub(crate) fn keep_unsent_short(socket: &impl AsFd) -> io::Result<()> {
    let option = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    set_number(&SockRef::from(socket), option, UNSENT_BYTES_MAX)
}

/// Sets an option, given as level and name, whose value is this integer.
pub(super) fn set_number<T: Copy>(
    socket: &SockRef<'_>,
    (level, name): (libc::c_int, libc::c_int),
    value: T,
) -> io::Result<()> {
    // SAFETY: the value is readable for the length given and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Buffers of a socket as the kernel counts them: send, receive.
pub(crate) fn buffer_sizes(socket: &impl AsFd) -> (Option<usize>, Option<usize>) {
    let socket = SockRef::from(socket);
    (socket.send_buffer_size().ok(), socket.recv_buffer_size().ok())
}

/// The largest buffers that are worth setting, as the kernel counts them: send, receive. 0 where
/// the kernel makes one as large by itself: setting it would stop it from growing.
pub(crate) fn buffer_limits() -> (u64, u64) {
    let worth = |limit: &str, automatic: &str| {
        let settable = sysctl(limit, 0).saturating_mul(2).min(i32::MAX as u64);
        if settable > sysctl(automatic, 2) { settable } else { 0 }
    };
    (worth("core/wmem_max", "ipv4/tcp_wmem"), worth("core/rmem_max", "ipv4/tcp_rmem"))
}

/// What the kernel enlarges a send buffer to by itself, in bytes.
pub(crate) fn automatic_send_buffer() -> u64 {
    sysctl("ipv4/tcp_wmem", 2)
}

/// What the kernel enlarges a receive buffer to by itself, in bytes.
pub(crate) fn automatic_receive_buffer() -> u64 {
    sysctl("ipv4/tcp_rmem", 2)
}

/// Payload that a connection keeps under way when the kernel has enlarged both ends' buffers, if
/// the other end is set as this one; 0 if that cannot be told. A send buffer also holds what waits,
/// and about half of a receive buffer is bookkeeping (`tcp_adv_win_scale`).
pub(crate) fn automatic_window() -> u64 {
    (automatic_send_buffer() / 10 * 6).min(automatic_receive_buffer() / 2)
}

/// A number of a setting of the network; 0 where it is not to be had.
fn sysctl(name: &str, index: usize) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
    text.split_whitespace().nth(index).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Congestion controls that this kernel has and lets us choose, of those that the path controller
/// knows.
pub(crate) fn congestion_controls() -> Vec<CongestionControl> {
    congestion_control_names().iter().filter_map(|name| name.parse().ok()).collect()
}

/// All that this kernel lets any program choose.
pub(crate) fn congestion_control_names() -> Vec<String> {
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let names = std::fs::read_to_string(allowed).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

/// Can a socket have this one? A privileged process may choose more than those listed.
pub(crate) fn has_congestion_control(name: &str) -> bool {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP));
    socket.is_ok_and(|socket| socket.set_tcp_congestion(name.as_bytes()).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> std::net::TcpStream {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    }

    #[test]
    fn options_are_set_and_buffers_only_grow() {
        let socket = socket();
        let (before, _) = buffer_sizes(&socket);
        let smaller = SocketOptions { send_buffer: Some(4096), ..SocketOptions::default() };
        smaller.apply(&socket).unwrap();
        assert_eq!(buffer_sizes(&socket).0, before);
        let (most, _) = buffer_limits();
        let wanted = before.unwrap() + 8192;
        if most >= wanted as u64 {
            let larger = SocketOptions { send_buffer: Some(wanted), ..SocketOptions::default() };
            larger.apply(&socket).unwrap();
            assert_eq!(buffer_sizes(&socket).0, Some(wanted));
        }
        for control in congestion_controls() {
            let congestion_control = Some(control);
            let pacing_rate = Some(1_000_000);
            let options =
                SocketOptions { congestion_control, pacing_rate, ..SocketOptions::default() };
            options.apply(&socket).unwrap();
            assert_eq!(super::congestion_control(&socket).as_deref(), Some(control.as_str()));
        }
    }

    #[test]
    fn what_cannot_be_set_is_named() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let options = SocketOptions { pacing_rate: Some(1), ..SocketOptions::default() };
        assert!(options.apply(&file).unwrap_err().to_string().starts_with("SO_MAX_PACING_RATE"));
    }
}
