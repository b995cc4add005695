//! Checks that the kernel offers the configured congestion control. The check comes before anything
//! is opened: an error of a single socket later would only show as slow connections.

use std::fs;
use std::sync::Arc;

use millrace_config::{Config, ConfigError, Congestion, RawConfig};
use millrace_proxy::congestion::NEARBY;
use millrace_sys::Errno;

use crate::console;

/// Checks every algorithm that `config` names. `raw` is the source of `config`.
///
/// # Errors
/// The first algorithm that is not available, with those that are.
pub(crate) fn check(config: &Config, raw: &RawConfig) -> Result<(), ConfigError> {
    for (number, service) in config.services.iter().enumerate() {
        let options = [
            ("congestion", &service.congestion),
            ("origin-congestion", &service.origin_congestion),
        ];
        for (option, choice) in options {
            let Some(name) = choice.name() else { continue };
            let Err(error) = check_unprivileged(name) else { continue };
            let problem = match error {
                Errno::NOENT => "is not available in this kernel",
                Errno::PERM => {
                    "needs CAP_NET_ADMIN, which millrace does not keep \
                     (net.ipv4.tcp_allowed_congestion_control)"
                }
                _ => "cannot be set",
            };
            return Err(ConfigError::Value {
                location: raw.location_in_service(number, option).to_owned(),
                found: name.to_owned(),
                problem,
                suggestions: Vec::new(),
                expected: format!("system, auto, {}", algorithms(error == Errno::PERM).join(", ")),
            });
        }
    }
    Ok(())
}

/// Returns the default algorithm of the system, which `auto` uses for distant peers. Returns `None`
/// if `auto` has nothing to set: because the default is already [`NEARBY`], which `auto` uses for
/// nearby peers, or because NEARBY is not available. The latter is logged if `auto` is configured.
pub(crate) fn system_default(config: &Config) -> Option<Arc<str>> {
    let system = millrace_sys::default_congestion().ok()?;
    if system == NEARBY {
        return None;
    }
    if check_unprivileged(NEARBY).is_ok() {
        return Some(system.into());
    }
    let uses_auto = |choice: &Congestion| *choice == Congestion::Auto;
    let mut services = config.services.iter();
    if services
        .any(|service| uses_auto(&service.congestion) || uses_auto(&service.origin_congestion))
    {
        console::log(&format!(
            "congestion auto: {NEARBY} is not available; {system} is used for all connections"
        ));
    }
    None
}

/// Checks that an unprivileged process may use an algorithm. With CAP_NET_ADMIN the kernel allows
/// any algorithm, and loads it.
fn check_unprivileged(name: &str) -> Result<(), Errno> {
    millrace_sys::try_congestion(name)?;
    let allowed = algorithms(true);
    // If the list cannot be read, the kernel decides.
    match allowed.is_empty() || allowed.iter().any(|one| one == name) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Returns the loaded algorithms, or only those `allowed` to every user.
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
    fn a_missing_algorithm_is_refused_with_those_available() {
        let checked = |text: &str| {
            let raw = config::parse_toml("a.toml", text, &RawConfig::default()).unwrap();
            check(&config::from_raw(&raw).unwrap(), &raw)
        };
        // Every kernel allows reno to every user.
        for name in ["system", "auto", "reno"] {
            checked(&format!("[[forward]]\norigin-congestion = \"{name}\"")).unwrap();
        }
        let second = "[[boost]]\nroute = { origins = 'http://a' }\n[[forward]]\n\n\
                      origin-congestion = 'no-such-thing'\nlisten = '127.0.0.1:0'";
        let message = checked(second).unwrap_err().to_string();
        let place = "a.toml:5: origin-congestion: ";
        assert!(
            message.starts_with(&format!("{place}\"no-such-thing\" is not available")),
            "{message}"
        );
        assert!(message.contains("(expected: system, auto, ") && message.contains("reno"));
    }
}
