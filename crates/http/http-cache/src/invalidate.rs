//! Invalidation of stored responses (RFC 9111 section 4.4).

use millrace_http1::{FieldName, RequestHead, ResponseHead, destination};

use super::key::UriOrigin;
use super::uri;

/// Returns the paths and queries, on the origin of the request, whose stored responses must be
/// validated before their next use. The request's own target comes first. The result is empty for
/// safe methods and for error responses. The caller derives the keys of GET requests from them,
/// with the fields of this request if the keys of the route contain fields.
///
/// RFC 9111 section 4.4: only methods that are not known to be safe, and only a status of 2xx or
/// 3xx, invalidate. `Location` and `Content-Location` apply only to the same origin, so that one
/// origin cannot invalidate responses of another.
pub fn invalidated_paths(
    request: &RequestHead,
    response: &ResponseHead,
    site: &UriOrigin<'_>,
) -> Vec<Vec<u8>> {
    let is_success = (200..400).contains(&response.status());
    let Ok(destination) = destination(request) else { return Vec::new() };
    if request.method().is_safe() || !is_success || destination.path_and_query.is_empty() {
        return Vec::new();
    }
    let target = destination.path_and_query;
    let mut paths = vec![target.to_vec()];
    for name in [FieldName::Location, FieldName::ContentLocation] {
        let mut references = response.values(name);
        let path = references.next().and_then(|value| uri::resolve(value, site, target));
        paths.extend(path.filter(|path| !paths.contains(path)));
    }
    paths
}

#[cfg(test)]
mod tests {
    use millrace_http1::{Authority, Scheme};

    use super::super::test_messages::{request, response};
    use super::*;

    fn paths(method: &str, status: u16, fields: &str) -> Vec<String> {
        paths_at(Scheme::Http, method, status, fields)
    }

    fn paths_at(scheme: Scheme, method: &str, status: u16, fields: &str) -> Vec<String> {
        let request = request(&format!("{method} /a/b?c HTTP/1.1"), "");
        let authority = Authority::parse(b"example.com").unwrap();
        let site = UriOrigin { scheme, authority };
        let paths = invalidated_paths(&request, &response(status, fields), &site);
        paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn unsafe_methods_invalidate_section_4_4() {
        for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH", "get"] {
            assert_eq!(paths(method, 200, ""), ["/a/b?c"], "{method}");
            assert_eq!(paths(method, 303, ""), ["/a/b?c"], "{method}");
        }
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(paths(method, 200, "Location: /x\r\n").is_empty(), "{method}");
        }
    }

    #[test]
    fn errors_do_not_invalidate_section_4_4() {
        for status in [400, 404, 500, 503] {
            assert!(paths("POST", status, "Location: /x\r\n").is_empty());
        }
    }

    #[test]
    fn locations_in_the_response_are_invalidated_section_4_4() {
        let fields = "Location: ../d\r\nContent-Location: http://example.com/e?f#g\r\n";
        assert_eq!(paths("POST", 201, fields), ["/a/b?c", "/d", "/e?f"]);
        let same = "Location: /a/b?c\r\nContent-Location: /d\r\n";
        assert_eq!(paths("PUT", 201, same), ["/a/b?c", "/d"]);
    }

    #[test]
    fn other_origins_are_left_alone_section_4_4() {
        let fields =
            "Location: http://other.example/d\r\nContent-Location: https://example.com/\r\n";
        assert_eq!(paths("POST", 201, fields), ["/a/b?c"]);
        let fields = "Location: https://example.com:443/d\r\nContent-Location: //example.com/e\r\n";
        assert_eq!(paths_at(Scheme::Https, "POST", 201, fields), ["/a/b?c", "/d", "/e"]);
        let fields = "Location: http://example.com/d\r\n";
        assert_eq!(paths_at(Scheme::Https, "POST", 201, fields), ["/a/b?c"]);
    }
}
