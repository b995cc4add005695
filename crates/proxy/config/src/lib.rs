//! Configuration: one immutable, numbered snapshot of all that a worker needs to know.
//!
//! It comes from a command line (`arguments`) or a file (`file`); both are read by the one
//! table of options (`options`) into what was `given`, from which `build` makes a [`Config`].
//! `write` is the way back. Nothing here opens a file or a socket.
#![forbid(unsafe_code)]

mod arguments;
mod build;
mod cache;
mod cache_command;
mod error;
mod file;
mod hash;
mod keywords;
pub mod limits;
pub mod options;
mod raw;
mod reference;
mod reload;
mod route_notes;
mod schema;
mod service_name;
mod toml_text;
pub mod users;
mod value;
mod value_type;
mod write;

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_splice::Thresholds;

use crate::limits::Limits;
use crate::users::Users;

pub use arguments::Command;
pub use build::{from_raw, process_from_raw};
pub use cache::{CacheRoute, CacheSend, CacheSettings, Disk};
pub use cache_command::{AdminRequest, LIST_OBJECTS_MAX};
pub use error::ConfigError;
pub use file::FILE_BYTES_MAX;
pub use hash::PasswordHash;
pub use raw::RawConfig;
pub use reference::{PAGES, page};
pub use reload::check_reload;
pub use service_name::{ServiceName, lost_names};
pub use value::write_origin;
pub use write::to_toml;

/// Reads a file's text. Messages call it `configuration`.
///
/// # Errors
/// The first thing that is wrong, on one line.
pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
    from_raw(&parse_toml("configuration", text, &RawConfig::default())?)
}

/// The values of the file that messages call `name`, for [`from_tables`]: beside the configuration
/// that they mean, they know where each was written. The options of the process in `over`, from a
/// command line, come before the file's own.
///
/// # Errors
/// What is no TOML and what is not known, on one line with the file's name, line and key.
pub fn parse_toml(name: &str, text: &str, over: &RawConfig) -> Result<RawConfig, ConfigError> {
    Ok(file::read(name, text)?.with_overrides(over))
}

/// The configuration of a command line that holds one whole: of `forward` or `boost`. The first
/// of `words` is the command, not the program.
///
/// # Errors
/// The first thing that is wrong, on one line with the option's name.
pub fn from_arguments<T: Into<OsString>>(
    words: impl IntoIterator<Item = T>,
) -> Result<Config, ConfigError> {
    let program = std::iter::once(OsString::from("millrace"));
    match command(program.chain(words.into_iter().map(Into::into)))? {
        Command::Serve(tables) => from_raw(&tables),
        _ => Err(ConfigError::rule("command line", "holds no configuration", "forward, boost")),
    }
}

/// What a command line, its first word the program's name, asks for.
///
/// # Errors
/// A word that is not known or has no value; values themselves are read later, by [`from_tables`].
pub fn command(words: impl IntoIterator<Item = OsString>) -> Result<Command, ConfigError> {
    arguments::read(&words.into_iter().collect::<Vec<_>>())
}

/// What an operator should know about a configuration that is valid, a line each.
pub fn notes(config: &Config) -> Vec<String> {
    service_name::notes(config).chain(route_notes::notes(config)).collect()
}

/// Reads any bytes as a file and checks what must hold of the outcome; for fuzzing.
///
/// # Panics
/// When a message is not one line of text, or a configuration does not survive being written.
pub fn fuzz_configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match from_toml(text) {
        Ok(config) => {
            let written = to_toml(&config);
            let again = from_toml(&written);
            assert_eq!(again.as_ref(), Ok(&config), "written as\n{written}");
        }
        Err(error) => {
            let message = error.to_string();
            assert!(!message.is_empty() && !message.chars().any(char::is_control), "{message:?}");
        }
    }
}

/// A snapshot. Workers switch to a newer one between turns; an exchange keeps the one that it began
/// with.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Counts the snapshots of this process, from 1.
    pub number: u64,
    /// Which engine presents completions.
    pub engine: EngineChoice,
    /// Where uselectd listens, for [`EngineChoice::Uselect`].
    pub uselectd: PathBuf,
    /// How long a worker of that engine looks for work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// From how many bytes on bodies are spliced.
    pub splice: Splice,
    /// Worker threads, at least 1.
    pub workers: usize,
    /// Bytes that the cache and all workers' pools may take together.
    pub memory_bytes: u64,
    /// What of it is the cache's, and which disks; `None`: there is no cache.
    pub cache: Option<CacheSettings>,
    /// Whose rights the process has where it is started as root.
    pub user: ProcessUser,
    /// Whether the process restricts itself to what it is made for.
    pub sandbox: bool,
    /// Folders that a reload may name files in, beside those of this configuration's files.
    pub sandbox_folders: Vec<PathBuf>,
    /// Where clients come in.
    pub listeners: Vec<Listener>,
    /// What is done with a request that came in at a listener; see [`Listener::service`].
    pub services: Vec<Service>,
    /// Where finished exchanges are recorded, and how.
    pub access_log: Option<AccessLog>,
    /// Where metrics and health are asked for, and changes in a running process.
    pub admin: Vec<ListenAddress>,
    /// The file that holds the token for changes over TCP; see the table of options.
    pub admin_token_file: Option<PathBuf>,
    /// The host name, in lower case, by which a TCP admin address may be asked.
    pub admin_name: Option<String>,
    /// The table of limits.
    pub limits: Limits,
}

impl Config {
    /// Bytes that all workers' pools may take together.
    pub fn pool_bytes(&self) -> u64 {
        let cache = self.cache.as_ref().map_or(0, |cache| cache.memory_bytes);
        self.memory_bytes.saturating_sub(cache)
    }

    /// The addresses of this process, listeners and admin, as they are written here.
    pub fn own_addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter().map(|listener| &listener.address);
        let tcp = listeners.chain(&self.admin).filter_map(|address| match address {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        });
        tcp.collect()
    }
}

/// Whose rights a process has that is started as root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessUser {
    /// The first of a few ordinary users that reaches what the configuration names.
    Auto,
    /// The one that is named, each part by its name or its number.
    Named {
        /// The user.
        user: String,
        /// The group, if not the user's own.
        group: Option<String>,
    },
}

impl fmt::Display for ProcessUser {
    /// As it is given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named { user, group: None } => f.write_str(user),
            Self::Named { user, group: Some(group) } => write!(f, "{user}:{group}"),
        }
    }
}

/// The engines that can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineChoice {
    /// The best that this kernel has, of epoll and uring.
    Auto,
    /// Edge-triggered epoll(7).
    Epoll,
    /// io_uring(7).
    Uring,
    /// Memory that the kernel keeps up to date, by uselectd(8).
    Uselect,
    /// poll(2), for comparison.
    Poll,
    /// select(2), for comparison.
    Select,
}

/// What decides whether a body is copied or spliced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Splice {
    /// Thresholds that were measured elsewhere: [`Thresholds::FIXED`].
    #[default]
    Fixed,
    /// Thresholds that the program measures when it starts.
    Calibrated,
    /// Every body is copied: [`Thresholds::COPY`].
    Never,
    /// Every body is spliced: [`Thresholds::SPLICE`].
    Always,
}

impl Splice {
    /// What bodies are moved by; `None`: that is to be measured.
    pub fn thresholds(self) -> Option<Thresholds> {
        match self {
            Self::Fixed => Some(Thresholds::FIXED),
            Self::Calibrated => None,
            Self::Never => Some(Thresholds::COPY),
            Self::Always => Some(Thresholds::SPLICE),
        }
    }
}

/// Where clients come in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The address to listen on.
    pub address: ListenAddress,
    /// What connections remember it by, in this snapshot and all later ones: whoever runs the
    /// configuration gives an address the same number for life. As built, its place in the list.
    pub number: u16,
    /// Index into [`Config::services`].
    pub service: usize,
    /// Whether each connection begins with a PROXY protocol header (version 1 or 2). Only
    /// connections from [`Service::trusted`] addresses may bring one, and they must.
    pub proxy_protocol: bool,
}

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ListenAddress {
    /// TCP; port 0 lets the kernel pick one.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether only this machine can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for ListenAddress {
    /// As it is given and announced.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What is done with requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// What it is called; no other service has the same name.
    pub name: ServiceName,
    /// Forward proxy or booster.
    pub role: ServiceRole,
    /// Clients that may use the service; empty: every client.
    pub clients: Vec<Cidr>,
    /// Clients that may not; wins over `clients`.
    pub denied_clients: Vec<Cidr>,
    /// How clients say who they are; `None`: they need not. Only a forward proxy asks.
    pub auth: Option<Auth>,
    /// Peers whose Forwarded, X-Forwarded-* and PROXY headers are believed.
    pub trusted: Vec<Cidr>,
    /// Whether answers that are passed on tell by Proxy-Status that they came through here.
    pub proxy_status: bool,
    /// Whether a booster refuses paths that its origins may read as another route's.
    pub path_strict: bool,
    /// How congestion control is chosen for the connections of clients.
    pub congestion: Congestion,
    /// The same for connections to origins.
    pub origin_congestion: Congestion,
    /// What is done with the answers of a forward proxy; `None`: they go past the cache, or the
    /// service is a booster, whose routes say it.
    pub cache: Option<Arc<CacheRoute>>,
}

/// How the clients of a service say who they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Auth {
    /// The file of users, as configured.
    pub path: PathBuf,
    /// What a client shows to the person who is asked: printable ASCII without quotes and
    /// backslashes.
    pub realm: String,
    /// What the file says. `None`: nobody has read it, and nobody is let in.
    pub users: Option<Arc<Users>>,
}

/// How congestion control is chosen for TCP connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// By the kernel: what the system, or a route, is set to.
    #[default]
    System,
    /// Cubic for peers close by, the system's for all others; the proxy knows who is.
    Auto,
    /// The algorithm of this name. Whether the kernel has it is for the program to find out.
    Named(Arc<str>),
}

impl Congestion {
    /// The algorithm's name, if one is given.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::System | Self::Auto => None,
        }
    }
}

impl fmt::Display for Congestion {
    /// As it is given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::Auto => "auto",
            Self::Named(name) => name,
        })
    }
}

/// The two kinds of service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceRole {
    /// Goes wherever the request says and the rules allow.
    Forward(TargetRules),
    /// Stands before the origins of its routes; the first route that matches is taken.
    Boost(Vec<Route>),
}

impl Service {
    /// Its routes; a forward proxy has none.
    pub fn routes(&self) -> &[Route] {
        match &self.role {
            ServiceRole::Boost(routes) => routes,
            ServiceRole::Forward(_) => &[],
        }
    }
}

/// Where a forward proxy may go (DESIGN.md, "Who may go where").
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetRules {
    /// Whether loopback, private and other special addresses may be reached.
    pub private: bool,
    /// Addresses that may be reached whatever the other rules say, link-local ones included.
    pub allowed: Vec<Cidr>,
    /// Addresses never reached; wins over `allowed`.
    pub denied: Vec<Cidr>,
    /// Ports that may be reached beside 80, 443 and those from 1024; all ports if it holds 0.
    pub ports: Vec<u16>,
    /// Ports never reached; wins over `ports` and `allowed`.
    pub denied_ports: Vec<u16>,
    /// Names that may be asked for, in lower case without a dot at the end, `*.` before one that
    /// means all names below it; empty: every name, and addresses too.
    pub allowed_domains: Vec<String>,
    /// Names that may not, in the same form; wins over `allowed_domains`.
    pub denied_domains: Vec<String>,
}

/// Requests of one kind and the origins that answer them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The host asked for, in lower case without a port; `None`: any. `*.example.org` means every
    /// name below example.org.
    pub host: Option<String>,
    /// A prefix of the path, beginning with a slash.
    pub path: String,
    /// At least one.
    pub origins: Vec<Origin>,
    /// How one of them is picked.
    pub balance: Balance,
    /// What the origin sees as Host.
    pub host_header: HostHeader,
    /// The path that the origin receives.
    pub path_forward: PathForward,
    /// Names in lower case of fields that are passed on from peers that are not trusted.
    pub pass_fields: Vec<Box<[u8]>>,
    /// Whether answers 502, 503 and 504 are failures of the origin.
    pub eject_on_errors: bool,
    /// For which responses a request is sent to another origin.
    pub retry_on: Vec<RetryOn>,
    /// How it is found out which origins are well, beside what clients' requests show.
    pub check: Option<RouteCheck>,
    /// The PROXY protocol header that its connections begin with.
    pub send_proxy: SendProxy,
    /// What is done with its answers; `None`: they go past the cache.
    pub cache: Option<Arc<CacheRoute>>,
}

/// A health check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteCheck {
    /// What is asked for: a path, perhaps with a query.
    pub path: String,
    /// The first and the last status of an origin that is well.
    pub statuses: (u16, u16),
}

/// How an origin of a route is picked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The one with the fewest requests that this worker has outstanding there; in turn among
    /// equals.
    LeastOutstanding,
}

/// What the origin sees as Host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostHeader {
    /// What the client asked for.
    Client,
    /// The origin's own name and port, as configured.
    Origin,
}

/// The path that the origin receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathForward {
    /// As the client sent it.
    AsSent,
    /// Its normal form, by which the route was selected.
    Normalised,
}

/// A response instead of which another origin is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryOn {
    /// One that is malformed.
    Malformed,
    /// One with this status.
    Status(u16),
}

/// Which PROXY protocol header a connection to an origin begins with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SendProxy {
    /// None.
    #[default]
    Off,
    /// Version 1, a line of text.
    V1,
    /// Version 2, binary.
    V2,
}

/// An origin server.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// `http://HOST:PORT`; the host is a name or an address literal without brackets.
    Tcp {
        /// Name or address.
        host: String,
        /// 1 to 65535.
        port: u16,
    },
    /// `unix:PATH`.
    Unix(Arc<Path>),
}

/// A block of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// Its first address; the bits below the prefix are zero. Never an IPv4-mapped one.
    pub network: IpAddr,
    /// 0 to 32 or 128.
    pub prefix: u8,
}

impl Cidr {
    /// Whether `address` lies in the block; an IPv4-mapped address counts as the IPv4 one.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                u32::from(network).checked_shr(shift) == u32::from(address).checked_shr(shift)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.prefix);
                u128::from(network).checked_shr(shift) == u128::from(address).checked_shr(shift)
            }
            _ => false,
        }
    }
}

/// Where and how finished exchanges are recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessLog {
    /// The file, appended to; `-` is standard output.
    pub path: PathBuf,
    /// The form of a record.
    pub format: LogFormat,
}

/// The form of an access log record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// The Common Log Format.
    Common,
    /// The Combined Log Format: with Referer and User-Agent.
    Combined,
    /// One JSON object a line.
    Json,
}

#[cfg(test)]
mod config_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_contains_its_addresses_and_no_others() {
        let block = |network: &str, prefix| Cidr { network: network.parse().unwrap(), prefix };
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(block("10.0.0.0", 8).contains(address("10.255.0.1")));
        assert!(block("10.0.0.0", 8).contains(address("::ffff:10.1.2.3")));
        assert!(!block("10.0.0.0", 8).contains(address("11.0.0.0")));
        assert!(block("0.0.0.0", 0).contains(address("255.255.255.255")));
        assert!(!block("0.0.0.0", 0).contains(address("::1")));
        assert!(block("::1", 128).contains(address("::1")));
        assert!(!block("fe80::", 10).contains(address("fec0::")));
    }
}
