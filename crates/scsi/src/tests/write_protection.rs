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
