//! Writes a configuration as a file with all values, for `check` and the admin address. Reading the
//! file results in the same configuration.

use std::path::PathBuf;

use super::keywords;
use super::raw::ServiceKind;
use super::toml_text::{basic_string, string_array, write_key};
use super::value::{write_fastcgi, write_origin, write_port, write_size, write_statuses};
use super::{
    CertificateFiles, Cidr, ClientCertificateRules, Config, Listener, OriginProtocol, OriginTls,
    Route, Service, ServiceRole, TargetRules,
};
use super::{acme, cache, compression, folder};
use crate::limits::Limits;

/// Writes the file of a configuration. The file does not contain the number of the snapshot, which
/// belongs to the running process.
pub fn to_toml(config: &Config) -> String {
    let mut out = String::new();
    process(&mut out, config);
    out.push_str("\n[limits]\n");
    for row in Limits::TABLE {
        let value = config.limits.get(row.name).expect("every row of the table has a value");
        write_key(&mut out, row.name, value);
    }
    for (index, service) in config.services.iter().enumerate() {
        let listeners =
            config.listeners.iter().filter(|listener| listener.service == index).collect();
        write_service(&mut out, service, listeners);
    }
    out
}

fn process(out: &mut String, config: &Config) {
    write_key(out, "engine", basic_string(keywords::ENGINE.name(config.engine)));
    write_key(out, "uselectd", basic_string(&config.uselectd.display().to_string()));
    write_key(out, "spin-us", config.spin_us.to_string());
    write_key(out, "splice", basic_string(keywords::SPLICE.name(config.splice)));
    write_key(out, "workers", config.workers);
    write_key(out, "memory", basic_string(&super::value::write_size(config.memory_bytes)));
    cache::write_settings(out, config.cache.as_ref());
    if let Some(path) = &config.iolited {
        write_key(out, "iolited", basic_string(&path.display().to_string()));
    }
    write_key(out, "user", basic_string(&config.user.to_string()));
    write_key(out, "sandbox", basic_string(keywords::SANDBOX.name(config.sandbox)));
    let folders = config.sandbox_folders.iter().map(|folder| folder.display().to_string());
    write_key(out, "sandbox-folder", string_array(folders));
    write_key(out, "cgi-user", basic_string(&config.cgi_user.to_string()));
    match &config.access_log {
        None => write_key(out, "access-log", basic_string("off")),
        Some(log) => {
            write_key(out, "access-log", basic_string(&log.path.display().to_string()));
            write_key(out, "log-format", basic_string(keywords::LOG_FORMAT.name(log.format)));
        }
    }
    match config.admin.as_slice() {
        [] => write_key(out, "admin", basic_string("off")),
        [admin] => write_key(out, "admin", basic_string(&admin.to_string())),
        several => write_key(out, "admin", string_array(several.iter().map(ToString::to_string))),
    }
    if let Some(tls) = &config.admin_tls {
        let files = &tls.files;
        write_key(out, "admin-certificate", basic_string(&files.chain.display().to_string()));
        write_key(out, "admin-key", basic_string(&files.key.display().to_string()));
    }
    if let Some(path) = &config.admin_token_file {
        write_key(out, "admin-token-file", basic_string(&path.display().to_string()));
    }
    if let Some(name) = &config.admin_name {
        write_key(out, "admin-name", basic_string(name));
    }
}

fn write_service(out: &mut String, service: &Service, listeners: Vec<&Listener>) {
    let kind = service.name.kind();
    out.push_str(&format!("\n[[{}]]\n", kind.name()));
    if let Some(name) = service.name.given() {
        write_key(out, "name", basic_string(name));
    }
    let addresses = listeners.iter().map(|listener| listener.url());
    write_key(out, "listen", string_array(addresses));
    // An empty list would be an error. Without the key, every client is served.
    if !service.clients.is_empty() {
        write_key(out, "allow-client", blocks(&service.clients));
    }
    write_key(out, "deny-client", blocks(&service.denied_clients));
    if let Some(auth) = &service.auth {
        write_key(out, "auth-file", basic_string(&auth.path.display().to_string()));
        write_key(out, "auth-realm", basic_string(&auth.realm));
    }
    if let Some(tls) = &service.tls {
        let files = |file: fn(&CertificateFiles) -> &PathBuf| {
            string_array(tls.files.iter().map(|files| file(files).display().to_string()))
        };
        match &tls.acme {
            Some(acme) => acme::write(out, acme),
            None => {
                write_key(out, "certificate", files(|files| &files.chain));
                write_key(out, "key", files(|files| &files.key));
            }
        }
        if !tls.ticket_files.is_empty() {
            let files = tls.ticket_files.iter().map(|path| path.display().to_string());
            write_key(out, "ticket-key-file", string_array(files));
        }
        write_key(out, "tls-versions", basic_string(keywords::TLS_VERSIONS.name(tls.versions)));
        write_key(out, "unknown-name", basic_string(keywords::UNKNOWN_NAME.name(tls.unknown_name)));
        write_client_certificates(out, tls.client_certificates.as_ref());
    }
    write_key(out, "trust", blocks(&service.trusted));
    // In a file, the switch applies to all listeners of a service.
    write_key(out, "proxy-protocol", listeners.iter().any(|listener| listener.proxy_protocol));
    write_key(out, "proxy-status", service.proxy_status);
    write_key(out, "congestion", basic_string(&service.congestion.to_string()));
    write_key(out, "origin-congestion", basic_string(&service.origin_congestion.to_string()));
    match &service.role {
        ServiceRole::Forward(rules) => {
            target_rules(out, rules);
            write_key(out, "fetch-https", service.fetch_tls.is_some());
            if let Some(ca) = service.fetch_tls.as_ref().and_then(|tls| tls.ca.as_ref()) {
                write_key(out, "fetch-ca", basic_string(&ca.display().to_string()));
            }
            cache::write_route(out, service.cache.as_deref());
        }
        ServiceRole::Boost(routes) => {
            write_key(out, "redirect-https", service.redirect_port.is_some());
            let hsts = service.hsts_s.map_or_else(|| "off".to_owned(), cache::write_seconds);
            write_key(out, "hsts", basic_string(&hsts));
            write_key(out, "path-strict", service.path_strict);
            routes.iter().for_each(|route| write_route(out, route, kind));
        }
    }
}

fn target_rules(out: &mut String, rules: &TargetRules) {
    write_key(out, "allow-private", rules.private);
    write_key(out, "allow-target", blocks(&rules.allowed));
    write_key(out, "deny-target", blocks(&rules.denied));
    write_key(out, "allow-port", string_array(rules.ports.iter().map(|port| write_port(*port))));
    write_key(
        out,
        "deny-port",
        string_array(rules.denied_ports.iter().map(|port| write_port(*port))),
    );
    if !rules.allowed_domains.is_empty() {
        write_key(out, "allow-domain", string_array(rules.allowed_domains.iter().cloned()));
    }
    write_key(out, "deny-domain", string_array(rules.denied_domains.iter().cloned()));
    write_key(out, "sni-must-match", rules.sni_must_match);
}

fn write_route(out: &mut String, route: &Route, kind: ServiceKind) {
    out.push_str(&format!("\n[[{}.route]]\n", kind.name()));
    if let Some(host) = &route.host {
        write_key(out, "host", basic_string(host));
    }
    write_key(out, "path", basic_string(&route.path));
    if let Some(folder) = &route.folder {
        folder::write(out, folder);
    }
    // Without origins, their options would be errors.
    if !route.origins.is_empty() {
        write_origins(out, route);
    }
    compression::write(out, route);
    cache::write_route(out, route.cache.as_deref());
}

/// Writes the origins of a route and their options.
fn write_origins(out: &mut String, route: &Route) {
    match route.protocol {
        OriginProtocol::Http => {
            write_key(out, "origins", string_array(route.origins.iter().map(write_origin)));
        }
        OriginProtocol::FastCgi => match &route.cgi {
            Some(cgi) => {
                write_key(out, "cgi", basic_string(&cgi.folder.display().to_string()));
            }
            None => {
                let programs = route.origins.iter().map(write_fastcgi);
                write_key(out, "fastcgi", string_array(programs));
            }
        },
        OriginProtocol::Program => {
            let [program] = &route.origins[..] else { unreachable!("the option has one value") };
            write_key(out, "program", basic_string(&write_origin(program)));
        }
    }
    if route.protocol != OriginProtocol::Http {
        let buffer = write_size(route.upload_buffer_bytes);
        write_key(out, "upload-buffer", basic_string(&buffer));
    }
    if route.cgi.is_none() && route.protocol != OriginProtocol::Program {
        write_key(out, "balance", basic_string(keywords::BALANCE.name(route.balance)));
    }
    write_key(out, "host-header", basic_string(keywords::HOST_SENT.name(route.host_header)));
    write_key(out, "path-forward", basic_string(keywords::PATH_FORWARD.name(route.path_forward)));
    let fields = route.pass_fields.iter().map(|name| String::from_utf8_lossy(name).into_owned());
    write_key(out, "pass-fields", string_array(fields));
    if let Some(folder) = &route.sendfile {
        write_key(out, "sendfile-path", basic_string(&folder.path.display().to_string()));
    }
    if route.protocol == OriginProtocol::Program {
        return;
    }
    write_key(out, "eject-on-errors", route.eject_on_errors);
    let off = route.retry_on.is_empty().then_some(None);
    let retried = route.retry_on.iter().map(|it| Some(*it)).chain(off);
    write_key(
        out,
        "retry-on",
        string_array(retried.map(|it| keywords::RETRY_ON.name(it).to_owned())),
    );
    if let Some(check) = &route.check {
        write_key(out, "check", basic_string(&check.path));
        write_key(out, "check-status", basic_string(&write_statuses(check.statuses)));
    }
    if route.protocol == OriginProtocol::Http {
        write_key(out, "send-proxy", basic_string(keywords::SEND_PROXY.name(route.send_proxy)));
        match route.pipeline_depth {
            1 => write_key(out, "origin-pipelining", basic_string("off")),
            depth => write_key(out, "origin-pipelining", depth),
        }
    }
    if let Some(tls) = &route.origin_tls {
        write_origin_tls(out, tls);
    }
}

fn write_client_certificates(out: &mut String, rules: Option<&ClientCertificateRules>) {
    let mode = keywords::CLIENT_CERTIFICATE.name(rules.map(|rules| rules.mode));
    write_key(out, "client-certificate", basic_string(mode));
    let Some(rules) = rules else { return };
    let files =
        |paths: &[PathBuf]| string_array(paths.iter().map(|path| path.display().to_string()));
    write_key(out, "client-ca", files(&rules.authorities));
    if !rules.revocation_lists.is_empty() {
        write_key(out, "client-crl", files(&rules.revocation_lists));
    }
    if !rules.names.is_empty() {
        write_key(out, "client-certificate-name", string_array(rules.names.iter().cloned()));
    }
}

fn write_origin_tls(out: &mut String, tls: &OriginTls) {
    let file = |path: &PathBuf| basic_string(&path.display().to_string());
    write_key(out, "origin-verify", tls.verify);
    if let Some(ca) = &tls.ca {
        write_key(out, "origin-ca", file(ca));
    }
    if let Some(name) = &tls.name {
        write_key(out, "origin-name", basic_string(name));
    }
    if let Some(CertificateFiles { chain, key }) = &tls.certificate {
        write_key(out, "origin-certificate", file(chain));
        write_key(out, "origin-key", file(key));
    }
}

fn blocks(blocks: &[Cidr]) -> String {
    string_array(blocks.iter().map(|block| format!("{}/{}", block.network, block.prefix)))
}
