//! The origins that a worker knows: those of a configuration as long as a snapshot in use names
//! them, and those that clients of a forward proxy ask for as long as anything is under way there.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use millrace_engine::Buffer;
use millrace_http1::Host;

use crate::origin::shared_health::{Board, OriginCounters};
use crate::origin::{Health, OriginId, Origins, Place, Rules, RulesId, place::Known};
use millrace_config::Origin;

impl Origins {
    /// The number of a service's rules.
    pub(crate) fn rules(&mut self, rules: Rules) -> RulesId {
        self.rules.intern(rules)
    }

    /// The origin that a service's configuration names.
    pub(crate) fn configured(
        &mut self,
        rules: RulesId,
        origin: &Origin,
        board: &Board,
    ) -> OriginId {
        self.name.clear();
        self.name.extend_from_slice(&rules.0.to_be_bytes());
        match origin {
            Origin::Tcp { host, port } => {
                self.name.extend_from_slice(&port.to_be_bytes());
                self.name.extend(host.bytes().map(|byte| byte.to_ascii_lowercase()));
            }
            Origin::Unix(path) => {
                self.name.extend_from_slice(&0u16.to_be_bytes());
                self.name.extend_from_slice(path.as_os_str().as_encoded_bytes());
            }
        }
        let id = self.named(rules, || origin.into());
        let known = self.known_mut(id);
        known.configured = true;
        known.asked_for = false;
        known.mark.get_or_insert_with(|| board.origin(origin));
        // There is more to hear than when the board was last listened to.
        self.listen_again();
        id
    }

    /// The origin at a host and port that a client of a forwarding service asked for. Names are one
    /// in any case, and with or without a dot at their end. `are_whole`: the machine's search list
    /// applies to none; always the same for the same rules.
    pub(crate) fn asked_for(
        &mut self,
        rules: RulesId,
        host: Host<'_>,
        port: u16,
        are_whole: bool,
    ) -> OriginId {
        self.name.clear();
        self.name.extend_from_slice(&rules.0.to_be_bytes());
        self.name.extend_from_slice(&port.to_be_bytes());
        let ip = match host {
            Host::Name(name) => {
                let name = name.strip_suffix(b".").unwrap_or(name);
                self.name.extend(name.iter().map(|byte| byte.to_ascii_lowercase()));
                let end = if are_whole { &b"."[..] } else { b"" };
                let place = || Place::Name([name, end].concat().to_ascii_lowercase().into(), port);
                return self.named(rules, place);
            }
            Host::V4(ip) => IpAddr::V4(ip),
            Host::V6(ip) => IpAddr::V6(ip),
        };
        // No name has a bracket.
        self.name.push(b'[');
        match ip {
            IpAddr::V4(ip) => self.name.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => self.name.extend_from_slice(&ip.octets()),
        }
        self.named(rules, || Place::Address(SocketAddr::new(ip, port)))
    }

    fn named(&mut self, rules: RulesId, place: impl FnOnce() -> Place) -> OriginId {
        if let Some(&id) = self.by_name.get(&self.name[..]) {
            return id;
        }
        let name: Box<[u8]> = self.name.as_slice().into();
        let known = Known {
            name: name.clone(),
            rules,
            place: place(),
            idle: Vec::new(),
            outstanding: 0,
            open: 0,
            queue: VecDeque::new(),
            is_small: false,
            asked_for: true,
            configured: false,
            in_force: self.rules_in_force.contains(&rules),
            health: Health::default(),
            mark: None,
        };
        let id = OriginId(self.free.pop().unwrap_or(self.known.len() as u32));
        if id.0 as usize == self.known.len() {
            self.known.push(None);
        }
        self.known[id.0 as usize] = Some(known);
        self.by_name.insert(name, id);
        id
    }

    #[inline]
    pub(super) fn known(&self, id: OriginId) -> &Known {
        self.known[id.0 as usize].as_ref().expect("an origin in use is known")
    }

    pub(super) fn known_mut(&mut self, id: OriginId) -> &mut Known {
        self.known[id.0 as usize].as_mut().expect("an origin in use is known")
    }

    pub(crate) fn place(&self, id: OriginId) -> &Place {
        &self.known(id).place
    }

    /// The most that is received of the origin before the header of its response is there. A body
    /// is to be in the kernel still when its plan is picked; but one that will be copied in any
    /// case comes by the same receive. So the guess is that the next body is like the last, and a
    /// wrong one costs a copy of so much, or a further receive.
    pub(crate) fn head_max(&self, id: OriginId) -> usize {
        if !self.known(id).is_small {
            return HEAD_MAX;
        }
        (HEAD_MAX + self.small_below as usize).min(Buffer::SIZE)
    }

    /// Notes how long the body of a response was.
    pub(crate) fn note_body(&mut self, id: OriginId, bytes: u64) {
        self.known_mut(id).is_small = bytes < self.small_below;
    }

    /// An exchange picks the origin; [`Origins::unpick`] follows.
    pub(crate) fn note_picked(&mut self, id: OriginId) {
        let worker = self.worker;
        let known = self.known_mut(id);
        known.outstanding += 1;
        if let Some(mark) = &known.mark {
            let counters = mark.counters(worker);
            counters.requests.add(1);
            counters.in_flight.add(1);
        }
    }

    /// What this worker counts of an origin that a configuration named.
    pub(crate) fn counters(&self, id: OriginId) -> Option<&OriginCounters> {
        self.known(id).mark.as_ref().map(|mark| mark.counters(self.worker))
    }

    /// Begins to count: a worker whose place this one takes may have left requests in flight.
    pub(crate) fn begin_counting(&self) {
        let marks = self.known.iter().flatten().filter_map(|known| known.mark.as_ref());
        marks.for_each(|mark| mark.counters(self.worker).in_flight.set(0));
    }

    /// The exchange is done with the origin.
    pub(crate) fn unpick(&mut self, id: OriginId) {
        let worker = self.worker;
        let known = self.known_mut(id);
        assert!(known.outstanding > 0, "picked before");
        known.outstanding -= 1;
        if let Some(mark) = &known.mark {
            mark.counters(worker).in_flight.subtract(1);
        }
        self.forget_unused(id);
    }

    pub(super) fn forget_unused(&mut self, id: OriginId) {
        let known = self.known(id);
        if known.outstanding == 0 && known.idle.is_empty() && !known.configured {
            let known = self.known[id.0 as usize].take().expect("looked at just now");
            self.by_name.remove(&known.name);
            self.free.push(id.0);
        }
    }
}

/// The most that is received at once of a response whose header may be followed by a large body.
const HEAD_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::Trial;
    use crate::origin::shared_health::Check;
    use crate::shared::Shared;
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
            let id = origins.asked_for(RulesId(rules), Host::Name(name), 80, are_whole);
            let Place::Name(name, 80) = origins.place(id) else { panic!("it is a name") };
            (id, name.to_vec())
        };
        let plain = ask(0, b"Intranet", false);
        assert_eq!((&plain.1[..], ask(0, b"intranet.", false)), (&b"intranet"[..], plain.clone()));
        let whole = ask(1, b"intranet", true);
        assert_eq!((&whole.1[..], ask(1, b"INTRANET.", true)), (&b"intranet."[..], whole.clone()));
        assert_ne!(plain.0, whole.0);
        let name = ask(0, b"abcd", false);
        let address = Host::V4((*b"abcd").into());
        assert_ne!(origins.asked_for(RulesId(0), address, 80, false), name.0);
    }

    #[test]
    fn an_origin_that_left_the_configuration_is_forgotten_and_holds_nobody_up() {
        let shared = Shared::new(1, "test".to_owned(), None, None, |_| {}, None);
        let board = &shared.board;
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let snapshot = |origins: &mut Origins, words: [&str; 3]| {
            let config = from_arguments(words).unwrap();
            Rc::new(Snapshot::new(Arc::new(config), Instant::default(), origins, &shared))
        };
        let before = snapshot(&mut origins, ["boost", "--origin=http://a", "--check=/up"]);
        origins.follow(&before, &[]);
        let rules = Limits::default();
        let id = before.route(0, 0).origins[0];
        for _ in 0..rules.eject_failures {
            origins.note_failure(id, Trial::No, Instant::default(), &rules, board);
        }
        board.set_check(&Check::of_config(&before.config)[0], false);
        assert!(!origins.all_are_well);
        let after = snapshot(&mut origins, ["boost", "--origin=http://b", "--check=off"]);
        origins.follow(&after, std::slice::from_ref(&before));
        origins.hear(board);
        assert!(!origins.all_are_well, "an exchange may go on under the one before");
        drop(before);
        origins.follow(&after, &[]);
        origins.hear(board);
        assert!(origins.all_are_well);
        assert_eq!(origins.by_name.len(), 1);
        let shown: Vec<_> = board.shown().into_iter().map(|shown| shown.origin).collect();
        assert_eq!(shown, ["http://b:80"]);
    }
}
