//! Rules one by one, and a model: a unit that loses power at any time, and a flush that vouches.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

type Told = &'static str;

fn data(byte: u8, len: usize) -> Content {
    Content::Data(Bytes::from(vec![byte; len]))
}

fn up(limit: u64, writers: Writers) -> Durability<Told> {
    let mut durability = Durability::new(limit, writers);
    assert_eq!(durability.begin(Cache::Volatile, |_| "lost"), Step::Open);
    durability
}

fn write(durability: &mut Durability<Told>, at: u64, byte: u8, len: usize) {
    let mut ticket = durability.ask();
    let effect = Effect::Volatile(at, data(byte, len));
    assert_eq!(durability.done(&effect, &mut ticket), Ended::Good);
}

/// A command is sent.
fn sent(durability: &mut Durability<Told>, effect: &Effect) -> Ticket {
    let mut ticket = durability.ask();
    durability.sent(effect, &mut ticket);
    ticket
}

fn own_flush(durability: &mut Durability<Told>) -> Ticket {
    let mut ticket = durability.own_flush_sent();
    durability.sent(&Effect::Flushed, &mut ticket);
    ticket
}

/// A command, alone.
fn alone(durability: &mut Durability<Told>, effect: &Effect) -> Result<(), Told> {
    let mut ticket = sent(durability, effect);
    match durability.done(effect, &mut ticket) {
        Ended::Good => Ok(()),
        Ended::Failed(failure) => Err(failure),
        other => panic!("{other:?}, and nothing else is under way"),
    }
}

fn flush(durability: &mut Durability<Told>) -> Result<(), Told> {
    alone(durability, &Effect::Flushed)
}

fn fails(durability: &mut Durability<Told>, effect: &Effect, failure: Told) {
    let mut ticket = sent(durability, effect);
    durability.failed(effect, &mut ticket, failure);
}

#[test]
fn every_incarnation_writes_again_flushes_and_only_then_forgets() {
    let mut it = up(1 << 20, Writers::One);
    write(&mut it, 0, 1, 100);
    // Nobody says anything of a power-on, and the first two incarnations do not live long.
    it.lost();
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(vec![(0, data(1, 100))]));
    it.lost();
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(vec![(0, data(1, 100))]));
    assert_eq!(it.written(None), Step::Flush);
    it.lost();
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(vec![(0, data(1, 100))]));
    assert_eq!((it.written(None), it.stable(None)), (Step::Flush, Step::Open));
    assert!(it.unflushed().is_empty());
    assert_eq!(flush(&mut it), Ok(()));
}

#[test]
fn a_restart_without_a_cache_writes_again_as_well() {
    for cache in [Cache::Absent, Cache::Unknown] {
        let mut it = up(1 << 20, Writers::One);
        write(&mut it, 0, 1, 100);
        it.lost();
        assert!(matches!(it.begin(cache, |_| "lost"), Step::Write(_)));
        assert_eq!((it.written(None), it.stable(None)), (Step::Flush, Step::Open));
        write(&mut it, 50, 2, 10);
        assert_eq!(it.unflushed().is_empty(), cache == Cache::Absent);
    }
}

#[test]
fn a_portion_that_is_stable_is_not_written_a_second_time() {
    let mut it = up(16_000, Writers::One);
    for n in 0..4 {
        write(&mut it, n * 10_000, n as u8, 1500);
    }
    it.lost();
    let Step::Write(first) = it.begin(Cache::Volatile, |_| "lost") else { panic!("no writes") };
    assert_eq!(first.len(), 2);
    it.written(None);
    let Step::Write(second) = it.stable(None) else { panic!("no second portion") };
    assert_eq!(second[0].0, 20_000);
    it.lost();
    let Step::Write(again) = it.begin(Cache::Volatile, |_| "lost") else { panic!("no writes") };
    assert_eq!(again, second);
}

#[test]
fn a_power_on_ends_what_was_begun_and_is_remembered() {
    let mut it = up(1 << 20, Writers::One);
    assert!(it.power_on() && it.stage() == Stage::Down);
    assert!(!it.power_on() && it.is_power_on_pending());
    it.begin(Cache::Volatile, |_| "lost");
    assert!(!it.is_power_on_pending());
    write(&mut it, 0, 1, 10);
    it.lost();
    it.begin(Cache::Volatile, |_| "lost");
    it.written(None);
    assert!(it.power_on(), "in the middle of writing again");
    assert!(matches!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(_)));
}

#[test]
fn failure_of_a_flush_of_our_own_is_told_once_and_loses_nothing_that_is_kept() {
    let mut it = up(1000, Writers::One);
    write(&mut it, 0, 1, 600);
    assert!(it.wants_own_flush(false));
    let mut own = own_flush(&mut it);
    assert!(!it.own_flush_failed(&mut own, "cannot"), "there is room: writes go on");
    assert!(!it.wants_own_flush(false), "not again after every write");
    it.lost();
    it.begin(Cache::Volatile, |_| "lost");
    it.written(None);
    it.stable(None);
    assert_eq!(flush(&mut it), Err("cannot"), "also after a restart");
    assert_eq!(flush(&mut it), Ok(()));
}

#[test]
fn a_write_with_fua_is_told_too() {
    let mut it = up(1000, Writers::One);
    write(&mut it, 0, 1, 600);
    let mut own = own_flush(&mut it);
    it.own_flush_failed(&mut own, "cannot");
    assert_eq!(alone(&mut it, &Effect::Undefined(0, 8)), Ok(()));
    assert_eq!(alone(&mut it, &Effect::Stable(0, 8)), Err("cannot"));
    assert_eq!(alone(&mut it, &Effect::Stable(0, 8)), Ok(()));
}

/// Three writes that overlap: the first, and the last after it, are acknowledged while a forced one
/// is under way. The unit may have done the forced one before both and have only that on its
/// medium.
#[test]
fn a_forced_write_covers_nothing_that_was_acknowledged_while_it_was_under_way() {
    let mut it = up(1 << 20, Writers::One);
    write(&mut it, 8, 1, 8);
    let effect = Effect::Stable(0, 16);
    let mut forced = sent(&mut it, &effect);
    write(&mut it, 0, 2, 8);
    write(&mut it, 0, 3, 4);
    assert_eq!(it.done(&effect, &mut forced), Ended::Good);
    it.lost();
    let again = vec![(0, data(3, 4)), (4, data(2, 4))];
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(again));
}

/// In either order of their answers, whichever of them is a forced write, or a flush of our own
/// that fails. One that was sent later is not concerned.
#[test]
fn of_flushes_and_forced_writes_under_way_together_none_is_good_if_one_fails() {
    let kinds = [Effect::Flushed, Effect::Stable(500, 8)];
    for (one, other) in kinds.iter().flat_map(|one| kinds.iter().map(move |other| (one, other))) {
        for good_comes_first in [false, true] {
            let mut it = up(1000, Writers::One);
            write(&mut it, 0, 1, 10);
            let [mut good, mut bad] = [one, other].map(|effect| sent(&mut it, effect));
            if good_comes_first {
                assert_eq!(it.done(one, &mut good), Ended::Held);
            }
            let mut later = sent(&mut it, other);
            it.failed(other, &mut bad, "cannot");
            assert_eq!(it.done(one, &mut good), Ended::Failed("cannot"), "{one:?}, {other:?}");
            assert_eq!(it.unflushed().pieces().len(), 1, "it vouches for nothing");
            // The failure came while this one was under way, too.
            assert_eq!(it.done(other, &mut later), Ended::Failed("cannot"));
            assert_eq!((flush(&mut it), it.unflushed().is_empty()), (Ok(()), true));
        }
    }
}

#[test]
fn a_flush_is_held_for_what_was_under_way_and_for_nothing_that_was_sent_later() {
    let mut it = up(1000, Writers::One);
    write(&mut it, 0, 1, 10);
    let flushed = Effect::Flushed;
    let [mut first, mut second] = [(); 2].map(|()| sent(&mut it, &flushed));
    assert_eq!(it.done(&flushed, &mut first), Ended::Held);
    let mut later = sent(&mut it, &flushed);
    assert_eq!(it.done(&flushed, &mut first), Ended::Held);
    it.undone(&mut second); // the unit was busy
    assert_eq!(it.done(&flushed, &mut first), Ended::Good);
    assert!(it.unflushed().is_empty());
    assert_eq!(it.done(&flushed, &mut later), Ended::Good);
    // A plain write is told of no failure of others.
    let _plain = sent(&mut it, &Effect::Volatile(0, data(1, 10)));
    assert_eq!(flush(&mut it), Ok(()));
}

#[test]
fn a_flush_held_for_one_that_is_lost_with_its_session_is_sent_again() {
    let mut it = up(1 << 20, Writers::One);
    write(&mut it, 0, 1, 10);
    let flushed = Effect::Flushed;
    let [mut held, mut late, _lost] = [(); 3].map(|()| sent(&mut it, &flushed));
    assert_eq!(it.done(&flushed, &mut held), Ended::Held);
    it.lost();
    for ticket in [&mut held, &mut late] {
        assert_eq!(it.done(&flushed, ticket), Ended::Again);
    }
    assert!(matches!(it.begin(Cache::Volatile, |_| "lost"), Step::Write(_)), "it is still kept");
    assert_eq!((it.written(None), it.stable(None)), (Step::Flush, Step::Open));
    it.sent(&flushed, &mut held);
    assert_eq!(it.done(&flushed, &mut held), Ended::Good);
}

/// The target has lost the command, and its answer, while the session goes on.
#[test]
fn a_flush_that_nobody_answers_ends_the_incarnation_if_anything_is_kept() {
    let mut it = up(1 << 20, Writers::One);
    let mut flush = sent(&mut it, &Effect::Flushed);
    assert!(!it.unanswered(&mut flush), "there is nothing to write again");
    write(&mut it, 0, 1, 10);
    let plain = Effect::Volatile(0, data(1, 10));
    let mut plain = sent(&mut it, &plain);
    assert!(!it.unanswered(&mut plain), "sending it again is all it takes");
    it.sent(&Effect::Flushed, &mut flush);
    assert!(it.unanswered(&mut flush));
}

/// A target that tells a failed write-back once may have told it with the forced write.
#[test]
fn a_forced_write_that_fails_may_have_taken_the_failure_of_others() {
    let mut it = up(1000, Writers::One);
    let forced = Effect::Stable(100, 8);
    fails(&mut it, &forced, "medium");
    assert_eq!(flush(&mut it), Ok(()), "nothing else was unflushed");
    write(&mut it, 0, 1, 10);
    fails(&mut it, &Effect::Volatile(50, data(2, 8)), "medium");
    assert!(!it.has_failure(), "a write into the cache asks for no write-back");
    fails(&mut it, &forced, "medium");
    assert_eq!(flush(&mut it), Err("medium"));
    assert!(!it.unflushed().is_empty(), "not forgotten before a later flush");
    assert_eq!((flush(&mut it), it.unflushed().is_empty()), (Ok(()), true));
    // Without a cache every write is forced.
    write(&mut it, 0, 1, 10);
    it.set_cache(Cache::Absent);
    fails(&mut it, &Effect::Volatile(50, data(2, 8)), "medium");
    assert_eq!((flush(&mut it), flush(&mut it)), (Err("medium"), Ok(())));
}

#[test]
fn a_write_under_way_while_a_failure_is_told_may_be_lost_with_it() {
    let write = Effect::Volatile(0, data(1, 10));
    for own in [false, true] {
        let mut it = up(1000, Writers::One);
        let mut waits = it.ask();
        let mut ticket = sent(&mut it, &write);
        if own {
            let mut own = own_flush(&mut it);
            it.own_flush_failed(&mut own, "cannot");
        } else {
            fails(&mut it, &Effect::Flushed, "cannot");
        }
        assert_eq!(flush(&mut it).is_err(), own);
        assert_eq!(it.done(&write, &mut ticket), Ended::Good);
        // One that is under way while it is told again was not in the write-back.
        let mut later = sent(&mut it, &write);
        assert_eq!(flush(&mut it), Err("cannot"));
        assert_eq!(it.done(&write, &mut later), Ended::Good);
        it.sent(&write, &mut waits);
        assert_eq!(it.done(&write, &mut waits), Ended::Good, "it was sent after the failure");
        assert_eq!(flush(&mut it), Ok(()));
    }
}

/// A write is in the unit's cache, another initiator turns the cache off, and only then is the
/// write answered.
#[test]
fn a_write_that_was_sent_to_a_cache_is_kept_though_the_cache_is_off_when_it_is_answered() {
    let mut it = up(1000, Writers::One);
    let write = Effect::Volatile(0, data(1, 10));
    let mut before = sent(&mut it, &write);
    it.set_cache(Cache::Absent);
    assert_eq!(it.done(&write, &mut before), Ended::Good);
    assert_eq!(it.unflushed().pieces(), [(0, data(1, 10))]);
    let mut after = sent(&mut it, &write);
    assert_eq!(it.done(&write, &mut after), Ended::Good);
    assert!(it.unflushed().is_empty(), "it replaced what was kept, and is stable");
}

#[test]
fn what_nobody_heard_is_told_to_the_next() {
    let mut it = up(1000, Writers::One);
    let mut own = own_flush(&mut it);
    it.own_flush_failed(&mut own, "cannot");
    let failure = flush(&mut it).unwrap_err();
    it.not_told(failure);
    assert_eq!(flush(&mut it), Err("cannot"));
}

#[test]
fn at_the_limit_writes_wait_for_one_flush_and_fail_with_it() {
    let mut it = up(1000, Writers::One);
    write(&mut it, 0, 1, 600);
    let mut own = own_flush(&mut it);
    it.own_flush_failed(&mut own, "cannot");
    write(&mut it, 1000, 2, 600);
    let more = Effect::Volatile(2000, data(3, 10));
    assert_eq!(it.admit(&more), Admission::Wait);
    assert_eq!(it.admit(&Effect::Flushed), Admission::Go);
    assert!(it.wants_own_flush(true));
    let mut own = own_flush(&mut it);
    assert!(it.own_flush_failed(&mut own, "still"), "writes that wait are to fail");
    assert!(it.wants_own_flush(true), "the next write that waits asks again");
    let own = own_flush(&mut it);
    it.own_flush_done(own);
    assert_eq!(it.admit(&more), Admission::Go);
    assert_eq!(flush(&mut it), Err("cannot"), "room was made, the failure was not forgotten");
}

#[test]
fn what_is_reserved_for_others_is_not_written_later() {
    let mut it = up(1 << 20, Writers::One);
    write(&mut it, 0, 1, 10);
    it.lost();
    it.begin(Cache::Volatile, |_| "lost");
    assert_eq!(it.written(Some(Refusal::Fenced("reserved"))), Step::Open);
    it.lost();
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Open);
    assert_eq!(flush(&mut it), Err("reserved"));
}

#[test]
fn a_write_that_fails_again_is_told_and_the_others_go_on() {
    let mut it = up(16_000, Writers::One);
    write(&mut it, 0, 1, 3000);
    write(&mut it, 10_000, 2, 3000);
    it.lost();
    it.begin(Cache::Volatile, |_| "lost");
    assert_eq!(it.written(Some(Refusal::Failed("medium"))), Step::Flush);
    assert_eq!(it.stable(None), Step::Write(vec![(10_000, data(2, 3000))]));
    it.written(None);
    assert_eq!(it.stable(None), Step::Open);
    assert_eq!(it.unflushed().pieces(), [(0, data(1, 3000))]);
    assert_eq!(flush(&mut it), Err("medium"));
}

#[test]
fn where_others_write_nothing_is_written_again_and_a_power_on_is_told() {
    let mut it = up(1 << 20, Writers::Several);
    write(&mut it, 0, 1, 10);
    it.lost();
    assert_eq!(it.begin(Cache::Absent, |_| "lost"), Step::Flush, "it lived on");
    assert_eq!(it.stable(None), Step::Open);
    assert_eq!(flush(&mut it), Ok(()));
    it.set_cache(Cache::Volatile);
    write(&mut it, 0, 1, 10);
    it.lost();
    it.power_on();
    assert_eq!(it.begin(Cache::Volatile, |_| "lost"), Step::Open);
    assert_eq!(flush(&mut it), Err("lost"));
    assert_eq!(flush(&mut it), Ok(()));
}

/// A unit with a volatile cache whose failed flush marks everything clean, as Linux does.
struct Disk {
    stable: [u8; 64],
    cached: [u8; 64],
    dirty: [bool; 64],
    fails: bool,
}

impl Disk {
    fn write(&mut self, at: u64, content: &Content) {
        for n in at as usize..(at + content.len()) as usize {
            self.cached[n] = match content {
                Content::Data(data) => data[n - at as usize],
                Content::Zeroes(_) => 0,
            };
            self.dirty[n] = true;
        }
    }

    fn flush(&mut self) -> bool {
        let good = !std::mem::take(&mut self.fails);
        for n in 0..64 {
            if std::mem::take(&mut self.dirty[n]) && good {
                self.stable[n] = self.cached[n];
            }
        }
        good
    }

    fn power_cut(&mut self) {
        (self.cached, self.dirty) = (self.stable, [false; 64]);
    }
}

#[derive(Clone, Debug)]
enum Event {
    Write(u64, usize),
    Zero(u64, u64),
    Fua(u64, usize),
    Flush,
    OwnFlush,
    FlushWillFail,
    /// A new incarnation: the unit loses power before it or not, and again after so many steps.
    Restart {
        cut: bool,
        cut_in_step: Option<u8>,
        cache: Cache,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let cache = prop_oneof![Just(Cache::Volatile), Just(Cache::Absent), Just(Cache::Unknown)];
    prop_oneof![
        6 => (0..40u64, 1..24usize).prop_map(|(at, len)| Event::Write(at, len)),
        1 => (0..40u64, 1..24u64).prop_map(|(at, len)| Event::Zero(at, len)),
        1 => (0..40u64, 1..24usize).prop_map(|(at, len)| Event::Fua(at, len)),
        2 => Just(Event::Flush),
        1 => Just(Event::OwnFlush),
        1 => Just(Event::FlushWillFail),
        3 => (any::<bool>(), prop::option::of(0..6u8), cache)
            .prop_map(|(cut, cut_in_step, cache)| Event::Restart { cut, cut_in_step, cache }),
    ]
}

struct World {
    disk: Disk,
    it: Durability<Told>,
    seen: [u8; 64],
    /// Its user was told of a failure since it was written.
    excused: [bool; 64],
}

impl World {
    fn put(&mut self, at: u64, content: Content, fua: bool) {
        let range = at as usize..(at + content.len()) as usize;
        self.disk.write(at, &content);
        self.seen[range.clone()].copy_from_slice(&self.disk.cached[range.clone()]);
        self.excused[range.clone()].fill(false);
        let effect = match fua {
            true => Effect::Stable(at, content.len()),
            false => Effect::Volatile(at, content),
        };
        if fua || self.it.cache() == Cache::Absent {
            self.disk.stable[range.clone()].copy_from_slice(&self.seen[range.clone()]);
            self.disk.dirty[range].fill(false);
        }
        if alone(&mut self.it, &effect).is_err() {
            self.excused.fill(true);
        }
    }

    fn flush(&mut self) -> Result<(), TestCaseError> {
        if !self.disk.flush() {
            fails(&mut self.it, &Effect::Flushed, "cannot");
            self.excused.fill(true);
        } else if flush(&mut self.it).is_err() {
            self.excused.fill(true);
        } else {
            for n in 0..64 {
                prop_assert!(self.excused[n] || self.disk.stable[n] == self.seen[n], "byte {n}");
            }
        }
        Ok(())
    }

    fn restart(&mut self, cache: Cache, cut: bool, mut cut_in_step: Option<u8>) {
        if cut {
            self.disk.power_cut();
        }
        self.it.lost();
        let mut step = self.it.begin(cache, |_| "lost");
        for n in 0.. {
            if cut_in_step == Some(n) {
                cut_in_step = None;
                self.disk.power_cut();
                self.it.lost();
                step = self.it.begin(cache, |_| "lost");
            }
            step = match step {
                Step::Open => return,
                Step::Write(pieces) => {
                    pieces.iter().for_each(|(at, content)| self.disk.write(*at, content));
                    self.it.written(None)
                }
                Step::Flush => {
                    let refusal = (!self.disk.flush()).then_some(Refusal::Failed("cannot"));
                    self.it.stable(refusal)
                }
            };
        }
    }
}

/// Found by the simulator: one of the two is told of a failure at the target, the other one is not,
/// and its answer comes first, over another connection.
#[test]
fn a_flush_of_the_user_and_our_own_under_way_together_share_a_failure() {
    for own_fails in [false, true] {
        let mut it = up(1000, Writers::One);
        write(&mut it, 0, 1, 600);
        assert!(it.wants_own_flush(false));
        let mut own = own_flush(&mut it);
        let flushed = Effect::Flushed;
        assert_eq!(it.admit(&flushed), Admission::Go);
        let mut users = sent(&mut it, &flushed);
        if own_fails {
            assert_eq!(it.done(&flushed, &mut users), Ended::Held);
            it.own_flush_failed(&mut own, "cannot");
            assert_eq!(it.done(&flushed, &mut users), Ended::Failed("cannot"));
        } else {
            it.own_flush_done(own);
            assert!(!it.unflushed().is_empty() && !it.wants_own_flush(true), "it is held");
            it.failed(&flushed, &mut users, "cannot");
            assert!(!it.unflushed().is_empty() && it.wants_own_flush(false), "it was empty");
        }
        assert_eq!(flush(&mut it), Ok(()), "told once");
    }
}

#[test]
fn our_own_flush_makes_room_when_nothing_else_is_under_way_any_more() {
    let mut it = up(1000, Writers::One);
    write(&mut it, 0, 1, 600);
    let forced = Effect::Stable(5000, 8);
    let mut under_way = sent(&mut it, &forced);
    let own = own_flush(&mut it);
    it.own_flush_done(own);
    assert!(!it.unflushed().is_empty());
    assert_eq!(it.done(&forced, &mut under_way), Ended::Good);
    assert!(it.unflushed().is_empty() && !it.wants_own_flush(true));
}

proptest! {
    /// A flush that succeeds vouches for every byte whose user was not told otherwise.
    #[test]
    fn a_flush_vouches_for_nothing_that_is_lost(
        events in prop::collection::vec(event(), 1..80),
        limit in prop_oneof![Just(1000u64), Just(1 << 20)],
    ) {
        let zero = [0; 64];
        let disk = Disk { stable: zero, cached: zero, dirty: [false; 64], fails: false };
        let it = up(limit, Writers::One);
        let mut world = World { disk, it, seen: zero, excused: [false; 64] };
        for (n, event) in events.into_iter().enumerate() {
            let byte = n as u8 + 1;
            match event {
                Event::Write(at, len) => world.put(at, data(byte, len), false),
                Event::Zero(at, len) => world.put(at, Content::Zeroes(len), false),
                Event::Fua(at, len) => world.put(at, data(byte, len), true),
                Event::Flush => world.flush()?,
                Event::FlushWillFail => world.disk.fails = true,
                Event::OwnFlush => {
                    let mut own = own_flush(&mut world.it);
                    match world.disk.flush() {
                        true => world.it.own_flush_done(own),
                        false => drop(world.it.own_flush_failed(&mut own, "cannot")),
                    }
                }
                Event::Restart { cut, cut_in_step, cache } => {
                    world.restart(cache, cut, cut_in_step);
                }
            }
        }
        world.flush()?;
    }
}
