//! The bitmap against a naive one, in memory and on a device that tears pages.

use proptest::prelude::*;

use super::*;

/// Three sectors and a bit, in two pages would be too slow for a naive model; the page border has
/// tests of its own.
const BLOCKS: u64 = 3 * SECTOR_BLOCKS + 100;
const ID: BitmapId = BitmapId(7);

fn saved(bitmap: &mut Bitmap, id: BitmapId) -> Vec<[u8; PAGE_BYTES]> {
    let mut pages = vec![[0; PAGE_BYTES]; bitmap.pages() as usize];
    for (number, page) in (0..).zip(&mut pages) {
        bitmap.take_page(number, id, page);
    }
    pages
}

fn loaded(blocks: u64, id: BitmapId, pages: &[[u8; PAGE_BYTES]]) -> (Bitmap, u64) {
    let mut bitmap = Bitmap::new(blocks);
    let unusable = (0..).zip(pages).map(|(number, page)| bitmap.load_page(number, id, page)).sum();
    (bitmap, unusable)
}

fn set_of(bitmap: &Bitmap) -> Vec<bool> {
    (0..bitmap.blocks()).map(|block| bitmap.test(block)).collect()
}

/// The longest stretch from `from` in a naive bitmap.
fn naive_run(model: &[bool], from: u64, end: u64) -> Option<Range<u64>> {
    let end = end.min(model.len() as u64);
    let start = (from..end).find(|block| model[*block as usize])?;
    let behind = (start..end).find(|block| !model[*block as usize]);
    Some(start..behind.unwrap_or(end))
}

proptest! {
    #[test]
    fn it_is_a_naive_bitmap(
        steps in prop::collection::vec(
            (any::<bool>(), 0..BLOCKS + 50, prop_oneof![0u64..200, 0..BLOCKS]), 1..30),
        looks in prop::collection::vec((0..BLOCKS + 50, 0..BLOCKS + 99), 20),
    ) {
        let (mut bitmap, mut model) = (Bitmap::new(BLOCKS), vec![false; BLOCKS as usize]);
        for (set, start, len) in steps {
            let range = start..start + len;
            let mut changed = 0;
            for block in range.clone().filter(|block| *block < BLOCKS) {
                changed += u64::from(model[block as usize] != set);
                model[block as usize] = set;
            }
            let told = if set { bitmap.set(range) } else { bitmap.clear(range) };
            prop_assert_eq!(told, changed);
        }
        prop_assert!(set_of(&bitmap) == model);
        prop_assert_eq!(bitmap.count(), model.iter().filter(|set| **set).count() as u64);
        for (from, end) in looks {
            let expected = naive_run(&model, from, end);
            prop_assert_eq!(bitmap.any(from..end), expected.is_some());
            let all = from >= end || expected == Some(from..end);
            prop_assert_eq!(bitmap.all(from..end), all);
            prop_assert_eq!(bitmap.next_run(from, end), expected);
        }
        let pages = saved(&mut bitmap, ID);
        prop_assert_eq!(bitmap.next_page_unsaved(0), None);
        let (back, unusable) = loaded(BLOCKS, ID, &pages);
        prop_assert_eq!(unusable, 0);
        prop_assert!(set_of(&back) == model);
        prop_assert_eq!(back.next_page_unsaved(0), None);
        let mut sum = Bitmap::new(BLOCKS);
        sum.set(5..6);
        sum.add_all(&back);
        model[5] = true;
        prop_assert!(set_of(&sum) == model);
    }

    /// The promise: what was set before the page was saved is set in whatever a tear leaves, unless
    /// it was cleared in between; nothing is set that neither the old nor the new page had.
    #[test]
    fn a_torn_page_holds_in_each_sector_old_or_new_bits(
        old in prop::collection::vec((0..BLOCKS, 1u64..600), 0..20),
        new in prop::collection::vec((any::<bool>(), 0..BLOCKS, 1u64..600), 1..20),
    ) {
        let mut bitmap = Bitmap::new(BLOCKS);
        for (start, len) in old {
            bitmap.set(start..start + len);
        }
        let (before, before_pages) = (set_of(&bitmap), saved(&mut bitmap, ID));
        for (set, start, len) in new {
            let range = start..start + len;
            let _ = if set { bitmap.set(range) } else { bitmap.clear(range) };
        }
        let (after, after_pages) = (set_of(&bitmap), saved(&mut bitmap, ID));
        for torn in 0..=PAGE_SECTORS {
            let mut page = before_pages[0];
            page[..torn * SECTOR_BYTES].copy_from_slice(&after_pages[0][..torn * SECTOR_BYTES]);
            let (back, unusable) = loaded(BLOCKS, ID, &[page]);
            prop_assert_eq!(unusable, 0);
            let border = (torn as u64 * SECTOR_BLOCKS).min(BLOCKS) as usize;
            prop_assert!(set_of(&back)[..border] == after[..border]);
            prop_assert!(set_of(&back)[border..] == before[border..]);
        }
    }
}

#[test]
fn a_sector_that_cannot_be_used_says_that_all_may_differ() {
    let mut bitmap = Bitmap::new(BLOCKS);
    bitmap.set(1..2);
    let pages = saved(&mut bitmap, ID);
    for (damage, why) in [(0, "checksum"), (9, "name"), (24, "number"), (100, "bits")] {
        let mut page = pages[0];
        page[SECTOR_BYTES + damage] ^= 4;
        let (back, unusable) = loaded(BLOCKS, ID, &[page]);
        assert_eq!((unusable, back.count()), (1, 1 + SECTOR_BLOCKS), "{why}");
        assert!(back.all(SECTOR_BLOCKS..2 * SECTOR_BLOCKS), "{why}");
    }
    let (blank, unusable) = loaded(BLOCKS, ID, &[[0; PAGE_BYTES]]);
    assert_eq!((unusable, blank.count()), (4, BLOCKS));
    let (renamed, _) = loaded(BLOCKS, BitmapId(8), &pages);
    assert_eq!(renamed.count(), BLOCKS);
    assert_eq!(renamed.next_page_missing_bits(0), None, "a new name says the same");
}

#[test]
fn sectors_in_each_others_place_are_not_believed() {
    let mut bitmap = Bitmap::new(BLOCKS);
    let mut page = saved(&mut bitmap, ID)[0];
    let second = page[SECTOR_BYTES..2 * SECTOR_BYTES].to_vec();
    page[..SECTOR_BYTES].copy_from_slice(&second);
    assert_eq!(loaded(BLOCKS, ID, &[page]).1, 1);
}

#[test]
fn pages_to_be_written_are_those_that_changed() {
    let blocks = 3 * PAGE_BLOCKS + 1;
    let mut bitmap = Bitmap::new(blocks);
    assert_eq!(bitmap.pages(), 4);
    assert_eq!((bitmap.next_page_missing_bits(0), bitmap.next_page_unsaved(0)), (None, Some(0)));
    let _ = saved(&mut bitmap, ID);
    assert_eq!(bitmap.next_page_unsaved(0), None);

    bitmap.set(PAGE_BLOCKS - 1..PAGE_BLOCKS + 1);
    bitmap.set(blocks - 1..blocks);
    let unsaved = |bitmap: &Bitmap| {
        let next = |from| bitmap.next_page_missing_bits(from);
        std::iter::successors(next(0), |page| next(page + 1)).collect::<Vec<_>>()
    };
    assert_eq!(unsaved(&bitmap), [0, 1, 3]);
    let extents_of_page = (PAGE_BLOCKS / EXTENT_BLOCKS) as u32;
    assert_eq!(bitmap.page_missing_bits_of(extents_of_page), Some(1));
    assert_eq!(bitmap.page_missing_bits_of(extents_of_page * 2), None);
    assert_eq!(bitmap.page_missing_bits_of(u32::MAX), None);
    // The sector lacks bits, but none of its second extent.
    assert_eq!(bitmap.page_missing_bits_of(extents_of_page + 1), None);

    let mut page = [0; PAGE_BYTES];
    bitmap.take_page(1, ID, &mut page);
    assert_eq!(unsaved(&bitmap), [0, 3]);
    bitmap.page_not_saved(1);
    assert_eq!(unsaved(&bitmap), [0, 1, 3]);

    let _ = saved(&mut bitmap, ID);
    bitmap.clear(0..blocks);
    assert_eq!((bitmap.next_page_missing_bits(0), bitmap.next_page_unsaved(0)), (None, Some(0)));
    assert_eq!(bitmap.next_page_unsaved(2), Some(3));
}

#[test]
fn bits_set_before_a_page_is_loaded_stay_and_have_to_be_saved() {
    let mut bitmap = Bitmap::new(BLOCKS);
    bitmap.set(3..4);
    let pages = saved(&mut bitmap, ID);
    let mut recovered = Bitmap::new(BLOCKS);
    recovered.set(1000..1001);
    recovered.load_page(0, ID, &pages[0]);
    assert!(recovered.test(3) && recovered.test(1000) && recovered.count() == 2);
    assert_eq!(recovered.next_page_missing_bits(0), Some(0));
}

#[test]
fn ranges_in_bytes_grow_to_whole_blocks() {
    assert_eq!(blocks_touched(0, 0), 0..0);
    assert_eq!(blocks_touched(512, 512), 0..1);
    assert_eq!(blocks_touched(4095, 2), 0..2);
    assert_eq!(blocks_touched(8192, 4096), 2..3);
}

#[test]
fn a_terabyte_is_quick_to_look_through() {
    let blocks = 1 << 28;
    let mut full = Bitmap::full(blocks);
    assert_eq!((full.count(), full.pages()), (blocks, 8739));
    // Piece by piece, as a copy goes: each look is as long as there are sectors at most.
    let mut from = 0;
    for _ in 0..1000 {
        assert_eq!(full.next_run(from, blocks), Some(from..blocks));
        from += 256;
    }
    full.clear(0..blocks - 1);
    assert_eq!(full.next_run(0, blocks), Some(blocks - 1..blocks));
}
