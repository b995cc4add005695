//! Properties of status codes that matter to a cache.

/// Returns whether a status is heuristically cacheable (RFC 9110 section 15.1).
pub(super) fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Returns whether a status is understood, for `must-understand` (RFC 9111 section 5.2.2.3): it is
/// registered, and this cache meets its requirements.
pub(super) fn is_understood(status: u16) -> bool {
    matches!(
        status,
        200..=206 | 300..=303 | 305 | 307 | 308 | 400..=418 | 421..=424 | 426 | 428 | 429 | 431
            | 451 | 500..=506 | 511
    )
}

/// Returns whether a status may concern one request rather than its target, so that the response is
/// stored only if the operator names the status in `cache-ttl`. Origins respond with 400 to fields
/// that they find too long or malformed, with 401 to missing credentials, and with 429 to one
/// client. If the lifetime in such a response were enough to store it, one client could deny the
/// page to all others.
pub(super) fn needs_operator(status: u16) -> bool {
    matches!(status, 400 | 401 | 429)
}

/// Returns whether a status concerns the target of the request. Other statuses concern the
/// connection, body, conditions, range or size of one request. These properties are in no key, so
/// such a response is not stored, whatever its directives.
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
    fn some_statuses_concern_the_request() {
        assert!([200, 206, 299, 400, 404, 499, 599].into_iter().all(is_of_resource));
        assert!(![100, 103, 304, 407, 412, 416, 431].into_iter().any(is_of_resource));
        assert!([400, 401, 429].into_iter().all(needs_operator));
        assert!(![200, 403, 404, 410, 500].into_iter().any(needs_operator));
    }
}
