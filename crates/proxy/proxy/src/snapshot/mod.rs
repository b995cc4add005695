//! Snapshots. A snapshot is a configuration together with the state that a worker derives from it
//! once, so that requests only look this state up.

pub(crate) mod in_use;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_files::Compression;
use millrace_http1::{HeadLimits, Http1Header};
use millrace_tls::{Clock, ServerOptions, ServerSettings, TicketKeys};

use crate::admission::TargetFilter;
use crate::congestion::CongestionSetting;
use crate::counters::PerStatus;
use crate::exchange::RequestPlan;
use crate::origin::shared_health::{CheckResult, HealthCheck, SharedHealth};
use crate::origin::{ConnectRules, ConnectRulesId, OriginId, Origins, RetryBudget};
use crate::secure::client_settings;
use crate::shared::SharedState;
use millrace_config::{
    Balance, CacheRoute, Config, Listener, Origin, OriginProtocol, OriginTls, RetryOn, Route,
    SendProxy, Service, ServiceRole, Tls, limits::Limits,
};

/// A numbered configuration with the state that a worker derives from it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) config: Arc<Config>,
    /// The index of each listener in the configuration, by its number; [`ABSENT`] if the number is
    /// not in use.
    listeners: Box<[u16]>,
    /// The connect rules of each service.
    pub(crate) rules: Box<[ConnectRulesId]>,
    /// The other derived state of each service.
    services: Box<[ServiceState]>,
    pub(crate) request_limits: HeadLimits,
    pub(crate) response_limits: HeadLimits,
    /// The shortest time limit of a wait for a client or for a stored body, lingering excepted. The
    /// timer of a client connection is set at most this far ahead. Such a wait need not set the
    /// timer when it begins: the timer fires before the deadline of the wait, and is then set to
    /// that deadline.
    pub(crate) client_timer_max: Duration,
    /// The shortest time limit of an origin connection, for its timer.
    pub(crate) origin_timer_max: Duration,
    /// The name of this process in Via (RFC 9110 section 7.6.3).
    pub(crate) pseudonym: Arc<str>,
    /// The whole Via field line for messages received as HTTP/1.0 and as HTTP/1.1.
    pub(crate) via: [Box<[u8]>; 2],
    /// The addresses of this process, to which a forward proxy never connects.
    pub(crate) own_addresses: Arc<[SocketAddr]>,
    /// Whether any service adds Proxy-Status to forwarded responses.
    sends_proxy_status: bool,
    /// Whether any route begins its connections with a PROXY header.
    pub(crate) sends_proxy: bool,
    /// Whether any route pipelines requests to its origins.
    pub(crate) pipelines: bool,
    /// Whether any route compresses the responses of its origins.
    compresses: bool,
    /// Whether the origins of any route speak another protocol than HTTP.
    has_programs: bool,
}

/// The state that a worker derives from one service.
#[derive(Debug)]
struct ServiceState {
    /// The request counters of the service, one entry per worker.
    requests: Arc<[PerStatus]>,
    /// The congestion control of connections to clients and to origins.
    congestion: [CongestionSetting; 2],
    /// The origins of each route.
    routes: Vec<RouteOrigins>,
    /// The filter of requested targets; `None` for a reverse proxy.
    target_filter: Option<TargetFilter>,
    /// The connect rules of `https://` targets; `None` if the service fetches none.
    fetch_rules: Option<ConnectRulesId>,
    /// The TLS settings of the service's listeners.
    tls: Option<ServerSettings>,
}

/// The origins of one route, and the state from which one of them is picked.
#[derive(Debug)]
pub(crate) struct RouteOrigins {
    pub(crate) origins: Vec<OriginId>,
    /// The connect rules of plain origins, and of origins by `https://`; the latter are `None` if
    /// the route has none.
    rules: (ConnectRulesId, Option<ConnectRulesId>),
    /// How an origin is picked.
    pub(crate) balance: Balance,
    /// The number of picks, retries included, plus an offset at the start.
    pub(crate) picks: Cell<usize>,
    /// The retry budget.
    pub(crate) budget: RefCell<RetryBudget>,
    /// The most requests that a connection has at a time.
    pub(crate) pipeline_depth: usize,
    /// Whether responses of status 502 to 504 count as failures of the origin.
    pub(crate) gateway_errors_fail: bool,
    /// The responses for which a request is sent to another origin.
    pub(crate) retry_on: Vec<RetryOn>,
    /// The result of the health check of each origin; empty if the route has no checks.
    checks: Vec<Arc<CheckResult>>,
}

impl RouteOrigins {
    /// Creates a route with round robin and without health checks.
    #[cfg(test)]
    pub(crate) fn new(origins: Vec<OriginId>) -> Self {
        Self {
            origins,
            rules: (ConnectRulesId::default(), None),
            balance: Balance::RoundRobin,
            picks: Cell::new(0),
            pipeline_depth: 1,
            budget: RefCell::default(),
            gateway_errors_fail: false,
            retry_on: vec![RetryOn::Malformed],
            checks: Vec::new(),
        }
    }

    /// Creates the origins of a configured route. `first_pick` is the offset of the round robin.
    fn of(
        route: &Route,
        (rules, secure_rules): (ConnectRulesId, Option<ConnectRulesId>),
        (now, first_pick): (Instant, usize),
        origins: &mut Origins,
        shared_health: &SharedHealth,
    ) -> Self {
        let of_route = route.origins.iter().map(|origin| {
            let is_secured = matches!(origin, Origin::Tcp { tls: true, .. });
            let rules = secure_rules.filter(|_| is_secured).unwrap_or(rules);
            origins.intern_configured(rules, origin, shared_health)
        });
        Self {
            origins: of_route.collect(),
            rules: (rules, secure_rules),
            balance: route.balance,
            pipeline_depth: route.pipeline_depth,
            gateway_errors_fail: route.eject_on_errors,
            retry_on: route.retry_on.clone(),
            checks: HealthCheck::of_route(route)
                .map(|check| shared_health.register_check(&check))
                .collect(),
            picks: Cell::new(first_pick),
            budget: RefCell::new(RetryBudget::new(now, first_pick)),
        }
    }

    /// Returns whether the health check of the origin at `index` fails.
    pub(crate) fn is_check_failing(&self, index: usize) -> bool {
        self.checks.get(index).is_some_and(|result| result.is_failing())
    }
}

impl Snapshot {
    /// Creates the snapshot of a configuration that is in force from `now` on.
    pub(crate) fn new(
        config: Arc<Config>,
        now: Instant,
        origins: &mut Origins,
        shared: &SharedState,
        clock: &Clock,
    ) -> Self {
        let own: Arc<[SocketAddr]> = config.own_addresses().into();
        // The round robin starts at another origin after each reload. Otherwise a series of reloads
        // would favour the first one.
        let first_pick = config.number.saturating_sub(1) as usize;
        let derive = |service: &Service| {
            let congestion = [&service.congestion, &service.origin_congestion]
                .map(|choice| CongestionSetting::new(choice, shared.system_congestion.as_ref()));
            let rules = ConnectRules::of(service, &own, &congestion[1]);
            let client = |tls: &OriginTls| client_settings(tls, &shared.tls_provider, clock);
            let plain = origins.intern_rules(rules.clone(), client);
            let secured = |tls: &Option<Arc<OriginTls>>, origins: &mut Origins| {
                let rules = tls.clone().map(|tls| rules.clone().with_tls(tls));
                rules.map(|rules| origins.intern_rules(rules, client))
            };
            let fetch_rules = secured(&service.fetch_tls, origins);
            let mut of_route = |route: &Route| {
                let of_protocol = rules.clone().with_protocol(route.protocol);
                let of_protocol = origins.intern_rules(of_protocol, client);
                let rules = (of_protocol, secured(&route.origin_tls, origins));
                RouteOrigins::of(route, rules, (now, first_pick), origins, &shared.health)
            };
            let (routes, target_filter) = match &service.role {
                ServiceRole::Boost(routes) => (routes.iter().map(&mut of_route).collect(), None),
                ServiceRole::Forward(rules) => (Vec::new(), Some(TargetFilter::new(rules))),
            };
            let requests = shared.requests.of(service.name.as_str(), shared.counters.len());
            let tls = service.tls.as_ref().map(|tls| server_settings(tls, shared, clock));
            (plain, ServiceState { requests, congestion, routes, target_filter, fetch_rules, tls })
        };
        let (rules, services): (Vec<_>, Vec<_>) = config.services.iter().map(derive).unzip();
        let has_route =
            |which: fn(&Route) -> bool| config.services.iter().flat_map(Service::routes).any(which);
        let limits = &config.limits;
        let pipelines = has_route(|route| route.pipeline_depth > 1);
        let snapshot = Self {
            listeners: by_number(&config.listeners),
            rules: rules.into(),
            services: services.into(),
            request_limits: head_limits(limits, limits.request_head_bytes, limits.fields),
            response_limits: head_limits(
                limits,
                limits.response_head_bytes,
                limits.response_fields,
            ),
            client_timer_max: client_timer_max(limits),
            origin_timer_max: origin_timer_max(limits, pipelines),
            via: ["1.0", "1.1"].map(|version| via(version, &shared.pseudonym)),
            pseudonym: shared.pseudonym.clone(),
            own_addresses: own,
            sends_proxy_status: config.services.iter().any(|service| service.proxy_status),
            sends_proxy: has_route(|route| route.send_proxy != SendProxy::Off),
            pipelines,
            compresses: has_route(|route| route.compression.is_some()),
            has_programs: has_route(|route| route.protocol != OriginProtocol::Http),
            config,
        };
        snapshot.set_ticket_keys(&shared.ticket_keys.keys());
        snapshot
    }

    /// Returns all connect rules.
    pub(crate) fn all_rules(&self) -> impl Iterator<Item = ConnectRulesId> {
        let of_routes = self.routes().flat_map(|route| [Some(route.rules.0), route.rules.1]);
        let fetched = self.services.iter().filter_map(|service| service.fetch_rules);
        self.rules.iter().copied().chain(of_routes.flatten()).chain(fetched)
    }

    /// Returns whether connections of this configuration are opened under these rules.
    pub(crate) fn uses_rules(&self, id: ConnectRulesId) -> bool {
        // Nearly all connections have the rules of a service.
        self.rules.contains(&id) || self.all_rules().any(|rules| rules == id)
    }

    /// Applies the ticket keys to all services with TLS that have none of their own.
    pub(crate) fn set_ticket_keys(&self, keys: &TicketKeys) {
        for (service, config) in self.services.iter().zip(&self.config.services) {
            if let (Some(settings), Some(tls)) = (&service.tls, &config.tls) {
                let keys = tls.ticket_keys.as_ref().unwrap_or(keys);
                settings.set_ticket_keys(keys, config.name.as_str());
            }
        }
    }

    /// Returns the TLS settings of a service; `None` if no listener of it uses TLS.
    pub(crate) fn tls(&self, service: u16) -> Option<&ServerSettings> {
        self.services[usize::from(service)].tls.as_ref()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Returns the origins of a route of a reverse proxy.
    pub(crate) fn route(&self, service: u16, index: u16) -> &RouteOrigins {
        &self.services[service as usize].routes[index as usize]
    }

    /// Returns the listener with this number, if this configuration has it.
    pub(crate) fn listener(&self, number: u16) -> Option<&Listener> {
        let index = *self.listeners.get(number as usize)?;
        self.config.listeners.get(index as usize)
    }

    /// Returns the congestion control of connections that a listener of this configuration accepts.
    pub(crate) fn client_congestion(&self, listener: &Listener) -> &CongestionSetting {
        &self.services[listener.service].congestion[0]
    }

    fn routes(&self) -> impl Iterator<Item = &RouteOrigins> {
        self.services.iter().flat_map(|service| &service.routes)
    }

    /// Returns the origins of all routes.
    pub(crate) fn origins(&self) -> impl Iterator<Item = OriginId> {
        self.routes().flat_map(|route| route.origins.iter().copied())
    }

    /// Returns the results of the health checks of all routes.
    pub(crate) fn checks(&self) -> impl Iterator<Item = &Arc<CheckResult>> {
        self.routes().flat_map(|route| &route.checks)
    }

    /// Counts a request of a service by the status that the worker sent; 0 if it sent none.
    pub(crate) fn count_request(&self, service: u16, worker: usize, status: u16) {
        self.services[service as usize].requests[worker].add(status);
    }

    /// Returns the congestion control of a service's connections to origins.
    pub(crate) fn origin_congestion(&self, service: u16) -> &CongestionSetting {
        &self.services[service as usize].congestion[1]
    }

    /// Returns whether a service adds Proxy-Status to forwarded responses.
    pub(crate) fn sends_proxy_status(&self, service: u16) -> bool {
        self.sends_proxy_status && self.service(service).proxy_status
    }

    /// Returns the filter of requested targets of a forward proxy.
    pub(crate) fn target_filter(&self, service: u16) -> &TargetFilter {
        self.services[service as usize]
            .target_filter
            .as_ref()
            .expect("the service is a forward proxy")
    }

    /// Returns the connect rules of `https://` targets; `None` if the service fetches none.
    pub(crate) fn fetch_rules(&self, service: u16) -> Option<ConnectRulesId> {
        self.services[service as usize].fetch_rules
    }

    /// Returns the route of the plan; `None` if the plan is not a route.
    #[inline(always)]
    pub(crate) fn route_of(&self, service: u16, plan: RequestPlan) -> Option<&Route> {
        let RequestPlan::Route(index) = plan else { return None };
        self.service(service).routes().get(index as usize)
    }

    /// Returns how the responses of the plan's origins are compressed; `None` if they are not.
    #[inline]
    pub(crate) fn compression(&self, service: u16, plan: RequestPlan) -> Option<&Compression> {
        if !self.compresses {
            return None;
        }
        self.route_of(service, plan)?.compression.as_deref()
    }

    /// Returns the protocol of the plan's origins.
    #[inline]
    pub(crate) fn origin_protocol(&self, service: u16, plan: RequestPlan) -> OriginProtocol {
        if !self.has_programs {
            return OriginProtocol::Http;
        }
        self.route_of(service, plan).map_or(OriginProtocol::Http, |route| route.protocol)
    }

    /// Returns the cache settings of the plan's route, or of the service for a requested target;
    /// `None` if responses bypass the cache.
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

fn head_limits(limits: &Limits, bytes: u64, fields: u64) -> HeadLimits {
    HeadLimits {
        bytes_max: bytes as usize,
        fields_max: fields as usize,
        target_bytes_max: limits.target_bytes as usize,
    }
}

/// Returns [`Snapshot::client_timer_max`].
fn client_timer_max(limits: &Limits) -> Duration {
    shortest(&[
        limits.head_ms,
        limits.handshake_ms,
        limits.idle_ms,
        limits.body_ms,
        limits.send_ms,
        limits.response_ms,
        limits.tunnel_idle_ms,
    ])
}

/// Returns the value of [`Snapshot::origin_timer_max`].
fn origin_timer_max(limits: &Limits, pipelines: bool) -> Duration {
    shortest(&[
        limits.first_byte_ms,
        limits.response_ms,
        limits.origin_idle_ms,
        limits.tunnel_idle_ms,
        if pipelines { limits.pipeline_wait_ms } else { u64::MAX },
    ])
}

fn shortest(all_ms: &[u64]) -> Duration {
    Duration::from_millis(all_ms.iter().copied().min().unwrap_or(0))
}

/// Creates the TLS settings of a service.
fn server_settings(tls: &Tls, shared: &SharedState, clock: &Clock) -> ServerSettings {
    let certificates = tls.certificates.as_deref().expect("read before workers get the settings");
    let options = ServerOptions {
        certificates: certificates.to_vec(),
        versions: tls.versions,
        unknown_name: tls.unknown_name,
        alpn: vec![b"http/1.1".to_vec()],
        client_certificates: tls
            .client_certificates
            .as_ref()
            .map(|rules| rules.content.clone().expect("read before workers get the settings")),
    };
    let settings = ServerSettings::new(options, &shared.tls_provider, clock);
    settings.expect("the provider has suites for each version")
}

/// Returns the indices of listeners by their numbers.
fn by_number(listeners: &[Listener]) -> Box<[u16]> {
    let length = listeners.iter().map(|listener| listener.number as usize + 1).max();
    let mut indices = vec![ABSENT; length.unwrap_or(0)];
    for (index, listener) in listeners.iter().enumerate() {
        indices[listener.number as usize] = index as u16;
    }
    indices.into()
}

/// The entry in `Snapshot::listeners` for a number that no listener has. It is no valid index,
/// since a configuration has fewer listeners.
const ABSENT: u16 = u16::MAX;

fn via(version: &str, pseudonym: &str) -> Box<[u8]> {
    Http1Header::field_line(b"Via", format!("{version} {pseudonym}").as_bytes())
}
