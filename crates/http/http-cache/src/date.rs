//! HTTP dates as seconds since 1970.

use std::time::{Duration, UNIX_EPOCH};

use super::limits::DATE_BYTES_MAX;

/// Parses a date in any of the three forms of RFC 9110 section 5.6.7. Returns seconds since 1970,
/// or `None` for anything else and for times before 1970.
///
/// RFC 9111 section 4.2: the comparison ignores case, and the only time zone is GMT. The weekday
/// has to be a valid name, but may differ from that of the date, because hand-written dates often
/// have the wrong one. `now_s` is the current time in seconds since 1970. It determines the century
/// of a two-digit year (RFC 850).
pub fn http_date(value: &[u8], now_s: u64) -> Option<u64> {
    // Nearly all dates have the preferred form.
    if value.len() == FIXDATE_BYTES
        && let Some(date_s) = parse_exact(value)
    {
        return Some(date_s);
    }
    let mut text = [0; DATE_BYTES_MAX];
    let text = text.get_mut(..value.len())?;
    text.copy_from_slice(value);
    capitalise(text);
    let mut whole: [u8; FIXDATE_BYTES] = *b"---, 00 --- 0000 00:00:00 GMT";
    let is_rfc850 = text.contains(&b'-');
    let fixdate = if is_rfc850 { rewrite_rfc850(text, now_s, &mut whole)? } else { text };
    let weekday = fixdate.first_chunk::<3>()?;
    WEEKDAYS.iter().find(|name| name.as_bytes().starts_with(weekday))?;
    parse_exact(fixdate).or_else(|| {
        WEEKDAYS.iter().find_map(|name| {
            fixdate[..3].copy_from_slice(&name.as_bytes()[..3]);
            parse_exact(fixdate)
        })
    })
}

/// Parses a date whose weekday is correct.
fn parse_exact(date: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(date).ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Returns a time in seconds since 1970 in the preferred form (RFC 9110 section 5.6.7). Times after
/// the year 9999 become its last second.
pub fn format_date(second: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second.min(DATE_S_MAX)))
}

/// The last second of the year 9999.
const DATE_S_MAX: u64 = 253_402_300_799;

/// Length of a date in the preferred form (IMF-fixdate). The other forms have other lengths.
const FIXDATE_BYTES: usize = 29;

const WEEKDAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// Capitalises each word, and writes `GMT` in upper case.
fn capitalise(text: &mut [u8]) {
    for word in text.split_mut(|byte| !byte.is_ascii_alphabetic()) {
        word.make_ascii_lowercase();
        if word == b"gmt" {
            word.make_ascii_uppercase();
        } else if let [first, ..] = word {
            first.make_ascii_uppercase();
        }
    }
}

/// Rewrites an RFC 850 date to the preferred form. A year is at most 50 years in the future (RFC
/// 9110 section 5.6.7).
fn rewrite_rfc850<'a>(
    text: &[u8],
    now_s: u64,
    out: &'a mut [u8; FIXDATE_BYTES],
) -> Option<&'a mut [u8]> {
    let comma = text.iter().position(|&byte| byte == b',')?;
    let (weekday, rest) = text.split_at(comma);
    WEEKDAYS.iter().find(|name| name.as_bytes() == weekday)?;
    // `, 06-Nov-94 08:49:37 GMT`
    let rest: &[u8; 24] = rest.try_into().ok()?;
    if [rest[4], rest[8]] != [b'-'; 2] || rest[11] != b' ' {
        return None;
    }
    let digits = std::str::from_utf8(&rest[9..11]).ok()?;
    let year_now = 1970 + now_s / 31_556_952;
    let year = year_now / 100 * 100 + digits.parse::<u64>().ok()?;
    let year = if year > year_now + 50 { year - 100 } else { year };
    out[..3].copy_from_slice(&weekday[..3]);
    out[5..7].copy_from_slice(&rest[2..4]);
    out[8..11].copy_from_slice(&rest[5..8]);
    let century = [b'0' + (year / 1000) as u8, b'0' + (year / 100 % 10) as u8];
    out[12..14].copy_from_slice(&century);
    out[14..16].copy_from_slice(&rest[9..11]);
    out[16..].copy_from_slice(&rest[11..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::NOW_S;
    use super::*;

    fn date(text: &str) -> Option<u64> {
        http_date(text.as_bytes(), NOW_S)
    }

    #[test]
    fn the_three_forms_are_one_time_rfc_9110_section_5_6_7() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(text), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn case_is_ignored_rfc_9111_section_4_2() {
        for text in [
            "SUN, 06 Nov 1994 08:49:37 GMT",
            "sun, 06 NOV 1994 08:49:37 gMt",
            "SUNDAY, 06-nov-94 08:49:37 gmt",
            "sun nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(text), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn a_weekday_may_be_wrong() {
        for text in [
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Monday, 06-Nov-94 08:49:37 GMT",
            "Mon Nov  6 08:49:37 1994",
        ] {
            assert_eq!(date(text), Some(784_111_777), "{text}");
        }
    }

    #[test]
    fn two_digits_of_a_year_are_at_most_fifty_years_ahead() {
        let year = |text: &str| date(text).map(|second| 1970 + second / 31_556_952);
        assert_eq!(year("Thursday, 18-Aug-50 02:01:18 GMT"), Some(2050));
        assert_eq!(year("Tuesday, 18-Aug-76 02:01:18 GMT"), Some(2076));
        assert_eq!(year("Thursday, 18-Aug-77 02:01:18 GMT"), Some(1977));
    }

    #[test]
    fn malformed_dates_are_refused() {
        for text in [
            "",
            "0",
            "-1",
            "foo",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 06 Nov 1994 08:49:37 AEST",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun 06 Nov 1994 08:49:37 GMT",
            "Sun, 06-Nov-1994 08:49:37 GMT",
            "Sun, 06 Nov 94 08:49:37 GMT",
            "Sun, 06 Nov 1994 8:49:37 GMT",
            "Sun, 06 Nov 1994 08.49.37 GMT",
            "Sun, 06  Nov  1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT and more than any date has",
            "Someday, 06-Nov-94 08:49:37 GMT",
            "Xxx, 06 Nov 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Wed, 01 Jan 1969 00:00:00 GMT",
            "S\u{fc}n, 06 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(date(text), None, "{text}");
        }
    }
}
