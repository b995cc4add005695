//! Whether this kernel has the congestion control that a configuration asks for. Asked before
//! anything is opened, because later a refusal would only show in how fast connections are.

use std::fs;
use std::sync::Arc;

use millrace_config::{Config, ConfigError, Congestion, RawConfig};
use millrace_proxy::congestion::NEARBY;
use millrace_sys::Errno;

use crate::console;

/// Checks every algorithm that `config` names, which is what `tables` mean.
///
/// # Errors
/// The first name that a socket of this process cannot have, with those that it can.
pub(crate) fn check(config: &Config, tables: &RawConfig) -> Result<(), ConfigError> {
    for (number, service) in config.services.iter().enumerate() {
        let options = [
            ("congestion", &service.congestion),
            ("origin-congestion", &service.origin_congestion),
        ];
        for (option, choice) in options {
            let Some(name) = choice.name() else { continue };
            let Err(error) = check_unprivileged(name) else { continue };
            let problem = match error {
                Errno::NOENT => "is nothing that this kernel has",
                Errno::PERM => {
                    "needs CAP_NET_ADMIN, which millrace gives up or has not \
                     (net.ipv4.tcp_allowed_congestion_control)"
                }
                _ => "cannot be set here",
            };
            return Err(ConfigError::Value {
                location: tables.location_in_service(number, option).to_owned(),
                found: name.to_owned(),
                problem,
                suggestions: Vec::new(),
                expected: format!("system, auto, {}", algorithms(error == Errno::PERM).join(", ")),
            });
        }
    }
    Ok(())
}

/// The system's algorithm, where `auto` differs from it. Says so if somebody asked for `auto` and
/// cannot have what it stands for.
pub(crate) fn system_default(config: &Config) -> Option<Arc<str>> {
    let system = millrace_sys::default_congestion().ok()?;
    if system == NEARBY {
        return None;
    }
    if check_unprivileged(NEARBY).is_ok() {
        return Some(system.into());
    }
    let asks = |choice: &Congestion| *choice == Congestion::Auto;
    let mut services = config.services.iter();
    if services.any(|service| asks(&service.congestion) || asks(&service.origin_congestion)) {
        console::log(&format!("congestion auto: {NEARBY} cannot be had here; {system} serves all"));
    }
    None
}

/// Whether connections can have an algorithm also when the process has given up what it was started
/// with. To somebody with CAP_NET_ADMIN the kernel gives any, which also loads it.
fn check_unprivileged(name: &str) -> Result<(), Errno> {
    millrace_sys::try_congestion(name)?;
    let allowed = algorithms(true);
    // Where there is no list to be read it is left to the kernel.
    match allowed.is_empty() || allowed.iter().any(|one| one == name) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// The algorithms that are loaded; only those that every user may have, if `allowed`.
fn algorithms(allowed: bool) -> Vec<String> {
    let which = if allowed { "allowed" } else { "available" };
    let path = format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control");
    let names = fs::read_to_string(path).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use millrace_config as config;

    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_refused_with_what_it_has() {
        let checked = |text: &str| {
            let tables = config::parse_toml("a.toml", text, &RawConfig::default()).unwrap();
            check(&config::from_raw(&tables).unwrap(), &tables)
        };
        // Every kernel has reno, for every user.
        for name in ["system", "auto", "reno"] {
            checked(&format!("[[forward]]\norigin-congestion = \"{name}\"")).unwrap();
        }
        let second = "[[boost]]\nroute = { origins = 'http://a' }\n[[forward]]\n\n\
                      origin-congestion = 'no-such-thing'\nlisten = '127.0.0.1:0'";
        let message = checked(second).unwrap_err().to_string();
        let place = "a.toml:5: origin-congestion: ";
        assert!(message.starts_with(&format!("{place}\"no-such-thing\" is nothing")), "{message}");
        assert!(message.contains("(expected: system, auto, ") && message.contains("reno"));
    }
}
