//! Unit attentions, resets, and units that do not exist.

use super::*;

const LUN0: u64 = 0;
const LUN1: u64 = 1 << 48;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 18, 0];

fn target(luns: u16) -> Target {
    let target = Target::new(TargetConfig::new(NAME));
    (0..luns).for_each(|lun| add(&target, lun));
    target
}

fn add(target: &Target, lun: u16) {
    let memory = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    target.add_lun(lun, memory, LunOptions::default()).unwrap();
}

fn run(nexus: &Nexus, lun: u64, cdb: &[u8]) -> Response {
    run_on(nexus, lun, cdb, "", 256)
}

#[test]
fn a_nexus_is_told_of_the_power_on_until_its_port_has_had_that_answer() {
    let target = target(2);
    let mut late: Option<(Nexus, Receipt)> = None;
    for round in 0..4 {
        let nexus = target.nexus(INITIATOR);
        let told = |lun: u64| run(&nexus, lun, &TEST_UNIT_READY);
        // Of unit 1 the second nexus has heard, of unit 0 only the third, after it had ended.
        let (zero, one) = (told(LUN0), told(LUN1));
        assert_sense(&zero, 0x6, 0x29, if round < 3 { 0x00 } else { 0x07 });
        assert_sense(&one, 0x6, 0x29, if round < 2 { 0x00 } else { 0x07 });
        assert_eq!((zero.receipt.is_some(), one.receipt.is_some()), (round < 3, round < 2));
        if round == 1 {
            nexus.received(one.receipt.unwrap());
        }
        if let Some((before, receipt)) = late.take() {
            before.received(receipt);
        }
        late = (round == 1).then(|| (target.nexus(INITIATOR), zero.receipt.unwrap()));
    }
    // Another unit under an old number has not been heard of, nor has another port of the old one.
    target.remove_lun(1).unwrap();
    add(&target, 1);
    let nexus = target.nexus(INITIATOR);
    assert_sense(&run(&nexus, LUN1, &TEST_UNIT_READY), 0x6, 0x29, 0x00);
    assert_sense(&run(&target.nexus("other"), LUN0, &TEST_UNIT_READY), 0x6, 0x29, 0x00);
}

#[test]
fn a_power_on_whose_answer_was_lost_is_told_again() {
    let target = target(1);
    let nexus = target.nexus(INITIATOR);
    let by_sense = run(&nexus, LUN0, &REQUEST_SENSE);
    assert_eq!(by_sense.data_in[12], 0x29);
    assert_good(&run(&nexus, LUN0, &TEST_UNIT_READY));
    nexus.lost(by_sense.receipt.unwrap());
    // No lesser news take its place.
    nexus.nexus_reset();
    nexus.lun_reset(LUN0).unwrap();
    let told = run(&nexus, LUN0, &[0xff; 16]);
    assert_sense(&told, 0x6, 0x29, 0x00);
    nexus.received(told.receipt.unwrap());
    nexus.nexus_reset();
    let reset = run(&nexus, LUN0, &TEST_UNIT_READY);
    assert_sense(&reset, 0x6, 0x29, 0x07);
    assert_eq!(reset.receipt, None);
}

#[test]
fn power_on_then_nexus_loss_is_reported_once_per_nexus_and_unit() {
    let target = target(2);
    // The second nexus is the first one's port coming back: no cache can have been lost.
    for qualifier in [0x00, 0x07] {
        let nexus = target.nexus(INITIATOR);
        for lun in [LUN0, LUN1] {
            // These three never report it ...
            assert_good(&run(&nexus, lun, &INQUIRY));
            assert_good(&run(&nexus, lun, &REPORT_LUNS));
            // ... not even an unknown opcode is looked at before it.
            let told = run(&nexus, lun, &[0xff; 16]);
            assert_sense(&told, 0x6, 0x29, qualifier);
            told.receipt.into_iter().for_each(|receipt| nexus.received(receipt));
            assert_good(&run(&nexus, lun, &TEST_UNIT_READY));
            assert_sense(&run(&nexus, lun, &[0xff; 16]), 0x5, 0x20, 0x00);
        }
    }
}

#[test]
fn request_sense_hands_over_the_condition() {
    let nexus = target(1).nexus(INITIATOR);
    let response = run(&nexus, LUN0, &REQUEST_SENSE);
    assert_good(&response);
    assert_eq!(response.data_in[..], [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0]);
    assert_good(&run(&nexus, LUN0, &TEST_UNIT_READY));
    let response = run(&nexus, LUN0, &[0x03, 1, 0, 0, 252, 0]);
    assert_eq!(response.data_in[..], [0x72, 0, 0, 0, 0, 0, 0, 0]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the Logical Unit
//# Reset function in [SAM2].
#[test]
fn resets_are_told_to_every_nexus() {
    let target = target(2);
    let nexuses = [0, 1].map(|_| target.nexus(INITIATOR));
    for nexus in &nexuses {
        [LUN0, LUN1]
            .iter()
            .for_each(|lun| assert_sense(&run(nexus, *lun, &TEST_UNIT_READY), 6, 0x29, 0));
    }
    nexuses[0].lun_reset(LUN1).unwrap();
    for nexus in &nexuses {
        assert_good(&run(nexus, LUN0, &TEST_UNIT_READY));
        assert_sense(&run(nexus, LUN1, &TEST_UNIT_READY), 0x6, 0x29, 0x03);
        assert_good(&run(nexus, LUN1, &TEST_UNIT_READY));
    }
    nexuses[1].target_reset();
    for nexus in &nexuses {
        [LUN0, LUN1]
            .iter()
            .for_each(|lun| assert_sense(&run(nexus, *lun, &TEST_UNIT_READY), 6, 0x29, 3));
    }
    assert_eq!(nexuses[0].lun_reset(5 << 48), Err(NoSuchLun));
    nexuses[0].clear_task_set(LUN0).unwrap();
    assert_good(&run(&nexuses[0], LUN0, &TEST_UNIT_READY));
    assert_sense(&run(&nexuses[1], LUN0, &TEST_UNIT_READY), 0x6, 0x2f, 0x00);
}

#[test]
fn added_and_removed_units_are_news() {
    let target = target(1);
    let [asks, looks] = [0, 1].map(|_| ready(target.nexus(INITIATOR)));
    add(&target, 1);
    assert_sense(&run(&asks, LUN0, &TEST_UNIT_READY), 0x6, 0x3f, 0x0e);
    assert_sense(&run(&asks, LUN1, &TEST_UNIT_READY), 0x6, 0x29, 0x00);
    assert_eq!(run(&looks, LUN0, &REPORT_LUNS).data_in.len(), 8 + 2 * 8);
    assert_good(&run(&looks, LUN0, &TEST_UNIT_READY));
    target.remove_lun(1).unwrap();
    assert_sense(&run(&asks, LUN0, &TEST_UNIT_READY), 0x6, 0x3f, 0x0e);
    assert_sense(&run(&asks, LUN1, &TEST_UNIT_READY), 0x5, 0x25, 0x00);
    assert_eq!(target.remove_lun(1), Err(NoSuchLun));
}

#[test]
fn nexuses_end_with_their_last_handle() {
    let target = target(1);
    let first = target.nexus(INITIATOR);
    let second = target.nexus(INITIATOR);
    assert_eq!(target.nexus_count(), 2);
    drop(first);
    assert_eq!(target.nexus_count(), 1);
    drop(second);
    assert_eq!(target.nexus_count(), 0);
}

#[test]
fn units_that_do_not_exist() {
    let target = target(1);
    let nexus = target.nexus(INITIATOR);
    for lun in [LUN1, 5 << 48, 0xc101 << 48, u64::MAX, 1] {
        assert_eq!(run(&nexus, lun, &INQUIRY).data_in[0], 0x7f);
        for cdb in [&TEST_UNIT_READY[..], &cdb(0x28, 0, 0, 1), &[0xff; 16], &REPORT_LUNS] {
            assert_sense(&run(&nexus, lun, cdb), 0x5, 0x25, 0x00);
        }
        let sense = run(&nexus, lun, &REQUEST_SENSE);
        assert_good(&sense);
        assert_eq!((sense.data_in[2], sense.data_in[12]), (0x5, 0x25));
    }
}

#[test]
fn report_luns_lists_them_encoded() {
    let target = target(0);
    [300, 2, 255].iter().for_each(|lun| add(&target, *lun));
    let nexus = target.nexus(INITIATOR);
    // LUN 0 answers although there is none.
    let list = run(&nexus, LUN0, &REPORT_LUNS).data_in;
    let luns: Vec<_> = list[8..].chunks(8).map(|lun| [lun[0], lun[1]]).collect();
    assert_eq!(list[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
    assert_eq!(luns, [[0, 2], [0, 255], [0x41, 0x2c]]);
    let with = |byte: usize, value| {
        let mut cdb = REPORT_LUNS;
        cdb[byte] = value;
        run(&nexus, LUN0, &cdb)
    };
    assert_eq!(with(2, 1).data_in[..], [0; 8]);
    assert_eq!(with(2, 2).data_in, list);
    assert_invalid_cdb(&with(2, 3), 2, 7);
    assert_invalid_cdb(&run(&nexus, LUN0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0]), 6, 7);
    assert_eq!(run(&nexus, LUN0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]).data_in, list[..16]);
}

#[test]
fn several_units_that_come_and_go_are_one_change() {
    let target = target(3);
    let nexus = ready(target.nexus(INITIATOR));
    let lun = |number: u64| number << 48;
    assert_sense(&run(&nexus, LUN1, &TEST_UNIT_READY), 0x6, 0x29, 0x00);
    let memory = || Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let added = [2, 4, 5, 0].map(|number| (number, memory() as Device, LunOptions::default()));
    let refused = target.change_luns(&[2, 7], added.into());
    let refused: Vec<String> = refused.iter().map(|(n, why)| format!("{n}: {why}")).collect();
    assert_eq!(refused, ["0: LUN 0 exists already"]);
    assert_eq!(target.luns(), [0, 1, 2, 4, 5]);
    for kept in [LUN0, LUN1] {
        assert_sense(&run(&nexus, kept, &TEST_UNIT_READY), 0x6, 0x3f, 0x0e);
        assert_good(&run(&nexus, kept, &TEST_UNIT_READY));
    }
    for new in [2, 4, 5] {
        assert_sense(&run(&nexus, lun(new), &TEST_UNIT_READY), 0x6, 0x29, 0x00);
        assert_good(&run(&nexus, lun(new), &TEST_UNIT_READY));
    }
    target.change_luns(&[1, 4], Vec::new());
    assert_sense(&run(&nexus, LUN1, &TEST_UNIT_READY), 0x5, 0x25, 0x00);
    assert_sense(&run(&nexus, lun(5), &TEST_UNIT_READY), 0x6, 0x3f, 0x0e);
}

#[test]
fn who_has_worked_with_a_unit_is_known() {
    let target = target(2);
    let [reads, looks] = ["a,i,0x1", "b,i,0x2"].map(|port| ready(target.nexus(port)));
    for nexus in [&reads, &looks] {
        run(nexus, LUN1, &TEST_UNIT_READY);
        run(nexus, LUN1, &INQUIRY);
        run(nexus, LUN1, &REPORT_LUNS);
    }
    assert!(target.users(0).is_empty() && target.users(1).is_empty());
    assert_good(&run(&reads, LUN1, &cdb(0x28, 0, 0, 1)));
    assert_eq!(target.users(1), ["a,i,0x1"]);
    assert!(target.users(0).is_empty() && target.users(0x4000).is_empty());
    // Another unit of the same number is another.
    target.change_luns(&[1], Vec::new());
    add(&target, 1);
    assert!(target.users(1).is_empty());
    assert_sense(&run(&looks, LUN1, &TEST_UNIT_READY), 0x6, 0x29, 0x00);
    assert_good(&run(&looks, LUN1, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(target.users(1), ["b,i,0x2"]);
    drop(looks);
    assert!(target.users(1).is_empty(), "its session has ended");
}

#[test]
fn refused_units() {
    let target = target(1);
    let memory = || Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let add = |lun, options| target.add_lun(lun, memory(), options).unwrap_err().to_string();
    let default = LunOptions::default;
    assert!(add(0, default()).contains("exists already"));
    assert!(add(0x4000, default()).contains("above 16383"));
    assert!(add(1, default().with_product("NINE CHAR", "x")).contains("1 to 8 printable"));
    assert!(add(1, default().with_serial("käse")).contains("serial number"));
    assert!(add(1, default().with_naa(1)).contains("2, 3 or 5"));
    assert!(add(1, default().with_physical_block_size(256)).contains("power of two from 512"));
    assert_eq!(target.luns(), [0]);
}

#[test]
fn a_resized_device_is_noticed() {
    use std::sync::atomic::AtomicU64;
    let size = Arc::new(AtomicU64::new(512));
    let told = Arc::clone(&size);
    let device = Disguised::new(1 << 20, move |info| info.size = told.load(Ordering::Relaxed));
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let [first, second] = [0, 1].map(|_| ready(target.nexus(INITIATOR)));
    size.store(1024, Ordering::Relaxed);
    for nexus in [&first, &second] {
        assert_sense(&run(nexus, LUN0, &TEST_UNIT_READY), 0x6, 0x2a, 0x09);
        assert_good(&run(nexus, LUN0, &cdb(0x28, 0, 1, 1)));
    }
}
