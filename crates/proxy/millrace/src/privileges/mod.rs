//! Least privilege: once everything is open that needs the rights that millrace was started with,
//! and before its first thread runs, the process gives up its user, its capabilities, and every
//! file and system call that the configuration does not need. docs/design/privileges.md says why
//! so.

mod paths;
mod report;
mod user;

pub(crate) use paths::folder;
pub(crate) use user::check_user;

use std::path::{Path, PathBuf};

use millrace_config::Config;
use millrace_confine::{ExtraCalls, Grant, Identity, NET_BIND_SERVICE};
use millrace_sys::Errno;

pub(crate) use report::report;

use crate::console;
use crate::engines::Engine;
use crate::program_error::ProgramError;
use paths::Paths;

/// What the process is left with.
#[derive(Debug)]
pub(crate) struct Confinement {
    /// Who it is, in words.
    who: String,
    /// The capabilities that are left, by bits.
    capabilities: u64,
    /// Those that the configuration had; they are open, whoever opened them.
    low_ports_open: Vec<u64>,
    /// What became of the sandbox; `None`: it is switched off.
    sandbox: Option<Sandbox>,
}

#[derive(Debug)]
struct Sandbox {
    /// Version of Landlock that rules the files, or why they are not ruled.
    files: Result<u32, Errno>,
    /// Whether system calls are filtered, or why not.
    calls: Result<(), Errno>,
    /// What may be done below which folders, by their real paths.
    grants: Vec<(PathBuf, Grant)>,
}

/// Gives up what `config`, read from `file` if it is one, does not need on `engine`, but leaves
/// abstract Unix sockets of others within reach if `abstract_sockets` says so. To be called once,
/// with every listener open, and before any thread is started.
///
/// # Errors
/// A user that does not exist or cannot be taken. What this kernel cannot do is no error; it is
/// said by [`Locked::line`].
pub(crate) fn drop_privileges(
    config: &Config,
    file: Option<&Path>,
    engine: Engine,
    abstract_sockets: bool,
) -> Result<Confinement, ProgramError> {
    // None of ours runs yet, so it is one of a library that was loaded before the program.
    if threads().is_some_and(|count| count > 1) {
        return Err(ProgramError::System(
            "cannot give up privileges: a preloaded library runs a thread, which would keep them \
             (LD_PRELOAD)"
                .to_owned(),
        ));
    }
    let paths = Paths::of(config, file);
    let identity = user::choose(&config.user, &paths)?;
    make_disks(config, identity.unwrap_or_else(Identity::current))?;
    let low_ports_open: Vec<u64> = low_ports(config).collect();
    match millrace_confine::drop_privileges(identity, !low_ports_open.is_empty()) {
        // A service manager may have taken that system call away, and left what is harmless.
        Err(error) if Identity::current().user != 0 => {
            let error = std::io::Error::from(error);
            console::log(&format!("capabilities stay as they are: {error}"));
        }
        gave_up => gave_up.map_err(|error| refused("the user or the capabilities", error))?,
    }
    let capabilities =
        millrace_confine::capabilities().map_err(|error| refused("capabilities", error))?;
    let who = user::describe(Identity::current());
    for problem in paths.problems() {
        console::log(&format!("{who} {problem}"));
    }
    if !config.sandbox {
        // The kernel hides the memory of whoever changes its user; debugging tools need it.
        millrace_confine::set_dumpable(true).map_err(|error| refused("debugging", error))?;
        return Ok(Confinement { who, capabilities, low_ports_open, sandbox: None });
    }
    let sandbox = restrict(&paths, engine, abstract_sockets)?;
    let locked = Confinement { who, capabilities, low_ports_open, sandbox: Some(sandbox) };
    debug_assert_eq!(locked.check(config, file), Ok(()), "what is needed was left");
    Ok(locked)
}

/// Makes the folders of disks that are missing, as those of who the process becomes: later it has no
/// right to.
fn make_disks(config: &Config, owner: Identity) -> Result<(), ProgramError> {
    for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
        millrace_confine::create_directory_for(owner, &disk.folder).map_err(|error| {
            let what = format!("--disk {}: cannot be created", disk.folder.display());
            ProgramError::system(what, std::io::Error::from(error))
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
        stores: paths.has_disks(),
    };
    let calls = millrace_confine::restrict_syscalls(also);
    Ok(Sandbox { files, calls, grants: paths::canonical(grants) })
}

impl Confinement {
    /// What was given up, and what could not be, in one line.
    pub(crate) fn line(&self) -> String {
        let capabilities = match self.capabilities {
            0 => "without capabilities".to_owned(),
            NET_BIND_SERVICE => "with low ports only".to_owned(),
            others => format!("WITH CAPABILITIES {others:#x}"),
        };
        let who = format!("runs as {}, {capabilities}", self.who);
        let Some(sandbox) = &self.sandbox else { return format!("{who}; sandbox off") };
        let files = match sandbox.files {
            Ok(version) => format!("files by Landlock {version}"),
            Err(error) => format!("FILES NOT RESTRICTED ({})", report::no_landlock(error)),
        };
        let calls = match sandbox.calls {
            Ok(()) => "system calls filtered".to_owned(),
            Err(error) => format!("SYSTEM CALLS NOT FILTERED ({})", report::no_seccomp(error)),
        };
        format!("{who}; {files}; {calls}")
    }

    /// Whether the process can do what another configuration needs, without the rights that it was
    /// started with: to be asked before a reload.
    ///
    /// # Errors
    /// The first thing that it cannot, in a sentence.
    pub(crate) fn check(&self, config: &Config, file: Option<&Path>) -> Result<(), String> {
        let mut new = low_ports(config).filter(|port| !self.low_ports_open.contains(port));
        if let Some(port) = new.next().filter(|_| self.capabilities & NET_BIND_SERVICE == 0) {
            return Err(format!(
                "port {port} can no longer be opened: the right to ports below {} was given up at \
                 the start; restart or upgrade to use it",
                first_free_port()
            ));
        }
        let Some(Sandbox { files: Ok(_), grants, .. }) = &self.sandbox else { return Ok(()) };
        if let Some(path) = Paths::of(config, file).find_outside(grants) {
            return Err(format!(
                "{} is in none of the folders that the process left itself at its start \
                 (sandbox-folder would name it); restart or upgrade to use it",
                path.display()
            ));
        }
        Ok(())
    }
}

/// The configured ports that need CAP_NET_BIND_SERVICE.
fn low_ports(config: &Config) -> impl Iterator<Item = u64> {
    let ports = config.own_addresses().into_iter().map(|address| u64::from(address.port()));
    let free = first_free_port();
    ports.filter(move |port| (1..free).contains(port))
}

/// The first port that everybody may open.
fn first_free_port() -> u64 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(1024)
}

/// How many threads this process has; `None` without /proc.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

fn refused(what: &str, error: Errno) -> ProgramError {
    ProgramError::system(format!("cannot give up {what}"), std::io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(words: &str) -> Config {
        millrace_config::from_arguments(words.split(' ')).unwrap()
    }

    fn locked(config: &Config) -> Confinement {
        let grants = paths::canonical(Paths::of(config, None).grants(false));
        let sandbox = Sandbox { files: Ok(7), calls: Ok(()), grants };
        Confinement {
            who: "user nobody".to_owned(),
            capabilities: 0,
            low_ports_open: vec![443],
            sandbox: Some(sandbox),
        }
    }

    #[test]
    fn a_reload_may_use_what_is_left_and_nothing_else() {
        let log = "forward --access-log /tmp/a.log --listen unix:/tmp/a.sock";
        let locked = locked(&config(log));
        let other = "forward --access-log /tmp/b.log --listen unix:/tmp/b.sock";
        for words in [log, other, "forward", "forward --listen 127.0.0.1:443"] {
            assert_eq!(locked.check(&config(words), None), Ok(()), "{words}");
        }
        for (words, part) in [
            ("forward --access-log /usr/a.log", "/usr/a.log is in none"),
            ("forward --listen unix:/usr/a", "/usr/a is in none"),
            ("forward --listen 127.0.0.1:80", "port 80 can no longer"),
        ] {
            let refusal = locked.check(&config(words), None).unwrap_err();
            assert!(refusal.contains(part) && refusal.contains("restart"), "{refusal}");
        }
        let file = Path::new("/usr/millrace.toml");
        assert!(locked.check(&config("forward"), Some(file)).is_err());
        let off = Confinement { sandbox: None, ..locked };
        assert_eq!(off.check(&config("forward --access-log /usr/a.log"), None), Ok(()));
    }

    #[test]
    fn what_could_not_be_done_is_said_loudly() {
        let mut locked = locked(&config("forward"));
        assert_eq!(
            locked.line(),
            "runs as user nobody, without capabilities; files by Landlock 7; system calls filtered"
        );
        let sandbox = locked.sandbox.as_mut().unwrap();
        (sandbox.files, sandbox.calls) = (Err(Errno::NOSYS), Err(Errno::INVAL));
        let line = locked.line();
        assert!(line.contains("FILES NOT RESTRICTED (no Landlock before Linux 5.13"), "{line}");
        assert!(line.contains("SYSTEM CALLS NOT FILTERED (no seccomp"), "{line}");
        let off = Confinement { sandbox: None, capabilities: NET_BIND_SERVICE, ..locked };
        assert_eq!(off.line(), "runs as user nobody, with low ports only; sandbox off");
        let more = Confinement { capabilities: 0x401, ..off };
        assert!(more.line().contains("WITH CAPABILITIES 0x401"));
    }
}
