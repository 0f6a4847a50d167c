//! Vital product data pages of INQUIRY (SPC-4 §7.8, SBC-3 §6.6).

use block::DeviceInfo;

use crate::capacity::physical_exponent;
use crate::extended_copy;
use crate::nexus::NexusState;
use crate::port_groups;
use crate::target::TargetConfig;
use crate::unit::LogicalUnit;

/// PERIPHERAL QUALIFIER 3, device type 1Fh: there is no unit.
pub(crate) const NO_UNIT: u8 = 0x7f;

const SUPPORTED_PAGES: u8 = 0x00;
const UNIT_SERIAL_NUMBER: u8 = 0x80;
const DEVICE_IDENTIFICATION: u8 = 0x83;
const EXTENDED_INQUIRY: u8 = 0x86;
const THIRD_PARTY_COPY: u8 = 0x8f;
const BLOCK_LIMITS: u8 = 0xb0;
const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;

/// Ascending, as SPC-4 §7.8.15 wants it.
const PAGES: [u8; 8] = [
    SUPPORTED_PAGES,
    UNIT_SERIAL_NUMBER,
    DEVICE_IDENTIFICATION,
    EXTENDED_INQUIRY,
    THIRD_PARTY_COPY,
    BLOCK_LIMITS,
    BLOCK_DEVICE_CHARACTERISTICS,
    LOGICAL_BLOCK_PROVISIONING,
];

/// A page with its header, if there is such a page.
pub(crate) fn page(nexus: &NexusState, unit: &LogicalUnit, code: u8) -> Option<Vec<u8>> {
    let body = match code {
        _ if !exists(unit, code) => return None,
        SUPPORTED_PAGES => PAGES.into_iter().filter(|page| exists(unit, *page)).collect(),
        UNIT_SERIAL_NUMBER => unit.identity.serial.clone().into_bytes(),
        DEVICE_IDENTIFICATION => identification(&nexus.target.config, unit),
        EXTENDED_INQUIRY => extended_inquiry(),
        THIRD_PARTY_COPY => extended_copy::vpd_page(),
        BLOCK_LIMITS => block_limits(unit),
        BLOCK_DEVICE_CHARACTERISTICS => characteristics(&unit.device.info()),
        LOGICAL_BLOCK_PROVISIONING => provisioning(unit),
        _ => return None,
    };
    let [high, low] = (body.len() as u16).to_be_bytes();
    let mut out = vec![0, code, high, low];
    out.extend(body);
    Some(out)
}

/// A fully provisioned unit has nothing to say about provisioning.
fn exists(unit: &LogicalUnit, code: u8) -> bool {
    code != LOGICAL_BLOCK_PROVISIONING || unit.device.info().can_trim
}

/// PROTOCOL IDENTIFIER of iSCSI, valid in designators with PIV.
const ISCSI: u8 = 0x5;

/// Device Identification (SPC-4 §7.8.6): unit, port and device.
fn identification(config: &TargetConfig, unit: &LogicalUnit) -> Vec<u8> {
    let identity = &unit.identity;
    let mut out = Vec::new();
    // Logical unit, NAA; then T10 vendor ID, for those who want something readable.
    designator(&mut out, 0x01, 0x03, &identity.naa.to_be_bytes());
    let mut t10 = identity.vendor.to_vec();
    t10.extend(identity.serial.as_bytes());
    designator(&mut out, 0x02, 0x01, &t10);
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
    //# The SCSI device name is defined to be the iSCSI name of the node and MUST be used in the
    //# iSCSI protocol.
    // Target port: relative identifier, and its name `NAME,t,0xTAG`.
    let [high, low] = config.relative_port.to_be_bytes();
    designator(&mut out, ISCSI << 4 | 0x01, 0x80 | 0x10 | 0x04, &[0, 0, high, low]);
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
    //# The SCSI port name MUST be used in iSCSI.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.2
    //# When used in SCSI parameter data, the SCSI port name MUST be encoded as:
    let port = format!("{},t,0x{:04x}", config.name, config.portal_group_tag);
    designator(&mut out, ISCSI << 4 | 0x03, 0x80 | 0x10 | 0x08, &name_string(&port));
    // Target port group: the one there is.
    let [high, low] = port_groups::group(config).to_be_bytes();
    designator(&mut out, ISCSI << 4 | 0x01, 0x80 | 0x10 | 0x05, &[0, 0, high, low]);
    // Target device.
    designator(&mut out, ISCSI << 4 | 0x03, 0x80 | 0x20 | 0x08, &name_string(&config.name));
    out
}

/// Extended INQUIRY Data (SPC-4 §7.8.7).
fn extended_inquiry() -> Vec<u8> {
    let mut out = vec![0; 60];
    out[1] = 0x07; // HEADSUP, ORDSUP, SIMPSUP
    out
}

/// Appends a designator: protocol and code set, PIV with association and type, content.
fn designator(out: &mut Vec<u8>, protocol_and_code_set: u8, kind: u8, content: &[u8]) {
    // iSCSI names have at most 223 bytes (RFC 7143 §4.2.7.1); longer ones would not be legal here.
    let content = &content[..content.len().min(255)];
    out.extend([protocol_and_code_set, kind, 0, content.len() as u8]);
    out.extend(content);
}

/// SCSI name string: UTF-8, null-terminated, padded to a multiple of four (SPC-4 §7.8.6.11).
fn name_string(name: &str) -> Vec<u8> {
    let mut out = name.as_bytes().to_vec();
    out.resize((out.len() + 1).next_multiple_of(4), 0);
    out
}

/// Block Limits (SBC-3 §6.6.4).
fn block_limits(unit: &LogicalUnit) -> Vec<u8> {
    let info = unit.device.info();
    let limits = &unit.limits;
    let physical = 1u32 << physical_exponent(unit, &info);
    let mut out = vec![0; 60];
    // Offsets here are those of the page less its header of four bytes.
    out[0] = 0x01; // WSNZ
    out[1] = unit.compare_blocks(&info);
    out[2..4].copy_from_slice(&(physical.min(0xffff) as u16).to_be_bytes());
    out[4..8].copy_from_slice(&limits.transfer_blocks.to_be_bytes());
    out[8..12].copy_from_slice(&limits.transfer_blocks_optimal.to_be_bytes());
    if info.can_trim {
        out[16..20].copy_from_slice(&limits.unmap_blocks.to_be_bytes());
        out[20..24].copy_from_slice(&limits.unmap_descriptors.to_be_bytes());
        out[24..28].copy_from_slice(&physical.to_be_bytes());
        out[28] = 0x80; // UGAVALID: alignment 0
    }
    out[32..40].copy_from_slice(&limits.write_same_blocks.to_be_bytes());
    // Any alignment and granularity; no boundaries within.
    out[40..44].copy_from_slice(&unit.atomic_blocks.to_be_bytes());
    out
}

/// Block Device Characteristics (SBC-3 §6.6.2): no rotation.
fn characteristics(info: &DeviceInfo) -> Vec<u8> {
    let mut out = vec![0; 60];
    out[1] = 1; // MEDIUM ROTATION RATE: non-rotating
    if info.can_trim && info.trim_zeroes {
        out[3] = 0b01 << 6; // WABEREQ: reads are possible right after SANITIZE
    }
    out
}

/// Logical Block Provisioning of a thin unit (SBC-3 §6.6.5).
fn provisioning(unit: &LogicalUnit) -> Vec<u8> {
    let info = unit.device.info();
    const LBPU: u8 = 0x80;
    const LBPWS: u8 = 0x40;
    const LBPWS10: u8 = 0x20;
    let reads_zero = u8::from(info.trim_zeroes) << 2; // LBPRZ
    // THRESHOLD EXPONENT, where there is a threshold; PROVISIONING TYPE: thin.
    let exponent = match unit.space.threshold_bytes {
        0 => 0,
        _ => unit.space.threshold_exponent(&info),
    };
    vec![exponent, LBPU | LBPWS | LBPWS10 | reads_zero, 0x02, 0]
}
