//! What a negotiation ends with: the parameters of a session and of each of its connections.

use super::table::Key;
use crate::frame::{Framing, Limits};

/// A digest algorithm (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DigestKind {
    /// No digest.
    #[default]
    None,
    /// CRC32C.
    Crc32c,
}

impl DigestKind {
    /// The value on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
            //# The constant "None" MUST always be used to indicate a missing function.
            Self::None => "None",
            Self::Crc32c => "CRC32C",
        }
    }
}

/// What a target promises about the order of its answers (§13.23), the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskReporting {
    /// As RFC 3720 has it: nothing.
    #[default]
    Rfc3720,
    /// Response fences (§4.2.2.3.3).
    ResponseFence,
    /// These, and multi-task aborts that wait for no data (§4.2.3.4).
    FastAbort,
}

impl TaskReporting {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::FastAbort, Self::ResponseFence, Self::Rfc3720];

    /// The value on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rfc3720 => "RFC3720",
            Self::ResponseFence => "ResponseFence",
            Self::FastAbort => "FastAbort",
        }
    }

    /// What is offered so that this one is the best: never fewer than two.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
    //# Whenever this key is negotiated, at least the RFC3720 and ResponseFence values MUST be
    //# offered as options by the negotiation originator.
    pub(super) fn offer(self) -> String {
        let best = self.max(Self::ResponseFence);
        let values = Self::ALL.into_iter().filter(|value| *value <= best);
        values.map(Self::as_str).collect::<Vec<_>>().join(",")
    }

    /// The value that `text` names.
    pub fn from_wire(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.as_str() == text)
    }
}

/// Agreed parameters of a session (§13). [`Default`] is the RFC's default for each key: what holds
/// if nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParams {
    /// MaxConnections (§13.2).
    pub max_connections: u16,
    /// InitialR2T (§13.10): no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData (§13.11).
    pub immediate_data: bool,
    /// MaxBurstLength in bytes (§13.13).
    pub max_burst_length: u32,
    /// FirstBurstLength in bytes (§13.14), at most `max_burst_length`. Limits immediate and
    /// unsolicited data together.
    pub first_burst_length: u32,
    /// DefaultTime2Wait in seconds (§13.15).
    pub default_time2wait: u16,
    /// DefaultTime2Retain in seconds (§13.16).
    pub default_time2retain: u16,
    /// MaxOutstandingR2T per task (§13.17).
    pub max_outstanding_r2t: u16,
    /// DataPDUInOrder (§13.18).
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder (§13.19).
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel (§13.20).
    pub error_recovery_level: u8,
    /// TaskReporting (§13.23).
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel (§13.24): 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
}

impl Default for SessionParams {
    fn default() -> Self {
        Self {
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
        }
    }
}

impl SessionParams {
    /// The number that a key sets; 0 for a key that sets none.
    pub(super) fn number(&self, key: Key) -> u32 {
        match key {
            Key::MaxConnections => self.max_connections.into(),
            Key::MaxBurstLength => self.max_burst_length,
            Key::FirstBurstLength => self.first_burst_length,
            Key::DefaultTime2Wait => self.default_time2wait.into(),
            Key::DefaultTime2Retain => self.default_time2retain.into(),
            Key::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Key::ErrorRecoveryLevel => self.error_recovery_level.into(),
            Key::ProtocolLevel => self.protocol_level.into(),
            _ => 0,
        }
    }

    /// Sets it. The table's ranges fit the fields, so that nothing is cut off.
    pub(super) fn set_number(&mut self, key: Key, value: u32) {
        match key {
            Key::MaxConnections => self.max_connections = value as u16,
            Key::MaxBurstLength => self.max_burst_length = value,
            Key::FirstBurstLength => self.first_burst_length = value,
            Key::DefaultTime2Wait => self.default_time2wait = value as u16,
            Key::DefaultTime2Retain => self.default_time2retain = value as u16,
            Key::MaxOutstandingR2T => self.max_outstanding_r2t = value as u16,
            Key::ErrorRecoveryLevel => self.error_recovery_level = value as u8,
            Key::ProtocolLevel => self.protocol_level = value as u8,
            _ => {}
        }
    }

    /// The features of RFC 7144 may be used.
    pub const fn has_rfc7144(&self) -> bool {
        self.protocol_level >= 2
    }

    /// The boolean that a key sets; `false` for a key that sets none.
    pub(super) fn flag(&self, key: Key) -> bool {
        match key {
            Key::InitialR2T => self.initial_r2t,
            Key::ImmediateData => self.immediate_data,
            Key::DataPDUInOrder => self.data_pdu_in_order,
            Key::DataSequenceInOrder => self.data_sequence_in_order,
            _ => false,
        }
    }

    /// Sets it.
    pub(super) fn set_flag(&mut self, key: Key, value: bool) {
        match key {
            Key::InitialR2T => self.initial_r2t = value,
            Key::ImmediateData => self.immediate_data = value,
            Key::DataPDUInOrder => self.data_pdu_in_order = value,
            Key::DataSequenceInOrder => self.data_sequence_in_order = value,
            _ => {}
        }
    }
}

/// Agreed parameters of one connection (§13). [`Default`] is the RFC's default for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParams {
    /// HeaderDigest (§13.1).
    pub header_digest: DigestKind,
    /// DataDigest (§13.1).
    pub data_digest: DigestKind,
    /// Longest data segment we accept: our MaxRecvDataSegmentLength (§13.12).
    pub max_recv_data_segment_length: u32,
    /// Longest data segment we may send: the peer's MaxRecvDataSegmentLength.
    pub max_send_data_segment_length: u32,
}

impl ConnectionParams {
    /// The framing to switch to when login has ended.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
    //# When the initiator and target agree on a digest, this digest MUST be used for every PDU in
    //# the Full Feature Phase.
    pub fn framing(&self) -> Framing {
        Framing {
            header_digest: self.header_digest == DigestKind::Crc32c,
            data_digest: self.data_digest == DigestKind::Crc32c,
        }
    }

    /// The limits to switch to when login has ended.
    pub fn limits(&self) -> Limits {
        Limits::full_feature(self.max_recv_data_segment_length)
    }
}

impl Default for ConnectionParams {
    fn default() -> Self {
        Self {
            header_digest: DigestKind::None,
            data_digest: DigestKind::None,
            max_recv_data_segment_length: 8192,
            max_send_data_segment_length: 8192,
        }
    }
}

/// What the peer declared about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// InitiatorName.
    pub initiator_name: Option<String>,
    /// TargetName.
    pub target_name: Option<String>,
    /// InitiatorAlias or TargetAlias, whichever is the peer's.
    pub alias: Option<String>,
    /// TargetAddress, of a redirection.
    pub target_address: Option<String>,
    /// SessionType.
    pub session_type: Option<String>,
    /// TargetPortalGroupTag.
    pub portal_group_tag: Option<u16>,
}
