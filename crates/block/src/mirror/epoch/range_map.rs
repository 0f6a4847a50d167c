//! [`RangeMap`]: ranges of bytes that do not overlap, each with a value; what is put in cuts out
//! what was there.
//!
//! Not here: what the values mean.

use std::collections::BTreeMap;
use std::ops::Range;

/// A value that belongs to a range and can be cut with it.
pub(in crate::mirror) trait Cut {
    /// The value of a part of the range, which lies `at` bytes behind its start.
    fn part(&self, at: u64, len: u64) -> Self;
}

/// Ranges of bytes that do not overlap, in order.
#[derive(Clone, Debug)]
pub(in crate::mirror) struct RangeMap<V> {
    /// First byte of a range to the byte behind its end, and its value.
    map: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for RangeMap<V> {
    fn default() -> Self {
        Self { map: BTreeMap::new() }
    }
}

impl<V: Cut> RangeMap<V> {
    /// Ranges in it.
    pub(in crate::mirror) fn len(&self) -> usize {
        self.map.len()
    }

    /// There is none.
    pub(in crate::mirror) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All of them, in order.
    pub(in crate::mirror) fn iter(&self) -> impl Iterator<Item = (Range<u64>, &V)> {
        self.map.iter().map(|(start, (end, value))| (*start..*end, value))
    }

    /// Those that have bytes in `range`, whole, the last one first.
    pub(in crate::mirror) fn overlapping(
        &self,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, &V)> {
        let start = range.start;
        // Ranges that do not overlap end in the order in which they start.
        let before = self.map.range(..range.end).rev();
        before
            .take_while(move |(_, (end, _))| *end > start)
            .map(|(start, (end, value))| (*start..*end, value))
    }

    /// What lies in `range`, cut to it, in order.
    pub(in crate::mirror) fn parts(&self, range: &Range<u64>) -> Vec<(Range<u64>, V)> {
        let part = |(whole, value): (Range<u64>, &V)| {
            let inside = intersection(&whole, range);
            let value = value.part(inside.start - whole.start, inside.end - inside.start);
            (inside, value)
        };
        let mut parts: Vec<_> = self.overlapping(range).map(part).collect();
        parts.reverse();
        parts
    }

    /// Takes what lies in `range` out; what sticks out of it stays. Empty ranges take nothing.
    pub(in crate::mirror) fn cut(&mut self, range: &Range<u64>) -> Vec<(Range<u64>, V)> {
        let starts: Vec<u64> = self.overlapping(range).map(|(whole, _)| whole.start).collect();
        let mut taken = Vec::with_capacity(starts.len());
        for start in starts.into_iter().rev() {
            let Some((end, value)) = self.map.remove(&start) else { continue };
            let inside = intersection(&(start..end), range);
            if start < inside.start {
                let left = value.part(0, inside.start - start);
                self.map.insert(start, (inside.start, left));
            }
            if inside.end < end {
                let right = value.part(inside.end - start, end - inside.end);
                self.map.insert(inside.end, (end, right));
            }
            let value = value.part(inside.start - start, inside.end - inside.start);
            taken.push((inside, value));
        }
        taken
    }

    /// Puts a value in and returns what it replaces.
    pub(in crate::mirror) fn insert(
        &mut self,
        range: Range<u64>,
        value: V,
    ) -> Vec<(Range<u64>, V)> {
        if range.is_empty() {
            return Vec::new();
        }
        let replaced = self.cut(&range);
        self.map.insert(range.start, (range.end, value));
        replaced
    }
}

/// Bytes in both.
pub(in crate::mirror) fn intersection(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

/// What of `range` is in none of `holes`, in order.
pub(in crate::mirror) fn without(range: Range<u64>, mut holes: Vec<Range<u64>>) -> Vec<Range<u64>> {
    holes.sort_by_key(|hole| hole.start);
    let mut left = Vec::new();
    let mut at = range.start;
    for hole in holes {
        if at < hole.start.min(range.end) {
            left.push(at..hole.start.min(range.end));
        }
        at = at.max(hole.end);
    }
    if at < range.end {
        left.push(at..range.end);
    }
    left
}

/// Ranges that touch or overlap become one.
pub(in crate::mirror) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}
