//! Selects the user of a process that was started by root.

use std::fs;

use millrace_cgi::Users;
use millrace_config::{Config, ConfigError, ProcessUser};
use millrace_confine::{Identity, find_group, find_user, find_user_name};
use millrace_sys::Errno;

use super::paths::Paths;
use crate::console;
use crate::program_error::ProgramError;

/// The users for `auto`. The first that exists is taken.
pub(super) const AUTO_USERS: [&str; 2] = ["millrace", "nobody"];
/// The users of CGI programs for `auto`. The first one that exists and is not that of millrace is
/// taken.
const PROGRAM_USERS: [&str; 4] = ["millrace-cgi", "nobody", "www-data", "daemon"];
/// The overflow user of the kernel (user_namespaces(7)). It is taken if /etc/passwd has no
/// `nobody`.
const OVERFLOW: Identity = Identity { user: 65534, group: 65534 };

/// Checks that the configured user exists.
///
/// # Errors
/// If /etc/passwd or /etc/group lacks the name.
pub(crate) fn check_user(wanted: &ProcessUser) -> Result<(), ConfigError> {
    let ProcessUser::Named { user, group } = wanted else { return Ok(()) };
    find(&text("/etc/passwd"), &text("/etc/group"), user, group.as_deref()).map(drop)
}

/// Returns the identity to change to; `None`: no change. Logs why if the configured user cannot be
/// applied.
///
/// # Errors
/// If /etc/passwd or /etc/group lacks the name, or the process cannot change to the user.
pub(super) fn choose(
    wanted: &ProcessUser,
    paths: &Paths,
) -> Result<Option<Identity>, ProgramError> {
    let current = Identity::current();
    let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
    let named = match wanted {
        ProcessUser::Auto => None,
        ProcessUser::Named { user, group: of } => Some(find(&passwd, &group, user, of.as_deref())?),
    };
    match named {
        Some(identity) if identity == current => Ok(None),
        Some(_) if current.user != 0 => {
            let user = describe(current);
            console::log(&format!("cannot change to user {wanted}: not root; stays {user}"));
            Ok(None)
        }
        Some(identity) => match identity.run_as(|| ()) {
            Ok(()) => Ok(Some(identity)),
            Err(error) => Err(ProgramError::System(format!(
                "cannot become {wanted}: {}",
                describe_error(error)
            ))),
        },
        None if current.user != 0 => Ok(None),
        None => Ok(choose_automatically(&passwd, paths)),
    }
}

/// Returns the users of CGI programs and of their launcher; `None`: this process is not root, and
/// both have its user.
///
/// # Errors
/// If /etc/passwd or /etc/group lacks the name. If the user is that of this process: its programs
/// could kill it, and read its files.
pub(crate) fn program_users(config: &Config) -> Result<Option<Users>, ConfigError> {
    let (passwd, groups) = (text("/etc/passwd"), text("/etc/group"));
    let named = |wanted: &ProcessUser| match wanted {
        ProcessUser::Named { user, group } => {
            find(&passwd, &groups, user, group.as_deref()).map(Some)
        }
        ProcessUser::Auto => Ok(None),
    };
    let (own, of_programs) = (named(&config.user)?, named(&config.cgi_user)?);
    if Identity::current().user != 0 {
        return Ok(None);
    }
    let own = own.unwrap_or_else(|| automatic(&passwd).1);
    let candidates = || {
        let found = PROGRAM_USERS.iter().filter_map(|name| find_user(&passwd, name));
        found.chain([OVERFLOW])
    };
    let of_programs = of_programs.or_else(|| candidates().find(|user| user.user != own.user));
    match of_programs.filter(|user| user.user != own.user) {
        Some(programs) => {
            // Root as the saved user would be a way back to its rights.
            let is_possible = |it: &Identity| it.user != 0 && it.user != programs.user;
            let mut others = [own, automatic(&passwd).1].into_iter().chain(candidates());
            let launcher = others.find(is_possible).unwrap_or(programs);
            Ok(Some(Users { launcher, programs }))
        }
        None => {
            let user = describe(own);
            let problem = format!("{user} is also the user of millrace");
            Err(ConfigError::rule(
                "cgi-user",
                problem,
                "another user, whose programs cannot kill it",
            ))
        }
    }
}

/// Returns the missing permissions of the user to whom a process of root will change, as sentences.
/// Nothing if this process is not root or the user is unknown.
pub(super) fn notes(wanted: &ProcessUser, paths: &Paths) -> Vec<String> {
    if Identity::current().user != 0 {
        return Vec::new();
    }
    let (passwd, groups) = (text("/etc/passwd"), text("/etc/group"));
    let (identity, outcome) = match wanted {
        ProcessUser::Named { user, group } => {
            let Ok(found) = find(&passwd, &groups, user, group.as_deref()) else {
                return Vec::new();
            };
            (found, "")
        }
        ProcessUser::Auto => {
            (automatic(&passwd).1, "; it stays root (select a user by --user NAME)")
        }
    };
    let problems = identity.run_as(|| paths.problems()).unwrap_or_default();
    let user = describe(identity);
    problems.iter().map(|problem| format!("{user} {problem}{outcome}")).collect()
}

/// Returns the user to whom a start of this process would change, or stay; `None` if this process
/// is not root or the user is unknown.
pub(super) fn later(wanted: &ProcessUser, paths: &Paths) -> Option<Identity> {
    let current = Identity::current();
    if current.user != 0 {
        return None;
    }
    let passwd = text("/etc/passwd");
    match wanted {
        ProcessUser::Named { user, group } => {
            find(&passwd, &text("/etc/group"), user, group.as_deref()).ok()
        }
        ProcessUser::Auto => {
            let identity = automatic(&passwd).1;
            let is_able = identity.run_as(|| paths.problems().is_empty());
            Some(if is_able == Ok(true) { identity } else { current })
        }
    }
}

/// Returns the name and the identity for `auto`.
fn automatic(passwd: &str) -> (&'static str, Identity) {
    let found = AUTO_USERS.iter().find_map(|name| Some((*name, find_user(passwd, name)?)));
    found.unwrap_or(("nobody", OVERFLOW))
}

/// Returns the identity for `auto` in a process of root; `None` if an unprivileged user could not
/// do what the configuration needs. The process then stays root without capabilities.
fn choose_automatically(passwd: &str, paths: &Paths) -> Option<Identity> {
    let (name, identity) = automatic(passwd);
    let obstacle = match identity.run_as(|| paths.problems().into_iter().next()) {
        Ok(None) => return Some(identity),
        Ok(Some(problem)) => format!("user {name} {problem}"),
        Err(error) => format!("cannot become {name}: {}", describe_error(error)),
    };
    console::log(&format!("{obstacle}; stays root (select a user by --user NAME)"));
    None
}

fn find(
    passwd: &str,
    groups: &str,
    user: &str,
    group: Option<&str>,
) -> Result<Identity, ConfigError> {
    let unknown = |name: &str, file: &str| {
        let allowed = "auto, a name in this file, numbers as USER:GROUP";
        ConfigError::rule("user", format!("{file} has no \"{name}\""), allowed)
    };
    let of_name = |name: &str| {
        let number = name.parse().ok().or_else(|| find_group(groups, name));
        number.ok_or_else(|| unknown(name, "/etc/group"))
    };
    let group = group.map(of_name).transpose()?;
    let known = find_user(passwd, user);
    let number = user.parse().ok().or(known.map(|known| known.user));
    match (number, group.or(known.map(|known| known.group))) {
        (Some(user), Some(group)) => Ok(Identity { user, group }),
        _ => Err(unknown(user, "/etc/passwd")),
    }
}

/// Describes an identity.
pub(crate) fn describe(identity: Identity) -> String {
    let Identity { user, group } = identity;
    match find_user_name(&text("/etc/passwd"), user) {
        Some(name) => format!("user {name} ({user}:{group})"),
        None => format!("user {user}:{group}"),
    }
}

/// Returns the name of a user, or the number if there is no name.
pub(super) fn name(user: u32) -> String {
    let name = find_user_name(&text("/etc/passwd"), user).map(|name| name.to_string());
    name.unwrap_or_else(|| user.to_string())
}

fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn describe_error(error: Errno) -> String {
    match error {
        Errno::PERM => "it needs CAP_SETUID and CAP_SETGID".to_owned(),
        Errno::INVAL => "this user namespace does not have it".to_owned(),
        _ => std::io::Error::from(error).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:34::/:/bin/false\n\
        nobody:x:65534:65533:nobody:/:/bin/false\n";
    const GROUP: &str = "root:x:0:\nlogs:x:4:web\n";

    #[test]
    fn users_and_groups_have_names_or_numbers() {
        let found = |user, group| find(PASSWD, GROUP, user, group).ok();
        let identity = |user, group| Some(Identity { user, group });
        assert_eq!(found("web", None), identity(33, 34));
        assert_eq!(found("33", None), identity(33, 34));
        assert_eq!(found("web", Some("logs")), identity(33, 4));
        assert_eq!(found("1000", Some("1001")), identity(1000, 1001));
        for (user, group) in [("1000", None), ("nginx", None), ("web", Some("web")), ("w", None)] {
            let error = find(PASSWD, GROUP, user, group).unwrap_err();
            assert_eq!(ProgramError::from(error.clone()).exit_status(), 2);
            assert!(error.to_string().contains("/etc/"), "{error}");
        }
    }

    #[test]
    fn an_identity_is_described_by_its_name_where_it_has_one() {
        let root = Identity { user: 0, group: 0 };
        assert_eq!(describe(root), "user root (0:0)");
        let nameless = Identity { user: 4_000_000_000, group: 1 };
        assert_eq!(describe(nameless), "user 4000000000:1");
    }
}
