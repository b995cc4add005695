//! The configuration: an immutable, numbered snapshot of all settings.
//!
//! A command line (`arguments`) or a file (`file`) is read by the table of options (`options`) into
//! raw values (`raw`), from which `build` makes a [`Config`]. `write` writes a configuration as a
//! file. This crate opens no files and no sockets.
#![forbid(unsafe_code)]

mod acme;
mod arguments;
mod build;
mod cache;
mod cache_command;
mod cgi;
mod compression;
mod error;
mod examples;
mod file;
mod folder;
mod hash;
mod help;
mod keywords;
pub mod limits;
mod option_row;
mod option_table;
pub mod options;
mod process_rows;
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

use millrace_files::Compression;
use millrace_splice::Thresholds;
use millrace_tls::{
    Certificate, ClientCertificateMode, ClientCertificates, Roots, TicketKeys, UnknownName,
    Versions,
};

use crate::limits::Limits;
use crate::users::Users;

pub use acme::{Acme, AcmeContent, LETS_ENCRYPT};
pub use arguments::Command;
pub use build::{from_raw, process_from_raw};
pub use cache::{CacheRoute, CacheSend, CacheSettings, Disk};
pub use cache_command::{AdminRequest, LIST_OBJECTS_MAX};
pub use cgi::{CgiRoute, LauncherHandle};
pub use error::{ConfigError, printable};
pub use file::FILE_BYTES_MAX;
pub use folder::{FolderHandle, FolderRoute, SymlinkRule};
pub use hash::PasswordHash;
pub use raw::RawConfig;
pub use reference::{PAGES, page};
pub use reload::check_reload;
pub use service_name::{ServiceName, lost_names};
pub use value::write_origin;
pub use write::to_toml;

/// Builds the configuration of a file from its text. Messages call the file `configuration`.
///
/// # Errors
/// Returns the first error.
pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
    from_raw(&parse_toml("configuration", text, &RawConfig::default())?)
}

/// Parses the text of a file into raw values with their locations, for [`from_raw`]. Messages call
/// the file `name`. `overrides` are options of the command line, which replace those of the file.
///
/// # Errors
/// Returns an error if the text is not TOML or has an unknown key.
pub fn parse_toml(name: &str, text: &str, overrides: &RawConfig) -> Result<RawConfig, ConfigError> {
    Ok(file::read(name, text)?.with_overrides(overrides))
}

/// Builds the configuration of a command line of `forward`, `boost` or `serve`. The first word is
/// the command, not the name of the program.
///
/// # Errors
/// Returns the first error. Its message names the option.
pub fn from_arguments<T: Into<OsString>>(
    words: impl IntoIterator<Item = T>,
) -> Result<Config, ConfigError> {
    let program = std::iter::once(OsString::from("millrace"));
    match command(program.chain(words.into_iter().map(Into::into)))? {
        Command::Serve(raw) => from_raw(&raw),
        _ => {
            let expected = "forward, boost, serve";
            Err(ConfigError::rule("", "the command has no configuration", expected))
        }
    }
}

/// Parses a command line. The first word is the name of the program.
///
/// # Errors
/// Returns an error for an unknown word or a missing value. [`from_raw`] checks the values.
pub fn command(words: impl IntoIterator<Item = OsString>) -> Result<Command, ConfigError> {
    arguments::read(&words.into_iter().collect::<Vec<_>>())
}

/// Returns notes about a valid configuration that its operator probably did not intend, a line
/// each.
pub fn notes(config: &Config) -> Vec<String> {
    service_name::notes(config).chain(route_notes::notes(config)).collect()
}

/// Parses any bytes as a file and checks the invariants of the result; for fuzzing.
///
/// # Panics
/// Panics if an error message is not one line of text, or if writing and reading a configuration
/// changes it.
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

/// A snapshot of the configuration. Workers switch to a newer one between turns; an exchange keeps
/// the one with which it began.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// The number of the snapshot, from 1, unique in this process.
    pub number: u64,
    /// The engine of the workers.
    pub engine: EngineChoice,
    /// The socket of uselectd, for [`EngineChoice::Uselect`].
    pub uselectd: PathBuf,
    /// The socket of iolited, which has files of folders in memory.
    pub iolited: Option<PathBuf>,
    /// The time that a worker of [`EngineChoice::Uselect`] polls before it sleeps, in microseconds.
    pub spin_us: u64,
    /// How to decide whether a body is copied or spliced.
    pub splice: Splice,
    /// The number of worker threads, at least 1.
    pub workers: usize,
    /// The memory of the cache and of the pools of all workers together, in bytes.
    pub memory_bytes: u64,
    /// The memory and disks of the cache; `None` if there is no cache.
    pub cache: Option<CacheSettings>,
    /// The user of a process that is started as root.
    pub user: ProcessUser,
    /// Whether the process restricts itself to the files and system calls that it needs.
    pub sandbox: bool,
    /// Directories that the sandbox allows in addition to those of the configuration's files.
    pub sandbox_folders: Vec<PathBuf>,
    /// The user of CGI programs, if the process is started as root.
    pub cgi_user: ProcessUser,
    /// The listeners of all services.
    pub listeners: Vec<Listener>,
    /// The services; see [`Listener::service`].
    pub services: Vec<Service>,
    /// The access log; `None` if there is none.
    pub access_log: Option<AccessLog>,
    /// The addresses for metrics, health and administration.
    pub admin: Vec<AdminAddress>,
    /// The TLS settings of those admin addresses that use TLS; `None` if there are none.
    pub admin_tls: Option<AdminTls>,
    /// The file with the token for privileged requests over TCP.
    pub admin_token_file: Option<PathBuf>,
    /// A host name, in lower case, that requests to a TCP admin address may use.
    pub admin_name: Option<String>,
    /// The values of the limits.
    pub limits: Limits,
}

impl Config {
    /// Returns the memory of the pools of all workers together, in bytes.
    pub fn pool_bytes(&self) -> u64 {
        let cache = self.cache.as_ref().map_or(0, |cache| cache.memory_bytes);
        self.memory_bytes.saturating_sub(cache)
    }

    /// Returns the TCP addresses of the process, for listeners and administration, as configured.
    pub fn own_addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter().map(|listener| &listener.address);
        let admin = self.admin.iter().map(|admin| &admin.address);
        let tcp = listeners.chain(admin).filter_map(|address| match address {
            ListenAddress::Tcp(address) => Some(*address),
            ListenAddress::Unix(_) => None,
        });
        tcp.collect()
    }
}

/// An address for metrics, health and administration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminAddress {
    /// The address.
    pub address: ListenAddress,
    /// Whether it uses TLS.
    pub tls: bool,
}

impl fmt::Display for AdminAddress {
    /// Writes the value of the option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.tls { TLS_PREFIX } else { "" };
        write!(f, "{prefix}{}", self.address)
    }
}

/// The TLS settings of the admin addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminTls {
    /// The certificate and its key.
    pub files: CertificateFiles,
    /// The certificate in `files`. `None` until the program has read it.
    pub certificate: Option<Certificate>,
}

/// The user of a process that is started as root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessUser {
    /// The first of a few unprivileged users that can access the files of the configuration.
    Auto,
    /// This user and group, each by name or number.
    Named {
        /// The user.
        user: String,
        /// The group; `None` for the primary group of the user.
        group: Option<String>,
    },
}

impl fmt::Display for ProcessUser {
    /// Writes the value of the option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named { user, group: None } => f.write_str(user),
            Self::Named { user, group: Some(group) } => write!(f, "{user}:{group}"),
        }
    }
}

/// The value of the option `engine`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineChoice {
    /// The better one of epoll and uring on this machine.
    Auto,
    /// Edge-triggered epoll(7).
    Epoll,
    /// io_uring(7).
    Uring,
    /// Readiness in memory that the kernel keeps up to date, with uselectd(8).
    Uselect,
    /// poll(2), for comparison.
    Poll,
    /// select(2), for comparison.
    Select,
}

/// The value of the option `splice`: how to decide whether a body is copied or spliced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Splice {
    /// By built-in thresholds, [`Thresholds::FIXED`].
    #[default]
    Fixed,
    /// By thresholds that the program measures at start.
    Calibrated,
    /// Never, by [`Thresholds::COPY`].
    Never,
    /// Always, by [`Thresholds::SPLICE`].
    Always,
}

impl Splice {
    /// Returns the thresholds; `None` if the program has to measure them.
    pub fn thresholds(self) -> Option<Thresholds> {
        match self {
            Self::Fixed => Some(Thresholds::FIXED),
            Self::Calibrated => None,
            Self::Never => Some(Thresholds::COPY),
            Self::Always => Some(Thresholds::SPLICE),
        }
    }
}

/// A listener of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The address to listen on.
    pub address: ListenAddress,
    /// The number by which connections refer to the listener. [`from_raw`] sets the index in
    /// [`Config::listeners`]. The program replaces it by a number that the address keeps in every
    /// snapshot.
    pub number: u16,
    /// Index into [`Config::services`].
    pub service: usize,
    /// Whether each connection begins with a PROXY protocol header (version 1 or 2). Such
    /// connections are accepted only from [`Service::trusted`] addresses.
    pub proxy_protocol: bool,
    /// Whether connections use TLS, with the settings in [`Service::tls`].
    pub tls: bool,
}

impl Listener {
    /// Returns the address as the option `listen` names it.
    pub fn url(&self) -> String {
        let scheme = if self.tls { TLS_PREFIX } else { "" };
        format!("{scheme}{}", self.address)
    }
}

/// The prefix of the address of a listener with TLS.
const TLS_PREFIX: &str = "tls://";

/// An address to listen on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ListenAddress {
    /// A TCP address; port 0 lets the kernel choose a port.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns whether only this machine can reach the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for ListenAddress {
    /// Writes the value of the option, which is also the form that is printed at start.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A service: the role, access rules and options of a set of listeners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    /// The name, which no other service has.
    pub name: ServiceName,
    /// The role.
    pub role: ServiceRole,
    /// The clients that may use the service; all clients if empty.
    pub clients: Vec<Cidr>,
    /// The clients that may not use the service; overrides `clients`.
    pub denied_clients: Vec<Cidr>,
    /// The authentication of clients, only in a forward proxy; `None` if they need none.
    pub auth: Option<Auth>,
    /// The TLS settings of the listeners; `None` if none of them uses TLS.
    pub tls: Option<Tls>,
    /// The TLS settings of connections to `https://` targets; `None` if a forward proxy refuses
    /// them, and for a reverse proxy.
    pub fetch_tls: Option<Arc<OriginTls>>,
    /// The port of the `https` URLs to which requests on plain listeners are redirected; `None` if
    /// they are served.
    pub redirect_port: Option<u16>,
    /// The `max-age` of Strict-Transport-Security in responses over TLS, in seconds; `None` if the
    /// field of the origin is passed on.
    pub hsts_s: Option<u32>,
    /// The peers whose Forwarded, X-Forwarded-* and PROXY headers are trusted.
    pub trusted: Vec<Cidr>,
    /// Whether responses that are passed on get a Proxy-Status field.
    pub proxy_status: bool,
    /// Whether a reverse proxy refuses paths that origins may interpret as the path of another
    /// route.
    pub path_strict: bool,
    /// The congestion control of connections from clients.
    pub congestion: Congestion,
    /// The congestion control of connections to origins.
    pub origin_congestion: Congestion,
    /// The cache rules of a forward proxy; `None` if its requests bypass the cache, or if the
    /// service is a reverse proxy, whose routes have the rules.
    pub cache: Option<Arc<CacheRoute>>,
}

/// The TLS settings of the listeners of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The certificates and their keys. With [`Tls::acme`] the program adds the file of the
    /// ordered certificate; otherwise at least one.
    pub files: Vec<CertificateFiles>,
    /// How the certificate is ordered; `None` if `files` are configured.
    pub acme: Option<Acme>,
    /// The versions of TLS.
    pub versions: Versions,
    /// The certificate of a client whose name (SNI) no certificate has.
    pub unknown_name: UnknownName,
    /// The request for certificates of clients; `None` if none are requested.
    pub client_certificates: Option<ClientCertificateRules>,
    /// The certificates in `files`, in the same order; empty while an ordered certificate has not
    /// arrived. `None` until the program has read them; no
    /// client is accepted while this is `None`.
    pub certificates: Option<Arc<[Certificate]>>,
    /// The files with keys of session tickets, as configured; empty if the process makes the keys.
    pub ticket_files: Vec<PathBuf>,
    /// The keys in `ticket_files`. `None` until the program has read them, or if there are no
    /// files.
    pub ticket_keys: Option<TicketKeys>,
}

impl Tls {
    /// Returns the configured files that a reload reads again.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let configured = self.files.iter().filter(|_| self.acme.is_none());
        let own = configured.flat_map(|files| [&files.chain, &files.key]);
        let rules = self.client_certificates.iter();
        let of_clients = rules.flat_map(|it| it.authorities.iter().chain(&it.revocation_lists));
        let of_acme =
            self.acme.iter().flat_map(|acme| acme.ca.iter().chain(&acme.external_account));
        own.chain(of_clients).chain(&self.ticket_files).chain(of_acme).map(PathBuf::as_path)
    }
}

/// How a service requests certificates from clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificateRules {
    /// Whether a client has to present one.
    pub mode: ClientCertificateMode,
    /// The files of the authorities that issue them, at least one, as configured.
    pub authorities: Vec<PathBuf>,
    /// The files of lists of revoked certificates, as configured.
    pub revocation_lists: Vec<PathBuf>,
    /// The names of servers, and wildcards, for which they are requested; empty for all.
    pub names: Vec<String>,
    /// The content of the files. `None` until the program has read them.
    pub content: Option<ClientCertificates>,
}

/// The files of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFiles {
    /// The file of the certificate chain, as configured.
    pub chain: PathBuf,
    /// The file of the private key, as configured.
    pub key: PathBuf,
}

/// The authentication of clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Auth {
    /// The file of users, as configured.
    pub path: PathBuf,
    /// The realm: printable ASCII without quotes and backslashes.
    pub realm: String,
    /// The users in the file. `None` until the program has read the file; no client is accepted
    /// while this is `None`.
    pub users: Option<Arc<Users>>,
}

/// The congestion control of TCP connections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Congestion {
    /// The setting of the kernel for the system or for a route.
    #[default]
    System,
    /// Cubic for peers with a loopback, private or link-local address, the setting of the kernel
    /// for all others.
    Auto,
    /// The algorithm of this name. The program checks whether the kernel has it.
    Named(Arc<str>),
}

impl Congestion {
    /// Returns the name of the algorithm, if the option names one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::System | Self::Auto => None,
        }
    }
}

impl fmt::Display for Congestion {
    /// Writes the value of the option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system",
            Self::Auto => "auto",
            Self::Named(name) => name,
        })
    }
}

/// The role of a service, with its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceRole {
    /// A forward proxy, which may connect to the targets that these rules allow.
    Forward(TargetRules),
    /// A reverse proxy or a file server. A request uses the first route that matches.
    Boost(Vec<Route>),
}

impl Service {
    /// Returns the routes of a reverse proxy; empty for a forward proxy.
    pub fn routes(&self) -> &[Route] {
        match &self.role {
            ServiceRole::Boost(routes) => routes,
            ServiceRole::Forward(_) => &[],
        }
    }

    /// Returns the TLS settings of connections to origins, and to `https://` targets.
    pub fn origin_tls(&self) -> impl Iterator<Item = &OriginTls> {
        let of_routes = self.routes().iter().filter_map(|route| route.origin_tls.as_deref());
        of_routes.chain(self.fetch_tls.as_deref())
    }

    /// Returns the routes of a reverse proxy, to set the content of their files.
    pub fn routes_mut(&mut self) -> &mut [Route] {
        match &mut self.role {
            ServiceRole::Boost(routes) => routes,
            ServiceRole::Forward(_) => &mut [],
        }
    }
}

/// The targets that clients of a forward proxy may reach (docs/design/security.md).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TargetRules {
    /// Whether loopback, private and other special addresses may be reached.
    pub private: bool,
    /// Addresses that may be reached regardless of `private`, including link-local ones.
    pub allowed: Vec<Cidr>,
    /// Addresses that may not be reached; overrides `allowed`.
    pub denied: Vec<Cidr>,
    /// Ports that may be reached in addition to 80, 443 and 1024 to 65535; 0 stands for all ports.
    pub ports: Vec<u16>,
    /// Ports that may not be reached; overrides `ports` and `allowed`.
    pub denied_ports: Vec<u16>,
    /// Host names that may be requested, in lower case without a dot at the end; `*.NAME` stands
    /// for all names below NAME. If empty, all names and addresses may be requested.
    pub allowed_domains: Vec<String>,
    /// Host names that may not be requested, in the same form; overrides `allowed_domains`.
    pub denied_domains: Vec<String>,
    /// Whether a CONNECT tunnel has to begin with a ClientHello that asks for the requested name.
    pub sni_must_match: bool,
}

/// A route of a reverse proxy: the requests that it takes, its folder and its origins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The host of matching requests, in lower case without a port; any host if `None`. `*.NAME`
    /// stands for all names below NAME.
    pub host: Option<String>,
    /// The prefix of the path of matching requests. It begins with a slash, and ends with one if
    /// there is a folder.
    pub path: String,
    /// The origins; at least one unless there is a folder.
    pub origins: Vec<Origin>,
    /// The protocol of the origins.
    pub protocol: OriginProtocol,
    /// The most bytes of a request body that is received whole before a FastCGI server gets it.
    pub upload_buffer_bytes: u64,
    /// The folder of CGI programs, if any. Their launcher is then the only origin.
    pub cgi: Option<CgiRoute>,
    /// The folder whose files the route serves; `None` if all requests go to origins.
    pub folder: Option<Arc<FolderRoute>>,
    /// The folder of the files that responses of origins may name; `None` if they may name none.
    pub sendfile: Option<Arc<FolderRoute>>,
    /// How responses of origins are compressed; `None` if they are passed on as they are.
    pub compression: Option<Arc<Compression>>,
    /// How to choose an origin.
    pub balance: Balance,
    /// The Host field that the origin receives.
    pub host_header: HostHeader,
    /// The form of the path that the origin receives.
    pub path_forward: PathForward,
    /// The names, in lower case, of fields that are passed on from untrusted peers too.
    pub pass_fields: Vec<Box<[u8]>>,
    /// Whether 502, 503 and 504 responses count as failures of the origin.
    pub eject_on_errors: bool,
    /// The responses after which a request is retried at another origin.
    pub retry_on: Vec<RetryOn>,
    /// The health check; `None` if the route has none.
    pub check: Option<RouteCheck>,
    /// The PROXY protocol header of connections to origins.
    pub send_proxy: SendProxy,
    /// The most requests that an origin connection has at a time; 1 without pipelining.
    pub pipeline_depth: usize,
    /// The TLS settings of connections to origins by `https://`; `None` if the route has no such
    /// origin.
    pub origin_tls: Option<Arc<OriginTls>>,
    /// The cache rules; `None` if the route bypasses the cache.
    pub cache: Option<Arc<CacheRoute>>,
}

/// The TLS settings of connections to origins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginTls {
    /// The file with the authorities that are trusted, as configured; `None` for those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// The name that the certificate has to be valid for; `None` for the host of the origin.
    pub name: Option<String>,
    /// Whether the certificate of the origin is verified.
    pub verify: bool,
    /// The certificate that is sent to origins, if any, as configured.
    pub certificate: Option<CertificateFiles>,
    /// The content of the files. `None` until the program has read them.
    pub content: Option<OriginTlsContent>,
}

impl OriginTls {
    /// Returns the files that a reload reads again.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = self.certificate.iter().flat_map(|files| [&files.chain, &files.key]);
        own.chain(&self.ca).map(PathBuf::as_path)
    }
}

/// The content of the files of [`OriginTls`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginTlsContent {
    /// The authorities that are trusted; `None` if origins are not verified.
    pub roots: Option<Roots>,
    /// The certificate that is sent to origins.
    pub certificate: Option<Certificate>,
}

/// A health check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteCheck {
    /// The request target: a path, optionally with a query.
    pub path: String,
    /// The first and the last status that pass the check.
    pub statuses: (u16, u16),
}

/// The protocol of the origins of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OriginProtocol {
    /// HTTP/1.1.
    #[default]
    Http,
    /// FastCGI 1.0.
    FastCgi,
    /// Messages over a channel of libiolite.
    Program,
}

/// How to choose an origin of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The origin with the fewest requests of this worker in progress; several such origins in
    /// turn.
    LeastOutstanding,
}

/// The Host field that the origin receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostHeader {
    /// The one that the client sent.
    Client,
    /// The name and port of the origin, as configured.
    Origin,
}

/// The form of the path that the origin receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathForward {
    /// The path as the client sent it.
    AsSent,
    /// The normal form, by which the route was selected.
    Normalised,
}

/// A kind of response after which a request is retried at another origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RetryOn {
    /// A malformed response.
    Malformed,
    /// A response with this status.
    Status(u16),
}

/// The PROXY protocol header of connections to origins.
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
    /// `http://HOST:PORT` or `https://HOST:PORT`; the host is a name or an address literal without
    /// brackets.
    Tcp {
        /// Name or address.
        host: String,
        /// 1 to 65535.
        port: u16,
        /// Whether the connection uses TLS, with the settings in [`Route::origin_tls`].
        tls: bool,
    },
    /// `unix:PATH`.
    Unix(Arc<Path>),
}

/// An address block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cidr {
    /// The first address, whose bits below the prefix are zero. Never IPv4-mapped.
    pub network: IpAddr,
    /// The length of the prefix in bits: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub prefix: u8,
}

impl Cidr {
    /// Returns whether the block contains `address`. An IPv4-mapped address counts as an IPv4
    /// address.
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

/// The access log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessLog {
    /// The file to append to; `-` is standard output.
    pub path: PathBuf,
    /// The format of a record.
    pub format: LogFormat,
}

/// The format of an access log record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// The Common Log Format.
    Common,
    /// The Combined Log Format: with Referer and User-Agent.
    Combined,
    /// A line with a JSON object.
    Json,
}

#[cfg(test)]
mod config_tests;
#[cfg(test)]
mod wrong_value_tests;

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
