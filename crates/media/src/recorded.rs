//! [`Recorded`]: when a video was recorded, as files, catalogues (TOML) and directories (LDAP)
//! write it down.

use std::fmt;

use files::Timestamp;
use toml::value::{Datetime, Offset};

const DAY_S: i64 = 86_400;
/// The years 0000 to 9999, which all of these can write.
const FIRST_S: i64 = -62_167_219_200;
const LAST_S: i64 = 253_402_300_799;
/// Days since 1970 at which clocks begin: of QuickTime (1904), Unix (1970) and FAT (1980).
const EPOCHS: [i64; 3] = [-24_107, 0, 3_652];

/// A second of UTC. Where a time is known and not the place that it was read at (FAT, a date
/// without a zone), it counts as UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recorded(i64);

impl Recorded {
    /// What a file (`creation_time`, ISO 8601) says; nothing, if that makes no sense.
    pub(crate) fn of_file(text: &str, now_s: i64) -> Option<Self> {
        Self::of_toml(&text.parse().ok()?)?.sensible(now_s)
    }

    /// When a file was last changed; nothing, if that makes no sense.
    pub(crate) fn of_entry(modified: Timestamp, now_s: i64) -> Option<Self> {
        Self::new(modified.seconds)?.sensible(now_s)
    }

    /// A date or a date and a time of a catalogue.
    pub(crate) fn of_toml(text: &Datetime) -> Option<Self> {
        let (date, time) = (text.date?, text.time);
        let date = [date.year.into(), date.month.into(), date.day.into()];
        let time = time.map_or([0; 3], |time| {
            [time.hour, time.minute, time.second.unwrap_or_default()].map(u32::from)
        });
        let ahead_min = match text.offset {
            Some(Offset::Custom { minutes }) => i64::from(minutes),
            Some(Offset::Z) | None => 0,
        };
        Self::new(Timestamp::from_civil(date, time, 0)?.seconds - ahead_min * 60)
    }

    /// A generalized time (RFC 4517 §3.3.13).
    pub fn of_directory(text: &str) -> Option<Self> {
        let (begin, rest) = digits(text)?;
        let number = |from: usize, to: usize| begin.get(from..to)?.parse::<u32>().ok();
        let (unit_s, minute, second) = match begin.len() {
            10 => (3600.0, 0, 0),
            12 => (60.0, number(10, 12)?, 0),
            14 => (1.0, number(10, 12)?, number(12, 14)?),
            _ => return None,
        };
        let date = [number(0, 4)?, number(4, 6)?, number(6, 8)?];
        let time = [number(8, 10)?, minute, second];
        // A fraction is one of the last unit that is given: of an hour, a minute or a second.
        let (fraction, zone) = match rest.strip_prefix(['.', ',']) {
            None => (0.0, rest),
            Some(rest) => {
                let (part, zone) = digits(rest)?;
                (format!("0.{part}").parse::<f64>().ok()?, zone)
            }
        };
        let seconds = Timestamp::from_civil(date, time, 0)?.seconds + (fraction * unit_s) as i64;
        Self::new(seconds - ahead_min(zone)? * 60)
    }

    /// As generalized time.
    pub fn in_directory(self) -> String {
        self.to_string().replace(['-', ':', 'T'], "")
    }

    /// The day alone, by which it is found.
    pub(crate) fn day(self) -> String {
        self.to_string().chars().take("2026-11-27".len()).collect()
    }

    fn new(seconds: i64) -> Option<Self> {
        (FIRST_S..=LAST_S).contains(&seconds).then_some(Self(seconds))
    }

    /// A clock that nobody has set says that it has just begun; nothing was recorded in the future.
    fn sensible(self, now_s: i64) -> Option<Self> {
        let is_unset = EPOCHS.contains(&self.0.div_euclid(DAY_S));
        (!is_unset && self.0 <= now_s.saturating_add(DAY_S)).then_some(self)
    }
}

impl fmt::Display for Recorded {
    /// ISO 8601.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Timestamp { seconds: self.0, nanos: 0, is_utc: true }.fmt(f)
    }
}

/// Digits, at least one, and what follows them.
fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    (end > 0).then(|| text.split_at(end))
}

/// Minutes that a zone is ahead of UTC: `Z`, `+HH` or `+HHMM`.
fn ahead_min(zone: &str) -> Option<i64> {
    let (sign, rest) = match zone.as_bytes().first()? {
        b'Z' => return (zone == "Z").then_some(0),
        b'+' => (1, &zone[1..]),
        b'-' => (-1, &zone[1..]),
        _ => return None,
    };
    let (hours, minutes) = match digits(rest)? {
        (digits, "") if digits.len() == 2 => (digits, "0"),
        (digits, "") if digits.len() == 4 => digits.split_at(2),
        _ => return None,
    };
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-27T00:00:00Z.
    const NOW_S: i64 = 1_795_737_600;

    #[test]
    fn a_file_says_when_it_was_recorded_unless_its_clock_was_not_set() {
        let of = |text: &str| Recorded::of_file(text, NOW_S).map(|recorded| recorded.to_string());
        for (text, recorded) in [
            ("2024-05-01T10:00:00.250000Z", "2024-05-01T10:00:00Z"),
            ("2024-05-01T10:00:00+02:00", "2024-05-01T08:00:00Z"),
            ("2024-05-01 10:00:00", "2024-05-01T10:00:00Z"),
            ("1965-08-20T00:00:00Z", "1965-08-20T00:00:00Z"),
            ("2026-11-27T23:00:00Z", "2026-11-27T23:00:00Z"),
        ] {
            assert_eq!(of(text).as_deref(), Some(recorded), "{text}");
        }
        for text in [
            "1904-01-01T00:00:00Z",
            "1970-01-01T00:00:01Z",
            "1980-01-01T00:00:00Z",
            "2040-02-06T06:28:15Z",
            "2023-02-29T00:00:00Z",
            "10:00:00",
            "last summer",
            "",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
        let of =
            |seconds| Recorded::of_entry(Timestamp { seconds, nanos: 5, is_utc: false }, NOW_S);
        assert_eq!(of(1_714_557_600).unwrap().day(), "2024-05-01");
        for seconds in [0, i64::MIN, i64::MAX, NOW_S + 2 * DAY_S] {
            assert_eq!(of(seconds), None, "{seconds}");
        }
    }

    #[test]
    fn a_directory_has_it_with_a_zone() {
        let of = |text: &str| Recorded::of_directory(text).map(Recorded::in_directory);
        for (text, recorded) in [
            ("20240501100000Z", "20240501100000Z"),
            ("20240501100000.99Z", "20240501100000Z"),
            ("2024050110,5Z", "20240501103000Z"),
            ("202405011000.5Z", "20240501100030Z"),
            ("20240501100000+0230", "20240501073000Z"),
            ("20240501100000-02", "20240501120000Z"),
            ("00000101000000Z", "00000101000000Z"),
            ("99991231235959Z", "99991231235959Z"),
        ] {
            assert_eq!(of(text).as_deref(), Some(recorded), "{text}");
        }
        for text in [
            "",
            "Z",
            "2024Z",
            "20240501100000",
            "20240501100000.Z",
            "20240501100000+2",
            "20240501100000+2400",
            "20240501100000Zulu",
            "20241301100000Z",
            "00000101000000+01",
            "99991231235959-01",
            "2024050110000\u{0661}Z",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
