//! The findings of `millrace doctor` about privileges.

use millrace_config::{Config, ProcessUser};
use millrace_confine::Identity;
use millrace_sys::Errno;

use super::user;
use crate::finding::{Finding, Severity};

/// Returns the findings about the user and about the sandbox.
pub(crate) fn report(config: &Config) -> Vec<Finding> {
    vec![identity(config), files(config), calls(config)]
}

fn identity(config: &Config) -> Finding {
    let current = Identity::current();
    let low_ports = format!(
        "ports below {} need CAP_NET_BIND_SERVICE, which is kept only if such a port is configured; \
         all other capabilities are dropped",
        super::first_free_port()
    );
    let value = match &config.user {
        _ if current.user != 0 => format!("stays {}", user::describe(current)),
        ProcessUser::Auto => format!("root changes to user {}", user::AUTO_USERS.join(" or ")),
        named @ ProcessUser::Named { .. } => format!("root changes to {named}"),
    };
    Finding::new("privileges", Severity::Ok, value, low_ports)
}

fn files(config: &Config) -> Finding {
    match millrace_confine::landlock_version() {
        _ if !config.sandbox => {
            Finding::new("files", Severity::Note, "off", "sandbox is switched off")
        }
        Ok(version) => {
            Finding::new("files", Severity::Ok, format!("Landlock {version}"), scope(version))
        }
        Err(error) => Finding::new("files", Severity::Note, "NOT RESTRICTED", no_landlock(error)),
    }
}

/// Describes what a version of Landlock does not support.
fn scope(version: u32) -> &'static str {
    match version {
        0..3 => "writable files can be truncated (prevented since Linux 6.2)",
        3..6 => "signals can be sent to other processes of the user (prevented since Linux 6.12)",
        _ => "",
    }
}

fn calls(config: &Config) -> Finding {
    let (value, detail, severity) = match millrace_confine::can_restrict_syscalls() {
        _ if !config.sandbox => ("off", "sandbox is switched off".to_owned(), Severity::Note),
        true => ("filtered by seccomp", String::new(), Severity::Ok),
        false => ("NOT FILTERED", no_seccomp(Errno::NOSYS), Severity::Note),
    };
    Finding::new("system calls", severity, value, detail)
}

/// Describes why Landlock is not available.
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

/// Describes why system calls cannot be filtered.
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
