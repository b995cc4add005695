//! Least privilege. The process first opens everything that needs the initial privileges. Then,
//! before its first thread starts, it gives up its user, its capabilities, and every file and
//! system call that the configuration does not need. docs/design/security.md has the reasons.

mod paths;
mod report;
mod user;

pub(crate) use paths::folder;
pub(crate) use user::{check_user, describe, program_users};

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_config::Config;
use millrace_confine::{ExtraCalls, Grant, Identity, NET_BIND_SERVICE};
use millrace_sys::Errno;

pub(crate) use report::report;

use crate::console;
use crate::engines::Engine;
use crate::program_error::ProgramError;
use paths::Paths;

/// The remaining rights of the process.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// A description of the user of the process.
    user: String,
    /// The remaining capabilities as a bit mask.
    capabilities: u64,
    /// The privileged ports of the first configuration. They are open, whether this process opened
    /// them or inherited them.
    low_ports_open: Vec<u64>,
    /// The sandbox; `None`: it is switched off.
    sandbox: Option<Sandbox>,
}

#[derive(Debug)]
struct Sandbox {
    /// The version of Landlock that restricts files, or why files are not restricted.
    files: Result<u32, Errno>,
    /// Whether system calls are filtered, or why not.
    calls: Result<(), Errno>,
    /// Whether the system calls include those for written files.
    has_stores: bool,
    /// Whether the system calls of channels to programs are allowed.
    has_channels: bool,
    /// The permissions below each folder, by canonical paths.
    grants: Vec<(PathBuf, Grant)>,
}

/// Drops the rights that a process with this configuration and engine does not need. `file` is the
/// path of the configuration, if it is a file. With `abstract_sockets`, abstract Unix sockets of
/// other processes stay reachable. Call this once, with all listeners open and before any thread is
/// started.
///
/// # Errors
/// If the user does not exist or the process cannot change to it. A restriction that this kernel
/// does not support is not an error; [`Confinement::line`] reports it.
pub(crate) fn drop_privileges(
    config: &Config,
    file: Option<&Path>,
    engine: Engine,
    abstract_sockets: bool,
) -> Result<Confinement, ProgramError> {
    // This program has not started a thread yet, so a second thread belongs to a preloaded library.
    if threads().is_some_and(|count| count > 1) {
        return Err(ProgramError::System(
            "cannot drop privileges: a preloaded library (LD_PRELOAD) has started a thread, which would \
             keep them"
                .to_owned(),
        ));
    }
    let paths = Paths::from_config(config, file);
    let identity = user::choose(&config.user, &paths)?;
    let owner = identity.unwrap_or_else(Identity::current);
    make_disks(config, owner)?;
    check_owners(config, owner)?;
    make_state_folders(config, owner)?;
    let low_ports_open: Vec<u64> = low_ports(config).collect();
    match millrace_confine::drop_privileges(identity, !low_ports_open.is_empty()) {
        // A service manager may have filtered this system call. The process is not root, so it
        // keeps at most the capabilities that the service manager gave it.
        Err(error) if Identity::current().user != 0 => {
            let error = std::io::Error::from(error);
            console::log(&format!("cannot drop capabilities: {error}"));
        }
        dropped => dropped.map_err(|error| refused("the user or the capabilities", error))?,
    }
    let capabilities =
        millrace_confine::capabilities().map_err(|error| refused("capabilities", error))?;
    let user = user::describe(Identity::current());
    for problem in paths.problems() {
        console::log(&format!("{user} {problem}"));
    }
    if !config.sandbox {
        // The kernel makes a process that changes its user undumpable; debuggers need the opposite.
        millrace_confine::set_dumpable(true).map_err(|error| refused("debugging", error))?;
        return Ok(Confinement { user, capabilities, low_ports_open, sandbox: None });
    }
    let sandbox = restrict(&paths, engine, abstract_sockets)?;
    let confinement = Confinement { user, capabilities, low_ports_open, sandbox: Some(sandbox) };
    debug_assert_eq!(confinement.check(config, file), Ok(()), "the remaining rights suffice");
    Ok(confinement)
}

/// Returns, for a process of root, what the user to whom a start changes could not do with the
/// files of a configuration in `file`.
pub(crate) fn file_notes(config: &Config, file: &Path) -> Vec<String> {
    user::notes(&config.user, &Paths::from_config(config, Some(file)))
}

/// Checks, in a process of root, that the later user of a start can use the state folders of ACME.
///
/// # Errors
/// The first folder that is private to another user.
pub(crate) fn check_state_folders(config: &Config, file: &Path) -> Result<(), ProgramError> {
    let later = user::later(&config.user, &Paths::from_config(config, Some(file)));
    later.map_or(Ok(()), |owner| check_owners(config, owner))
}

/// Creates, for a reload, missing state folders of ACME.
///
/// # Errors
/// The first folder that cannot be created.
pub(crate) fn make_own_state_folders(config: &Config) -> Result<(), ProgramError> {
    make_state_folders(config, Identity::current())
}

/// Checks that no state folder of ACME is private to another user than `owner`.
fn check_owners(config: &Config, owner: Identity) -> Result<(), ProgramError> {
    let services = config.services.iter().filter_map(|service| service.tls.as_ref());
    for content in services.filter_map(|tls| tls.acme.as_ref()?.content.as_ref()) {
        let Ok(found) = std::fs::metadata(&content.folder) else { continue };
        if found.uid() == owner.user || found.mode() & 0o022 != 0 {
            continue;
        }
        let (folder, other) = (content.folder.display(), user::name(found.uid()));
        let own = user::name(owner.user);
        // --user takes a number only with its group.
        let user = match other.parse::<u32>() {
            Ok(number) => format!("{number}:{}", found.gid()),
            Err(_) => other.clone(),
        };
        return Err(ProgramError::System(format!(
            "acme-dir {folder} belongs to {other}, and millrace runs as {own}: no certificate can be \
             renewed (expected: chown -R {own} {folder}, or --user {user} with keys that it may read)"
        )));
    }
    Ok(())
}

/// Creates missing disk folders and gives them to the later user of the process, which could not
/// create them.
fn make_disks(config: &Config, owner: Identity) -> Result<(), ProgramError> {
    for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
        millrace_confine::create_directory_for(owner, &disk.folder).map_err(|error| {
            let what = format!("--disk {}: cannot be created", disk.folder.display());
            ProgramError::system(what, std::io::Error::from(error))
        })?;
    }
    Ok(())
}

/// Creates missing state folders of ACME, each with its parent, and gives them to the later user of
/// the process.
fn make_state_folders(config: &Config, owner: Identity) -> Result<(), ProgramError> {
    let services = config.services.iter().filter_map(|service| service.tls.as_ref());
    for content in services.filter_map(|tls| tls.acme.as_ref()?.content.as_ref()) {
        let parent = paths::folder(&content.folder);
        let made = millrace_confine::create_directory_for(owner, &parent)
            .and_then(|_| millrace_confine::create_directory_for(owner, &content.folder));
        made.map_err(|error| {
            let error = std::io::Error::from(error);
            ProgramError::System(format!(
                "acme-dir {}: cannot be created: {error} (expected: --acme-dir DIR that this user may \
                 write)",
                content.folder.display()
            ))
        })?;
    }
    Ok(())
}

fn restrict(
    paths: &Paths,
    engine: Engine,
    abstract_sockets: bool,
) -> Result<Sandbox, ProgramError> {
    millrace_confine::prepare_name_lookup();
    millrace_confine::set_no_new_privs()
        .and_then(|()| millrace_confine::set_dumpable(false))
        .map_err(|error| refused("no_new_privs", error))?;
    let grants = paths.grants(Identity::current().user == 0);
    let files = millrace_confine::landlock_version().and_then(|version| {
        millrace_confine::restrict_files(&grants, abstract_sockets)?;
        Ok(version)
    });
    let also = ExtraCalls {
        rings: engine == Engine::Uring,
        select: engine == Engine::Select,
        stores: paths.has_stores(),
        channels: paths.has_channels(),
    };
    let calls = millrace_confine::restrict_syscalls(also);
    let (has_stores, has_channels) = (also.stores, also.channels);
    Ok(Sandbox { files, calls, has_stores, has_channels, grants: paths::canonical(grants) })
}

impl Confinement {
    /// Describes in one line which rights were dropped and which could not be dropped.
    pub(crate) fn line(&self) -> String {
        let capabilities = match self.capabilities {
            0 => "without capabilities".to_owned(),
            NET_BIND_SERVICE => "with low ports only".to_owned(),
            others => format!("WITH CAPABILITIES {others:#x}"),
        };
        let user = format!("runs as {}, {capabilities}", self.user);
        let Some(sandbox) = &self.sandbox else { return format!("{user}; sandbox off") };
        let files = match sandbox.files {
            Ok(version) => format!("files by Landlock {version}"),
            Err(error) => format!("FILES NOT RESTRICTED ({})", report::no_landlock(error)),
        };
        let calls = match sandbox.calls {
            Ok(()) => "system calls filtered".to_owned(),
            Err(error) => format!("SYSTEM CALLS NOT FILTERED ({})", report::no_seccomp(error)),
        };
        format!("{user}; {files}; {calls}")
    }

    /// Checks that the remaining rights suffice for another configuration.
    ///
    /// # Errors
    /// The first thing that is not allowed, as a sentence.
    pub(crate) fn check(&self, config: &Config, file: Option<&Path>) -> Result<(), String> {
        let mut new = low_ports(config).filter(|port| !self.low_ports_open.contains(port));
        if let Some(port) = new.next().filter(|_| self.capabilities & NET_BIND_SERVICE == 0) {
            return Err(format!(
                "port {port} cannot be opened: the process dropped the capability for ports below {} \
                 at its start (restart or upgrade to use it)",
                first_free_port()
            ));
        }
        check_owners(config, Identity::current()).map_err(|error| error.to_string())?;
        let Some(sandbox) = &self.sandbox else { return Ok(()) };
        let paths = Paths::from_config(config, file);
        // System calls outside the filter fail with ENOSYS.
        let missing = [
            ("acme", paths.has_stores() && !sandbox.has_stores),
            ("program", paths.has_channels() && !sandbox.has_channels),
        ];
        if let Some((option, _)) = missing.iter().find(|(_, is_missing)| *is_missing)
            && sandbox.calls.is_ok()
        {
            return Err(format!(
                "the sandbox of the process does not include the system calls for {option} (restart \
                 or upgrade to use it)"
            ));
        }
        if sandbox.files.is_err() {
            return Ok(());
        }
        if let Some(path) = paths.find_outside(&sandbox.grants) {
            return Err(format!(
                "the sandbox of the process does not include {} (add it by sandbox-folder, and restart \
                 or upgrade)",
                path.display()
            ));
        }
        if let Some(path) = paths.find_replaced() {
            return Err(format!(
                "the sandbox of the process does not include the directory that has replaced {} \
                 (add the one above it by sandbox-folder, and restart or upgrade)",
                path.display()
            ));
        }
        Ok(())
    }
}

/// Returns the configured ports that need CAP_NET_BIND_SERVICE.
fn low_ports(config: &Config) -> impl Iterator<Item = u64> {
    let ports = config.own_addresses().into_iter().map(|address| u64::from(address.port()));
    let free = first_free_port();
    ports.filter(move |port| (1..free).contains(port))
}

/// Returns the first port that every user may open.
fn first_free_port() -> u64 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// Returns the number of threads of this process; `None` without /proc.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

fn refused(what: &str, error: Errno) -> ProgramError {
    ProgramError::system(format!("cannot drop {what}"), std::io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(arguments: &str) -> Config {
        millrace_config::from_arguments(arguments.split(' ')).unwrap()
    }

    fn confinement(config: &Config) -> Confinement {
        let grants = paths::canonical(Paths::from_config(config, None).grants(false));
        let (has_stores, has_channels) = (false, false);
        let sandbox = Sandbox { files: Ok(7), calls: Ok(()), has_stores, has_channels, grants };
        Confinement {
            user: "user web".to_owned(),
            capabilities: 0,
            low_ports_open: vec![443],
            sandbox: Some(sandbox),
        }
    }

    #[test]
    fn a_reload_may_use_only_the_remaining_rights() {
        let log = "forward --access-log /tmp/a.log --listen unix:/tmp/a.sock";
        let confinement = confinement(&config(log));
        let other = "forward --access-log /tmp/b.log --listen unix:/tmp/b.sock";
        for arguments in [log, other, "forward", "forward --listen 127.0.0.1:443"] {
            assert_eq!(confinement.check(&config(arguments), None), Ok(()), "{arguments}");
        }
        for (arguments, part) in [
            ("forward --access-log /usr/a.log", "does not include /usr/a.log"),
            ("forward --listen unix:/usr/a", "does not include /usr/a"),
            ("forward --listen 127.0.0.1:80", "port 80 cannot be opened"),
        ] {
            let refusal = confinement.check(&config(arguments), None).unwrap_err();
            assert!(refusal.contains(part) && refusal.contains("restart"), "{refusal}");
        }
        let file = Path::new("/usr/millrace.toml");
        assert!(confinement.check(&config("forward"), Some(file)).is_err());
        let off = Confinement { sandbox: None, ..confinement };
        assert_eq!(off.check(&config("forward --access-log /usr/a.log"), None), Ok(()));
    }

    #[test]
    fn missing_restrictions_are_reported_in_capitals() {
        let mut confinement = confinement(&config("forward"));
        assert_eq!(
            confinement.line(),
            "runs as user web, without capabilities; files by Landlock 7; system calls filtered"
        );
        let sandbox = confinement.sandbox.as_mut().unwrap();
        (sandbox.files, sandbox.calls) = (Err(Errno::NOSYS), Err(Errno::INVAL));
        let line = confinement.line();
        assert!(line.contains("FILES NOT RESTRICTED (no Landlock before Linux 5.13"), "{line}");
        assert!(line.contains("SYSTEM CALLS NOT FILTERED (no seccomp"), "{line}");
        let off = Confinement { sandbox: None, capabilities: NET_BIND_SERVICE, ..confinement };
        assert_eq!(off.line(), "runs as user web, with low ports only; sandbox off");
        let more = Confinement { capabilities: 0x401, ..off };
        assert!(more.line().contains("WITH CAPABILITIES 0x401"));
    }
}
