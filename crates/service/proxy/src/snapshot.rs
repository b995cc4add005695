//! A configuration as a worker uses it: what can be worked out once is worked out here, so that a
//! request looks it up.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_http::HeadLimits;

use crate::config::{Config, Role, Service};
use crate::congestion::Setting;
use crate::limits::Limits;
use crate::origin::{OriginId, Origins};
use crate::worker::Shared;

/// A numbered configuration with what a worker derives from it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) config: Arc<Config>,
    /// Of every service, of every route: its origins and how often one was picked.
    pub(crate) routes: Vec<Vec<RouteOrigins>>,
    pub(crate) request_limits: HeadLimits,
    pub(crate) answer_limits: HeadLimits,
    /// The shortest wait of a client connection that is limited, lingering apart: its timer is
    /// never set further ahead, so that a new wait never needs to set it.
    pub(crate) client_check: Duration,
    /// The same for origin connections.
    pub(crate) origin_check: Duration,
    /// What stands in Via: the name of this process (RFC 9110 section 7.6.3).
    pub(crate) pseudonym: Arc<str>,
    /// The whole field for a message received as HTTP/1.0, and as HTTP/1.1.
    pub(crate) via: [Box<[u8]>; 2],
    /// Our own addresses, never to be connected to.
    pub(crate) own: Arc<[SocketAddr]>,
    /// Of every service: what its clients' connections are given, and those to origins.
    congestion: Box<[(Setting, Setting)]>,
}

/// The origins of one route.
#[derive(Debug)]
pub(crate) struct RouteOrigins {
    pub(crate) origins: Vec<OriginId>,
    /// Counts the picks.
    pub(crate) turn: Cell<usize>,
}

impl Snapshot {
    pub(crate) fn new(config: Arc<Config>, origins: &mut Origins, shared: &Shared) -> Self {
        let mut routes = Vec::with_capacity(config.services.len());
        for (index, service) in config.services.iter().enumerate() {
            let Role::Boost(configured) = &service.role else {
                routes.push(Vec::new());
                continue;
            };
            let of_route = |route: &crate::config::Route| RouteOrigins {
                origins: route
                    .origins
                    .iter()
                    .map(|origin| origins.configured(index as u16, origin))
                    .collect(),
                turn: Cell::new(0),
            };
            routes.push(configured.iter().map(of_route).collect());
        }
        let system = shared.system_congestion.as_ref();
        let of_service = |service: &Service| {
            let both = [&service.congestion, &service.origin_congestion];
            both.map(|choice| Setting::new(choice, system)).into()
        };
        let limits = &config.limits;
        let shortest = |all: &[u64]| Duration::from_millis(all.iter().copied().min().unwrap_or(0));
        let head_limits = |bytes: u64| HeadLimits {
            bytes_max: bytes as usize,
            fields_max: limits.fields as usize,
            target_bytes_max: limits.target_bytes as usize,
        };
        Self {
            routes,
            request_limits: head_limits(limits.request_head_bytes),
            answer_limits: head_limits(limits.answer_head_bytes),
            client_check: shortest(&[
                limits.head_ms,
                limits.idle_ms,
                limits.body_ms,
                limits.send_ms,
                limits.tunnel_idle_ms,
            ]),
            origin_check: shortest(&[
                limits.first_byte_ms,
                limits.answer_ms,
                limits.origin_idle_ms,
                limits.tunnel_idle_ms,
            ]),
            via: ["1.0", "1.1"].map(|version| {
                format!("Via: {version} {}\r\n", shared.pseudonym).into_bytes().into()
            }),
            pseudonym: shared.pseudonym.clone(),
            own: shared.own.clone(),
            congestion: config.services.iter().map(of_service).collect(),
            config,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// What the connections that come in at a listener are given.
    pub(crate) fn client_congestion(&self, listener: u16) -> &Setting {
        &self.congestion[self.config.listeners[listener as usize].service].0
    }

    /// What a service's connections to origins are given.
    pub(crate) fn origin_congestion(&self, service: u16) -> &Setting {
        &self.congestion[service as usize].1
    }

    pub(crate) fn service(&self, index: u16) -> &Service {
        &self.config.services[index as usize]
    }
}
