//! The activity log: the extents in which a write may be under way or not yet noted in the bitmaps,
//! and who may begin to write where. Pure: no I/O, no time; [`store`](super::store) does what
//! [`ActivityLog::step`] says.
//!
//! A record holds *all* extents of the log, so that the newest good one is the log, whatever became
//! of the others; a torn one leaves the one before. Many writers wait for one record.
//!
//! A record and a leave may be under way at a time: a leave takes as long as the local device needs
//! to become stable, and a write does not wait for it as long as there is room. Those that leave
//! stand in every record until they have left.
//!
//! An extent leaves when nobody writes there, after the local device was made stable and the
//! bitmaps were written as they stand: what is clear in them is then equal on both sides even if
//! the power is cut here. (Without the first step a leg could have what the local device has lost.)
//! Whoever writes there meanwhile keeps it in the log.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

mod record;

#[cfg(test)]
pub(super) use record::places;

pub use record::{Recovered, encode, recover};

/// Extents in the log at most, each of which is copied after a power cut: as many as a record
/// holds, 1008 MiB.
pub const EXTENTS_MAX: usize = record::EXTENTS_MAX;

/// Extents of one write at most. Longer ones have to be cut: the log has to hold those of many
/// writers at a time.
pub const WRITE_EXTENTS_MAX: u32 = 64;

/// Extents that are entered ahead of a sequential writer, so that it waits for one record in eight.
const AHEAD: u32 = 8;

/// Divides the capacity: so many leave at a time, and are kept free so that few writers have to
/// wait for others to leave.
const SHARE_FREE: usize = 8;

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// It may begin.
    In,
    /// It has to wait until its ticket is let in.
    Wait(Ticket),
    /// It touches more than [`WRITE_EXTENTS_MAX`] extents, or what the log holds.
    TooLong,
}

/// What has to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Idle,
    /// These are let in.
    LetIn(Vec<Ticket>),
    /// This is to be made durable; then [`ActivityLog::recorded`].
    Record {
        /// Its number.
        sequence: u64,
        /// All extents of the log.
        extents: Vec<u32>,
    },
    /// The local device is to be made stable and the bits of these extents are to be made durable;
    /// then [`ActivityLog::left`], or [`ActivityLog::stayed`] if that failed.
    Leave(Vec<u32>),
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// A durable record has it.
    logged: bool,
    /// Writes under way there.
    writers: u32,
    leaving: bool,
    /// When it was touched last; no two have the same.
    used: u64,
}

impl Slot {
    fn may_leave(&self) -> bool {
        self.logged && self.writers == 0
    }
}

/// The log.
#[derive(Debug)]
pub struct ActivityLog {
    /// Extents of the device.
    extents: u32,
    capacity: usize,
    slots: BTreeMap<u32, Slot>,
    touches: u64,
    /// Of the record that was written last or is being written.
    sequence: u64,
    /// A record is being written: nothing is entered meanwhile.
    recording: bool,
    /// Extents are leaving.
    leaving: bool,
    tickets: u64,
    /// First come, first served.
    queue: VecDeque<(Ticket, Range<u32>)>,
    /// Those that the record under way lets in.
    entering: Vec<(Ticket, Range<u32>)>,
    /// The first in the queue waits for writers to end: nobody may begin where they are, or it
    /// might wait for ever.
    starving: bool,
}

impl ActivityLog {
    /// The log of a device of so many extents, as it was found, holding at most `capacity`.
    pub fn new(extents: u32, capacity: usize, recovered: &Recovered) -> Self {
        let mut log = Self {
            extents,
            capacity,
            slots: BTreeMap::new(),
            touches: 0,
            sequence: recovered.sequence,
            recording: false,
            leaving: false,
            tickets: 0,
            queue: VecDeque::new(),
            entering: Vec::new(),
            starving: false,
        };
        for extent in &recovered.extents {
            log.insert(*extent, true);
        }
        log
    }

    /// The extents in it, durable or not.
    pub fn extents(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.keys().copied()
    }

    /// Somebody is about to write to these extents. Ends with [`release`](Self::release) once it
    /// was let in.
    pub fn touch(&mut self, extents: Range<u32>) -> Touch {
        let count = extents.end.saturating_sub(extents.start);
        if count > WRITE_EXTENTS_MAX || count as usize > self.capacity || extents.end > self.extents
        {
            return Touch::TooLong;
        }
        let logged = |extent| self.slots.get(&extent).is_some_and(|slot| slot.logged);
        if !self.starving && extents.clone().all(logged) {
            self.begin(extents);
            return Touch::In;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.queue.push_back((ticket, extents));
        Touch::Wait(ticket)
    }

    /// Whoever has this ticket waits no more. False if it was let in already: then it has to
    /// [`release`](Self::release) what it has.
    pub fn give_up(&mut self, ticket: Ticket) -> bool {
        if let Some(at) = self.queue.iter().position(|(waiting, _)| *waiting == ticket) {
            self.queue.remove(at);
            self.starving &= at != 0;
            return true;
        }
        let Some(at) = self.entering.iter().position(|(entering, _)| *entering == ticket) else {
            return false;
        };
        let (_, extents) = self.entering.remove(at);
        self.release(extents);
        true
    }

    /// A write has ended. True if [`step`](Self::step) may have something to do because of it.
    pub fn release(&mut self, extents: Range<u32>) -> bool {
        for extent in extents {
            if let Some(slot) = self.slots.get_mut(&extent) {
                slot.writers = slot.writers.saturating_sub(1);
            }
        }
        !self.queue.is_empty()
    }

    /// What has to be done now, besides what was said before: one record and one leave at a time.
    pub fn step(&mut self) -> Step {
        if !self.recording {
            if self.let_in() {
                self.recording = true;
                self.sequence += 1;
                let extents = self.slots.keys().copied().collect();
                return Step::Record { sequence: self.sequence, extents };
            }
            if !self.entering.is_empty() {
                return Step::LetIn(self.entered());
            }
        }
        if self.leaving {
            return Step::Idle;
        }
        let blocked = self.queue.front().is_some_and(|(_, extents)| !self.has_room(extents));
        let wanted = blocked || self.free() < self.capacity / SHARE_FREE;
        let victims = if wanted { self.victims() } else { Vec::new() };
        // Whoever the record under way lets in will end.
        self.starving = blocked && victims.is_empty() && !self.recording;
        if victims.is_empty() {
            return Step::Idle;
        }
        for extent in &victims {
            if let Some(slot) = self.slots.get_mut(extent) {
                slot.leaving = true;
            }
        }
        self.leaving = true;
        Step::Leave(victims)
    }

    /// The record is durable. Returns who is let in.
    pub fn recorded(&mut self) -> Vec<Ticket> {
        self.recording = false;
        for slot in self.slots.values_mut() {
            slot.logged = true;
        }
        self.entered()
    }

    /// The bits are durable: the extents are out of the log, but for those where somebody has
    /// begun to write meanwhile.
    pub fn left(&mut self) {
        self.leaving = false;
        self.slots.retain(|_, slot| !slot.leaving);
    }

    /// The bits are not durable: the extents stay. Returns who waits in vain, since nobody may get
    /// in where there is no room; whom a record lets in, it still does.
    pub fn stayed(&mut self) -> Vec<Ticket> {
        self.leaving = false;
        for slot in self.slots.values_mut() {
            slot.leaving = false;
        }
        self.refuse_queue()
    }

    /// Nothing can be recorded any more. Returns who waits in vain.
    pub fn failed(&mut self) -> Vec<Ticket> {
        self.recording = false;
        let mut vain = Vec::new();
        for (ticket, extents) in std::mem::take(&mut self.entering) {
            self.release(extents);
            vain.push(ticket);
        }
        // What stands in a record that may not be there counts for nothing.
        self.slots.retain(|_, slot| slot.logged);
        vain.extend(self.refuse_queue());
        vain
    }

    fn refuse_queue(&mut self) -> Vec<Ticket> {
        self.starving = false;
        std::mem::take(&mut self.queue).into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// Everything leaves at once, since the bitmaps are durable and nobody writes: the number of
    /// the empty record that says so, which is to be made durable. `None` if somebody does write.
    pub fn clear(&mut self) -> Option<u64> {
        let idle = !self.recording && !self.leaving;
        let quiet = idle && self.slots.values().all(Slot::may_leave);
        if !quiet || !self.queue.is_empty() {
            return None;
        }
        self.slots.clear();
        self.sequence += 1;
        Some(self.sequence)
    }

    /// Those of these extents that are not in the log.
    fn missing(&self, extents: &Range<u32>) -> usize {
        extents.clone().filter(|extent| !self.slots.contains_key(extent)).count()
    }

    fn has_room(&self, extents: &Range<u32>) -> bool {
        self.missing(extents) <= self.free()
    }

    fn free(&self) -> usize {
        self.capacity.saturating_sub(self.slots.len())
    }

    /// Lets in from the front of the queue as many as there is room for. True if a record has to
    /// say so first.
    fn let_in(&mut self) -> bool {
        let mut fresh = self.slots.values().any(|slot| !slot.logged);
        while let Some((ticket, extents)) = self.queue.front().cloned() {
            if !self.has_room(&extents) {
                break;
            }
            let missing = self.missing(&extents);
            self.queue.pop_front();
            self.starving = false;
            let follows = extents.start.checked_sub(1);
            let sequential = follows.is_some_and(|before| self.slots.contains_key(&before));
            for extent in extents.clone() {
                if !self.slots.contains_key(&extent) {
                    self.insert(extent, false);
                }
            }
            if missing > 0 && sequential {
                self.insert_ahead(extents.end);
            }
            fresh |= missing > 0;
            self.begin(extents.clone());
            self.entering.push((ticket, extents));
        }
        fresh
    }

    fn insert_ahead(&mut self, from: u32) {
        for extent in from..from.saturating_add(AHEAD).min(self.extents) {
            if self.free() <= self.capacity / SHARE_FREE {
                return;
            }
            if !self.slots.contains_key(&extent) {
                self.insert(extent, false);
            }
        }
    }

    fn insert(&mut self, extent: u32, logged: bool) {
        self.touches += 1;
        self.slots.insert(extent, Slot { logged, used: self.touches, ..Slot::default() });
    }

    /// A write begins: whatever was about to leave stays.
    fn begin(&mut self, extents: Range<u32>) {
        for extent in extents {
            if let Some(slot) = self.slots.get_mut(&extent) {
                self.touches += 1;
                (slot.used, slot.leaving) = (self.touches, false);
                slot.writers += 1;
            }
        }
    }

    fn entered(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.entering).into_iter().map(|(ticket, _)| ticket).collect()
    }

    /// Those not written for the longest time, in ascending order.
    fn victims(&self) -> Vec<u32> {
        let may = self.slots.iter().filter(|(_, slot)| slot.may_leave());
        let mut victims: Vec<(u64, u32)> = may.map(|(extent, slot)| (slot.used, *extent)).collect();
        victims.sort_unstable();
        victims.truncate((self.capacity / SHARE_FREE).max(1));
        let mut victims: Vec<u32> = victims.into_iter().map(|(_, extent)| extent).collect();
        victims.sort_unstable();
        victims
    }
}

#[cfg(test)]
mod tests;
