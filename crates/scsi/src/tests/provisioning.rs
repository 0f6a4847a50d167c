//! UNMAP and GET LBA STATUS.

use super::*;

fn list(descriptors: &[(u64, u32)]) -> Vec<u8> {
    let len = 16 * descriptors.len() as u16;
    let mut list = [(6 + len).to_be_bytes(), len.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (lba, count) in descriptors {
        list.extend(lba.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn unmap(fixture: &Fixture, list: Vec<u8>) -> Response {
    let [high, low] = (list.len() as u16).to_be_bytes();
    fixture.run(&[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], list, 0)
}

fn status(fixture: &Fixture, lba: u64, room: u32) -> Response {
    let mut cdb = cdb(0x9e, 0x12, lba, room);
    cdb[14] = 0;
    fixture.run(&cdb, "", room as usize)
}

#[test]
fn unmapped_blocks_read_as_zeroes() {
    for block_size in [512, 4096] {
        let fixture = Fixture::with_block_size(block_size);
        fixture.fill(0, 300, 0xff);
        let response = unmap(&fixture, list(&[(1, 3), (10, 1), (250, 50)]));
        assert_good(&response);
        assert_eq!(response.data_len_wanted, 8 + 3 * 16);
        for lba in 0..300 {
            let gone = (1..4).contains(&lba) || lba == 10 || lba >= 250;
            let byte = if gone { 0 } else { 0xff };
            assert_eq!(fixture.blocks(lba, 1), fixture.block(byte), "block {lba}");
        }
    }
}

#[test]
fn nothing_to_unmap_is_good() {
    let fixture = Fixture::new();
    assert_good(&fixture.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], "", 0));
    assert_good(&unmap(&fixture, list(&[])));
    let many: Vec<_> = (0..256).map(|lba| (lba / 2, 0)).collect();
    assert_good(&unmap(&fixture, list(&many)));
    assert_good(&unmap(&fixture, list(&[(BLOCKS, 0)])));
}

#[test]
fn wrong_lists_change_nothing() {
    let fixture = Fixture::new();
    fixture.fill(0, 8, 0xff);
    let good = list(&[(0, 8)]);
    assert_sense(&unmap(&fixture, list(&[(0, 8), (BLOCKS, 1)])), 0x5, 0x21, 0x00);
    assert_sense(&unmap(&fixture, list(&[(0, 8), (u64::MAX, 1)])), 0x5, 0x21, 0x00);
    assert_sense(&unmap(&fixture, vec![0; 7]), 0x5, 0x1a, 0x00);
    assert_sense(&unmap(&fixture, good[..20].to_vec()), 0x5, 0x1a, 0x00);
    let many = list(&vec![(0, 1); 257]);
    assert_sense(&unmap(&fixture, many), 0x5, 0x26, 0x00);
    let anchor = fixture.run(&[0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0], good, 0);
    assert_invalid_cdb(&anchor, 1, 0);
    // The transport brought less than the CDB says.
    let short = fixture.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], vec![0; 4], 0);
    assert_sense(&short, 0x5, 0x1a, 0x00);
    assert_eq!(short.data_len_wanted, 24);
    assert_eq!(fixture.blocks(0, 8), vec![0xff; 4096]);
}

#[test]
fn too_many_blocks_at_once() {
    let fixture = Fixture::on(Arc::new(MemoryDevice::new(2 << 30, 512).unwrap()));
    assert_good(&unmap(&fixture, list(&[(0, 1 << 20)])));
    let response = unmap(&fixture, list(&[(0, 1 << 20), (1 << 20, 1)]));
    assert_eq!(response.sense, Some(Sense::invalid_parameter(32)));
}

#[test]
fn lba_status_tells_mapped_from_not() {
    let fixture = Fixture::on(Arc::new(MemoryDevice::new(1 << 30, 512).unwrap()));
    fixture.fill(256, 128, 1); // one chunk of 64 KiB behind two empty ones
    let response = status(&fixture, 5, 255);
    let descriptor = |lba: u64, count: u32, status| {
        [&lba.to_be_bytes()[..], &count.to_be_bytes(), &[status, 0, 0, 0]].concat()
    };
    let expected = [
        &[0, 0, 0, 52, 0, 0, 0, 0][..],
        &descriptor(5, 251, 1),
        &descriptor(256, 128, 0),
        &descriptor(384, (2 << 20) - 384, 1),
    ]
    .concat();
    assert_eq!(response.data_in, expected);
    let first = status(&fixture, 300, 24);
    assert_eq!(
        first.data_in[..],
        [&[0, 0, 0, 36, 0, 0, 0, 0][..], &descriptor(300, 84, 0)].concat()
    );
    for lba in [2 << 20, (2 << 20) + 1, 1 << 63, u64::MAX] {
        assert_sense(&status(&fixture, lba, 24), 0x5, 0x21, 0x00);
    }
}

#[test]
fn lba_status_ends_after_a_page_of_descriptors() {
    let fixture = Fixture::on(Arc::new(MemoryDevice::new(1 << 30, 512).unwrap()));
    // Every second chunk of 64 KiB, further than one page of descriptors reaches.
    for chunk in 0..200 {
        fixture.fill(chunk * 256, 128, 1);
    }
    let page = status(&fixture, 0, 1 << 20).data_in;
    assert_eq!(page.len(), 8 + 256 * 16);
    let last = &page[page.len() - 16..];
    assert_eq!(
        last,
        [&(255_u64 * 128).to_be_bytes()[..], &128_u32.to_be_bytes(), &[1, 0, 0, 0]].concat()
    );
    let next = status(&fixture, 256 * 128, 1 << 20).data_in;
    assert_eq!(next.len(), 8 + 144 * 16, "the rest, with the long hole at the end");
}

#[test]
fn a_thick_device_has_no_unmap() {
    let thick = |info: &mut DeviceInfo| (info.can_trim, info.trim_zeroes) = (false, false);
    let fixture = Fixture::on(Disguised::new(1 << 20, thick));
    assert_sense(&unmap(&fixture, list(&[(0, 1)])), 0x5, 0x20, 0x00);
    let supported = fixture.data(&[0xa3, 0x0c, 1, 0x42, 0, 0, 0, 0, 0xff, 0xff, 0, 0], 65535);
    assert_eq!(supported, [0, 1, 0, 0]);
    assert_invalid_cdb(&fixture.run(&cdb(0x93, 0x08, 0, 1), vec![0; 512], 0), 1, 3);
    assert_good(&fixture.run(&cdb(0x93, 0, 0, 1), vec![0; 512], 0));
    assert_invalid_cdb(&fixture.run(&[0x12, 1, 0xb2, 0, 255, 0], "", 255), 2, 7);
    assert!(!fixture.data(&[0x12, 1, 0, 0, 255, 0], 255)[4..].contains(&0xb2));
    let status = status(&fixture, 8, 64).data_in;
    assert_eq!(status[8..], [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 7, 0xf8, 0, 0, 0, 0], "all mapped");
    let limits = fixture.data(&[0x12, 1, 0xb0, 0, 255, 0], 255);
    assert!(limits[20..36].iter().all(|b| *b == 0));
}
