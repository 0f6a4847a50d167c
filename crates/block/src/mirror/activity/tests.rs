//! The log driven at random, with a power cut at every record and after every step: every extent
//! with a write under way, and every one whose bits were not saved, is in what is recovered.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::layout::RING_RECORDS;
use super::super::superblock::{BYTES, BlockFault, MirrorId};
use super::*;

const UUID: MirrorId = MirrorId(77);
const SECTOR: usize = 512;

fn empty() -> Recovered {
    Recovered::default()
}

fn one(extent: u32) -> Range<u32> {
    extent..extent + 1
}

fn fill(log: &mut ActivityLog, extents: impl Iterator<Item = u32>) {
    for extent in extents {
        if let Touch::Wait(_) = log.touch(one(extent)) {
            assert!(matches!(log.step(), Step::Record { .. }));
            assert_eq!(log.recorded().len(), 1);
        }
        log.release(one(extent));
    }
}

#[test]
fn the_first_write_waits_for_a_record_and_the_next_does_not() {
    let mut log = ActivityLog::new(100, 16, &empty());
    let Touch::Wait(first) = log.touch(4..6) else { panic!("not in the log yet") };
    let Touch::Wait(second) = log.touch(4..5) else { panic!("not durable yet") };
    assert_eq!(log.step(), Step::Record { sequence: 1, extents: vec![4, 5] });
    let Touch::Wait(third) = log.touch(5..6) else { panic!("not durable yet") };
    assert_eq!(log.step(), Step::Idle, "one thing at a time");
    assert_eq!(log.recorded(), [first, second]);
    assert_eq!(log.touch(5..6), Touch::In);
    assert_eq!(log.step(), Step::LetIn(vec![third]));
    assert_eq!(log.step(), Step::Idle);
}

#[test]
fn many_writers_share_a_record() {
    let mut log = ActivityLog::new(10_000, EXTENTS_MAX, &empty());
    let tickets: Vec<Touch> = (0..32).map(|n| log.touch(one(n * 300))).collect();
    assert!(matches!(log.step(), Step::Record { sequence: 1, ref extents } if extents.len() == 32));
    assert_eq!(log.recorded().into_iter().map(Touch::Wait).collect::<Vec<_>>(), tickets);
}

#[test]
fn a_sequential_writer_waits_for_one_record_in_nine() {
    let mut log = ActivityLog::new(10_000, EXTENTS_MAX, &empty());
    let mut records = 0;
    for extent in 0..181 {
        if let Touch::Wait(_) = log.touch(one(extent)) {
            assert!(matches!(log.step(), Step::Record { .. }));
            log.recorded();
            records += 1;
        }
        log.release(one(extent));
    }
    assert_eq!(records, 1 + 180 / 9);
}

#[test]
fn those_not_written_for_longest_leave_before_the_log_is_full() {
    let mut log = ActivityLog::new(100, 16, &empty());
    fill(&mut log, (0..15).map(|n| n * 2));
    fill(&mut log, [0].into_iter());
    assert_eq!(log.step(), Step::Leave(vec![2, 4]));
    // Somebody writes there meanwhile.
    assert_eq!(log.touch(one(4)), Touch::In);
    log.left();
    assert!(!log.extents().any(|extent| extent == 2) && log.extents().any(|extent| extent == 4));
    assert_eq!(log.step(), Step::Idle);
    assert!(matches!(log.touch(one(2)), Touch::Wait(_)), "out is out");
}

#[test]
fn extents_stay_when_their_bits_could_not_be_saved() {
    let mut log = ActivityLog::new(100, 16, &empty());
    fill(&mut log, (0..15).map(|n| n * 2));
    assert_eq!(log.step(), Step::Leave(vec![0, 2]));
    assert_eq!(log.stayed(), []);
    assert_eq!(log.extents().count(), 15);
    assert_eq!(log.step(), Step::Leave(vec![0, 2]));
}

#[test]
fn a_write_does_not_wait_for_others_to_leave_where_there_is_room() {
    let mut log = ActivityLog::new(100, 16, &empty());
    fill(&mut log, (0..15).map(|n| n * 2));
    assert_eq!(log.step(), Step::Leave(vec![0, 2]));
    let Touch::Wait(ticket) = log.touch(one(50)) else { panic!("it is not in the log") };
    let Step::Record { extents, .. } = log.step() else { panic!("there is room for one") };
    assert!([0, 2, 50].iter().all(|extent| extents.contains(extent)), "none has left");
    log.left();
    assert_eq!(log.recorded(), [ticket]);
    assert_eq!(log.extents().count(), 14);
    // Out is out, though a record that was under way meanwhile has it.
    assert!(matches!(log.touch(one(0)), Touch::Wait(_)));
}

#[test]
fn whom_a_record_lets_in_is_not_refused_because_others_cannot_leave() {
    let mut log = ActivityLog::new(100, 16, &empty());
    fill(&mut log, (0..15).map(|n| n * 2));
    let Touch::Wait(ticket) = log.touch(one(50)) else { panic!() };
    assert!(matches!(log.step(), Step::Record { .. }));
    assert!(matches!(log.step(), Step::Leave(_)));
    let Touch::Wait(queued) = log.touch(one(60)) else { panic!() };
    assert_eq!(log.stayed(), [queued]);
    assert_eq!(log.recorded(), [ticket]);
}

#[test]
fn a_waiting_write_is_not_passed_for_ever() {
    let mut log = ActivityLog::new(100, 8, &empty());
    for extent in 0..8 {
        let _ = log.touch(one(extent * 2));
    }
    assert!(matches!(log.step(), Step::Record { .. }));
    assert_eq!(log.recorded().len(), 8);
    let Touch::Wait(ticket) = log.touch(one(50)) else { panic!("the log is full") };
    assert_eq!(log.touch(one(0)), Touch::In, "as long as others may leave");
    assert_eq!(log.step(), Step::Idle, "all are being written");
    assert!(matches!(log.touch(one(0)), Touch::Wait(_)), "now the first has to get in");
    assert!(log.release(one(2)));
    assert_eq!(log.step(), Step::Leave(vec![2]));
    log.left();
    assert!(matches!(log.step(), Step::Record { .. }));
    assert!(log.recorded().contains(&ticket));
}

#[test]
fn whoever_gives_up_leaves_nothing_behind() {
    let mut log = ActivityLog::new(100, 8, &empty());
    let Touch::Wait(queued) = log.touch(one(1)) else { panic!() };
    assert!(log.give_up(queued));
    assert_eq!(log.step(), Step::Idle);
    let Touch::Wait(entering) = log.touch(one(1)) else { panic!() };
    assert!(matches!(log.step(), Step::Record { .. }));
    assert!(log.give_up(entering));
    assert_eq!(log.recorded(), []);
    assert!(log.slots.values().all(Slot::may_leave));
    let Touch::Wait(inside) = log.touch(one(2)) else { panic!() };
    let _ = log.step();
    log.recorded();
    assert!(!log.give_up(inside), "has to release what it has");
}

#[test]
fn after_a_failure_only_what_is_durable_can_be_written() {
    let mut log = ActivityLog::new(100, 8, &empty());
    fill(&mut log, [1].into_iter());
    let Touch::Wait(entering) = log.touch(one(3)) else { panic!() };
    assert!(matches!(log.step(), Step::Record { .. }));
    let Touch::Wait(queued) = log.touch(one(5)) else { panic!() };
    assert_eq!(log.failed(), [entering, queued]);
    assert_eq!(log.touch(one(1)), Touch::In);
    assert!(matches!(log.touch(one(3)), Touch::Wait(_)));
}

#[test]
fn writes_that_the_log_cannot_hold_are_refused() {
    let mut log = ActivityLog::new(1000, EXTENTS_MAX, &empty());
    assert_eq!(log.touch(0..WRITE_EXTENTS_MAX + 1), Touch::TooLong);
    assert_eq!(log.touch(999..1001), Touch::TooLong);
    assert!(matches!(log.touch(0..WRITE_EXTENTS_MAX), Touch::Wait(_)));
}

#[test]
fn it_is_cleared_only_when_nobody_writes() {
    let mut log = ActivityLog::new(100, 8, &empty());
    fill(&mut log, [1].into_iter());
    assert_eq!(log.touch(one(1)), Touch::In);
    assert_eq!(log.clear(), None);
    log.release(one(1));
    assert_eq!(log.clear(), Some(2));
    assert_eq!(log.extents().count(), 0);
}

/// A device and a log on it, with what a power cut may leave.
struct World {
    log: ActivityLog,
    ring: Vec<u8>,
    /// Let in and not released.
    writing: Vec<Range<u32>>,
    waiting: BTreeMap<Ticket, Range<u32>>,
    /// Extents written since their bits were saved: only the log knows.
    unsaved: BTreeSet<u32>,
    /// Extents whose bits are being saved; writes since.
    saving: Option<(Vec<u32>, BTreeSet<u32>)>,
    /// The record being written.
    record: Option<(u64, Box<[u8; BYTES]>)>,
}

const EXTENTS: u32 = 40;

impl World {
    fn new() -> Self {
        Self {
            log: ActivityLog::new(EXTENTS, 12, &empty()),
            ring: vec![0; RING_RECORDS as usize * BYTES],
            writing: Vec::new(),
            waiting: BTreeMap::new(),
            unsaved: BTreeSet::new(),
            saving: None,
            record: None,
        }
    }

    fn begins(&mut self, extents: Range<u32>) {
        self.unsaved.extend(extents.clone());
        if let Some((_, since)) = &mut self.saving {
            since.extend(extents.clone());
        }
        self.writing.push(extents);
    }

    fn lets_in(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            let extents = self.waiting.remove(&ticket).expect("let in who waits");
            self.begins(extents);
        }
    }

    fn step(&mut self, (what, start, len): (u8, u32, u32)) {
        match what {
            0..4 => {
                let extents = start..(start + len).min(EXTENTS);
                match self.log.touch(extents.clone()) {
                    Touch::In => self.begins(extents),
                    Touch::Wait(ticket) => drop(self.waiting.insert(ticket, extents)),
                    Touch::TooLong => assert!(extents.len() > 12),
                }
            }
            4 | 5 if !self.writing.is_empty() => {
                let extents = self.writing.remove(start as usize % self.writing.len());
                self.log.release(extents);
            }
            6 if !self.waiting.is_empty() => {
                let at = start as usize % self.waiting.len();
                let ticket = *self.waiting.keys().nth(at).expect("one of them");
                self.waiting.remove(&ticket);
                assert!(self.log.give_up(ticket));
            }
            _ => self.work(start % 3),
        }
    }

    /// Goes on with what the log does, in any order: a record ends, extents have left, or the next
    /// of these begins.
    fn work(&mut self, first: u32) {
        (0..3).any(|n| match (first + n) % 3 {
            0 => self.end_record(),
            1 => self.end_leave(),
            _ => self.begin(),
        });
    }

    fn end_record(&mut self) -> bool {
        let Some((sequence, block)) = self.record.take() else { return false };
        let at = (sequence % RING_RECORDS) as usize * BYTES;
        self.ring[at..at + BYTES].copy_from_slice(&block[..]);
        let tickets = self.log.recorded();
        self.lets_in(tickets);
        true
    }

    fn end_leave(&mut self) -> bool {
        let Some((extents, since)) = self.saving.take() else { return false };
        // Bits as they stood when they were taken are durable now.
        self.unsaved.retain(|extent| !extents.contains(extent) || since.contains(extent));
        self.log.left();
        true
    }

    fn begin(&mut self) -> bool {
        match self.log.step() {
            Step::Idle => return false,
            Step::LetIn(tickets) => self.lets_in(tickets),
            Step::Record { sequence, extents } => {
                assert!(self.record.is_none(), "one at a time");
                self.record = Some((sequence, encode(UUID, sequence, &extents)));
            }
            Step::Leave(extents) => {
                let quiet = |extent: &u32| self.writing.iter().all(|range| !range.contains(extent));
                assert!(extents.iter().all(quiet), "an extent leaves that is being written");
                assert!(self.saving.is_none(), "one at a time");
                self.saving = Some((extents, BTreeSet::new()));
            }
        }
        true
    }

    /// The power is cut: whatever is left of the record under way, all is covered.
    fn check(&self) {
        let covered = |ring: &[u8]| {
            let found = recover(UUID, 1, EXTENTS, ring).expect("not newer");
            assert_eq!(found.doubt, None);
            for extents in &self.writing {
                assert!(extents.clone().all(|e| found.extents.contains(&e)), "{extents:?}");
            }
            assert!(self.unsaved.iter().all(|extent| found.extents.contains(extent)));
        };
        covered(&self.ring);
        let Some((sequence, block)) = &self.record else { return };
        let at = (sequence % RING_RECORDS) as usize * BYTES;
        for torn in 0..=BYTES / SECTOR {
            let mut ring = self.ring.clone();
            ring[at..at + torn * SECTOR].copy_from_slice(&block[..torn * SECTOR]);
            covered(&ring);
            let mut ring = self.ring.clone();
            ring[at + torn * SECTOR..at + BYTES].copy_from_slice(&block[torn * SECTOR..]);
            covered(&ring);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn after_a_crash_at_any_moment_every_extent_under_way_is_covered(
        steps in prop::collection::vec((0u8..12, 0..EXTENTS, 1u32..4), 1..160),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            world.check();
        }
        // Nobody waits for ever once the writers end.
        for _ in 0..1000 {
            while let Some(extents) = world.writing.pop() {
                world.log.release(extents);
            }
            world.work(0);
        }
        prop_assert!(world.waiting.is_empty(), "{:?}", world.log);
        world.check();
    }

    #[test]
    fn a_log_taken_up_again_goes_on_where_it_was(
        first in 1u64..200, extents in prop::collection::btree_set(0..EXTENTS, 0..12),
    ) {
        let extents: Vec<u32> = extents.into_iter().collect();
        let mut ring = vec![0; RING_RECORDS as usize * BYTES];
        for sequence in 1..=first {
            let at = (sequence % RING_RECORDS) as usize * BYTES;
            let listed = if sequence == first { &extents[..] } else { &[] };
            ring[at..at + BYTES].copy_from_slice(&encode(UUID, sequence, listed)[..]);
        }
        let found = recover(UUID, 1, EXTENTS, &ring).unwrap();
        let expected = Recovered { extents: extents.clone(), sequence: first, doubt: None };
        prop_assert_eq!(&found, &expected);
        let log = ActivityLog::new(EXTENTS, 12, &found);
        prop_assert_eq!(log.extents().collect::<Vec<_>>(), extents);
    }
}

#[test]
fn damage_that_no_power_cut_leaves_is_doubt() {
    let mut ring = vec![0; RING_RECORDS as usize * BYTES];
    let place = |sequence: u64| (sequence % RING_RECORDS) as usize * BYTES;
    for sequence in 1..=100 {
        let block = encode(UUID, sequence, &[sequence as u32 % EXTENTS]);
        ring[place(sequence)..][..BYTES].copy_from_slice(&block[..]);
    }
    let told = |ring: &[u8]| recover(UUID, 1, EXTENTS, ring).unwrap();
    assert_eq!(told(&ring), Recovered { extents: vec![20], sequence: 100, doubt: None });
    let damaged = |sequence: u64| {
        let mut ring = ring.clone();
        ring[place(sequence) + 300] ^= 1;
        told(&ring)
    };
    // The next would be written over the oldest, which is number 37.
    assert_eq!(damaged(37).doubt, None);
    assert!(damaged(60).doubt.unwrap().contains("torn or damaged"));
    // The newest: taken for one that was torn.
    assert_eq!((damaged(100).doubt, damaged(100).sequence), (None, 99));
    let mut lost = ring.clone();
    lost[place(70)..][..BYTES].fill(0);
    assert_eq!(told(&lost).doubt.as_deref(), Some("record 70 is missing"));
    let mut two = ring.clone();
    two[place(100) + 9] ^= 1;
    two[place(99) + 9] ^= 1;
    assert!(told(&two).doubt.is_some());

    let mut elsewhere = ring.clone();
    let foreign = encode(MirrorId(1), 60, &[]);
    elsewhere[place(60)..][..BYTES].copy_from_slice(&foreign[..]);
    assert!(told(&elsewhere).doubt.unwrap().contains("does not belong"));
    let outside = encode(UUID, 60, &[EXTENTS]);
    elsewhere[place(60)..][..BYTES].copy_from_slice(&outside[..]);
    assert!(told(&elsewhere).doubt.unwrap().contains("does not belong"));

    let mut newer = ring.clone();
    newer[place(60) + 12] = 2;
    assert!(matches!(recover(UUID, 1, EXTENTS, &newer), Err(BlockFault::Newer { .. })));
    assert_eq!(recover(UUID, 101, EXTENTS, &ring).unwrap().sequence, 100);
    assert_eq!(recover(UUID, 101, EXTENTS, &ring).unwrap().extents, []);
}
