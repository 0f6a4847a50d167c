//! One event, as the programs of `ebpf/` tell it and recordings keep it (`ebpf/event.h`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Serialize, Serializer};

use crate::sample::{Connection, canonical};

/// Bytes of an event in the ring buffer and in recordings.
pub const EVENT_BYTES: usize = 112;
const DSACK: u8 = 1;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A segment has arrived: how the connection stands (`tcp_probe`).
    Probe = 1,
    /// A segment was sent again.
    Retransmit = 2,
    /// A duplicate acknowledgement (RFC 5681 §2) has arrived.
    DuplicateAck = 3,
    /// An acknowledgement with SACK blocks (RFC 2018) has arrived.
    Sack = 4,
    /// The retransmission timer has expired (RFC 6298).
    Rto = 5,
    /// The application has waited for room in the send buffer.
    SendWait = 6,
    /// The own network device had no room, or ECN said so of the path: the congestion window is
    /// reduced.
    LocalCongestion = 7,
}

/// Every kind, in the order of their numbers.
pub const KINDS: [Kind; 7] = [
    Kind::Probe,
    Kind::Retransmit,
    Kind::DuplicateAck,
    Kind::Sack,
    Kind::Rto,
    Kind::SendWait,
    Kind::LocalCongestion,
];

impl Kind {
    /// Its name in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Retransmit => "retransmit",
            Self::DuplicateAck => "duplicate_ack",
            Self::Sack => "sack",
            Self::Rto => "rto",
            Self::SendWait => "send_wait",
            Self::LocalCongestion => "local_congestion",
        }
    }

    /// Its place in [`KINDS`].
    pub(super) fn index(self) -> usize {
        self as usize - 1
    }

    fn from_code(code: u8) -> Option<Self> {
        KINDS.get(usize::from(code).checked_sub(1)?).copied()
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Something that happened on one connection, and how the connection stood at that moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// What happened.
    pub event: Kind,
    /// When, in nanoseconds of CLOCK_MONOTONIC; in a recording, since 1970.
    #[serde(skip)]
    pub at_ns: u64,
    /// Which connection.
    #[serde(flatten)]
    pub connection: Connection,
    /// Events of this kind on this connection until now, also those that were not told.
    pub number: u32,
    /// Events of any kind that were lost until now, because nobody fetched them in time.
    #[serde(skip)]
    pub lost: u32,
    /// The congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
    pub ca_state: u8,
    /// The first SACK block reports a duplicate: something was sent again needlessly (RFC 2883).
    pub dsack: bool,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow-start threshold.
    pub ssthresh_segments: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// The window that the other end announces.
    pub send_window_bytes: u32,
    /// Largest segment that is sent.
    pub mss_bytes: u32,
    /// Memory of what is queued for sending or waits for an acknowledgement.
    pub send_queued_bytes: u32,
    /// Limit of it.
    pub send_buffer_bytes: u32,
    /// Segments sent again, duplicate acknowledgements that arrived as one, or SACK blocks.
    pub segments: u32,
    /// Payload sent again, or payload within the SACK blocks.
    pub bytes: u32,
    /// Segments sent again since the connection began, as TCP_INFO counts them.
    pub total_retrans_segments: u32,
    /// How long the application has waited.
    pub wait_us: u32,
}

impl Event {
    /// Reads an event, little-endian; `None` if it is none that is known here. What follows
    /// [`EVENT_BYTES`] is of a later version and passed over.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < EVENT_BYTES {
            return None;
        }
        let byte = |at: usize| bytes[at];
        let port = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word =
            |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        let long =
            |at: usize| bytes[at..].first_chunk().map_or(0, |long| u64::from_le_bytes(*long));
        let family = byte(19);
        Some(Self {
            event: Kind::from_code(byte(16))?,
            at_ns: long(0),
            connection: Connection {
                local: canonical(address(family, &bytes[24..40])?, port(20)),
                remote: canonical(address(family, &bytes[40..56])?, port(22)),
                cookie: long(8),
            },
            ca_state: byte(17),
            dsack: byte(18) & DSACK != 0,
            number: word(56),
            lost: word(60),
            cwnd_segments: word(64),
            ssthresh_segments: word(68),
            rtt_us: word(72),
            in_flight_bytes: word(76),
            send_window_bytes: word(80),
            mss_bytes: word(84),
            send_queued_bytes: word(88),
            send_buffer_bytes: word(92),
            segments: word(96),
            bytes: word(100),
            total_retrans_segments: word(104),
            wait_us: word(108),
        })
    }
}

fn address(family: u8, bytes: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => bytes.first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets).into()),
        libc::AF_INET6 => bytes.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets).into()),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An event whose every 32-bit word from `number` on is its own offset.
    pub(in crate::events) fn raw(kind: u8, family: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(5_000_000_007_u64.to_le_bytes());
        bytes.extend(99_u64.to_le_bytes());
        bytes.extend([kind, 3, 1, u8::try_from(family).unwrap()]);
        bytes.extend(3260_u16.to_le_bytes());
        bytes.extend(50_000_u16.to_le_bytes());
        bytes.extend([10, 77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([10, 77, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        for at in (56_u32..112).step_by(4) {
            bytes.extend(at.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn every_field_is_where_the_programs_put_it() {
        let bytes = raw(2, libc::AF_INET);
        assert_eq!(bytes.len(), EVENT_BYTES);
        let event = Event::decode(&bytes).unwrap();
        let expected = Event {
            event: Kind::Retransmit,
            at_ns: 5_000_000_007,
            connection: Connection {
                local: "10.77.0.1:3260".parse().unwrap(),
                remote: "10.77.0.2:50000".parse().unwrap(),
                cookie: 99,
            },
            number: 56,
            lost: 60,
            ca_state: 3,
            dsack: true,
            cwnd_segments: 64,
            ssthresh_segments: 68,
            rtt_us: 72,
            in_flight_bytes: 76,
            send_window_bytes: 80,
            mss_bytes: 84,
            send_queued_bytes: 88,
            send_buffer_bytes: 92,
            segments: 96,
            bytes: 100,
            total_retrans_segments: 104,
            wait_us: 108,
        };
        assert_eq!(event, expected);
    }

    #[test]
    fn addresses_are_of_either_family_and_mapped_ones_are_ipv4() {
        let six = Event::decode(&raw(1, libc::AF_INET6)).unwrap();
        assert_eq!(six.connection.local.to_string(), "[a4d:1::]:3260");
        assert_eq!(six.connection.remote.to_string(), "[a4d:2::9]:50000");
        let mut mapped = raw(1, libc::AF_INET6);
        mapped[24..40].copy_from_slice(&"::ffff:192.0.2.7".parse::<Ipv6Addr>().unwrap().octets());
        let mapped = Event::decode(&mapped).unwrap();
        assert_eq!(mapped.connection.local.to_string(), "192.0.2.7:3260");
    }

    #[test]
    fn what_is_no_event_is_none() {
        let good = raw(1, libc::AF_INET);
        assert_eq!(Event::decode(&good[..EVENT_BYTES - 1]), None);
        assert_eq!(Event::decode(&[]), None);
        for kind in [0, 8, 255] {
            assert_eq!(Event::decode(&raw(kind, libc::AF_INET)), None, "kind {kind}");
        }
        assert_eq!(Event::decode(&raw(1, libc::AF_UNIX)), None);
        let mut longer = good.clone();
        longer.extend([0; 24]);
        assert_eq!(Event::decode(&longer), Event::decode(&good));
    }

    #[test]
    fn kinds_have_names_and_places() {
        for (code, kind) in (1..).zip(KINDS) {
            assert_eq!(Kind::from_code(code), Some(kind));
            assert_eq!(KINDS[kind.index()], kind);
        }
        let names: std::collections::HashSet<_> = KINDS.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(names.len(), KINDS.len());
    }
}
