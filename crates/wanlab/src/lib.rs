//! Network namespaces joined by an emulated long-fat link.
//!
//! A [`Lab`] is network namespaces on this machine and lines between them. A pair has two, `near`
//! and `far`, and a line each way; a star has nodes around a switch ([`Topology`]). Each direction
//! has a rate, a delay with or without jitter, random and bursty loss, a policer, and a DropTail
//! queue in packets or bytes, for all or for each class by DSCP ([`Classes`]), with or without a
//! threshold for ECN; all of it can change while traffic flows ([`Settings`], [`Profile`]). [`run`]
//! executes one command at each end of a pair; [`up`] keeps a lab in the background. No product
//! code is linked here: what is measured in the lab is a black box to it.
//!
//! The line is emulated in user space between TUN devices with segmentation offload, because
//! the kernels that this project is tested on have no netem, and because the line's own counters
//! (what was dropped, and why) are part of the result. The way of a packet:
//!
//! TUN device → [`link::Link`], segment by segment → log of packets under way → TUN device, or in
//! a star a switch and the line behind it.
//!
//! # What the rate means
//!
//! Bits per second *on the wire* of an Ethernet line: every segment counts with its IP bytes and
//! the 38 bytes of preamble, header, checksum and gap, and no less than the shortest frame. So a
//! line of 1 Gbit/s with MTU 1500 carries 941 Mbit/s of TCP payload over IPv4, as the real one
//! does; [`tcp_payload_limit_bits_per_s`] computes this limit.
//!
//! # What TCP sees
//!
//! The emulator takes packets from the sending device at once and queues them itself, so senders
//! meet DropTail, not back-pressure. Super-packets are accounted segment by segment and arrive
//! with their last segment; where a segment is dropped, the others go on as smaller super-packets.
//! Packets of a class keep their order unless the jitter says otherwise, also when a delay falls.
//! Packets under way are in memory: rate × delay, and the queue.

mod burst;
mod capture;
mod classes;
mod config;
mod control;
mod counters;
mod direction;
mod emulator;
mod group;
mod gso;
mod guardian;
mod ip;
mod jitter;
mod lab;
pub mod link;
mod netns;
mod node;
mod owner;
mod packet_log;
mod policer;
mod profile;
mod random;
mod run;
mod scheduler;
mod settings;
mod signals;
mod sys;
mod topology;
mod tun;
pub mod units;
mod waits;

pub use burst::{BurstError, GilbertElliott};
pub use capture::{CaptureConfig, SNAP_BYTES_DEFAULT};
pub use classes::{Classes, ClassesError, Order};
pub use config::{
    ConfigError, DirectionConfig, ETHERNET_MIN_WIRE_BYTES, ETHERNET_OVERHEAD_BYTES, IpVersion,
    LabConfig, MTU_MAX, MTU_MIN, Queue, QueueError, TcpBuffer, TcpBufferError,
    tcp_payload_limit_bits_per_s,
};
pub use control::{ControlError, LabName};
pub use counters::{ClassCounters, Counters};
pub use jitter::{Distribution, Jitter, JitterError};
pub use lab::{End, Lab, LabError, LabSpec, TcpSettings};
pub use node::NodeLines;
pub use owner::{ShowReport, UpSpec, up};
pub use policer::{Policer, PolicerError};
pub use profile::{Profile, ProfileError};
pub use run::{FarCommand, Ready, RunError, RunReport, RunSpec, run};
pub use settings::{EachWay, SettingError, Settings, Side, Sysctl};
pub use topology::{EmulatorStats, NodeStats, Topology};
pub use tun::{DEVICE, FAR_V4, FAR_V6, NEAR_V4, NEAR_V6};
pub use waits::Waits;
