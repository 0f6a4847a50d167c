//! Days as people count them.

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years begin in
/// March here, so that the leap day is the last of its year.
#[must_use]
pub fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    const DAYS_FROM_MARCH_0_TO_1970: i64 = 719_468;
    let days = days + DAYS_FROM_MARCH_0_TO_1970;
    let era = days.div_euclid(DAYS_OF_400_YEARS);
    let of_era = days.rem_euclid(DAYS_OF_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leap_days_are_where_they_belong() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (-1, (1969, 12, 31)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(days), date);
        }
    }
}
