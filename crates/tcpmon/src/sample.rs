//! One look at one TCP connection: what the kernel says of it at one instant.
//!
//! The numbers are the kernel's own, with their units in their names. `struct tcp_info` grows at its
//! end with every few kernels (include/uapi/linux/tcp.h), so what an older kernel does not have is
//! absent here, and what a newer one has in addition is passed over.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Serialize, Serializer};

/// Shortest `tcp_info` that is accepted: that of Linux 2.6, up to `tcpi_total_retrans`.
pub const TCP_INFO_BYTES_MIN: usize = 104;

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

/// A state of RFC 9293 §3.3.2, numbered as in the kernel's `net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct State(pub u8);

impl State {
    /// Data can flow both ways.
    pub const ESTABLISHED: Self = Self(1);
    /// The other end has closed its direction.
    pub const CLOSE_WAIT: Self = Self(8);
    /// Waits for connections.
    pub const LISTEN: Self = Self(10);

    const NAMES: [&str; 12] = [
        "established",
        "syn_sent",
        "syn_recv",
        "fin_wait1",
        "fin_wait2",
        "time_wait",
        "close",
        "close_wait",
        "last_ack",
        "listen",
        "closing",
        "new_syn_recv",
    ];

    /// Its name in lower case; `unknown` for a state of a future kernel.
    pub fn as_str(self) -> &'static str {
        let index = usize::from(self.0).checked_sub(1);
        index.and_then(|index| Self::NAMES.get(index)).copied().unwrap_or("unknown")
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let index = Self::NAMES.iter().position(|known| *known == name)?;
        u8::try_from(index + 1).ok().map(Self)
    }

    /// All names, for messages.
    pub fn names() -> &'static [&'static str] {
        &Self::NAMES
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// What the kernel counts of a connection (`struct tcp_info`). Counters run from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TcpInfo {
    /// The congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// Retransmission timeouts in a row of the oldest segment.
    pub retransmits: u8,
    /// The rate sample in `delivery_rate_bytes_per_s` was limited by the application.
    pub app_limited: bool,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Largest segment that is sent.
    pub mss_bytes: u32,
    /// Largest segment that has been received, as estimated.
    pub receive_mss_bytes: u32,
    /// Segments in flight.
    pub unacked_segments: u32,
    /// Of these, acknowledged selectively.
    pub sacked_segments: u32,
    /// Of these, taken for lost.
    pub lost_segments: u32,
    /// Of these, sent again and not yet acknowledged.
    pub retrans_segments: u32,
    /// Since data were last sent; the kernel's clock has a resolution of 1–10 ms.
    pub last_data_sent_ms: u32,
    /// Since data were last received.
    pub last_data_received_ms: u32,
    /// Path MTU.
    pub path_mtu_bytes: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Its mean deviation.
    pub rtt_var_us: u32,
    /// Slow-start threshold; `u32::MAX >> 1` is none.
    pub ssthresh_segments: u32,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Distance of reordering that is tolerated.
    pub reordering_segments: u32,
    /// Round-trip time as a receiver estimates it; 0 is unknown.
    pub receive_rtt_us: u32,
    /// What the application has read in one round trip, which buffer tuning follows.
    pub receive_space_bytes: u32,
    /// Retransmissions.
    pub total_retrans_segments: u32,
    /// Rate at which segments are paced out; `u64::MAX` is unlimited.
    pub pacing_rate_bytes_per_s: Option<u64>,
    /// Payload acknowledged by the other end.
    pub acked_bytes: Option<u64>,
    /// Payload received in order.
    pub received_bytes: Option<u64>,
    /// Written by the application and not sent for the first time yet.
    pub not_sent_bytes: Option<u32>,
    /// Smallest round-trip time of the last minutes; `u32::MAX` is none yet.
    pub min_rtt_us: Option<u32>,
    /// Segments with payload received.
    pub data_segments_in: Option<u32>,
    /// Segments with payload sent, repetitions included.
    pub data_segments_out: Option<u32>,
    /// The latest sample of the rate at which data arrive at the other end.
    pub delivery_rate_bytes_per_s: Option<u64>,
    /// Time with data to send or in flight.
    pub busy_us: Option<u64>,
    /// Of it, time in which the window of the receiver was full.
    pub rwnd_limited_us: Option<u64>,
    /// Of it, time in which the application waited for room in the send buffer.
    pub sndbuf_limited_us: Option<u64>,
    /// Payload sent, repetitions included.
    pub sent_bytes: Option<u64>,
    /// Payload sent again.
    pub retrans_bytes: Option<u64>,
    /// Reordering that was noticed.
    pub reorder_seen: Option<u32>,
    /// Segments received out of order.
    pub received_out_of_order_segments: Option<u32>,
    /// The window that the other end announces.
    pub send_window_bytes: Option<u32>,
    /// The window announced to the other end.
    pub receive_window_bytes: Option<u32>,
}

impl TcpInfo {
    /// Reads what there is; `None` if it is shorter than any kernel's of the last twenty years.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < TCP_INFO_BYTES_MIN {
            return None;
        }
        let word = |at| u32_at(bytes, at).unwrap_or_default();
        Some(Self {
            ca_state: bytes[1],
            retransmits: bytes[2],
            app_limited: bytes[7] & 1 != 0,
            rto_us: word(8),
            mss_bytes: word(16),
            receive_mss_bytes: word(20),
            unacked_segments: word(24),
            sacked_segments: word(28),
            lost_segments: word(32),
            retrans_segments: word(36),
            last_data_sent_ms: word(44),
            last_data_received_ms: word(52),
            path_mtu_bytes: word(60),
            rtt_us: word(68),
            rtt_var_us: word(72),
            ssthresh_segments: word(76),
            cwnd_segments: word(80),
            reordering_segments: word(88),
            receive_rtt_us: word(92),
            receive_space_bytes: word(96),
            total_retrans_segments: word(100),
            pacing_rate_bytes_per_s: u64_at(bytes, 104),
            acked_bytes: u64_at(bytes, 120),
            received_bytes: u64_at(bytes, 128),
            not_sent_bytes: u32_at(bytes, 144),
            min_rtt_us: u32_at(bytes, 148),
            data_segments_in: u32_at(bytes, 152),
            data_segments_out: u32_at(bytes, 156),
            delivery_rate_bytes_per_s: u64_at(bytes, 160),
            busy_us: u64_at(bytes, 168),
            rwnd_limited_us: u64_at(bytes, 176),
            sndbuf_limited_us: u64_at(bytes, 184),
            sent_bytes: u64_at(bytes, 200),
            retrans_bytes: u64_at(bytes, 208),
            reorder_seen: u32_at(bytes, 220),
            received_out_of_order_segments: u32_at(bytes, 224),
            send_window_bytes: u32_at(bytes, 228),
            receive_window_bytes: u32_at(bytes, 232),
        })
    }

    /// The congestion window in bytes.
    pub fn cwnd_bytes(&self) -> u64 {
        u64::from(self.cwnd_segments) * u64::from(self.mss_bytes)
    }

    /// What is on its way to the other end: sent, neither acknowledged nor lost, and sent again
    /// (RFC 6675's "pipe").
    pub fn in_flight_bytes(&self) -> u64 {
        let gone = self.sacked_segments.saturating_add(self.lost_segments);
        let segments =
            self.unacked_segments.saturating_sub(gone).saturating_add(self.retrans_segments);
        u64::from(segments) * u64::from(self.mss_bytes)
    }

    /// Smallest round-trip time that is known, in microseconds: as sender, else as receiver.
    pub fn base_rtt_us(&self) -> Option<u32> {
        let known = |us: &u32| *us > 0 && *us != u32::MAX;
        let receiver = Some(self.receive_rtt_us).filter(known);
        self.min_rtt_us.filter(known).or(Some(self.rtt_us).filter(known)).or(receiver)
    }
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

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `tcp_info` whose every 32-bit word is its own offset.
    fn counting(length: usize) -> Vec<u8> {
        (0..length).step_by(4).flat_map(|at| u32::try_from(at).unwrap().to_ne_bytes()).collect()
    }

    #[test]
    fn older_kernels_lack_and_newer_ones_add() {
        assert_eq!(TcpInfo::parse(&counting(100)), None);
        let oldest = TcpInfo::parse(&counting(104)).unwrap();
        assert_eq!((oldest.rtt_us, oldest.total_retrans_segments), (68, 100));
        assert_eq!((oldest.pacing_rate_bytes_per_s, oldest.busy_us), (None, None));
        // Linux 4.9 ended after the delivery rate; 4.10 brought the three times.
        let middle = TcpInfo::parse(&counting(168)).unwrap();
        assert_eq!(middle.delivery_rate_bytes_per_s, Some(160 | 164 << 32));
        assert_eq!(middle.busy_us, None);
        let future = TcpInfo::parse(&counting(400)).unwrap();
        assert_eq!(future.send_window_bytes, Some(228));
        assert_eq!(future.receive_window_bytes, Some(232));
        assert_eq!(future.sndbuf_limited_us, Some(184 | 188 << 32));
    }

    #[test]
    fn in_flight_is_the_pipe() {
        let info = TcpInfo {
            mss_bytes: 1000,
            unacked_segments: 10,
            sacked_segments: 3,
            lost_segments: 2,
            retrans_segments: 1,
            ..TcpInfo::default()
        };
        assert_eq!(info.in_flight_bytes(), 6000);
    }

    #[test]
    fn states_have_names_both_ways() {
        for (number, name) in (1..).zip(State::names()) {
            assert_eq!(State::from_name(name), Some(State(number)));
            assert_eq!(State(number).as_str(), *name);
        }
        assert_eq!(State(0).as_str(), "unknown");
        assert_eq!(State(200).as_str(), "unknown");
    }
}
