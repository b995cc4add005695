//! The address of an origin, and the state that a worker has for it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_config::Origin;
use millrace_engine::{Instant, Key};
use millrace_tls::ServerName;

use crate::origin::{
    ConnectRulesId, Health, process_waits::Processes, shared_health::SharedOrigin,
};

/// An origin, by its index in the worker's table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OriginId(pub(super) u32);

/// The address of an origin, as configured or as requested by a client of a forward proxy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OriginAddress {
    /// A host name in lower case and a port. The name ends in a dot if the resolver's search list
    /// does not apply to it.
    Name(Box<[u8]>, u16),
    /// An IP address and a port.
    Address(SocketAddr),
    /// The path of a Unix socket.
    Unix(Arc<std::path::Path>),
}

impl From<&Origin> for OriginAddress {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::Tcp { host, port, .. } => match host.parse::<IpAddr>() {
                Ok(ip) => Self::Address(SocketAddr::new(ip, *port)),
                Err(_) => Self::Name(host.as_bytes().to_ascii_lowercase().into(), *port),
            },
            Origin::Unix(path) => Self::Unix(path.clone()),
        }
    }
}

/// The state that a worker has for an origin.
#[derive(Debug)]
pub(super) struct OriginState {
    /// The key of the origin in the table: the rules for connections to it, and its address.
    pub(super) identity: Box<[u8]>,
    pub(super) rules: ConnectRulesId,
    pub(super) address: OriginAddress,
    /// The name that the origin's certificate has to be valid for; `None` if connections to the
    /// origin are plain.
    pub(super) server_name: Option<ServerName>,
    /// Idle connections, in the order in which they became idle.
    pub(super) idle: Vec<Key>,
    /// Exchanges that use the origin or wait for it.
    pub(super) outstanding: u32,
    /// Connections that are open, idle ones included, or being opened: `idle.len() <= open_count`.
    pub(super) open_count: usize,
    /// Exchanges that wait until the origin may have another connection, each once, with the time
    /// at which it began to wait; the oldest first.
    pub(super) queue: VecDeque<(Key, Instant)>,
    /// Connections on which other requests may be pipelined, or could be earlier. Those whose
    /// `accepts_more` is false and that have no followers are removed with the next search.
    pub(super) pipelines: Vec<Key>,
    /// Whether the latest response body was shorter than `Origins::small_below`.
    pub(super) has_small_bodies: bool,
    /// Whether the origin was requested by a client rather than named by a configuration.
    pub(super) is_from_client: bool,
    /// Whether a snapshot in use names the origin, which keeps it in the table.
    pub(super) is_configured: bool,
    /// Whether the snapshot in force would open connections to the origin, so that they may
    /// become idle rather than be closed.
    pub(super) is_in_force: bool,
    /// Set if each connection occupies a process of the origin, as those of FastCGI do.
    pub(super) processes: Option<Box<Processes>>,
    /// The health of a configured origin. Not recorded for an origin that a client requested.
    pub(super) health: Health,
    /// The state that all workers share; `None` if no configuration ever named the origin.
    pub(super) shared: Option<Arc<SharedOrigin>>,
}
