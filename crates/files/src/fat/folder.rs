//! Folders: entries of 32 bytes, with long names in entries before the one they belong to (§ "Long
//! Name Implementation").

use super::{Node, charset};
use crate::entry::Node as EntryNode;
use crate::field::Fields;
use crate::limits::FOLDER_ENTRIES_MAX;
use crate::{Entry, EntryKind, Error, Name, Result, Timestamp};

const ENTRY_BYTES: usize = 32;
const ATTR_LABEL: u8 = 0x08;
const ATTR_FOLDER: u8 = 0x10;
const ATTR_LONG: u8 = 0x0f;
const ATTR_MASK: u8 = 0x3f;
/// First byte of an entry that is not in use, and of the one behind the last.
const UNUSED: u8 = 0xe5;
const END: u8 = 0;
/// The first byte E5 of a name, which would be unused.
const KANJI_E5: u8 = 0x05;
/// Windows NT's way to keep a short name in small letters: in the base, in the extension.
const CASE_BASE: u8 = 0x08;
const CASE_EXTENSION: u8 = 0x10;
/// UTF-16 units in an entry of a long name, where they are, and entries of one name.
const LONG_UNITS: [usize; 13] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
const LONG_ENTRIES_MAX: u8 = 20;
const LONG_LAST: u8 = 0x40;

/// An entry and its other name.
pub(super) struct Found {
    pub(super) entry: Entry,
    pub(super) short: Name,
}

/// The entries of a folder, without itself, its parent and a label.
pub(super) fn entries(content: &[u8]) -> Result<Vec<Found>> {
    let mut all = Vec::new();
    let mut long = Long::default();
    for raw in content.chunks_exact(ENTRY_BYTES) {
        let fields = Fields(raw);
        let attributes = fields.u8(11) & ATTR_MASK;
        match fields.u8(0) {
            END => break,
            UNUSED => long = Long::default(),
            _ if attributes == ATTR_LONG => long.take(fields),
            _ if attributes & ATTR_LABEL != 0 => long = Long::default(),
            b'.' if matches!(fields.bytes(0, 11), b".          " | b"..         ") => {}
            _ => {
                let found = found(fields, std::mem::take(&mut long))?;
                if all.len() >= FOLDER_ENTRIES_MAX {
                    let max = FOLDER_ENTRIES_MAX as u64;
                    return Err(Error::too_much("FAT folder", "entries", max));
                }
                all.push(found);
            }
        }
    }
    Ok(all)
}

/// The label, if the root folder has one.
pub(super) fn label(content: &[u8]) -> Option<Name> {
    let entries = content.chunks_exact(ENTRY_BYTES).map(Fields);
    let used = entries.take_while(|entry| entry.u8(0) != END);
    let is_label = |entry: &Fields<'_>| {
        let attributes = entry.u8(11) & ATTR_MASK;
        attributes != ATTR_LONG && attributes & ATTR_LABEL != 0 && entry.u8(0) != UNUSED
    };
    let entry = used.into_iter().find(is_label)?;
    label_name(entry.bytes(0, 11))
}

/// A label of 11 bytes; the words that stand for none are none.
pub(super) fn label_name(bytes: &[u8]) -> Option<Name> {
    let text: String = bytes.iter().map(|byte| charset::decode(*byte)).collect();
    let text = text.trim_end_matches([' ', '\0']);
    (!text.is_empty() && text != "NO NAME").then(|| Name::from(text))
}

fn found(fields: Fields<'_>, long: Long) -> Result<Found> {
    let short = short_name(fields);
    let name = long.name(fields.bytes(0, 11)).unwrap_or_else(|| short.clone());
    // No path could lead there, and a path could lead elsewhere.
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') || bytes.contains(&0) || matches!(bytes, b"" | b"." | b"..") {
        return Err(Error::damaged("FAT folder", format_args!("a name {:?}", name.to_string())));
    }
    let is_folder = fields.u8(11) & ATTR_FOLDER != 0;
    let kind = if is_folder { EntryKind::Folder } else { EntryKind::File };
    let size = if is_folder { 0 } else { u64::from(fields.u32(28)) };
    let cluster = u32::from(fields.u16(20)) << 16 | u32::from(fields.u16(26));
    let modified = Timestamp::from_dos(fields.u16(24), fields.u16(22));
    let version = u64::from(crc32fast::hash(fields.bytes(20, 12)));
    let node = EntryNode::Fat(Node { cluster, size, is_root: false });
    let entry = Entry { name, kind, size, modified, target: None, version, node };
    Ok(Found { entry, short })
}

/// The name of 8 and 3 characters.
fn short_name(fields: Fields<'_>) -> Name {
    let case = fields.u8(12);
    let part = |at: usize, len: usize, small: u8| {
        let bytes = fields.bytes(at, len).iter().enumerate();
        let text = bytes.map(|(i, byte)| match byte {
            &KANJI_E5 if at + i == 0 => charset::decode(UNUSED),
            byte => charset::decode(*byte),
        });
        let text: String = text.collect();
        let text = text.trim_end_matches(' ');
        if case & small != 0 { text.to_lowercase() } else { text.to_owned() }
    };
    let (base, extension) = (part(0, 8, CASE_BASE), part(8, 3, CASE_EXTENSION));
    let name = if extension.is_empty() { base } else { format!("{base}.{extension}") };
    Name::new(name)
}

/// A long name as far as it has been read: its parts stand in reverse.
#[derive(Default)]
struct Long {
    /// The part that comes next; 0 when all are there.
    next: u8,
    checksum: u8,
    units: Vec<u16>,
}

impl Long {
    fn take(&mut self, fields: Fields<'_>) {
        let order = fields.u8(0);
        let (number, checksum) = (order & !LONG_LAST, fields.u8(13));
        if order & LONG_LAST != 0 && (1..=LONG_ENTRIES_MAX).contains(&number) {
            *self = Self { next: number, checksum, units: Vec::new() };
        }
        if number == 0 || number != self.next || checksum != self.checksum {
            *self = Self::default(); // parts without a whole: of a system that knew no long names
            return;
        }
        let part = LONG_UNITS.map(|at| fields.u16(at));
        self.units.splice(0..0, part);
        self.next -= 1;
    }

    /// The name, if all parts are there and belong to this short one.
    fn name(self, short: &[u8]) -> Option<Name> {
        let sum = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        if self.next != 0 || self.units.is_empty() || sum != self.checksum {
            return None;
        }
        Some(Name::from_utf16(self.units.into_iter().take_while(|unit| *unit != 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(name: &[u8; 11], case: u8) -> Vec<u8> {
        let mut raw = vec![0; ENTRY_BYTES];
        raw[..11].copy_from_slice(name);
        (raw[11], raw[12], raw[28]) = (0x20, case, 7);
        raw
    }

    fn long(order: u8, text: &str, short: &[u8; 11]) -> Vec<u8> {
        let mut raw = vec![0xff; ENTRY_BYTES];
        let sum = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
        (raw[0], raw[11], raw[12], raw[13]) = (order, ATTR_LONG, 0, sum);
        for (at, unit) in LONG_UNITS.iter().zip(text.encode_utf16().chain([0])) {
            raw[*at..at + 2].copy_from_slice(&unit.to_le_bytes());
        }
        raw
    }

    fn names(raw: &[Vec<u8>]) -> Vec<String> {
        let found = entries(&raw.concat()).unwrap();
        found.into_iter().map(|found| found.entry.name.to_string()).collect()
    }

    #[test]
    fn short_names_have_their_case() {
        let raw = [
            short(b"FILM    MP4", 0),
            short(b"FILM    MP4", CASE_BASE | CASE_EXTENSION),
            short(b"README     ", CASE_EXTENSION),
            short(b"\x05\x82A        ", 0),
        ];
        assert_eq!(names(&raw), ["FILM.MP4", "film.mp4", "README", "σéA"]);
    }

    #[test]
    fn long_names_belong_to_the_entry_behind_them() {
        let of = b"AFILM~1 MP4";
        let raw = [long(0x42, "lm ü.mp4", of), long(1, "a longer fi  ", of), short(of, 0)];
        assert_eq!(names(&raw), ["a longer fi  lm ü.mp4"]);
        let [last, first, entry] = &raw;
        let other = short(b"OTHER   TXT", 0);
        for (broken, name) in [
            (vec![last.clone(), entry.clone()], "AFILM~1.MP4"),
            (vec![first.clone(), last.clone(), entry.clone()], "AFILM~1.MP4"),
            (vec![last.clone(), first.clone(), other], "OTHER.TXT"),
            (
                vec![last.clone(), last.clone(), first.clone(), entry.clone()],
                "a longer fi  lm ü.mp4",
            ),
        ] {
            assert_eq!(names(&broken), [name]);
        }
    }

    #[test]
    fn what_is_no_file_is_left_out() {
        let mut deleted = short(b"GONE    TXT", 0);
        deleted[0] = UNUSED;
        let mut label = short(b"FILMS      ", 0);
        label[11] = ATTR_LABEL;
        let end = vec![0; ENTRY_BYTES];
        let raw = [short(b".          ", 0), short(b"..         ", 0), deleted, label.clone(), end];
        assert!(names(&raw).is_empty());
        assert_eq!(super::label(&label), Some("FILMS".into()));
        let slash = short(b"A/B        ", 0);
        assert!(entries(&slash).is_err());
    }
}
