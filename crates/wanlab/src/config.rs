//! What a lab is asked to be: one [`DirectionConfig`] each way, the MTU, the TCP buffers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::burst::GilbertElliott;
use crate::classes::Classes;
use crate::jitter::Jitter;
use crate::node::NodeLines;
use crate::policer::Policer;
use crate::settings::Sysctl;
use crate::units::{UnitError, parse_size};

/// What Ethernet adds to every IP packet on the wire: preamble and start delimiter 8, header 14,
/// frame check sequence 4, gap between frames 12.
pub const ETHERNET_OVERHEAD_BYTES: u32 = 38;

/// The shortest time an Ethernet frame takes: 46 bytes of payload and the overhead.
pub const ETHERNET_MIN_WIRE_BYTES: u32 = 46 + ETHERNET_OVERHEAD_BYTES;

/// IPv6 refuses links with a smaller MTU (RFC 8200 §5); both protocols are always configured.
pub const MTU_MIN: u32 = 1280;

/// The largest MTU that a TUN device accepts.
pub const MTU_MAX: u32 = 65_535;

/// Half an hour. More is a slip of the unit, and times are added to a 64-bit clock.
const DELAY_MAX: Duration = Duration::from_secs(1800);

/// 10 Tbit/s; above it a segment would take less than the clock's resolution of 1 ns.
pub(crate) const RATE_MAX_BITS_PER_S: u64 = 10_000_000_000_000;

/// Tells the two directions' seeds apart; a number that JSON readers keep exact, and far from the
/// small ones that people use.
pub(crate) const SEED_BACK: u64 = 1 << 40;

/// One direction of the link.
///
/// `Default` is a gigabit line without delay or loss.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DirectionConfig {
    /// Bits per second on the wire, where a packet counts with [`ETHERNET_OVERHEAD_BYTES`].
    pub rate_bits_per_s: u64,
    /// From the end of a packet's serialisation to its delivery.
    #[serde(rename = "delay_us", serialize_with = "as_micros")]
    pub delay: Duration,
    /// How the delay varies.
    pub jitter: Option<Jitter>,
    /// Probability of each segment to be lost on the line, after it took its time there.
    pub loss: f64,
    /// Loss in bursts, besides the above.
    pub burst: Option<GilbertElliott>,
    /// What exceeds it is dropped before the queue.
    pub police: Option<Policer>,
    /// DropTail: what fits in while earlier segments wait or are being sent.
    #[serde(flatten)]
    pub queue: Queue,
    /// Packets that find so much waiting are marked or dropped (RFC 3168); each class of its own.
    pub ecn: Option<Queue>,
    /// Who waits together and goes first; without them all do, and the first to come.
    pub classes: Option<Classes>,
    /// Same seed, same losses (of the n-th segment on the line).
    pub seed: u64,
}

impl Default for DirectionConfig {
    fn default() -> Self {
        Self {
            rate_bits_per_s: 1_000_000_000,
            delay: Duration::ZERO,
            jitter: None,
            loss: 0.0,
            burst: None,
            police: None,
            queue: Queue::Packets(2000),
            ecn: None,
            classes: None,
            seed: 1,
        }
    }
}

impl DirectionConfig {
    /// Checks every value of this direction.
    fn validate(&self, direction: &'static str, mtu: u32) -> Result<(), ConfigError> {
        let fail = |what| Err(ConfigError::Direction { direction, what });
        if !(1..=RATE_MAX_BITS_PER_S).contains(&self.rate_bits_per_s) {
            return fail("rate must lie between 1bit and 10tbit");
        }
        if self.delay > DELAY_MAX {
            return fail("delay must not exceed 30 min");
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return fail("loss must lie between 0 and 1");
        }
        let holds_one = |queue| match queue {
            Queue::Packets(packets) => packets > 0,
            Queue::Bytes(bytes) => bytes >= u64::from(mtu),
        };
        if !holds_one(self.queue) {
            return fail("queue must hold at least 1 packet of the MTU");
        }
        // Below it, every packet that cannot be marked would be dropped on an idle line.
        if self.ecn.is_some_and(|threshold| !holds_one(threshold)) {
            return fail("ECN threshold must let at least 1 packet of the MTU pass");
        }
        if let Some(Err(what)) = self.police.map(|policer| policer.validate(mtu)) {
            return fail(what);
        }
        if self.jitter.is_some_and(|jitter| jitter.amount.max(jitter.hold) > DELAY_MAX) {
            return fail("jitter must not exceed 30 min");
        }
        if let Some(Err(what)) = self.burst.map(|burst| burst.validate()) {
            return fail(what);
        }
        Ok(())
    }
}

/// How much waits for the line before more is dropped, what is being sent included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Queue {
    /// So many segments.
    #[serde(rename = "queue_packets")]
    Packets(usize),
    /// So many bytes of IP packets.
    #[serde(rename = "queue_bytes")]
    Bytes(u64),
}

impl Queue {
    /// `2000` packets, or bytes as a size with its unit: `256k`, `9000b`.
    ///
    /// # Errors
    /// When it is neither, or zero.
    pub fn parse(input: &str) -> Result<Self, QueueError> {
        let fail = || QueueError(input.to_owned());
        if let Ok(packets) = input.trim().parse::<usize>() {
            return if packets > 0 { Ok(Self::Packets(packets)) } else { Err(fail()) };
        }
        match parse_size(input) {
            Ok(bytes) if bytes > 0 => Ok(Self::Bytes(bytes)),
            _ => Err(fail()),
        }
    }

    /// Whether a segment would be too much for what waits already.
    pub(crate) fn is_exceeded(self, packets: usize, bytes: u64, ip_bytes: u32) -> bool {
        match self {
            Self::Packets(limit) => packets >= limit,
            Self::Bytes(limit) => bytes + u64::from(ip_bytes) > limit,
        }
    }
}

/// A queue that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "queue {0:?}: a queue holds 1 packet or more, or bytes with their unit, as in 2000 or 256k"
)]
pub struct QueueError(String);

/// The whole lab: two namespaces, `near` and `far`, and what lies between.
///
/// `Default` is a symmetric gigabit line without delay or loss, MTU 1500, and the TCP buffer
/// limits that distributions ship.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LabConfig {
    /// What the near end sends.
    pub near_to_far: DirectionConfig,
    /// What the far end sends.
    pub far_to_near: DirectionConfig,
    /// Largest IP packet in bytes, [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u32,
    /// `net.ipv4.tcp_wmem` of both namespaces.
    pub tcp_wmem: TcpBuffer,
    /// `net.ipv4.tcp_rmem` of both namespaces.
    pub tcp_rmem: TcpBuffer,
    /// Other sysctls, written after these two.
    pub sysctls: Vec<Sysctl>,
    /// Nodes of a star whose lines are others than the two above, by their number.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<usize, NodeLines>,
}

impl Default for LabConfig {
    fn default() -> Self {
        Self::symmetric(DirectionConfig::default(), Duration::ZERO)
    }
}

impl LabConfig {
    /// Both directions alike. `rtt` is halved between them and replaces `line.delay`; the way back
    /// gets its own stream of losses, derived from `line.seed`.
    #[must_use]
    pub fn symmetric(line: DirectionConfig, rtt: Duration) -> Self {
        let there = rtt / 2;
        Self {
            near_to_far: DirectionConfig { delay: there, ..line.clone() },
            far_to_near: DirectionConfig {
                delay: rtt - there,
                seed: line.seed ^ SEED_BACK,
                ..line
            },
            mtu: 1500,
            tcp_wmem: TcpBuffer::WMEM_DEFAULT,
            tcp_rmem: TcpBuffer::RMEM_DEFAULT,
            sysctls: Vec::new(),
            nodes: BTreeMap::new(),
        }
    }

    /// Delay there and back, without queues and serialisation.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.near_to_far.delay + self.far_to_near.delay
    }

    /// Checks every value against what the link can be.
    ///
    /// # Errors
    /// Names the first value that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.near_to_far.validate("near to far", self.mtu)?;
        self.far_to_near.validate("far to near", self.mtu)?;
        for (&node, lines) in &self.nodes {
            let named = |what| ConfigError::Node { node, what: Box::new(what) };
            lines.to_switch.validate("to the switch", self.mtu).map_err(named)?;
            lines.from_switch.validate("from the switch", self.mtu).map_err(named)?;
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(ConfigError::Mtu(self.mtu));
        }
        Ok(())
    }
}

/// A value that no link can have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// One of a direction's values.
    #[error("{direction}: {what}")]
    Direction {
        /// Which way.
        direction: &'static str,
        /// Which value, and what it may be.
        what: &'static str,
    },
    /// One of the values of a node's own lines.
    #[error("node {node}: {what}")]
    Node {
        /// Which node.
        node: usize,
        /// What is wrong there.
        what: Box<ConfigError>,
    },
    /// The number of nodes or networks of a star, or what a star does not have.
    #[error("star: {0}")]
    Star(&'static str),
    /// The MTU.
    #[error("mtu {0} is outside {MTU_MIN}..={MTU_MAX}")]
    Mtu(u32),
}

/// The IP version of a TCP connection, for its header's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVersion {
    /// 20 bytes of header.
    V4,
    /// 40 bytes of header.
    V6,
}

/// What one or many TCP connections can carry at most, in payload bits per second:
/// `rate × MSS / (MTU + 38)`, where the MSS leaves room for the IP header, the TCP header and the
/// time-stamp option (RFC 7323) that Linux always sends. 94.1 % of the rate for IPv4 and MTU 1500.
#[must_use]
pub fn tcp_payload_limit_bits_per_s(rate_bits_per_s: u64, mtu: u32, version: IpVersion) -> f64 {
    const TCP_HEADER_WITH_TIMESTAMPS: u32 = 20 + 12;
    let ip_header = match version {
        IpVersion::V4 => 20,
        IpVersion::V6 => 40,
    };
    let mss = mtu.saturating_sub(ip_header + TCP_HEADER_WITH_TIMESTAMPS);
    rate_bits_per_s as f64 * f64::from(mss) / f64::from(mtu + ETHERNET_OVERHEAD_BYTES)
}

/// `tcp_wmem` or `tcp_rmem`: the three limits of a socket buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpBuffer {
    /// Always granted.
    pub min: u64,
    /// At the start of a connection.
    pub default: u64,
    /// What autotuning may reach.
    pub max: u64,
}

impl TcpBuffer {
    /// What the kernel sets where memory is plenty, and distributions leave alone.
    pub const WMEM_DEFAULT: Self = Self { min: 4096, default: 16_384, max: 4_194_304 };
    /// What the kernel sets where memory is plenty, and distributions leave alone.
    pub const RMEM_DEFAULT: Self = Self { min: 4096, default: 131_072, max: 6_291_456 };

    /// `"min default max"` as in the sysctl, or the max alone (`64M`), which keeps the other two
    /// of `base` as far as they fit below it.
    ///
    /// # Errors
    /// When a number is not a size, there are not one or three, or they do not ascend.
    pub fn parse(input: &str, base: Self) -> Result<Self, TcpBufferError> {
        let sizes = input.split_whitespace().map(parse_size).collect::<Result<Vec<_>, _>>()?;
        let buffer = match *sizes.as_slice() {
            [max] => Self { min: base.min.min(max), default: base.default.min(max), max },
            [min, default, max] => Self { min, default, max },
            _ => return Err(TcpBufferError::Count(input.to_owned())),
        };
        // The kernel keeps these as positive 32-bit integers.
        if buffer.min == 0 || buffer.max > i32::MAX as u64 {
            return Err(TcpBufferError::Range(input.to_owned()));
        }
        if buffer.min > buffer.default || buffer.default > buffer.max {
            return Err(TcpBufferError::Order(input.to_owned()));
        }
        Ok(buffer)
    }

    /// As the sysctl wants it.
    pub(crate) fn sysctl(&self) -> String {
        format!("{} {} {}", self.min, self.default, self.max)
    }
}

/// A TCP buffer setting that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TcpBufferError {
    /// One of the numbers.
    #[error(transparent)]
    Size(#[from] UnitError),
    /// Neither one number nor three.
    #[error("TCP buffer {0:?}: give \"min default max\", or the max alone")]
    Count(String),
    /// Not min ≤ default ≤ max.
    #[error("TCP buffer {0:?}: min, default and max must ascend")]
    Order(String),
    /// Zero, or more than the kernel can hold.
    #[error("TCP buffer {0:?}: sizes must lie between 1 and 2147483647 bytes")]
    Range(String),
}

fn as_micros<S: serde::Serializer>(delay: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(delay.as_nanos() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_odd_rtt_is_kept_whole() {
        let lab = LabConfig::symmetric(DirectionConfig::default(), Duration::from_nanos(7));
        assert_eq!(lab.near_to_far.delay, Duration::from_nanos(3));
        assert_eq!(lab.far_to_near.delay, Duration::from_nanos(4));
        assert_eq!(lab.rtt(), Duration::from_nanos(7));
        assert_ne!(lab.near_to_far.seed, lab.far_to_near.seed);
    }

    #[test]
    fn a_gigabit_carries_941_megabit_of_tcp_payload() {
        let limit = tcp_payload_limit_bits_per_s(1_000_000_000, 1500, IpVersion::V4);
        assert_eq!(limit.round(), 941_482_445.0);
        let limit = tcp_payload_limit_bits_per_s(1_000_000_000, 1500, IpVersion::V6);
        assert_eq!(limit.round(), 928_478_544.0);
    }

    #[test]
    fn tcp_buffers() {
        let base = TcpBuffer::WMEM_DEFAULT;
        let given = TcpBuffer::parse("4k 16k 4M", base);
        assert_eq!(given, Ok(base));
        assert_eq!(TcpBuffer::parse("64M", base), Ok(TcpBuffer { max: 64 << 20, ..base }));
        let small = TcpBuffer { min: 2048, default: 2048, max: 2048 };
        assert_eq!(TcpBuffer::parse("2k", base), Ok(small));
        for bad in ["", "1 2", "3 2 1", "x", "2G", "0 1 2"] {
            assert!(TcpBuffer::parse(bad, base).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn what_no_link_can_have() {
        let spoil = |change: fn(&mut LabConfig)| {
            let mut lab = LabConfig::default();
            change(&mut lab);
            lab.validate().unwrap_err().to_string()
        };
        assert_eq!(LabConfig::default().validate(), Ok(()));
        assert!(spoil(|lab| lab.near_to_far.rate_bits_per_s = 0).contains("near to far: rate"));
        assert!(spoil(|lab| lab.far_to_near.loss = 1.5).contains("far to near: loss"));
        assert!(spoil(|lab| lab.far_to_near.loss = f64::NAN).contains("loss"));
        assert!(spoil(|lab| lab.near_to_far.queue = Queue::Bytes(1499)).contains("queue"));
        assert!(spoil(|lab| lab.near_to_far.delay = Duration::MAX).contains("delay"));
        assert!(spoil(|lab| lab.mtu = 1279).contains("mtu 1279"));
    }
}
