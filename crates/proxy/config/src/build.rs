//! Builds a configuration from raw values: parses each value by its row, then checks the rules
//! between values.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_http_cache::Space;
use millrace_tls::ServerName;

use super::error::ConfigError;
use super::keywords;
use super::options::{OptionRow, Scope, ValueType};
use super::process_rows::MEMORY_BYTES_PER_WORKER_MIN;
use super::raw::{RawConfig, RawLimit, RawService, RawTable, ServiceKind, bounded};
use super::service_name::{self, ServiceName};
use super::value::{self, Problem};
use super::{
    AccessLog, AdminAddress, AdminTls, CertificateFiles, ClientCertificateRules, Config,
    ListenAddress, Listener, Origin, OriginProtocol, OriginTls, RetryOn, Route, RouteCheck,
    SendProxy, Service, ServiceRole, TargetRules, Tls,
};
use super::{acme, cache, cache::CacheRoute, cgi, compression, folder};
use crate::Auth;
use crate::limits::{LimitRow, Limits};

/// Builds the configuration of a command line or a file, as snapshot 1.
///
/// # Errors
/// Returns the first error. Its message names the option.
pub fn from_raw(raw: &RawConfig) -> Result<Config, ConfigError> {
    let process = &raw.process;
    let mut config = process_from_raw(raw)?;
    let listeners: Vec<_> =
        raw.services.iter().map(build_listeners).collect::<Result<_, ConfigError>>()?;
    let names = service_name::names(&raw.services, &listeners)?;
    let services = raw.services.iter().zip(names).zip(listeners);
    for (service, ((raw, name), listeners)) in services.enumerate() {
        config.services.push(build_service(raw, name, &listeners)?);
        for listener in listeners {
            let number = config.listeners.len() as u16;
            config.listeners.push(Listener { number, service, ..listener });
        }
    }
    if config.services.is_empty() {
        let expected = "at least one table [[forward]], [[boost]] or [[serve]]";
        return Err(ConfigError::rule(&process.location, "has no service", expected));
    }
    folder::withhold_scripts(&mut config.services);
    check_addresses(&config, raw)?;
    check_pipelining(&config, raw)?;
    if config.cache.is_none() {
        config.services.iter_mut().for_each(Service::bypass_cache);
    }
    Ok(config)
}

/// Builds the configuration of the process without any service, for `doctor`.
///
/// # Errors
/// Returns the first error. Its message names the option.
pub fn process_from_raw(raw: &RawConfig) -> Result<Config, ConfigError> {
    let process = &raw.process;
    let workers = match process.one("workers", |text| bounded("workers", text))? {
        Some(workers) => workers,
        None => std::thread::available_parallelism().map_or(1, NonZero::get) as u64,
    };
    let memory_bytes = process.one_or_default("memory", |text| bounded("memory", text))?;
    if memory_bytes / workers < MEMORY_BYTES_PER_WORKER_MIN {
        let memory = value::write_size(memory_bytes);
        let problem = format!("{memory} is too little for {workers} workers");
        let expected = format!("at least {workers}M, or fewer workers");
        return Err(ConfigError::rule(process.location_of("memory"), problem, expected));
    }
    let admin: Vec<_> = process.all("admin", parse_admin_address)?.into_iter().flatten().collect();
    Ok(Config {
        number: 1,
        engine: process.one_or_default("engine", |text| keywords::ENGINE.parse(text))?,
        uselectd: process.one_or_default("uselectd", value::parse_file_path)?,
        iolited: process.one("iolited", value::parse_file_path)?,
        spin_us: process.one_or_default("spin-us", |text| bounded("spin-us", text))?,
        splice: process.one_or_default("splice", |text| keywords::SPLICE.parse(text))?,
        workers: usize::try_from(workers).unwrap_or(1),
        memory_bytes,
        cache: cache::build_settings(process, memory_bytes, workers)?,
        user: process.one_or_default("user", value::parse_user)?,
        sandbox: process.one_or_default("sandbox", |text| keywords::SANDBOX.parse(text))?,
        sandbox_folders: process.all("sandbox-folder", value::parse_file_path)?,
        cgi_user: process.one_or_default("cgi-user", value::parse_user)?,
        listeners: Vec::new(),
        services: Vec::new(),
        access_log: build_access_log(process)?,
        admin_tls: build_admin_tls(process, &admin)?,
        admin,
        admin_token_file: process.one("admin-token-file", value::parse_file_path)?,
        admin_name: process.one("admin-name", value::parse_host_name)?,
        limits: build_limits(&raw.limits)?,
    })
}

/// Refuses pipelining to origins where it would have no effect.
fn check_pipelining(config: &Config, raw: &RawConfig) -> Result<(), ConfigError> {
    let routes = config.services.iter().flat_map(Service::routes);
    for (route, raw) in routes.zip(raw.services.iter().flat_map(|service| &service.routes)) {
        let (problem, expected) = match route {
            Route { pipeline_depth: 1, .. } => continue,
            Route { send_proxy: SendProxy::V1 | SendProxy::V2, .. } => (
                "has no effect with send-proxy, since clients share no connection",
                "send-proxy off, or origin-pipelining off",
            ),
            _ if config.limits.origin_connections == 0 => (
                "has no effect without the limit origin_connections",
                "a limit origin_connections of 1 or more, such as 64",
            ),
            _ => continue,
        };
        return Err(ConfigError::rule(raw.location_of("origin-pipelining"), problem, expected));
    }
    Ok(())
}

fn build_access_log(process: &RawTable) -> Result<Option<AccessLog>, ConfigError> {
    let format = process.one_or_default("log-format", |text| keywords::LOG_FORMAT.parse(text))?;
    let path = process.one_or_default("access-log", |text| match text {
        "off" => Ok(None),
        // Probably meant as a Boolean. The path ./false is valid.
        "true" | "false" => Err("is neither a path nor off"),
        _ => value::parse_file_path(text).map(Some),
    })?;
    Ok(path.map(|path: PathBuf| AccessLog { path, format }))
}

fn parse_admin_address(text: &str) -> Result<Option<AdminAddress>, Problem> {
    match text {
        "off" => Ok(None),
        _ => value::parse_listener(text).map(|(address, tls)| Some(AdminAddress { address, tls })),
    }
}

/// Builds the TLS settings of the admin addresses without the certificate.
fn build_admin_tls(
    process: &RawTable,
    admin: &[AdminAddress],
) -> Result<Option<AdminTls>, ConfigError> {
    let [chain_key, key_key] = ["admin-certificate", "admin-key"];
    let chain = process.one(chain_key, value::parse_file_path)?;
    let key = process.one(key_key, value::parse_file_path)?;
    let uses_tls = admin.iter().any(|admin| admin.tls);
    let [chain_name, key_name, admin_name] =
        [chain_key, key_key, "admin"].map(|key| process.name_of(key));
    let (option, problem, expected) = match (uses_tls, chain, key) {
        (true, Some(chain), Some(key)) => {
            let files = CertificateFiles { chain, key };
            return Ok(Some(AdminTls { files, certificate: None }));
        }
        (false, None, None) => return Ok(None),
        (true, _, _) => {
            let problem = format!("a tls:// address needs {chain_name} and {key_name}");
            ("admin", problem, format!("{chain_name} FULLCHAIN.pem and {key_name} KEY.pem"))
        }
        (false, chain, _) => {
            let option = if chain.is_some() { chain_key } else { key_key };
            let problem = "has no effect: no admin address uses TLS".to_owned();
            (option, problem, format!("{admin_name} tls://ADDRESS:PORT"))
        }
    };
    Err(ConfigError::rule(process.location_of(option), problem, expected))
}

fn build_limits(raw: &[RawLimit]) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    for RawLimit { name, name_location, value } in raw {
        let Some(row) = Limits::TABLE.iter().find(|row| row.name == name) else {
            let names: Vec<_> = Limits::TABLE.iter().map(|row| row.name).collect();
            return Err(ConfigError::unknown(name_location.clone(), "limit", name, &names));
        };
        let number = parse_limit(row, &value.text)
            .map_err(|problem| value.error(problem, expected_of_limit(row)))?;
        assert!(limits.set(row.name, number), "every row of the table can be set");
    }
    Ok(limits)
}

/// Parses the value of a limit. Times and sizes may have a unit.
fn parse_limit(row: &LimitRow, text: &str) -> Result<u64, Problem> {
    let number = match row.unit {
        "milliseconds" => value::parse_milliseconds(text)?,
        "bytes" | "bytes a second" => value::parse_size(text)?,
        _ => value::parse_number(text)?,
    };
    value::check_bounds(number, row.bounds.0, row.bounds.1)
}

/// Returns the valid values of a limit, to follow "expected: " in an error.
pub(super) fn expected_of_limit(row: &LimitRow) -> String {
    let (least, most) = row.bounds;
    match row.unit {
        "milliseconds" => {
            let [least, most] = [least, most].map(value::write_milliseconds);
            format!("{least} to {most}, in milliseconds or with ms, s, m or h")
        }
        "bytes" | "bytes a second" => {
            format!("{least} to {most} {}, or with K, M or G", row.unit)
        }
        unit => format!("{least} to {most} {unit}"),
    }
}

/// Builds the listeners of a service, without their numbers.
fn build_listeners(raw: &RawService) -> Result<Vec<Listener>, ConfigError> {
    let proxy_protocol = raw.table.one("proxy-protocol", value::parse_switch)?.unwrap_or_default();
    let mut addresses = raw.table.all("listen", value::parse_listener)?;
    if addresses.is_empty() {
        let port = if raw.kind == ServiceKind::Forward { 3128 } else { 8080 };
        addresses.push((ListenAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], port))), false));
    }
    let listener =
        |(address, tls)| Listener { address, number: 0, service: 0, proxy_protocol, tls };
    Ok(addresses.into_iter().map(listener).collect())
}

fn build_service(
    raw: &RawService,
    name: ServiceName,
    listeners: &[Listener],
) -> Result<Service, ConfigError> {
    let values = &raw.table;
    let clients = values.all("allow-client", value::parse_cidr)?;
    let denied_clients = values.all("deny-client", value::parse_cidr)?;
    let trusted = values.all("trust", value::parse_cidr)?;
    if listeners.iter().any(|it| it.proxy_protocol) && trusted.is_empty() {
        let option = values.name_of("trust");
        let problem = format!("needs {option}, because only trusted peers may send PROXY headers");
        let expected = format!("{option} CIDR with the addresses of these peers");
        return Err(ConfigError::rule(values.location_of("proxy-protocol"), problem, expected));
    }
    let local = listeners.iter().all(|listener| listener.address.is_local());
    let role = match raw.kind {
        ServiceKind::Forward => {
            if !local && clients.is_empty() {
                return Err(open_proxy_error(values));
            }
            ServiceRole::Forward(build_target_rules(values, local)?)
        }
        kind if raw.routes.is_empty() => return Err(no_route_error(kind, values)),
        ServiceKind::Boost | ServiceKind::Serve => {
            let space = name.space();
            // Checks the values of the service: they have to be valid even if every route overrides
            // them.
            cache::build_rules(values, true, space)?;
            let of_route = |table: &RawTable| build_route(&table.with_cache_of(values), space);
            ServiceRole::Boost(raw.routes.iter().map(of_route).collect::<Result<_, _>>()?)
        }
    };
    let (name, cache) = match &role {
        ServiceRole::Forward(rules) => {
            let name = name.with_rules(rules);
            let cache = cache::build_rules(values, false, name.space())?;
            (name, cache)
        }
        ServiceRole::Boost(_) => (name, None),
    };
    let congestion = |key| values.one_or_default(key, value::parse_congestion);
    Ok(Service {
        name,
        role,
        clients,
        denied_clients,
        auth: build_auth(values)?,
        tls: build_tls(values, listeners)?,
        fetch_tls: build_fetch_tls(values, cache.as_deref())?.map(Arc::new),
        redirect_port: build_redirect_port(values, listeners)?,
        hsts_s: build_hsts(values, listeners)?,
        trusted,
        proxy_status: values.one_or_default("proxy-status", value::parse_switch)?,
        path_strict: values.one_or_default("path-strict", value::parse_switch)?,
        congestion: congestion("congestion")?,
        origin_congestion: congestion("origin-congestion")?,
        cache,
    })
}

/// Returns the error for a service without a route.
fn no_route_error(kind: ServiceKind, values: &RawTable) -> ConfigError {
    let (problem, expected) = match kind {
        ServiceKind::Serve => ("has no folder", "folder, or at least one [[serve.route]]"),
        _ => ("has no route", "at least one [[boost.route]] with origins or folder"),
    };
    ConfigError::rule(&values.location, problem, expected)
}

/// Returns the error for a forward proxy that every client can use, which would be abused, for
/// example by spammers.
fn open_proxy_error(values: &RawTable) -> ConfigError {
    let option = values.name_of("allow-client");
    let problem = format!("other machines can reach this forward proxy, and {option} is missing");
    let expected = format!("{option} CIDR, or a loopback or unix: address to listen on");
    ConfigError::rule(values.location_of("listen"), problem, expected)
}

/// Builds the authentication without its users: the program reads their file when the rest of the
/// configuration is known to be valid.
fn build_auth(values: &RawTable) -> Result<Option<Auth>, ConfigError> {
    let realm = values.one_or_default("auth-realm", value::parse_realm)?;
    let path = values.one("auth-file", value::parse_file_path)?;
    Ok(path.map(|path| Auth { path, realm, users: None }))
}

/// Builds the TLS settings without the certificates: the program reads their files when the rest of
/// the configuration is known to be valid.
fn build_tls(values: &RawTable, listeners: &[Listener]) -> Result<Option<Tls>, ConfigError> {
    let chains = values.all("certificate", value::parse_file_path)?;
    let keys = values.all("key", value::parse_file_path)?;
    let ticket_files = values.all("ticket-key-file", value::parse_file_path)?;
    let versions =
        values.one_or_default("tls-versions", |text| keywords::TLS_VERSIONS.parse(text))?;
    let unknown_name =
        values.one_or_default("unknown-name", |text| keywords::UNKNOWN_NAME.parse(text))?;
    let client_certificates = build_client_certificates(values)?;
    let [certificate, key] = ["certificate", "key"].map(|option| values.name_of(option));
    if chains.len() != keys.len() {
        let problem = format!("{} {certificate} and {} {key}", chains.len(), keys.len());
        let location = values.location_of(if chains.is_empty() { "key" } else { "certificate" });
        let expected = "as many keys as certificates, in the same order";
        return Err(ConfigError::rule(location, problem, expected));
    }
    let acme = acme::build(values, listeners)?;
    if !listeners.iter().any(|listener| listener.tls) {
        let unused = match (&acme, &client_certificates) {
            _ if !chains.is_empty() => "certificate",
            (Some(_), _) => "acme",
            (None, Some(_)) => "client-certificate",
            _ if !ticket_files.is_empty() => "ticket-key-file",
            (None, None) => return Ok(None),
        };
        let problem = format!("{} has no effect: no listener uses TLS", values.name_of(unused));
        let expected = format!("{} tls://ADDRESS:PORT", values.name_of("listen"));
        return Err(ConfigError::rule(values.location_of(unused), problem, expected));
    }
    if acme.is_some() && !chains.is_empty() {
        let problem = format!("cannot be combined with {}", values.name_of("acme"));
        let expected = "one of them for each service";
        return Err(ConfigError::rule(values.location_of("certificate"), problem, expected));
    }
    if acme.is_none() && chains.is_empty() {
        let problem = format!("a tls:// address needs {certificate} and {key}");
        let expected = format!(
            "{certificate} FULLCHAIN.pem and {key} KEY.pem, or {} MAIL",
            values.name_of("acme")
        );
        return Err(ConfigError::rule(values.location_of("listen"), problem, expected));
    }
    let files = chains.into_iter().zip(keys);
    let files = files.map(|(chain, key)| CertificateFiles { chain, key }).collect();
    Ok(Some(Tls {
        files,
        acme,
        versions,
        unknown_name,
        client_certificates,
        certificates: None,
        ticket_files,
        ticket_keys: None,
    }))
}

/// Builds the request for certificates of clients without the content of the files.
fn build_client_certificates(
    values: &RawTable,
) -> Result<Option<ClientCertificateRules>, ConfigError> {
    let mode = values
        .one_or_default("client-certificate", |text| keywords::CLIENT_CERTIFICATE.parse(text))?;
    let authorities = values.all("client-ca", value::parse_file_path)?;
    let revocation_lists = values.all("client-crl", value::parse_file_path)?;
    let names = values.all("client-certificate-name", value::parse_domain)?;
    let Some(mode) = mode else {
        let given = [
            ("client-ca", !authorities.is_empty()),
            ("client-crl", !revocation_lists.is_empty()),
            ("client-certificate-name", !names.is_empty()),
        ];
        return match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(None),
            Some((key, _)) => {
                let option = values.name_of("client-certificate");
                let problem = format!("has no effect: {option} is off");
                let expected = format!("{option} optional or {option} required");
                Err(ConfigError::rule(values.location_of(key), problem, expected))
            }
        };
    };
    if authorities.is_empty() {
        let option = values.name_of("client-ca");
        let problem = format!("needs {option}, the authorities that issue these certificates");
        let expected = format!("{option} CA.pem");
        return Err(ConfigError::rule(values.location_of("client-certificate"), problem, expected));
    }
    let content = None;
    Ok(Some(ClientCertificateRules { mode, authorities, revocation_lists, names, content }))
}

/// Returns the port to which plain requests are redirected: 443 if a listener with TLS has it,
/// otherwise the port of the first one.
fn build_redirect_port(
    values: &RawTable,
    listeners: &[Listener],
) -> Result<Option<u16>, ConfigError> {
    if !values.one_or_default("redirect-https", value::parse_switch)? {
        return Ok(None);
    }
    if !listeners.iter().any(|listener| !listener.tls) {
        let problem = "has no effect: no plain listener";
        let expected = format!("also {} ADDRESS:80", values.name_of("listen"));
        return Err(ConfigError::rule(values.location_of("redirect-https"), problem, expected));
    }
    let secured = listeners.iter().filter(|listener| listener.tls);
    let ports = secured.filter_map(|listener| match listener.address {
        ListenAddress::Tcp(address) => Some(address.port()),
        ListenAddress::Unix(_) => None,
    });
    match ports.filter(|port| *port != 0).min_by_key(|port| *port != 443) {
        Some(port) => Ok(Some(port)),
        None => {
            let problem = "needs a tls:// listener with a port other than 0";
            let expected = format!("{} tls://ADDRESS:PORT", values.name_of("listen"));
            Err(ConfigError::rule(values.location_of("redirect-https"), problem, expected))
        }
    }
}

/// Returns the seconds of `hsts`.
fn build_hsts(values: &RawTable, listeners: &[Listener]) -> Result<Option<u32>, ConfigError> {
    let hsts_s = values.one_or_default("hsts", |text| match text {
        "off" => Ok(None),
        _ => cache::parse_seconds(text).map(Some),
    })?;
    if hsts_s.is_some() && !listeners.iter().any(|listener| listener.tls) {
        let expected = format!("{} tls://ADDRESS:PORT", values.name_of("listen"));
        let problem = "no listener of the service has TLS";
        return Err(ConfigError::rule(values.location_of("hsts"), problem, expected));
    }
    Ok(hsts_s)
}

fn build_target_rules(values: &RawTable, local: bool) -> Result<TargetRules, ConfigError> {
    let mut ports = values.all("allow-port", value::parse_port)?;
    if ports.is_empty() && local && !values.is_empty_list("allow-port") {
        // All ports: only programs of this machine use the proxy, and they could connect to any
        // port without it.
        ports.push(0);
    }
    Ok(TargetRules {
        private: values.one("allow-private", value::parse_switch)?.unwrap_or(local),
        allowed: values.all("allow-target", value::parse_cidr)?,
        denied: values.all("deny-target", value::parse_cidr)?,
        ports,
        denied_ports: values.all("deny-port", |text| match value::parse_port(text)? {
            0 => Err("is not a port"),
            port => Ok(port),
        })?,
        allowed_domains: values.all("allow-domain", value::parse_domain)?,
        denied_domains: values.all("deny-domain", value::parse_domain)?,
        sni_must_match: values.one("sni-must-match", value::parse_switch)?.unwrap_or(false),
    })
}

fn build_route(values: &RawTable, space: &Space) -> Result<Route, ConfigError> {
    let cgi = cgi::build(values)?;
    let (protocol, origins) = build_origins(values, cgi.is_some())?;
    let [of_files, of_origins] = compression::build(values)?;
    let folder = folder::build(values, of_files)?.map(Arc::new);
    if origins.is_empty() && folder.is_none() {
        let problem = match values.is_command_line {
            true => format!("{} is missing", values.name_of("origins")),
            false => "origins is missing, and there is no folder".to_owned(),
        };
        let expected = ValueType::Origin.expected();
        return Err(ConfigError::rule(&values.location, problem, expected));
    }
    let route = Route {
        host: values.one("host", value::parse_host_pattern)?,
        path: values.one_or_default("path", value::parse_path_prefix)?,
        folder,
        cgi,
        protocol,
        sendfile: folder::build_sendfile(values)?.map(Arc::new),
        compression: of_origins.map(Arc::new),
        upload_buffer_bytes: values
            .one_or_default("upload-buffer", |text| bounded("upload-buffer", text))?,
        balance: values.one_or_default("balance", |text| keywords::BALANCE.parse(text))?,
        host_header: values
            .one_or_default("host-header", |text| keywords::HOST_SENT.parse(text))?,
        path_forward: values
            .one_or_default("path-forward", |text| keywords::PATH_FORWARD.parse(text))?,
        pass_fields: values.all("pass-fields", value::parse_pass_field)?,
        eject_on_errors: values.one_or_default("eject-on-errors", value::parse_switch)?,
        retry_on: build_retry_on(values)?,
        check: build_route_check(values)?,
        send_proxy: values.one_or_default("send-proxy", |text| keywords::SEND_PROXY.parse(text))?,
        pipeline_depth: values.one_or_default("origin-pipelining", parse_pipeline_depth)?,
        origin_tls: build_origin_tls(values, &origins)?.map(Arc::new),
        origins,
        cache: cache::build_rules(values, true, space)?
            .filter(|_| protocol != OriginProtocol::Program),
    };
    check_folder_route(&route, values)?;
    Ok(route)
}

/// Parses the number of requests that an origin connection may have at a time.
fn parse_pipeline_depth(text: &str) -> Result<usize, Problem> {
    match text {
        "off" => Ok(1),
        _ => Ok(bounded("origin-pipelining", text)? as usize),
    }
}

/// Builds the origins of a route, of which it has one kind.
fn build_origins(
    values: &RawTable,
    has_cgi: bool,
) -> Result<(OriginProtocol, Vec<Origin>), ConfigError> {
    let http = values.all("origins", value::parse_origin)?;
    let fastcgi = values.all("fastcgi", value::parse_fastcgi)?;
    let program = values.one("program", value::parse_program)?;
    let kinds = [
        ("program", program.is_some(), &["folder", "origins", "fastcgi", "cgi"][..]),
        ("cgi", has_cgi, &["folder", "origins", "fastcgi"]),
        ("fastcgi", !fastcgi.is_empty(), &["origins"]),
    ];
    for (key, is_set, others) in kinds {
        if is_set && values.find_set(|row| others.contains(&row.key)).is_some() {
            let names: Vec<_> = others.iter().map(|key| values.name_of(key)).collect();
            let (last, first) = names.split_last().expect("each kind excludes another one");
            let or = if first.is_empty() { "" } else { " or " };
            let problem = format!("cannot be combined with {}{or}{last}", first.join(", "));
            return Err(ConfigError::rule(values.location_of(key), problem, "one of them"));
        }
    }
    Ok(match program {
        Some(program) => (OriginProtocol::Program, vec![program]),
        None if has_cgi => (OriginProtocol::FastCgi, vec![cgi::placeholder()]),
        None if !fastcgi.is_empty() => (OriginProtocol::FastCgi, fastcgi),
        None => (OriginProtocol::Http, http),
    })
}

/// Checks the rules between the folder of a route and its other options.
fn check_folder_route(route: &Route, values: &RawTable) -> Result<(), ConfigError> {
    if (route.folder.is_some() || route.cgi.is_some()) && !route.path.ends_with('/') {
        let problem = format!("{} does not end with /, and the route has a folder", route.path);
        let expected = format!("{}/", route.path);
        return Err(ConfigError::rule(values.location_of("path"), problem, expected));
    }
    check_protocol(route, values)?;
    let is_of_origins = |row: &OptionRow| {
        row.scope == Scope::Route
            && !matches!(row.key, "host" | "path")
            && !row.key.starts_with("compress")
    };
    match values.find_set(is_of_origins) {
        Some(location) if route.origins.is_empty() => {
            let problem = "has no effect: the route has no origins";
            let expected = format!("{} http://HOST", values.name_of("origins"));
            Err(ConfigError::rule(location, problem, expected))
        }
        _ => Ok(()),
    }
}

/// Refuses options that have no effect on origins of the route's protocol.
fn check_protocol(route: &Route, values: &RawTable) -> Result<(), ConfigError> {
    let (keys, problem): (&[&str], _) = match route.protocol {
        OriginProtocol::Http => (&["extensions", "upload-buffer"], "has no effect without fastcgi"),
        OriginProtocol::FastCgi if route.cgi.is_some() => (
            &["check", "check-status", "send-proxy", "origin-pipelining", "balance"],
            "has no effect with cgi",
        ),
        OriginProtocol::FastCgi => (
            &["check", "check-status", "send-proxy", "origin-pipelining"],
            "has no effect with fastcgi",
        ),
        OriginProtocol::Program => (
            &[
                "check",
                "check-status",
                "send-proxy",
                "origin-pipelining",
                "balance",
                "eject-on-errors",
                "retry-on",
            ],
            "has no effect with program",
        ),
    };
    match values.find_set(|row| keys.contains(&row.key)) {
        None => Ok(()),
        Some(location) => {
            let name = values.name_of("fastcgi");
            let expected = match route.protocol {
                OriginProtocol::Http => format!("{name} unix:PATH"),
                OriginProtocol::FastCgi | OriginProtocol::Program => {
                    "a route with origins".to_owned()
                }
            };
            Err(ConfigError::rule(location, problem, expected))
        }
    }
}

/// Builds the TLS settings of `https://` targets without the content of the file.
fn build_fetch_tls(
    values: &RawTable,
    cache: Option<&CacheRoute>,
) -> Result<Option<OriginTls>, ConfigError> {
    let ca = values.one("fetch-ca", value::parse_file_path)?;
    let is_on = values.one_or_default("fetch-https", value::parse_switch)?;
    if ca.is_some() && !is_on {
        let problem = format!("has no effect without {}", values.name_of("fetch-https"));
        let expected = format!("{} on", values.name_of("fetch-https"));
        return Err(ConfigError::rule(values.location_of("fetch-ca"), problem, expected));
    }
    if is_on && cache.is_some_and(|rules| rules.key.shares_schemes) {
        // A response that nothing has verified would serve requests for https://.
        let problem = format!("cannot be combined with {}", values.name_of("fetch-https"));
        let location = values.location_of("share-schemes");
        return Err(ConfigError::rule(location, problem, "one of them"));
    }
    let tls = OriginTls { ca, name: None, verify: true, certificate: None, content: None };
    Ok(is_on.then_some(tls))
}

/// Builds the TLS settings of origins without the content of the files.
fn build_origin_tls(
    values: &RawTable,
    origins: &[Origin],
) -> Result<Option<OriginTls>, ConfigError> {
    let verify = values.one_or_default("origin-verify", value::parse_switch)?;
    let ca = values.one("origin-ca", value::parse_file_path)?;
    let name = values.one("origin-name", value::parse_host_name)?;
    let chain = values.one("origin-certificate", value::parse_file_path)?;
    let key = values.one("origin-key", value::parse_file_path)?;
    if chain.is_some() != key.is_some() {
        let keys = ["origin-certificate", "origin-key"];
        let [given, missing] = if chain.is_some() { keys } else { [keys[1], keys[0]] };
        let problem = format!("needs {}", values.name_of(missing));
        let expected = "both origin-certificate and origin-key, or neither";
        return Err(ConfigError::rule(values.location_of(given), problem, expected));
    }
    let certificate = chain.zip(key).map(|(chain, key)| CertificateFiles { chain, key });
    let is_secured = |origin: &Origin| matches!(origin, Origin::Tcp { tls: true, .. });
    let has_name = |origin: &Origin| match origin {
        Origin::Tcp { host, tls: true, .. } => ServerName::parse(host).is_some(),
        _ => true,
    };
    if name.is_none() && !origins.iter().all(has_name) {
        let problem = "has a host that no certificate can be valid for";
        let expected = format!("a DNS name or an address, or {}", values.name_of("origin-name"));
        return Err(ConfigError::rule(values.location_of("origins"), problem, expected));
    }
    if origins.iter().any(is_secured) {
        return Ok(Some(OriginTls { ca, name, verify, certificate, content: None }));
    }
    let unused = [
        ("origin-verify", !verify),
        ("origin-ca", ca.is_some()),
        ("origin-name", name.is_some()),
        ("origin-certificate", certificate.is_some()),
    ];
    match unused.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(None),
        Some((key, _)) => {
            let problem = "has no effect: no origin of the route begins with https://";
            let expected = format!("{} https://HOST", values.name_of("origins"));
            Err(ConfigError::rule(values.location_of(key), problem, expected))
        }
    }
}

fn build_retry_on(values: &RawTable) -> Result<Vec<RetryOn>, ConfigError> {
    let words = values.all("retry-on", |text| keywords::RETRY_ON.parse(text))?;
    if words.is_empty() && !values.is_empty_list("retry-on") {
        return Ok(vec![RetryOn::Malformed]);
    }
    if words.len() > 1 && words.contains(&None) {
        let problem = "off is combined with other values";
        return Err(ConfigError::rule(values.location_of("retry-on"), problem, "off alone"));
    }
    Ok(words.into_iter().flatten().collect())
}

fn build_route_check(values: &RawTable) -> Result<Option<RouteCheck>, ConfigError> {
    let statuses = values.one_or_default("check-status", value::parse_statuses)?;
    let path = values.one_or_default("check", value::parse_check_path)?;
    Ok(path.map(|path| RouteCheck { path, statuses }))
}

/// Checks that no address is used twice. Workers share a TCP port by SO_REUSEPORT, so the kernel
/// would accept two services on one port and divide the clients between them.
fn check_addresses(config: &Config, raw: &RawConfig) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    let admin = config.admin.iter().map(|admin| (&admin.address, raw.process.location_of("admin")));
    let listeners = config.listeners.iter().map(|listener| {
        (&listener.address, raw.services[listener.service].table.location_of("listen"))
    });
    for (address, location) in admin.chain(listeners) {
        let picked_by_kernel =
            matches!(address, ListenAddress::Tcp(address) if address.port() == 0);
        if !picked_by_kernel && !seen.insert(address) {
            let problem = format!("{address} is used twice");
            return Err(ConfigError::rule(location, problem, "each address once"));
        }
    }
    Ok(())
}
