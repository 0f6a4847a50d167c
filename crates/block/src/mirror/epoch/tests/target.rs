//! A leg that may do whatever a disk with a volatile cache and a task set may do: carry out what is
//! under way in any order that barriers allow, keep any part of it when its power fails, and lose
//! answers.

use super::Random;

/// What can be written: a block of the image, or the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Block(usize),
    Stamp,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Write {
        place: Place,
        value: u64,
        /// Stable when it is done.
        forced: bool,
    },
    Flush {
        /// A barrier: everything before it first, nothing after it sooner (ORDERED).
        ordered: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) id: u64,
    pub(super) operation: Operation,
}

/// Versions of one place since it was last stable. The last one is what is read.
type Versions = Vec<u64>;

pub(super) struct Target {
    blocks: Vec<Versions>,
    stamp: Versions,
    queue: Vec<Command>,
}

impl Target {
    pub(super) fn new(blocks: usize) -> Self {
        Self { blocks: vec![vec![0]; blocks], stamp: vec![0], queue: Vec::new() }
    }

    pub(super) fn take(&mut self, command: Command) {
        self.queue.push(command);
    }

    /// Carries out one of the commands that may be next. Returns it.
    pub(super) fn step(&mut self, random: &mut Random) -> Option<Command> {
        let is_barrier = |c: &Command| matches!(c.operation, Operation::Flush { ordered: true });
        let before_barrier = self.queue.iter().take_while(|c| !is_barrier(c)).count();
        let may_be_next =
            if self.queue.first().is_some_and(is_barrier) { 1 } else { before_barrier };
        if may_be_next == 0 {
            return None;
        }
        let command = self.queue.remove(random.below(may_be_next as u64) as usize);
        self.carry_out(&command.operation);
        Some(command)
    }

    fn carry_out(&mut self, operation: &Operation) {
        match operation {
            Operation::Write { place, value, forced } => {
                let versions = match place {
                    Place::Block(block) => &mut self.blocks[*block],
                    Place::Stamp => &mut self.stamp,
                };
                if *forced {
                    versions.clear();
                }
                versions.push(*value);
            }
            Operation::Flush { .. } => {
                for versions in self.blocks.iter_mut().chain([&mut self.stamp]) {
                    versions.drain(..versions.len() - 1);
                }
            }
        }
    }

    /// What reads of the blocks return.
    pub(super) fn image(&self) -> Vec<u64> {
        self.blocks.iter().map(|versions| versions[versions.len() - 1]).collect()
    }

    /// What the blocks may hold after a power cut now.
    pub(super) fn image_after_cut(&self, random: &mut Random) -> Vec<u64> {
        self.blocks.iter().map(|versions| *random.pick(versions)).collect()
    }

    /// All that a block may hold, now or after a power cut.
    pub(super) fn versions(&self, block: usize) -> &[u64] {
        &self.blocks[block]
    }

    pub(super) fn stamp(&self) -> u64 {
        self.stamp[self.stamp.len() - 1]
    }

    pub(super) fn power_cut(&mut self, random: &mut Random) {
        for versions in self.blocks.iter_mut().chain([&mut self.stamp]) {
            *versions = vec![*random.pick(versions)];
        }
        self.queue.clear();
    }

    /// The session ends: what is still under way is never done, as after a reset of its nexus.
    pub(super) fn quiesce(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.queue)
    }

    /// Makes everything stable.
    pub(super) fn flush(&mut self) {
        self.carry_out(&Operation::Flush { ordered: false });
    }
}
