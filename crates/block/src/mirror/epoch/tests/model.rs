//! The epoch log against a model that keeps every write of every sector for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use super::super::*;
use super::Random;

const SECTOR: u64 = 512;
const SECTORS: u64 = 40;
const PER_BLOCK: u64 = BLOCK_BYTES / SECTOR;
const BLOCKS: u64 = SECTORS / PER_BLOCK;
const LEG_COUNT: usize = 2;

/// A sector as one write left it.
#[derive(Clone, Copy, Debug)]
struct Version {
    sector: u64,
    /// None for zeroes.
    value: Option<u8>,
    epoch: u64,
    legs: [bool; LEG_COUNT],
    /// Legs that have got it by a copy.
    copied: [bool; LEG_COUNT],
}

impl Version {
    fn is_for_some_leg(&self) -> bool {
        self.legs != [false; LEG_COUNT]
    }
}

#[derive(Clone, Copy, Debug)]
struct NaiveLeg {
    stamp: u64,
    stable: u64,
    sent: u64,
}

/// Every write, and where every leg stands.
#[derive(Default)]
struct Naive {
    versions: Vec<Version>,
    open: u64,
    /// Epochs that were closed, and those on whose end something depends.
    ended: BTreeSet<u64>,
    hard: BTreeSet<u64>,
    hard_through: u64,
    legs: [Option<NaiveLeg>; LEG_COUNT],
    /// The bitmap of each leg: blocks that may differ there.
    bits: [BTreeSet<u64>; LEG_COUNT],
}

impl Naive {
    fn is_open_empty(&self) -> bool {
        !self.versions.iter().any(|v| v.epoch == self.open && v.is_for_some_leg())
    }

    fn close_open(&mut self, hard: bool) {
        if !self.is_open_empty() {
            self.ended.insert(self.open);
            if hard {
                self.hard.insert(self.open);
            }
            self.open += 1;
        }
    }

    /// Steps over epochs that hold nothing for the leg.
    fn settle(&mut self) {
        for leg in 0..LEG_COUNT {
            let Some(mut at) = self.legs[leg] else { continue };
            for epoch in self.ended.range(at.stable + 1..) {
                if self.versions.iter().any(|v| v.epoch == *epoch && v.legs[leg]) {
                    break;
                }
                at.stable = *epoch;
                at.sent = at.sent.max(at.stable);
            }
            self.legs[leg] = Some(at);
        }
        let following = self.legs.iter().flatten();
        match following.map(|leg| leg.stable).min() {
            Some(stable) => {
                let newest: BTreeMap<u64, u64> =
                    self.versions.iter().map(|v| (v.sector, v.epoch)).collect();
                self.versions.retain(|v| v.epoch > stable || newest[&v.sector] == v.epoch);
            }
            None => {
                let drops = !self.is_open_empty();
                self.open += u64::from(drops);
                self.versions.clear();
            }
        }
    }

    fn waits(&self, leg: usize, block: u64) -> bool {
        self.legs[leg].is_some_and(|at| {
            let mut of_block = self.versions.iter().filter(|v| v.sector / PER_BLOCK == block);
            of_block.any(|v| v.legs[leg] && v.epoch > at.stable)
        })
    }

    fn write(&mut self, sectors: Range<u64>, value: Option<u8>) {
        let mut added = Vec::new();
        for sector in sectors {
            let block = sector / PER_BLOCK;
            let gets = |leg: usize| {
                let lacks = self.bits[leg].contains(&block) && !self.waits(leg, block);
                self.legs[leg].is_some() && !lacks
            };
            let (epoch, copied) = (self.open, [false; LEG_COUNT]);
            added.push(Version { sector, value, epoch, legs: [gets(0), gets(1)], copied });
        }
        for version in added {
            for bits in &mut self.bits {
                bits.insert(version.sector / PER_BLOCK);
            }
            self.versions.push(version);
        }
        if self.legs.iter().all(Option::is_none) {
            self.versions.clear();
        }
    }

    fn close(&mut self, covered: u64) {
        if covered <= self.hard_through {
            return;
        }
        if self.open <= covered {
            self.close_open(true);
        } else {
            self.hard.extend(self.ended.last());
        }
        self.hard_through = self.open - 1;
    }

    /// The end of the next step and what every sector has in it.
    fn next(&mut self, leg: usize) -> Option<(u64, Vec<Option<Option<u8>>>)> {
        let at = self.legs[leg].as_mut()?;
        let mut end = None;
        let mut image = vec![None; SECTORS as usize];
        for epoch in self.ended.range(at.sent + 1..) {
            for v in self.versions.iter().filter(|v| v.epoch == *epoch && v.legs[leg]) {
                image[v.sector as usize] = Some(v.value);
            }
            end = Some(*epoch);
            if self.hard.contains(epoch) && image.iter().any(Option::is_some) {
                break;
            }
        }
        at.sent = end.unwrap_or(at.sent);
        image.iter().any(Option::is_some).then_some((end?, image))
    }

    /// Blocks that a stamp makes equal.
    fn stamped(&mut self, leg: usize, epoch: u64) -> BTreeSet<u64> {
        // What every leg is past was left out only where a leg lacked it, and came by a copy before
        // anything else of its block was sent.
        let least = self.legs.iter().flatten().map(|leg| leg.stable).min().unwrap_or_default();
        let Some(at) = &mut self.legs[leg] else { return BTreeSet::new() };
        let before = at.stable;
        at.stamp = at.stamp.max(epoch);
        at.stable = at.stable.max(epoch);
        let reached = |v: &&Version| v.legs[leg] && v.epoch > before && v.epoch <= epoch;
        let written = self.versions.iter().filter(reached).map(|v| v.sector / PER_BLOCK);
        let is_clean = |block: &u64| {
            let of_block = (block * PER_BLOCK..(block + 1) * PER_BLOCK)
                .filter_map(|sector| self.versions.iter().rfind(|v| v.sector == sector));
            let is_there = |v: &Version| v.legs[leg] || v.copied[leg] || v.epoch <= least;
            of_block.into_iter().all(|v| v.epoch <= epoch && is_there(v))
        };
        written.filter(is_clean).collect()
    }
}

struct Pair {
    log: EpochLog,
    naive: Naive,
    random: Random,
    now: Duration,
    /// What flushes under way cover.
    flushes: Vec<u64>,
}

fn block_set(ranges: Vec<Range<u64>>) -> BTreeSet<u64> {
    ranges.into_iter().flat_map(|r| r.start / BLOCK_BYTES..r.end / BLOCK_BYTES).collect()
}

impl Pair {
    fn new(seed: u64) -> Self {
        let naive = Naive { open: 1, ..Naive::default() };
        let random = Random::new(seed);
        let now = Duration::from_secs(1);
        Self { log: EpochLog::new(1), naive, random, now, flushes: Vec::new() }
    }

    fn step(&mut self) {
        let leg = self.random.below(LEG_COUNT as u64) as usize;
        match self.random.below(20) {
            0..8 => self.write(),
            8 => self.flushes.push(self.log.covered()),
            9 | 10 => self.end_flush(),
            11 => {
                self.log.close_early(self.now);
                self.naive.close_open(false);
            }
            12..15 => self.next(leg),
            15..17 => self.stamp(leg),
            17 => self.connect(leg),
            18 => self.copy(leg),
            _ => self.now += Duration::from_millis(self.random.below(60)),
        }
        self.naive.settle();
        self.compare();
    }

    fn write(&mut self) {
        let start = self.random.below(SECTORS);
        let end = (start + 1 + self.random.below(12)).min(SECTORS);
        let len = (end - start) * SECTOR;
        let value = (!self.random.percent(20)).then(|| 1 + self.random.below(250) as u8);
        let content = match value {
            Some(value) => Content::Data(Bytes::from(vec![value; len as usize])),
            None => Content::Zero(len),
        };
        let lacking = (0..LEG_COUNT).flat_map(|leg| {
            let bits = self.naive.bits[leg].iter();
            bits.map(move |block| (leg, block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES))
        });
        let lacking: Vec<_> = lacking.collect();
        let epoch = self.log.write(self.now, start * SECTOR, &content, &lacking);
        assert_eq!(epoch, self.naive.open);
        self.naive.write(start..end, value);
        if self.random.percent(15) {
            self.flushes.push(epoch); // forced
        }
    }

    fn end_flush(&mut self) {
        if !self.flushes.is_empty() {
            let at = self.random.below(self.flushes.len() as u64) as usize;
            let covered = self.flushes.swap_remove(at);
            self.log.close(self.now, covered);
            self.naive.close(covered);
        }
    }

    fn next(&mut self, leg: usize) {
        let last = self.naive.ended.last().copied();
        let is_idle =
            self.naive.legs[leg].is_some_and(|at| last.is_none_or(|last| last <= at.sent));
        if is_idle && self.log.due().is_some_and(|due| due <= self.now) {
            self.naive.close_open(false);
            self.naive.settle();
        }
        let batch = self.log.next(leg, self.now);
        let naive = self.naive.next(leg);
        let told = batch.map(|batch| {
            let mut image = vec![None; SECTORS as usize];
            let epoch = batch.epoch;
            for piece in batch.into_writes(8 * SECTOR, 16 * SECTOR) {
                paint(&mut image, &piece);
            }
            (epoch, image)
        });
        assert_eq!(told, naive);
    }

    fn stamp(&mut self, leg: usize) {
        let Some(at) = self.naive.legs[leg] else { return };
        let epoch = at.stable + self.random.below(at.sent + 1 - at.stable);
        let naive = self.naive.stamped(leg, epoch);
        self.naive.bits[leg].retain(|block| !naive.contains(block));
        if self.random.percent(70) {
            assert_eq!(block_set(self.log.stamped(leg, epoch)), naive);
        } else {
            // After a loss: the stamp that is read may be later than the one that was known.
            let Resume::From(clean) = self.log.resume(leg, epoch.max(at.stamp)) else {
                panic!("{:?}", self.log.resume(leg, epoch))
            };
            assert_eq!(block_set(clean), naive);
            if let Some(at) = &mut self.naive.legs[leg] {
                at.sent = at.stable;
            }
        }
    }

    fn connect(&mut self, leg: usize) {
        if self.naive.legs[leg].is_some() {
            if self.random.percent(20) {
                let waits = |block: &u64| self.naive.waits(leg, *block);
                let waiting: BTreeSet<u64> = (0..BLOCKS).filter(waits).collect();
                self.naive.legs[leg] = None;
                assert_eq!(block_set(self.log.give_up(leg)), waiting);
            }
            return;
        }
        let stamp = self.random.below(self.naive.open + 2);
        self.naive.close_open(false);
        self.naive.settle();
        self.naive.open = self.naive.open.max(stamp + 1);
        let base = self.naive.open - 1;
        self.naive.legs[leg] = Some(NaiveLeg { stamp, stable: base, sent: base });
        assert_eq!(self.log.follow(leg, stamp, self.now), self.naive.open);
    }

    /// A copy brings a block to a leg, or somebody finds that one differs.
    fn copy(&mut self, leg: usize) {
        let block = self.random.below(BLOCKS);
        if self.naive.waits(leg, block) {
            return;
        }
        let bytes = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
        let mut of_block = self.naive.versions.iter_mut().filter(|v| v.sector / PER_BLOCK == block);
        if self.naive.bits[leg].remove(&block) {
            of_block.for_each(|v| v.copied[leg] = true);
            self.log.copied(leg, &bytes);
        } else if !of_block.any(|v| v.copied[leg]) {
            self.naive.bits[leg].insert(block);
        }
    }

    fn compare(&mut self) {
        let least = self.naive.legs.iter().flatten().map(|at| at.stable).min();
        let mut newest = vec![None; SECTORS as usize];
        for v in &self.naive.versions {
            let is_held = v.epoch > least.unwrap_or(u64::MAX) && v.is_for_some_leg();
            newest[v.sector as usize] = is_held.then_some(v.value);
        }
        let mut image = vec![None; SECTORS as usize];
        for piece in self.log.overlay(&(0..SECTORS * SECTOR)) {
            paint(&mut image, &piece);
        }
        assert_eq!(image, newest);
        self.compare_bytes(least.unwrap_or(u64::MAX));
    }

    fn compare_bytes(&self, least: u64) {
        let held = self.naive.held(least);
        check_bytes("held", self.log.held_bytes(), held);
        for leg in 0..LEG_COUNT {
            let backlog = self.log.backlog(leg, self.now);
            assert_eq!(backlog.is_some(), self.naive.legs[leg].is_some());
            if let (Some(backlog), Some(at)) = (backlog, self.naive.legs[leg]) {
                check_bytes("backlog", backlog.bytes, self.naive.held(at.stable));
                let waits = (0..BLOCKS).any(|block| self.naive.waits(leg, block));
                assert_eq!(backlog.epochs > 0, waits, "{backlog:?}");
            }
        }
    }
}

impl Naive {
    /// Sectors with data and sectors in all, in epochs behind `stable`, as folded.
    fn held(&self, stable: u64) -> (u64, u64) {
        let epochs: BTreeSet<u64> = self.versions.iter().map(|v| v.epoch).collect();
        let (mut data, mut all) = (0, 0);
        for epoch in epochs.into_iter().filter(|epoch| *epoch > stable) {
            for sector in 0..SECTORS {
                let mut of_epoch =
                    self.versions.iter().filter(|v| v.epoch == epoch && v.is_for_some_leg());
                if let Some(last) = of_epoch.rfind(|v| v.sector == sector) {
                    data += u64::from(last.value.is_some());
                    all += 1;
                }
            }
        }
        (data, all)
    }
}

/// The data, and something for each piece.
fn check_bytes(what: &str, bytes: u64, (data, all): (u64, u64)) {
    let overhead = bytes.checked_sub(data * SECTOR);
    let pieces = overhead.map(|overhead| overhead / PIECE_OVERHEAD_BYTES);
    assert!(
        pieces.is_some_and(|pieces| pieces <= all && (pieces > 0) == (all > 0)),
        "{what}: {bytes} bytes for {data} sectors of data, {all} in all"
    );
}

fn paint(image: &mut [Option<Option<u8>>], piece: &Piece) {
    for sector in piece.offset / SECTOR..piece.range().end / SECTOR {
        let at = ((sector * SECTOR) - piece.offset) as usize;
        let value = match &piece.content {
            Content::Data(data) => {
                assert!(data[at..at + 512].iter().all(|byte| *byte == data[at]));
                Some(data[at])
            }
            Content::Zero(_) => None,
        };
        image[sector as usize] = Some(value);
    }
}

#[test]
fn the_log_does_as_the_model() {
    for seed in 0..1500 {
        let outcome = std::panic::catch_unwind(|| {
            let mut pair = Pair::new(seed);
            (0..120).for_each(|_| pair.step());
        });
        assert!(outcome.is_ok(), "seed {seed}");
    }
}
