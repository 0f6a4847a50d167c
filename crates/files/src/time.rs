//! [`Timestamp`]: when a file was changed, and what is not known about it.

use std::fmt;

/// A point in time as a file system keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00:00.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
    /// In UTC; otherwise in the time of the place where it was written, which FAT does not say.
    pub is_utc: bool,
}

impl Timestamp {
    /// From the calendar, if there is such a day and time; leap seconds count as the second before.
    pub fn from_civil(date: [u32; 3], time: [u32; 3], nanos: u32) -> Option<Self> {
        let ([year, month, day], [hour, minute, second]) = (date, time);
        let days_max = match month {
            4 | 6 | 9 | 11 => 30,
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            1..=12 => 31,
            _ => return None,
        };
        if !(1..=days_max).contains(&day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        // Years begin in March, so that the day that comes and goes is the last one.
        let years = i64::from(year) - i64::from(month <= 2);
        let days_of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
        let leap_days = years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
        let days = 365 * years + leap_days + days_of_year - 719_468;
        let second_of_day = i64::from(hour * 3600 + minute * 60 + second.min(59));
        Some(Self { seconds: days * 86_400 + second_of_day, nanos, is_utc: false })
    }

    /// Date and time of FAT: days since 1980 and steps of two seconds (§ "Date and Time Formats").
    pub(crate) fn from_dos(date: u16, time: u16) -> Option<Self> {
        let [date, time] = [u32::from(date), u32::from(time)];
        let civil = [1980 + (date >> 9), date >> 5 & 15, date & 31];
        Self::from_civil(civil, [time >> 11, time >> 5 & 63, (time & 31) * 2], 0)
    }
}

impl fmt::Display for Timestamp {
    /// ISO 8601, with a Z where it is known to be UTC.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = block::civil(self.seconds.div_euclid(86_400));
        let second = self.seconds.rem_euclid(86_400);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}", second % 60)?;
        f.write_str(if self.is_utc { "Z" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_go_there_and_back() {
        let show = |seconds| Timestamp { seconds, nanos: 0, is_utc: true }.to_string();
        assert_eq!(show(0), "1970-01-01T00:00:00Z");
        assert_eq!(show(-1), "1969-12-31T23:59:59Z");
        assert_eq!(show(951_827_696), "2000-02-29T12:34:56Z");
        for days in -800_000..800_000 {
            let time = Timestamp { seconds: days * 86_400, nanos: 0, is_utc: false };
            let (year, month, day) = block::civil(days);
            if let Ok(year) = u32::try_from(year) {
                let date = [year, month as u32, day as u32];
                assert_eq!(Timestamp::from_civil(date, [0; 3], 0), Some(time));
            }
        }
    }

    #[test]
    fn no_time_is_made_of_what_is_none() {
        assert_eq!(Timestamp::from_dos(0, 0), None);
        assert_eq!(Timestamp::from_civil([2025, 2, 29], [0; 3], 0), None);
        assert_eq!(Timestamp::from_civil([2025, 3, 1], [24, 0, 0], 0), None);
        let last = Timestamp::from_dos(u16::from_le_bytes([0x9f, 0xff]), 0xbf7d);
        assert_eq!(last.map(|time| time.to_string()).as_deref(), Some("2107-12-31T23:59:58"));
    }
}
