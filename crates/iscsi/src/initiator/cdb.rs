//! Command descriptor blocks that a disk's user sends (SPC-4, SBC-3), and what comes back for
//! those that describe the unit. Bytes only: sends nothing, and trusts no length it is told.

/// A CDB padded to the 16 bytes of a SCSI Command PDU.
pub type Cdb = [u8; 16];

/// Bytes asked for with INQUIRY and MODE SENSE: every page of interest is shorter.
pub const ALLOCATION_LEN: u16 = 255;

/// TEST UNIT READY (SPC-4 §6.47).
pub const TEST_UNIT_READY: Cdb = [0; 16];

fn cdb<const N: usize>(bytes: [u8; N]) -> Cdb {
    let mut cdb = [0; 16];
    cdb[..N].copy_from_slice(&bytes);
    cdb
}

/// INQUIRY, standard data or a VPD page (SPC-4 §6.6).
pub fn inquiry(vpd_page: Option<u8>) -> Cdb {
    let [high, low] = ALLOCATION_LEN.to_be_bytes();
    cdb([0x12, vpd_page.is_some().into(), vpd_page.unwrap_or(0), high, low, 0])
}

/// REPORT LUNS (SPC-4 §6.33) of the units that a host uses.
pub fn report_luns(allocation_len: u32) -> Cdb {
    let [a, b, c, d] = allocation_len.to_be_bytes();
    cdb([0xa0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0])
}

/// The LUNs in the answer to REPORT LUNS that have a number as in a URL, and whether there are more
/// than it holds. Multi-level and extended addresses (SAM-4 §4.6) are left out.
pub fn luns(data: &[u8]) -> (Vec<u16>, bool) {
    let len = be32(data, 0).unwrap_or(0) as usize;
    let list = data.get(8..).unwrap_or_default();
    let numbers = list[..len.min(list.len())].chunks_exact(8).filter_map(|lun| {
        let number = u16::from_be_bytes([lun[0] & 0x3f, lun[1]]);
        // Peripheral addressing on bus 0, and flat addressing; levels below are 0.
        let is_plain = lun[2..].iter().all(|byte| *byte == 0)
            && matches!((lun[0] >> 6, lun[0] & 0x3f), (0, 0) | (1, _));
        is_plain.then_some(number)
    });
    (numbers.collect(), len > list.len())
}

/// MODE SENSE (6) of the caching page without block descriptors (SPC-4 §6.11, SBC-3 §6.5.5).
pub fn mode_sense_caching() -> Cdb {
    cdb([0x1a, 0x08, 0x08, 0, ALLOCATION_LEN as u8, 0])
}

/// READ CAPACITY (10) (SBC-3 §5.15).
pub fn read_capacity10() -> Cdb {
    cdb([0x25])
}

/// READ CAPACITY (16), 32 bytes (SBC-3 §5.16).
pub fn read_capacity16() -> Cdb {
    cdb([0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32])
}

/// With NACA in the CONTROL byte (SAM-5 §5.2): if the command fails, the unit carries out nothing
/// of this nexus behind it.
pub fn with_naca(mut cdb: Cdb) -> Cdb {
    if let Some(control) = scsi::Cdb::control_at(cdb[0]) {
        cdb[control] |= 0x04;
    }
    cdb
}

fn rw(op10: u8, op16: u8, lba: u64, blocks: u32, flags: u8) -> Cdb {
    match (u32::try_from(lba), u16::try_from(blocks)) {
        (Ok(lba), Ok(blocks)) => {
            let ([a, b, c, d], [m, n]) = (lba.to_be_bytes(), blocks.to_be_bytes());
            cdb([op10, flags, a, b, c, d, 0, m, n, 0])
        }
        _ => rw16(op16, lba, blocks, flags),
    }
}

fn rw16(op: u8, lba: u64, blocks: u32, flags: u8) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (op, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// READ (10), or (16) where the address or length needs it (SBC-3 §5.11, §5.13).
pub fn read(lba: u64, blocks: u32) -> Cdb {
    rw(0x28, 0x88, lba, blocks, 0)
}

/// WRITE (10) or (16) (SBC-3 §5.32, §5.34); `fua` sets force unit access.
pub fn write(lba: u64, blocks: u32, fua: bool) -> Cdb {
    rw(0x2a, 0x8a, lba, blocks, u8::from(fua) << 3)
}

/// SYNCHRONIZE CACHE (10) of the whole unit (SBC-3 §5.21).
pub fn synchronize_cache() -> Cdb {
    cdb([0x35])
}

/// WRITE SAME (16) (SBC-3 §5.44) with one block of data, or none where NDOB is set.
pub fn write_same16(lba: u64, blocks: u32, unmap: bool, no_data_out: bool) -> Cdb {
    rw16(0x93, lba, blocks, u8::from(unmap) << 3 | u8::from(no_data_out))
}

/// UNMAP (SBC-3 §5.28) of a parameter list of `list_len` bytes.
pub fn unmap(list_len: u16) -> Cdb {
    let [high, low] = list_len.to_be_bytes();
    cdb([0x42, 0, 0, 0, 0, 0, 0, high, low, 0])
}

/// UNMAP parameter list with the given (LBA, blocks) ranges; at most 4095.
pub fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = (ranges.len().min(4095) * 16) as u16;
    let mut list = Vec::with_capacity(8 + usize::from(descriptors));
    list.extend((descriptors + 6).to_be_bytes());
    list.extend(descriptors.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges.iter().take(4095) {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// GET LBA STATUS (SBC-3 §5.4).
pub fn get_lba_status(lba: u64, allocation_len: u32) -> Cdb {
    let mut cdb = rw16(0x9e, lba, allocation_len, 0);
    cdb[1] = 0x12;
    cdb
}

fn be16(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn be32(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn be64(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Capacity and provisioning (SBC-3 §5.15, §5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes per logical block.
    pub block_len: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_exponent: u8,
    /// LBPME: thin provisioned.
    pub thin: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub thin_reads_zeroes: bool,
}

impl Capacity {
    /// From READ CAPACITY (16) data.
    pub fn parse16(data: &[u8]) -> Option<Self> {
        let at = |i: usize| data.get(i).copied().unwrap_or(0);
        Some(Self {
            blocks: be64(data, 0)?.checked_add(1)?,
            block_len: be32(data, 8)?,
            physical_exponent: at(13) & 0x0f,
            thin: at(14) & 0x80 != 0,
            thin_reads_zeroes: at(14) & 0x40 != 0,
        })
    }

    /// From READ CAPACITY (10) data; a unit too big for it has no answer here.
    pub fn parse10(data: &[u8]) -> Option<Self> {
        let last = be32(data, 0).filter(|last| *last != u32::MAX)?;
        let block_len = be32(data, 4)?;
        let (physical_exponent, thin, thin_reads_zeroes) = (0, false, false);
        Some(Self {
            blocks: u64::from(last) + 1,
            block_len,
            physical_exponent,
            thin,
            thin_reads_zeroes,
        })
    }
}

/// Standard INQUIRY data (SPC-4 §6.6.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inquiry {
    /// Peripheral device type and qualifier; 0 is a disk that is there.
    pub peripheral: u8,
    /// Vendor, printable ASCII.
    pub vendor: String,
    /// Product.
    pub product: String,
    /// Revision.
    pub revision: String,
    /// NORMACA: it knows the NACA bit.
    pub aca: bool,
}

/// ASCII of an INQUIRY field, with everything that is not printable replaced.
pub fn ascii(field: &[u8]) -> String {
    let text: String =
        field.iter().map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '.' }).collect();
    text.trim_matches([' ', '.']).to_string()
}

impl Inquiry {
    /// `None` if the data is too short to be standard INQUIRY data.
    pub fn parse(data: &[u8]) -> Option<Self> {
        Some(Self {
            peripheral: *data.first()?,
            vendor: ascii(data.get(8..16)?),
            product: ascii(data.get(16..32)?),
            revision: ascii(data.get(32..36)?),
            aca: data[3] & 0x20 != 0,
        })
    }
}

/// The payload of a VPD page, if it is the one that was asked for (SPC-4 §7.8).
pub fn vpd(page: u8, data: &[u8]) -> Option<&[u8]> {
    let len = usize::from(be16(data, 2)?);
    let body = data.get(4..)?;
    (data[1] == page).then(|| &body[..len.min(body.len())])
}

/// The designators of VPD page 83 (SPC-4 §7.8.6): the byte with the code set, the one with
/// association and type, and the designator.
pub fn designators(body: &[u8]) -> impl Iterator<Item = (u8, u8, &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let [code, kind, _, len, tail @ ..] = rest else { return None };
        let (id, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        Some((*code, *kind, id))
    })
}

/// The unit's own name (association 0) from VPD page 83 as text: NAA or EUI-64 in hex, else T10
/// text; the most exact one the page holds.
pub fn device_name(body: &[u8]) -> Option<String> {
    let mut best: Option<(u8, String)> = None;
    for (code, kind, id) in designators(body) {
        if kind & 0x30 != 0 || id.is_empty() {
            continue; // names the port or the target
        }
        let rank = match kind & 0x0f {
            3 => 3, // NAA
            2 => 2, // EUI-64
            1 => 1, // T10 vendor
            _ => 0,
        };
        let text = match code & 0x0f {
            1 => id.iter().map(|b| format!("{b:02x}")).collect(),
            _ => ascii(id),
        };
        if best.as_ref().is_none_or(|(r, _)| rank > *r) {
            best = Some((rank, text));
        }
    }
    best.map(|(_, text)| text)
}

/// VPD page B0, block limits (SBC-3 §6.6.3). 0 is "not reported".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// Most blocks of one READ or WRITE.
    pub max_transfer_blocks: u32,
    /// Most blocks of one UNMAP.
    pub max_unmap_blocks: u32,
    /// Most ranges of one UNMAP.
    pub max_unmap_ranges: u32,
    /// Most blocks of one WRITE SAME.
    pub max_write_same_blocks: u64,
}

impl BlockLimits {
    /// From the page's payload.
    pub fn parse(body: &[u8]) -> Self {
        Self {
            max_transfer_blocks: be32(body, 4).unwrap_or(0),
            max_unmap_blocks: be32(body, 16).unwrap_or(0),
            max_unmap_ranges: be32(body, 20).unwrap_or(0),
            max_write_same_blocks: be64(body, 32).unwrap_or(0),
        }
    }
}

/// VPD page B2, logical block provisioning (SBC-3 §6.6.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPU: UNMAP is supported.
    pub unmap: bool,
    /// LBPWS: WRITE SAME (16) with UNMAP is supported.
    pub write_same_unmap: bool,
}

impl Provisioning {
    /// From the page's payload.
    pub fn parse(body: &[u8]) -> Self {
        let flags = body.get(1).copied().unwrap_or(0);
        Self { unmap: flags & 0x80 != 0, write_same_unmap: flags & 0x40 != 0 }
    }
}

/// What MODE SENSE (6) says (SPC-4 §7.5.5, SBC-3 §6.5.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// WP: write protected.
    pub write_protected: bool,
    /// DPOFUA: FUA is supported.
    pub fua: bool,
    /// WCE: there is a volatile write cache.
    pub write_cache: bool,
}

impl Mode {
    /// `None` if the data is too short.
    pub fn parse6(data: &[u8]) -> Option<Self> {
        let device = *data.get(2)?;
        let page = data.get(4 + usize::from(*data.get(3)?)..).unwrap_or(&[]);
        let caching = page.first().is_some_and(|code| code & 0x3f == 0x08);
        Some(Self {
            write_protected: device & 0x80 != 0,
            fua: device & 0x10 != 0,
            write_cache: caching && page.get(2).is_some_and(|flags| flags & 0x04 != 0),
        })
    }
}

/// LBA status descriptors as (LBA, blocks, mapped) (SBC-3 §5.4.2).
pub fn lba_status(data: &[u8]) -> Vec<(u64, u32, bool)> {
    let len = be32(data, 0).map_or(0, |len| (len as usize).saturating_sub(4));
    let body = data.get(8..).unwrap_or(&[]);
    body[..len.min(body.len())]
        .chunks_exact(16)
        .filter_map(|d| Some((be64(d, 0)?, be32(d, 8)?, !is_unmapped(d[12] & 0x0f))))
        .collect()
}

/// Whether a PROVISIONING STATUS says that nothing is stored there: deallocated, anchored.
/// The others say that something is, or that it is not known (0h; SBC-4 has 3h and 4h for these).
fn is_unmapped(status: u8) -> bool {
    matches!(status, 1 | 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_known_to_be_unmapped_counts_as_data() {
        let mut data = (4_u32 + 16 * 5).to_be_bytes().to_vec();
        data.extend([0; 4]);
        for status in 0_u8..5 {
            data.extend(u64::from(status).to_be_bytes());
            data.extend([0, 0, 0, 1, status, 0, 0, 0]);
        }
        let mapped: Vec<bool> = lba_status(&data).iter().map(|(.., mapped)| *mapped).collect();
        assert_eq!(mapped, [true, false, false, true, true]);
    }

    #[test]
    fn ten_byte_commands_where_they_do_and_sixteen_where_they_must() {
        assert_eq!(read(1, 8)[..10], [0x28, 0, 0, 0, 0, 1, 0, 0, 8, 0]);
        assert_eq!(write(1, 8, true)[..2], [0x2a, 8]);
        assert_eq!(read(1 << 32, 8)[0], 0x88);
        assert_eq!(read(0, 65_536)[..14], [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(get_lba_status(5, 512)[..2], [0x9e, 0x12]);
    }

    #[test]
    fn naca_stands_in_the_last_byte() {
        assert_eq!(with_naca(read(1, 8))[9], 4);
        assert_eq!(with_naca(write(1 << 32, 8, true))[15], 4);
        assert_eq!(with_naca(TEST_UNIT_READY)[5], 4);
        let mut data = [0; 36];
        assert!(!Inquiry::parse(&data).unwrap().aca);
        data[3] = 0x20;
        assert!(Inquiry::parse(&data).unwrap().aca);
    }

    #[test]
    fn unmap_lists_count_their_bytes() {
        let list = unmap_list(&[(0x10, 8), (0x20, 1)]);
        assert_eq!(list.len(), 40);
        assert_eq!(list[..8], [0, 38, 0, 32, 0, 0, 0, 0]);
        assert_eq!(list[24..36], [0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 1]);
    }

    #[test]
    fn the_caching_page_is_found_behind_block_descriptors() {
        let mode = [30, 0, 0x90, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x08, 18, 0x04];
        let expected = Mode { write_protected: true, fua: true, write_cache: true };
        assert_eq!(Mode::parse6(&mode), Some(expected));
        assert_eq!(Mode::parse6(&[0, 0, 0]), None);
    }

    #[test]
    fn the_most_exact_name_of_the_unit_wins() {
        let body = [
            &[0x02, 0x01, 0, 3][..],
            b"ABC",
            &[0x01, 0x13, 0, 1, 9],
            &[0x01, 0x03, 0, 2, 0x60, 0x01],
        ]
        .concat();
        assert_eq!(device_name(&body).as_deref(), Some("6001"));
    }

    #[test]
    fn a_list_of_luns_is_believed_no_further_than_it_goes() {
        let list = |len: u32, all: &[[u8; 8]]| {
            let mut data = len.to_be_bytes().to_vec();
            data.extend([0; 4]);
            data.extend(all.iter().flatten());
            luns(&data)
        };
        let lun_7 = [0, 7, 0, 0, 0, 0, 0, 0];
        let flat_300 = [0x41, 0x2c, 0, 0, 0, 0, 0, 0];
        let second_level = [0, 1, 0, 2, 0, 0, 0, 0];
        let well_known = [0xc1, 1, 0, 0, 0, 0, 0, 0];
        let all = [lun_7, flat_300, second_level, well_known];
        assert_eq!(list(32, &all), (vec![7, 300], false));
        assert_eq!(list(8, &all), (vec![7], false));
        assert_eq!(list(u32::MAX, &all[..1]), (vec![7], true));
        assert_eq!(list(20, &all[..2]), (vec![7, 300], true));
        assert_eq!(luns(&[]), (vec![], false));
        assert_eq!(luns(&[0, 0, 0, 8]), (vec![], true));
    }

    proptest! {
        #[test]
        fn no_answer_of_a_target_panics(data in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = (Capacity::parse16(&data), Capacity::parse10(&data), Inquiry::parse(&data));
            let _ = (Mode::parse6(&data), lba_status(&data), device_name(&data));
            let _ = (BlockLimits::parse(&data), Provisioning::parse(&data), vpd(0x83, &data));
            let _ = super::super::sense::Sense::parse(&data);
        }
    }
}
