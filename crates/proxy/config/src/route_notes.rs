//! Notes about routes that are valid, but probably mistakes: no request can reach them, or their
//! origins are not verified.

use millrace_http1::path::is_ambiguous;

use super::raw::ServiceKind;
use super::{Config, Route, Service, ServiceRole};

/// Returns a note for each such route.
pub(super) fn notes(config: &Config) -> impl Iterator<Item = String> {
    shadowed(config).chain(refused(config)).chain(unverified(config))
}

/// Returns a note for each route whose origins are not verified.
fn unverified(config: &Config) -> impl Iterator<Item = String> {
    let routes = config.services.iter().flat_map(Service::routes);
    let is_unverified = |route: &&Route| route.origin_tls.as_ref().is_some_and(|tls| !tls.verify);
    routes.filter(is_unverified).map(|route| {
        format!(
            "note: route {}: the certificates of its origins are not verified, so an attacker in \
             the network can read and change all traffic (expected: origin-verify on, with \
             origin-ca if needed)",
            described(route)
        )
    })
}

/// Returns a note for each route whose own path `path-strict` refuses.
fn refused(config: &Config) -> impl Iterator<Item = String> {
    let strict = config.services.iter().filter(|service| service.path_strict);
    let routes = strict.flat_map(Service::routes);
    let is_refused = |route: &&Route| {
        let path = route.path.as_bytes();
        is_ambiguous(path, |reading| reading != path)
    };
    routes.filter(is_refused).map(|route| {
        format!(
            "note: no request reaches route path {}: path-strict refuses it, because origins may \
             interpret it in several ways (expected: another path, or path-strict off)",
            route.path
        )
    })
}

/// Returns a note for each route that an earlier route of its service shadows.
fn shadowed(config: &Config) -> impl Iterator<Item = String> {
    let reverse_proxies =
        config.services.iter().enumerate().filter_map(|(service, it)| match &it.role {
            ServiceRole::Boost(routes) => Some((service, routes)),
            ServiceRole::Forward(_) => None,
        });
    reverse_proxies.flat_map(move |(service, routes)| {
        (1..routes.len()).filter_map(move |at| {
            let shadowing =
                routes[..at].iter().position(|earlier| shadows(earlier, &routes[at]))?;
            let listener = config.listeners.iter().find(|listener| listener.service == service);
            Some(format!(
                "note: {} at {}: no request reaches route {} ({}), because route {} ({}) \
                 matches first{}",
                match config.services[service].name.kind() {
                    ServiceKind::Serve => "file server",
                    ServiceKind::Forward | ServiceKind::Boost => "reverse proxy",
                },
                listener.map_or_else(String::new, |listener| listener.address.to_string()),
                at + 1,
                described(&routes[at]),
                shadowing + 1,
                described(&routes[shadowing]),
                match is_duplicate(&routes[shadowing], &routes[at]) {
                    true => " and is the same",
                    false => "; a longer path or a narrower host belongs before it",
                }
            ))
        })
    })
}

fn described(route: &Route) -> String {
    let path = &route.path;
    route
        .host
        .as_ref()
        .map_or_else(|| format!("path {path}"), |host| format!("host {host}, path {path}"))
}

/// Returns whether every request that `later` matches is one that `earlier` matches.
fn shadows(earlier: &Route, later: &Route) -> bool {
    later.path.starts_with(&earlier.path)
        && match (&earlier.host, &later.host) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(earlier), Some(later)) => {
                let is_below =
                    earlier.strip_prefix('*').is_some_and(|below| later.ends_with(below));
                earlier == later || is_below
            }
        }
}

fn is_duplicate(one: &Route, other: &Route) -> bool {
    (&one.host, &one.path) == (&other.host, &other.path)
}

#[cfg(test)]
mod tests {
    use crate::from_toml;

    fn notes(routes: &[&str]) -> Vec<String> {
        let route = |lines: &&str| format!("[[boost.route]]\norigins = 'http://a'\n{lines}\n");
        let file = routes.iter().map(route).collect::<String>();
        super::notes(&from_toml(&format!("[[boost]]\n{file}")).unwrap()).collect()
    }

    #[test]
    fn a_shadowed_route_is_noted() {
        let noted = notes(&["path = '/'", "path = '/api/'"]);
        let expected = "note: reverse proxy at 127.0.0.1:8080: no request reaches route 2 (path /api/), \
                        because route 1 (path /) matches first; a longer path or a narrower host \
                        belongs before it";
        assert_eq!(noted, [expected]);
        let noted = notes(&["host = 'a.example'", "path = '/b'", "host = 'a.example'"]);
        assert!(
            noted.len() == 1 && noted[0].ends_with("matches first and is the same"),
            "{noted:?}"
        );
        for (first, second) in [
            ("host = '*.example.org'", "host = 'a.example.org'"),
            ("host = '*.example.org'", "host = '*.b.example.org'"),
            ("path = '/a'", "host = 'a.example'\npath = '/ab'"),
        ] {
            assert_eq!(notes(&[first, second]).len(), 1, "{first} {second}");
            assert_eq!(notes(&[second, first]).len(), 0, "{second} {first}");
        }
        assert_eq!(notes(&["path = '/api/'", "host = 'a'", "path = '/'"]).len(), 0);
        let text = "[[serve]]\nfolder = '/srv'\n[[serve.route]]\nhost = 'a'\nfolder = '/a'\n";
        assert_eq!(super::notes(&from_toml(text).unwrap()).count(), 0);
        let text = text.replace("host = 'a'", "");
        let noted: Vec<_> = super::notes(&from_toml(&text).unwrap()).collect();
        assert!(noted.len() == 1 && noted[0].starts_with("note: file server at 127"), "{noted:?}");
        let noted = notes(&["path = '/a%2Fb'", "path = '/a/'"]);
        assert!(noted.len() == 1 && noted[0].contains("route path /a%2Fb"), "{noted:?}");
    }
}
