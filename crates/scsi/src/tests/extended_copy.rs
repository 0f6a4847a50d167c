//! EXTENDED COPY between units, and what RECEIVE COPY RESULTS tells of it.

use super::slow::{SlowDevice, look};
use super::*;

/// Two units with blocks of 512 bytes and one with 4096, and two nexuses.
fn units() -> (Vec<Arc<MemoryDevice>>, [Nexus; 2], Target) {
    let target = Target::new(TargetConfig::new(NAME));
    let devices: Vec<_> = [512, 512, 4096]
        .into_iter()
        .enumerate()
        .map(|(lun, block_size)| {
            let device = Arc::new(MemoryDevice::new(4 << 20, block_size).unwrap());
            target.add_lun(lun as u16, device.clone(), LunOptions::default()).unwrap();
            device
        })
        .collect();
    let nexuses = ["a,i,0x000000000001", "b,i,0x000000000001"].map(|port| {
        let nexus = target.nexus(port);
        for lun in 0..3u64 {
            while run_on(&nexus, lun << 48, &[0; 6], "", 0).status != Status::GOOD {}
        }
        nexus
    });
    (devices, nexuses, target)
}

/// Identification descriptor of a unit.
fn cscd(nexus: &Nexus, lun: u64, block_len: u32) -> Vec<u8> {
    let page = run_on(nexus, lun << 48, &[0x12, 1, 0x83, 0, 255, 0], "", 255).data_in;
    let mut out = vec![0xe4, 0, 0, 0];
    out.extend(&page[4..16]); // the NAA designator is the first one
    out.resize(28, 0);
    out.extend(block_len.to_be_bytes());
    out
}

struct Run {
    dc: bool,
    source: u16,
    destination: u16,
    count: u16,
    from: u64,
    to: u64,
}

fn segment(run: &Run) -> Vec<u8> {
    let mut out = vec![0x02, u8::from(run.dc) << 1, 0, 24];
    out.extend(run.source.to_be_bytes());
    out.extend(run.destination.to_be_bytes());
    out.extend([0, 0]);
    out.extend(run.count.to_be_bytes());
    out.extend(run.from.to_be_bytes());
    out.extend(run.to.to_be_bytes());
    out
}

fn list(id: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut out = vec![id, usage << 3];
    out.extend((cscds.len() as u16).to_be_bytes());
    out.extend([0; 4]);
    out.extend((segments.len() as u32).to_be_bytes());
    out.extend([0; 4]);
    out.extend(cscds);
    out.extend(segments);
    out
}

fn copy(nexus: &Nexus, list: Vec<u8>) -> Response {
    let mut cdb = [0; 16];
    cdb[0] = 0x83;
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    run_on(nexus, 0, &cdb, list, 0)
}

fn results(nexus: &Nexus, action: u8, id: u8) -> Response {
    run_on(nexus, 0, &[0x84, action, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0], "", 1024)
}

fn bytes(device: &MemoryDevice, offset: u64, len: usize) -> Vec<u8> {
    let read = block::BlockDevice::read(device, offset, Buf::new(len));
    read.try_ready().ok().unwrap().unwrap().to_vec()
}

fn store(device: &MemoryDevice, offset: u64, data: Vec<u8>) {
    let write = block::BlockDevice::write(device, offset, data.into(), WriteFlags::NONE);
    write.try_ready().ok().unwrap().unwrap();
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8 ^ (i / 512) as u8).collect()
}

#[test]
fn between_units() {
    let (devices, [nexus, _], _target) = units();
    let cscds = [cscd(&nexus, 0, 512), cscd(&nexus, 1, 512), cscd(&nexus, 2, 4096)];
    let data = numbers(2 << 20);
    store(&devices[0], 0, data.clone());
    let segments = [
        Run { dc: false, source: 0, destination: 1, count: 4096, from: 0, to: 8 },
        Run { dc: false, source: 0, destination: 2, count: 16, from: 0, to: 3 },
        Run { dc: true, source: 0, destination: 2, count: 2, from: 16, to: 5 },
        Run { dc: false, source: 0, destination: 1, count: 0, from: 0, to: 0 },
    ];
    let segments: Vec<_> = segments.iter().map(segment).collect();
    assert_good(&copy(&nexus, list(9, 0, &cscds, &segments)));
    assert!(bytes(&devices[1], 8 * 512, data.len()) == data);
    assert!(bytes(&devices[2], 3 * 4096, 8192) == data[..8192]);
    assert!(bytes(&devices[2], 5 * 4096, 8192) == data[8192..16384]);
    let total = (2 << 20) + 8192 * 2u32;
    let status = results(&nexus, 0, 9).data_in;
    assert_eq!(status[..8], [0, 0, 0, 8, 0x81, 0, 4, 0]);
    assert_eq!(status[8..], total.to_be_bytes());
    assert_eq!(results(&nexus, 4, 9).data_in[..], [0; 4], "nothing failed");
}

#[test]
fn overlapping_runs_are_moved() {
    let (devices, [nexus, _], _target) = units();
    let cscds = [cscd(&nexus, 0, 512)];
    let data = numbers(3 << 20);
    for (from, to) in [(0, 100), (100, 0)] {
        store(&devices[0], from * 512, data.clone());
        let run = Run { dc: false, source: 0, destination: 0, count: 6144, from, to };
        assert_good(&copy(&nexus, list(0, 3, &cscds, &[segment(&run)])));
        assert!(bytes(&devices[0], to * 512, data.len()) == data, "{from} to {to}");
    }
}

#[test]
fn a_failed_segment_ends_it() {
    let (_devices, [nexus, other], _target) = units();
    let good = Run { dc: false, source: 0, destination: 1, count: 8, from: 0, to: 0 };
    let run = |cscds: &[Vec<u8>], wrong: Run| {
        copy(&nexus, list(1, 0, cscds, &[segment(&good), segment(&wrong)]))
    };
    let cscds = [cscd(&nexus, 0, 512), cscd(&nexus, 1, 512), cscd(&nexus, 2, 4096)];
    assert_sense(&run(&cscds, Run { destination: 3, ..good }), 0xa, 0x08, 0x04);
    assert_sense(&run(&cscds, Run { from: 8190, ..good }), 0xa, 0x00, 0x00);
    assert_sense(&run(&cscds, Run { destination: 2, count: 7, ..good }), 0xa, 0x26, 0x0a);
    assert_sense(&run(&cscds, Run { dc: true, destination: 2, count: 20000, ..good }), 5, 0x26, 0);
    let mut unknown = cscds.clone();
    unknown[1][12] ^= 1;
    assert_sense(&run(&unknown, good_to(1)), 0xa, 0x0d, 0x02);
    let mut size = cscds.clone();
    size[1][30] = 4;
    assert_sense(&run(&size, good_to(1)), 0xa, 0x0d, 0x03);
    // Reservations of others hold for copies, too.
    assert_good(&run_on(&other, 1 << 48, &[0x16, 0, 0, 0, 0, 0], "", 0));
    assert_sense(&run(&cscds, good_to(1)), 0xa, 0x0d, 0x01);
    let status = results(&nexus, 0, 1).data_in;
    assert_eq!(status[4..7], [0x82, 0, 0]);
    let details = results(&nexus, 4, 1).data_in;
    assert_eq!((details.len(), details[56], details[59]), (78, 2, 18));
    assert_eq!((details[62], details[72], details[73]), (0xa, 0x0d, 0x01));
    drop(other);
    assert_sense(&run(&cscds, Run { destination: 3, ..good_to(1) }), 0xa, 0x08, 0x04);
    let details = results(&nexus, 4, 1).data_in;
    assert_eq!(details[68..72], [0, 0, 0, 1], "the second segment");
}

fn good_to(destination: u16) -> Run {
    Run { dc: false, source: 0, destination, count: 8, from: 0, to: 0 }
}

#[test]
fn outcomes_belong_to_their_nexus() {
    let (_devices, [nexus, other], _target) = units();
    assert_invalid_cdb(&results(&nexus, 0, 1), 2, 7);
    let cscds = [cscd(&nexus, 0, 512)];
    let same = [segment(&good_to(0))];
    assert_good(&copy(&nexus, list(1, 0, &cscds, &same)));
    assert_good(&results(&nexus, 0, 1));
    assert_invalid_cdb(&results(&other, 0, 1), 2, 7);
    assert_good(&copy(&nexus, list(0, 3, &cscds, &same)));
    assert_invalid_cdb(&results(&nexus, 0, 0), 2, 7);
    nexus.lun_reset(0).unwrap();
    assert_sense(&results(&nexus, 0, 1), 6, 0x29, 3);
    assert_invalid_cdb(&results(&nexus, 0, 1), 2, 7);
}

#[test]
fn wrong_lists() {
    let (_devices, [nexus, _], _target) = units();
    let (one, seg) = (cscd(&nexus, 0, 512), segment(&good_to(0)));
    let good = list(1, 0, std::slice::from_ref(&one), std::slice::from_ref(&seg));
    assert_good(&copy(&nexus, Vec::new()));
    for len in 1..good.len() {
        assert_sense(&copy(&nexus, good[..len].to_vec()), 5, 0x1a, 0);
    }
    let many =
        |cscds, segments| list(1, 0, &vec![one.clone(); cscds], &vec![seg.clone(); segments]);
    assert_sense(&copy(&nexus, many(17, 1)), 5, 0x26, 0x06);
    assert_sense(&copy(&nexus, many(1, 129)), 5, 0x26, 0x08);
    assert_sense(&copy(&nexus, many(17, 130)), 5, 0x1a, 0);
    let with = |at: usize, byte| {
        let mut list = good.clone();
        list[at] = byte;
        copy(&nexus, list)
    };
    assert_sense(&with(16, 0xe0), 5, 0x26, 0x07);
    assert_sense(&with(48, 0x03), 5, 0x26, 0x09);
    assert_sense(&with(15, 1), 5, 0x26, 0x0b);
    assert_eq!(with(1, 3 << 3).sense, Some(Sense::invalid_parameter(0)));
    assert_eq!(with(1, 1 << 3).sense, Some(Sense::invalid_parameter(1)));
    assert_eq!(with(23, 21).sense, Some(Sense::invalid_parameter(21)), "designator length");
}

#[test]
fn as_many_run_at_once_as_is_told_and_one_more_is_sent_again_later() {
    let device = SlowDevice::new(4 << 20);
    let target = Target::new(TargetConfig::new(NAME));
    target.add_lun(0, device.clone(), LunOptions::default()).unwrap();
    let nexus = ready(target.nexus(INITIATOR));
    let run = Run { dc: false, source: 0, destination: 0, count: 8, from: 0, to: 64 };
    let list = list(0, 3, &[cscd(&nexus, 0, 512)], &[segment(&run)]);
    let begin = |tag| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[13]) = (0x83, list.len() as u8);
        let command = Command::new(0, Cdb::new(&cdb)).with_data_out(list.clone().into());
        nexus.execute(command.with_tag(tag))
    };
    let mut copies: Vec<_> = (0..64).map(begin).collect();
    assert!(copies.iter_mut().all(|copy| look(copy).is_none()));
    assert_eq!(look(&mut begin(64)).unwrap().status, Status::BUSY);
    device.permit(1000);
    for copy in &mut copies {
        assert_good(&look(copy).unwrap());
    }
    assert_good(&look(&mut begin(64)).unwrap());
}

/// What its session is charged for: a buffer as long as the longest run, not more than a step.
#[test]
fn it_needs_memory_for_its_longest_run() {
    let (_devices, [nexus, _], _target) = units();
    let cscds = [cscd(&nexus, 0, 512), cscd(&nexus, 2, 4096)];
    let working = |list: Vec<u8>| {
        let command = Command::new(0, Cdb::new(&[0x83; 16]));
        command.with_data_out(list.into()).memory().working
    };
    let of = |counts: &[u16]| {
        let run = |count| Run { dc: false, source: 0, destination: 1, count, from: 0, to: 0 };
        let segments: Vec<_> = counts.iter().map(|count| segment(&run(*count))).collect();
        working(list(0, 3, &cscds, &segments))
    };
    assert_eq!(of(&[1, 8, 2]), 8 * 4096);
    assert_eq!(of(&[0xffff]), 1 << 20);
    assert_eq!((of(&[]), working(vec![1; 100]), working(Vec::new())), (0, 0, 0));
}

#[test]
fn limits_are_told_twice_alike() {
    let (_devices, [nexus, _], _target) = units();
    let parameters = results(&nexus, 3, 0).data_in;
    assert_eq!(parameters[..4], [0, 0, 0, 42]);
    assert_eq!(parameters[8..20], [0, 16, 0, 128, 0, 0, 16, 0, 0, 128, 0, 0]);
    assert_eq!(parameters[34..37], [0, 64, 64], "at once");
    assert_eq!(parameters[43..], [2, 0x02, 0xe4]);
    let page = run_on(&nexus, 0, &[0x12, 1, 0x8f, 0, 255, 0], "", 255).data_in;
    assert_eq!(page.len(), 4 + usize::from(page[3]));
    assert_eq!(page[4..20], [0, 1, 0, 12, 8, 0x83, 1, 0, 0x84, 3, 0, 3, 4, 0, 0, 0]);
    assert_eq!(page[28..36], parameters[8..16]);
}
