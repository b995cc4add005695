//! The table of origins of a worker. It keeps a configured origin while a snapshot in use names
//! it, and an origin that a client of a forward proxy requested while an exchange or a connection
//! uses it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use millrace_engine::Buffer;
use millrace_http1::Host;

use crate::origin::shared_health::{OriginCounters, SharedHealth};
use crate::origin::{
    ConnectRules, ConnectRulesId, Health, OriginAddress, OriginId, Origins, state::OriginState,
};
use millrace_config::{Origin, OriginTls};
use millrace_tls::{ClientSettings, ServerName};

impl Origins {
    /// Returns the id of these connect rules. `settings` creates the TLS settings of new rules.
    pub(crate) fn intern_rules(
        &mut self,
        rules: ConnectRules,
        settings: impl FnOnce(&OriginTls) -> ClientSettings,
    ) -> ConnectRulesId {
        self.rules.intern(rules, settings)
    }

    /// Returns the id of an origin that the configuration of a service names.
    pub(crate) fn intern_configured(
        &mut self,
        rules: ConnectRulesId,
        origin: &Origin,
        shared_health: &SharedHealth,
    ) -> OriginId {
        self.identity_buffer.clear();
        self.identity_buffer.extend_from_slice(&rules.0.to_be_bytes());
        match origin {
            Origin::Tcp { host, port, .. } => {
                self.identity_buffer.extend_from_slice(&port.to_be_bytes());
                self.identity_buffer.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            Origin::Unix(path) => {
                self.identity_buffer.extend_from_slice(&0u16.to_be_bytes());
                self.identity_buffer.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
        }
        let id = self.intern(rules, || origin.into());
        let server_name = self.server_name(rules, origin);
        let state = self.state_mut(id);
        state.server_name = server_name;
        state.is_configured = true;
        state.is_from_client = false;
        state.shared.get_or_insert_with(|| shared_health.register_origin(origin));
        // The shared health of this origin has to be read before the next pick.
        self.invalidate_health();
        id
    }

    /// Returns the id of an origin that a client of a forward proxy requested. Names are compared
    /// without regard to case and to a dot at their end. If `is_absolute`, the resolver's search
    /// list is not applied to names; the caller passes the same value for the same `rules` each
    /// time.
    pub(crate) fn intern_requested(
        &mut self,
        rules: ConnectRulesId,
        host: Host<'_>,
        port: u16,
        is_absolute: bool,
    ) -> OriginId {
        self.identity_buffer.clear();
        self.identity_buffer.extend_from_slice(&rules.0.to_be_bytes());
        self.identity_buffer.extend_from_slice(&port.to_be_bytes());
        let ip = match host {
            Host::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                self.identity_buffer.extend(name.iter().map(|byte| byte.to_ascii_lowercase()));
                let end = if is_absolute { &b"."[..] } else { b"" };
                let address =
                    || OriginAddress::Name([name, end].concat().to_ascii_lowercase().into(), port);
                return self.intern(rules, address);
            }
            Host::V4(ip) => IpAddr::V4(ip),
            Host::V6(ip) => IpAddr::V6(ip),
        };
        // A bracket sets addresses apart from names, which cannot contain one.
        self.identity_buffer.push(b'[');
        match ip {
            IpAddr::V4(ip) => self.identity_buffer.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => self.identity_buffer.extend_from_slice(&ip.octets()),
        }
        self.intern(rules, || OriginAddress::Address(SocketAddr::new(ip, port)))
    }

    /// Returns the id of an origin that a client of a forward proxy requested by `https`. `rules`
    /// have TLS settings. `None` if no certificate can be valid for the host.
    pub(crate) fn intern_secured(
        &mut self,
        rules: ConnectRulesId,
        host: Host<'_>,
        port: u16,
        is_absolute: bool,
    ) -> Option<OriginId> {
        let name = match host {
            Host::Name(name) => {
                let name = str::from_utf8(name.strip_suffix(b".").unwrap_or(name)).ok()?;
                ServerName::parse(&name.to_ascii_lowercase())
            }
            Host::V4(ip) => ServerName::parse(&ip.to_string()),
            Host::V6(ip) => ServerName::parse(&ip.to_string()),
        }?;
        let id = self.intern_requested(rules, host, port, is_absolute);
        self.state_mut(id).server_name = Some(name);
        Some(id)
    }

    fn intern(
        &mut self,
        rules: ConnectRulesId,
        address: impl FnOnce() -> OriginAddress,
    ) -> OriginId {
        if let Some(&id) = self.by_identity.get(&self.identity_buffer[..]) {
            return id;
        }
        let identity: Box<[u8]> = self.identity_buffer.as_slice().into();
        let state = OriginState {
            identity: identity.clone(),
            rules,
            address: address(),
            server_name: None,
            idle: Vec::new(),
            outstanding: 0,
            open_count: 0,
            queue: VecDeque::new(),
            pipelines: Vec::new(),
            has_small_bodies: false,
            is_from_client: true,
            is_configured: false,
            processes: None,
            is_in_force: self.rules_in_force.contains(&rules),
            health: Health::default(),
            shared: None,
        };
        let id = OriginId(self.free_ids.pop().unwrap_or(self.states.len() as u32));
        if id.0 as usize == self.states.len() {
            self.states.push(None);
        }
        self.states[id.0 as usize] = Some(state);
        self.by_identity.insert(identity, id);
        id
    }

    /// Returns the name that the certificate of an origin has to be valid for; `None` if
    /// connections to it are plain.
    fn server_name(&self, rules: ConnectRulesId, origin: &Origin) -> Option<ServerName> {
        let Origin::Tcp { host, tls: true, .. } = origin else { return None };
        let name = self.rules.server_name(rules).unwrap_or(host);
        Some(ServerName::parse(name).expect("the configuration has checked the name"))
    }

    /// Returns the default port of the scheme by which the origin is reached.
    pub(crate) fn default_port(&self, id: OriginId) -> u16 {
        if self.state(id).server_name.is_some() { 443 } else { 80 }
    }

    #[inline]
    pub(super) fn state(&self, id: OriginId) -> &OriginState {
        self.states[id.0 as usize].as_ref().expect("an origin in use is in the table")
    }

    #[inline]
    pub(super) fn state_mut(&mut self, id: OriginId) -> &mut OriginState {
        self.states[id.0 as usize].as_mut().expect("an origin in use is in the table")
    }

    pub(crate) fn address(&self, id: OriginId) -> &OriginAddress {
        &self.state(id).address
    }

    /// Returns the most bytes to receive from the origin before the response header is complete. A
    /// large body should stay in the kernel until its transfer is planned, so that it can be
    /// spliced; a small body is copied anyway and should arrive by the same receive as the header.
    /// The next body is assumed to be like the last. A wrong assumption costs a copy of at most
    /// this many bytes, or another receive. Most programs write records of 8 KB, which are
    /// copied.
    #[inline]
    pub(crate) fn header_receive_max(&self, id: OriginId) -> usize {
        let state = self.state(id);
        match (state.has_small_bodies, state.processes.is_some()) {
            (false, false) => HEADER_RECEIVE_MAX,
            (true, false) => (HEADER_RECEIVE_MAX + self.small_below as usize).min(Buffer::SIZE),
            (_, true) => Buffer::SIZE,
        }
    }

    /// Records the length of a response body, in bytes.
    pub(crate) fn record_body_length(&mut self, id: OriginId, bytes: u64) {
        self.state_mut(id).has_small_bodies = bytes < self.small_below;
    }

    /// Counts an exchange that picked the origin, until [`Origins::end_request`].
    pub(crate) fn begin_request(&mut self, id: OriginId) {
        let worker = self.worker;
        let state = self.state_mut(id);
        state.outstanding += 1;
        if let Some(shared) = &state.shared {
            let counters = shared.counters(worker);
            counters.requests.add(1);
            counters.in_flight.add(1);
        }
    }

    /// Returns this worker's counters of a configured origin.
    pub(crate) fn counters(&self, id: OriginId) -> Option<&OriginCounters> {
        self.state(id).shared.as_ref().map(|shared| shared.counters(self.worker))
    }

    /// Resets the number of requests in flight: the worker that this one replaces after a panic may
    /// have left some.
    pub(crate) fn reset_in_flight(&self) {
        let entries = self.states.iter().flatten().filter_map(|state| state.shared.as_ref());
        entries.for_each(|shared| shared.counters(self.worker).in_flight.set(0));
    }

    /// Stops counting an exchange that [`Origins::begin_request`] has counted.
    pub(crate) fn end_request(&mut self, id: OriginId) {
        let worker = self.worker;
        let state = self.state_mut(id);
        assert!(state.outstanding > 0, "the request has begun");
        state.outstanding -= 1;
        if let Some(shared) = &state.shared {
            shared.counters(worker).in_flight.subtract(1);
        }
        self.forget_unused(id);
    }

    /// Removes the origin if nothing uses it and no snapshot names it.
    pub(super) fn forget_unused(&mut self, id: OriginId) {
        let state = self.state(id);
        if state.outstanding == 0 && state.idle.is_empty() && !state.is_configured {
            let state = self.states[id.0 as usize].take().expect("it was found just now");
            self.by_identity.remove(&state.identity);
            self.free_ids.push(id.0);
        }
    }
}

/// The most bytes to receive at once before the header of a response is complete, if a large body
/// may follow it.
const HEADER_RECEIVE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::PickReason;
    use crate::origin::shared_health::HealthCheck;
    use crate::shared::SharedState;
    use crate::snapshot::Snapshot;
    use millrace_config::from_arguments;
    use millrace_config::limits::Limits;
    use millrace_engine::Instant;
    use millrace_splice::Thresholds;
    use std::rc::Rc;
    use std::sync::Arc;

    #[test]
    fn a_name_is_one_origin_however_it_is_written_and_is_absolute_if_its_rules_require_it() {
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let mut intern = |rules, name: &[u8], is_absolute| {
            let id =
                origins.intern_requested(ConnectRulesId(rules), Host::Name(name), 80, is_absolute);
            let OriginAddress::Name(name, 80) = origins.address(id) else {
                panic!("the address is a name")
            };
            (id, name.to_vec())
        };
        let relative = intern(0, b"Intranet", false);
        assert_eq!(
            (&relative.1[..], intern(0, b"intranet.", false)),
            (&b"intranet"[..], relative.clone())
        );
        let absolute = intern(1, b"intranet", true);
        assert_eq!(
            (&absolute.1[..], intern(1, b"INTRANET.", true)),
            (&b"intranet."[..], absolute.clone())
        );
        assert_ne!(relative.0, absolute.0);
        let name = intern(0, b"abcd", false);
        let address = Host::V4((*b"abcd").into());
        assert_ne!(origins.intern_requested(ConnectRulesId(0), address, 80, false), name.0);
    }

    #[test]
    fn a_removed_origin_is_forgotten_and_does_not_make_picks_slow() {
        let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
        let shared_health = &shared.health;
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let snapshot = |origins: &mut Origins, words: [&str; 3]| {
            let config = from_arguments(words).unwrap();
            let clock = millrace_tls::Clock::default();
            Rc::new(Snapshot::new(Arc::new(config), Instant::default(), origins, &shared, &clock))
        };
        let before = snapshot(&mut origins, ["boost", "--origin=http://a", "--check=/up"]);
        origins.apply_snapshots(&before, &[]);
        let rules = Limits::default();
        let id = before.route(0, 0).origins[0];
        for _ in 0..rules.eject_failures {
            origins.record_failure(
                id,
                PickReason::Normal,
                Instant::default(),
                &rules,
                shared_health,
            );
        }
        shared_health.set_check_result(&HealthCheck::of_config(&before.config)[0], false);
        assert!(!origins.all_healthy);
        let after = snapshot(&mut origins, ["boost", "--origin=http://b", "--check=off"]);
        origins.apply_snapshots(&after, std::slice::from_ref(&before));
        origins.refresh_health(shared_health);
        assert!(!origins.all_healthy, "an exchange may still use the previous snapshot");
        drop(before);
        origins.apply_snapshots(&after, &[]);
        origins.refresh_health(shared_health);
        assert!(origins.all_healthy);
        assert_eq!(origins.by_identity.len(), 1);
        let statuses: Vec<_> =
            shared_health.statuses().into_iter().map(|status| status.origin).collect();
        assert_eq!(statuses, ["http://b:80"]);
    }
}
