//! Recognises reads at equal distances among those that belong to no stream. Pure.
//!
//! One column of a table, every tenth record: at one read for each round trip that is slow on a far
//! disk, so everything between is read ahead, too, where it is little enough.

use std::collections::VecDeque;
use std::ops::Range;

use super::streams::Direction;

/// Reads remembered: room for a handful of readers at once.
const READS_MAX: usize = 24;

/// Reads at equal distances that make a stream, the present one among them. One more than for
/// neighbours, because three random reads in a small place are at equal distances now and then.
const RUN_MIN: u64 = 4;

/// Of what is read ahead, one part in so many is wanted at least.
const SHARE_MIN: u64 = 16;

/// The last reads that belonged to no stream.
#[derive(Debug, Default)]
pub(super) struct Strides {
    starts: VecDeque<u64>,
}

impl Strides {
    /// Takes note of a read; says in which direction the series goes that it completes.
    /// `distance_max` is the longest distance in bytes that is worth bridging.
    pub(super) fn observe(&mut self, read: &Range<u64>, distance_max: u64) -> Option<Direction> {
        let len = read.end - read.start;
        let reach = distance_max.min(len.saturating_mul(SHARE_MIN));
        let series = |before: u64, previous: &dyn Fn(u64) -> Option<u64>| {
            let distance = before.abs_diff(read.start);
            let near = distance > 0 && distance <= reach;
            near && (2..RUN_MIN).all(|n| {
                let at = distance.checked_mul(n).and_then(previous);
                at.is_some_and(|at| self.starts.contains(&at))
            })
        };
        let found = self.starts.iter().find_map(|before| {
            let (direction, follows) = if *before < read.start {
                (Direction::Forward, series(*before, &|d| read.start.checked_sub(d)))
            } else {
                (Direction::Backward, series(*before, &|d| read.start.checked_add(d)))
            };
            follows.then_some(direction)
        });
        if self.starts.len() == READS_MAX {
            self.starts.pop_front();
        }
        self.starts.push_back(read.start);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: u64 = 256 << 10;

    fn observe(strides: &mut Strides, at: u64) -> Option<Direction> {
        strides.observe(&(at..at + 8192), REACH)
    }

    #[test]
    fn the_fourth_at_equal_distances_completes_a_series() {
        for (first, step, direction) in
            [(0, 65536, Direction::Forward), (1 << 20, -65536, Direction::Backward)]
        {
            let mut strides = Strides::default();
            let at = |n: i64| (first + n * step) as u64;
            assert!((0..3).all(|n| observe(&mut strides, at(n)).is_none()));
            assert_eq!(observe(&mut strides, at(3)), Some(direction));
        }
    }

    #[test]
    fn several_series_at_once() {
        let mut strides = Strides::default();
        let mut found = [0; 3];
        for n in 0..4u64 {
            for (reader, count) in (0..).zip(&mut found) {
                let at = reader * (64 << 20) + n * (reader + 1) * 32768;
                *count += u32::from(observe(&mut strides, at).is_some());
            }
        }
        assert_eq!(found, [1, 1, 1]);
    }

    #[test]
    fn too_far_apart_is_none() {
        let mut strides = Strides::default();
        assert!((0..20).all(|n| observe(&mut strides, n * (8192 * SHARE_MIN + 4096)).is_none()));
        assert!((0..20).all(|n| observe(&mut strides, (1 << 30) + n * (REACH + 4096)).is_none()));
    }
}
