//! What a device's errors and a read-only device look like to an initiator.

use block::BlockError;
use block::layer::{Fault, OpKind};

use super::*;

fn medium() -> BlockError {
    BlockError::Medium(std::io::Error::other("damaged"))
}

#[test]
fn device_errors_become_sense_data() {
    let no_space: fn() -> BlockError = || BlockError::NoSpace;
    let unreachable: fn() -> BlockError = || BlockError::Unreachable("far".into());
    let swap = {
        let mut swap = cdb(0x89, 0, 5, 0);
        swap[13] = 1;
        swap
    };
    let unmap = vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    type Case = (OpKind, fn() -> BlockError, Vec<u8>, usize, [u8; 3]);
    let cases: [Case; 17] = [
        (OpKind::Write, no_space, cdb(0x8b, 0, 5, 1), 512, [0x7, 0x27, 0x07]),
        (OpKind::Read, medium, cdb(0x8b, 0, 5, 1), 512, [0x3, 0x11, 0x00]),
        (OpKind::Read, medium, cdb(0x28, 0, 5, 1), 512, [0x3, 0x11, 0x00]),
        (OpKind::Read, unreachable, cdb(0x28, 0, 5, 1), 512, [0x2, 0x04, 0x00]),
        (OpKind::Read, medium, cdb(0x2f, 0, 5, 1), 512, [0x3, 0x11, 0x00]),
        (OpKind::Write, medium, cdb(0x2a, 0, 5, 1), 512, [0x3, 0x0c, 0x00]),
        (OpKind::Write, no_space, cdb(0x2a, 0, 5, 1), 512, [0x7, 0x27, 0x07]),
        (OpKind::Write, no_space, cdb(0x8a, 0x08, 5, 1), 512, [0x7, 0x27, 0x07]),
        (OpKind::Write, no_space, cdb(0x2e, 2, 5, 1), 512, [0x7, 0x27, 0x07]),
        (OpKind::Write, no_space, cdb(0x2a, 0, 5, 1), 100, [0x7, 0x27, 0x07]),
        (OpKind::Read, medium, cdb(0x2a, 0, 5, 1), 100, [0x3, 0x11, 0x00]),
        (OpKind::Write, no_space, cdb(0x41, 0, 5, 9), 512, [0x7, 0x27, 0x07]),
        (OpKind::Write, no_space, swap.clone(), 1024, [0x7, 0x27, 0x07]),
        (OpKind::Read, medium, swap, 1024, [0x3, 0x11, 0x00]),
        (OpKind::Trim, medium, unmap, 24, [0x3, 0x0c, 0x00]),
        (OpKind::Flush, medium, cdb(0x35, 0, 0, 0), 0, [0x3, 0x0c, 0x00]),
        (
            OpKind::Extents,
            medium,
            {
                let mut cdb = cdb(0x9e, 0x12, 0, 24);
                cdb[14] = 0;
                cdb
            },
            0,
            [0x3, 0x11, 0x00],
        ),
    ];
    for (kind, error, cdb, len, [key, asc, ascq]) in cases {
        let fixture = Fixture::new();
        let mut data = vec![0; len];
        match cdb[0] {
            0x41 => data.fill(1), // not zeroes
            0x42 => data.copy_from_slice(&[
                0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0,
            ]),
            _ => {}
        }
        fixture.faults.inject(Fault::on(kind, error));
        let response = fixture.run(&cdb, data.clone(), 512);
        assert_sense(&response, key, asc, ascq);
        assert!(response.data_in.is_empty());
        fixture.faults.heal();
        assert_good(&fixture.run(&cdb, data, 512));
    }
}

#[test]
fn zeroing_without_space() {
    let fixture = Fixture::new();
    fixture.faults.inject(Fault::on(OpKind::Zero, || BlockError::NoSpace));
    assert_sense(&fixture.run(&cdb(0x93, 0x01, 0, 8), "", 0), 0x7, 0x27, 0x07);
}

#[test]
fn a_write_without_space_says_where() {
    let fixture = Fixture::new();
    let full = Fault::on(OpKind::Write, || BlockError::NoSpace).in_range(100 * 512..u64::MAX);
    fixture.faults.inject(full);
    let mut failed = Vec::new();
    for lba in (0..200).step_by(10) {
        let response = fixture.run(&cdb(0x2a, 0, lba, 10), vec![1; 5120], 0);
        match response.status {
            Status::GOOD => assert_eq!(fixture.blocks(lba, 10), vec![1; 5120]),
            _ => {
                assert_eq!(response.sense.unwrap().information, Some(lba));
                failed.push(lba);
            }
        }
    }
    assert_eq!(failed, (100..200).step_by(10).collect::<Vec<_>>());
}

/// As `ALL.ReadOnly` of iscsi-test-cu.
#[test]
fn a_read_only_device_is_write_protected() {
    let fixture = Fixture::on(Disguised::new(1 << 20, |info| info.read_only = true));
    let mut swap = cdb(0x89, 0, 0, 0);
    swap[13] = 1;
    let unmap = vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_sense(&fixture.run(&unmap, list, 0), 0x7, 0x27, 0x00);
    assert_sense(&fixture.run(&swap, vec![0; 1024], 0), 0x7, 0x27, 0x00);
    for opcode in [0x2a, 0xaa, 0x8a, 0x41, 0x93, 0x2e, 0xae, 0x8e, 0x0a, 0x8b] {
        let response = fixture.run(&cdb(opcode, 0, 0, 1), vec![0; 512], 0);
        assert_sense(&response, 0x7, 0x27, 0x00);
    }
    for cdb in [cdb(0x41, 0x08, 0, 1), cdb(0x93, 0x09, 0, 1)] {
        assert_sense(&fixture.run(&cdb, vec![0; 512], 0), 0x7, 0x27, 0x00);
    }
    assert_good(&fixture.run(&cdb(0x28, 0, 0, 1), "", 512));
    assert_good(&fixture.run(&cdb(0x35, 0, 0, 0), "", 0));
    let mode = fixture.data(&[0x1a, 0, 0x3f, 0, 255, 0], 255);
    assert_eq!(mode[2] & 0x80, 0x80, "WP");
}
