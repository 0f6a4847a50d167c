//! What a disk holds and what a power cut leaves of it. No time, no futures.
//!
//! A write that was carried out is *visible*. It is *stable* after a flush that was asked for after
//! its end, or by its own FUA. It ends with its answer, also when that finds no session any more to
//! be sent in. A power cut leaves of each sector any content that it had since it was last stable,
//! and of what was under way any part.

mod loss;
mod order;
mod reservation;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use block::BlockError;

pub(crate) use self::reservation::Act;
use self::reservation::Reservation;
use super::super::content::Content;
use super::super::sabotage::Lie;
pub(crate) use super::work::{Session, Work};
use crate::rng::Rng;

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
    session: Session,
    /// For a flush: what had not ended when it was asked for.
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
    reservation: Reservation,
    /// It lets those write that are not registered; a mistake.
    pub(crate) ignores_reservation: bool,
    /// How often it did.
    pub(crate) ignored: u64,
    /// Nobody else is to change it.
    belongs_to: Option<u64>,
    /// How often somebody else did.
    pub(crate) trespasses: u64,
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
            reservation: Reservation::default(),
            ignores_reservation: false,
            ignored: 0,
            belongs_to: None,
            trespasses: 0,
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

    /// From now on, who comes on this way alone may change it.
    pub(crate) fn belongs_to(&mut self, way: u64) {
        self.belongs_to = Some(way);
    }

    /// The key that it is reserved under.
    pub(crate) fn holder(&self) -> Option<u64> {
        self.reservation.holder()
    }

    /// An operation arrives.
    pub(crate) fn begin(&mut self, session: Session, work: Work) -> u64 {
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

    fn reads_stale(&self, range: &Range<u64>) -> bool {
        match self.lie {
            Some(Lie::ReadsStale) => true,
            Some(Lie::ReadsSomeStale { end }) => range.end <= end,
            _ => false,
        }
    }

    fn carry_out(&mut self, id: u64, operation: &Operation) -> Answer {
        let faults = self.faults;
        let way = operation.session.way();
        if self.refuses(way, &operation.work) {
            return Err(BlockError::Fenced);
        }
        let medium = || Err(BlockError::Medium(io::Error::other("simulated EIO")));
        match &operation.work {
            Work::Read(_) if self.rng.below(1000) < faults.read => medium(),
            Work::Read(range) if self.reads_stale(range) => {
                self.lied += 1;
                Ok(range.clone().filter_map(|at| self.possible(at).into_iter().next()).collect())
            }
            Work::Read(range) => Ok(self.read(range.clone())),
            Work::Flush | Work::Barrier if self.rng.below(1000) < faults.flush => medium(),
            Work::Barrier if self.lie == Some(Lie::BarrierOnlyOrders) => {
                self.lied += 1;
                Ok(Vec::new())
            }
            Work::Flush | Work::Barrier => {
                self.flush(id, &operation.uncovered);
                Ok(Vec::new())
            }
            Work::Reserve(act) => self.reserve(way, *act),
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

    fn read(&self, range: Range<u64>) -> Vec<Content> {
        let mut contents = vec![Content::Zero; (range.end - range.start) as usize];
        for (at, sector) in self.sectors.range(range.clone()) {
            contents[(at - range.start) as usize] = sector.visible().clone();
        }
        contents
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

    /// It has ended, and whoever asked has been answered if there is a session.
    pub(crate) fn answered(&mut self, id: u64) {
        self.unanswered.remove(&id);
    }

    /// What a read sees.
    pub(crate) fn visible(&self, at: u64) -> Content {
        self.sectors.get(&at).map_or(Content::Zero, |sector| sector.visible().clone())
    }

    /// Sectors that ever were written.
    pub(crate) fn known(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.sectors.range(range).map(|(at, _)| *at)
    }

    /// Whatever happens to the power, these sectors hold what they hold.
    pub(crate) fn settled(&self, range: Range<u64>) -> bool {
        let quiet = self.sectors.range(range.clone()).all(|(_, sector)| sector.dirty.is_empty());
        let meets = |others: &Range<u64>| others.start < range.end && range.start < others.end;
        quiet
            && !self.flying.values().any(|operation| match &operation.work {
                Work::Write { first, contents, .. } => {
                    meets(&(*first..first + contents.len() as u64))
                }
                Work::Zero { range, .. } => meets(range),
                Work::Read(_) | Work::Flush | Work::Barrier | Work::Reserve(_) => false,
            })
    }

    /// All that a sector may hold if the power fails now.
    pub(crate) fn possible(&self, at: u64) -> Vec<Content> {
        let mut possible = match self.sectors.get(&at) {
            None => vec![Content::Zero],
            Some(sector) => {
                let mut possible = Vec::with_capacity(1 + sector.dirty.len());
                possible.push(sector.stable.clone());
                possible.extend(sector.dirty.iter().map(|(_, content)| content.clone()));
                possible
            }
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
