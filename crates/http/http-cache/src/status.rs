//! What a cache knows about statuses.

/// Whether a response of this status may be stored without being asked for: heuristically cacheable,
/// RFC 9110 section 15.1.
pub(super) fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether a status is understood, for `must-understand` (RFC 9111 section 5.2.2.3): it is
/// registered, and nothing is asked of caches that is not done here.
pub(super) fn is_understood(status: u16) -> bool {
    matches!(
        status,
        200..=206 | 300..=303 | 305 | 307 | 308 | 400..=418 | 421..=424 | 426 | 428 | 429 | 431
            | 451 | 500..=506 | 511
    )
}

/// Whether a status may be about the one request and not about its target, so that a response with
/// it is stored only if the operator names the status in `cache-ttl`. Origins respond 400 to fields
/// that they find too long or too odd, 401 to missing credentials, and 429 to one client: such a
/// response with a lifetime of its own would deny the page to all clients.
pub(super) fn needs_operator(status: u16) -> bool {
    matches!(status, 400 | 401 | 429)
}

/// Whether a response of this status is about what was asked for, and not about how this one request
/// was made: its connection, its body, its conditions, its range, its size. Such a response is
/// nobody else's, whatever it says of caches; what it depends on is in no key.
pub(super) fn is_of_resource(status: u16) -> bool {
    let is_of_request =
        matches!(status, 304 | 407 | 408 | 411..=413 | 415..=417 | 421 | 425 | 426 | 431);
    status >= 200 && !is_of_request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heuristics_are_for_few_statuses_rfc_9110_section_15_1() {
        assert!([200, 203, 204, 301, 308, 404, 405, 410, 414, 501].into_iter().all(is_heuristic));
        assert!(![201, 202, 302, 303, 307, 403, 502, 503, 504, 599].into_iter().any(is_heuristic));
    }

    #[test]
    fn unknown_statuses_are_not_understood_section_5_2_2_3() {
        assert!([200, 301, 404, 503].into_iter().all(is_understood));
        assert!(![299, 304, 306, 499, 599].into_iter().any(is_understood));
    }

    #[test]
    fn some_statuses_are_about_the_request() {
        assert!([200, 206, 299, 400, 404, 499, 599].into_iter().all(is_of_resource));
        assert!(![100, 103, 304, 407, 412, 416, 431].into_iter().any(is_of_resource));
        assert!([400, 401, 429].into_iter().all(needs_operator));
        assert!(![200, 403, 404, 410, 500].into_iter().any(needs_operator));
    }
}
