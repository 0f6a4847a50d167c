//! docs/design/mirror-format.md tells the truth: each field of each block, its place and its
//! length.

use super::layout::{LegLayout, LocalLayout, RING_RECORDS};
use super::{BLOCK_BYTES, LEGS_MAX, activity, bitmap, failback, redo, superblock};

/// A field: its name, its place and its length in bytes.
pub(super) type Place = (&'static str, usize, usize);

/// Bytes of the field that `_of` is of.
pub(super) fn len_of<T, F>(_of: impl Fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The fields of a struct that begins at `$base` of its block.
macro_rules! places {
    ($type:ty, $base:expr, $($field:ident),+) => {
        vec![$((
            stringify!($field),
            $base + std::mem::offset_of!($type, $field),
            crate::mirror::format_doc::len_of(|it: &$type| &it.$field),
        )),+]
    };
}
pub(super) use places;

const DOC: &str = include_str!("../../../../docs/design/mirror-format.md");

/// The rows of the table below a heading that begin with two numbers and a field's name.
fn rows(heading: &str) -> Vec<(String, usize, usize)> {
    let begin = format!("\n### {heading}\n");
    let section = DOC.split(&begin).nth(1).unwrap_or_else(|| panic!("no heading {heading}"));
    let section = section.split("\n#").next().unwrap_or_default();
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, at, len, name, ..] = cells[..] else { return None };
        let name = name.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), at.parse().ok()?, len.parse().ok()?))
    };
    section.lines().filter_map(row).collect()
}

#[test]
fn every_field_stands_where_the_page_says() {
    let mut sections = superblock::places();
    sections.push(("Activity record", activity::places()));
    sections.push(("Bitmap sector", bitmap::places()));
    sections.push(("Hand-over record", failback::places()));
    sections.extend(redo::places());
    assert_eq!(sections.len(), 13);
    for (heading, fields) in sections {
        let code: Vec<_> =
            fields.into_iter().map(|(name, at, len)| (name.to_owned(), at, len)).collect();
        assert_eq!(rows(heading), code, "{heading}");
    }
}

#[test]
fn everything_lies_where_the_page_says() {
    let leg = LegLayout::new(100 * BLOCK_BYTES + 512, 0).unwrap();
    let tail = 84 * BLOCK_BYTES;
    assert_eq!(redo::PIECES_MAX, 167);
    let code = [
        (tail, leg.redo_log().end, "`tail − redo_bytes`"),
        (tail, leg.superblock(2), "`tail`"),
        (tail + 4096, leg.superblock(3), "`tail + 4096`"),
        (tail + 8192, leg.stamp(2), "`tail + 8192`"),
        (tail + 12_288, leg.stamp(3), "`tail + 12288`"),
        (tail + 16_384, leg.scratch(), "`tail + 16384`"),
        (0, LocalLayout::superblock(2), "0"),
        (4096, LocalLayout::superblock(3), "4096"),
        (8192, LocalLayout::record(RING_RECORDS), "8192"),
        (270_336, LocalLayout::ring().end, "270336"),
    ];
    for (expected, found, cell) in code {
        assert_eq!(expected, found, "{cell}");
        assert!(DOC.contains(&format!("\n| {cell} | ")), "{cell}");
    }
    assert_eq!((RING_RECORDS, LEGS_MAX, bitmap::PAGE_BLOCKS), (64, 3, 30_720));
    assert_eq!((activity::EXTENTS_MAX, superblock::VERSION), (1008, 1));
    let terabyte = LocalLayout::new(1 << 40).unwrap();
    let each = terabyte.pages() * BLOCK_BYTES;
    assert_eq!((each as f64 / f64::from(1 << 20) * 10.0).round(), 341.0);
}
