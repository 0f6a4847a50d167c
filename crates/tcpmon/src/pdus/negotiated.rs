//! What both sides agreed on, read from the login text in a capture (RFC 7143 §13).

use serde::Serialize;

use super::Direction;

/// Text of one login that is kept until its end.
pub(super) const LOGIN_TEXT_BYTES_MAX: usize = 1 << 16;
/// Names are at most 223 bytes (§4.2.7.1); what is longer is cut.
const NAME_BYTES_MAX: usize = 256;

/// Keys of the login that matter for a transfer; absent: not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Negotiated {
    /// InitiatorName.
    pub initiator_name: Option<String>,
    /// TargetName.
    pub target_name: Option<String>,
    /// HeaderDigest is CRC32C.
    pub header_digest: Option<bool>,
    /// DataDigest is CRC32C.
    pub data_digest: Option<bool>,
    /// InitialR2T.
    pub initial_r2t: Option<bool>,
    /// ImmediateData.
    pub immediate_data: Option<bool>,
    /// FirstBurstLength in bytes.
    pub first_burst_bytes: Option<u32>,
    /// MaxBurstLength in bytes.
    pub max_burst_bytes: Option<u32>,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: Option<u32>,
    /// MaxRecvDataSegmentLength that the initiator declared, in bytes.
    pub initiator_segment_bytes: Option<u32>,
    /// MaxRecvDataSegmentLength that the target declared, in bytes.
    pub target_segment_bytes: Option<u32>,
}

impl Negotiated {
    /// Reads the keys in one login data segment. The target's word is the result of each
    /// negotiation (§6.2); the initiator's offer stands until then.
    pub(super) fn read(&mut self, text: &[u8], direction: Direction) {
        for pair in text.split(|&byte| byte == 0) {
            let Some(at) = pair.iter().position(|&byte| byte == b'=') else { continue };
            let (Ok(key), Ok(value)) =
                (std::str::from_utf8(&pair[..at]), std::str::from_utf8(&pair[at + 1..]))
            else {
                continue;
            };
            self.set(key, value, direction);
        }
    }

    fn set(&mut self, key: &str, value: &str, direction: Direction) {
        let name = || Some(value.chars().take(NAME_BYTES_MAX).collect());
        let yes = || match value {
            "Yes" => Some(true),
            "No" => Some(false),
            _ => None,
        };
        // An offer may be a list; only one value is an agreement.
        let digest = || match value {
            "CRC32C" => Some(true),
            "None" => Some(false),
            _ => None,
        };
        let number = || {
            let hex = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
            hex.map_or_else(|| value.parse(), |hex| u32::from_str_radix(hex, 16)).ok()
        };
        match key {
            "InitiatorName" => self.initiator_name = name(),
            "TargetName" => self.target_name = name(),
            "HeaderDigest" => self.header_digest = digest(),
            "DataDigest" => self.data_digest = digest(),
            "InitialR2T" => self.initial_r2t = yes(),
            "ImmediateData" => self.immediate_data = yes(),
            "FirstBurstLength" => self.first_burst_bytes = number(),
            "MaxBurstLength" => self.max_burst_bytes = number(),
            "MaxOutstandingR2T" => self.max_outstanding_r2t = number(),
            "MaxRecvDataSegmentLength" => match direction {
                Direction::ToTarget => self.initiator_segment_bytes = number(),
                Direction::ToInitiator => self.target_segment_bytes = number(),
            },
            _ => {}
        }
    }
}
