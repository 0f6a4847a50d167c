//! MODE SELECT: what can be changed, what it does, and what is refused.

use super::slow::{SlowDevice, look};
use super::*;

const CONTROL: [u8; 12] = [0x0a, 10, 2, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0];

/// MODE SELECT(6) with a header, perhaps a block descriptor, and pages.
fn select_6(nexus: &Nexus, descriptor: &[u8], pages: &[u8]) -> Response {
    let list = [&[0, 0, 0, descriptor.len() as u8], descriptor, pages].concat();
    run_on(nexus, 0, &[0x15, 0x10, 0, 0, list.len() as u8, 0], list, 0)
}

fn control(first: u8, second: u8) -> [u8; 12] {
    let mut page = CONTROL;
    page[2] |= first;
    page[4] |= second;
    page
}

#[test]
fn software_write_protect() {
    let fixture = Fixture::new();
    let other = ready(fixture.target.nexus(INITIATOR));
    assert_good(&select_6(&fixture.nexus, &[], &control(0, 0x08)));
    assert_sense(&run_on(&other, 0, &[0; 6], "", 0), 0x6, 0x2a, 0x01);
    for nexus in [&fixture.nexus, &other] {
        assert_sense(&run_on(nexus, 0, &cdb(0x2a, 0, 0, 1), vec![1; 512], 0), 0x7, 0x27, 0x00);
        assert_good(&run_on(nexus, 0, &cdb(0x28, 0, 0, 1), "", 512));
    }
    let sense = fixture.data(&[0x1a, 8, 0x0a, 0, 255, 0], 255);
    assert_eq!((sense[2], sense[8]), (0x90, 0x08), "WP, SWP");
    assert_eq!(fixture.data(&[0x1a, 8, 0x8a, 0, 255, 0], 255)[8], 0, "default values");
    assert_good(&select_6(&fixture.nexus, &[], &CONTROL));
    assert_good(&fixture.run(&cdb(0x2a, 0, 0, 1), vec![1; 512], 0));
    // A reset brings the defaults back.
    assert_good(&select_6(&fixture.nexus, &[], &control(0, 0x08)));
    fixture.nexus.lun_reset(0).unwrap();
    assert_sense(&fixture.run(&[0; 6], "", 0), 0x6, 0x29, 0x03);
    assert_good(&fixture.run(&cdb(0x2a, 0, 0, 1), vec![1; 512], 0));
}

#[test]
fn descriptor_sense() {
    let fixture = Fixture::new();
    assert_good(&select_6(&fixture.nexus, &[], &control(0x04, 0)));
    let sense = fixture.run(&cdb(0x28, 0, BLOCKS, 1), "", 512).sense.unwrap().to_bytes();
    assert_eq!((sense[0], sense[7]), (0x72, 12));
    let miscompare = fixture.run(&cdb(0x2f, 2, 0, 1), vec![1; 512], 0);
    assert_eq!(miscompare.sense.unwrap().to_bytes()[0], 0x72, "of a command that waited");
    assert_good(&select_6(&fixture.nexus, &[], &CONTROL));
    assert_eq!(fixture.run(&[0xff], "", 0).sense.unwrap().to_bytes()[0], 0x70);
}

#[test]
fn ten_byte_form_and_descriptors() {
    let fixture = Fixture::new();
    let select = |long: u8, descriptor: &[u8]| {
        let head = [0, 0, 0, 0, long, 0, 0, descriptor.len() as u8];
        let list = [&head[..], descriptor, &CONTROL].concat();
        fixture.run(&[0x55, 0x10, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], list, 0)
    };
    let short = |count: u32, len: u32| [count.to_be_bytes(), len.to_be_bytes()].concat();
    let long = |count: u64, len: u64| [count.to_be_bytes(), len.to_be_bytes()].concat();
    for good in [0, BLOCKS as u32, u32::MAX] {
        assert_good(&select(0, &short(good, 512)));
    }
    assert_good(&select(1, &long(BLOCKS, 512)));
    assert_eq!(select(0, &short(1, 512)).sense, Some(Sense::invalid_parameter(8)));
    assert_eq!(select(0, &short(0, 4096)).sense, Some(Sense::invalid_parameter(13)));
    assert_eq!(select(1, &long(1, 512)).sense, Some(Sense::invalid_parameter(8)));
    assert_eq!(select(1, &short(0, 512)).sense, Some(Sense::invalid_parameter(7)));
}

#[test]
fn refusals_change_nothing() {
    let fixture = Fixture::new();
    let select = |pages: &[u8]| select_6(&fixture.nexus, &[], pages);
    let protect = control(0, 0x08);
    let with = |wrong: &[u8]| [&protect[..], wrong].concat();
    let mut queue = CONTROL;
    queue[3] = 0;
    assert_eq!(select(&with(&queue)).sense, Some(Sense::invalid_parameter(4 + 12 + 3)));
    assert_eq!(select(&with(&[0x02, 0])).sense, Some(Sense::invalid_parameter(16)));
    assert_eq!(select(&with(&[0x0a, 9])).sense, Some(Sense::invalid_parameter(17)));
    assert_sense(&select(&with(&CONTROL[..11])), 5, 0x1a, 0);
    assert_sense(&select(&with(&[0x0a])), 5, 0x1a, 0);
    assert_invalid_cdb(&fixture.run(&[0x15, 0x11, 0, 0, 0, 0], "", 0), 1, 0); // SP
    assert_invalid_cdb(&fixture.run(&[0x15, 0x00, 0, 0, 0, 0], "", 0), 1, 4); // PF
    assert_sense(&fixture.run(&[0x15, 0x10, 0, 0, 3, 0], vec![0; 3], 0), 5, 0x1a, 0);
    assert_good(&fixture.run(&[0x15, 0x10, 0, 0, 0, 0], "", 0));
    assert_good(&fixture.run(&cdb(0x2a, 0, 0, 1), vec![1; 512], 0));
}

#[test]
fn the_write_cache_can_be_turned_off() {
    let device = Disguised::new(1 << 20, |info| {
        (info.volatile_cache, info.can_flush, info.can_fua) = (true, true, false);
    });
    let fixture = Fixture::on(device.clone());
    let flushes = || device.flushes();
    let mut caching = [0; 20];
    (caching[0], caching[1], caching[12]) = (0x08, 18, 0x20);
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8];
    unmap.resize(24, 0);
    let writes = || {
        assert_good(&fixture.run(&cdb(0x2a, 0, 0, 1), vec![1; 512], 0));
        assert_good(&fixture.run(&cdb(0x93, 0, 0, 8), vec![1; 512], 0));
        assert_good(&fixture.run(&cdb(0x93, 8, 0, 8), vec![0; 512], 0));
        assert_good(&fixture.run(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap.clone(), 0));
        assert_good(&fixture.run(&cdb(0x8b, 0, 0, 1), vec![1; 512], 0));
        flushes()
    };
    assert_eq!(writes(), 0);
    assert_good(&select_6(&fixture.nexus, &[], &caching));
    assert_eq!(flushes(), 1, "what was in the cache");
    assert_eq!(fixture.data(&[0x1a, 8, 0x08, 0, 255, 0], 255)[6], 0, "WCE");
    assert_eq!(writes(), 5);
    caching[2] = 0x04;
    assert_good(&select_6(&fixture.nexus, &[], &caching));
    assert_eq!(writes(), 0);
}

/// Its initiator may know of WCE = 0 before the answer comes, and takes the answer for stable.
#[test]
fn a_write_under_way_while_the_cache_is_turned_off_is_stable_when_it_is_answered() {
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8];
    unmap.resize(24, 0);
    let writes = [
        (cdb(0x2a, 0, 0, 1), vec![1; 512]),
        (cdb(0x2a, 0, 0, 1), vec![1; 100]),
        (cdb(0x93, 0, 0, 8), vec![1; 512]),
        (cdb(0x93, 8, 0, 8), vec![0; 512]),
        (cdb(0x8b, 0, 0, 1), vec![1; 512]),
        (vec![0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], [[0; 512], [1; 512]].concat()),
        (vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap),
    ];
    for (cdb, data) in writes {
        let device = SlowDevice::cached(1 << 20);
        let target = Target::new(TargetConfig::new(NAME));
        target.add_lun(0, device.clone(), LunOptions::default()).unwrap();
        let nexuses = [(); 2].map(|()| ready(target.nexus(INITIATOR)));
        let what = cdb[0];
        let begin = |nexus: &Nexus, cdb: &[u8], data: Vec<u8>| {
            nexus.execute(Command::new(0, Cdb::new(cdb)).with_data_out(data.into()))
        };
        let mut write = begin(&nexuses[0], &cdb, data);
        assert!(look(&mut write).is_none(), "{what:#x}");
        let mut caching = [0; 20];
        (caching[0], caching[1], caching[12]) = (0x08, 18, 0x20);
        let list = [&[0; 4][..], &caching].concat();
        let mut select = begin(&nexuses[1], &[0x15, 0x10, 0, 0, list.len() as u8, 0], list);
        assert!(look(&mut select).is_none(), "{what:#x} waits for its flush");
        // The flush of MODE SELECT comes first.
        device.permit(1);
        assert_good(&look(&mut select).unwrap());
        let flushes = device.flushes();
        device.permit(usize::MAX / 2);
        assert_good(&look(&mut write).unwrap());
        assert_eq!(device.flushes(), flushes + 1, "{what:#x} is flushed after it was written");
    }
}
