//! Where an origin is, and what a worker knows of it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_config::Origin;
use millrace_engine::{Instant, Key};

use crate::origin::{ConnectRulesId, Health, shared_health::SharedOrigin};

/// An origin by its index in the worker's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OriginId(pub(super) u32);

/// Where an origin is, as configured or asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OriginAddress {
    /// A name in lower case, with a dot at its end if no search list applies to it, and a port.
    Name(Box<[u8]>, u16),
    Address(SocketAddr),
    Unix(Arc<std::path::Path>),
}

impl From<&Origin> for OriginAddress {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => Self::Address(SocketAddr::new(ip, *port)),
                Err(_) => Self::Name(host.as_bytes().to_ascii_lowercase().into(), *port),
            },
            Origin::Unix(path) => Self::Unix(path.clone()),
        }
    }
}

/// What a worker knows of an origin.
#[derive(Debug)]
pub(super) struct OriginState {
    /// What tells it from every other one: the rules that open connections to it, and the place.
    pub(super) identity: Box<[u8]>,
    pub(super) rules: ConnectRulesId,
    pub(super) address: OriginAddress,
    /// Idle connections, the latest last.
    pub(super) idle: Vec<Key>,
    /// Exchanges that have it picked.
    pub(super) outstanding: u32,
    /// Connections that are open or being opened; the kept ones are among them.
    /// `idle.len() <= open`
    pub(super) open_count: usize,
    /// Exchanges that wait for room here, each once, with the time since which it waits, in the
    /// order of these.
    pub(super) queue: VecDeque<(Key, Instant)>,
    /// The latest response's body was shorter than `Origins::small_below`.
    pub(super) has_small_bodies: bool,
    /// A client asked for it; else it stands in a configuration.
    pub(super) is_from_client: bool,
    /// A snapshot in use names it, so it is not forgotten.
    pub(super) is_configured: bool,
    /// The snapshot in force would open connections to it: they may be kept.
    pub(super) is_in_force: bool,
    /// Whether it is to be asked. Of those asked for by clients nothing is ever noted.
    pub(super) health: Health,
    /// What all workers know of it, if a configuration ever named it.
    pub(super) shared: Option<Arc<SharedOrigin>>,
}
