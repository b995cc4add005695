//! Writes a configuration in the file format, every value spelt out: what `check` and the admin
//! address show. What is written means the same configuration when it is read.

use super::cache;
use super::choice;
use super::lines::{line, list, quoted};
use super::value::{write_origin, write_port, write_statuses};
use super::{Cidr, Config, Listener, Role, Route, Service, TargetRules};
use crate::limits::Limits;

/// The file that means `config`; its number apart, which belongs to the running process.
pub fn to_toml(config: &Config) -> String {
    let mut out = String::new();
    process(&mut out, config);
    out.push_str("\n[limits]\n");
    for row in Limits::TABLE {
        let value = config.limits.get(row.name).expect("every row of the table has a value");
        line(&mut out, row.name, value);
    }
    for (index, service) in config.services.iter().enumerate() {
        let listeners =
            config.listeners.iter().filter(|listener| listener.service == index).collect();
        write_service(&mut out, service, listeners);
    }
    out
}

fn process(out: &mut String, config: &Config) {
    line(out, "engine", quoted(choice::ENGINE.word(config.engine)));
    line(out, "uselectd", quoted(&config.uselectd.display().to_string()));
    line(out, "spin-us", config.spin_us.to_string());
    line(out, "splice", quoted(choice::SPLICE.word(config.splice)));
    line(out, "workers", config.workers);
    line(out, "memory", quoted(&super::value::write_size(config.memory_bytes)));
    cache::write_settings(out, config.cache.as_ref());
    line(out, "user", quoted(&config.user.to_string()));
    line(out, "sandbox", quoted(choice::SANDBOX.word(config.sandbox)));
    let folders = config.sandbox_folders.iter().map(|folder| folder.display().to_string());
    line(out, "sandbox-folder", list(folders));
    match &config.access_log {
        None => line(out, "access-log", quoted("off")),
        Some(log) => {
            line(out, "access-log", quoted(&log.path.display().to_string()));
            line(out, "log-format", quoted(choice::LOG_FORMAT.word(log.format)));
        }
    }
    match config.admin.as_slice() {
        [] => line(out, "admin", quoted("off")),
        [admin] => line(out, "admin", quoted(&admin.to_string())),
        several => line(out, "admin", list(several.iter().map(ToString::to_string))),
    }
    if let Some(path) = &config.admin_token_file {
        line(out, "admin-token-file", quoted(&path.display().to_string()));
    }
    if let Some(name) = &config.admin_name {
        line(out, "admin-name", quoted(name));
    }
}

fn write_service(out: &mut String, service: &Service, listeners: Vec<&Listener>) {
    out.push_str(match service.role {
        Role::Forward(_) => "\n[[forward]]\n",
        Role::Boost(_) => "\n[[boost]]\n",
    });
    if let Some(name) = service.name.given() {
        line(out, "name", quoted(name));
    }
    let addresses = listeners.iter().map(|listener| listener.address.to_string());
    line(out, "listen", list(addresses));
    line(out, "allow-client", blocks(&service.clients));
    line(out, "deny-client", blocks(&service.denied_clients));
    if let Some(auth) = &service.auth {
        line(out, "auth-file", quoted(&auth.path.display().to_string()));
        line(out, "auth-realm", quoted(&auth.realm));
    }
    line(out, "trust", blocks(&service.trusted));
    // The file format has one switch for all listeners of a service.
    line(out, "proxy-protocol", listeners.iter().any(|listener| listener.proxy_protocol));
    line(out, "proxy-status", service.proxy_status);
    line(out, "congestion", quoted(&service.congestion.to_string()));
    line(out, "origin-congestion", quoted(&service.origin_congestion.to_string()));
    match &service.role {
        Role::Forward(rules) => {
            target_rules(out, rules);
            cache::write_route(out, service.cache.as_deref());
        }
        Role::Boost(routes) => {
            line(out, "path-strict", service.path_strict);
            routes.iter().for_each(|route| write_route(out, route));
        }
    }
}

fn target_rules(out: &mut String, rules: &TargetRules) {
    line(out, "allow-private", rules.private);
    line(out, "allow-target", blocks(&rules.allowed));
    line(out, "deny-target", blocks(&rules.denied));
    line(out, "allow-port", list(rules.ports.iter().map(|port| write_port(*port))));
    line(out, "deny-port", list(rules.denied_ports.iter().map(|port| write_port(*port))));
    line(out, "allow-domain", list(rules.allowed_domains.iter().cloned()));
    line(out, "deny-domain", list(rules.denied_domains.iter().cloned()));
}

fn write_route(out: &mut String, route: &Route) {
    out.push_str("\n[[boost.route]]\n");
    if let Some(host) = &route.host {
        line(out, "host", quoted(host));
    }
    line(out, "path", quoted(&route.path));
    line(out, "origins", list(route.origins.iter().map(write_origin)));
    line(out, "balance", quoted(choice::BALANCE.word(route.balance)));
    line(out, "host-sent", quoted(choice::HOST_SENT.word(route.host_sent)));
    line(out, "path-forward", quoted(choice::PATH_FORWARD.word(route.path_forward)));
    let fields = route.pass_fields.iter().map(|name| String::from_utf8_lossy(name).into_owned());
    line(out, "pass-fields", list(fields));
    line(out, "eject-on-errors", route.gateway_errors_fail);
    let off = route.retry_on.is_empty().then_some(None);
    let retried = route.retry_on.iter().map(|it| Some(*it)).chain(off);
    line(out, "retry-on", list(retried.map(|it| choice::RETRY_ON.word(it).to_owned())));
    if let Some(check) = &route.check {
        line(out, "check", quoted(&check.path));
        line(out, "check-status", quoted(&write_statuses(check.statuses)));
    }
    line(out, "send-proxy", quoted(choice::SEND_PROXY.word(route.send_proxy)));
    cache::write_route(out, route.cache.as_deref());
}

fn blocks(blocks: &[Cidr]) -> String {
    list(blocks.iter().map(|block| format!("{}/{}", block.network, block.prefix)))
}
