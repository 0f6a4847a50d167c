//! Folders: sets of entries of 32 bytes for each file, with a checksum of their own (§ 6, § 7).

use super::Node;
use crate::entry::Node as EntryNode;
use crate::field::Fields;
use crate::limits::FOLDER_ENTRIES_MAX;
use crate::{Entry, EntryKind, Error, Name, Result, Timestamp};

const ENTRY_BYTES: usize = 32;
/// Kinds of entries; those without the highest bit are not in use.
const END: u8 = 0;
const LABEL: u8 = 0x83;
const FILE: u8 = 0x85;
const STREAM: u8 = 0xc0;
const NAME: u8 = 0xc1;
/// Characters in an entry of a name, and in a label.
const NAME_UNITS: usize = 15;
const LABEL_UNITS_MAX: usize = 11;
const ATTR_FOLDER: u16 = 0x10;
const FLAG_CONTIGUOUS: u8 = 2;
const PLACE: &str = "exFAT folder";

/// The entries of a folder.
pub(super) fn entries(content: &[u8]) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at + ENTRY_BYTES <= content.len() {
        let fields = Fields(&content[at..]);
        let mut count = 1;
        match fields.u8(0) {
            END => break,
            FILE => {
                count += usize::from(fields.u8(1));
                let set = fields.bytes(0, count * ENTRY_BYTES);
                if all.len() >= FOLDER_ENTRIES_MAX {
                    let max = FOLDER_ENTRIES_MAX as u64;
                    return Err(Error::too_much(PLACE, "entries", max));
                }
                all.push(file(set, count, at)?);
            }
            // Bitmap, table of capital letters, label, and what is not in use or not known.
            _ => {}
        }
        at += count * ENTRY_BYTES;
    }
    Ok(all)
}

/// The label, if the root folder has one.
pub(super) fn label(content: &[u8]) -> Option<Name> {
    let mut entries = content.chunks_exact(ENTRY_BYTES).take_while(|entry| entry[0] != END);
    let entry = Fields(entries.find(|entry| entry[0] == LABEL)?);
    let count = usize::from(entry.u8(1)).min(LABEL_UNITS_MAX);
    Some(Name::from_utf16(entry.utf16(2, count))).filter(|label| !label.as_bytes().is_empty())
}

/// A file of its set of `count` entries, which stand at byte `at` of the folder.
fn file(set: &[u8], count: usize, at: usize) -> Result<Entry> {
    let damaged = |problem: &dyn std::fmt::Display| {
        Err(Error::damaged(format_args!("{PLACE}, entries at byte {at}"), problem))
    };
    let (file, stream) = (Fields(set), Fields(set.get(ENTRY_BYTES..).unwrap_or_default()));
    if set.len() < count * ENTRY_BYTES {
        return damaged(&"they go on behind the end of the folder");
    }
    if checksum(set) != file.u16(2) {
        return damaged(&"their checksum is wrong");
    }
    let units = usize::from(stream.u8(3));
    let named = count.saturating_sub(2) * NAME_UNITS;
    if stream.u8(0) != STREAM || units == 0 || units > named {
        return damaged(&format_args!("a name of {units} characters in room for {named}"));
    }
    let parts = set.chunks_exact(ENTRY_BYTES).skip(2).take(units.div_ceil(NAME_UNITS));
    if let Some(other) = parts.clone().find(|part| part[0] != NAME) {
        return damaged(&format_args!("an entry {:#x} where the name goes on", other[0]));
    }
    let name = parts.flat_map(|part| Fields(part).utf16(2, NAME_UNITS)).take(units);
    let name = Name::from_utf16(name);
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') || bytes.contains(&0) || matches!(bytes, b"." | b"..") {
        return damaged(&format_args!("a name {:?}", name.to_string()));
    }
    let is_folder = file.u16(4) & ATTR_FOLDER != 0;
    let (written, size) = (stream.u64(8), stream.u64(24));
    if written > size || size >= 1 << 63 {
        return damaged(&format_args!("{written} of {size} bytes are written"));
    }
    let node = Node {
        cluster: stream.u32(20),
        size,
        written: if is_folder { size } else { written },
        is_contiguous: stream.u8(1) & FLAG_CONTIGUOUS != 0,
        is_root: false,
    };
    Ok(Entry {
        name,
        kind: if is_folder { EntryKind::Folder } else { EntryKind::File },
        size,
        modified: modified(file),
        target: None,
        version: u64::from(crc32fast::hash(set)),
        node: EntryNode::ExFat(node),
    })
}

/// Of a set; the checksum itself is left out (§ 6.3.3).
fn checksum(set: &[u8]) -> u16 {
    let bytes = set.iter().enumerate().filter(|(at, _)| !matches!(at, 2 | 3));
    bytes.fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)))
}

/// Two seconds, and 10 ms, in some time zone, which is known or not (§ 7.4.8 to 7.4.10).
fn modified(file: Fields<'_>) -> Option<Timestamp> {
    let mut time = Timestamp::from_dos(file.u16(0xe), file.u16(0xc))?;
    let hundredths = u32::from(file.u8(0x15)).min(199);
    time.seconds += i64::from(hundredths / 100);
    time.nanos = hundredths % 100 * 10_000_000;
    let zone = file.u8(0x17);
    if zone & 0x80 != 0 {
        // Quarters of an hour east of UTC, in seven bits with a sign.
        let quarters = i64::from((zone << 1) as i8 >> 1);
        time.seconds -= quarters * 15 * 60;
        time.is_utc = true;
    }
    Some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(name: &str, size: u64) -> Vec<u8> {
        let units: Vec<u16> = name.encode_utf16().collect();
        let mut set = vec![0; 2 * ENTRY_BYTES];
        (set[0], set[1]) = (FILE, 1 + units.len().div_ceil(NAME_UNITS) as u8);
        set[0xc..0x10].copy_from_slice(&[0, 0, 0x21, 0]); // 1980-01-01
        (set[0x15], set[0x17]) = (150, 0x84); // and 1.5 s, an hour east
        (set[32], set[33], set[35]) = (STREAM, 3, units.len() as u8);
        set[40..48].copy_from_slice(&size.to_le_bytes());
        set[52] = 5;
        set[56..64].copy_from_slice(&size.to_le_bytes());
        for part in units.chunks(NAME_UNITS) {
            let mut entry = vec![NAME, 0];
            entry.extend(part.iter().flat_map(|unit| unit.to_le_bytes()));
            entry.resize(ENTRY_BYTES, 0);
            set.extend(entry);
        }
        seal(&mut set);
        set
    }

    fn seal(set: &mut [u8]) {
        let sum = checksum(set).to_le_bytes();
        set[2..4].copy_from_slice(&sum);
    }

    #[test]
    fn a_file_is_what_its_entries_say() {
        let name = "Ein längerer Name 日本🎬.mkv";
        let content = [set(name, 1 << 33), vec![0; 64], set("behind the end", 1)].concat();
        let found = entries(&content).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, Name::from(name));
        assert_eq!((found[0].size, found[0].kind), (1 << 33, EntryKind::File));
        let time = found[0].modified.unwrap();
        assert_eq!((time.to_string().as_str(), time.nanos), ("1979-12-31T23:00:01Z", 500_000_000));
    }

    #[test]
    fn sets_that_cannot_be_are_named() {
        for (at, value, said) in [
            (1usize, 0u8, "room for 0"),
            (1, 200, "behind the end"),
            (32, 0xc2, "a name of 3 characters"),
            (35, 0, "a name of 0 characters"),
            (35, 16, "a name of 16 characters in room for 15"),
            (64, 0xc2, "an entry 0xc2"),
            (66, b'/', "a name \"/bc\""),
            (41, 1, "257 of 1 bytes"),
            (63, 0x80, "bytes are written"),
        ] {
            let mut raw = set("abc", 1);
            raw[at] = value;
            let len = (usize::from(raw[1]) + 1) * ENTRY_BYTES;
            let len = len.min(raw.len());
            seal(&mut raw[..len]);
            let problem = entries(&raw).unwrap_err().to_string();
            assert!(problem.contains(said), "{problem}");
        }
        let mut raw = set("abc", 1);
        raw[70] = 1;
        assert!(entries(&raw).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn a_label_has_at_most_eleven_characters() {
        let mut raw = vec![LABEL, 200];
        raw.extend("Videos ü kept".encode_utf16().flat_map(u16::to_le_bytes));
        raw.resize(ENTRY_BYTES, 0);
        assert_eq!(label(&raw), Some("Videos ü ke".into()));
        raw[1] = 0;
        assert_eq!(label(&raw), None);
    }
}
