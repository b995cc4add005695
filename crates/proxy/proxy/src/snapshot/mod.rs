//! A configuration as a worker uses it: what can be worked out once is worked out here, so that a
//! request looks it up.

pub(crate) mod in_use;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_http1::{HeadLimits, Http1Header};

use crate::admission::TargetFilter;
use crate::congestion::CongestionSetting;
use crate::counters::PerStatus;
use crate::exchange::RequestPlan;
use crate::origin::shared_health::{CheckResult, HealthCheck, SharedHealth};
use crate::origin::{ConnectRules, ConnectRulesId, OriginId, Origins, RetryBudget};
use crate::shared::SharedState;
use millrace_config::{
    Balance, CacheRoute, Config, Listener, RetryOn, Route, SendProxy, Service, ServiceRole,
    limits::Limits,
};

/// A numbered configuration with what a worker derives from it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) config: Arc<Config>,
    /// By a listener's number: its place in the configuration, or [`ABSENT`].
    listeners: Box<[u16]>,
    /// Of every service: what opens its connections to origins.
    pub(crate) rules: Box<[ConnectRulesId]>,
    /// What else is derived from every service.
    services: Box<[ServiceState]>,
    pub(crate) request_limits: HeadLimits,
    pub(crate) response_limits: HeadLimits,
    /// The shortest wait of a client connection that is limited, lingering apart: its timer is
    /// never set further ahead, so that a new wait never needs to set it.
    pub(crate) client_check: Duration,
    /// The same for origin connections.
    pub(crate) origin_check: Duration,
    /// What stands in Via: the name of this process (RFC 9110 section 7.6.3).
    pub(crate) pseudonym: Arc<str>,
    /// The whole field line for a message received as HTTP/1.0, and as HTTP/1.1.
    pub(crate) via: [Box<[u8]>; 2],
    /// Our own addresses, never to be connected to.
    pub(crate) own_addresses: Arc<[SocketAddr]>,
    /// Whether any service says Proxy-Status in what it passes on.
    sends_proxy_status: bool,
    /// Whether any route begins its connections with a PROXY header.
    pub(crate) sends_proxy: bool,
}

/// What a worker derives from one service.
#[derive(Debug)]
struct ServiceState {
    /// Its requests, counted by this worker and the others.
    requests: Arc<[PerStatus]>,
    /// What its clients' connections are given, and those to origins.
    congestion: [CongestionSetting; 2],
    /// Of every route: its origins and how often one was picked.
    routes: Vec<RouteOrigins>,
    /// Which targets may be asked for; `None`: it is a booster.
    target_filter: Option<TargetFilter>,
}

/// The origins of one route.
#[derive(Debug)]
pub(crate) struct RouteOrigins {
    pub(crate) origins: Vec<OriginId>,
    /// How one of them is picked.
    pub(crate) balance: Balance,
    /// Counts the picks.
    pub(crate) picks: Cell<usize>,
    /// What may be tried again.
    pub(crate) budget: RefCell<RetryBudget>,
    /// Answers 502 to 504 are failures of the origin.
    pub(crate) gateway_errors_fail: bool,
    /// For which responses another origin is asked.
    pub(crate) retry_on: Vec<RetryOn>,
    /// What is found by the check of each origin; empty: the route has none.
    checks: Vec<Arc<CheckResult>>,
}

impl RouteOrigins {
    /// A route without checks, which picks in turn.
    #[cfg(test)]
    pub(crate) fn new(origins: Vec<OriginId>) -> Self {
        Self {
            origins,
            balance: Balance::RoundRobin,
            picks: Cell::new(0),
            budget: RefCell::default(),
            gateway_errors_fail: false,
            retry_on: vec![RetryOn::Malformed],
            checks: Vec::new(),
        }
    }

    /// The origins of a configured route. Picking begins at `turn`.
    fn of(
        route: &Route,
        rules: ConnectRulesId,
        (now, turn): (Instant, usize),
        origins: &mut Origins,
        board: &SharedHealth,
    ) -> Self {
        let of_route =
            route.origins.iter().map(|origin| origins.intern_configured(rules, origin, board));
        Self {
            origins: of_route.collect(),
            balance: route.balance,
            gateway_errors_fail: route.eject_on_errors,
            retry_on: route.retry_on.clone(),
            checks: HealthCheck::of_route(route)
                .map(|check| board.register_check(&check))
                .collect(),
            picks: Cell::new(turn),
            budget: RefCell::new(RetryBudget::new(now, turn)),
        }
    }

    /// Whether the check of the origin at `index` fails.
    pub(crate) fn is_check_failing(&self, index: usize) -> bool {
        self.checks.get(index).is_some_and(|mark| mark.is_failing())
    }
}

impl Snapshot {
    /// What `config` means to a worker from `now` on.
    pub(crate) fn new(
        config: Arc<Config>,
        now: Instant,
        origins: &mut Origins,
        shared: &SharedState,
    ) -> Self {
        let own: Arc<[SocketAddr]> = config.own_addresses().into();
        // Or reloads in a row would each begin with the first.
        let turn = config.number.saturating_sub(1) as usize;
        let of_service = |service: &Service| {
            let congestion = [&service.congestion, &service.origin_congestion]
                .map(|choice| CongestionSetting::new(choice, shared.system_congestion.as_ref()));
            let rules = origins.intern_rules(ConnectRules::of(service, &own, &congestion[1]));
            let mut of_route =
                |route| RouteOrigins::of(route, rules, (now, turn), origins, &shared.health);
            let (routes, ask_rules) = match &service.role {
                ServiceRole::Boost(routes) => (routes.iter().map(&mut of_route).collect(), None),
                ServiceRole::Forward(rules) => (Vec::new(), Some(TargetFilter::new(rules))),
            };
            let requests = shared.requests.of(service.name.as_str(), shared.counters.len());
            (rules, ServiceState { requests, congestion, routes, target_filter: ask_rules })
        };
        let (rules, services): (Vec<_>, Vec<_>) = config.services.iter().map(of_service).unzip();
        let mut routes = config.services.iter().flat_map(Service::routes);
        let limits = &config.limits;
        let shortest = |all: &[u64]| Duration::from_millis(all.iter().copied().min().unwrap_or(0));
        let head_limits = |bytes: u64, fields: u64| HeadLimits {
            bytes_max: bytes as usize,
            fields_max: fields as usize,
            target_bytes_max: limits.target_bytes as usize,
        };
        Self {
            listeners: by_number(&config.listeners),
            rules: rules.into(),
            services: services.into(),
            request_limits: head_limits(limits.request_head_bytes, limits.fields),
            response_limits: head_limits(limits.response_head_bytes, limits.response_fields),
            client_check: shortest(&[
                limits.head_ms,
                limits.idle_ms,
                limits.body_ms,
                limits.send_ms,
                limits.tunnel_idle_ms,
            ]),
            origin_check: shortest(&[
                limits.first_byte_ms,
                limits.response_ms,
                limits.origin_idle_ms,
                limits.tunnel_idle_ms,
            ]),
            via: ["1.0", "1.1"].map(|version| via(version, &shared.pseudonym)),
            pseudonym: shared.pseudonym.clone(),
            own_addresses: own,
            sends_proxy_status: config.services.iter().any(|service| service.proxy_status),
            sends_proxy: routes.any(|route| route.send_proxy != SendProxy::Off),
            config,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// The origins of a route of a booster.
    pub(crate) fn route(&self, service: u16, index: u16) -> &RouteOrigins {
        &self.services[service as usize].routes[index as usize]
    }

    /// The listener with this number, if it is one of this configuration.
    pub(crate) fn listener(&self, number: u16) -> Option<&Listener> {
        let place = *self.listeners.get(number as usize)?;
        self.config.listeners.get(place as usize)
    }

    /// What the connections that come in at a listener of this configuration are given.
    pub(crate) fn client_congestion(&self, listener: &Listener) -> &CongestionSetting {
        &self.services[listener.service].congestion[0]
    }

    fn routes(&self) -> impl Iterator<Item = &RouteOrigins> {
        self.services.iter().flat_map(|service| &service.routes)
    }

    /// The origins of all routes.
    pub(crate) fn origins(&self) -> impl Iterator<Item = OriginId> {
        self.routes().flat_map(|route| route.origins.iter().copied())
    }

    /// The marks of the checks of all routes.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &Arc<CheckResult>> {
        self.routes().flat_map(|route| &route.checks)
    }

    /// Counts a request of a service that was sent this status by a worker; 0: no response.
    pub(crate) fn count_request(&self, service: u16, worker: usize, status: u16) {
        self.services[service as usize].requests[worker].add(status);
    }

    /// What a service's connections to origins are given.
    pub(crate) fn origin_congestion(&self, service: u16) -> &CongestionSetting {
        &self.services[service as usize].congestion[1]
    }

    /// Whether a service says Proxy-Status in the responses that it passes on.
    pub(crate) fn sends_proxy_status(&self, service: u16) -> bool {
        self.sends_proxy_status && self.service(service).proxy_status
    }

    /// Which targets may be asked for, of a forward proxy.
    pub(crate) fn target_filter(&self, service: u16) -> &TargetFilter {
        self.services[service as usize]
            .target_filter
            .as_ref()
            .expect("the service is a forward proxy")
    }

    /// The route of a booster that was picked; `None` where no route was.
    pub(crate) fn route_of(&self, service: u16, plan: RequestPlan) -> Option<&Route> {
        let RequestPlan::Route(index) = plan else { return None };
        self.service(service).routes().get(index as usize)
    }

    /// What is done with the responses of a service, or of the route that was picked; `None`: they
    /// go past the cache.
    pub(crate) fn cache(&self, service: u16, plan: RequestPlan) -> Option<&CacheRoute> {
        let service = self.service(service);
        match plan {
            RequestPlan::Route(index) => service.routes()[index as usize].cache.as_deref(),
            RequestPlan::Target => service.cache.as_deref(),
            _ => None,
        }
    }

    pub(crate) fn service(&self, index: u16) -> &Service {
        &self.config.services[index as usize]
    }
}

/// The places of listeners by their numbers.
fn by_number(listeners: &[Listener]) -> Box<[u16]> {
    let length = listeners.iter().map(|listener| listener.number as usize + 1).max();
    let mut places = vec![ABSENT; length.unwrap_or(0)];
    for (place, listener) in listeners.iter().enumerate() {
        places[listener.number as usize] = place as u16;
    }
    places.into()
}

/// No place: there are fewer listeners.
const ABSENT: u16 = u16::MAX;

fn via(version: &str, pseudonym: &str) -> Box<[u8]> {
    Http1Header::line(b"Via", format!("{version} {pseudonym}").as_bytes())
}
