//! Which command has been still for longest: neither it nor its data has moved, nor has anything
//! that was sent before it. An initiator's own patience, of which RFC 7143 says nothing but what
//! may be done when it ends (§7.11); the rule is the one of Linux' iSCSI initiator.

use std::collections::VecDeque;
use std::time::Duration;

use super::Session;
use super::task::Kind;
use crate::ids::Itt;
use crate::time::Instant;

/// Commands that end within this time are remembered as one: far less than anybody's patience.
const SLICE: Duration = Duration::from_secs(1);
/// What ended longer ago than this many slices with ends is forgotten: four minutes at least.
const SLICES_MAX: usize = 240;

/// When commands ended, and the oldest of each time.
#[derive(Debug, Default)]
pub(super) struct Ends(VecDeque<End>);

#[derive(Debug)]
struct End {
    at: Instant,
    /// Position in the order of submission of the oldest command that ended then.
    order: u64,
}

impl Ends {
    /// The command at this position has ended.
    pub(super) fn note(&mut self, order: u64, now: Instant) {
        match self.0.back_mut().filter(|end| now.since(end.at) < SLICE) {
            Some(end) => end.order = end.order.min(order),
            None => {
                if self.0.len() == SLICES_MAX {
                    self.0.pop_front();
                }
                self.0.push_back(End { at: now, order });
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// When something older than this position has ended last, to a slice.
    fn before(&self, order: u64) -> Option<Instant> {
        self.0.iter().rev().find(|end| end.order < order).map(|end| end.at + SLICE)
    }
}

impl<T> Session<T> {
    /// Of the commands that the target may have, the one that has been still for longest, by the
    /// owner's part of it, and since when. A target may serve one after the other, so that an older
    /// command that moves, or ends, speaks for the younger ones; what is younger says nothing of an
    /// older one. Data counts as moved when this host's socket takes it.
    pub fn stalled(&self) -> Option<(&T, Instant)> {
        let sent = self.tasks.iter().filter(|(_, task)| task.is_sent());
        let commands = sent.filter_map(|(_, task)| match &task.kind {
            Kind::Command(command) => Some((task.order, command)),
            _ => None,
        });
        let mut commands: Vec<_> = commands.collect();
        commands.sort_unstable_by_key(|(order, _)| *order);
        let mut older = Instant::default();
        let still = commands.into_iter().map(|(order, command)| {
            older = older.max(command.moved_at);
            (&command.context, self.ends.before(order).unwrap_or_default().max(older))
        });
        still.min_by_key(|(_, since)| *since)
    }

    /// Data of a command is moving.
    pub(super) fn note_moved(&mut self, itt: Itt, now: Instant) {
        if let Some(command) = self.tasks.command_mut(itt) {
            command.moved_at = now;
        }
    }
}
