//! Removable media: PREVENT ALLOW MEDIUM REMOVAL, load and eject.

use super::*;

fn removable() -> (Target, Vec<Nexus>) {
    let target = Target::new(TargetConfig::new(NAME));
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    target.add_lun(0, memory, LunOptions::default().with_removable(true)).unwrap();
    let nexuses = (0..2).map(|_| ready(target.nexus(INITIATOR))).collect();
    (target, nexuses)
}

fn run(nexus: &Nexus, cdb: &[u8]) -> Response {
    run_on(nexus, 0, cdb, "", 512)
}

const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];

#[test]
fn without_a_medium() {
    let (_target, nexuses) = removable();
    assert_eq!(run(&nexuses[0], &[0x12, 0, 0, 0, 96, 0]).data_in[1], 0x80, "RMB");
    assert_good(&run(&nexuses[0], &EJECT));
    assert_good(&run(&nexuses[0], &EJECT));
    for opcode in [0x28, 0x2a, 0x2e, 0x2f, 0x34, 0x35, 0x88, 0x8b, 0x8f, 0x93, 0xa8] {
        assert_sense(&run(&nexuses[1], &cdb(opcode, 0, 0, 1)), 2, 0x3a, 0);
    }
    assert_sense(&run(&nexuses[1], &[0; 6]), 2, 0x3a, 0);
    assert_sense(&run(&nexuses[1], &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 2, 0x3a, 0);
    assert_good(&run(&nexuses[1], &[0x1a, 0, 0x3f, 0, 255, 0]));
    assert_good(&run(&nexuses[0], &LOAD));
    assert_sense(&run(&nexuses[1], &[0; 6]), 6, 0x28, 0);
    assert_good(&run(&nexuses[1], &cdb(0x28, 0, 0, 1)));
}

#[test]
fn whoever_prevents_is_heard() {
    let (target, mut nexuses) = removable();
    for end in 0..4 {
        assert_good(&run(&nexuses[0], &PREVENT));
        assert_good(&run(&nexuses[1], &ALLOW)); // of another nexus: no effect
        for nexus in &nexuses {
            assert_sense(&run(nexus, &EJECT), 5, 0x53, 2);
            assert_sense(&run(nexus, &LOAD), 5, 0x53, 2);
            assert_good(&run(nexus, &[0; 6]));
        }
        match end {
            0 => assert_good(&run(&nexuses[0], &ALLOW)),
            1 => nexuses[1].lun_reset(0).unwrap(),
            2 => nexuses[1].target_reset(),
            _ => nexuses[0] = target.nexus(INITIATOR),
        }
        for nexus in &nexuses {
            while run(nexus, &[0; 6]).status == Status::CHECK_CONDITION {}
        }
        assert_good(&run(&nexuses[1], &EJECT));
        assert_good(&run(&nexuses[1], &LOAD));
        assert_sense(&run(&nexuses[0], &[0; 6]), 6, 0x28, 0);
    }
    assert_invalid_cdb(&run(&nexuses[0], &[0x1e, 0, 0, 0, 2, 0]), 4, 1);
}

#[test]
fn fixed_disks_cannot_be_ejected() {
    let fixture = Fixture::new();
    assert_good(&fixture.run(&PREVENT, "", 0));
    assert_good(&fixture.run(&ALLOW, "", 0));
    assert_invalid_cdb(&fixture.run(&EJECT, "", 0), 4, 1);
}
