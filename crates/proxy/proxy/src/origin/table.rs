//! The origins that a worker knows: those of a configuration as long as a snapshot in use names
//! them, and those that clients of a forward proxy ask for as long as anything is under way there.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use millrace_engine::Buffer;
use millrace_http1::Host;

use crate::origin::shared_health::{OriginCounters, SharedHealth};
use crate::origin::{
    ConnectRules, ConnectRulesId, Health, OriginAddress, OriginId, Origins, state::OriginState,
};
use millrace_config::Origin;

impl Origins {
    /// The number of a service's rules.
    pub(crate) fn intern_rules(&mut self, rules: ConnectRules) -> ConnectRulesId {
        self.rules.intern(rules)
    }

    /// The origin that a service's configuration names.
    pub(crate) fn intern_configured(
        &mut self,
        rules: ConnectRulesId,
        origin: &Origin,
        board: &SharedHealth,
    ) -> OriginId {
        self.identity_buffer.clear();
        self.identity_buffer.extend_from_slice(&rules.0.to_be_bytes());
        match origin {
            Origin::Tcp { host, port } => {
                self.identity_buffer.extend_from_slice(&port.to_be_bytes());
                self.identity_buffer.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            Origin::Unix(path) => {
                self.identity_buffer.extend_from_slice(&0u16.to_be_bytes());
                self.identity_buffer.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
        }
        let id = self.intern(rules, || origin.into());
        let known = self.state_mut(id);
        known.is_configured = true;
        known.is_from_client = false;
        known.shared.get_or_insert_with(|| board.register_origin(origin));
        // There is more to hear than when the board was last listened to.
        self.invalidate_health();
        id
    }

    /// The origin at a host and port that a client of a forwarding service asked for. Names are one
    /// in any case, and with or without a dot at their end. `are_whole`: the machine's search list
    /// applies to none; always the same for the same rules.
    pub(crate) fn intern_requested(
        &mut self,
        rules: ConnectRulesId,
        host: Host<'_>,
        port: u16,
        are_whole: bool,
    ) -> OriginId {
        self.identity_buffer.clear();
        self.identity_buffer.extend_from_slice(&rules.0.to_be_bytes());
        self.identity_buffer.extend_from_slice(&port.to_be_bytes());
        let ip = match host {
            Host::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                self.identity_buffer.extend(name.iter().map(|byte| byte.to_ascii_lowercase()));
                let end = if are_whole { &b"."[..] } else { b"" };
                let place =
                    || OriginAddress::Name([name, end].concat().to_ascii_lowercase().into(), port);
                return self.intern(rules, place);
            }
            Host::V4(ip) => IpAddr::V4(ip),
            Host::V6(ip) => IpAddr::V6(ip),
        };
        // No name has a bracket.
        self.identity_buffer.push(b'[');
        match ip {
            IpAddr::V4(ip) => self.identity_buffer.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => self.identity_buffer.extend_from_slice(&ip.octets()),
        }
        self.intern(rules, || OriginAddress::Address(SocketAddr::new(ip, port)))
    }

    fn intern(&mut self, rules: ConnectRulesId, place: impl FnOnce() -> OriginAddress) -> OriginId {
        if let Some(&id) = self.by_identity.get(&self.identity_buffer[..]) {
            return id;
        }
        let name: Box<[u8]> = self.identity_buffer.as_slice().into();
        let known = OriginState {
            identity: name.clone(),
            rules,
            address: place(),
            idle: Vec::new(),
            outstanding: 0,
            open_count: 0,
            queue: VecDeque::new(),
            has_small_bodies: false,
            is_from_client: true,
            is_configured: false,
            is_in_force: self.rules_in_force.contains(&rules),
            health: Health::default(),
            shared: None,
        };
        let id = OriginId(self.free_ids.pop().unwrap_or(self.states.len() as u32));
        if id.0 as usize == self.states.len() {
            self.states.push(None);
        }
        self.states[id.0 as usize] = Some(known);
        self.by_identity.insert(name, id);
        id
    }

    #[inline]
    pub(super) fn state(&self, id: OriginId) -> &OriginState {
        self.states[id.0 as usize].as_ref().expect("an origin in use is known")
    }

    pub(super) fn state_mut(&mut self, id: OriginId) -> &mut OriginState {
        self.states[id.0 as usize].as_mut().expect("an origin in use is known")
    }

    pub(crate) fn address(&self, id: OriginId) -> &OriginAddress {
        &self.state(id).address
    }

    /// The most that is received of the origin before the header of its response is there. A body
    /// is to be in the kernel still when its plan is picked; but one that will be copied in any
    /// case comes by the same receive. So the guess is that the next body is like the last, and a
    /// wrong one costs a copy of so much, or a further receive.
    pub(crate) fn header_receive_max(&self, id: OriginId) -> usize {
        if !self.state(id).has_small_bodies {
            return HEADER_RECEIVE_MAX;
        }
        (HEADER_RECEIVE_MAX + self.small_below as usize).min(Buffer::SIZE)
    }

    /// Notes how long the body of a response was.
    pub(crate) fn record_body_length(&mut self, id: OriginId, bytes: u64) {
        self.state_mut(id).has_small_bodies = bytes < self.small_below;
    }

    /// An exchange picks the origin; [`Origins::unpick`] follows.
    pub(crate) fn begin_request(&mut self, id: OriginId) {
        let worker = self.worker;
        let known = self.state_mut(id);
        known.outstanding += 1;
        if let Some(mark) = &known.shared {
            let counters = mark.counters(worker);
            counters.requests.add(1);
            counters.in_flight.add(1);
        }
    }

    /// What this worker counts of an origin that a configuration named.
    pub(crate) fn counters(&self, id: OriginId) -> Option<&OriginCounters> {
        self.state(id).shared.as_ref().map(|mark| mark.counters(self.worker))
    }

    /// Begins to count: a worker whose place this one takes may have left requests in flight.
    pub(crate) fn reset_in_flight(&self) {
        let marks = self.states.iter().flatten().filter_map(|known| known.shared.as_ref());
        marks.for_each(|mark| mark.counters(self.worker).in_flight.set(0));
    }

    /// The exchange is done with the origin.
    pub(crate) fn end_request(&mut self, id: OriginId) {
        let worker = self.worker;
        let known = self.state_mut(id);
        assert!(known.outstanding > 0, "picked before");
        known.outstanding -= 1;
        if let Some(mark) = &known.shared {
            mark.counters(worker).in_flight.subtract(1);
        }
        self.forget_unused(id);
    }

    pub(super) fn forget_unused(&mut self, id: OriginId) {
        let known = self.state(id);
        if known.outstanding == 0 && known.idle.is_empty() && !known.is_configured {
            let known = self.states[id.0 as usize].take().expect("looked at just now");
            self.by_identity.remove(&known.identity);
            self.free_ids.push(id.0);
        }
    }
}

/// The most that is received at once of a response whose header may be followed by a large body.
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
    fn a_name_is_one_origin_however_it_is_written_and_looked_up_as_its_rules_say() {
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let mut ask = |rules, name: &[u8], are_whole| {
            let id =
                origins.intern_requested(ConnectRulesId(rules), Host::Name(name), 80, are_whole);
            let OriginAddress::Name(name, 80) = origins.address(id) else { panic!("it is a name") };
            (id, name.to_vec())
        };
        let plain = ask(0, b"Intranet", false);
        assert_eq!((&plain.1[..], ask(0, b"intranet.", false)), (&b"intranet"[..], plain.clone()));
        let whole = ask(1, b"intranet", true);
        assert_eq!((&whole.1[..], ask(1, b"INTRANET.", true)), (&b"intranet."[..], whole.clone()));
        assert_ne!(plain.0, whole.0);
        let name = ask(0, b"abcd", false);
        let address = Host::V4((*b"abcd").into());
        assert_ne!(origins.intern_requested(ConnectRulesId(0), address, 80, false), name.0);
    }

    #[test]
    fn an_origin_that_left_the_configuration_is_forgotten_and_holds_nobody_up() {
        let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
        let board = &shared.health;
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let snapshot = |origins: &mut Origins, words: [&str; 3]| {
            let config = from_arguments(words).unwrap();
            Rc::new(Snapshot::new(Arc::new(config), Instant::default(), origins, &shared))
        };
        let before = snapshot(&mut origins, ["boost", "--origin=http://a", "--check=/up"]);
        origins.apply_snapshots(&before, &[]);
        let rules = Limits::default();
        let id = before.route(0, 0).origins[0];
        for _ in 0..rules.eject_failures {
            origins.record_failure(id, PickReason::Normal, Instant::default(), &rules, board);
        }
        board.set_check_result(&HealthCheck::of_config(&before.config)[0], false);
        assert!(!origins.all_healthy);
        let after = snapshot(&mut origins, ["boost", "--origin=http://b", "--check=off"]);
        origins.apply_snapshots(&after, std::slice::from_ref(&before));
        origins.refresh_health(board);
        assert!(!origins.all_healthy, "an exchange may go on under the one before");
        drop(before);
        origins.apply_snapshots(&after, &[]);
        origins.refresh_health(board);
        assert!(origins.all_healthy);
        assert_eq!(origins.by_identity.len(), 1);
        let shown: Vec<_> = board.statuses().into_iter().map(|shown| shown.origin).collect();
        assert_eq!(shown, ["http://b:80"]);
    }
}
