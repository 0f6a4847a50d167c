//! One look at one TCP connection: what the kernel says of it at one instant.
//!
//! The numbers are the kernel's own, with their units in their names. TCP's counters are those of
//! [`path::tcp_info`]; what sock_diag tells besides is here.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

pub use path::tcp_info::{TcpInfo, TcpState as State};
use serde::Serialize;

/// Which connection: its addresses as the host that samples it sees them, and the kernel's cookie,
/// which tells a connection from a later one between the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Connection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// `sk_cookie`.
    pub cookie: u64,
}

impl Connection {
    /// Whether the other one is the opposite end of this connection on the same host.
    pub fn is_other_end_of(&self, other: &Self) -> bool {
        self.local == other.remote && self.remote == other.local
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.local, self.remote)
    }
}

/// An address as people write it: an IPv4 peer of a dual-stack socket is IPv4.
pub(crate) fn canonical(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_canonical(), port)
}

/// The memory of a socket (`SK_MEMINFO_*` of linux/sock_diag.h), headers of buffers included: a
/// payload of B bytes takes about 1.2 to 2 B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Received and not yet read by the application.
    pub receive_queued_bytes: u32,
    /// Limit of it (SO_RCVBUF).
    pub receive_buffer_bytes: u32,
    /// Limit of what may be queued for sending (SO_SNDBUF).
    pub send_buffer_bytes: u32,
    /// Queued for sending or waiting for an acknowledgement (`sk_wmem_queued`).
    pub send_queued_bytes: u32,
    /// Waits for the owner to let go of the socket.
    pub backlog_bytes: u32,
    /// Packets dropped for lack of memory.
    pub drops: u32,
}

impl Memory {
    /// Reads what there is; `None` where not even the send queue is there (before Linux 2.6.39).
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |index: usize| u32_at(bytes, index * 4);
        Some(Self {
            receive_queued_bytes: word(0)?,
            receive_buffer_bytes: word(1)?,
            send_buffer_bytes: word(3)?,
            send_queued_bytes: word(5)?,
            backlog_bytes: word(7).unwrap_or_default(),
            drops: word(8).unwrap_or_default(),
        })
    }
}

/// What BBR has learnt of the path (`struct tcp_bbr_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bbr {
    /// Bandwidth of the bottleneck.
    pub bandwidth_bytes_per_s: u64,
    /// Round-trip time without queues.
    pub min_rtt_us: u32,
    /// The pacing gain × 256: 739 in start-up, 320 when it probes.
    pub pacing_gain_256: u32,
}

impl Bbr {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let bandwidth = u64::from(u32_at(bytes, 0)?) | u64::from(u32_at(bytes, 4)?) << 32;
        Some(Self {
            bandwidth_bytes_per_s: bandwidth,
            min_rtt_us: u32_at(bytes, 8)?,
            pacing_gain_256: u32_at(bytes, 12)?,
        })
    }
}

/// One look at one connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// When, on the clock of whoever sampled; only differences mean something.
    pub at_us: u64,
    /// Which connection.
    #[serde(flatten)]
    pub connection: Connection,
    /// Its state.
    pub state: State,
    /// Inode of the socket, by which its process is found; 0 if it has none any more.
    pub inode: u32,
    /// Received and not read by the application.
    pub receive_queue_bytes: u32,
    /// Written by the application and not acknowledged.
    pub send_queue_bytes: u32,
    /// The congestion control algorithm, empty if the kernel did not say.
    pub congestion_control: String,
    /// TCP's counters.
    pub tcp: TcpInfo,
    /// Memory, where the kernel tells.
    pub memory: Option<Memory>,
    /// BBR's model of the path, where BBR is in use.
    pub bbr: Option<Bbr>,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*word))
}
