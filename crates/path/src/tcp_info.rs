//! What the kernel counts of a TCP connection, `struct tcp_info` (tcp(7),
//! include/uapi/linux/tcp.h): the one table of its fields, for whoever asks a socket of its own and
//! for whoever watches those of others. Bytes in, numbers out; nothing is asked for here.
//!
//! Fields never change their place, because programs of any age read them; the structure grows at
//! its end with every few kernels. What an older kernel does not have is absent, and what a newer
//! one has in addition is passed over. (libc's own type ends where that of 2008 did.)

use serde::{Serialize, Serializer};

use super::tcp::Tcp;

/// `TCPI_OPT_WSCALE`: both ends scale their windows (RFC 7323 §2).
const OPTION_WINDOW_SCALE: u8 = 4;
/// Room for those of kernels to come; a longer one is cut by the kernel.
pub const BYTES_MAX: usize = 512;

/// A state of RFC 9293 §3.3.2, numbered as in the kernel's `net/tcp_states.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpState(pub u8);

impl TcpState {
    /// Data can flow both ways.
    pub const ESTABLISHED: Self = Self(1);
    /// Nothing is left of it; it was reset, as a rule.
    pub const CLOSE: Self = Self(7);
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
}

impl Serialize for TcpState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The fields, each with its type, and how and where it is read.
macro_rules! fields {
    ($($(#[$about:meta])* $name:ident: $type:ty = $read:ident $at:literal,)*) => {
        /// What the kernel counts of a connection (`struct tcp_info`). Counters run from its
        /// beginning.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct TcpInfo {
            $($(#[$about])* pub $name: $type,)*
        }

        impl TcpInfo {
            /// Reads what there is; `None` if a field is missing that every kernel of the last
            /// twenty years has, up to `tcpi_total_retrans`.
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                Some(Self { $($name: $read(bytes, $at)?,)* })
            }
        }
    };
}

fields! {
    /// Its state. JSON leaves it out: a sample of a socket has one of its own.
    #[serde(skip)]
    state: TcpState = state 0,
    /// The congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    ca_state: u8 = byte 1,
    /// Retransmission timeouts in a row of the oldest segment.
    retransmits: u8 = byte 2,
    /// The rate sample in `delivery_rate_bytes_per_s` was limited by the application.
    app_limited: bool = bit 7,
    /// Retransmission timeout.
    rto_us: u32 = word 8,
    /// Largest segment that is sent.
    mss_bytes: u32 = word 16,
    /// Largest segment that has been received, as estimated.
    receive_mss_bytes: u32 = word 20,
    /// Segments in flight.
    unacked_segments: u32 = word 24,
    /// Of these, acknowledged selectively.
    sacked_segments: u32 = word 28,
    /// Of these, taken for lost.
    lost_segments: u32 = word 32,
    /// Of these, sent again and not yet acknowledged.
    retrans_segments: u32 = word 36,
    /// Since data were last sent; the kernel's clock has a resolution of 1–10 ms.
    last_data_sent_ms: u32 = word 44,
    /// Since data were last received.
    last_data_received_ms: u32 = word 52,
    /// Path MTU.
    path_mtu_bytes: u32 = word 60,
    /// Smoothed round-trip time.
    rtt_us: u32 = word 68,
    /// Its mean deviation.
    rtt_var_us: u32 = word 72,
    /// Slow-start threshold; `u32::MAX >> 1` is none.
    ssthresh_segments: u32 = word 76,
    /// Congestion window.
    cwnd_segments: u32 = word 80,
    /// Distance of reordering that is tolerated.
    reordering_segments: u32 = word 88,
    /// Round-trip time as a receiver estimates it; 0 is unknown.
    receive_rtt_us: u32 = word 92,
    /// What the application has read in one round trip, which buffer tuning follows.
    receive_space_bytes: u32 = word 96,
    /// Retransmissions.
    total_retrans_segments: u32 = word 100,
    /// Rate at which segments are paced out; `u64::MAX` is unlimited.
    pacing_rate_bytes_per_s: Option<u64> = u64_at 104,
    /// Payload acknowledged by the other end.
    acked_bytes: Option<u64> = u64_at 120,
    /// Payload received in order.
    received_bytes: Option<u64> = u64_at 128,
    /// Written by the application and not sent for the first time yet.
    not_sent_bytes: Option<u32> = u32_at 144,
    /// Smallest round-trip time of the last minutes; `u32::MAX` is none yet.
    min_rtt_us: Option<u32> = u32_at 148,
    /// Segments with payload received.
    data_segments_in: Option<u32> = u32_at 152,
    /// Segments with payload sent, repetitions included.
    data_segments_out: Option<u32> = u32_at 156,
    /// The latest sample of the rate at which data arrive at the other end.
    delivery_rate_bytes_per_s: Option<u64> = u64_at 160,
    /// Time with data to send or in flight.
    busy_us: Option<u64> = u64_at 168,
    /// Of it, time in which the window of the receiver was full.
    rwnd_limited_us: Option<u64> = u64_at 176,
    /// Of it, time in which the application waited for room in the send buffer.
    sndbuf_limited_us: Option<u64> = u64_at 184,
    /// Payload sent, repetitions included.
    sent_bytes: Option<u64> = u64_at 200,
    /// Payload sent again.
    retrans_bytes: Option<u64> = u64_at 208,
    /// Reordering that was noticed.
    reorder_seen: Option<u32> = u32_at 220,
    /// Segments received out of order.
    received_out_of_order_segments: Option<u32> = u32_at 224,
    /// The window that the other end announces.
    send_window_bytes: Option<u32> = u32_at 228,
    /// The window announced to the other end.
    receive_window_bytes: Option<u32> = window 232,
}

impl TcpInfo {
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
        let as_sender = self.least_rtt_us().or(Some(self.rtt_us).filter(is_measured));
        as_sender.or(self.rtt_of_received_us())
    }

    /// The peer has closed its end or reset the connection, whatever of it is still to be read.
    pub fn is_closed_by_peer(&self) -> bool {
        [TcpState::CLOSE, TcpState::CLOSE_WAIT].contains(&self.state)
    }

    /// Shortest round trip of the last minutes, where one was measured.
    pub fn least_rtt_us(&self) -> Option<u32> {
        self.min_rtt_us.filter(is_measured)
    }

    /// Round trip as it shows in what is received: from an acknowledgement of ours to the data that
    /// it let go.
    pub fn rtt_of_received_us(&self) -> Option<u32> {
        Some(self.receive_rtt_us).filter(is_measured)
    }

    /// Sent and not acknowledged, lost segments with it.
    pub fn unacked_bytes(&self) -> u64 {
        u64::from(self.unacked_segments) * u64::from(self.mss_bytes)
    }

    /// Written and not acknowledged, whether it was sent or not: `ss` shows it as Send-Q.
    pub fn send_queue_bytes(&self) -> u64 {
        self.unacked_bytes() + u64::from(self.not_sent_bytes.unwrap_or(0))
    }

    /// In the model's terms, what both ends know: the round trip.
    pub fn round_trip(&self) -> Tcp {
        Tcp {
            rtt_us: Some(f64::from(self.rtt_us)).filter(|us| *us > 0.0),
            rtt_var_us: Some(f64::from(self.rtt_var_us)).filter(|_| self.rtt_us > 0),
            min_rtt_us: self.least_rtt_us().map(f64::from),
            ..Tcp::default()
        }
    }

    /// In the model's terms, what the end that sends knows, over an interval of `interval_s`
    /// seconds (more than 0) that began with `before`.
    pub fn sending_since(&self, before: &Self, interval_s: f64) -> Tcp {
        let share = |before: Option<u64>, now: Option<u64>| {
            let spent_us = now?.saturating_sub(before?) as f64;
            Some((spent_us / 1e6 / interval_s).min(1.0))
        };
        let retransmits = self.total_retrans_segments.saturating_sub(before.total_retrans_segments);
        Tcp {
            cwnd_bytes: Some(self.cwnd_bytes() as f64),
            in_flight_bytes: Some(self.unacked_bytes() as f64),
            not_sent_bytes: self.not_sent_bytes.map(f64::from),
            busy_share: share(before.busy_us, self.busy_us),
            rwnd_limited_share: share(before.rwnd_limited_us, self.rwnd_limited_us),
            sndbuf_limited_share: share(before.sndbuf_limited_us, self.sndbuf_limited_us),
            retransmits: Some(f64::from(retransmits)),
            app_limited: Some(self.app_limited),
            ..self.round_trip()
        }
    }
}

/// The kernel's two ways to say that no round trip was measured yet.
fn is_measured(us: &u32) -> bool {
    *us > 0 && *us != u32::MAX
}

/// A byte, which every kernel has, as words up to `tcpi_total_retrans`.
fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn state(bytes: &[u8], at: usize) -> Option<TcpState> {
    byte(bytes, at).map(TcpState)
}

/// The lowest bit.
fn bit(bytes: &[u8], at: usize) -> Option<bool> {
    byte(bytes, at).map(|byte| byte & 1 != 0)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// A word that older kernels lack.
fn u32_at(bytes: &[u8], at: usize) -> Option<Option<u32>> {
    Some(word(bytes, at))
}

/// Two words that older kernels lack.
fn u64_at(bytes: &[u8], at: usize) -> Option<Option<u64>> {
    let chunk = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    Some(chunk.copied().map(u64::from_ne_bytes))
}

/// The kernel counts what it would announce, also where the header's 16 bits cannot say it.
fn window(bytes: &[u8], at: usize) -> Option<Option<u32>> {
    let scale = if byte(bytes, 5)? & OPTION_WINDOW_SCALE != 0 { byte(bytes, 6)? >> 4 } else { 0 };
    Some(word(bytes, at).map(|bytes| bytes.min(u32::from(u16::MAX) << scale)))
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
    fn states_have_names() {
        assert_eq!(TcpState::ESTABLISHED.as_str(), "established");
        assert_eq!(TcpState::LISTEN.as_str(), "listen");
        assert_eq!(TcpState(12).as_str(), "new_syn_recv");
        assert_eq!(TcpState(0).as_str(), "unknown");
        assert_eq!(TcpState(200).as_str(), "unknown");
    }

    #[test]
    fn what_an_old_kernel_does_not_tell_is_unknown() {
        let mut bytes = [0; 192];
        bytes[68..72].copy_from_slice(&1500_u32.to_ne_bytes());
        let old = TcpInfo::parse(&bytes[..104]).unwrap();
        assert_eq!((old.rtt_us, old.least_rtt_us(), old.acked_bytes), (1500, None, None));
        assert_eq!((old.busy_us, old.base_rtt_us()), (None, Some(1500)));
        bytes[148..152].copy_from_slice(&700_u32.to_ne_bytes());
        bytes[184..192].copy_from_slice(&9_u64.to_ne_bytes());
        let newer = TcpInfo::parse(&bytes).unwrap();
        assert_eq!((newer.least_rtt_us(), newer.sndbuf_limited_us), (Some(700), Some(9)));
        assert_eq!(newer.send_window_bytes, None);
        bytes[148..152].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(TcpInfo::parse(&bytes).unwrap().least_rtt_us(), None);
    }

    #[test]
    fn no_window_is_larger_than_the_header_can_say() {
        let window = |options: u8, scales: u8| {
            let mut bytes = [0; 236];
            (bytes[5], bytes[6]) = (options, scales);
            bytes[232..].copy_from_slice(&646_538_u32.to_ne_bytes());
            TcpInfo::parse(&bytes).unwrap().receive_window_bytes
        };
        // The scale of what we send is in the lower half.
        assert_eq!(window(7, 0x7a), Some(646_538));
        assert_eq!(window(7, 0x2a), Some(4 * 65_535));
        assert_eq!(window(3, 0x7a), Some(65_535));
    }

    #[test]
    fn the_first_byte_says_who_has_gone() {
        let closed = |state| {
            let mut bytes = [0; 104];
            bytes[0] = state;
            TcpInfo::parse(&bytes).unwrap().is_closed_by_peer()
        };
        assert_eq!([1, 7, 8, 4].map(closed), [false, true, true, false]);
    }

    #[test]
    fn an_interval_has_what_grew_in_it() {
        let before = TcpInfo {
            total_retrans_segments: 3,
            busy_us: Some(1_000_000),
            rwnd_limited_us: Some(0),
            ..TcpInfo::default()
        };
        let now = TcpInfo {
            total_retrans_segments: 5,
            busy_us: Some(1_050_000),
            rwnd_limited_us: Some(900_000),
            cwnd_segments: 10,
            unacked_segments: 4,
            lost_segments: 1,
            mss_bytes: 1000,
            ..before
        };
        let tcp = now.sending_since(&before, 0.1);
        assert_eq!((tcp.retransmits, tcp.busy_share), (Some(2.0), Some(0.5)));
        assert_eq!((tcp.rwnd_limited_share, tcp.sndbuf_limited_share), (Some(1.0), None));
        assert_eq!((tcp.cwnd_bytes, tcp.in_flight_bytes), (Some(10_000.0), Some(4000.0)));
        assert_eq!((tcp.rtt_us, tcp.min_rtt_us), (None, None));
    }
}
