//! WRITE SAME.

use super::*;

const OPCODES: [u8; 2] = [0x41, 0x93];

#[test]
fn repeats_a_block() {
    for block_size in [512, 4096] {
        let fixture = Fixture::with_block_size(block_size);
        for opcode in OPCODES {
            for (count, byte) in [(1, 3), (255, 4), (256, 0), (3000, 5)] {
                for lba in [0, BLOCKS - u64::from(count)] {
                    fixture.fill(0, BLOCKS as usize, 0xff);
                    let response = fixture.run(&cdb(opcode, 0, lba, count), fixture.block(byte), 0);
                    assert_good(&response);
                    assert_eq!(response.data_len_wanted, u64::from(block_size));
                    let (before, rest) = (lba as usize, (BLOCKS - lba) as usize - count as usize);
                    let found = fixture.blocks(lba, count as usize);
                    assert!(found.iter().all(|b| *b == byte), "{opcode:#x} {lba}+{count}");
                    assert!(fixture.blocks(0, before).iter().all(|b| *b == 0xff));
                    let behind = fixture.blocks(lba + u64::from(count), rest);
                    assert!(behind.iter().all(|b| *b == 0xff));
                }
            }
        }
    }
}

#[test]
fn no_count_is_refused() {
    for (opcode, byte) in [(0x41, 7), (0x93, 10)] {
        for flags in [0, 0x08] {
            let fixture = Fixture::new();
            fixture.fill(0, BLOCKS as usize, 0xff);
            let response = fixture.run(&cdb(opcode, flags, BLOCKS - 9, 0), fixture.block(0), 0);
            assert_invalid_cdb(&response, byte, 7);
            assert_eq!(fixture.blocks(BLOCKS - 9, 9), vec![0xff; 9 * 512]);
        }
    }
}

#[test]
fn beyond_the_end_and_above_the_limit() {
    let fixture = Fixture::new();
    for opcode in OPCODES {
        for (lba, count) in [(BLOCKS, 1), (BLOCKS - 1, 2), (BLOCKS + 1, 0), (0xffff_ffff, 0)] {
            let response = fixture.run(&cdb(opcode, 0, lba, count), fixture.block(0), 0);
            assert_sense(&response, 0x5, 0x21, 0x00);
        }
    }
    let large = Fixture::on(Arc::new(MemoryDevice::new(1 << 30, 512).unwrap()));
    let limit = 32_768;
    let run = |opcode, count| large.run(&cdb(opcode, 0, 5, count), large.block(0), 0);
    assert_invalid_cdb(&run(0x93, limit + 1), 10, 7);
    assert_invalid_cdb(&run(0x41, limit + 1), 7, 7);
    assert_good(&run(0x93, limit));
    assert_good(&run(0x41, limit));
}

#[test]
fn unmap_releases_zeroes_and_writes_the_rest() {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let fixture = Fixture::on(memory.clone());
    fixture.fill(0, 2048, 1);
    assert_eq!(memory.allocated_bytes(), 1 << 20);
    assert_good(&fixture.run(&cdb(0x93, 0x08, 0, 1024), fixture.block(0), 0));
    assert_eq!(memory.allocated_bytes(), 1 << 19);
    // Other data must read back, unmapped or not.
    assert_good(&fixture.run(&cdb(0x93, 0x08, 0, 1024), fixture.block(9), 0));
    assert_eq!(fixture.blocks(0, 1024), vec![9; 1024 * 512]);
    assert_good(&fixture.run(&cdb(0x93, 0x09, 0, 2048), "", 0)); // NDOB
    assert_eq!(memory.allocated_bytes(), 0);
}

#[test]
fn flags_and_data_lengths() {
    let fixture = Fixture::new();
    for opcode in OPCODES {
        for flags in [0x10, 0x18] {
            let response = fixture.run(&cdb(opcode, flags, 0, 1), fixture.block(0), 0);
            assert_invalid_cdb(&response, 1, 4); // ANCHOR
        }
        for len in [0, 256, 1024] {
            let response = fixture.run(&cdb(opcode, 0x08, 0, 1), vec![0; len], 0);
            assert_sense(&response, 0x5, 0x0e, 0x03);
        }
    }
    assert_invalid_cdb(&fixture.run(&cdb(0x41, 0x01, 0, 1), "", 0), 1, 0); // NDOB: 16 only
    let response = fixture.run(&cdb(0x93, 0x01, 0, 1), "", 0);
    assert_good(&response);
    assert_eq!(response.data_len_wanted, 0);
}
