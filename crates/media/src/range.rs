//! [`Wanted`]: what a `Range` field asks of a file (RFC 9110 §14).

use std::ops::Range;

/// Ranges of one request. Players ask for one; readers of documents for a handful.
const RANGES_MAX: usize = 16;

/// Digits of a position: more than 2⁶⁴ has is behind every file.
const DIGITS_MAX: usize = 20;

/// What of a file is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    Whole,
    /// These parts, of at least one byte each, in the order in which they were asked for. No two
    /// of them share a byte.
    Parts(Vec<Range<u64>>),
    /// Nothing: the file has no such part, or it is asked for too many (§15.5.17).
    Outside,
}

impl Wanted {
    /// Reads the field, for a file of so many bytes. What is no range of bytes is to be treated as
    /// if it were not there (§14.2).
    pub fn read(field: &str, size: u64) -> Self {
        let Some((unit, set)) = field.split_once('=') else { return Self::Whole };
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return Self::Whole;
        }
        let mut parts = Vec::new();
        let mut count = 0;
        // Empty elements of a list do not count (§5.6.1.2).
        for one in set.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let Some(asked) = Asked::read(one) else { return Self::Whole };
            count += 1;
            if count > RANGES_MAX {
                return Self::Outside;
            }
            parts.extend(asked.of(size));
        }
        match (count, parts.is_empty()) {
            (0, _) => Self::Whole,
            (_, true) => Self::Outside,
            _ => Self::Parts(without_overlaps(parts)),
        }
    }
}

/// One range of the field.
#[derive(Clone, Copy)]
enum Asked {
    /// `FIRST-LAST`, or without an end.
    From { first: u64, last: Option<u64> },
    /// `-LEN`: the end of the file.
    Suffix { len: u64 },
}

impl Asked {
    fn read(text: &str) -> Option<Self> {
        match text.split_once('-')? {
            ("", len) => Some(Self::Suffix { len: number(len)? }),
            (first, "") => Some(Self::From { first: number(first)?, last: None }),
            (first, last) => {
                let (first, last) = (number(first)?, number(last)?);
                (first <= last).then_some(Self::From { first, last: Some(last) })
            }
        }
    }

    /// What it means for a file of so many bytes (§14.1.2), if the file has any of it.
    fn of(self, size: u64) -> Option<Range<u64>> {
        let part = match self {
            Self::From { first, last } => {
                first..last.map_or(size, |last| last.saturating_add(1)).min(size)
            }
            Self::Suffix { len } => size.saturating_sub(len)..size,
        };
        (!part.is_empty()).then_some(part)
    }
}

/// Parts that overlap become one (§15.3.7.2), so that nobody has a byte sent twice; the order is
/// that of the file then.
fn without_overlaps(parts: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut sorted = parts.clone();
    sorted.sort_by_key(|part| part.start);
    if sorted.windows(2).all(|two| two[0].end <= two[1].start) {
        return parts;
    }
    let mut joined: Vec<Range<u64>> = Vec::new();
    for part in sorted {
        match joined.last_mut() {
            Some(last) if part.start < last.end => last.end = last.end.max(part.end),
            _ => joined.push(part),
        }
    }
    joined
}

/// Digits alone: no sign, no space. What is too large for 64 bits is behind every file, too.
fn number(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = text.trim_start_matches('0');
    if significant.len() > DIGITS_MAX {
        return Some(u64::MAX);
    }
    Some(if significant.is_empty() { 0 } else { significant.parse().unwrap_or(u64::MAX) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)] // one range is what is meant

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_is_asked_for_is_in_the_file_and_once(
            field in "(bytes=)?[0-9]{0,3}-[0-9,\\- ]{0,60}",
            size in 0u64..1000,
        ) {
            if let Wanted::Parts(parts) = Wanted::read(&field, size) {
                prop_assert!(!parts.is_empty() && parts.len() <= RANGES_MAX);
                prop_assert!(parts.iter().all(|part| part.start < part.end && part.end <= size));
                for (at, one) in parts.iter().enumerate() {
                    let others = &parts[at + 1..];
                    let is_apart = |two: &Range<u64>| two.start >= one.end || two.end <= one.start;
                    prop_assert!(others.iter().all(is_apart));
                }
            }
        }
    }

    fn parts(parts: &[Range<u64>]) -> Wanted {
        Wanted::Parts(parts.to_vec())
    }

    #[test]
    fn ranges_are_those_of_the_rfc() {
        for (field, expected) in [
            ("bytes=0-", 0..1000),
            ("bytes=0-0", 0..1),
            ("Bytes = 500-599", 500..600),
            ("bytes=999-", 999..1000),
            ("bytes=990-5000", 990..1000),
            ("bytes=0-99999999999999999999999", 0..1000),
            ("bytes=00000000000000000000000010-20", 10..21),
            ("bytes=-1", 999..1000),
            ("bytes=-5000", 0..1000),
            ("bytes=, 5-6 ,,", 5..7),
        ] {
            assert_eq!(Wanted::read(field, 1000), parts(&[expected]), "{field}");
        }
        for field in ["bytes=1000-", "bytes=99999999999999999999999-", "bytes=-0", "bytes=-0,1000-"]
        {
            assert_eq!(Wanted::read(field, 1000), Wanted::Outside, "{field}");
        }
        assert_eq!(Wanted::read("bytes=0-", 0), Wanted::Outside);
    }

    #[test]
    fn several_ranges_keep_their_order_unless_they_overlap() {
        let several = |field| Wanted::read(field, 1000);
        assert_eq!(several("bytes=0-1,5-6"), parts(&[0..2, 5..7]));
        assert_eq!(several("bytes=500-,0-1"), parts(&[500..1000, 0..2]));
        assert_eq!(several("bytes=2-3,0-1"), parts(&[2..4, 0..2]));
        assert_eq!(several("bytes=0-1,2000-"), parts(&[0..2]));
        assert_eq!(several("bytes=900-,-200,0-0"), parts(&[0..1, 800..1000]));
        assert_eq!(several("bytes=0-9,3-4,5-6"), parts(&[0..10]));
    }

    #[test]
    fn there_is_a_number_of_ranges_that_is_too_large() {
        let many = |count: usize| format!("bytes={}", vec!["0-1"; count].join(","));
        assert_eq!(Wanted::read(&many(RANGES_MAX), 1000), parts(&[0..2]));
        assert_eq!(Wanted::read(&many(RANGES_MAX + 1), 1000), Wanted::Outside);
        assert_eq!(Wanted::read(&many(10_000), 1000), Wanted::Outside);
    }

    #[test]
    fn what_is_no_range_is_as_if_it_were_not_there() {
        for field in [
            "",
            "bytes",
            "bytes=",
            "bytes=,,",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-4",
            "bytes=+1-2",
            "bytes=1 -2",
            "bytes=1--2",
            "lines=0-1",
            "bytes=0-1,x",
            "bytes=0-1;5-6",
        ] {
            assert_eq!(Wanted::read(field, 1000), Wanted::Whole, "{field:.40}");
        }
    }
}
