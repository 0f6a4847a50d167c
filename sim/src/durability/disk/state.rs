//! What the storage holds and what becomes of it: the rules of the cache. No futures, no time.

use std::collections::BTreeMap;
use std::io;
use std::task::Waker;

use block::BlockError;

use super::{Kind, Note, Run, SECTORS, Telling, Value};
use crate::durability::sabotage::Sabotage;
use crate::rng::Rng;

/// All of the storage.
pub(super) struct State {
    pub(super) kind: Kind,
    rng: Rng,
    sabotage: Option<Sabotage>,
    pub(super) sectors: Vec<Sector>,
    pub(super) works: BTreeMap<u64, Work>,
    pub(super) done: BTreeMap<u64, Result<Vec<Value>, BlockError>>,
    pub(super) wakers: BTreeMap<u64, Waker>,
    /// Begun, and not yet given a time to end.
    pub(super) fresh: Vec<u64>,
    pub(super) next: u64,
    /// Completed writes are numbered, so that a flush knows which it covers.
    pub(super) landed: u64,
    /// There is no space: thin provisioning that has run out.
    pub(super) full: bool,
    /// A write-back has failed, and nobody was told.
    pub(super) untold: Option<Failure>,
    /// What the process above remembers of such failures.
    pub(super) remembered: Option<Failure>,
    /// No more faults: the run comes to its end.
    pub(super) calm: bool,
    pub(super) notes: Vec<Note>,
}

pub(super) struct Sector {
    pub(super) stable: Value,
    /// Not yet stable, oldest first.
    dirty: Vec<(u64, Value)>,
    visible: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Work {
    Read(Run),
    Write {
        run: Run,
        value: Vec<Value>,
        fua: bool,
    },
    Trim(Run),
    /// Covers writes up to this number.
    Flush(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Medium,
    NoSpace,
}

impl From<Failure> for BlockError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Medium => Self::Medium(io::Error::other("simulated EIO")),
            Failure::NoSpace => Self::NoSpace,
        }
    }
}

impl State {
    pub(super) fn new(kind: Kind, sabotage: Option<Sabotage>, rng: Rng) -> Self {
        let blank = || Sector { stable: Value(0), dirty: Vec::new(), visible: Value(0) };
        Self {
            kind,
            rng,
            sabotage,
            sectors: (0..SECTORS).map(|_| blank()).collect(),
            works: BTreeMap::new(),
            done: BTreeMap::new(),
            wakers: BTreeMap::new(),
            fresh: Vec::new(),
            next: 0,
            landed: 0,
            full: false,
            untold: None,
            remembered: None,
            calm: false,
            notes: Vec::new(),
        }
    }

    fn wrong(&mut self, percent: u32) -> bool {
        !self.calm && self.rng.percent(percent)
    }

    pub(super) fn perform(&mut self, work: Work) -> Result<Vec<Value>, BlockError> {
        let wrongs = self.kind.wrongs;
        match work {
            Work::Read(run) => {
                if self.wrong(wrongs.read) {
                    self.notes.push("disk: read failed");
                    return Err(Failure::Medium.into());
                }
                Ok(run.sectors().map(|at| self.sectors[at as usize].visible).collect())
            }
            Work::Write { run, value, fua } => self.write(run, &value, fua),
            Work::Trim(run) => {
                for sector in run.sectors() {
                    if self.rng.coin() {
                        self.land(sector, Value(0));
                    }
                }
                Ok(Vec::new())
            }
            Work::Flush(mark) => self.flush(mark),
        }
    }

    fn write(&mut self, run: Run, value: &[Value], fua: bool) -> Result<Vec<Value>, BlockError> {
        let wrongs = self.kind.wrongs;
        let fua = fua && self.sabotage != Some(Sabotage::FuaIgnored);
        let refused = if self.full {
            Some(Failure::NoSpace)
        } else {
            let percent = if fua { wrongs.fua } else { wrongs.write };
            self.wrong(percent).then_some(Failure::Medium)
        };
        if let Some(failure) = refused {
            self.notes.push("disk: write failed");
            self.land_some(run, value);
            // The kernel's one report of an older failure goes to whoever waits for stable data.
            if fua {
                self.told_to_fua();
            }
            return Err(failure.into());
        }
        for (sector, value) in run.sectors().zip(value) {
            self.land(sector, *value);
            if fua {
                let sector = &mut self.sectors[sector as usize];
                sector.stable = *value;
                sector.dirty.clear();
            }
        }
        if fua && (self.told_to_fua() || self.remembered.is_some()) {
            self.notes.push("disk: FUA failed for an older failure");
            return Err(self.remembered.unwrap_or(Failure::Medium).into());
        }
        Ok(Vec::new())
    }

    /// A write with FUA takes the kernel's report of what failed before. True if there was one.
    fn told_to_fua(&mut self) -> bool {
        let once = self.kind.telling == Telling::Once;
        if once && !self.kind.fua_is_told {
            return false;
        }
        let Some(failure) = self.untold.take() else { return false };
        if once {
            self.notes.push("disk: FUA took the only report");
            return true;
        }
        self.remembered = Some(failure);
        true
    }

    fn flush(&mut self, mark: u64) -> Result<Vec<Value>, BlockError> {
        if let Some(failure) = self.remembered {
            return Err(failure.into());
        }
        if self.sabotage == Some(Sabotage::FlushDoesNothing) {
            return Ok(Vec::new());
        }
        let dirty: Vec<u32> = (0..SECTORS)
            .filter(|at| self.sectors[*at as usize].dirty.first().is_some_and(|d| d.0 <= mark))
            .collect();
        let failure = match self.full {
            true if !dirty.is_empty() => Some(Failure::NoSpace),
            _ => self.wrong(self.kind.wrongs.flush).then_some(Failure::Medium),
        };
        let spared = match self.sabotage {
            Some(Sabotage::FlushMissesOne) => dirty.last().copied(),
            _ => None,
        };
        for at in dirty {
            let dropped = failure.is_some() && self.rng.coin();
            if dropped {
                self.notes.push("disk: flush dropped a sector");
            }
            if spared != Some(at) {
                self.clean(at, mark, dropped);
            }
        }
        match failure.or(self.untold.take()) {
            Some(_) if self.sabotage == Some(Sabotage::FlushHidesFailure) => Ok(Vec::new()),
            Some(failure) => {
                if self.kind.telling == Telling::UntilRestart {
                    self.remembered = Some(failure);
                }
                self.notes.push("disk: flush failed");
                Err(failure.into())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Writes of a sector up to `mark` leave the cache, to the medium or to nowhere.
    fn clean(&mut self, at: u32, mark: u64, dropped: bool) {
        let sector = &mut self.sectors[at as usize];
        let covered = sector.dirty.partition_point(|(number, _)| *number <= mark);
        if let (false, Some((_, last))) = (dropped, sector.dirty[..covered].last()) {
            sector.stable = *last;
        }
        sector.dirty.drain(..covered);
    }

    pub(super) fn write_back(&mut self) {
        let fails = match self.full {
            true => Some(Failure::NoSpace),
            false => self.wrong(self.kind.wrongs.write_back).then_some(Failure::Medium),
        };
        let mut dropped_some = false;
        for at in 0..SECTORS {
            if self.sectors[at as usize].dirty.is_empty() || self.rng.coin() {
                continue;
            }
            let dropped = fails.is_some() && self.rng.coin();
            dropped_some |= dropped;
            self.clean(at, u64::MAX, dropped);
        }
        if dropped_some && self.sabotage != Some(Sabotage::WriteBackFailsInSilence) {
            self.notes.push("disk: write-back failed");
            self.untold = fails;
        }
    }

    fn land(&mut self, at: u32, value: Value) {
        self.landed += 1;
        let number = self.landed;
        let sector = &mut self.sectors[at as usize];
        sector.visible = value;
        sector.dirty.push((number, value));
    }

    /// A part of a write lands: what does is any subset of its sectors.
    fn land_some(&mut self, run: Run, value: &[Value]) {
        for (at, value) in run.sectors().zip(value) {
            if self.rng.coin() {
                self.land(at, *value);
            }
        }
    }

    /// What is under way when nobody is left to wait for it.
    pub(super) fn interrupt(&mut self) {
        for work in std::mem::take(&mut self.works).into_values() {
            match work {
                Work::Write { run, value, .. } => {
                    if run.count > 1 {
                        self.notes.push("torn write");
                    }
                    self.land_some(run, &value);
                }
                Work::Flush(mark) => {
                    let some: Vec<u32> = (0..SECTORS).filter(|_| self.rng.coin()).collect();
                    some.into_iter().for_each(|at| self.clean(at, mark, false));
                    self.notes.push("flush interrupted");
                }
                Work::Read(_) | Work::Trim(_) => {}
            }
        }
        self.wakers.clear();
        self.done.clear();
        self.fresh.clear();
    }

    pub(super) fn lose_cache(&mut self) {
        let (mut lost, mut kept) = (false, false);
        // Now and then all of it, which is the most that can be lost.
        let all = self.rng.percent(25);
        for at in 0..self.sectors.len() {
            let states = self.sectors[at].dirty.len() as u64;
            let reached = if all { 0 } else { self.rng.below(states + 1) as usize };
            let sector = &mut self.sectors[at];
            if reached > 0 {
                sector.stable = sector.dirty[reached - 1].1;
            }
            kept |= reached > 0;
            lost |= sector.visible != sector.stable;
            sector.dirty.clear();
            sector.visible = sector.stable;
        }
        if lost {
            self.notes.push("cut: cache lost");
        }
        if lost && kept {
            self.notes.push("cut: a part of the cache survived");
        }
    }
}
