//! That a leg has a legal image at every moment: a guest with operations that overlap in time, the
//! real [`EpochLog`], and legs that carry out what is under way in any order, and lose answers,
//! sessions and power. After every step what a leg holds, and what it may hold after a power cut
//! now, must be what a disk of the guest might hold after a power cut at one moment not longer ago
//! than the lag that the log tells. A bit that is clear must mean that the block is the same there.
//!
//! Every deliberate mistake must be found: the assertions say by how many of the
//! 2,000 seeds at least.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use super::super::*;
use super::Random;
use super::target::{Command, Operation, Place, Target};

const BLOCKS: usize = 3;
const SEEDS: u64 = 2000;

/// How steps are told apart at a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// Answers are waited for before the flush, and the flush before the next step.
    Waited,
    /// The flush is a barrier, and nothing is waited for.
    Ordered { forced_stamps: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// An epoch ends some time after a flush was told complete.
    EndAfterTold,
    /// A forced write ends no epoch.
    ForcedEndsNothing,
    /// A flush whose writes are in epochs that were closed early leaves them early.
    EarlyEndsStayEarly,
    /// The flush between two steps is neither waited for nor a barrier.
    NoBarrier,
    /// There is no flush between two steps.
    NoFlush,
    /// What was not answered is sent again after a loss, and nothing else.
    UnansweredAgain,
    /// The stamp of a step goes out with the step.
    StampBeforeBarrier,
    /// Two steps are folded into one.
    FoldAcrossEnds,
    /// After a loss the step of the stamp itself is sent, with what its blocks hold by now.
    ChangedContent,
    /// After a loss a step is left out.
    StepLeftOut,
    /// What was under way lands after the leg was connected anew.
    LateWrites,
    /// A stamp counts when its write is answered, though it may be lost with the leg's power.
    StampedWhenWritten,
    /// A stamp clears the bits of blocks that were written again since.
    BitsOfLaterWrites,
}

/// An operation of the guest that is under way.
struct Asked {
    /// None is a flush.
    block: Option<usize>,
    value: u64,
    forced: bool,
    /// What was complete when a flush was issued.
    covers: [u64; BLOCKS],
    covered_epoch: u64,
}

/// What a disk may hold after a power cut in a span of time: of each block the least and the
/// greatest write in its order.
struct Moment {
    until: Duration,
    window: [(u64, u64); BLOCKS],
}

struct Guest {
    asked: Vec<Asked>,
    left: u64,
    issued: [u64; BLOCKS],
    done: [u64; BLOCKS],
    kept: [u64; BLOCKS],
    moments: Vec<Moment>,
}

impl Guest {
    fn new(operations: u64) -> Self {
        let zero = [0; BLOCKS];
        let first = Moment { until: Duration::MAX, window: [(0, 0); BLOCKS] };
        let moments = vec![first];
        Self { asked: vec![], left: operations, issued: zero, done: zero, kept: zero, moments }
    }

    fn note(&mut self, now: Duration) {
        if let Some(last) = self.moments.last_mut() {
            last.until = now;
        }
        let window = std::array::from_fn(|block| (self.kept[block], self.issued[block]));
        self.moments.push(Moment { until: Duration::MAX, window });
    }

    fn issue(&mut self, now: Duration, random: &mut Random, log: &EpochLog) -> &Asked {
        self.left -= 1;
        let block = random.below(BLOCKS as u64) as usize;
        let kind = random.below(9);
        // Overlapping writes take turns in the mirror.
        let is_busy = self.asked.iter().any(|asked| asked.block == Some(block));
        let block = (kind < 7 && !is_busy).then_some(block);
        if let Some(block) = block {
            self.issued[block] += 1;
        }
        let value = block.map_or(0, |block| self.issued[block]);
        let covered_epoch = log.covered();
        let covers = self.done;
        self.asked.push(Asked { block, value, forced: kind == 6, covers, covered_epoch });
        self.note(now);
        &self.asked[self.asked.len() - 1]
    }

    fn complete(&mut self, at: usize, now: Duration) {
        let asked = self.asked.swap_remove(at);
        match asked.block {
            Some(block) => {
                self.done[block] = asked.value;
                if asked.forced {
                    self.kept[block] = asked.value;
                }
            }
            None => {
                for (kept, covers) in self.kept.iter_mut().zip(asked.covers) {
                    *kept = covers.max(*kept);
                }
            }
        }
        self.note(now);
    }

    /// The image is one of a moment that had not ended at `since`.
    fn is_legal(&self, image: &[u64], since: Duration) -> bool {
        self.moments.iter().rev().take_while(|moment| moment.until >= since).any(|moment| {
            let mut both = moment.window.iter().zip(image);
            both.all(|((least, most), value)| least <= value && value <= most)
        })
    }
}

/// What is under way between two flushes.
#[derive(Clone, Debug)]
struct Step {
    /// Its last epoch; None if it is only a stamp.
    epoch: Option<u64>,
    stamp: Option<u64>,
    writes: BTreeSet<u64>,
    stamp_id: Option<u64>,
    flush_id: Option<u64>,
}

/// Sends the log to a leg.
struct Sender {
    leg: usize,
    target: Target,
    steps: Vec<Step>,
    /// Commands that are not answered, in order.
    unanswered: Vec<Command>,
    next_id: u64,
    /// The last epoch that a later stamp may tell.
    complete: u64,
    stamp_sent: u64,
    late: Vec<Command>,
    bits: [bool; BLOCKS],
    /// Steps as they were given out, for mistakes.
    given: Vec<Batch>,
}

/// When an epoch ends for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Completion,
    Issue,
}

struct World {
    end: End,
    sending: Sending,
    mistake: Option<Mistake>,
    power_cuts: bool,
    random: Random,
    now: Duration,
    log: EpochLog,
    guest: Guest,
    senders: Vec<Sender>,
    /// What operations that were told complete have covered.
    late_end: u64,
}

type Found = Result<(), String>;

impl Sender {
    fn new(leg: usize) -> Self {
        Self {
            leg,
            target: Target::new(BLOCKS),
            steps: Vec::new(),
            unanswered: Vec::new(),
            next_id: 0,
            complete: 0,
            stamp_sent: 0,
            late: Vec::new(),
            bits: [false; BLOCKS],
            given: Vec::new(),
        }
    }

    fn send(&mut self, operation: Operation) -> u64 {
        self.next_id += 1;
        let command = Command { id: self.next_id, operation };
        self.unanswered.push(command.clone());
        self.target.take(command);
        self.next_id
    }

    fn write(&mut self, piece: &Piece) -> u64 {
        let Content::Data(data) = &piece.content else { panic!("{piece:?}") };
        let place = Place::Block((piece.offset / BLOCK_BYTES) as usize);
        let value = u64::from(data[0]);
        self.send(Operation::Write { place, value, forced: false })
    }

    /// The next step, if there is one. Stamps and writes of a step go out in any order.
    fn begin(&mut self, world: &mut Parts) -> bool {
        let steps_max = if world.sending == Sending::Waited { 1 } else { 4 };
        if self.steps.len() >= steps_max {
            return false;
        }
        let batch = self.given_out(world);
        if let Some(batch) = &batch
            && world.mistake == Some(Mistake::StampBeforeBarrier)
        {
            self.complete = batch.epoch;
        }
        let stamp = (self.complete > self.stamp_sent).then_some(self.complete);
        if batch.is_none() && stamp.is_none() {
            return false;
        }
        let epoch = batch.as_ref().map(|batch| batch.epoch);
        let mut step = Step { epoch, stamp, writes: [].into(), stamp_id: None, flush_id: None };
        let stamp_first = world.random.percent(50);
        if stamp_first {
            self.send_stamp(&mut step, world.sending);
        }
        for piece in batch.into_iter().flat_map(|batch| batch.into_writes(BLOCK_BYTES, 1)) {
            step.writes.insert(self.write(&piece));
        }
        if !stamp_first {
            self.send_stamp(&mut step, world.sending);
        }
        if let Sending::Ordered { .. } = world.sending {
            self.send_flush(&mut step, world);
            self.complete = step.epoch.unwrap_or(self.complete);
        }
        self.steps.push(step);
        true
    }

    fn given_out(&mut self, world: &mut Parts) -> Option<Batch> {
        let mut batch = world.log.next(self.leg, world.now)?;
        if world.mistake == Some(Mistake::FoldAcrossEnds)
            && let Some(next) = world.log.next(self.leg, world.now)
        {
            let newer: BTreeSet<u64> = next.pieces.iter().map(|piece| piece.offset).collect();
            batch.pieces.retain(|piece| !newer.contains(&piece.offset));
            batch.pieces.extend(next.pieces);
            batch.epoch = next.epoch;
        }
        self.given.push(batch.clone());
        Some(batch)
    }

    fn send_stamp(&mut self, step: &mut Step, sending: Sending) {
        let forced = sending == Sending::Ordered { forced_stamps: true };
        if let Some(value) = step.stamp {
            self.stamp_sent = value;
            let id = self.send(Operation::Write { place: Place::Stamp, value, forced });
            step.writes.insert(id);
            step.stamp_id = Some(id);
        }
    }

    fn send_flush(&mut self, step: &mut Step, world: &Parts) {
        let ordered = world.sending != Sending::Waited && world.mistake != Some(Mistake::NoBarrier);
        if world.mistake == Some(Mistake::NoFlush) {
            step.flush_id = Some(0);
            return;
        }
        step.flush_id = Some(self.send(Operation::Flush { ordered }));
    }

    /// An answer has come.
    fn answered(&mut self, id: u64, world: &mut Parts) {
        self.unanswered.retain(|command| command.id != id);
        let mut early_stamp = None;
        for step in &mut self.steps {
            step.writes.remove(&id);
            if step.stamp_id == Some(id) && world.mistake == Some(Mistake::StampedWhenWritten) {
                early_stamp = step.stamp;
            }
            if step.flush_id == Some(id) {
                step.flush_id = Some(0);
            }
        }
        if let Some(stamp) = early_stamp {
            self.stamped(stamp, world);
        }
        self.go_on(world);
    }

    /// Flushes where writes have been waited for, and ends the steps whose flush is answered.
    fn go_on(&mut self, world: &mut Parts) {
        while let Some(mut step) = self.steps.first().cloned() {
            let may_flush = step.writes.is_empty() || world.mistake == Some(Mistake::NoBarrier);
            if step.flush_id.is_none() && may_flush {
                self.send_flush(&mut step, world);
                self.steps[0] = step.clone();
            }
            if step.flush_id != Some(0) {
                return;
            }
            self.steps.remove(0);
            if world.sending == Sending::Waited {
                self.complete = step.epoch.unwrap_or(self.complete);
            }
            if let Some(stamp) = step.stamp {
                self.stamped(stamp, world);
            }
        }
    }

    fn stamped(&mut self, stamp: u64, world: &mut Parts) {
        let clean = world.log.stamped(self.leg, stamp);
        self.clear(clean);
        if world.mistake == Some(Mistake::BitsOfLaterWrites) {
            let given = self.given.iter().filter(|batch| batch.epoch <= stamp);
            let pieces: Vec<_> = given.flat_map(|batch| &batch.pieces).map(Piece::range).collect();
            self.clear(pieces);
        }
    }

    fn clear(&mut self, ranges: Vec<std::ops::Range<u64>>) {
        for range in ranges {
            for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
                self.bits[block as usize] = false;
            }
        }
    }

    /// The session was lost: connects anew and goes on behind the stamp.
    fn reconnect(&mut self, world: &mut Parts) -> Found {
        let left = self.target.quiesce();
        if world.mistake == Some(Mistake::LateWrites) {
            self.late.extend(left);
        }
        if world.mistake == Some(Mistake::UnansweredAgain) {
            for command in self.unanswered.clone() {
                self.target.take(command);
            }
            return Ok(());
        }
        self.steps.clear();
        self.unanswered.clear();
        let stamp = self.target.stamp();
        self.target.flush();
        match world.log.resume(self.leg, stamp) {
            Resume::From(clean) => self.clear(clean),
            other => return Err(format!("{other:?}")),
        }
        self.complete = world.log.sent(self.leg);
        self.stamp_sent = stamp;
        match world.mistake {
            Some(Mistake::ChangedContent) => self.send_changed(stamp, world),
            Some(Mistake::StepLeftOut) => drop(world.log.next(self.leg, world.now)),
            _ => {}
        }
        Ok(())
    }

    fn send_changed(&mut self, stamp: u64, world: &mut Parts) {
        let Some(batch) = self.given.iter().rfind(|batch| batch.epoch == stamp) else { return };
        for piece in batch.pieces.clone() {
            let newest = world.log.overlay(&piece.range());
            for piece in &newest {
                self.write(piece);
            }
        }
    }
}

/// What a sender sees of the world.
struct Parts<'a> {
    sending: Sending,
    mistake: Option<Mistake>,
    random: &'a mut Random,
    now: Duration,
    log: &'a mut EpochLog,
}

impl World {
    fn new(seed: u64, sending: Sending, mistake: Option<Mistake>, power_cuts: bool) -> Self {
        let mut random = Random::new(seed);
        let now = Duration::from_secs(1);
        let mut log = EpochLog::new(1);
        let legs = 1 + random.below(2) as usize;
        let senders: Vec<_> = (0..legs).map(Sender::new).collect();
        for leg in 0..legs {
            log.follow(leg, 0, now);
        }
        let guest = Guest::new(8 + random.below(10));
        let (end, late_end) = (End::Completion, 0);
        Self { end, sending, mistake, power_cuts, random, now, log, guest, senders, late_end }
    }

    fn parts(&mut self) -> (&mut Vec<Sender>, Parts<'_>) {
        let Self { sending, mistake, random, now, log, .. } = self;
        let parts = Parts { sending: *sending, mistake: *mistake, random, now: *now, log };
        (&mut self.senders, parts)
    }

    fn run(mut self) -> Found {
        // Losses end at some time, so that everything can end.
        for round in 0..3000 {
            self.now += Duration::from_millis(self.random.below(30));
            let leg = self.random.below(self.senders.len() as u64) as usize;
            match self.random.below(100) {
                0..15 if self.guest.left > 0 => self.issue(),
                15..30 if !self.guest.asked.is_empty() => self.complete(),
                30..32 if self.guest.left > 0 => self.log.close_early(self.now),
                32..36 if round < 200 => self.lose(leg)?,
                36..55 => {
                    let (senders, mut parts) = self.parts();
                    senders[leg].begin(&mut parts);
                    senders[leg].go_on(&mut parts);
                }
                55..57 => self.land_late(leg),
                _ => self.carry_out(leg, round >= 200)?,
            }
            self.look()?;
            if self.guest.left == 0 && self.guest.asked.is_empty() && self.log.held_bytes() == 0 {
                return self.look_at_end();
            }
        }
        Err("it does not end".to_owned())
    }

    fn issue(&mut self) {
        let asked = self.guest.issue(self.now, &mut self.random, &self.log);
        let Some(block) = asked.block else {
            if self.end == End::Issue {
                self.log.close(self.now, asked.covered_epoch);
            }
            return;
        };
        let content = Content::Data(Bytes::from(vec![asked.value as u8; BLOCK_BYTES as usize]));
        self.senders.iter_mut().for_each(|sender| sender.bits[block] = true);
        let epoch = self.log.write(self.now, block as u64 * BLOCK_BYTES, &content, &[]);
        let last = self.guest.asked.len() - 1;
        self.guest.asked[last].covered_epoch = epoch;
        if self.mistake == Some(Mistake::EndAfterTold) {
            self.log.close(self.now, self.late_end);
        }
    }

    fn complete(&mut self) {
        let at = self.random.below(self.guest.asked.len() as u64) as usize;
        let asked = &self.guest.asked[at];
        let ends = match asked.block {
            Some(_) => asked.forced && self.mistake != Some(Mistake::ForcedEndsNothing),
            None => self.end == End::Completion,
        };
        let ends = ends && self.mistake != Some(Mistake::EndAfterTold);
        self.late_end = self.late_end.max(asked.covered_epoch);
        let is_early = self.log.covered() != asked.covered_epoch;
        if ends && !(is_early && self.mistake == Some(Mistake::EarlyEndsStayEarly)) {
            self.log.close(self.now, asked.covered_epoch);
        }
        self.guest.complete(at, self.now);
    }

    /// A leg carries out a command, and answers it unless the answer is lost.
    fn carry_out(&mut self, leg: usize, all_answers_come: bool) -> Found {
        let (senders, mut parts) = self.parts();
        let sender = &mut senders[leg];
        match sender.target.step(parts.random) {
            Some(command) if all_answers_come || parts.random.percent(85) => {
                sender.answered(command.id, &mut parts);
            }
            Some(_) => {}
            // Nothing is under way, and yet something is not answered: that is noticed some time.
            None if !sender.unanswered.is_empty() => sender.reconnect(&mut parts)?,
            None => {}
        }
        Ok(())
    }

    fn lose(&mut self, leg: usize) -> Found {
        for _ in 0..self.random.below(6) {
            self.senders[leg].target.step(&mut self.random);
            self.look()?;
        }
        if self.power_cuts && self.random.percent(40) {
            let target = &mut self.senders[leg].target;
            target.power_cut(&mut self.random);
            self.look()?;
        }
        let (senders, mut parts) = self.parts();
        senders[leg].reconnect(&mut parts)
    }

    fn land_late(&mut self, leg: usize) {
        let late = std::mem::take(&mut self.senders[leg].late);
        late.into_iter().for_each(|command| self.senders[leg].target.take(command));
    }

    fn look(&mut self) -> Found {
        for sender in &self.senders {
            let backlog = self.log.backlog(sender.leg, self.now).unwrap_or_default();
            let since = self.now - backlog.age;
            let image = sender.target.image();
            if !self.guest.is_legal(&image, since) {
                return Err("no image of a moment".to_owned());
            }
            for _ in 0..3 * u64::from(self.power_cuts) {
                let image = sender.target.image_after_cut(&mut self.random);
                if !self.guest.is_legal(&image, since) {
                    return Err("no image of a moment after a power cut".to_owned());
                }
            }
            for block in (0..BLOCKS).filter(|block| !sender.bits[*block]) {
                if sender.target.versions(block) != [self.guest.issued[block]] {
                    return Err("a clear bit of a block that differs".to_owned());
                }
            }
        }
        self.look_at_overlay()
    }

    /// What is not the newest content at a leg can be read from the log.
    fn look_at_overlay(&self) -> Found {
        for block in 0..BLOCKS {
            let start = block as u64 * BLOCK_BYTES;
            for piece in self.log.overlay(&(start..start + BLOCK_BYTES)) {
                let Content::Data(data) = piece.content else { return Err("zeroes".to_owned()) };
                if u64::from(data[0]) != self.guest.issued[block] {
                    return Err("an old overlay".to_owned());
                }
            }
        }
        Ok(())
    }

    fn look_at_end(&self) -> Found {
        for sender in &self.senders {
            if sender.target.image() != self.guest.issued {
                return Err("the end differs".to_owned());
            }
            if sender.bits.contains(&true) {
                return Err("bits are left".to_owned());
            }
        }
        Ok(())
    }
}

/// Runs the seeds. Returns how many found something, and the first of them.
fn run(sending: Sending, mistake: Option<Mistake>, cuts: bool) -> (usize, Option<(u64, String)>) {
    let outcome = |seed| World::new(seed, sending, mistake, cuts).run().err().map(|e| (seed, e));
    let found: Vec<_> = (0..SEEDS).filter_map(outcome).collect();
    println!("{sending:?} {mistake:?}: {} of {SEEDS}, {:?}", found.len(), found.first());
    (found.len(), found.into_iter().next())
}

const STREAM: Sending = Sending::Ordered { forced_stamps: true };

#[test]
fn steps_that_are_waited_for_keep_a_legal_image() {
    assert_eq!(run(Sending::Waited, None, true), (0, None));
}

#[test]
fn steps_behind_barriers_keep_a_legal_image_with_forced_stamps_or_without() {
    assert_eq!(run(STREAM, None, true), (0, None));
    assert_eq!(run(Sending::Ordered { forced_stamps: false }, None, true), (0, None));
}

/// What a flush covers was complete before its issue, so an end at any moment between its issue and
/// its completion does.
#[test]
fn an_end_at_the_issue_of_a_flush_does_as_well() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, STREAM, None, true);
        world.end = End::Issue;
        assert_eq!(world.run(), Ok(()), "seed {seed}");
    }
}

#[test]
fn every_mistake_in_waited_sending_is_found() {
    use Mistake::*;
    let mistakes = [
        (EndAfterTold, 260),
        (ForcedEndsNothing, 240),
        (EarlyEndsStayEarly, 10),
        (NoBarrier, 820),
        (NoFlush, 1480),
        (StampBeforeBarrier, 300),
        (FoldAcrossEnds, 280),
        (ChangedContent, 660),
        (StepLeftOut, 1080),
        (LateWrites, 60),
        (StampedWhenWritten, 50),
        (BitsOfLaterWrites, 800),
    ];
    for (mistake, at_least) in mistakes {
        assert!(run(Sending::Waited, Some(mistake), true).0 >= at_least, "{mistake:?}");
    }
}

#[test]
fn every_mistake_in_ordered_sending_is_found() {
    use Mistake::*;
    let mistakes = [
        (EndAfterTold, 180),
        (ForcedEndsNothing, 200),
        (EarlyEndsStayEarly, 6),
        (NoBarrier, 1050),
        (NoFlush, 1500),
        (UnansweredAgain, 580),
        (StampBeforeBarrier, 290),
        (FoldAcrossEnds, 220),
        (ChangedContent, 720),
        (StepLeftOut, 1040),
        (LateWrites, 100),
        (BitsOfLaterWrites, 950),
    ];
    for (mistake, at_least) in mistakes {
        assert!(run(STREAM, Some(mistake), true).0 >= at_least, "{mistake:?}");
    }
}

#[test]
fn what_was_not_answered_sent_again_is_found_without_power_cuts() {
    assert!(run(STREAM, Some(Mistake::UnansweredAgain), false).0 >= 550);
}
