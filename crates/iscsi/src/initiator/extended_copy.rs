//! EXTENDED COPY(LID1) and RECEIVE COPY OPERATING PARAMETERS (SPC-4 §6.4, §6.25), as far as a unit
//! is to copy within itself: command blocks, the parameter list, and what is read. Bytes only:
//! sends nothing, decides nothing, and trusts no length it is told.

use block::mirror::CopyRun;

use super::cdb::{Cdb, designators};

/// RECEIVE COPY OPERATING PARAMETERS asks for so many bytes: its fixed part, and descriptor types.
pub(super) const ALLOCATION_LEN: u32 = 512;

/// Descriptor types: block device to block device, and identification descriptor.
const BLOCK_TO_BLOCK: u8 = 0x02;
const IDENTIFICATION: u8 = 0xe4;

const HEADER_LEN: usize = 16;
const CSCD_LEN: usize = 32;
const SEGMENT_LEN: usize = 28;

/// Where the descriptor types begin.
const TYPES_AT: usize = 44;

/// LIST ID USAGE: the list identifier is used and its outcome need not be kept; there is none.
const USAGE_DISCARD: u8 = 0b10 << 3;
const USAGE_NONE: u8 = 0b11 << 3;

/// RECEIVE COPY OPERATING PARAMETERS.
pub(super) fn receive_operating_parameters() -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x84, 0x03);
    cdb[10..14].copy_from_slice(&ALLOCATION_LEN.to_be_bytes());
    cdb
}

/// EXTENDED COPY(LID1) of a parameter list of so many bytes.
pub(super) fn extended_copy(list_len: u32) -> Cdb {
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&list_len.to_be_bytes());
    cdb
}

/// What a copy manager takes of one command with one unit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    /// SNLID: commands need no list identifier.
    pub(super) no_list_id: bool,
    /// The unit is named twice, as source and as destination. Older versions of Linux take the
    /// first descriptor for the source and the second for the destination, whatever segments say.
    pub(super) is_named_twice: bool,
    /// Segment descriptors.
    pub(super) segments_max: usize,
    /// Bytes of one segment; 0 where there is no limit.
    pub(super) segment_bytes_max: u32,
    /// Commands under way.
    pub(super) at_once: usize,
}

impl Parameters {
    /// `Err`: why it is of no use here.
    pub(super) fn parse(data: &[u8]) -> Result<Self, &'static str> {
        let available = number(data, 0, 4).ok_or("its answer is empty")?;
        let data = &data[..data.len().min((available as usize).saturating_add(4))];
        let field = |at, len| number(data, at, len).ok_or("its answer is too short");
        let types_len = field(43, 1)? as usize;
        let types = data.get(TYPES_AT..TYPES_AT + types_len).ok_or("its answer is cut off")?;
        if ![BLOCK_TO_BLOCK, IDENTIFICATION].iter().all(|wanted| types.contains(wanted)) {
            return Err("it does not take descriptors 02h and E4h");
        }
        let list_len = field(12, 4)? as usize;
        let is_named_twice = field(8, 2)? > 1 && list_len >= 2 * CSCD_LEN + SEGMENT_LEN;
        let cscds_len = if is_named_twice { 2 * CSCD_LEN } else { CSCD_LEN };
        let room = list_len.saturating_sub(cscds_len) / SEGMENT_LEN;
        let segments_max = room.min(field(10, 2)? as usize);
        if field(8, 2)? == 0 || segments_max == 0 {
            return Err("it has no room for a unit and a segment");
        }
        let no_list_id = field(4, 1)? & 0x01 != 0;
        // Without SNLID each command under way needs a list identifier of its own.
        let at_once = if no_list_id { (field(34, 2)? as usize).max(1) } else { 1 };
        let segment_bytes_max = field(16, 4)? as u32;
        Ok(Self { no_list_id, is_named_twice, segments_max, segment_bytes_max, at_once })
    }
}

/// The unit itself as source and destination: its identification descriptor (SPC-4 §6.4.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cscd([u8; CSCD_LEN]);

impl Cscd {
    /// By the designator in VPD page 83h that copy managers know best; `None` if there is none that
    /// fits.
    pub(super) fn of(page: &[u8], block_len: u32) -> Option<Self> {
        // Linux takes none but NAA of the type 6h, IEEE registered extended.
        let rank = |kind: u8, name: &[u8]| match kind & 0x0f {
            3 if name[0] >> 4 == 6 => 4,
            3 => 3,
            2 => 2,
            1 => 1,
            _ => 0,
        };
        let fits = |name: &[u8]| (1..=20).contains(&name.len());
        let named = designators(page).filter(|(_, kind, name)| kind & 0x30 == 0 && fits(name));
        let (code, kind, name) = named.max_by_key(|(_, kind, name)| rank(*kind, name))?;
        let mut out = [0; CSCD_LEN];
        (out[0], out[4], out[5], out[7]) =
            (IDENTIFICATION, code & 0x0f, kind & 0x0f, name.len() as u8);
        out[8..8 + name.len()].copy_from_slice(name);
        out[29..32].copy_from_slice(&block_len.to_be_bytes()[1..]);
        Some(Self(out))
    }
}

/// The parameter list. The runs are whole blocks, at most 65,535 each.
pub(super) fn parameter_list(
    cscd: &Cscd,
    block_len: u32,
    parameters: &Parameters,
    runs: &[CopyRun],
) -> Vec<u8> {
    let cscds = 1 + usize::from(parameters.is_named_twice);
    let destination = (cscds - 1) as u8;
    let mut out = vec![0; HEADER_LEN];
    (out[0], out[1]) = if parameters.no_list_id { (0, USAGE_NONE) } else { (1, USAGE_DISCARD) };
    out[2..4].copy_from_slice(&((cscds * CSCD_LEN) as u16).to_be_bytes());
    out[8..12].copy_from_slice(&((runs.len() * SEGMENT_LEN) as u32).to_be_bytes());
    out.extend(cscd.0.repeat(cscds));
    for run in runs {
        let blocks = |bytes: u64| bytes / u64::from(block_len);
        out.extend([BLOCK_TO_BLOCK, 0, 0, (SEGMENT_LEN - 4) as u8, 0, 0, 0, destination, 0, 0]);
        out.extend((blocks(run.len) as u16).to_be_bytes());
        out.extend(blocks(run.from).to_be_bytes());
        out.extend(blocks(run.to).to_be_bytes());
    }
    out
}

fn number(data: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = data.get(at..at + len)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As LIO answers: one segment, one command.
    fn answer() -> Vec<u8> {
        let mut data = vec![0; 46];
        (data[3], data[4], data[9], data[11]) = (42, 1, 2, 1);
        data[12..16].copy_from_slice(&1024u32.to_be_bytes());
        data[16..20].copy_from_slice(&(256u32 << 20).to_be_bytes());
        (data[35], data[36], data[43], data[44], data[45]) = (1, 1, 2, 0x02, 0xe4);
        data
    }

    #[test]
    fn limits_are_those_that_count_for_one_unit() {
        let expected = Parameters {
            no_list_id: true,
            is_named_twice: true,
            segments_max: 1,
            segment_bytes_max: 256 << 20,
            at_once: 1,
        };
        assert_eq!(Parameters::parse(&answer()), Ok(expected));
        let mut many = answer();
        (many[10], many[35]) = (1, 16);
        let found = Parameters::parse(&many).unwrap();
        assert_eq!((found.segments_max, found.at_once), ((1024 - 64) / 28, 16));
        many[9] = 1;
        assert!(!Parameters::parse(&many).unwrap().is_named_twice);
        many[4] = 0;
        assert_eq!(Parameters::parse(&many).unwrap().at_once, 1, "list identifiers are needed");
    }

    #[test]
    fn what_is_of_no_use_says_why() {
        let with = |at: usize, byte| {
            let mut data = answer();
            data[at] = byte;
            Parameters::parse(&data).unwrap_err()
        };
        assert!(with(44, 0x0b).contains("descriptors"));
        assert!(with(11, 0).contains("no room"));
        assert!(with(9, 0).contains("no room"));
        assert!(with(3, 30).contains("too short"));
        assert!(with(43, 3).contains("cut off"));
        assert!(Parameters::parse(&[]).unwrap_err().contains("empty"));
    }

    #[test]
    fn the_unit_is_named_as_copy_managers_want_it() {
        let naa = |first: u8| [&[1, 3, 0, 16, first][..], &[7; 15]].concat();
        let page = [
            &[2, 1, 0, 3][..],
            b"T10",
            &naa(0x50),
            &naa(0x60),
            &[1, 0x13, 0, 2, 0x60, 1], // a port's
        ];
        let found = Cscd::of(&page.concat(), 4096).unwrap().0;
        assert_eq!(found[..8], [0xe4, 0, 0, 0, 1, 3, 0, 16]);
        assert_eq!((found[8], &found[9..24]), (0x60, &[7; 15][..]));
        assert_eq!(found[28..], [0, 0, 0x10, 0]);
        assert_eq!(Cscd::of(&page[5..].concat(), 512), None, "only a port has a name");
        assert_eq!(Cscd::of(&[2, 0, 0, 0], 512), None);
    }

    #[test]
    fn runs_become_segments_of_blocks() {
        let cscd = Cscd::of(&[1, 3, 0, 2, 0x60, 1], 512).unwrap();
        let runs = [
            CopyRun { from: 1 << 40, to: 4096, len: 8192 },
            CopyRun { from: 512, to: 0, len: 512 * 65_535 },
        ];
        let mut parameters = Parameters::parse(&answer()).unwrap();
        let list = parameter_list(&cscd, 512, &parameters, &runs);
        assert_eq!(list.len(), HEADER_LEN + 2 * CSCD_LEN + 2 * SEGMENT_LEN);
        assert_eq!((list[3], &list[16..48]), (64, &list[48..80]));
        assert_eq!(list[80..88], [2, 0, 0, 24, 0, 0, 0, 1], "from the first to the second");
        parameters.is_named_twice = false;
        let list = parameter_list(&cscd, 512, &parameters, &runs);
        assert_eq!(list.len(), HEADER_LEN + CSCD_LEN + 2 * SEGMENT_LEN);
        assert_eq!(list[..16], [0, 0x18, 0, 32, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0, 0]);
        let first = &list[48..76];
        assert_eq!(first[..12], [2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16]);
        assert_eq!(first[12..], [0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(list[76 + 10..76 + 12], [0xff, 0xff]);
        parameters.no_list_id = false;
        assert_eq!(parameter_list(&cscd, 512, &parameters, &runs)[..2], [1, 0x10]);
        assert_eq!(extended_copy(104)[..14], [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 104]);
        assert_eq!(receive_operating_parameters()[..2], [0x84, 3]);
    }

    proptest! {
        #[test]
        fn no_answer_of_a_target_panics(data in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (Parameters::parse(&data), Cscd::of(&data, 512));
        }
    }
}
