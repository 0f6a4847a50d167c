//! Task management functions as far as units have a part in them.

use super::*;

#[test]
fn asynchronous_events_can_be_asked_for() {
    let fixture = Fixture::new();
    let event = || fixture.nexus.query_asynchronous_event(0).unwrap();
    assert_eq!(event(), None);
    fixture.target.capacity_changed(0).unwrap();
    assert_eq!(event().unwrap().to_bytes(), [0x16, 0x2a, 0x09]);
    fixture.target.set_access_state(AccessState::Standby);
    for _ in 0..2 {
        assert_eq!(event().unwrap().to_bytes(), [0x26, 0x2a, 0x09], "asking takes nothing away");
    }
    assert_sense(&fixture.run(&[0; 6], "", 0), 6, 0x2a, 9);
    assert_eq!(event().unwrap().to_bytes(), [0x16, 0x2a, 0x06]);
    assert_eq!(fixture.nexus.query_asynchronous_event(1 << 48), Err(NoSuchLun));
}

#[test]
fn a_nexus_reset_loses_what_belongs_to_the_nexus() {
    let fixture = Fixture::new();
    let other = ready(fixture.target.nexus("other,i,0x000000000001"));
    assert_good(&fixture.run(&[0x16, 0, 0, 0, 0, 0], "", 0)); // RESERVE(6)
    let conflict = run_on(&other, 0, &cdb(0x28, 0, 0, 1), "", 512);
    assert_eq!(conflict.status, Status::RESERVATION_CONFLICT);
    fixture.nexus.nexus_reset();
    assert_good(&run_on(&other, 0, &cdb(0x28, 0, 0, 1), "", 512));
    assert_sense(&fixture.run(&[0; 6], "", 0), 6, 0x29, 7);
    assert_good(&fixture.run(&[0; 6], "", 0));
}

#[test]
fn functions_are_reported_where_the_transport_has_them() {
    let fixture = Fixture::new();
    let report = || fixture.data(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], 16);
    assert_eq!(report(), [0xfa, 0, 0, 0]);
    fixture.nexus.set_queries(true);
    assert_eq!(report(), [0xfe, 0x07, 0, 0]);
}
