//! The route of a request: the first whose host and path match.

use millrace_config::{Route, Service};
use millrace_http1::{Destination, Host, path};

use crate::exchange::reason::Reason;

/// Selects the first route that matches host and path. If routes have paths, the normal form of the
/// path is compared. With `path-strict`, a request is refused if its origin may read the path as
/// that of another route.
pub(crate) fn select(
    routes: &[Route],
    service: &Service,
    destination: &Destination<'_>,
) -> Result<u16, Reason> {
    let host = || destination.authority.map(|authority| authority.host);
    if routes.iter().all(|route| route.path == "/") {
        return route_index(routes.iter().position(|route| matches_host(route, host)));
    }
    let find = |path: &[u8]| {
        let is_match = |route: &Route| matches_path(route, path) && matches_host(route, host);
        route_index(routes.iter().position(is_match))
    };
    let (path, _) = path::split_query(destination.path_and_query);
    let selected = find(&path::normalise(path));
    if service.path_strict && path::is_ambiguous(path, |reading| find(reading) != selected) {
        return Err(Reason::AmbiguousPath);
    }
    selected
}

/// Returns the route for this path, in its normal form, and the host of a request.
pub(crate) fn select_for_path<'a>(
    service: &'a Service,
    destination: &Destination<'_>,
    path: &[u8],
) -> Option<&'a Route> {
    let host = || destination.authority.map(|authority| authority.host);
    let is_match = |route: &&Route| matches_path(route, path) && matches_host(route, host);
    service.routes().iter().find(is_match)
}

fn route_index(index: Option<usize>) -> Result<u16, Reason> {
    index.map(|index| index as u16).ok_or(Reason::NoRoute)
}

fn matches_path(route: &Route, path: &[u8]) -> bool {
    path.starts_with(route.path.as_bytes()) || path == b"*"
}

fn matches_host<'a>(route: &Route, host: impl Fn() -> Option<Host<'a>>) -> bool {
    let is_match = |wanted: &String| host().is_some_and(|host| host_matches(wanted, host));
    route.host.as_ref().is_none_or(is_match)
}

fn host_matches(wanted: &str, host: Host<'_>) -> bool {
    match host {
        Host::Name(name) => {
            let name = name.strip_suffix(b".").unwrap_or(name);
            match wanted.strip_prefix('*') {
                Some(below) => name
                    .len()
                    .checked_sub(below.len())
                    .is_some_and(|at| at > 0 && name[at..].eq_ignore_ascii_case(below.as_bytes())),
                None => name.eq_ignore_ascii_case(wanted.as_bytes()),
            }
        }
        Host::V4(address) => wanted.parse() == Ok(address),
        Host::V6(address) => wanted.trim_matches(['[', ']']).parse() == Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_config::{ServiceRole, from_toml};

    #[test]
    fn ambiguous_paths_are_refused_only_if_routes_have_paths() {
        let route =
            |path: &str| format!("[[boost.route]]\norigins = 'http://a'\npath = '{path}'\n");
        let outcome = |boost: &str, paths: &[&str], path: &str| {
            let routes: String = paths.iter().map(|path| route(path)).collect();
            let config = from_toml(&format!("[[boost]]\n{boost}{routes}")).unwrap();
            let service = &config.services[0];
            let ServiceRole::Boost(routes) = &service.role else {
                unreachable!("the role is boost")
            };
            let destination = Destination {
                scheme: None,
                authority: None,
                authority_bytes: b"",
                path_and_query: path.as_bytes(),
            };
            select(routes, service, &destination)
        };
        let routes = ["/static/", "/account", "/"];
        for path in [
            "/static/..%2faccount",
            "/static/../account",
            "//account",
            "/static/a%2fb/../..%2faccount",
            "/static/a%5cb/../..%5caccount",
            "/static/a%2fb/../c",
            "/static/..;/account",
            "/account%00",
        ] {
            assert_eq!(outcome("", &routes, path), Err(Reason::AmbiguousPath), "{path}");
            assert!(outcome("path-strict = false\n", &routes, path).is_ok(), "{path}");
            assert_eq!(outcome("", &["/"], path), Ok(0), "{path}");
        }
        let long = format!("/static/{}", "%20".repeat(2000));
        for path in
            ["/static/a%2fb", "/static/a;b", "/static/x/../y", "/static/caf%c3%a9?/../", &long]
        {
            assert_eq!(outcome("", &routes, path), Ok(0), "{path}");
        }
        assert_eq!(outcome("", &routes, "/%61ccount"), Ok(1));
    }

    #[test]
    fn a_wildcard_matches_subdomains_and_not_the_domain_itself() {
        let name = |text: &'static str| Host::Name(text.as_bytes());
        assert!(host_matches("*.example.org", name("WWW.example.ORG.")));
        assert!(!host_matches("*.example.org", name("example.org")));
        assert!(!host_matches("*.example.org", name("notexample.org")));
        assert!(host_matches("example.org", name("Example.org")));
        assert!(!host_matches("example.org", name("example.org.net")));
        assert!(host_matches("10.0.0.1", Host::V4([10, 0, 0, 1].into())));
        assert!(host_matches("[::1]", Host::V6(std::net::Ipv6Addr::LOCALHOST)));
    }
}
