//! The paths to all peers that are remembered, and their text. Pure: no file, no clock; times are
//! seconds since 1970 that the caller has read.
//!
//! One line for each peer, its newest state, blanks between the values:
//!
//! ```text
//! enkaku paths 1
//! 192.0.2.7 117000000 measured 0.05 0 4 1795000000
//! ```
//!
//! Bytes a second, whether the line was saturated (`measured`) or may carry more (`least`), the
//! round trip in seconds, the share lost, connections, and when that was.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::memory::{LIFETIME_S, Remembered};

/// The first line; another number means another form.
const HEAD: &str = "enkaku paths 1";
/// The longest table, in bytes: a thousand peers, far more than one host copies to in a day.
/// The oldest go first.
pub const TEXT_BYTES_MAX: usize = 65_536;

/// What is remembered of all paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths(BTreeMap<IpAddr, Seen>);

/// A path as it was at a time; the age of `path` is not used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen {
    path: Remembered,
    at_s: u64,
}

/// A table that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// It does not begin as one.
    #[error("its first line is not \"{HEAD}\"")]
    Head,
    /// This line, counted from 1.
    #[error("line {0} is not \"PEER BYTES measured|least RTT LOSS CONNECTIONS TIME\"")]
    Line(usize),
}

impl Paths {
    /// Reads a table.
    ///
    /// # Errors
    /// Any of it is not as it was written: then nothing of it is to be believed.
    pub fn parse(text: &str) -> Result<Self, Damaged> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(Damaged::Head);
        }
        let read = |(at, line)| seen(line).ok_or(Damaged::Line(at + 2));
        lines.enumerate().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// As [`Paths::parse`] reads it.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        for (peer, Seen { path, at_s }) in &self.0 {
            let Remembered { bandwidth, measured, rtt_s, loss, connections, .. } = path;
            let how = if *measured { "measured" } else { "least" };
            text += &format!("{peer} {bandwidth:.0} {how} {rtt_s} {loss} {connections} {at_s}\n");
        }
        text
    }

    /// What is remembered of the path to a peer.
    pub fn of(&self, peer: IpAddr, now_s: u64) -> Option<Remembered> {
        self.0.get(&peer).map(|seen| seen.now(now_s))
    }

    /// Remembers the path to a peer as it is now. A line that was not saturated does not make one
    /// forget what the same path carried before.
    pub fn note(&mut self, peer: IpAddr, path: Remembered, now_s: u64) {
        let more = |old: &Remembered| old.is_of(path.rtt_s) && old.bandwidth > path.bandwidth;
        if !path.is_possible()
            || !path.measured && self.of(peer, now_s).is_some_and(|old| more(&old))
        {
            return;
        }
        self.0.insert(peer, Seen { path, at_s: now_s });
        self.0.retain(|_, seen| (0.0..=LIFETIME_S).contains(&seen.now(now_s).age_s));
        while self.to_text().len() > TEXT_BYTES_MAX {
            let oldest = self.0.iter().min_by_key(|(_, seen)| seen.at_s).map(|(peer, _)| *peer);
            oldest.and_then(|peer| self.0.remove(&peer));
        }
    }
}

impl Seen {
    /// With its age; that of what is from the future is negative.
    fn now(&self, now_s: u64) -> Remembered {
        Remembered { age_s: now_s as f64 - self.at_s as f64, ..self.path }
    }
}

fn seen(line: &str) -> Option<(IpAddr, Seen)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [peer, bandwidth, how, rtt_s, loss, connections, at_s] = words[..] else { return None };
    let path = Remembered {
        bandwidth: bandwidth.parse().ok()?,
        measured: how == "measured",
        rtt_s: rtt_s.parse().ok()?,
        loss: loss.parse().ok()?,
        connections: connections.parse().ok()?,
        age_s: 0.0,
    };
    let seen = Seen { path, at_s: at_s.parse().ok()? };
    let is_one = path.is_possible() && ["measured", "least"].contains(&how);
    is_one.then_some((peer.parse().ok()?, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_795_000_000;

    fn path(bandwidth: f64, measured: bool) -> Remembered {
        Remembered { bandwidth, measured, rtt_s: 0.05, loss: 1e-4, connections: 7, age_s: 0.0 }
    }

    fn peer(last: u16) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last])
    }

    #[test]
    fn a_table_survives_its_text() {
        let mut paths = Paths::default();
        paths.note(peer(1), path(117e6, true), NOW_S);
        paths.note("192.0.2.7".parse().unwrap(), path(1e3, false), NOW_S - 5);
        let text = paths.to_text();
        assert_eq!(Paths::parse(&text), Ok(paths.clone()));
        assert!(text.contains("\n192.0.2.7 1000 least 0.05 0.0001 7 1794999995\n"), "{text}");
        let known = paths.of("192.0.2.7".parse().unwrap(), NOW_S).unwrap();
        assert_eq!(known, Remembered { age_s: 5.0, ..path(1e3, false) });
        assert_eq!(paths.of(peer(2), NOW_S), None);
        assert_eq!(Paths::parse(&Paths::default().to_text()), Ok(Paths::default()));
    }

    #[test]
    fn of_a_damaged_table_nothing_is_believed() {
        for text in ["", "{}", "enkaku paths 2\n", "enkaku paths"] {
            assert_eq!(Paths::parse(text), Err(Damaged::Head), "{text:?}");
        }
        let good = "192.0.2.7 117000000 measured 0.05 0 4 1795000000";
        assert!(Paths::parse(&format!("{HEAD}\n{good}\n")).is_ok());
        for (from, to) in [
            ("192.0.2.7", "far"),
            ("117000000", "-1"),
            ("117000000", "NaN"),
            ("measured", "guessed"),
            ("0.05", "0"),
            (" 0 ", " 1.5 "),
            (" 4 ", " -4 "),
            ("1795000000", "1795"),
            ("1795000000", "1795000000 1"),
            ("1795000000", ""),
        ] {
            let text = format!("{HEAD}\n{good}\n{}", good.replacen(from, to, 1));
            let expected = if to == "1795" { None } else { Some(Damaged::Line(3)) };
            assert_eq!(Paths::parse(&text).err(), expected, "{text}");
        }
        assert!(Damaged::Line(3).to_string().contains("line 3"));
    }

    #[test]
    fn less_than_the_line_carries_does_not_replace_what_it_carried() {
        let mut paths = Paths::default();
        let known = |paths: &Paths, now_s| paths.of(peer(1), now_s).unwrap().bandwidth;
        paths.note(peer(1), path(1e6, false), NOW_S);
        paths.note(peer(1), path(9e6, false), NOW_S);
        paths.note(peer(1), path(8e6, false), NOW_S);
        assert_eq!(known(&paths, NOW_S), 9e6);
        // A line that was saturated is what it is.
        paths.note(peer(1), path(5e6, true), NOW_S);
        paths.note(peer(1), path(4e6, false), NOW_S);
        assert_eq!(known(&paths, NOW_S), 5e6);
        // Another path, and another day.
        paths.note(peer(1), Remembered { rtt_s: 0.9, ..path(3e6, false) }, NOW_S);
        assert_eq!(known(&paths, NOW_S), 3e6);
        paths.note(peer(1), path(2e6, false), NOW_S + 100_000);
        assert_eq!(known(&paths, NOW_S + 100_000), 2e6);
        paths.note(peer(1), path(f64::NAN, true), NOW_S + 100_000);
        assert_eq!(known(&paths, NOW_S + 100_000), 2e6);
    }

    #[test]
    fn the_oldest_go_and_what_is_too_old_goes_in_any_case() {
        let mut paths = Paths::default();
        let most = 1300;
        for n in 0..most {
            paths.note(peer(n), path(1e6, true), NOW_S + u64::from(n));
        }
        let first = most - paths.0.len() as u16;
        assert!((1..500).contains(&first), "{first} are gone");
        let known = |n| paths.of(peer(n), NOW_S).is_some();
        assert!(known(first) && !known(first - 1));
        assert!(paths.to_text().len() <= TEXT_BYTES_MAX);
        paths.note(peer(1), path(1e6, true), NOW_S + 90_000);
        assert_eq!(paths.0.len(), 1);
    }
}
