//! What a start on this machine would come to, for `millrace doctor`.

use millrace_config::{Config, User};
use millrace_confine::Identity;
use millrace_sys::Errno;

use super::user;

/// A finding: what there is, and a sentence about it.
pub(crate) struct Outlook {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) word: String,
    /// Whether all is as it should be.
    pub(crate) is_good: bool,
}

/// The findings about users and about restrictions.
pub(crate) fn outlook(config: &Config) -> Vec<Outlook> {
    vec![identity(config), files(config), calls(config)]
}

fn identity(config: &Config) -> Outlook {
    let current = Identity::current();
    let low_ports = format!(
        "ports below {} need CAP_NET_BIND_SERVICE, which is kept if one is configured; nothing \
         else is",
        super::first_free_port()
    );
    let value = match &config.user {
        _ if current.user != 0 => format!("stays {}", user::described(current)),
        User::Auto => "root becomes user millrace, or nobody".to_owned(),
        named @ User::Named { .. } => format!("root becomes {named}"),
    };
    Outlook { name: "privileges", value, word: low_ports, is_good: true }
}

fn files(config: &Config) -> Outlook {
    let (value, word, is_good) = match millrace_confine::landlock_version() {
        _ if !config.sandbox => ("off".to_owned(), "as asked for".to_owned(), false),
        Ok(version) => (format!("Landlock {version}"), scope(version), true),
        Err(error) => ("NOT RESTRICTED".to_owned(), no_landlock(error), false),
    };
    Outlook { name: "files", value, word, is_good }
}

/// What a version of Landlock cannot do yet.
fn scope(version: u32) -> String {
    match version {
        0..3 => "files may be cut short where they may be written (since Linux 6.2 they may not)",
        3..6 => "signals reach other processes of the user (since Linux 6.12 they do not)",
        _ => "",
    }
    .to_owned()
}

fn calls(config: &Config) -> Outlook {
    let (value, word, is_good) = match millrace_confine::can_restrict_calls() {
        _ if !config.sandbox => ("off".to_owned(), "as asked for".to_owned(), false),
        true => ("filtered by seccomp".to_owned(), String::new(), true),
        false => ("NOT FILTERED".to_owned(), no_seccomp(Errno::NOSYS), false),
    };
    Outlook { name: "system calls", value, word, is_good }
}

/// Why there is no Landlock.
pub(super) fn no_landlock(error: Errno) -> String {
    match error {
        Errno::NOSYS => {
            "no Landlock before Linux 5.13, nor in a kernel built without it".to_owned()
        }
        Errno::OPNOTSUPP => {
            "Landlock is not among the modules of the boot parameter lsm".to_owned()
        }
        error => format!("Landlock: {}", std::io::Error::from(error)),
    }
}

/// Why there is no filter of system calls.
pub(super) fn no_seccomp(error: Errno) -> String {
    match error {
        Errno::NOSYS | Errno::INVAL => {
            "no seccomp filters before Linux 4.17, and no lists for other processors than x86-64, \
             arm64 and riscv64"
                .to_owned()
        }
        error => format!("seccomp: {}", std::io::Error::from(error)),
    }
}
