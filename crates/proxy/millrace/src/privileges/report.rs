//! What a start on this machine would come to, for `millrace doctor`.

use millrace_config::{Config, ProcessUser};
use millrace_confine::Identity;
use millrace_sys::Errno;

use super::user;
use crate::finding::{Finding, Severity};

/// The findings about users and about restrictions.
pub(crate) fn report(config: &Config) -> Vec<Finding> {
    vec![identity(config), files(config), calls(config)]
}

fn identity(config: &Config) -> Finding {
    let current = Identity::current();
    let low_ports = format!(
        "ports below {} need CAP_NET_BIND_SERVICE, which is kept if one is configured; nothing \
         else is",
        super::first_free_port()
    );
    let value = match &config.user {
        _ if current.user != 0 => format!("stays {}", user::describe(current)),
        ProcessUser::Auto => "root becomes user millrace, or nobody".to_owned(),
        named @ ProcessUser::Named { .. } => format!("root becomes {named}"),
    };
    Finding::new("privileges", Severity::Ok, value, low_ports)
}

fn files(config: &Config) -> Finding {
    match millrace_confine::landlock_version() {
        _ if !config.sandbox => Finding::new("files", Severity::Note, "off", "as asked for"),
        Ok(version) => {
            Finding::new("files", Severity::Ok, format!("Landlock {version}"), scope(version))
        }
        Err(error) => Finding::new("files", Severity::Note, "NOT RESTRICTED", no_landlock(error)),
    }
}

/// What a version of Landlock cannot do yet.
fn scope(version: u32) -> &'static str {
    match version {
        0..3 => "files may be cut short where they may be written (since Linux 6.2 they may not)",
        3..6 => "signals reach other processes of the user (since Linux 6.12 they do not)",
        _ => "",
    }
}

fn calls(config: &Config) -> Finding {
    let (value, word, verdict) = match millrace_confine::can_restrict_syscalls() {
        _ if !config.sandbox => ("off", "as asked for".to_owned(), Severity::Note),
        true => ("filtered by seccomp", String::new(), Severity::Ok),
        false => ("NOT FILTERED", no_seccomp(Errno::NOSYS), Severity::Note),
    };
    Finding::new("system calls", verdict, value, word)
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
