//! LOG SENSE of the General Statistics and Performance page: what was read and written, and that
//! no change goes by unnoticed.

use super::*;

/// Number of read and write commands, of blocks received and transmitted, and the intervals of
/// both.
fn counted(nexus: &Nexus) -> [u64; 6] {
    let response = run_on(nexus, 0, &[0x4d, 0, 0x59, 0, 0, 0, 0, 1, 0, 0], "", 256);
    assert_good(&response);
    let page = &response.data_in;
    assert_eq!((&page[..8], page.len()), (&[0x19, 0, 0, 92, 0, 1, 3, 64][..], 96));
    assert_eq!(page[72..84], [0, 2, 3, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page[84..], [0, 3, 3, 8, 0, 0, 0, 6, 0, 0, 0, 1], "microseconds");
    std::array::from_fn(|n| u64::from_be_bytes(page[8 + 8 * n..16 + 8 * n].try_into().unwrap()))
}

/// What says that somebody has written: begun and ended changes.
fn changes(nexus: &Nexus) -> (u64, u64) {
    let [_, begun, _, _, _, ended] = counted(nexus);
    (begun, ended)
}

#[test]
fn commands_and_blocks_are_counted_from_power_on() {
    let fixture = Fixture::new();
    assert_eq!(counted(&fixture.nexus), [0; 6]);
    for _ in 0..3 {
        assert_good(&fixture.run(&cdb(0x2a, 0, 8, 4), vec![7; 2048], 0));
    }
    assert_good(&fixture.run(&cdb(0x28, 0, 0, 16), "", 8192));
    assert_good(&fixture.run(&cdb(0x88, 0, 0, 16), "", 1024)); // no room for more than two
    let [read, written, received, transmitted, read_time, write_time] = counted(&fixture.nexus);
    assert_eq!([read, written, received, transmitted], [2, 3, 12, 18]);
    assert!(read_time >= 2 && write_time >= 3, "{read_time}, {write_time}");
    // Neither a reset of the unit nor another initiator begins anew; a new unit does.
    fixture.nexus.lun_reset(0).unwrap();
    let other = ready(fixture.target.nexus("iqn.2026-11.org.example:b,i,0x2"));
    assert_eq!(counted(&other)[1], 3);
    fixture.target.remove_lun(0).unwrap();
    fixture.target.add_lun(0, fixture.device.clone(), LunOptions::default()).unwrap();
    let told = run_on(&other, 0, &[0; 6], "", 0);
    assert_sense(&told, 6, 0x29, 0);
    assert_eq!(counted(&other), [0; 6]);
}

#[test]
fn whatever_changes_the_medium_counts_and_what_is_refused_or_looks_does_not() {
    let fixture = Fixture::new();
    let unmap = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 8], &[0; 4]].concat();
    let all: [(Vec<u8>, Vec<u8>); 5] = [
        (cdb(0x2e, 0, 0, 1), vec![1; 512]), // WRITE AND VERIFY
        (cdb(0x93, 0, 0, 8), vec![0; 512]), // WRITE SAME
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap),
        (vec![0x89, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0], vec![0; 1024]),
        (cdb(0x8b, 0, 0, 1), vec![1; 512]), // ORWRITE
    ];
    for (cdb, data) in all {
        let (begun, ended) = changes(&fixture.nexus);
        assert_good(&fixture.run(&cdb, data, 0));
        let after = changes(&fixture.nexus);
        assert!(after.0 == begun + 1 && after.1 > ended, "{cdb:x?}");
    }
    let before = changes(&fixture.nexus);
    assert_sense(&fixture.run(&cdb(0x2a, 0, BLOCKS, 1), vec![0; 512], 0), 5, 0x21, 0);
    let after = changes(&fixture.nexus);
    assert!(after.0 <= before.0 + 1, "out of range, which a handler finds");
    for cdb in [cdb(0x28, 0, 0, 1), cdb(0x35, 0, 0, 0), vec![0; 6], cdb(0x2f, 0, 0, 1)] {
        fixture.run(&cdb, "", 512);
    }
    assert_eq!(changes(&fixture.nexus), after);
    // Reserved for somebody else: refused before it begins.
    let holder = ready(fixture.target.nexus("iqn.2026-11.org.example:b,i,0x2"));
    assert_good(&run_on(&holder, 0, &[0x16, 0, 0, 0, 0, 0], "", 0));
    let refused = fixture.run(&cdb(0x2a, 0, 0, 1), vec![0; 512], 0);
    assert_eq!(refused.status, Status::RESERVATION_CONFLICT);
    assert_good(&run_on(&holder, 0, &[0x17, 0, 0, 0, 0, 0], "", 0));
    assert_eq!(changes(&fixture.nexus), after);
}

#[test]
fn a_write_that_takes_its_time_counts_when_it_begins_and_when_it_ends() {
    let fixture = Fixture::new();
    let holder = fixture.target.nexus("iqn.2026-11.org.example:b,i,0x2");
    let other = ready(holder);
    // A part of a block: read first, so the answer takes more than one poll of a slow device.
    let command = Command::new(0, Cdb::new(&cdb(0x2a, 0, 0, 1))).with_data_out(vec![9; 100].into());
    let execution = fixture.nexus.execute(command);
    assert!(matches!(execution, Execution::Pending(_)), "it goes on when it is polled");
    assert_eq!(changes(&other), (1, 0), "begun");
    assert_good(&now(execution));
    let (begun, ended) = changes(&other);
    assert!(begun == 1 && ended >= 1, "{begun} {ended}");
    // One that nobody polls to its end has ended, too: it may have changed something.
    let command = Command::new(0, Cdb::new(&cdb(0x2a, 0, 0, 1))).with_data_out(vec![9; 100].into());
    drop(fixture.nexus.execute(command));
    let after = changes(&other);
    assert!(after.0 == 2 && after.1 > ended, "{after:?}");
}

#[test]
fn pages_and_parameters_that_there_are() {
    let fixture = Fixture::new();
    let sense = |page: u8, subpage: u8, from: u8| {
        fixture.run(&[0x4d, 0, page, subpage, 0, 0, from, 1, 0, 0], "", 256)
    };
    assert_eq!(sense(0x40, 0, 0).data_in[..], [0, 0, 0, 2, 0, 0x19]);
    assert_eq!(sense(0x59, 0, 3).data_in[..], [0x19, 0, 0, 12, 0, 3, 3, 8, 0, 0, 0, 6, 0, 0, 0, 1]);
    assert_invalid_cdb(&sense(0x59, 0, 4), 5, 7);
    assert_invalid_cdb(&sense(0x59, 1, 0), 3, 7);
    assert_invalid_cdb(&sense(0x19, 0, 0), 2, 7);
}
