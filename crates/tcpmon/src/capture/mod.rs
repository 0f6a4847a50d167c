//! Where packets come from: capture files and the network, as TCP segments with a time.
//!
//! A segment says how long its payload was on the wire and gives as much of it as was captured:
//! captures are cut (`-s 128`), and a sender's own capture shows super-packets of 64 KiB.

mod annotate;
mod decode;
mod file;
pub mod live;
mod slim;
mod write;

use std::net::SocketAddr;

use serde::Serialize;

pub use annotate::Annotated;
pub use decode::{LinkType, decode};
pub use file::{CaptureError, Packet, read_capture, read_packets};
pub use slim::{Kept, Slimmer};
pub use write::Writer;

/// SACK blocks that fit the TCP option space beside timestamps (RFC 2018 §3) and without.
pub const SACK_BLOCKS_MAX: usize = 4;

/// One TCP segment as captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// When it was captured, in nanoseconds of the capture's clock.
    pub time_ns: u64,
    /// Sender.
    pub src: SocketAddr,
    /// Receiver.
    pub dst: SocketAddr,
    /// Identification of the IPv4 packet, to tell a copy of a packet from a retransmission.
    pub ip_id: Option<u16>,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// SYN flag.
    pub syn: bool,
    /// FIN flag.
    pub fin: bool,
    /// RST flag.
    pub rst: bool,
    /// Window field, unscaled.
    pub window: u16,
    /// Options.
    pub options: TcpOptions,
    /// Payload on the wire, in bytes.
    pub payload_len: u32,
    /// The first bytes of the payload, as many as were captured.
    pub payload: &'a [u8],
}

/// Options that the analysis uses (RFC 9293 §3.2, RFC 7323, RFC 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size, in SYNs.
    pub mss: Option<u16>,
    /// Window scale, in SYNs.
    pub window_scale: Option<u8>,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks: left and right edges.
    pub sack: [Option<(u32, u32)>; SACK_BLOCKS_MAX],
}

/// What a capture contained and what of it could not be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CaptureSummary {
    /// Packets read.
    pub packets: u64,
    /// TCP segments among them.
    pub segments: u64,
    /// Other packets (ARP, UDP, …).
    pub not_tcp: u64,
    /// IP fragments, which are not put together.
    pub fragments: u64,
    /// Packets cut before the end of their TCP header.
    pub cut_headers: u64,
    /// Packets of link types that are not known here.
    pub unknown_link: u64,
    /// Packets without a time (Simple Packet Blocks) or of an interface that was not described.
    pub no_time: u64,
    /// Packets that the capturing program lost, as it says itself.
    pub lost_by_capture: u64,
    /// Why the file was not read to its end: damage, and where. Absent: all of it was read.
    pub stopped: Option<String>,
    /// Bytes from the damage on.
    pub not_read_bytes: u64,
}
