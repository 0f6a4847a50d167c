//! SANITIZE: what it leaves behind, and what a unit does meanwhile.

use std::sync::Mutex;

use block::BlockError;
use block::layer::{Fault, OpKind};

use super::*;

/// Keeps background work until the test runs it.
#[derive(Default)]
struct Held(Mutex<Vec<BoxFuture>>);

impl Host for Held {
    fn abort_tasks(&self, _: u64, _: Vec<NexusId>) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }
    fn pause(&self, _: std::time::Duration) -> BoxFuture {
        Box::pin(std::future::ready(()))
    }
    fn spawn(&self, work: BoxFuture) {
        self.0.lock().unwrap().push(work);
    }
}

impl Held {
    /// Polls once; true when nothing is left.
    fn step(&self) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        self.0.lock().unwrap().retain_mut(|work| work.as_mut().poll(&mut context).is_pending());
        self.0.lock().unwrap().is_empty()
    }
}

fn held(fixture: &Fixture) -> Arc<Held> {
    let host = Arc::new(Held::default());
    fixture.target.set_host(host.clone());
    host
}

fn sanitize(flags: u8, action: u8, len: usize) -> [u8; 10] {
    let [high, low] = (len as u16).to_be_bytes();
    [0x48, flags | action, 0, 0, 0, 0, 0, high, low, 0]
}

const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

fn pattern(head: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    [&[head, 0, high, low], pattern].concat()
}

#[test]
fn overwriting() {
    let fixture = Fixture::new();
    let host = held(&fixture);
    for (head, bytes, expected) in [
        (1, vec![0xaa; 512], vec![0xaa; 512]),
        (0x82, vec![1, 2, 3], [1u8, 2, 3].repeat(171)[..512].to_vec()),
        (0x83, vec![0x0f], vec![0x0f; 512]),
    ] {
        fixture.fill(0, BLOCKS as usize, 7);
        let list = pattern(head, &bytes);
        assert_good(&fixture.run(&sanitize(IMMED, 1, list.len()), list, 0));
        while !host.step() {}
        for lba in [0, 1, BLOCKS - 1] {
            assert_eq!(fixture.blocks(lba, 1), expected, "{head:#x}");
        }
        assert_good(&fixture.run(&[0; 6], "", 0));
    }
}

#[test]
fn erasing_releases_everything() {
    let fixture = Fixture::new();
    let host = held(&fixture);
    fixture.fill(0, BLOCKS as usize, 7);
    assert_good(&fixture.run(&sanitize(IMMED, 2, 0), "", 0));
    while !host.step() {}
    assert!(fixture.blocks(0, BLOCKS as usize).iter().all(|byte| *byte == 0));
    let status = fixture.data(&[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256);
    assert_eq!(status[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 1, 0, 0, 0], "deallocated");
}

#[test]
fn meanwhile() {
    let fixture = Fixture::new();
    let host = held(&fixture);
    let other = ready(fixture.target.nexus(INITIATOR));
    let command =
        Command::new(0, Cdb::new(&sanitize(0, 1, 5))).with_data_out(pattern(2, &[1]).into());
    let mut waiting = fixture.nexus.execute(command);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut poll = || std::pin::Pin::new(&mut waiting).poll(&mut context);
    assert!(poll().is_pending());
    assert!(!host.step() && !host.step());
    for cdb in [&[0; 6][..], &cdb(0x28, 0, 0, 1), &[0x1b, 0, 0, 0, 1, 0], &sanitize(0, 2, 0)] {
        assert_sense(&run_on(&other, 0, cdb, "", 512), 2, 0x04, 0x1b);
    }
    for cdb in [&[0x12, 0, 0, 0, 96, 0][..], &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]] {
        assert_good(&run_on(&other, 0, cdb, "", 512));
    }
    let sense = run_on(&other, 0, &[3, 0, 0, 0, 18, 0], "", 18).data_in;
    assert_eq!((sense[2], sense[12], sense[13]), (2, 0x04, 0x1b));
    assert_eq!(sense[15..18], [0x80, 0x80, 0], "half done");
    // A reset lets the command go; the work goes on.
    other.lun_reset(0).unwrap();
    assert!(poll().is_ready());
    assert_sense(&run_on(&other, 0, &[0; 6], "", 0), 6, 0x29, 3);
    assert_sense(&run_on(&other, 0, &[0; 6], "", 0), 2, 0x04, 0x1b);
    while !host.step() {}
    assert_good(&run_on(&other, 0, &[0; 6], "", 0));
}

#[test]
fn without_immed_the_command_waits_for_the_end() {
    let fixture = Fixture::new();
    let host = held(&fixture);
    let mut waiting = fixture.nexus.execute(Command::new(0, Cdb::new(&sanitize(0, 2, 0))));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::pin::Pin::new(&mut waiting).poll(&mut context).is_pending());
    while !host.step() {}
    assert_good(&now(waiting));
}

#[test]
fn failing_is_remembered() {
    for (ause, may_exit) in [(0, false), (AUSE, true)] {
        let fixture = Fixture::new();
        let host = held(&fixture);
        fixture.faults.inject(Fault::on(OpKind::Write, || BlockError::NoSpace));
        let list = pattern(1, &[1]);
        assert_good(&fixture.run(&sanitize(IMMED | ause, 1, 5), list, 0));
        while !host.step() {}
        fixture.faults.heal();
        assert_sense(&fixture.run(&cdb(0x28, 0, 0, 1), "", 512), 3, 0x31, 3);
        let exit = fixture.run(&sanitize(0, 0x1f, 0), "", 0);
        if may_exit {
            assert_good(&exit);
        } else {
            assert_invalid_cdb(&exit, 1, 4);
            assert_good(&fixture.run(&sanitize(IMMED, 2, 0), "", 0)); // another attempt
            while !host.step() {}
        }
        assert_good(&fixture.run(&cdb(0x28, 0, 0, 1), "", 512));
    }
}

#[test]
fn refusals() {
    let fixture = Fixture::new();
    let run = |action, list: Vec<u8>| fixture.run(&sanitize(0, action, list.len()), list, 0);
    for len in [0, 1, 4, 517] {
        assert_invalid_cdb(&run(1, vec![0; len]), 7, 7);
    }
    let wrong =
        |list: Vec<u8>, byte| assert_eq!(run(1, list).sense, Some(Sense::invalid_parameter(byte)));
    wrong(pattern(0, &[1]), 0); // no pass
    wrong(pattern(0x21, &[1]), 0); // TEST
    wrong(vec![1, 0, 0, 0, 1], 2);
    wrong(vec![1, 0, 0, 2, 1], 2);
    assert_invalid_cdb(&run(2, vec![0; 8]), 7, 7);
    assert_invalid_cdb(&run(0x1f, vec![0; 8]), 7, 7);
    assert_invalid_cdb(&run(3, vec![]), 1, 4); // CRYPTOGRAPHIC ERASE
    assert_invalid_cdb(&fixture.run(&sanitize(0x40, 2, 0), "", 0), 1, 6);
    assert_good(&fixture.run(&sanitize(0, 0x1f, 0), "", 0));
}
