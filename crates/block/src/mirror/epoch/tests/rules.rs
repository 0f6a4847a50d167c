//! The rules of the epoch log, one by one.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::super::*;

const START: Duration = Duration::from_secs(1);

fn data(byte: u8, len: usize) -> Content {
    Content::Data(Bytes::from(vec![byte; len]))
}

fn ms(ms: u64) -> Duration {
    START + Duration::from_millis(ms)
}

fn only(range: Range<u64>) -> Vec<Range<u64>> {
    Vec::from([range])
}

/// A log that leg 0 follows.
fn followed() -> EpochLog {
    let mut log = EpochLog::new(1);
    log.follow(0, 0, START);
    log
}

/// A write of whole blocks filled with `byte`, completed with force.
fn forced(log: &mut EpochLog, block: u64, byte: u8) -> u64 {
    let epoch = log.write(START, block * 4096, &data(byte, 4096), &[]);
    log.close(START, epoch);
    epoch
}

fn writes(batch: Batch) -> Vec<(u64, u64, Option<u8>)> {
    let told = |piece: Piece| match &piece.content {
        Content::Data(bytes) => (piece.offset, bytes.len() as u64, Some(bytes[0])),
        Content::Zero(len) => (piece.offset, *len, None),
    };
    batch.into_writes(1 << 20, 64 << 20).map(told).collect()
}

#[test]
fn an_epoch_ends_when_a_flush_is_told_and_only_if_it_covers_something() {
    let mut log = followed();
    log.close(START, log.covered());
    assert_eq!(log.due(), None);
    log.write(START, 0, &data(1, 512), &[]);
    let covered = log.covered();
    log.write(START, 512, &data(2, 512), &[]); // while the flush is under way
    log.close(START, covered);
    log.close(START, covered); // of a second flush, issued at the same moment
    let batch = log.next(0, START).unwrap();
    assert_eq!((batch.epoch, writes(batch)), (1, vec![(0, 1024, Some(1))]));
    assert!(log.next(0, START).is_none());
    let second = log.write(START, 0, &data(3, 512), &[]);
    assert_eq!(second, 2);
    log.close(START, covered); // of a third one: what it covers is before all of epoch 2 already
    assert_eq!(log.open.number, 2);
}

#[test]
fn what_was_closed_early_goes_together_until_an_end_that_somebody_depends_on() {
    let mut log = followed();
    for byte in 1..=3 {
        log.write(START, 0, &data(byte, 512), &[]);
        log.write(START, 512 * u64::from(byte), &data(byte, 512), &[]);
        log.close_early(START);
    }
    let batch = log.next(0, START).unwrap();
    assert_eq!((batch.epoch, writes(batch)), (3, vec![(0, 2048, Some(3))]), "1 only once");
    // A forced write of epoch 1 is told now: what comes later may not go together with it, though
    // all of it was closed before.
    assert!(matches!(log.resume(0, 0), Resume::From(_)));
    log.close(START, 1);
    log.write(START, 0, &data(4, 512), &[]);
    log.close_early(START);
    assert_eq!(log.next(0, START).unwrap().epoch, 3);
    assert_eq!(log.next(0, START).unwrap().epoch, 4);
}

#[test]
fn an_idle_leg_gets_what_is_old_enough_and_a_busy_one_lets_it_grow() {
    let mut log = followed();
    log.write(ms(0), 0, &data(1, 512), &[]);
    assert!(log.next(0, ms(99)).is_none());
    assert_eq!(log.due(), Some(ms(100)));
    assert_eq!(log.next(0, ms(100)).unwrap().epoch, 1);
    forced(&mut log, 0, 2);
    log.write(ms(100), 0, &data(3, 512), &[]);
    assert_eq!(log.next(0, ms(900)).unwrap().epoch, 2);
    assert_eq!(log.write(ms(900), 0, &data(4, 512), &[]), 3, "still the epoch of 100 ms");
}

#[test]
fn a_full_epoch_is_closed_and_a_step_has_a_size() {
    let mut log = followed();
    let mib = 1 << 20;
    for at in 0..80 {
        log.write(START, at * mib, &data(1, mib as usize), &[]);
    }
    let mut steps = Vec::new();
    while let Some(batch) = log.next(0, ms(100)) {
        steps.push((batch.epoch, batch.held_bytes() / mib));
    }
    assert_eq!(steps, [(3, 48), (5, 32)], "a little more than 16 MiB is in an epoch");
}

#[test]
fn after_a_loss_it_goes_on_behind_the_stamp() {
    let mut log = followed();
    for byte in 1..=3 {
        forced(&mut log, 0, byte);
    }
    for epoch in 1..=3 {
        assert_eq!(log.next(0, START).unwrap().epoch, epoch);
    }
    assert_eq!(log.stamped(0, 1), [], "a later epoch has the block as well");
    assert_eq!(log.resume(0, 2), Resume::From(vec![]));
    let again = log.next(0, START).unwrap();
    assert_eq!((again.epoch, writes(again)), (3, vec![(0, 4096, Some(3))]));
    assert_eq!(log.resume(0, 1), Resume::Older { found: 1, known: 2 });
    assert_eq!(log.resume(0, 4), Resume::Ahead { found: 4, sent: 3 });
    assert_eq!(log.resume(1, 4), Resume::NotFollowing);
    assert_eq!(log.resume(0, 3), Resume::From(only(0..4096)));
    assert_eq!(log.held_bytes(), 0);
}

#[test]
fn a_stamp_of_what_was_never_given_out_frees_nothing() {
    let mut log = followed();
    forced(&mut log, 0, 1);
    assert_eq!(log.stamped(0, 7), []);
    assert_eq!(log.next(0, START).unwrap().epoch, 1);
}

#[test]
fn memory_is_kept_for_the_slowest_leg_and_for_none_that_gave_up() {
    let mut log = followed();
    assert_eq!(log.follow(1, 7, START), 8, "numbers go on behind the stamp that the leg has");
    forced(&mut log, 0, 1);
    forced(&mut log, 9, 2);
    let both = log.held_bytes();
    assert_eq!(both, 2 * (4096 + PIECE_OVERHEAD_BYTES));
    for _ in 0..2 {
        log.next(0, START).unwrap();
    }
    assert_eq!(log.stamped(0, 9), [0..4096, 36864..40960]);
    assert_eq!(log.backlog(0, ms(50)), Some(Backlog::default()));
    let waiting = Backlog { bytes: both, age: Duration::from_millis(50), epochs: 2 };
    assert_eq!(log.backlog(1, ms(50)), Some(waiting));
    assert_eq!(log.held_bytes(), both);
    assert_eq!(log.give_up(1), [0..4096, 36864..40960]);
    assert_eq!((log.held_bytes(), log.newest.len()), (0, 0));
    assert_eq!(log.backlog(1, START), None);
    log.give_up(0);
    log.write(START, 0, &data(1, 512), &[]);
    assert_eq!(log.held_bytes(), 0, "nobody follows");
}

#[test]
fn a_leg_that_gives_up_takes_the_open_epoch_with_it() {
    let mut log = followed();
    log.write(START, 4096, &data(1, 512), &[]);
    assert_eq!(log.give_up(0), only(4096..8192));
    assert_eq!((log.held_bytes(), log.newest.len(), log.due()), (0, 0, None));
}

#[test]
fn zeroes_cost_no_memory() {
    let mut log = followed();
    log.write(START, 0, &data(1, 1 << 20), &[]);
    log.write(START, 0, &Content::Zero(1 << 40), &[]);
    assert_eq!(log.held_bytes(), PIECE_OVERHEAD_BYTES);
    log.write(START, 4096, &data(2, 4096), &[]);
    log.close_early(START);
    let sent = writes(log.next(0, START).unwrap());
    assert_eq!(sent[..3], [(0, 4096, None), (4096, 4096, Some(2)), (8192, 64 << 20, None)]);
    assert_eq!(sent.iter().map(|(_, len, _)| len).sum::<u64>(), 1 << 40);
}

#[test]
fn adjacent_writes_are_joined_and_long_ones_cut() {
    let mut log = followed();
    let kib = 1024;
    for at in (0..2048 * kib).step_by(4096) {
        log.write(START, at, &data(1, 4096), &[]);
    }
    log.write(START, 2048 * kib, &data(2, 3 << 20), &[]);
    log.write(START, 9 << 20, &data(3, 4096), &[]);
    log.close_early(START);
    let batch = log.next(0, START).unwrap();
    let lens: Vec<u64> = writes(batch).iter().map(|(_, len, _)| len / kib).collect();
    assert_eq!(lens, [1024, 1024, 1024, 1024, 1024, 4]);
}

#[test]
fn a_small_rest_of_a_large_write_does_not_keep_all_of_it() {
    let mut log = followed();
    let large = Bytes::from(vec![1; 1 << 20]);
    log.write(START, 0, &Content::Data(large.clone()), &[]);
    log.write(START, 4096, &Content::Zero((1 << 20) - 8192), &[]);
    assert!(large.is_unique(), "both ends are copies");
}

#[test]
fn what_a_leg_lacks_is_left_to_the_copy_unless_an_earlier_write_is_on_its_way() {
    let mut log = followed();
    log.follow(1, 0, START);
    let lacks = [(1, 0..4096), (1, 8192..12288)];
    log.write(START, 0, &data(1, 12288), &lacks[..1]); // blocks 1 and 2 to both
    log.write(START, 4096, &data(2, 8192), &lacks);
    log.write(START, 512, &data(3, 512), &lacks);
    log.close_early(START);
    let near = writes(log.next(0, START).unwrap());
    assert_eq!(near, [(0, 12288, Some(1))], "as one, with 1 3 1 2 2 in it");
    assert_eq!(writes(log.next(1, START).unwrap()), [(4096, 8192, Some(2))]);
    assert_eq!(log.stamped(1, 1), only(4096..12288));
    assert_eq!(log.stamped(0, 1), only(0..12288));
}

#[test]
fn what_no_leg_gets_hides_no_later_reads() {
    let mut log = followed();
    log.write(START, 0, &data(1, 4096), &[]);
    log.close_early(START);
    log.next(0, START).unwrap();
    log.follow(1, 0, START); // holds nothing: epoch 1 was before
    let lacks = [(0, 0..4096), (1, 0..4096)];
    assert_eq!(log.overlay(&(0..4096)).len(), 1);
    log.stamped(0, 1);
    log.write(START, 0, &data(2, 4096), &lacks);
    assert_eq!(log.overlay(&(0..8192)), [], "neither the old content nor a claim of the new");
}

#[test]
fn what_a_copy_has_brought_does_not_stay_different_for_ever() {
    let mut log = followed();
    log.follow(1, 0, START);
    log.write(START, 0, &data(1, 512), &[(1, 0..4096)]);
    log.copied(1, &(0..4096));
    log.write(START, 512, &data(2, 512), &[]);
    log.close_early(START);
    assert_eq!(writes(log.next(1, START).unwrap()), [(512, 512, Some(2))]);
    assert_eq!(log.stamped(1, 1), only(0..4096));
}
