//! What a disk holds and what a power cut leaves of it. No time, no futures.
//!
//! A write that was carried out is *visible*. It is *stable* after a flush that was asked for after
//! its answer, or by its own FUA. A power cut leaves of each sector any content that it had since it
//! was last stable, and of what was under way any part.

mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use block::BlockError;

use super::super::content::Content;
use super::super::sabotage::Lie;
use crate::rng::Rng;

/// What is asked of a disk. Ranges are in sectors.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Read(Range<u64>),
    Write {
        first: u64,
        contents: Arc<[Content]>,
        fua: bool,
    },
    Zero {
        range: Range<u64>,
        fua: bool,
    },
    Flush,
    /// A flush that is a barrier (SAM-5 §8.2, ORDERED).
    Barrier,
}

impl Work {
    /// In a few words, for the story of a run.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Read(range) => format!("read {range:?}"),
            Self::Flush => "flush".into(),
            Self::Barrier => "barrier".into(),
            Self::Zero { range, fua } => format!("zero {range:?} fua {fua}"),
            Self::Write { first, contents, fua } => {
                let end = first + contents.len() as u64;
                let first_content = contents.first().map(|content| match content {
                    Content::Raw(_) => "metadata".into(),
                    other => format!("{other:?}"),
                });
                format!("write {first}..{end} {first_content:?} fua {fua}")
            }
        }
    }
}

/// What it says.
pub(crate) type Answer = Result<Vec<Content>, BlockError>;

/// Faults, in thousandths of the operations of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) read: u64,
    pub(crate) write: u64,
    pub(crate) flush: u64,
}

struct Operation {
    work: Work,
    /// The session it came in.
    session: u64,
    /// For a flush: what had not been answered when it was asked for.
    uncovered: BTreeSet<u64>,
}

struct Sector {
    stable: Content,
    /// By whom, oldest first.
    dirty: Vec<(u64, Content)>,
}

impl Sector {
    fn visible(&self) -> &Content {
        self.dirty.last().map_or(&self.stable, |(_, content)| content)
    }
}

/// A disk's content.
pub(crate) struct Store {
    sectors: BTreeMap<u64, Sector>,
    next: u64,
    flying: BTreeMap<u64, Operation>,
    unanswered: BTreeSet<u64>,
    rng: Rng,
    pub(crate) faults: Faults,
    /// No space for anything new.
    pub(crate) full: bool,
    /// What it does wrong.
    lie: Option<Lie>,
    /// How often that was done.
    pub(crate) lied: u64,
    /// What was stable when it began to.
    before: BTreeMap<u64, Content>,
    /// Something that an image depends on has changed.
    touched: bool,
    order: order::Order,
    /// Sectors where stamps are.
    pub(crate) stamps: Range<u64>,
    /// Writes carried out, metadata and all.
    pub(crate) writes: u64,
}

impl Store {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            sectors: BTreeMap::new(),
            next: 1,
            flying: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            rng,
            faults: Faults::default(),
            full: false,
            lie: None,
            lied: 0,
            before: BTreeMap::new(),
            touched: true,
            order: order::Order::default(),
            stamps: 0..0,
            writes: 0,
        }
    }

    /// It does this wrong from now on.
    pub(crate) fn set_lie(&mut self, lie: Option<Lie>) {
        self.lie = lie;
        self.before = self.snapshot();
    }

    /// An operation arrives.
    pub(crate) fn begin(&mut self, session: u64, work: Work) -> u64 {
        let id = self.next;
        self.next += 1;
        let uncovered = match work {
            Work::Flush => self.unanswered.clone(),
            Work::Barrier if self.lie == Some(Lie::BarrierIsSimple) => self.unanswered.clone(),
            _ => BTreeSet::new(),
        };
        self.touched |= matches!(work, Work::Write { .. } | Work::Zero { .. });
        self.note_begun(session, &work);
        self.unanswered.insert(id);
        self.flying.insert(id, Operation { work, session, uncovered });
        id
    }

    /// It is carried out, unless it is gone, or has to wait for a barrier.
    pub(crate) fn perform(&mut self, id: u64) -> Option<Answer> {
        if !self.may_run(id) {
            self.ripens(id);
            return None;
        }
        self.lied += u64::from(self.overtakes(id));
        let operation = self.flying.remove(&id)?;
        if self.is_refused(id, operation.session) {
            return Some(Err(BlockError::Unreachable("simulated: behind a failure".into())));
        }
        let answer = self.carry_out(id, &operation);
        self.note_answer(&operation, &answer);
        Some(answer)
    }

    fn carry_out(&mut self, id: u64, operation: &Operation) -> Answer {
        let faults = self.faults;
        let medium = || Err(BlockError::Medium(io::Error::other("simulated EIO")));
        match &operation.work {
            Work::Read(_) if self.rng.below(1000) < faults.read => medium(),
            Work::Read(range) if self.lie == Some(Lie::ReadsStale) => {
                self.lied += 1;
                Ok(range.clone().filter_map(|at| self.possible(at).into_iter().next()).collect())
            }
            Work::Read(range) => Ok(range.clone().map(|at| self.visible(at)).collect()),
            Work::Flush | Work::Barrier if self.rng.below(1000) < faults.flush => medium(),
            Work::Barrier if self.lie == Some(Lie::BarrierOnlyOrders) => {
                self.lied += 1;
                Ok(Vec::new())
            }
            Work::Flush | Work::Barrier => {
                self.flush(id, &operation.uncovered);
                Ok(Vec::new())
            }
            Work::Write { first, contents, fua } => {
                let pieces = contents.iter().zip(*first..).map(|(c, at)| (at, c.clone())).collect();
                self.write(id, pieces, *fua)
            }
            Work::Zero { range, fua } => {
                let known: Vec<u64> =
                    self.sectors.range(range.clone()).map(|(at, _)| *at).collect();
                self.write(id, known.into_iter().map(|at| (at, Content::Zero)).collect(), *fua)
            }
        }
    }

    fn write(&mut self, id: u64, pieces: Vec<(u64, Content)>, fua: bool) -> Answer {
        self.writes += 1;
        let failed = match self.full {
            true => Some(BlockError::NoSpace),
            false => (self.rng.below(1000) < self.faults.write)
                .then(|| BlockError::Medium(io::Error::other("simulated EIO"))),
        };
        let at = pieces.first().map_or(0, |(at, _)| *at);
        let lost = match self.lie {
            Some(Lie::LosesWrites) => self.rng.below(20) == 0,
            Some(Lie::LosesSome { first, end }) => {
                (first..end).contains(&at) && self.rng.below(3) == 0
            }
            _ => false,
        };
        if lost {
            self.lied += 1;
            return Ok(Vec::new());
        }
        for (at, content) in pieces {
            if failed.is_none() || self.rng.coin() {
                self.land(id, at, content);
            }
        }
        if let Some(error) = failed {
            if self.lie != Some(Lie::HidesErrors) {
                return Err(error);
            }
            self.lied += 1;
            return Ok(Vec::new());
        }
        match self.lie {
            Some(Lie::IgnoresFua | Lie::NeverStable) => self.lied += u64::from(fua),
            _ if fua => self.settle(|by| by == id),
            _ => {}
        }
        Ok(Vec::new())
    }

    fn land(&mut self, id: u64, at: u64, content: Content) {
        self.touched = true;
        let new = || Sector { stable: Content::Zero, dirty: Vec::new() };
        if content == Content::Zero && !self.sectors.contains_key(&at) {
            return; // as it was
        }
        self.sectors.entry(at).or_insert_with(new).dirty.push((id, content));
    }

    fn flush(&mut self, id: u64, uncovered: &BTreeSet<u64>) {
        let spared = match self.lie {
            Some(Lie::IgnoresFlush | Lie::NeverStable) => {
                self.lied += 1;
                return;
            }
            Some(Lie::FlushMissesOne) => {
                self.lied += 1;
                let dirty = self.sectors.values().filter_map(|sector| sector.dirty.last());
                dirty.map(|(by, _)| *by).max()
            }
            _ => None,
        };
        let luck = self.rng.coin();
        self.settle(|by| Some(by) != spared && by < id && (luck || !uncovered.contains(&by)));
    }

    /// The newest of what `covered` allows becomes stable in each sector.
    fn settle(&mut self, covered: impl Fn(u64) -> bool) {
        for sector in self.sectors.values_mut() {
            let Some(last) = sector.dirty.iter().rposition(|(by, _)| covered(*by)) else {
                continue;
            };
            if let Some((_, content)) = sector.dirty.drain(..=last).next_back() {
                sector.stable = content;
            }
        }
    }

    /// Whoever asked has been answered.
    pub(crate) fn answered(&mut self, id: u64) {
        self.unanswered.remove(&id);
    }

    /// A session is lost. What it asked for may still be carried out, now or later.
    pub(crate) fn lose_session(&mut self) {
        if self.has_barriers() {
            return self.lose_in_order();
        }
        let flying: Vec<u64> = self.flying.keys().copied().collect();
        for id in flying {
            match self.rng.below(3) {
                0 => drop(self.flying.remove(&id)),
                1 => drop(self.perform(id)),
                _ => {}
            }
        }
    }

    /// What earlier sessions than `session` have asked for ends here, done or not.
    pub(crate) fn quiesce(&mut self, session: u64) {
        if self.lie == Some(Lie::DoesNotQuiesce) {
            let old = |operation: &&Operation| operation.session < session;
            self.lied += self.flying.values().filter(old).count() as u64;
            return;
        }
        if self.has_barriers() {
            let some = self.rng.below(self.flying.len() as u64 + 1);
            self.run_some(some);
            self.flying.retain(|_, operation| operation.session >= session);
        }
        let old = self.flying.iter().filter(|(_, operation)| operation.session < session);
        for id in old.map(|(id, _)| *id).collect::<Vec<_>>() {
            match self.rng.coin() {
                true => drop(self.perform(id)),
                false => drop(self.flying.remove(&id)),
            }
        }
        self.unanswered.retain(|id| self.flying.contains_key(id));
    }

    /// The process that asked ends: what is under way is done in any part.
    pub(crate) fn interrupt(&mut self) {
        if self.has_barriers() {
            let some = self.rng.below(self.flying.len() as u64 + 1);
            self.run_some(some);
        }
        let landing: Vec<u64> =
            self.flying.keys().copied().filter(|id| self.may_land(*id)).collect();
        self.flying.retain(|id, _| landing.contains(id));
        for (id, operation) in std::mem::take(&mut self.flying) {
            let luck = self.rng.below(3); // none, all, some
            let mut lands = {
                let mut rng = self.rng.fork();
                move || luck == 1 || luck == 2 && rng.coin()
            };
            match operation.work {
                Work::Read(_) => {}
                Work::Barrier if self.lie == Some(Lie::BarrierOnlyOrders) => {}
                Work::Flush | Work::Barrier => {
                    if lands() {
                        self.flush(id, &operation.uncovered);
                    }
                }
                Work::Write { first, contents, .. } => {
                    for (content, at) in contents.iter().zip(first..) {
                        if lands() {
                            self.land(id, at, content.clone());
                        }
                    }
                }
                Work::Zero { range, .. } => {
                    let known: Vec<u64> = self.sectors.range(range).map(|(at, _)| *at).collect();
                    for at in known {
                        if lands() {
                            self.land(id, at, Content::Zero);
                        }
                    }
                }
            }
        }
        self.unanswered.clear();
    }

    /// The power fails.
    pub(crate) fn cut(&mut self) {
        self.interrupt();
        if self.lie == Some(Lie::GoesBack) {
            self.lied += 1;
            let before = self.before.clone();
            return self.put_back(before);
        }
        // Now and then all is lost, which is the most; or nothing; or each write as a whole, which
        // leaves checksums good; or each sector by itself.
        let luck = self.rng.below(5);
        let mut kept_writes: BTreeMap<u64, bool> = BTreeMap::new();
        for sector in self.sectors.values_mut() {
            let states = sector.dirty.len();
            let kept = match luck {
                0 => 0,
                1 => states,
                2 => self.rng.below(states as u64 + 1) as usize,
                _ => {
                    let mut keep = |by: u64| {
                        let rng = &mut self.rng;
                        *kept_writes.entry(by).or_insert_with(|| rng.coin())
                    };
                    sector.dirty.iter().rposition(|(by, _)| keep(*by)).map_or(0, |last| last + 1)
                }
            };
            let kept = sector.dirty.drain(..).take(kept).next_back();
            if let Some((_, content)) = kept {
                sector.stable = content;
            }
        }
        self.touched = true;
    }

    /// What a read sees.
    pub(crate) fn visible(&self, at: u64) -> Content {
        self.sectors.get(&at).map_or(Content::Zero, |sector| sector.visible().clone())
    }

    /// Sectors that ever were written.
    pub(crate) fn known(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.sectors.range(range).map(|(at, _)| *at)
    }

    /// All that a sector may hold if the power fails now.
    pub(crate) fn possible(&self, at: u64) -> Vec<Content> {
        let mut possible = match self.sectors.get(&at) {
            None => vec![Content::Zero],
            Some(sector) => std::iter::once(&sector.stable)
                .chain(sector.dirty.iter().map(|(_, content)| content))
                .cloned()
                .collect(),
        };
        for (id, operation) in &self.flying {
            match &operation.work {
                _ if !self.may_land(*id) => {}
                Work::Write { first, contents, .. } => {
                    let index =
                        at.checked_sub(*first).and_then(|index| usize::try_from(index).ok());
                    possible.extend(index.and_then(|index| contents.get(index)).cloned());
                }
                Work::Zero { range, .. } if range.contains(&at) => possible.push(Content::Zero),
                _ => {}
            }
        }
        possible
    }

    /// Sectors of a range that something under way would write.
    pub(crate) fn flying(&self, range: &Range<u64>) -> Vec<u64> {
        let mut sectors = Vec::new();
        for operation in self.flying.values() {
            if let Work::Write { first, contents, .. } = &operation.work {
                let end = first + contents.len() as u64;
                sectors.extend((*first..end).filter(|at| range.contains(at)));
            }
        }
        sectors
    }

    /// Whether something has changed since the last time this was asked.
    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }

    /// What is there, as it is visible.
    pub(crate) fn snapshot(&self) -> BTreeMap<u64, Content> {
        self.sectors.iter().map(|(at, sector)| (*at, sector.visible().clone())).collect()
    }

    /// Puts an earlier content back.
    pub(crate) fn put_back(&mut self, content: BTreeMap<u64, Content>) {
        self.flying.clear();
        self.unanswered.clear();
        let stable = |(at, stable)| (at, Sector { stable, dirty: Vec::new() });
        self.sectors = content.into_iter().map(stable).collect();
        self.touched = true;
    }
}
