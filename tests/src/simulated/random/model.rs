//! The state that all actors of a random scenario share, and the checks on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_engine::Instant;
use millrace_sim::{Faults, World, WorldPlan};

use super::files::history::FolderHistory;
use super::findings::Findings;
use super::plan::{Malformation, Method, RandomScenario, Request};
use super::{programs, wire};
use crate::simulated::TlsFault;

/// The model of one run. Clones share their state.
#[derive(Clone)]
pub(super) struct ExchangeModel {
    findings: Findings,
    model: Rc<RefCell<ExchangeState>>,
}

impl Deref for ExchangeModel {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        &self.findings
    }
}

struct ExchangeState {
    scenario: Rc<RandomScenario>,
    waits: WaitLimits,
    /// How often each request reached origins, by id.
    arrived: BTreeMap<u32, u32>,
    /// When each exchange last made progress, by id.
    last_progress: BTreeMap<u32, Moment>,
    /// Requests whose response, or tunnel, ends with a TLS stream whose end is not announced.
    unannounced: BTreeSet<u32>,
    /// The versions of the files of the folder, if there is one.
    history: Option<FolderHistory>,
}

/// The longest times for which a connection of the proxy may be silent in both directions, one for
/// each kind of wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitLimits {
    /// Between two requests.
    pub(super) idle: Duration,
    /// In an exchange.
    pub(super) exchange: Duration,
    /// In a tunnel.
    pub(super) tunnel: Duration,
    /// An idle origin connection.
    pub(super) kept: Duration,
    /// Time within which the proxy must notice that an origin ended an idle connection; `None`: not
    /// checked, because the network loses segments.
    pub(super) close_noticed: Option<Duration>,
    /// Number of retries of a request.
    pub(super) retries: u64,
}

impl WaitLimits {
    /// Computes the waits from the limits and the delays of the world.
    pub(super) fn new(limits: &Limits, scenario: &RandomScenario, plan: &WorldPlan) -> Self {
        let jitter = Duration::from_nanos(plan.jitter_ns + plan.streams.delay_ns + plan.wake_ns);
        let loses = scenario.world == Faults::Hostile || plan.streams.loss > 0;
        let slack = match scenario.world {
            // Streams stall for up to five minutes, in each direction, on each side and at each
            // attempt.
            Faults::Hostile => Duration::from_secs(5 * 60 * 4 * (limits.retries + 1)),
            Faults::None | Faults::Benign => Duration::ZERO,
        };
        // Readiness is reported up to the jitter late, at each step of the way.
        let slack = slack + jitter * 40 + Duration::from_secs(5);
        let ms = |ms: u64| Duration::from_millis(ms) + slack;
        let tries = limits.retries + 1;
        // The proxy checks the pace of a client each time a limit expires. One byte at the
        // beginning of such a period extends it by another one. The announced end of a response has
        // the same limit as its bytes. The factors allow for that.
        let exchange = limits.head_ms
            + 2 * limits.body_ms
            + 5 * limits.send_ms
            + limits.connect_ms
            + tries * (limits.name_ms + limits.connect_ms + limits.first_byte_ms)
            + limits.response_ms
            + limits.first_byte_ms
            + limits.linger_ms;
        // A request may wait for all others if they share connections.
        let requests = scenario.connections.iter().map(|it| it.requests.len() as u64).sum::<u64>();
        let exchange = match scenario.proxy.pipelining {
            Some(_) => exchange * (requests + 1),
            None => exchange,
        };
        Self {
            idle: ms(limits.idle_ms.max(limits.head_ms) + limits.linger_ms),
            exchange: ms(exchange),
            tunnel: ms(limits.tunnel_idle_ms + exchange),
            // The end of the response may still be on its way to a slow client.
            kept: ms(limits.origin_idle_ms + exchange),
            close_noticed: (!loses).then_some(jitter * 40 + Duration::from_millis(300)),
            // A request that others on its connection delay is sent once more.
            retries: limits.retries + u64::from(scenario.proxy.pipelining.is_some()),
        }
    }

    /// Returns the longer wait of each kind, for connections that live across a reload.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            idle: self.idle.max(other.idle),
            exchange: self.exchange.max(other.exchange),
            tunnel: self.tunnel.max(other.tunnel),
            kept: self.kept.max(other.kept),
            close_noticed: self.close_noticed,
            retries: self.retries.max(other.retries),
        }
    }
}

/// A time from which waits are measured. They exclude the time during which no worker could act.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment {
    pub(super) at: Instant,
    /// [`World::missed_time`] at that time.
    missed: Duration,
}

impl Moment {
    pub(super) fn now(world: &World) -> Self {
        Self { at: world.now(), missed: world.missed_time() }
    }

    /// Returns when a wait of this duration ends, unless workers stall again until then.
    pub(super) fn until(self, world: &World, wait: Duration) -> Instant {
        self.at + wait + (world.missed_time() - self.missed)
    }
}

/// Counts consecutive checks that found a connection silent for too long.
#[derive(Default, Debug)]
pub(super) struct SilenceCheck {
    found: u32,
    again: Option<Instant>,
}

impl SilenceCheck {
    /// Checks a connection that may be silent until `until`. Returns when to check again, or `None`
    /// if it is overdue. A connection is overdue only after several checks, so that the proxy gets
    /// a turn to notice its deadline.
    pub(super) fn check(&mut self, now: Instant, until: Instant) -> Option<Instant> {
        if now < until {
            *self = Self::default();
            return Some(until);
        }
        if let Some(again) = self.again.filter(|again| now < *again) {
            return Some(again);
        }
        self.found += 1;
        let again = now + Duration::from_secs(10);
        self.again = Some(again);
        (self.found < SILENT_CHECKS).then_some(again)
    }
}

/// Number of checks after which a silent connection is overdue.
const SILENT_CHECKS: u32 = 3;

impl ExchangeModel {
    pub(super) fn new(scenario: Rc<RandomScenario>, waits: WaitLimits) -> Self {
        let model = ExchangeState {
            scenario,
            waits,
            arrived: BTreeMap::new(),
            last_progress: BTreeMap::new(),
            unannounced: BTreeSet::new(),
            history: None,
        };
        Self { findings: Findings::default(), model: Rc::new(RefCell::new(model)) }
    }

    pub(super) fn scenario(&self) -> Rc<RandomScenario> {
        self.model.borrow().scenario.clone()
    }

    /// Sets the versions of the files of the folder.
    pub(super) fn set_history(&self, history: FolderHistory) {
        self.model.borrow_mut().history = Some(history);
    }

    /// Returns the versions of the files of the folder.
    ///
    /// # Panics
    /// If the scenario has no folder.
    pub(super) fn history(&self) -> FolderHistory {
        self.model.borrow().history.clone().expect("the scenario has a folder")
    }

    /// Sets the waits once the limits are known.
    pub(super) fn set_waits(&self, waits: WaitLimits) {
        self.model.borrow_mut().waits = waits;
    }

    pub(super) fn waits(&self) -> WaitLimits {
        self.model.borrow().waits
    }

    /// Records progress of an exchange.
    pub(super) fn record_progress(&self, id: u32, now: Moment) {
        self.model.borrow_mut().last_progress.insert(id, now);
    }

    /// Returns when an exchange last made progress.
    pub(super) fn last_progress(&self, id: u32) -> Option<Moment> {
        self.model.borrow().last_progress.get(&id).copied()
    }

    /// Records whether the origin that responds to a request ends its stream unannounced.
    pub(super) fn set_unannounced(&self, id: u32, is_unannounced: bool) {
        let unannounced = &mut self.model.borrow_mut().unannounced;
        if is_unannounced {
            unannounced.insert(id)
        } else {
            unannounced.remove(&id)
        };
    }

    /// Returns whether the origin that responded last to a request ends its stream unannounced.
    pub(super) fn is_unannounced(&self, id: u32) -> bool {
        self.model.borrow().unannounced.contains(&id)
    }

    /// Returns whether the client of a tunnel ends its TLS stream unannounced.
    pub(super) fn ends_tunnel_unannounced(&self, id: u32) -> bool {
        let scenario = self.scenario();
        let Some((index, _)) = scenario.find(id) else { return false };
        scenario.proxy.secured
            && scenario.connections[index].tls.fault == Some(TlsFault::UnannouncedEnd)
    }

    /// Records that a request reached the origin with that number, and checks that the proxy may
    /// have sent it there.
    pub(super) fn record_arrival(
        &self,
        world: &World,
        origin: usize,
        (id, method, target): (u32, &str, &str),
    ) -> Option<Request> {
        let scenario = self.scenario();
        let Some((index, request)) = scenario.find(id) else {
            self.fail(world, "unasked", format!("{method} {target} arrived, which no client sent"));
            return None;
        };
        let times = {
            let model = &mut *self.model.borrow_mut();
            let times = model.arrived.entry(id).or_default();
            *times += 1;
            *times
        };
        let retries = self.waits().retries;
        let end = if request.file.is_some() { format!("?{id}") } else { format!("/{id}") };
        let wrong = if request.method.word() != method || !target.ends_with(&end) {
            Some((
                "unasked",
                format!("{method} {target} arrived instead of {:?} {id}", request.method),
            ))
        } else if matches!(request.malformation, Some(Malformation::Head(_))) {
            Some(("smuggled", format!("request {id}, which is malformed, was forwarded")))
        } else if follows_malformed_request(&scenario.connections[index].requests, id) {
            Some(("smuggled", format!("request {id} was forwarded, which follows a malformed one")))
        } else if !scenario.may_reach_origin(request) {
            Some(("misrouted", format!("request {id} for a file arrived at origin {origin}")))
        } else if scenario.proxy.forward && request.origin != origin {
            let meant = request.origin;
            Some((
                "misrouted",
                format!("request {id} for origin {meant} arrived at origin {origin}"),
            ))
        } else if times > 1 && request.method == Method::Post {
            Some(("repeated", format!("POST {id} arrived {times} times")))
        } else if u64::from(times) > retries + 1 {
            Some((
                "repeated",
                format!("{method} {id} arrived {times} times, with {retries} retries"),
            ))
        } else {
            None
        };
        if let Some((kind, details)) = wrong {
            self.fail(world, kind, details);
        }
        if times > 1 {
            self.cover("proxy: a request tried again");
        }
        Some(request.clone())
    }

    /// Checks how often the proxy sent each request. The bytes include those that no origin read,
    /// because an origin that left may still have received a request.
    pub(super) fn check_sent(&self, world: &World, sent: &[Vec<u8>]) {
        let mut times = BTreeMap::<u32, u64>::new();
        let (scenario, retries) = (self.scenario(), self.waits().retries);
        for bytes in sent {
            let ids: Vec<u32> = match scenario.proxy.fastcgi {
                true => programs::wire::requests_in(bytes).collect(),
                false => wire::requests_in(bytes).collect(),
            };
            ids.into_iter().for_each(|id| *times.entry(id).or_default() += 1);
        }
        for (id, times) in times {
            let Some((_, request)) = scenario.find(id) else { continue };
            let most = if request.method == Method::Post { 1 } else { retries + 1 };
            if times > most {
                let details = format!("{:?} {id} was sent {times} times", request.method);
                self.fail(world, "repeated", details);
            }
        }
    }
}

/// Returns whether a malformed request precedes this one on its connection. After a malformed
/// request nothing may be read as a request.
fn follows_malformed_request(requests: &[Request], id: u32) -> bool {
    requests
        .iter()
        .take_while(|request| request.id != id)
        .any(|request| request.malformation.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_connection_is_overdue_at_the_third_check_without_progress() {
        let at = |seconds: u64| Instant::from_nanoseconds(seconds * 1_000_000_000);
        let mut silence = SilenceCheck::default();
        assert_eq!(silence.check(at(1), at(100)), Some(at(100)));
        assert_eq!(silence.check(at(100), at(100)), Some(at(110)));
        assert_eq!(silence.check(at(105), at(100)), Some(at(110)));
        assert_eq!(silence.check(at(110), at(100)), Some(at(120)));
        assert_eq!(silence.check(at(112), at(200)), Some(at(200)));
        assert_eq!(silence.check(at(200), at(200)), Some(at(210)));
        assert_eq!(silence.check(at(210), at(200)), Some(at(220)));
        assert_eq!(silence.check(at(220), at(200)), None);
    }
}
