//! What we want of a negotiation, in either role.

use super::params::{DigestKind, SessionParams, TaskReporting};

/// What to say about a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPreference {
    /// None, and nothing else.
    Never,
    /// None if the peer agrees, CRC32C if it insists. For a LAN: TCP's checksum and the link's CRC
    /// catch what a switch breaks, and CRC32C costs time at 10 Gbit/s.
    #[default]
    Avoid,
    /// CRC32C if the peer can do it. For a WAN: middleboxes rewrite segments and their checksums.
    Prefer,
    /// CRC32C, or the login fails.
    Require,
}

impl DigestPreference {
    /// Acceptable kinds, the best first.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
    //# The following table lists cyclic integrity checksums that can be negotiated for the digests
    //# and MUST be implemented by every iSCSI initiator and target.
    pub const fn kinds(self) -> &'static [DigestKind] {
        match self {
            Self::Never => &[DigestKind::None],
            Self::Avoid => &[DigestKind::None, DigestKind::Crc32c],
            Self::Prefer => &[DigestKind::Crc32c, DigestKind::None],
            Self::Require => &[DigestKind::Crc32c],
        }
    }
}

/// What we offer, or accept at most, for each key.
///
/// [`Default`] is tuned for a long-fat path (1 Gbit/s and more, up to 300 ms): as few round trips
/// per write as possible and bursts that do not end before the pipe is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Our value for each key of the session; the result is what both agree on.
    pub session: SessionParams,
    /// HeaderDigest.
    pub header_digest: DigestPreference,
    /// DataDigest.
    pub data_digest: DigestPreference,
    /// Longest data segment we accept.
    pub max_recv_data_segment_length: u32,
}

impl Default for Offer {
    fn default() -> Self {
        Self {
            session: SessionParams {
                // The target's limit; an initiator opens as many as its policy asks for.
                max_connections: 64,
                initial_r2t: false,
                immediate_data: true,
                // 16 MiB is one past the limit of 24 bits; whole 4 KiB blocks below it.
                max_burst_length: (1 << 24) - 4096,
                first_burst_length: 262_144,
                default_time2wait: 2,
                default_time2retain: 20,
                // 16 × 16 MiB asked for ahead cover 1 Gbit/s × 300 ms several times over, and one
                // command of any size in one round trip.
                max_outstanding_r2t: 16,
                data_pdu_in_order: true,
                data_sequence_in_order: true,
                error_recovery_level: 0,
                task_reporting: TaskReporting::FastAbort,
                protocol_level: 2,
            },
            header_digest: DigestPreference::default(),
            data_digest: DigestPreference::default(),
            max_recv_data_segment_length: 262_144,
        }
    }
}
