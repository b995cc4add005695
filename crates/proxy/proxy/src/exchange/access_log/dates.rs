//! The dates in HTTP and in the logs. All are in UTC; no time zone is ever read.

use std::io::Write;
use std::time::Duration;

/// The dates of one second in the three written forms, formatted again when the second changes.
#[derive(Clone, Debug)]
pub struct Dates {
    /// The time that the texts show, in seconds since 1970.
    second: u64,
    log: [u8; 26],
    http: [u8; 29],
    iso: [u8; 19],
}

/// The dates of the beginning of 1970.
impl Default for Dates {
    fn default() -> Self {
        let mut dates = Self { second: 0, log: [0; 26], http: [0; 29], iso: [0; 19] };
        dates.set(0);
        dates
    }
}

impl Dates {
    /// Sets the time, forward or back, and returns the dates. `time_of_day` is the time since 1970.
    pub fn at(&mut self, time_of_day: Duration) -> &Self {
        if time_of_day.as_secs() != self.second {
            self.set(time_of_day.as_secs());
        }
        self
    }

    /// Returns the form `21/Nov/2026:10:16:00 +0000`.
    pub fn log_date(&self) -> &[u8; 26] {
        &self.log
    }

    /// Returns the form `Sat, 21 Nov 2026 10:16:00 GMT`: IMF-fixdate, RFC 9110 section 5.6.7.
    pub fn http_date(&self) -> &[u8; 29] {
        &self.http
    }

    /// Returns the form `2026-11-21T10:16:00`, in UTC (RFC 3339 without fraction and zone).
    pub fn iso_date(&self) -> &[u8; 19] {
        &self.iso
    }

    fn set(&mut self, second: u64) {
        self.second = second;
        let second = second.min(SECOND_MAX);
        let (days, second) = (second / 86_400, second % 86_400);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let (year, number, day) = year_month_day(days);
        let month = MONTHS[number as usize - 1];
        // 1970-01-01 was a Thursday.
        let weekday = WEEKDAYS[(days as usize + 4) % 7];
        let write = |into: &mut [u8], text: std::fmt::Arguments| {
            let mut rest = &mut *into;
            rest.write_fmt(text).expect("the text has the length of its field");
            assert!(rest.is_empty(), "the text has the length of its field");
        };
        write(
            &mut self.log,
            format_args!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000"),
        );
        write(
            &mut self.http,
            format_args!(
                "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"
            ),
        );
        write(
            &mut self.iso,
            format_args!("{year:04}-{number:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"),
        );
    }
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/// The last second whose year has four digits: the end of 9999. Later times are written as this
/// one.
const SECOND_MAX: u64 = 253_402_300_799;

/// Returns the year, month and day of the proleptic Gregorian calendar, `days` days after
/// 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year. Every month but the
/// last then begins after a number of days that is linear in its index ((153 m + 2) / 5). An era is
/// 400 such years, 146097 days; the first one here begins at 0000-03-01.
fn year_month_day(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * month_from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // From RFC 9110 section 5.6.7, and date(1).
        for (second, http, log) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT", "01/Jan/1970:00:00:00 +0000"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT", "06/Nov/1994:08:49:37 +0000"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT", "28/Feb/2000:23:59:59 +0000"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT", "29/Feb/2000:00:00:00 +0000"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT", "01/Mar/2000:00:00:00 +0000"),
            (1_795_256_160, "Sat, 21 Nov 2026 10:16:00 GMT", "21/Nov/2026:10:16:00 +0000"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT", "28/Feb/2100:23:59:59 +0000"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT", "01/Mar/2100:00:00:00 +0000"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT", "31/Dec/9999:23:59:59 +0000"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT", "31/Dec/9999:23:59:59 +0000"),
        ] {
            let mut dates = Dates::default();
            let dates = dates.at(Duration::from_secs(second));
            assert_eq!(std::str::from_utf8(dates.http_date()).unwrap(), http);
            assert_eq!(std::str::from_utf8(dates.log_date()).unwrap(), log);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = year_month_day(0);
        for days in 1..200_000 {
            let (year, month, day) = before;
            let divides = |years| year.is_multiple_of(years);
            let leap = divides(4) && (!divides(100) || divides(400));
            let last = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match (day == last, month) {
                (true, 12) => (year + 1, 1, 1),
                (true, month) => (year, month + 1, 1),
                (false, month) => (year, month, day + 1),
            };
            before = year_month_day(days);
            assert_eq!(before, expected);
            let mut dates = Dates::default();
            let date = dates.at(Duration::from_secs(days * 86_400)).http_date();
            assert!(date.starts_with(WEEKDAYS[(days as usize + 4) % 7].as_bytes()), "{days}");
        }
    }

    #[test]
    fn dates_move_both_ways() {
        let mut dates = Dates::default();
        let early = *dates.at(Duration::from_secs(5)).iso_date();
        assert_eq!(&early, b"1970-01-01T00:00:05");
        assert_eq!(dates.at(Duration::from_millis(86_400_999)).iso_date(), b"1970-01-02T00:00:00");
        assert_eq!(dates.at(Duration::from_millis(5_999)).iso_date(), &early);
    }
}
