//! The freshness lifetime and the age of a response (RFC 9111 section 4.2).

use millrace_http1::{FieldName, ResponseHead, parse_decimal, split_list};

use super::date::http_date;
use super::directives::ResponseDirectives;
use super::limits::DELTA_S_MAX;
use super::policy::{SetCookie, Ttl};
use super::received::{Receipt, ReceivedResponse};
use super::status;

/// The freshness lifetime of a response in seconds, by its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lifetime {
    /// Set by the origin, from the time of generation.
    Explicit(u32),
    /// Set by the operator, from the time of receipt.
    Operator(u32),
    /// Estimated by this cache from the time of modification.
    Heuristic(u32),
    /// Unknown.
    Unknown,
}

impl Lifetime {
    /// Returns whether the lifetime was set rather than estimated.
    pub(super) fn is_explicit(self) -> bool {
        matches!(self, Self::Explicit(_) | Self::Operator(_))
    }
}

/// Returns the `Date` of a response, or the time of its receipt if it has no valid one.
pub(super) fn date_s(received: &ReceivedResponse<'_>) -> u64 {
    let mut dates = received.response.values(FieldName::Date);
    let time_s = received.time_s();
    dates.next().and_then(|value| http_date(value, time_s)).unwrap_or(time_s)
}

/// Returns the value of `Last-Modified`, if it occurs once and is valid.
pub(super) fn last_modified_s(received: &ReceivedResponse<'_>) -> Option<u64> {
    let mut values = received.response.values(FieldName::LastModified);
    let date = http_date(values.next()?, received.time_s());
    if values.next().is_some() { None } else { date }
}

/// Returns the lifetime from the first source that has one (RFC 9111 section 4.2.1).
pub(super) fn lifetime(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Lifetime {
    let ReceivedResponse { response, policy, .. } = received;
    let named = policy.named_ttl(response.status());
    let usual = Some(policy.ttl).filter(|_| status::is_heuristic(response.status()));
    if let Some(Ttl::Override(seconds)) = named.or(usual) {
        return Lifetime::Operator(seconds);
    }
    match explicit_lifetime_s(received, directives) {
        Some(seconds) => Lifetime::Explicit(seconds.min(policy.ttl_s_max)),
        None => implicit_lifetime(received, directives),
    }
}

/// Returns the lifetime that the origin set.
fn explicit_lifetime_s(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Option<u32> {
    let expires = || if directives.is_targeted { None } else { expires(received) };
    directives.s_maxage_s.or(directives.max_age_s).or_else(expires)
}

/// Returns `Expires` as seconds after `Date`. A malformed value is in the past (RFC 9111 section
/// 5.3), and so are two different values (section 4.2.1).
fn expires(received: &ReceivedResponse<'_>) -> Option<u32> {
    let mut values = received.response.values(FieldName::Expires);
    let value = values.next()?;
    if values.any(|other| other != value) {
        return Some(0);
    }
    let expires_s = http_date(value, received.time_s()).unwrap_or(0);
    let seconds = expires_s.saturating_sub(date_s(received));
    Some(seconds.min(u64::from(DELTA_S_MAX)) as u32)
}

/// Returns the lifetime of a response in which the origin set none (RFC 9111 section 4.2.2). The
/// lifetime is unknown if the response sets a cookie. It is not estimated if the response has
/// `Pragma` without `Cache-Control`. In both cases, the origin may not want the response to be
/// stored.
fn implicit_lifetime(received: &ReceivedResponse<'_>, directives: &ResponseDirectives) -> Lifetime {
    let ReceivedResponse { response, policy, .. } = received;
    let ttl = policy.named_ttl(response.status());
    let is_named = matches!(ttl, Some(Ttl::Default(_)));
    let may_estimate = status::is_heuristic(response.status()) || directives.public || is_named;
    if !may_estimate || response.find(FieldName::SetCookie).is_some() {
        return Lifetime::Unknown;
    }
    if let Ttl::Default(seconds) = ttl.unwrap_or(policy.ttl) {
        return Lifetime::Operator(seconds.min(policy.ttl_s_max));
    }
    let has_pragma_only = response.find(FieldName::Pragma).is_some()
        && response.find(FieldName::CacheControl).is_none();
    let Some(modified_s) = last_modified_s(received) else { return Lifetime::Unknown };
    if has_pragma_only || policy.heuristic_percent == 0 {
        return Lifetime::Unknown;
    }
    let unchanged_s = date_s(received).saturating_sub(modified_s);
    let seconds = unchanged_s.saturating_mul(u64::from(policy.heuristic_percent)) / 100;
    let seconds_max = policy.heuristic_s_max.min(policy.ttl_s_max);
    Lifetime::Heuristic(seconds.min(u64::from(seconds_max)) as u32)
}

/// Returns the age of a response when it was received (RFC 9111 section 4.2.3): the larger of its
/// `Age` plus the time of its transfer, and the time since its `Date`.
pub(super) fn initial_age_s(received: &ReceivedResponse<'_>, date_s: u64) -> u32 {
    let Receipt { request_ms, response_ms, .. } = *received.receipt;
    let apparent_s = received.time_s().saturating_sub(date_s);
    let delay_s = response_ms.saturating_sub(request_ms) / 1000;
    let corrected_s = age_s(received.response).saturating_add(delay_s);
    apparent_s.max(corrected_s).min(u64::from(DELTA_S_MAX)) as u32
}

/// Returns the value of `Age`; 0 if there is no valid one.
///
/// RFC 9111 section 5.1: the first member of a list applies, in one line or in several, and a field
/// whose first member is not a number is ignored. Empty members (RFC 9110 section 5.6.1.2) do not
/// count. If the field is ignored, the age is still at least the time since `Date`.
fn age_s(response: &ResponseHead) -> u64 {
    let mut members = response.values(FieldName::Age).flat_map(split_list);
    let Some(digits) = members.next() else { return 0 };
    if !digits.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    parse_decimal(digits).unwrap_or(u64::MAX).min(u64::from(DELTA_S_MAX))
}

/// Returns whether a response with a cookie may be stored. A lifetime set by the operator applies
/// to responses in general and not to cookies: an origin that does not allow reuse of its response
/// does not allow reuse of its cookie.
pub(super) fn allows_cookie(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> bool {
    let is_shared = directives.public || directives.s_maxage_s.is_some() || directives.is_targeted;
    match received.policy.set_cookie {
        SetCookie::Explicit => {
            explicit_lifetime_s(received, directives).is_some_and(|seconds| seconds > 0)
        }
        SetCookie::Shared => is_shared,
        SetCookie::Never => false,
    }
}

#[cfg(test)]
mod tests {
    use millrace_http1::ResponseHead;

    use super::super::policy::{CachePolicy, StatusTtl};
    use super::super::test_messages::{DATE, NOW_S, RECEIPT, get, response};
    use super::*;

    fn lifetime_of(status: u16, fields: &str, policy: &CachePolicy) -> Lifetime {
        let (request, response) = (&get(""), &response(status, fields));
        let received = ReceivedResponse { request, response, receipt: &RECEIPT, policy };
        lifetime(&received, &received.directives())
    }

    fn by_default(fields: &str) -> Lifetime {
        lifetime_of(200, fields, &CachePolicy::default())
    }

    fn date(offset_s: i64) -> String {
        let time = std::time::UNIX_EPOCH
            + std::time::Duration::from_secs(NOW_S.checked_add_signed(offset_s).unwrap());
        httpdate::fmt_http_date(time)
    }

    #[test]
    fn s_maxage_then_max_age_then_expires_section_4_2_1() {
        use Lifetime::{Explicit, Unknown};
        let expires = format!("Expires: {}\r\n{DATE}", date(100));
        assert_eq!(by_default(&expires), Explicit(100));
        assert_eq!(by_default(&format!("{expires}Cache-Control: max-age=5\r\n")), Explicit(5));
        let shared = "Cache-Control: max-age=5, s-maxage=7\r\n";
        assert_eq!(by_default(&format!("{expires}{shared}")), Explicit(7));
        assert_eq!(by_default(&format!("{shared}Cache-Control: s-maxage=1\r\n")), Explicit(7));
        assert_eq!(by_default(DATE), Unknown);
    }

    #[test]
    fn expires_is_counted_from_date_section_4_2_1() {
        let expires = |date_at: i64, expires_at: i64| {
            by_default(&format!("Date: {}\r\nExpires: {}\r\n", date(date_at), date(expires_at)))
        };
        assert_eq!(expires(-10, 10), Lifetime::Explicit(20));
        assert_eq!(expires(10, 20), Lifetime::Explicit(10));
        assert_eq!(expires(400, 300), Lifetime::Explicit(0));
        assert_eq!(expires(0, 0), Lifetime::Explicit(0));
        let no_date = format!("Date: foo\r\nExpires: {}\r\n", date(10));
        assert_eq!(by_default(&no_date), Lifetime::Explicit(10));
    }

    #[test]
    fn expires_that_cannot_be_read_is_past_section_5_3() {
        for odd in ["0", "-1", "", "Thu, 18 Aug 2050 02:01:18 AEST", "tomorrow"] {
            assert_eq!(by_default(&format!("Expires: {odd}\r\n")), Lifetime::Explicit(0), "{odd}");
        }
        let twice = format!("Expires: {}\r\nExpires: {}\r\n", date(10), date(11));
        assert_eq!(by_default(&twice), Lifetime::Explicit(0));
        let same = format!("Expires: {0}\r\nExpires: {0}\r\n", date(10));
        assert_eq!(by_default(&same), Lifetime::Explicit(10));
    }

    #[test]
    fn a_targeted_field_overrides_expires_rfc_9213_section_2_2() {
        let fields = format!("CDN-Cache-Control: public\r\nExpires: {}\r\n", date(100));
        assert_eq!(by_default(&fields), Lifetime::Unknown);
    }

    #[test]
    fn heuristics_take_a_tenth_section_4_2_2() {
        let policy = CachePolicy::default();
        let modified = |ago_s: i64| format!("{DATE}Last-Modified: {}\r\n", date(-ago_s));
        assert_eq!(by_default(&modified(1000)), Lifetime::Heuristic(100));
        assert_eq!(by_default(&modified(100_000_000)), Lifetime::Heuristic(86_400));
        assert_eq!(by_default(&modified(-5)), Lifetime::Heuristic(0));
        assert_eq!(lifetime_of(404, &modified(1000), &policy), Lifetime::Heuristic(100));
        assert_eq!(lifetime_of(599, &modified(1000), &policy), Lifetime::Unknown);
        let public = format!("{}Cache-Control: public\r\n", modified(1000));
        assert_eq!(lifetime_of(599, &public, &policy), Lifetime::Heuristic(100));
        for silent in ["Set-Cookie: a=b\r\n", "Pragma: no-cache\r\n", "Last-Modified: x\r\n"] {
            assert_eq!(by_default(&format!("{}{silent}", modified(1000))), Lifetime::Unknown);
        }
        let off = CachePolicy { heuristic_percent: 0, ..CachePolicy::default() };
        assert_eq!(lifetime_of(200, &modified(1000), &off), Lifetime::Unknown);
    }

    #[test]
    fn an_operator_may_set_the_lifetime() {
        let fields = "Cache-Control: max-age=50\r\n";
        let with = |ttl, ttl_s_max| CachePolicy { ttl, ttl_s_max, ..CachePolicy::default() };
        let long = u32::MAX;
        assert_eq!(lifetime_of(200, fields, &with(Ttl::Override(9), 5)), Lifetime::Operator(9));
        assert_eq!(lifetime_of(200, fields, &with(Ttl::Default(9), long)), Lifetime::Explicit(50));
        assert_eq!(lifetime_of(200, fields, &with(Ttl::Origin, 5)), Lifetime::Explicit(5));
        assert_eq!(lifetime_of(200, "", &with(Ttl::Default(9), long)), Lifetime::Operator(9));
        assert_eq!(lifetime_of(503, "", &with(Ttl::Default(9), long)), Lifetime::Unknown);
        assert_eq!(lifetime_of(503, "", &with(Ttl::Override(9), long)), Lifetime::Unknown);
        assert_eq!(lifetime_of(503, fields, &with(Ttl::Override(9), 5)), Lifetime::Explicit(5));
    }

    #[test]
    fn an_operator_may_set_the_lifetime_by_status() {
        let named = |first, last, ttl| StatusTtl { statuses: (first, last), ttl };
        let status_ttls = vec![
            named(404, 404, Ttl::Override(5)),
            named(502, 504, Ttl::Default(3)),
            named(300, 499, Ttl::Origin),
        ];
        let policy = CachePolicy { ttl: Ttl::Override(60), status_ttls, ..CachePolicy::default() };
        let fields = "Cache-Control: max-age=50\r\n";
        for (status, fields, expected) in [
            (200, fields, Lifetime::Operator(60)),
            (404, fields, Lifetime::Operator(5)),
            (410, fields, Lifetime::Explicit(50)),
            (302, "", Lifetime::Unknown),
            (503, fields, Lifetime::Explicit(50)),
            (503, "", Lifetime::Operator(3)),
            (503, "Set-Cookie: a=b\r\n", Lifetime::Unknown),
            (500, "", Lifetime::Unknown),
        ] {
            assert_eq!(lifetime_of(status, fields, &policy), expected, "{status} {fields}");
        }
    }

    fn age_of(response: &ResponseHead, receipt: &Receipt) -> u32 {
        let (request, policy) = (&get(""), &CachePolicy::default());
        let received = ReceivedResponse { request, response, receipt, policy };
        initial_age_s(&received, date_s(&received))
    }

    fn age(fields: &str) -> u32 {
        age_of(&response(200, fields), &RECEIPT)
    }

    #[test]
    fn age_is_the_larger_estimate_section_4_2_3() {
        assert_eq!(age(DATE), 0);
        assert_eq!(age(&format!("Date: {}\r\nAge: 25\r\n", date(-10))), 25);
        assert_eq!(age(&format!("Date: {}\r\nAge: 5\r\n", date(-10))), 10);
        assert_eq!(age(&format!("Date: {}\r\nAge: 15\r\n", date(10))), 15);
        let slow = Receipt { request_ms: RECEIPT.response_ms - 2500, ..RECEIPT };
        assert_eq!(age_of(&response(200, "Age: 5\r\n"), &slow), 7);
    }

    #[test]
    fn the_first_member_of_age_applies_section_5_1() {
        assert_eq!(age("Age: 99999999999999999999\r\n"), 1 << 31);
        for (value, expected) in [
            ("7200,0", 7200),
            ("7200, 0", 7200),
            ("0, 7200", 0),
            (", 25, 0", 25),
            ("25, abc", 25),
            ("25\r\nAge: 0", 25),
            ("0\r\nAge: 25", 0),
            ("25\r\nAge: abc", 25),
            ("\r\nAge: 25", 25),
        ] {
            assert_eq!(age(&format!("Age: {value}\r\n")), expected, "{value}");
        }
    }

    #[test]
    fn an_invalid_age_is_ignored_section_5_1() {
        let odd = ["abc", "-7200", "7200.0", "7200;foo=bar", "7200 0", "\"25\"", "+5", "", ","];
        for odd in odd.into_iter().chain(["abc, 7200", "abc\r\nAge: 7200"]) {
            assert_eq!(age(&format!("Age: {odd}\r\n")), 0, "{odd}");
            let dated = format!("Date: {}\r\nAge: {odd}\r\n", date(-10));
            assert_eq!(age(&dated), 10, "{odd}");
        }
    }
}
