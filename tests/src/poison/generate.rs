//! Generates mutants of a class from random numbers.

use std::net::Ipv4Addr;

use super::fields::{
    VARIED, control, in_lines, innocent_link, innocent_value, is_negotiated, link, near, near_lines,
};
use super::model::{CookieOn, Model};
use super::mutant::{Attack, Class, LONG, Mutant, Probe, Request, Service};
use super::paths;
use crate::corpus::random::Random;

/// A victim that no program trusts.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Another untrusted victim.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// A peer that [`Service::Trusting`] trusts.
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 2);

impl Mutant {
    /// Returns the mutant of these random numbers. `index` spreads attackers over addresses, so
    /// that no address runs out of ports.
    pub(super) fn new(class: Class, random: &mut Random, index: u64) -> Self {
        let overlaps = class != Class::Early && random.below(8) == 0;
        let maker = MutantBuilder { random, index };
        let mutant = match class {
            Class::Path => maker.path(),
            Class::Trusted => maker.links(class, Service::Trusting),
            Class::Unkeyed => maker.unkeyed(),
            Class::Forwarded => maker.links(class, Service::Forward),
            Class::Vary => maker.vary(),
            Class::Host => maker.host(),
            Class::Head => maker.head(),
            Class::Groups => maker.groups(),
            Class::Errors => maker.errors(),
            Class::Cookies => maker.cookies(),
            Class::Private => maker.private(),
            Class::Early => maker.early(),
        };
        let model = Model { is_slow: overlaps, ..mutant.model };
        Self { model, overlaps, ..mutant }
    }
}

struct MutantBuilder<'a> {
    random: &'a mut Random,
    index: u64,
}

impl MutantBuilder<'_> {
    fn one_in(&mut self, count: usize) -> bool {
        self.random.below(count) == 0
    }

    fn attacker(&self, is_trusted: bool) -> Ipv4Addr {
        let part = |divisor: u64| u8::try_from(1 + self.index / divisor % 250).expect("below 251");
        Ipv4Addr::new(127, if is_trusted { 1 } else { 3 }, part(250), part(1))
    }

    fn probe(&self, service: Service, from: Ipv4Addr, request: Request) -> Probe {
        Probe { service, from, request }
    }

    fn attack(&self, service: Service, is_trusted: bool, requests: Vec<Request>) -> Attack {
        Attack { service, from: self.attacker(is_trusted), requests }
    }

    /// Adds fields that a client may add to any request, and sometimes changes its method or
    /// version.
    fn spice(&mut self, request: &mut Request) {
        while self.one_in(3) {
            let line = control(self.random, &request.fields);
            let at = self.random.below(request.fields.len() + 1);
            request.fields.insert(at, line);
        }
        if self.one_in(12) {
            request.method = self.random.choose(&["HEAD", "POST", "OPTIONS"]).to_owned();
        }
        request.is_old = self.one_in(12);
    }

    /// A link leads a client with a session to a path. Other clients then request the path, without
    /// a session or with another one.
    fn path(mut self) -> Mutant {
        let is_careless = self.one_in(4);
        let reading = paths::reading(self.random);
        let choices = [Service::Paths, Service::Paths, Service::Normalised, Service::TrustingPaths];
        let service = choices[self.random.below(4)];
        let is_trusting = service.is_trusting();
        let reflects = self.one_in(3);
        let model = Model { reading, accounts: true, is_careless, reflects, ..Model::default() };
        let target = Request::get(&paths::path(self.random));
        let mut lured = target.clone().with("Cookie", "session=alice");
        if reflects || is_trusting {
            for _ in 0..self.random.below(3) {
                lured.fields.push(link(self.random));
            }
        }
        self.spice(&mut lured);
        let mut after = vec![target.clone(), target.with("Cookie", "session=bob")];
        if self.one_in(2) {
            after.push(Request::get("/account").with("Cookie", "session=bob"));
        }
        if self.one_in(3) {
            after.push(Request::get(self.random.choose(&["/static/app.js", "/news"])));
        }
        let is_behind = is_trusting && self.one_in(2);
        if is_behind {
            let lines = innocent_link(self.random);
            after.iter_mut().for_each(|it| it.fields.extend(lines.clone()));
        }
        let from = if is_behind { BALANCER } else { CLIENT };
        let after = after.into_iter().map(|it| self.probe(service, from, it)).collect();
        let is_trusted = is_trusting && self.one_in(2);
        let attack = self.attack(service, is_trusted, vec![lured]);
        Mutant { class: Class::Path, model, before: Vec::new(), attack, overlaps: false, after }
    }

    fn unkeyed(mut self) -> Mutant {
        let service = if self.one_in(3) { Service::Passing } else { Service::Plain };
        self.links(Class::Unkeyed, service)
    }

    /// Fields from which origins build links, schemes, paths and methods.
    fn links(mut self, class: Class, service: Service) -> Mutant {
        let model = Model {
            reflects: true,
            forces_https: self.one_in(3),
            validates: self.one_in(3),
            ..Model::default()
        };
        let mut after = vec![self.innocent(service)];
        if self.one_in(2) {
            after.push(self.innocent(service));
        }
        let mut attacks = Vec::new();
        for _ in 0..=self.random.below(2) {
            let mut request = Request::get("/page");
            if self.one_in(3) {
                request.fields = near_lines(self.random, &after[0].request.fields);
            }
            for _ in 0..self.random.below(4) {
                let line = link(self.random);
                request.fields.push(line);
            }
            self.spice(&mut request);
            if self.one_in(10) {
                request.body = "a=evil".to_owned();
            }
            attacks.push(request);
        }
        let is_trusted = service == Service::Trusting && self.one_in(2);
        let before = if self.one_in(3) { vec![self.innocent(service)] } else { Vec::new() };
        let attack = self.attack(service, is_trusted, attacks);
        Mutant { class, model, before, attack, overlaps: false, after }
    }

    fn innocent(&mut self, service: Service) -> Probe {
        let is_behind = service == Service::Trusting && self.one_in(2);
        let mut request = Request::get("/page");
        if is_behind || service == Service::Passing || self.one_in(6) {
            request.fields = innocent_link(self.random);
        }
        if self.one_in(8) {
            request.method = "HEAD".to_owned();
        }
        self.probe(service, if is_behind { BALANCER } else { CLIENT }, request)
    }

    /// Values that a cache may confuse with those of another client.
    fn vary(mut self) -> Mutant {
        let service = match self.random.below(5) {
            0 => Service::Forward,
            1 | 2 => Service::Trusting,
            _ => Service::Plain,
        };
        let mut names: Vec<&str> = Vec::new();
        for _ in 0..=self.random.below(3) {
            let name = self.random.choose(&VARIED);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let vary = names.iter().map(|name| (*name).to_owned()).collect();
        let model = Model { vary, validates: self.one_in(4), ..Model::default() };
        let (mut clean, mut near_it) = (Request::get("/page"), Request::get("/page"));
        for name in names {
            let value = innocent_value(self.random, name);
            let changed =
                if self.one_in(3) { value.clone() } else { near(self.random, value.as_deref()) };
            if let Some(changed) = changed {
                // A negotiated field keeps the spelling of its name, and stays in one line.
                let lines = match is_negotiated(name) {
                    true => vec![(name.to_owned(), changed)],
                    false => in_lines(self.random, name, &changed),
                };
                near_it.fields.extend(lines);
            }
            clean.fields.extend(value.map(|value| (name.to_owned(), value)));
        }
        self.spice(&mut near_it);
        let is_behind = service == Service::Trusting && self.one_in(2);
        let from = if is_behind { BALANCER } else { CLIENT };
        let is_trusted = service == Service::Trusting && self.one_in(2);
        let before = if self.one_in(6) {
            vec![self.probe(service, OTHER, Request::get("/page"))]
        } else {
            Vec::new()
        };
        let attack = self.attack(service, is_trusted, vec![near_it]);
        let after = vec![self.probe(service, from, clean)];
        Mutant { class: Class::Vary, model, before, attack, overlaps: false, after }
    }

    /// Another spelling of Host and of the host of the target: in another case, or with a port.
    fn host(mut self) -> Mutant {
        let choices = [Service::Plain, Service::Trusting, Service::Second];
        let service = choices[self.random.below(3)];
        let model = Model { reflects: true, forces_https: self.one_in(3), ..Model::default() };
        let mut request = Request::get("/page");
        let host = random_host(self.random);
        request.is_absolute = self.one_in(4);
        request.host = host;
        if self.one_in(4) {
            request.fields.push(link(self.random));
        }
        self.spice(&mut request);
        let is_trusted = self.one_in(2);
        let after = vec![self.probe(service, CLIENT, Request::get("/page"))];
        let attack = self.attack(service, is_trusted, vec![request]);
        Mutant { class: Class::Host, model, before: Vec::new(), attack, overlaps: false, after }
    }

    /// HEAD for a stored page.
    fn head(mut self) -> Mutant {
        let service = self.shared_service();
        let model = Model {
            head_differs: true,
            validates: self.one_in(2),
            reflects: self.one_in(2),
            ..Model::default()
        };
        let page = Request::get("/page");
        let mut request = Request { method: "HEAD".to_owned(), ..page.clone() };
        if !self.one_in(4) {
            request = request.with("Cache-Control", "no-cache");
        }
        if self.one_in(3) {
            request.fields.push(link(self.random));
        }
        self.spice(&mut request);
        let before = vec![self.probe(service, OTHER, page.clone())];
        let after = vec![self.probe(service, CLIENT, page)];
        let attack = self.attack(service, false, vec![request]);
        Mutant { class: Class::Head, model, before, attack, overlaps: false, after }
    }

    /// An unsafe request to one service, whose response invalidates a group that another service
    /// has stored.
    fn groups(mut self) -> Mutant {
        let model = Model { groups: true, counts: true, ..Model::default() };
        let mut services = vec![Service::Plain, Service::Second, Service::Trusting];
        let here = services.remove(self.random.below(3));
        let there = services.remove(self.random.below(2));
        let is_trusted = here.is_trusting() && self.one_in(2);
        let method = self.random.choose(&["POST", "PUT", "DELETE", "PATCH"]).to_owned();
        let path = self.random.choose(&["/page", "/order"]).to_owned();
        let mut request = Request { method, body: "a=1".to_owned(), ..Request::get(&path) };
        if self.one_in(2) {
            request.body.clear();
        }
        if self.one_in(3) {
            request.host = random_host(self.random);
        }
        while self.one_in(3) {
            request.fields.push(control(self.random, &[]));
        }
        let page = Request::get("/page");
        let before = vec![self.probe(there, OTHER, page.clone())];
        let after = vec![self.probe(there, CLIENT, page)];
        let attack = self.attack(here, is_trusted, vec![request]);
        Mutant { class: Class::Groups, model, before, attack, overlaps: false, after }
    }

    /// A request that the origin refuses, with a response that has a lifetime.
    fn errors(mut self) -> Mutant {
        const STATUSES: [u16; 9] = [400, 400, 401, 401, 429, 429, 413, 417, 431];
        let service = match self.one_in(3) {
            true => Service::Paths,
            false => self.shared_service(),
        };
        let error = Some(STATUSES[self.random.below(STATUSES.len())]);
        let model = Model { error, validates: self.one_in(3), ..Model::default() };
        let page = Request::get("/static/page");
        let mut request = match self.one_in(2) {
            true => page.clone().with("X-Bad", "1"),
            false => page.clone().with("X-Long", &"a".repeat(LONG)),
        };
        self.spice(&mut request);
        let before = if self.one_in(3) {
            vec![self.probe(service, OTHER, page.clone())]
        } else {
            Vec::new()
        };
        let after = vec![self.probe(service, CLIENT, page)];
        let attack = self.attack(service, false, vec![request]);
        Mutant { class: Class::Errors, model, before, attack, overlaps: false, after }
    }

    /// Fields for one client in a full response, a 304, or a response to HEAD.
    fn cookies(mut self) -> Mutant {
        let service = self.shared_service();
        let (on, name) = match self.random.below(3) {
            0 => (CookieOn::Get, "Set-Cookie"),
            1 => (CookieOn::NotModified, self.cookie_name()),
            _ => (CookieOn::Head, self.cookie_name()),
        };
        let validates = on == CookieOn::NotModified || self.one_in(2);
        let model = Model { cookie: Some((on, name)), validates, ..Model::default() };
        let page = |client: &str| Request::get("/page").with("User-Agent", client);
        let mut request = page("alice");
        if on == CookieOn::Head {
            request.method = "HEAD".to_owned();
        }
        if on != CookieOn::Get || self.one_in(3) {
            request = request.with("Cache-Control", "no-cache");
        }
        while self.one_in(3) {
            let line = control(self.random, &request.fields);
            request.fields.push(line);
        }
        let before = match on == CookieOn::Get {
            true => Vec::new(),
            false => vec![self.probe(service, OTHER, page("carol"))],
        };
        let after = vec![self.probe(service, CLIENT, page("bob"))];
        let attack = self.attack(service, false, vec![request]);
        Mutant { class: Class::Cookies, model, before, attack, overlaps: false, after }
    }

    fn cookie_name(&mut self) -> &'static str {
        ["Set-Cookie", "Set-Cookie2", "Clear-Site-Data"][self.random.below(3)]
    }

    /// A client with credentials gets `private` for a stored page, in a full response or in a 304.
    fn private(mut self) -> Mutant {
        let service = self.shared_service();
        let model = Model {
            private_to_credentials: true,
            counts: true,
            validates: self.one_in(2),
            ..Model::default()
        };
        let page = Request::get("/page");
        let mut request = page.clone();
        let which = self.random.below(4);
        if which != 0 {
            request = request.with("Cookie", "a=1");
        }
        if which < 2 {
            request = request.with("Authorization", "Basic YTpi");
        }
        if !self.one_in(4) {
            request = request.with("Cache-Control", "no-cache");
        }
        while self.one_in(3) {
            let line = control(self.random, &[("Accept".to_owned(), String::new())]);
            request.fields.push(line);
        }
        let before = vec![self.probe(service, OTHER, page.clone())];
        let after = vec![self.probe(service, CLIENT, page)];
        let attack = self.attack(service, false, vec![request]);
        Mutant { class: Class::Private, model, before, attack, overlaps: false, after }
    }

    /// A body that the origin takes for the next request on the connection, because it never reads
    /// a body.
    fn early(mut self) -> Mutant {
        let smuggled = match self.random.below(4) {
            0 => "GET /evil HTTP/1.1\r\nHost: {T}.test\r\n\r\n",
            1 => "GET /evil HTTP/1.1\r\nHost: {T}.test\r\nX: ",
            2 => "GET /evil HTTP/1.1\r\nX-Rest: ",
            _ => "HEAD /evil HTTP/1.1\r\nHost: {T}.test\r\n\r\n",
        };
        let method = self.random.choose(&["POST", "PUT", "GET", "DELETE"]).to_owned();
        let early = Some(match self.one_in(2) {
            true => 0,
            false => self.random.below(smuggled.len()),
        });
        let path = self.random.choose(&["/con", "/page", "/form", "/100"]).to_owned();
        let mut request =
            Request { method, body: smuggled.to_owned(), early, ..Request::get(&path) };
        request.is_chunked = self.one_in(3);
        if self.one_in(4) {
            request = request.with("Expect", "100-continue");
        }
        let choices = [Service::Early, Service::TrustingEarly];
        let service = choices[self.random.below(2)];
        let is_trusted = service.is_trusting() && self.one_in(2);
        while self.one_in(3) {
            request.fields.push(control(self.random, &[]));
        }
        let victims = ["/victim", "/page", "/page"].map(Request::get);
        let after = victims.map(|it| self.probe(service, CLIENT, it)).into();
        let attack = self.attack(service, is_trusted, vec![request]);
        Mutant {
            class: Class::Early,
            model: Model::default(),
            before: Vec::new(),
            attack,
            overlaps: false,
            after,
        }
    }

    fn shared_service(&mut self) -> Service {
        let choices = [Service::Plain, Service::Plain, Service::Trusting, Service::Forward];
        choices[self.random.below(4)]
    }
}

/// Returns a spelling of the mutant's host.
fn random_host(random: &mut Random) -> String {
    let name = random.choose(&["{T}.test", "{T}.TEST", "{T}.Test", "{T}.tesT", "{T}.test."]);
    let port = random.choose(&["", ":80", ":80", ":8000", ":443"]);
    format!("{name}{port}")
}
