//! What was found: sessions with their sockets and disks, and the host that they are on. Absent is
//! what could not be read or is not there; what would have mattered is told in [`Unread`].

pub mod disk;
pub mod files;
pub mod host;
pub mod open_iscsi;
pub mod ss;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use path::Bottleneck;
use serde::Serialize;

pub use self::disk::Disk;
pub use self::files::{Files, Read};
pub use self::host::{Host, Nic};

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// The host that was looked at.
    pub host: Host,
    /// Its iSCSI sessions.
    pub sessions: Vec<Session>,
    /// What could not be read.
    pub unread: Vec<Unread>,
    /// Where sessions were looked for.
    pub looked_at: Vec<String>,
    /// How long they were watched.
    pub seconds: f64,
    /// What the line carries, in bits per second, if somebody said so.
    pub line_bits_per_s: Option<f64>,
}

/// Something that would have helped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// What it is.
    pub what: String,
    /// Why it is not there, and how to have it read.
    pub why: String,
}

/// Whose the initiator is: that decides how its settings are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Initiator {
    /// The kernel's, with open-iscsi in user space.
    OpenIscsi,
    /// This program.
    Enkaku,
    /// Somebody's.
    #[default]
    Unknown,
}

/// Which end of the session this host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It asks.
    #[default]
    Initiator,
    /// It serves.
    Target,
}

/// One session, or what is known of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Session {
    /// The kernel's name of it, or what took its place.
    pub name: String,
    /// Whose the initiator is.
    pub initiator: Initiator,
    /// Which end this host is.
    pub role: Role,
    /// Name of the target, where it is known.
    pub target: Option<String>,
    /// Where the target listens.
    pub portal: Option<SocketAddr>,
    /// The portal as the record of open-iscsi has it; a redirected login has another one.
    pub record: Option<SocketAddr>,
    /// This end's port of its connection, where the kernel tells it.
    pub local_port: Option<u16>,
    /// What the kernel says of its state.
    pub state: Option<String>,
    /// What was negotiated.
    pub keys: Keys,
    /// Commands that the session takes at once (`node.session.cmds_max`).
    pub commands_max: Option<u64>,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Its TCP connections.
    pub sockets: Vec<Tcp>,
    /// The network device that they go through.
    pub device: Option<String>,
    /// The processes that have the sockets open.
    pub processes: Vec<String>,
    /// What moved while it was watched.
    pub transfer: Option<Transfer>,
    /// How it moved then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curves: Option<Curves>,
}

/// Keys of RFC 7143 §13 as they were negotiated, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Keys {
    /// FirstBurstLength.
    pub first_burst_bytes: Option<u64>,
    /// MaxBurstLength.
    pub max_burst_bytes: Option<u64>,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: Option<u64>,
    /// InitialR2T.
    pub initial_r2t: Option<bool>,
    /// ImmediateData.
    pub immediate_data: Option<bool>,
    /// HeaderDigest is CRC32C.
    pub header_digest: Option<bool>,
    /// DataDigest is CRC32C.
    pub data_digest: Option<bool>,
    /// MaxRecvDataSegmentLength of this end.
    pub receive_segment_bytes: Option<u64>,
    /// MaxRecvDataSegmentLength of the other end.
    pub send_segment_bytes: Option<u64>,
}

/// One TCP connection as the kernel counts it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tcp {
    /// This host's end.
    pub local: SocketAddr,
    /// The other one.
    pub remote: SocketAddr,
    /// Name of the congestion control.
    pub congestion_control: String,
    /// Smoothed round-trip time.
    pub rtt_us: Option<f64>,
    /// The shortest.
    pub rtt_min_us: Option<f64>,
    /// Payload of a full segment.
    pub segment_bytes: Option<u64>,
    /// Path MTU.
    pub path_mtu_bytes: Option<u64>,
    /// Congestion window.
    pub cwnd_bytes: Option<u64>,
    /// SO_RCVBUF as the kernel has it, which is twice what was asked for.
    pub receive_buffer_bytes: Option<u64>,
    /// SO_SNDBUF as the kernel has it.
    pub send_buffer_bytes: Option<u64>,
    /// The window that the other end announces.
    pub send_window_bytes: Option<u64>,
    /// Both ends scale their windows (RFC 7323); absent where the source does not tell.
    pub window_scaling: Option<bool>,
    /// Segments sent again since the connection began.
    pub retransmitted_segments: u64,
    /// Segments with payload sent since then.
    pub data_segments_out: Option<u64>,
    /// Retransmission timeouts in a row of the oldest segment: nothing gets through.
    pub timeouts_in_a_row: u64,
    /// Sent and not acknowledged.
    pub unacked_segments: u64,
}

/// What moved while it was watched, and what the counters say of it (`enkaku diagnose`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transfer {
    /// The payload leaves the initiator.
    pub writes: bool,
    /// Payload per second of all connections.
    pub bytes_per_s: f64,
    /// What limits it.
    pub cause: Bottleneck,
    /// The sentences of `diagnose`.
    pub advice: String,
    /// Its numbers; the unit ends the name.
    pub evidence: BTreeMap<String, f64>,
    /// What has the same signs, and what would tell.
    pub cannot_tell: Vec<String>,
}

/// All connections of a session while they were watched, as values at equal distances.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curves {
    /// From one value to the next.
    pub step_s: f64,
    /// Payload per second, in the direction that had more of it.
    pub bytes_per_s: Vec<f64>,
    /// Sent and not acknowledged.
    pub in_flight_bytes: Vec<f64>,
    /// Smoothed round-trip time of the connection that has the longest.
    pub rtt_us: Vec<f64>,
}

impl Transfer {
    /// A number of the evidence.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.evidence.get(name).copied().filter(|value| value.is_finite())
    }
}

impl Session {
    /// The shortest round trip that is known, in seconds.
    pub fn rtt_s(&self) -> Option<f64> {
        let watched = self.transfer.as_ref().and_then(|one| one.number("rtt_min_us"));
        let of = |tcp: &Tcp| tcp.rtt_min_us.or(tcp.rtt_us);
        let known = self.sockets.iter().filter_map(of).chain(watched);
        known.filter(|us| *us > 0.0).reduce(f64::min).map(|us| us / 1e6)
    }

    /// Connections that carry it; one at least.
    pub fn connections(&self) -> u32 {
        u32::try_from(self.sockets.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Share of the segments that were sent again: while watched, else since the beginning.
    pub fn loss(&self) -> Option<f64> {
        if let Some(loss) = self.transfer.as_ref().and_then(|one| one.number("loss")) {
            return Some(loss);
        }
        let sent: u64 = self.sockets.iter().filter_map(|tcp| tcp.data_segments_out).sum();
        let again: u64 = self.sockets.iter().map(|tcp| tcp.retransmitted_segments).sum();
        // Of fewer segments a single loss would be a rate.
        (sent >= SEGMENTS_MIN).then(|| again as f64 / sent as f64)
    }
}

/// Fewer segments tell nothing of a loss.
const SEGMENTS_MIN: u64 = 10_000;
