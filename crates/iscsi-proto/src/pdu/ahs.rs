//! Additional header segments: extended CDB and bidirectional read length (RFC 7143 §11.2.2).

use bytes::{BufMut, Bytes, BytesMut};

use super::PduError;

/// Longest part of a CDB beyond its first 16 bytes: SPC-4 ends variable-length CDBs at 260 bytes.
pub const EXTENDED_CDB_MAX: usize = 244;

/// AHSType 1 (§11.2.2.3).
const EXTENDED_CDB: u8 = 1;
/// AHSType 2 (§11.2.2.4).
const BIDI_READ_LENGTH: u8 = 2;

/// The segments a SCSI Command can carry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    /// CDB from byte 16 on, empty without the segment.
    pub(super) extended_cdb: Bytes,
    /// Expected Bidirectional Read Data Transfer Length.
    pub(super) bidi_read_length: Option<u32>,
}

impl Segments {
    pub(super) fn parse(ahs: &Bytes) -> Result<Self, PduError> {
        let mut segments = Self::default();
        let mut seen = 0u8;
        let mut at = 0;
        while at < ahs.len() {
            let truncated = PduError::AhsTruncated { at };
            let [high, low, kind] = ahs.get(at..at + 3).ok_or(truncated.clone())? else {
                return Err(truncated);
            };
            // AHSLength counts what follows AHSType, without padding (§11.2.2.2).
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            let kind = kind & 0x3f;
            let content = ahs.get(at + 3..at + 3 + length).ok_or(truncated)?;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11
            //# Receipt of reserved code values in defined fields MUST be reported as a protocol
            //# error.
            if !matches!(kind, EXTENDED_CDB | BIDI_READ_LENGTH) {
                return Err(PduError::AhsType { kind });
            }
            if seen & (1 << kind) != 0 {
                return Err(PduError::AhsRepeated { kind });
            }
            seen |= 1 << kind;
            let invalid = PduError::AhsLength { kind, length };
            match (kind, content) {
                (EXTENDED_CDB, [_reserved, cdb @ ..]) if cdb.len() <= EXTENDED_CDB_MAX => {
                    segments.extended_cdb = ahs.slice(at + 4..at + 3 + length);
                }
                (BIDI_READ_LENGTH, [_reserved, a, b, c, d]) => {
                    segments.bidi_read_length = Some(u32::from_be_bytes([*a, *b, *c, *d]));
                }
                _ => return Err(invalid),
            }
            at += (3 + length).next_multiple_of(4);
        }
        Ok(segments)
    }

    /// # Panics
    /// If the CDB is longer than [`EXTENDED_CDB_MAX`]: no such command exists.
    pub(super) fn encode(&self) -> Bytes {
        assert!(self.extended_cdb.len() <= EXTENDED_CDB_MAX, "CDB of more than 260 bytes");
        let mut ahs = BytesMut::new();
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.2.3
        //# This type of AHS MUST NOT be used if the CDBLength is less than 17.
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.5
        //# Whenever the CDB is larger than 16 bytes, an Extended CDB AHS MUST be used to contain
        //# the CDB spillover.
        if !self.extended_cdb.is_empty() {
            ahs.put_u16(self.extended_cdb.len() as u16 + 1);
            ahs.put_slice(&[EXTENDED_CDB, 0]);
            ahs.put_slice(&self.extended_cdb);
            ahs.put_bytes(0, ahs.len().next_multiple_of(4) - ahs.len());
        }
        if let Some(length) = self.bidi_read_length {
            ahs.put_u16(5);
            ahs.put_slice(&[BIDI_READ_LENGTH, 0]);
            ahs.put_u32(length);
        }
        ahs.freeze()
    }
}
