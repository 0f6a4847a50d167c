//! Task attributes through a nexus (the rules themselves: `task_set`).

use super::slow::{SlowDevice, look};
use super::*;

const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn with(nexus: &Nexus, attribute: TaskAttribute, cdb: &[u8], data_out: &[u8]) -> Execution {
    let command = Command::new(0, Cdb::new(cdb)).with_data_out(Bytes::copy_from_slice(data_out));
    nexus.execute(command.with_data_in_max(512).with_attribute(attribute).with_tag(7))
}

fn slow() -> (Arc<SlowDevice>, Target, [Nexus; 2]) {
    let device = SlowDevice::new(1 << 20);
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, device.clone(), LunOptions::default()).unwrap();
    let nexuses = [INITIATOR, "iqn.2026-11.org.example:other,i,0x000000000001"]
        .map(|port| ready(target.nexus(port)));
    (device, target, nexuses)
}

#[test]
fn ordered_waits_and_holds_back_whoever_sent_it() {
    let (device, _target, [one, two]) = slow();
    let mut older = with(&one, TaskAttribute::Simple, &READ, &[]);
    let mut ordered = with(&two, TaskAttribute::Ordered, &cdb(0x2a, 0, 0, 1), &[5; 512]);
    let mut newer = with(&one, TaskAttribute::Simple, &READ, &[]);
    device.permit(1);
    assert!(look(&mut newer).is_none() && look(&mut ordered).is_none());
    assert_eq!(device.started(), 1);
    assert_eq!(look(&mut older).unwrap().data_in[0], 0, "it is older than the write");
    assert!(look(&mut newer).is_none() && look(&mut ordered).is_none());
    assert_eq!(device.started(), 2);
    // What tells about the target never waits.
    assert_good(&now(with(&one, TaskAttribute::Ordered, &[0x12, 0, 0, 0, 96, 0], &[])));
    device.permit(1);
    assert_good(&look(&mut ordered).unwrap());
    device.permit(1);
    assert_eq!(look(&mut newer).unwrap().data_in[0], 5, "it is newer than the write");
}

#[test]
fn head_of_queue_goes_ahead() {
    let (device, _target, [one, two]) = slow();
    let mut older = with(&one, TaskAttribute::Simple, &READ, &[]);
    let mut ordered = with(&one, TaskAttribute::Ordered, &READ, &[]);
    let mut head = with(&two, TaskAttribute::HeadOfQueue, &READ, &[]);
    assert_eq!(device.started(), 2);
    device.permit(1);
    assert_good(&look(&mut head).unwrap());
    assert!(look(&mut ordered).is_none());
    device.permit(2);
    assert_good(&look(&mut older).unwrap());
    assert_good(&look(&mut ordered).unwrap());
}

#[test]
fn an_aborted_command_does_not_wait_for_its_turn() {
    let (device, _target, [one, two]) = slow();
    let mut older = with(&one, TaskAttribute::Simple, &READ, &[]);
    let mut ordered = with(&two, TaskAttribute::Ordered, &cdb(0x2a, 0, 0, 1), &[5; 512]);
    let mut newer = with(&one, TaskAttribute::Simple, &READ, &[]);
    assert!(look(&mut ordered).is_none() && look(&mut newer).is_none());
    two.abort(7);
    assert_eq!(look(&mut ordered).unwrap().status, Status::TASK_ABORTED);
    device.permit(2);
    assert_good(&look(&mut newer).unwrap());
    assert_eq!(look(&mut older).unwrap().data_in[0], 0, "the write was never begun");
    assert_eq!(device.started(), 2);
}

#[test]
fn conditions_are_those_of_the_turn() {
    let (device, target, [one, two]) = slow();
    let mut older = with(&one, TaskAttribute::Simple, &READ, &[]);
    let mut ordered = with(&two, TaskAttribute::Ordered, &READ, &[]);
    assert!(look(&mut ordered).is_none());
    target.capacity_changed(0).unwrap();
    device.permit(1);
    assert_good(&look(&mut older).unwrap());
    assert_sense(&look(&mut ordered).unwrap(), 6, 0x2a, 9);
}

/// With NACA, and an address that the unit does not have: fails.
const FAILS: [u8; 10] = [0x28, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 4];

/// What waits behind a failed command is not carried out, nor what comes later, until the initiator
/// has dealt with it. Others are not concerned.
#[test]
fn nothing_of_a_nexus_overtakes_a_failure_with_naca() {
    let (device, target, [one, two]) = slow();
    assert_sense(&now(with(&one, TaskAttribute::Aca, &READ, &[])), 5, 0x49, 0);
    let mut older = with(&one, TaskAttribute::Simple, &READ, &[]);
    let mut fails = with(&one, TaskAttribute::Ordered, &FAILS, &[]);
    let mut behind = with(&one, TaskAttribute::Simple, &cdb(0x2a, 0, 0, 1), &[5; 512]);
    let mut others = with(&two, TaskAttribute::Simple, &READ, &[]);
    device.permit(1);
    assert_good(&look(&mut older).unwrap());
    assert_sense(&look(&mut fails).unwrap(), 5, 0x21, 0);
    assert_eq!(look(&mut behind).unwrap().status, Status::ACA_ACTIVE);
    device.permit(1);
    assert_good(&look(&mut others).unwrap());
    assert_eq!(device.started(), 2, "the write was never begun");
    let unknown = [0xff; 10];
    for cdb in [READ, FAILS, unknown] {
        let refused = now(with(&one, TaskAttribute::Simple, &cdb, &[]));
        assert_eq!(refused.status, Status::ACA_ACTIVE);
    }
    let inquiry = [0x12, 0, 0, 0, 96, 0];
    assert_good(&now(with(&one, TaskAttribute::Simple, &inquiry, &[])));
    // With the ACA attribute the initiator may look what is there.
    let mut looks = with(&one, TaskAttribute::Aca, &READ, &[]);
    device.permit(1);
    assert_eq!(look(&mut looks).unwrap().data_in[0], 0);
    let ends: [fn(&Nexus, &Target); 3] = [
        |one, _| one.clear_aca(0).unwrap(),
        |one, _| one.nexus_reset(),
        |one, _| one.lun_reset(0).unwrap(),
    ];
    for end in ends {
        end(&one, &target);
        let told = now(with(&one, TaskAttribute::Simple, &[0; 6], &[]));
        assert!(told.status == Status::GOOD || told.sense.unwrap().key == SenseKey::UNIT_ATTENTION);
        let mut goes_on = with(&one, TaskAttribute::Simple, &READ, &[]);
        device.permit(1);
        assert_good(&look(&mut goes_on).unwrap());
        assert_sense(&now(with(&one, TaskAttribute::Simple, &FAILS, &[])), 5, 0x21, 0);
    }
}

/// A unit attention is told by a failure like any other, and one of the transport's counts as well.
#[test]
fn whatever_is_told_by_check_condition_establishes_the_condition() {
    let (device, target, [one, two]) = slow();
    target.capacity_changed(0).unwrap();
    let naca = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 4];
    assert_sense(&now(with(&one, TaskAttribute::Simple, &naca, &[])), 6, 0x2a, 9);
    assert_eq!(now(with(&one, TaskAttribute::Simple, &READ, &[])).status, Status::ACA_ACTIVE);
    // Without NACA there is none.
    assert_sense(&now(with(&two, TaskAttribute::Simple, &READ, &[])), 6, 0x2a, 9);
    two.note_failed(0, &Cdb::new(&READ));
    two.note_failed(7, &Cdb::new(&naca));
    let mut goes_on = with(&two, TaskAttribute::Simple, &READ, &[]);
    device.permit(1);
    assert_good(&look(&mut goes_on).unwrap());
    two.note_failed(0, &Cdb::new(&naca));
    assert_eq!(now(with(&two, TaskAttribute::Simple, &READ, &[])).status, Status::ACA_ACTIVE);
    assert!(two.clear_aca(7).is_err());
}

#[test]
fn the_unit_says_what_it_knows() {
    let (_device, _target, [one, _]) = slow();
    let standard = run_on(&one, 0, &[0x12, 0, 0, 0, 96, 0], "", 96).data_in;
    assert_eq!(standard[3] & 0x20, 0x20, "NORMACA");
    let extended = run_on(&one, 0, &[0x12, 1, 0x86, 0, 64, 0], "", 64).data_in;
    assert_eq!((extended.len(), extended[5]), (64, 0x07), "HEADSUP, ORDSUP, SIMPSUP");
}
