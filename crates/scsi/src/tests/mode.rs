//! MODE SENSE, byte by byte.

use super::*;

const RECOVERY: [u8; 12] = [0x01, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CACHING: [u8; 20] = [0x08, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0];
const CONTROL: [u8; 12] = [0x0a, 10, 2, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
const EXCEPTIONS: [u8; 12] = [0x1c, 10, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const SHORT: [u8; 8] = [0, 0, 0x10, 0, 0, 0, 2, 0];

fn extension() -> Vec<u8> {
    let mut page = vec![0x4a, 1, 0, 28];
    page.resize(32, 0);
    page
}

fn sense_6(fixture: &Fixture, flags: u8, page: u8, subpage: u8) -> Vec<u8> {
    let data = fixture.data(&[0x1a, flags, page, subpage, 255, 0], 255);
    assert_eq!(usize::from(data[0]), data.len() - 1, "MODE DATA LENGTH");
    data
}

#[test]
fn all_pages() {
    let fixture = Fixture::new();
    let pages = [&RECOVERY[..], &CACHING, &CONTROL, &EXCEPTIONS].concat();
    let expected = [&[67, 0, 0x10, 8][..], &SHORT, &pages].concat();
    assert_eq!(sense_6(&fixture, 0, 0x3f, 0), expected);
    let expected = [&[59, 0, 0x10, 0][..], &pages].concat();
    assert_eq!(sense_6(&fixture, 0x08, 0x3f, 0), expected, "DBD");
    let with_subpages =
        [&[91, 0, 0x10, 0][..], &RECOVERY, &CACHING, &CONTROL, &extension(), &EXCEPTIONS].concat();
    assert_eq!(sense_6(&fixture, 0x08, 0x3f, 0xff), with_subpages);
}

#[test]
fn single_pages() {
    let fixture = Fixture::new();
    for page in [&RECOVERY[..], &CACHING, &CONTROL, &EXCEPTIONS] {
        for control in [0x00, 0x80] {
            assert_eq!(sense_6(&fixture, 8, control | page[0], 0)[4..], *page);
        }
        // Only D_SENSE and SWP can be changed: memory has no cache that could be turned off.
        let mask = &sense_6(&fixture, 8, 0x40 | page[0], 0)[4..];
        let mut expected = vec![0; page.len() - 2];
        if page[0] == 0x0a {
            (expected[0], expected[2]) = (0x04, 0x08);
        }
        assert_eq!((&mask[..2], &mask[2..]), (&page[..2], &expected[..]));
    }
    assert_eq!(sense_6(&fixture, 8, 0x0a, 1)[4..], extension());
    assert_eq!(sense_6(&fixture, 8, 0x0a, 0xff)[4..], [&CONTROL[..], &extension()].concat());
}

#[test]
fn ten_byte_form() {
    let fixture = Fixture::new();
    let sense = |flags| fixture.data(&[0x5a, flags, 0x0a, 0, 0, 0, 0, 1, 0, 0], 256);
    let expected = [&[0, 26, 0, 0x10, 0, 0, 0, 8][..], &SHORT, &CONTROL].concat();
    assert_eq!(sense(0), expected);
    let long = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let expected = [&[0, 34, 0, 0x10, 1, 0, 0, 16][..], &long, &CONTROL].concat();
    assert_eq!(sense(0x10), expected, "LLBAA");
    let expected = [&[0, 18, 0, 0x10, 0, 0, 0, 0][..], &CONTROL].concat();
    assert_eq!(sense(0x18), expected, "LLBAA and DBD");
}

#[test]
fn refusals_and_residuals() {
    let fixture = Fixture::new();
    let sense = |page, subpage| fixture.run(&[0x1a, 0, page, subpage, 255, 0], "", 255);
    assert_sense(&sense(0xc0 | 0x0a, 0), 0x5, 0x39, 0x00);
    assert_invalid_cdb(&sense(0x02, 0), 2, 5);
    assert_invalid_cdb(&sense(0x0a, 2), 3, 7);
    assert_invalid_cdb(&sense(0x3f, 1), 3, 7);
    let response = fixture.run(&[0x1a, 0, 0x3f, 0, 4, 0], "", 4);
    assert_eq!((response.data_in.len(), response.data_len_wanted), (4, 4));
    assert_eq!(response.data_in[0], 67, "the length of what there would be");
}

#[test]
fn the_caching_page_tells_of_a_volatile_cache() {
    let folder = std::env::temp_dir().join(format!("scsi-mode-{}", std::process::id()));
    let options = block::backend::FileOptions::default().with_create(1 << 20);
    let device = block::backend::FileDevice::open(&folder, &options).unwrap();
    let fixture = Fixture::on(Arc::new(device));
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(sense_6(&fixture, 8, 0x08, 0)[6], 0x04, "WCE");
}
