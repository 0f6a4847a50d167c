//! VERIFY and WRITE AND VERIFY.

use super::*;

const VERIFIES: [u8; 3] = [0x2f, 0xaf, 0x8f];

#[test]
fn compares_when_asked_to() {
    let fixture = Fixture::new();
    for count in [1usize, 2, 255, 3000] {
        let data: Vec<u8> = (0..count * 512).map(|i| (i % 251) as u8).collect();
        assert_good(&fixture.run(&cdb(0x8a, 0, 9, count as u32), data.clone(), 0));
        for opcode in VERIFIES {
            let same = fixture.run(&cdb(opcode, 0x02, 9, count as u32), data.clone(), 0);
            assert_good(&same);
            assert_eq!(same.data_len_wanted, data.len() as u64);
            for at in [0, data.len() / 2, data.len() - 1] {
                let mut other = data.clone();
                other[at] ^= b'X';
                let response = fixture.run(&cdb(opcode, 0x02, 9, count as u32), other.clone(), 0);
                assert_sense(&response, 0xe, 0x1d, 0x00);
                assert_eq!(response.sense.unwrap().information, Some(at as u64));
                // BYTCHK 0 looks at the medium only.
                let response = fixture.run(&cdb(opcode, 0, 9, count as u32), other, 0);
                assert_good(&response);
                assert_eq!(response.data_len_wanted, 0);
            }
        }
    }
}

#[test]
fn one_block_against_all() {
    let fixture = Fixture::new();
    fixture.fill(0, 100, 7);
    for opcode in VERIFIES {
        let verify = |byte: u8| fixture.run(&cdb(opcode, 0x06, 0, 100), fixture.block(byte), 0);
        assert_good(&verify(7));
        assert_eq!(verify(7).data_len_wanted, 512);
        assert_sense(&verify(8), 0xe, 0x1d, 0x00);
        let response = fixture.run(&cdb(opcode, 0x06, 0, 101), fixture.block(7), 0);
        assert_eq!(response.sense.unwrap().information, Some(51_200));
        assert_invalid_cdb(&fixture.run(&cdb(opcode, 0x04, 0, 1), fixture.block(7), 0), 1, 2);
    }
    let short = fixture.run(&cdb(0x2f, 0x02, 0, 2), fixture.block(7), 0);
    assert_sense(&short, 0x5, 0x0e, 0x03);
}

#[test]
fn writes_and_verifies() {
    for opcode in [0x2e, 0xae, 0x8e] {
        for flags in [0, 0x02, 0x12] {
            let fixture = Fixture::new();
            let data = vec![flags + 1; 3 * 512];
            assert_good(&fixture.run(&cdb(opcode, flags, 5, 3), data.clone(), 0));
            assert_eq!(fixture.blocks(5, 3), data);
        }
        let fixture = Fixture::new();
        assert_invalid_cdb(&fixture.run(&cdb(opcode, 0x04, 0, 1), vec![1; 512], 0), 1, 2);
        assert_invalid_cdb(&fixture.run(&cdb(opcode, 0x06, 0, 1), vec![1; 512], 0), 1, 2);
        assert_eq!(fixture.blocks(0, 1), fixture.block(0));
    }
}

#[test]
fn finds_a_write_that_did_not_arrive() {
    use block::layer::{Fault, OpKind};
    let fixture = Fixture::new();
    let read_error = || block::BlockError::Medium(std::io::Error::other("unreadable"));
    fixture.faults.inject(Fault::on(OpKind::Read, read_error));
    assert_sense(&fixture.run(&cdb(0x2e, 0x02, 0, 1), vec![1; 512], 0), 0x3, 0x11, 0x00);
    assert_sense(&fixture.run(&cdb(0x2e, 0x00, 0, 1), vec![1; 512], 0), 0x3, 0x11, 0x00);
}
