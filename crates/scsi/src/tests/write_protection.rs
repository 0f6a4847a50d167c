//! A nexus that may only read, beside one that may write.

use super::*;

const WRITE_10: [u8; 10] = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const MODE_SENSE_6: [u8; 6] = [0x1a, 0, 0x3f, 0, 255, 0];
const MODE_SELECT_6: [u8; 6] = [0x15, 0x10, 0, 0, 0, 0];

#[test]
fn only_the_protected_nexus_is_refused() {
    let fixture = Fixture::new();
    let other = ready(fixture.target.nexus("iqn.2026-11.org.example:backup,i,0x000000000002"));
    for protection in [WriteProtection::All, WriteProtection::Units([0].into())] {
        other.set_write_protection(protection);
        for cdb in [&WRITE_10[..], &MODE_SELECT_6] {
            let refused = run_on(&other, 0, cdb, Bytes::from(vec![7; 512]), 0);
            assert_eq!(refused.sense.map(|sense| sense.key), Some(SenseKey::DATA_PROTECT));
        }
        assert_eq!(run_on(&other, 0, &READ_10, Bytes::new(), 512).status, Status::GOOD);
        // WP of the mode parameter header.
        let sensed = |nexus| run_on(nexus, 0, &MODE_SENSE_6, Bytes::new(), 255).data_in[2] & 0x80;
        assert_eq!((sensed(&other), sensed(&fixture.nexus)), (0x80, 0));
        let written = run_on(&fixture.nexus, 0, &WRITE_10, Bytes::from(vec![7; 512]), 0);
        assert_eq!(written.status, Status::GOOD);
    }
    other.set_write_protection(WriteProtection::Units([1].into()));
    let written = run_on(&other, 0, &WRITE_10, Bytes::from(vec![8; 512]), 0);
    assert_eq!(written.status, Status::GOOD);
}

/// PERSISTENT RESERVE OUT with a basic parameter list.
fn persistent_reserve_out(nexus: &Nexus, action: u8, list: Vec<u8>) -> Response {
    let mut cdb = [0x5f, action, 0x05, 0, 0, 0, 0, 0, 0, 0];
    cdb[8] = list.len() as u8;
    run_on(nexus, 0, &cdb, list, 0)
}

/// What a nexus may do that may only read, opcode and service action. This list is kept by hand: a
/// command that is added fails the test until somebody has thought about it.
const MAY: &[(u8, u8)] = &[
    (0x00, 0), // TEST UNIT READY
    (0x03, 0), // REQUEST SENSE
    (0x08, 0), // READ(6)
    (0x12, 0), // INQUIRY
    (0x17, 0), // RELEASE(6): of what is its own
    (0x1a, 0), // MODE SENSE(6)
    (0x1b, 0), // START STOP UNIT, but for LOEJ
    (0x1d, 0), // SEND DIAGNOSTIC
    (0x1e, 0), // PREVENT ALLOW MEDIUM REMOVAL
    (0x25, 0), // READ CAPACITY(10)
    (0x28, 0), // READ(10)
    (0x2f, 0), // VERIFY(10)
    (0x34, 0), // PRE-FETCH(10)
    (0x35, 0), // SYNCHRONIZE CACHE(10)
    (0x37, 0), // READ DEFECT DATA(10)
    (0x4d, 0), // LOG SENSE
    (0x57, 0), // RELEASE(10)
    (0x5a, 0), // MODE SENSE(10)
    (0x5e, 0), // PERSISTENT RESERVE IN
    (0x5e, 1),
    (0x5e, 2),
    (0x5e, 3),
    (0x83, 0), // EXTENDED COPY: the unit copied to says no
    (0x84, 0), // RECEIVE COPY RESULTS
    (0x84, 3),
    (0x84, 4),
    (0x88, 0),    // READ(16)
    (0x8f, 0),    // VERIFY(16)
    (0x90, 0),    // PRE-FETCH(16)
    (0x91, 0),    // SYNCHRONIZE CACHE(16)
    (0x9e, 0x10), // READ CAPACITY(16)
    (0x9e, 0x12), // GET LBA STATUS
    (0xa0, 0),    // REPORT LUNS
    (0xa3, 0x0a), // REPORT TARGET PORT GROUPS
    (0xa3, 0x0c), // REPORT SUPPORTED OPERATION CODES
    (0xa3, 0x0d), // REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS
    (0xa8, 0),    // READ(12)
    (0xaf, 0),    // VERIFY(12)
    (0xb7, 0),    // READ DEFECT DATA(12)
];

#[test]
fn every_command_has_its_right() {
    let target = Target::new(TargetConfig::new(NAME));
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    // WRITE ATOMIC(16) is there only where the unit says so.
    target.add_lun(0, device, LunOptions::default().with_atomic_write_bytes(4096)).unwrap();
    let writer = ready(target.nexus(INITIATOR));
    let reader = ready(target.nexus("iqn.2026-11.org.example:backup,i,0x000000000002"));
    reader.set_write_protection(WriteProtection::All);
    let may = |nexus: &Nexus, opcode: u8, action: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        match nexus.execute(Command::new(0, Cdb::new(&cdb)).with_data_in_max(512)) {
            Execution::Done(response) => {
                response.sense.map(|sense| sense.key) != Some(SenseKey::DATA_PROTECT)
            }
            Execution::Pending(_) => true, // it has begun
        }
    };
    let seen: Vec<_> = crate::opcodes::all_for_tests().collect();
    for (opcode, action) in seen.iter().copied() {
        let expected = MAY.contains(&(opcode, action));
        assert_eq!(may(&reader, opcode, action), expected, "{opcode:#x}/{action:#x}");
    }
    // SANITIZE would begin, and keep the rest out.
    for (opcode, action) in seen.iter().copied().filter(|(opcode, _)| *opcode != 0x48) {
        assert!(may(&writer, opcode, action), "{opcode:#x}/{action:#x} of who may write");
    }
    assert!(MAY.iter().all(|row| seen.contains(row)), "a row of the list is no command");
}

/// What would take the unit from those who may write to it.
#[test]
fn a_reader_cannot_take_the_unit() {
    let target = Target::new(TargetConfig::new(NAME));
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    target.add_lun(0, device, LunOptions::default().with_removable(true)).unwrap();
    let writer = ready(target.nexus(INITIATOR));
    let reader = ready(target.nexus("iqn.2026-11.org.example:backup,i,0x000000000002"));
    reader.set_write_protection(WriteProtection::Units([0].into()));
    let registering = {
        let mut list = vec![0; 24];
        list[15] = 7;
        list
    };
    for refused in [
        run_on(&reader, 0, &[0x16, 0, 0, 0, 0, 0], Bytes::new(), 0),
        persistent_reserve_out(&reader, 0, registering.clone()),
        persistent_reserve_out(&reader, 6, registering),
        run_on(&reader, 0, &[0x1b, 0, 0, 0, 0x02, 0], Bytes::new(), 0), // eject
    ] {
        assert_sense(&refused, 0x07, 0x27, 0x00);
    }
    assert_good(&run_on(&reader, 0, &[0x1b, 0, 0, 0, 0, 0], Bytes::new(), 0)); // stop: a flush
    assert_good(&run_on(&writer, 0, &WRITE_10, vec![7; 512], 0));
    let rights = reader.rights();
    assert!(!rights.may_reset(Some(0)) && !rights.may_reset(None));
    assert!(rights.may_reset(Some(1 << 48)), "of that unit it may");
    reader.set_write_protection(WriteProtection::None);
    assert!(rights.may_reset(Some(0)) && rights.may_reset(None), "as of now");
    assert!(writer.rights().may_reset(Some(0)));
}
