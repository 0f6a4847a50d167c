//! What comes from outside: access state, space that runs low, WRITE ATOMIC where it is promised.

use super::*;

#[test]
fn target_port_groups() {
    let fixture = Fixture::new();
    let report =
        |format: u8| fixture.data(&[0xa3, format | 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256);
    let group = [0, 0x0f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1];
    assert_eq!(report(0), [&[0, 0, 0, 12][..], &group].concat());
    assert_eq!(report(0x20), [&[0, 0, 0, 16, 0x10, 0, 0, 0][..], &group].concat());
    let wrong = fixture.run(&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], "", 256);
    assert_invalid_cdb(&wrong, 1, 7);
    fixture.target.set_access_state(AccessState::Standby);
    assert_sense(&fixture.run(&[0; 6], "", 0), 6, 0x2a, 6);
    assert_sense(&fixture.run(&cdb(0x28, 0, 0, 1), "", 512), 2, 4, 0x0b);
    assert_eq!(report(0)[4], 2);
    fixture.target.set_access_state(AccessState::Unavailable);
    assert_sense(&fixture.run(&[0; 6], "", 0), 6, 0x2a, 6);
    assert_sense(&fixture.run(&cdb(0x2a, 0, 0, 1), vec![0; 512], 0), 2, 4, 0x0c);
    fixture.target.set_access_state(AccessState::ActiveNonOptimized);
    fixture.target.set_access_state(AccessState::ActiveNonOptimized);
    assert_sense(&fixture.run(&[0; 6], "", 0), 6, 0x2a, 6);
    assert_good(&fixture.run(&cdb(0x28, 0, 0, 1), "", 512));
}

fn with_options(options: LunOptions) -> (Target, Nexus) {
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, Arc::new(MemoryDevice::new(1 << 30, 512).unwrap()), options).unwrap();
    let nexus = ready(target.nexus(INITIATOR));
    (target, nexus)
}

fn log_sense(nexus: &Nexus, page: u8, subpage: u8, from: u8) -> Response {
    run_on(nexus, 0, &[0x4d, 0, page, subpage, 0, 0, from, 1, 0, 0], "", 256)
}

#[test]
fn space_that_runs_low() {
    let (target, nexus) = with_options(LunOptions::default().with_space_threshold_bytes(100 << 20));
    assert_eq!(log_sense(&nexus, 0x40, 0, 0).data_in[..], [0, 0, 0, 2, 0, 0x19]);
    assert_invalid_cdb(&log_sense(&nexus, 0x4c, 0, 0), 2, 5);
    let report = |available: u64| {
        let usage = SpaceUsage { available_bytes: available << 20, used_bytes: 8 << 20 };
        target.report_space(0, usage).unwrap();
    };
    report(100);
    assert_good(&run_on(&nexus, 0, &[0; 6], "", 0));
    report(99);
    report(98);
    assert_sense(&run_on(&nexus, 0, &[0; 6], "", 0), 6, 0x38, 7);
    assert_good(&run_on(&nexus, 0, &[0; 6], "", 0));
    // A threshold set is 8192 blocks: 4 MiB.
    assert_eq!(run_on(&nexus, 0, &[0x12, 1, 0xb2, 0, 8, 0], "", 8).data_in[4], 13);
    let available = [0, 1, 3, 8, 0, 0, 0, 24, 2, 0, 0, 0];
    let used = [0, 2, 3, 8, 0, 0, 0, 2, 1, 0, 0, 0];
    let page = [&[0x0c, 0, 0, 24][..], &available, &used].concat();
    assert_eq!(log_sense(&nexus, 0x4c, 0, 0).data_in[..], page);
    assert_eq!(log_sense(&nexus, 0x4c, 0, 2).data_in[4..], used);
    assert_invalid_cdb(&log_sense(&nexus, 0x4c, 0, 3), 5, 7);
    assert_eq!(
        log_sense(&nexus, 0x40, 0xff, 0).data_in[..],
        [0x40, 0xff, 0, 8, 0, 0xff, 0, 0, 0x0c, 0, 0x19, 0]
    );
    assert_invalid_cdb(&log_sense(&nexus, 0x0c, 0, 0), 2, 7); // thresholds, not cumulative values
    assert_invalid_cdb(&log_sense(&nexus, 0x4c, 1, 0), 3, 7);
    assert_eq!(
        target.report_space(1, SpaceUsage { available_bytes: 0, used_bytes: 0 }),
        Err(NoSuchLun)
    );
}

fn atomic(lba: u64, boundary: u16, count: u16) -> Vec<u8> {
    let mut cdb = vec![0x9c, 0];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(boundary.to_be_bytes());
    cdb.extend(count.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

#[test]
fn write_atomic_only_where_promised() {
    let fixture = Fixture::new();
    assert_sense(&fixture.run(&atomic(0, 0, 1), vec![1; 512], 0), 5, 0x20, 0);
    let (_target, nexus) = with_options(LunOptions::default().with_atomic_write_bytes(4096));
    let page = run_on(&nexus, 0, &[0x12, 1, 0xb0, 0, 64, 0], "", 64).data_in;
    assert_eq!(page[44..48], 8u32.to_be_bytes());
    let run = |cdb: &[u8], len: usize| run_on(&nexus, 0, cdb, vec![7; len], 0);
    assert_good(&run(&atomic(3, 0, 8), 4096));
    assert_good(&run(&atomic(3, 0, 0), 0));
    let read = run_on(&nexus, 0, &cdb(0x28, 0, 2, 10), "", 5120).data_in;
    assert!(read[..512] == [0; 512] && read[512..4608].iter().all(|b| *b == 7));
    assert_invalid_cdb(&run(&atomic(0, 0, 9), 9 * 512), 12, 7);
    assert_invalid_cdb(&run(&atomic(0, 1, 8), 4096), 10, 7);
    assert_sense(&run(&atomic(1 << 21, 0, 1), 512), 5, 0x21, 0);
    assert_sense(&run(&atomic(0, 0, 2), 512), 5, 0x0e, 3);
}

#[test]
fn no_defects() {
    let fixture = Fixture::new();
    assert_eq!(fixture.data(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 8, 0], 8), [0, 0x1d, 0, 0]);
    let long = [0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    assert_eq!(fixture.data(&long, 32), [0, 0x0d, 0, 0, 0, 0, 0, 0]);
}
