//! ORWRITE.

use super::*;

#[test]
fn sets_bits_and_clears_none() {
    let fixture = Fixture::new();
    fixture.fill(0, 10, 0b0101_0000);
    let response = fixture.run(&cdb(0x8b, 0x18, 2, 3), vec![0b0000_1100; 3 * 512], 0);
    assert_good(&response);
    assert_eq!(response.data_len_wanted, 3 * 512);
    assert_eq!(fixture.blocks(2, 3), vec![0b0101_1100; 3 * 512]);
    assert_eq!(fixture.blocks(1, 1), fixture.block(0b0101_0000));
    assert_eq!(fixture.blocks(5, 1), fixture.block(0b0101_0000));
}

#[test]
fn refusals() {
    let fixture = Fixture::new();
    assert_good(&fixture.run(&cdb(0x8b, 0, BLOCKS, 0), "", 0));
    for (lba, count) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 0)] {
        let response = fixture.run(&cdb(0x8b, 0, lba, count), vec![0; 1024], 0);
        assert_sense(&response, 0x5, 0x21, 0x00);
    }
    assert_invalid_cdb(&fixture.run(&cdb(0x8b, 0x20, 0, 1), fixture.block(0), 0), 1, 5);
    assert_sense(&fixture.run(&cdb(0x8b, 0, 0, 2), fixture.block(0), 0), 0x5, 0x0e, 0x03);
}
