//! A set of blocks as ranges, for what is few and changes often: the exact bitmap of a whole device
//! would be too large to have several of.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks by number, as ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockSet {
    /// First block → the one behind the last.
    ranges: BTreeMap<u64, u64>,
    count: u64,
}

impl BlockSet {
    /// Blocks in it.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Its ranges in ascending order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds blocks.
    pub(crate) fn insert(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        let Range { mut start, mut end } = blocks;
        // What overlaps or touches becomes one with it.
        while let Some((&first, &behind)) = self.ranges.range(..=end).next_back() {
            if behind < start {
                break;
            }
            self.ranges.remove(&first);
            self.count -= behind - first;
            (start, end) = (start.min(first), end.max(behind));
        }
        self.ranges.insert(start, end);
        self.count += end - start;
    }

    /// Takes blocks out.
    pub(crate) fn remove(&mut self, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        while let Some((&first, &behind)) = self.ranges.range(..blocks.end).next_back() {
            if behind <= blocks.start {
                break;
            }
            self.ranges.remove(&first);
            self.count -= behind - first;
            for rest in [first..blocks.start.max(first), blocks.end.min(behind)..behind] {
                if !rest.is_empty() {
                    self.count += rest.end - rest.start;
                    self.ranges.insert(rest.start, rest.end);
                }
            }
        }
    }

    /// The first range of it within `blocks`.
    pub(crate) fn first_in(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        let before = self.ranges.range(..=blocks.start).next_back();
        let before = before.filter(|(_, behind)| **behind > blocks.start);
        let (first, behind) = before.or_else(|| self.ranges.range(blocks.start..).next())?;
        let found = (*first).max(blocks.start)..(*behind).min(blocks.end);
        (!found.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(steps in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 1..60)) {
            let (mut set, mut model) = (BlockSet::default(), BTreeSet::new());
            for (add, start, len) in steps {
                let blocks = start..start + len;
                if add {
                    set.insert(blocks.clone());
                    model.extend(blocks);
                } else {
                    set.remove(blocks.clone());
                    model.retain(|block| !blocks.contains(block));
                }
                prop_assert_eq!(set.count(), model.len() as u64);
                let all: Vec<_> = set.ranges().flatten().collect();
                prop_assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
                let apart = set.ranges().zip(set.ranges().skip(1)).all(|(a, b)| a.end < b.start);
                prop_assert!(apart);
                for from in 0..52 {
                    for to in from..53 {
                        let first = model.range(from..to).next().copied();
                        let found = set.first_in(from..to);
                        prop_assert_eq!(found.as_ref().map(|range| range.start), first);
                        prop_assert!(found.is_none_or(|r| r.end <= to && r.clone().all(|b| model.contains(&b))
                            && (r.end == to || !model.contains(&r.end))));
                    }
                }
            }
        }
    }
}
