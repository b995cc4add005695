//! Whether a stored response may be sent now (RFC 9111 section 4). This runs for each hit and uses
//! numbers only.

use super::directives::RequestDirectives;
use super::meta::{Flags, Meta};

/// How a stored response may be used now. Ages are the values of `Age`, in seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// Send it.
    Fresh {
        /// The age.
        age_s: u32,
    },
    /// Send it stale, because the client permits that.
    Stale {
        /// The age.
        age_s: u32,
    },
    /// Send it stale, and validate it in the background, because the origin permits that.
    StaleWhileRevalidate {
        /// The age.
        age_s: u32,
    },
    /// Validate it first (section 4.3).
    Validate {
        /// The age.
        age_s: u32,
        /// Whether it may be sent stale if the origin cannot be reached, or if [`is_failure`] is
        /// true for the status of its response.
        is_stale_fallback: bool,
    },
    /// It cannot be used, and the client accepts nothing else: status 504 (section 5.2.1.7).
    OnlyIfCached,
}

/// Returns how a stored response may be used. `directives` are those of the request, or the default
/// if the route does not apply them.
///
/// If nothing is stored and `only_if_cached` is set, the caller responds with status 504 too.
pub fn reuse(meta: &Meta, directives: &RequestDirectives, now_ms: u64) -> Reuse {
    let age_s = meta.age_s(now_ms);
    let must_validate = directives.no_cache || meta.flags.contains(Flags::NO_CACHE);
    let stale_s = age_s.saturating_sub(meta.lifetime_s);
    if !must_validate && meta.lifetime_s > age_s {
        if is_new_enough(meta, directives, age_s) {
            return Reuse::Fresh { age_s };
        }
    } else if !must_validate && directives.min_fresh_s.is_none() {
        let is_young = directives.max_age_s.is_none_or(|most| is_within(age_s, most));
        let is_permitted = !meta.flags.contains(Flags::NO_STALE);
        if is_young && is_permitted && directives.max_stale_s.is_some_and(|most| stale_s <= most) {
            return Reuse::Stale { age_s };
        }
        if directives.max_age_s.is_none() && stale_s < meta.stale_while_revalidate_s {
            return Reuse::StaleWhileRevalidate { age_s };
        }
    }
    if directives.only_if_cached {
        return Reuse::OnlyIfCached;
    }
    Reuse::Validate { age_s, is_stale_fallback: !must_validate && stale_s < meta.stale_if_error_s }
}

/// Returns whether a status is a failure that a stale response may replace (RFC 5861 section 4).
pub fn is_failure(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

/// Returns whether a fresh response meets the request directives (RFC 9111 sections 5.2.1.1 and
/// 5.2.1.3).
///
/// RFC 8246 section 2: an immutable response does not change while it is fresh, so `max-age`, which
/// a reload sends, does not require validation. `no-cache` does; the caller checks it first.
fn is_new_enough(meta: &Meta, directives: &RequestDirectives, age_s: u32) -> bool {
    let left_s = meta.lifetime_s - age_s;
    let is_young = directives.max_age_s.is_none_or(|most| is_within(age_s, most));
    directives.min_fresh_s.is_none_or(|least| left_s >= least)
        && (is_young || meta.flags.contains(Flags::IMMUTABLE))
}

/// Returns whether a response is no older than a client requires. A client that sends `max-age=0`
/// reloads the page, so no response meets it, not even one of age 0.
fn is_within(age_s: u32, most_s: u32) -> bool {
    most_s > 0 && age_s <= most_s
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{DATE, NOW_MS, get, stored_response};
    use super::*;

    /// Returns the use of a response with these fields after `seconds` seconds.
    fn after(seconds: u64, fields: &str, request_fields: &str) -> Reuse {
        let stored = stored_response(&format!("{DATE}ETag: \"a\"\r\n{fields}\r\n"));
        let request = get(&format!("{request_fields}\r\n"));
        reuse(&stored.meta, &RequestDirectives::parse(&request), NOW_MS + seconds * 1000)
    }

    fn asking(seconds: u64, fields: &str, directives: &str) -> Reuse {
        after(seconds, fields, &format!("Cache-Control: {directives}"))
    }

    fn plain(seconds: u64, fields: &str) -> Reuse {
        asking(seconds, fields, "nothing-to-see-here")
    }

    const fn fresh(age_s: u32) -> Reuse {
        Reuse::Fresh { age_s }
    }

    const fn validate(age_s: u32) -> Reuse {
        Reuse::Validate { age_s, is_stale_fallback: false }
    }

    const HOUR: &str = "Cache-Control: max-age=3600";

    #[test]
    fn fresh_responses_are_used_section_4_2() {
        assert_eq!(plain(0, HOUR), fresh(0));
        assert_eq!(plain(3599, HOUR), fresh(3599));
        assert_eq!(plain(3600, HOUR), validate(3600));
        assert_eq!(plain(3, &format!("{HOUR}\r\nAge: 30")), fresh(33));
        assert_eq!(plain(0, "Cache-Control: max-age=0"), validate(0));
        assert_eq!(plain(0, &format!("{HOUR}\r\nAge: 7200")), validate(7200));
    }

    #[test]
    fn no_cache_validates_each_time_section_5_2_2_4() {
        assert_eq!(plain(0, "Cache-Control: max-age=60, no-cache"), validate(0));
        let spared = "Cache-Control: max-age=60, no-cache, stale-if-error=60";
        assert_eq!(asking(90, spared, "max-stale"), validate(90));
    }

    #[test]
    fn a_client_may_request_validation_section_5_2_1_4() {
        assert_eq!(asking(1, HOUR, "no-cache"), validate(1));
        assert_eq!(after(1, HOUR, "Pragma: no-cache"), validate(1));
        assert_eq!(after(1, HOUR, "Pragma: other"), fresh(1));
        assert_eq!(asking(1, HOUR, "no-store"), fresh(1), "section 5.2.1.5");
    }

    #[test]
    fn a_client_may_limit_the_age_section_5_2_1_1() {
        assert_eq!(asking(0, HOUR, "max-age=0"), validate(0));
        assert_eq!(asking(3, HOUR, "max-age=1"), validate(3));
        assert_eq!(asking(3, HOUR, "max-age=3"), fresh(3));
        assert_eq!(asking(0, &format!("{HOUR}\r\nAge: 1800"), "max-age=600"), validate(1800));
    }

    #[test]
    fn a_client_may_require_remaining_freshness_section_5_2_1_3() {
        assert_eq!(asking(0, HOUR, "min-fresh=3600"), fresh(0));
        assert_eq!(asking(1, HOUR, "min-fresh=3600"), validate(1));
        assert_eq!(asking(4000, HOUR, "max-stale, min-fresh=1"), validate(4000));
    }

    #[test]
    fn a_client_may_accept_stale_responses_section_5_2_1_2() {
        let stale = Reuse::Stale { age_s: 3700 };
        assert_eq!(asking(3700, HOUR, "max-stale=1000"), stale);
        assert_eq!(asking(3700, HOUR, "max-stale"), stale);
        assert_eq!(asking(3700, HOUR, "max-stale=99"), validate(3700));
        assert_eq!(asking(3700, HOUR, "max-stale, max-age=3600"), validate(3700));
        assert_eq!(asking(3700, HOUR, "max-stale, max-age=4000"), stale);
        for word in ["must-revalidate", "proxy-revalidate", "s-maxage=3600"] {
            let fields = format!("{HOUR}, {word}");
            assert_eq!(asking(3700, &fields, "max-stale"), validate(3700), "section 4.2.4");
        }
    }

    #[test]
    fn immutable_responses_are_not_reloaded_rfc_8246_section_2() {
        let fields = format!("{HOUR}, immutable");
        assert_eq!(asking(5, &fields, "max-age=0"), fresh(5));
        assert_eq!(asking(5, &fields, "no-cache"), validate(5));
        assert_eq!(asking(3600, &fields, "max-age=0"), validate(3600));
    }

    #[test]
    fn stale_while_it_is_validated_rfc_5861_section_3() {
        let fields = "Cache-Control: max-age=600, stale-while-revalidate=30";
        assert_eq!(plain(600, fields), Reuse::StaleWhileRevalidate { age_s: 600 });
        assert_eq!(plain(629, fields), Reuse::StaleWhileRevalidate { age_s: 629 });
        assert_eq!(plain(630, fields), validate(630));
        assert_eq!(asking(600, fields, "no-cache"), validate(600));
        assert_eq!(asking(600, fields, "max-age=700"), validate(600));
    }

    #[test]
    fn stale_if_the_origin_fails_rfc_5861_section_4() {
        let fields = "Cache-Control: max-age=600, stale-if-error=1200";
        assert_eq!(plain(1799, fields), Reuse::Validate { age_s: 1799, is_stale_fallback: true });
        assert_eq!(plain(1800, fields), validate(1800));
        assert_eq!(asking(900, fields, "no-cache"), validate(900));
        assert!([500, 502, 503, 504].into_iter().all(is_failure));
        assert!(![200, 404, 501, 505].into_iter().any(is_failure));
    }

    #[test]
    fn only_if_cached_is_never_forwarded_section_5_2_1_7() {
        assert_eq!(asking(1, HOUR, "only-if-cached"), fresh(1));
        assert_eq!(asking(3600, HOUR, "only-if-cached"), Reuse::OnlyIfCached);
        assert_eq!(asking(1, HOUR, "only-if-cached, no-cache"), Reuse::OnlyIfCached);
        assert_eq!(asking(4000, HOUR, "only-if-cached, max-stale"), Reuse::Stale { age_s: 4000 });
    }

    #[test]
    fn an_invalidated_response_is_validated_section_4_4() {
        let fields = "Cache-Control: max-age=600, stale-if-error=60, stale-while-revalidate=60\r\n";
        let mut meta = stored_response(fields).meta;
        meta.invalidate();
        let directives = RequestDirectives::parse(&get("Cache-Control: max-stale\r\n"));
        assert_eq!(reuse(&meta, &directives, NOW_MS + 610_000), validate(610));
    }
}
