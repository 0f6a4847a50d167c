//! [`Sense`]: why a command failed, and both wire formats of it (SPC-4 §4.5).

use block::BlockError;

/// SENSE KEY (SPC-4 table 48).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SenseKey(pub u8);

impl SenseKey {
    /// Nothing to report.
    pub const NO_SENSE: Self = Self(0x0);
    /// The logical unit cannot be accessed.
    pub const NOT_READY: Self = Self(0x2);
    /// The medium is damaged.
    pub const MEDIUM_ERROR: Self = Self(0x3);
    /// The device failed.
    pub const HARDWARE_ERROR: Self = Self(0x4);
    /// The command is wrong.
    pub const ILLEGAL_REQUEST: Self = Self(0x5);
    /// Something happened since the last command.
    pub const UNIT_ATTENTION: Self = Self(0x6);
    /// The block must not be written or read.
    pub const DATA_PROTECT: Self = Self(0x7);
    /// EXTENDED COPY stopped at a segment.
    pub const COPY_ABORTED: Self = Self(0xa);
    /// The device aborted the command.
    pub const ABORTED_COMMAND: Self = Self(0xb);
    /// Data differ from those on the medium.
    pub const MISCOMPARE: Self = Self(0xe);
}

impl std::fmt::Debug for SenseKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::NO_SENSE => f.write_str("NO SENSE"),
            Self::NOT_READY => f.write_str("NOT READY"),
            Self::MEDIUM_ERROR => f.write_str("MEDIUM ERROR"),
            Self::HARDWARE_ERROR => f.write_str("HARDWARE ERROR"),
            Self::ILLEGAL_REQUEST => f.write_str("ILLEGAL REQUEST"),
            Self::UNIT_ATTENTION => f.write_str("UNIT ATTENTION"),
            Self::DATA_PROTECT => f.write_str("DATA PROTECT"),
            Self::COPY_ABORTED => f.write_str("COPY ABORTED"),
            Self::ABORTED_COMMAND => f.write_str("ABORTED COMMAND"),
            Self::MISCOMPARE => f.write_str("MISCOMPARE"),
            Self(other) => write!(f, "sense key {other:#x}"),
        }
    }
}

/// ADDITIONAL SENSE CODE and QUALIFIER.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AdditionalSense(pub u8, pub u8);

macro_rules! additional_sense {
    ($($(#[$doc:meta])* $name:ident = $asc:literal, $ascq:literal;)*) => {
        impl AdditionalSense {
            $($(#[$doc])* pub const $name: Self = Self($asc, $ascq);)*

            /// The name of a known code.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

additional_sense! {
    /// Nothing to add.
    NO_ADDITIONAL_SENSE_INFORMATION = 0x00, 0x00;
    /// The list identifier belongs to a copy that is under way.
    OPERATION_IN_PROGRESS = 0x00, 0x16;
    /// The way to the storage is gone and nothing more is known.
    LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE = 0x04, 0x00;
    /// The port's access state is standby.
    TARGET_PORT_IN_STANDBY_STATE = 0x04, 0x0b;
    /// The port's access state is unavailable.
    TARGET_PORT_IN_UNAVAILABLE_STATE = 0x04, 0x0c;
    /// SANITIZE is at work; the sense data tell how far.
    LOGICAL_UNIT_NOT_READY_SANITIZE_IN_PROGRESS = 0x04, 0x1b;
    /// A segment names a descriptor that is not in the list.
    UNREACHABLE_COPY_TARGET = 0x08, 0x04;
    /// The medium did not take the data.
    WRITE_ERROR = 0x0c, 0x00;
    /// A unit that takes part in a copy refused its half.
    THIRD_PARTY_DEVICE_FAILURE = 0x0d, 0x01;
    /// No unit of this target has the designator.
    COPY_TARGET_DEVICE_NOT_REACHABLE = 0x0d, 0x02;
    /// The unit has blocks of another size.
    INCORRECT_COPY_TARGET_DEVICE_TYPE = 0x0d, 0x03;
    /// The transport delivered another number of bytes than the command needs.
    INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT = 0x0e, 0x03;
    /// The medium did not give the data.
    UNRECOVERED_READ_ERROR = 0x11, 0x00;
    /// The parameter list is cut off in the middle of a field.
    PARAMETER_LIST_LENGTH_ERROR = 0x1a, 0x00;
    /// Compared data differ.
    MISCOMPARE_DURING_VERIFY_OPERATION = 0x1d, 0x00;
    /// No such command here.
    INVALID_COMMAND_OPERATION_CODE = 0x20, 0x00;
    /// The initiator may not do this.
    ACCESS_DENIED_NO_ACCESS_RIGHTS = 0x20, 0x02;
    /// Past the last block.
    LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE = 0x21, 0x00;
    /// A field of the CDB has a value that is not supported.
    INVALID_FIELD_IN_CDB = 0x24, 0x00;
    /// No such logical unit.
    LOGICAL_UNIT_NOT_SUPPORTED = 0x25, 0x00;
    /// A field of the parameter list has a value that is not supported.
    INVALID_FIELD_IN_PARAMETER_LIST = 0x26, 0x00;
    /// The logical unit is read-only.
    WRITE_PROTECTED = 0x27, 0x00;
    /// Nobody may write to the logical unit here.
    LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED = 0x27, 0x02;
    /// A thin logical unit found no storage for the block.
    SPACE_ALLOCATION_FAILED_WRITE_PROTECT = 0x27, 0x07;
    /// RELEASE with another type than that of the reservation held.
    INVALID_RELEASE_OF_PERSISTENT_RESERVATION = 0x26, 0x04;
    /// More CSCD descriptors than can be.
    TOO_MANY_TARGET_DESCRIPTORS = 0x26, 0x06;
    /// CSCD descriptor of a kind that is not supported.
    UNSUPPORTED_TARGET_DESCRIPTOR_TYPE_CODE = 0x26, 0x07;
    /// More segment descriptors than can be.
    TOO_MANY_SEGMENT_DESCRIPTORS = 0x26, 0x08;
    /// Segment descriptor of a kind that is not supported.
    UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE_CODE = 0x26, 0x09;
    /// The segment is not whole blocks of both units.
    UNEXPECTED_INEXACT_SEGMENT = 0x26, 0x0a;
    /// Inline data, of which none are taken.
    INLINE_DATA_LENGTH_EXCEEDED = 0x26, 0x0b;
    /// A medium was put in.
    NOT_READY_TO_READY_CHANGE = 0x28, 0x00;
    /// First command after the logical unit or the nexus came up.
    POWER_ON_RESET_OR_BUS_DEVICE_RESET_OCCURRED = 0x29, 0x00;
    /// A LUN RESET or TARGET RESET was done.
    BUS_DEVICE_RESET_FUNCTION_OCCURRED = 0x29, 0x03;
    /// The nexus was lost and is back; the logical unit was up all the time.
    I_T_NEXUS_LOSS_OCCURRED = 0x29, 0x07;
    /// MODE SELECT of another nexus.
    MODE_PARAMETERS_CHANGED = 0x2a, 0x01;
    /// CLEAR or PREEMPT of another nexus took the reservation.
    RESERVATIONS_PREEMPTED = 0x2a, 0x03;
    /// The reservation this nexus had a part in is gone.
    RESERVATIONS_RELEASED = 0x2a, 0x04;
    /// PREEMPT of another nexus took the registration.
    REGISTRATIONS_PREEMPTED = 0x2a, 0x05;
    /// The target was given another access state.
    ASYMMETRIC_ACCESS_STATE_CHANGED = 0x2a, 0x06;
    /// The logical unit has another size now.
    CAPACITY_DATA_HAS_CHANGED = 0x2a, 0x09;
    /// CLEAR TASK SET of another nexus.
    COMMANDS_CLEARED_BY_ANOTHER_INITIATOR = 0x2f, 0x00;
    /// SANITIZE did not reach its end.
    SANITIZE_COMMAND_FAILED = 0x31, 0x03;
    /// Storage behind a thin logical unit runs low.
    THIN_PROVISIONING_SOFT_THRESHOLD_REACHED = 0x38, 0x07;
    /// Saved values of mode pages were asked for.
    SAVING_PARAMETERS_NOT_SUPPORTED = 0x39, 0x00;
    /// There is no medium.
    MEDIUM_NOT_PRESENT = 0x3a, 0x00;
    /// Logical units were added or removed.
    REPORTED_LUNS_DATA_HAS_CHANGED = 0x3f, 0x0e;
    /// The device failed in a way that no other code tells.
    INTERNAL_TARGET_FAILURE = 0x44, 0x00;
    /// The transport brought something that has no meaning here, such as an ACA command without
    /// ACA.
    INVALID_MESSAGE_ERROR = 0x49, 0x00;
    /// Somebody wants the medium to stay.
    MEDIUM_REMOVAL_PREVENTED = 0x53, 0x02;
    /// No memory for the command now.
    INSUFFICIENT_RESOURCES = 0x55, 0x03;
    /// As many nexuses are registered as can be.
    INSUFFICIENT_REGISTRATION_RESOURCES = 0x55, 0x04;
}

impl std::fmt::Debug for AdditionalSense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(asc, ascq) = self;
        write!(f, "{asc:02x}/{ascq:02x}")?;
        self.name().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// Where the mistake is (SPC-4 §4.5.2.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldPointer {
    in_cdb: bool,
    byte: u16,
    bit: Option<u8>,
}

impl FieldPointer {
    fn encode(self) -> [u8; 3] {
        let bit = self.bit.map_or(0, |bit| 0x08 | bit & 7);
        let [high, low] = self.byte.to_be_bytes();
        [0x80 | u8::from(self.in_cdb) << 6 | bit, high, low]
    }
}

/// SENSE KEY SPECIFIC (SPC-4 §4.5.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySpecific {
    /// With ILLEGAL REQUEST.
    Field(FieldPointer),
    /// With NOT READY: 65536ths done.
    Progress(u16),
}

impl KeySpecific {
    fn encode(self) -> [u8; 3] {
        match self {
            Self::Field(field) => field.encode(),
            Self::Progress(progress) => {
                let [high, low] = progress.to_be_bytes();
                [0x80, high, low]
            }
        }
    }
}

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sense {
    /// The kind of trouble.
    pub key: SenseKey,
    /// The trouble.
    pub additional: AdditionalSense,
    /// INFORMATION: an LBA, or the byte offset of a miscompare.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command_specific: Option<u64>,
    pub(crate) specific: Option<KeySpecific>,
    /// The logical unit reports in descriptor format (D_SENSE of the Control mode page).
    pub(crate) descriptor_format: bool,
}

impl Sense {
    /// Sense data with nothing but the codes.
    pub const fn new(key: SenseKey, additional: AdditionalSense) -> Self {
        Self {
            key,
            additional,
            information: None,
            command_specific: None,
            specific: None,
            descriptor_format: false,
        }
    }

    /// Nothing to report.
    pub const NONE: Self =
        Self::new(SenseKey::NO_SENSE, AdditionalSense::NO_ADDITIONAL_SENSE_INFORMATION);

    pub(crate) const fn illegal(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, additional)
    }

    /// INVALID FIELD IN CDB, pointing at a byte and the highest bit of the field in it.
    pub(crate) const fn invalid_cdb(byte: u16, bit: u8) -> Self {
        let mut sense = Self::illegal(AdditionalSense::INVALID_FIELD_IN_CDB);
        let field = FieldPointer { in_cdb: true, byte, bit: Some(bit) };
        sense.specific = Some(KeySpecific::Field(field));
        sense
    }

    /// INVALID FIELD IN PARAMETER LIST, pointing at a byte.
    pub(crate) const fn invalid_parameter(byte: u16) -> Self {
        Self::illegal(AdditionalSense::INVALID_FIELD_IN_PARAMETER_LIST).with_parameter(byte)
    }

    /// Pointing at a byte of the parameter list.
    pub(crate) const fn with_parameter(mut self, byte: u16) -> Self {
        let field = FieldPointer { in_cdb: false, byte, bit: None };
        self.specific = Some(KeySpecific::Field(field));
        self
    }

    /// With how far something has come, in 65536ths.
    pub(crate) const fn with_progress(mut self, progress: u16) -> Self {
        self.specific = Some(KeySpecific::Progress(progress));
        self
    }

    /// LOGICAL BLOCK ADDRESS OUT OF RANGE. INFORMATION is the first address that does not exist.
    pub(crate) const fn lba_out_of_range(lba: u64) -> Self {
        Self::illegal(AdditionalSense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE).with_information(lba)
    }

    pub(crate) const fn unit_attention(additional: AdditionalSense) -> Self {
        Self::new(SenseKey::UNIT_ATTENTION, additional)
    }

    pub(crate) const fn write_protected() -> Self {
        Self::new(SenseKey::DATA_PROTECT, AdditionalSense::WRITE_PROTECTED)
    }

    pub(crate) const fn miscompare(offset: u64) -> Self {
        Self::new(SenseKey::MISCOMPARE, AdditionalSense::MISCOMPARE_DURING_VERIFY_OPERATION)
            .with_information(offset)
    }

    pub(crate) const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// What a device's error means to an initiator. `lba` is the first block of the operation.
    pub(crate) fn from_block(error: &BlockError, writing: bool, lba: u64) -> Self {
        match error {
            BlockError::OutOfRange { .. } => Self::lba_out_of_range(lba),
            BlockError::ReadOnly => Self::write_protected(),
            // SBC-3 §4.7.3.6: the initiator learns that storage ran out, and may trim or wait.
            BlockError::NoSpace => Self::new(
                SenseKey::DATA_PROTECT,
                AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT,
            )
            .with_information(lba),
            BlockError::Medium(_) => {
                let additional = match writing {
                    true => AdditionalSense::WRITE_ERROR,
                    false => AdditionalSense::UNRECOVERED_READ_ERROR,
                };
                Self::new(SenseKey::MEDIUM_ERROR, additional).with_information(lba)
            }
            // Not RESERVATION CONFLICT: that speaks of reservations of this unit, and an initiator
            // that holds one here would look for who has taken it. To try again is of no use.
            BlockError::Fenced => Self::new(
                SenseKey::DATA_PROTECT,
                match writing {
                    true => AdditionalSense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED,
                    false => AdditionalSense::ACCESS_DENIED_NO_ACCESS_RIGHTS,
                },
            ),
            // A path error, not a medium error: multipath software may try another target.
            BlockError::Unreachable(_) => Self::new(
                SenseKey::NOT_READY,
                AdditionalSense::LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE,
            ),
            _ => Self::new(SenseKey::HARDWARE_ERROR, AdditionalSense::INTERNAL_TARGET_FAILURE),
        }
    }

    /// The bytes for the wire, in the format that the logical unit is set to.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.descriptor_format {
            self.to_descriptor_bytes()
        } else {
            self.to_fixed_bytes().to_vec()
        }
    }

    /// Fixed format, current error (SPC-4 §4.5.3): 18 bytes. An INFORMATION of more than 32 bits
    /// does not fit and is left out.
    pub fn to_fixed_bytes(&self) -> [u8; 18] {
        let mut out = [0; 18];
        out[0] = 0x70;
        if let Some(Ok(information)) = self.information.map(u32::try_from) {
            out[0] |= 0x80; // VALID
            out[3..7].copy_from_slice(&information.to_be_bytes());
        }
        out[2] = self.key.0;
        out[7] = 10; // ADDITIONAL SENSE LENGTH
        out[12] = self.additional.0;
        out[13] = self.additional.1;
        if let Some(Ok(information)) = self.command_specific.map(u32::try_from) {
            out[8..12].copy_from_slice(&information.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            out[15..18].copy_from_slice(&specific.encode());
        }
        out
    }

    /// Descriptor format, current error (SPC-4 §4.5.2).
    pub fn to_descriptor_bytes(&self) -> Vec<u8> {
        let mut out = vec![0x72, self.key.0, self.additional.0, self.additional.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            out.extend([0x00, 0x0a, 0x80, 0]);
            out.extend(information.to_be_bytes());
        }
        if let Some(information) = self.command_specific {
            out.extend([0x01, 0x0a, 0, 0]);
            out.extend(information.to_be_bytes());
        }
        if let Some(specific) = self.specific {
            out.extend([0x02, 0x06, 0, 0]);
            out.extend(specific.encode());
            out.push(0);
        }
        out[7] = (out.len() - 8) as u8;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_format() {
        let sense = Sense::lba_out_of_range(0x1234);
        let bytes = sense.to_fixed_bytes();
        assert_eq!(bytes, [0xf0, 0, 5, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x21, 0, 0, 0, 0, 0]);
        let sense = Sense::invalid_cdb(1, 7);
        let bytes = sense.to_fixed_bytes();
        assert_eq!(bytes, [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcf, 0, 1]);
        let bytes = Sense::invalid_parameter(0x102).to_fixed_bytes();
        assert_eq!(bytes[15..], [0x80, 1, 2]);
        let beyond = Sense::lba_out_of_range(1 << 32).to_fixed_bytes();
        assert_eq!(beyond[..7], [0x70, 0, 5, 0, 0, 0, 0], "INFORMATION does not fit");
    }

    #[test]
    fn descriptor_format() {
        let bytes = Sense::lba_out_of_range(1 << 32).to_descriptor_bytes();
        let head = [0x72, 5, 0x21, 0, 0, 0, 0, 12, 0, 0x0a, 0x80, 0];
        assert_eq!(bytes[..12], head);
        assert_eq!(bytes[12..], (1u64 << 32).to_be_bytes());
        let bytes = Sense::invalid_cdb(7, 2).to_descriptor_bytes();
        assert_eq!(bytes, [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xca, 0, 7, 0]);
    }

    #[test]
    fn device_errors() {
        let medium = || BlockError::Medium(std::io::Error::other("damaged"));
        let cases = [
            (BlockError::NoSpace, true, 0x7, 0x27, 0x07),
            (BlockError::ReadOnly, true, 0x7, 0x27, 0x00),
            (BlockError::Fenced, true, 0x7, 0x27, 0x02),
            (BlockError::Fenced, false, 0x7, 0x20, 0x02),
            (medium(), true, 0x3, 0x0c, 0x00),
            (medium(), false, 0x3, 0x11, 0x00),
            (BlockError::Unreachable("far".into()), false, 0x2, 0x04, 0x00),
            (BlockError::Unsupported("x"), false, 0x4, 0x44, 0x00),
        ];
        for (error, writing, key, asc, ascq) in cases {
            let sense = Sense::from_block(&error, writing, 7);
            let codes = (sense.key, sense.additional);
            assert_eq!(codes, (SenseKey(key), AdditionalSense(asc, ascq)), "{error}");
        }
    }
}
