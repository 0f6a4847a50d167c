//! [`Tasks`]: the tasks of a session by their tag.
//!
//! A task is some hundreds of bytes long and is looked up a dozen times between its command and its
//! answer, nearly always several times in a row. So a task is never moved (a tree of tasks moves
//! the neighbours of one that comes or goes, as much as a 4 KiB read copies), and the place that
//! was looked up last is tried first. The memory of tasks is used again: once there is enough for
//! what a session has under way, the allocator is asked for nothing.
//!
//! What is seen of all tasks is in the order of their tags, or depends on no order: never on the
//! hash, so that a run of the simulator stays a function of its seed.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::task::Task;
use crate::ids::Itt;

#[derive(Debug, Default)]
pub(super) struct Tasks {
    places: HashMap<Itt, usize, BuildHasherDefault<TagHasher>>,
    slots: Vec<Option<(Itt, Box<Task>)>>,
    free: Vec<usize>,
    /// Memory of tasks that have ended, to be used again.
    #[allow(clippy::vec_box)] // they come from boxes and go into such, without being copied
    spare: Vec<Box<Task>>,
    /// The place looked up last: it may hold another task by now, or none.
    last: Cell<usize>,
}

impl Tasks {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    fn place(&self, itt: Itt) -> Option<usize> {
        let last = self.last.get();
        if let Some(Some((tag, _))) = self.slots.get(last)
            && *tag == itt
        {
            return Some(last);
        }
        let place = *self.places.get(&itt)?;
        self.last.set(place);
        Some(place)
    }

    pub(super) fn contains_key(&self, itt: &Itt) -> bool {
        self.place(*itt).is_some()
    }

    pub(super) fn get(&self, itt: &Itt) -> Option<&Task> {
        let place = self.place(*itt)?;
        self.slots[place].as_ref().map(|(_, task)| &**task)
    }

    pub(super) fn get_mut(&mut self, itt: &Itt) -> Option<&mut Task> {
        let place = self.place(*itt)?;
        self.slots[place].as_mut().map(|(_, task)| &mut **task)
    }

    /// Puts a task into memory that one of before has had.
    pub(super) fn place_anew(&mut self, task: Task) -> Box<Task> {
        match self.spare.pop() {
            Some(mut spare) => {
                *spare = task;
                spare
            }
            None => Box::new(task),
        }
    }

    /// Takes the memory of a task that is over. What it holds itself is given back now.
    pub(super) fn recycle(&mut self, mut task: Box<Task>) {
        task.give_back();
        self.spare.push(task);
    }

    /// Adds a task, in place of the one that has this tag, if there is one.
    pub(super) fn insert(&mut self, itt: Itt, task: Box<Task>) {
        let place = match self.place(itt) {
            Some(place) => place,
            None => {
                let place = self.free.pop().unwrap_or(self.slots.len());
                self.places.insert(itt, place);
                place
            }
        };
        match self.slots.get_mut(place) {
            Some(slot) => *slot = Some((itt, task)),
            None => self.slots.push(Some((itt, task))),
        }
        self.last.set(place);
    }

    pub(super) fn remove(&mut self, itt: &Itt) -> Option<Box<Task>> {
        let place = self.places.remove(itt)?;
        self.free.push(place);
        self.slots[place].take().map(|(_, task)| task)
    }

    /// All tasks, in no order that means anything.
    pub(super) fn values(&self) -> impl Iterator<Item = &Task> {
        self.slots.iter().flatten().map(|(_, task)| &**task)
    }

    /// All tasks, in no order that means anything.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&Itt, &mut Task)> {
        self.slots.iter_mut().flatten().map(|(itt, task)| (&*itt, &mut **task))
    }

    /// All tasks, by their tags.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Itt, &Task)> {
        let mut all: Vec<(&Itt, &Task)> =
            self.slots.iter().flatten().map(|(itt, task)| (itt, &**task)).collect();
        all.sort_unstable_by_key(|(itt, _)| **itt);
        all.into_iter()
    }
}

/// Tags are the initiator's to choose. One that chooses them so that they collide makes the session
/// look at as many places as it may have commands under way, which costs nobody else anything.
#[derive(Debug, Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, tag: u32) {
        /// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, §6.4).
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ u64::from(tag)).wrapping_mul(GOLDEN);
    }

    /// The table takes its places from the low bits, and the product is best in its high ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::Lun;
    use crate::pdu::{ScsiCommand, TaskAttribute};
    use crate::serial::{CmdSn, StatSn};
    use crate::target::ConnId;

    fn task(cmd_sn: u32) -> Task {
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: true,
            write: false,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: Lun(0),
            itt: Itt(0),
            expected_data_transfer_length: 0,
            cmd_sn: CmdSn(cmd_sn),
            exp_stat_sn: StatSn(0),
            cdb: [0; 16],
            extended_cdb: bytes::Bytes::new(),
            bidi_read_length: None,
        };
        Task::new(ConnId(0), command, 0, false)
    }

    proptest! {
        /// As a tree of tasks, whatever tags come, go and come again.
        #[test]
        fn as_a_tree(steps in prop::collection::vec((0..4u8, 0..24u32), 1..200)) {
            let mut tasks = Tasks::default();
            let mut model = BTreeMap::new();
            for (number, (step, tag)) in (0..).zip(steps) {
                // The last bits, the first ones, and the tag that is next to none.
                let itt = Itt([tag, tag << 24, !tag][tag as usize % 3]);
                match step {
                    0 | 1 => {
                        let task = tasks.place_anew(task(number));
                        tasks.insert(itt, task);
                        model.insert(itt, number);
                    }
                    2 => {
                        let removed = tasks.remove(&itt);
                        let number = removed.as_ref().map(|task| task.cmd_sn().0);
                        prop_assert_eq!(number, model.remove(&itt));
                        removed.into_iter().for_each(|task| tasks.recycle(task));
                    }
                    _ => {
                        let found = tasks.get_mut(&itt).map(|task| task.cmd_sn().0);
                        prop_assert_eq!(found, model.get(&itt).copied());
                    }
                }
                prop_assert_eq!(tasks.len(), model.len());
                prop_assert_eq!(tasks.contains_key(&itt), model.contains_key(&itt));
                let seen: Vec<_> = tasks.iter().map(|(itt, task)| (*itt, task.cmd_sn().0)).collect();
                let known: Vec<_> = model.iter().map(|(itt, number)| (*itt, *number)).collect();
                prop_assert_eq!(seen, known);
                prop_assert_eq!(tasks.values().count(), model.len());
                prop_assert!(tasks.slots.len() <= 24, "places are used again");
            }
        }
    }
}
