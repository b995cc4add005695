//! Starts the guard of CGI programs (`crates/serve/cgi`) before the process gives up its rights,
//! and connects routes with the launchers that the guard starts.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_cgi::{Guard, LauncherSettings, Users};
use millrace_config::{CgiRoute, Config, LauncherHandle, Origin, Route, Service};
use millrace_confine::Identity;

use crate::console;
use crate::finding::{Finding, Severity};
use crate::privileges;
use crate::program_error::ProgramError;

/// The guard, and the launcher of the configuration in force.
#[derive(Debug, Default)]
pub(crate) struct CgiPrograms {
    /// `None` if the first configuration has no programs.
    guard: Option<Guard>,
    /// The users of the launcher and of the programs.
    users: Option<Users>,
    /// `None` if the configuration has no programs.
    launcher: Option<Arc<Launcher>>,
}

/// A running launcher. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Launcher {
    /// Its socket, by a descriptor that has no other use than its path below /proc/self/fd. The
    /// socket has no name.
    socket: OwnedFd,
    /// Ends when the launcher ends; the launcher ends when this does.
    control: UnixStream,
    /// The folders by their numbers, as configured.
    folders: Vec<PathBuf>,
    /// Which folders the paths named then.
    identities: Vec<FolderIdentity>,
    /// A description for the operator.
    line: String,
    end: Arc<LauncherEnd>,
}

#[derive(Debug, Default)]
struct LauncherEnd {
    /// Whether there is a thread that waits for it.
    is_watched: AtomicBool,
    /// Whether the launcher has ended. Noticed by the thread of [`Launcher::watch`].
    has_ended: AtomicBool,
    /// Whether it had to end.
    is_wanted: AtomicBool,
}

impl CgiPrograms {
    /// Starts the guard if a route of `config` has programs.
    ///
    /// # Errors
    /// If the user of the programs does not exist, or the guard cannot start.
    pub(crate) fn start(config: &Config) -> Result<Self, ProgramError> {
        let folders = folders(config);
        if folders.is_empty() {
            return Ok(Self::default());
        }
        let users = privileges::program_users(config)?;
        let limits = &config.limits;
        let settings = LauncherSettings {
            parent: std::process::id(),
            users,
            programs: limits.cgi_programs,
            run_ms: limits.cgi_ms,
            memory_bytes: limits.cgi_memory_bytes,
            processes: limits.cgi_processes,
            control_group: None,
            folders,
        };
        let words: Vec<OsString> = std::env::args_os().collect();
        let guard = Guard::start(&settings, &words);
        let guard = guard
            .map_err(|error| ProgramError::system("cannot start the guard of programs", error))?;
        Ok(Self { guard: Some(guard), users, launcher: None })
    }

    /// Connects the routes of `config` with a launcher that has exactly its folders. That of the
    /// configuration in force is taken if it is one; otherwise another one is started. It ends with
    /// the last configuration that is connected with it. Returns it, for [`CgiPrograms::set`].
    ///
    /// # Errors
    /// Why there is no launcher with these folders, as a sentence.
    pub(crate) fn connect(&mut self, config: &mut Config) -> Result<Option<Arc<Launcher>>, String> {
        let folders = folders(config);
        let Some(first) = folders.first() else { return Ok(None) };
        let launcher = match &self.launcher {
            Some(launcher)
                if launcher.folders == folders
                    && launcher.identities == identities(&folders)
                    && !launcher.has_ended() =>
            {
                launcher.clone()
            }
            _ => {
                let guard = self.guard.as_mut().ok_or_else(|| without_guard(first))?;
                Arc::new(start_launcher(guard, self.users, folders)?)
            }
        };
        launcher.connect(config);
        Ok(Some(launcher))
    }

    /// Sets the launcher of the configuration in force.
    pub(crate) fn set(&mut self, launcher: Option<Arc<Launcher>>) {
        self.launcher = launcher;
    }

    /// Returns the launcher of the configuration in force.
    pub(crate) fn launcher(&self) -> Option<&Arc<Launcher>> {
        self.launcher.as_ref()
    }
}

fn start_launcher(
    guard: &mut Guard,
    users: Option<Users>,
    folders: Vec<PathBuf>,
) -> Result<Launcher, String> {
    let failed = |error| format!("the launcher of CGI programs: {error}");
    let identities = identities(&folders);
    let started = guard.start_launcher().map_err(failed)?;
    if started.folders != folders {
        return Err(failed("the configuration has changed meanwhile (reload it again)".to_owned()));
    }
    let user = users.map_or_else(Identity::current, |users| users.programs);
    let user = privileges::describe(user);
    Ok(Launcher {
        socket: started.socket,
        control: started.control,
        folders,
        identities,
        line: format!("CGI programs run as {user}, {}", started.description),
        end: Arc::default(),
    })
}

impl Launcher {
    /// Returns a description of the rights of programs.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Makes the launcher the origin of the routes of `config` with programs.
    fn connect(self: &Arc<Self>, config: &mut Config) {
        let path = format!("/proc/self/fd/{}", self.socket.as_raw_fd());
        let origin = Origin::Unix(Arc::from(Path::new(&path)));
        for route in routes_mut(config) {
            let Some(cgi) = &mut route.cgi else { continue };
            let number = self.folders.iter().position(|folder| *folder == cgi.folder);
            cgi.number = number.expect("the launcher has the folders of the configuration");
            cgi.launcher = Some(LauncherHandle::new(self.clone()));
            route.origins = vec![origin.clone()];
        }
    }

    fn has_ended(&self) -> bool {
        self.end.has_ended.load(Ordering::Relaxed)
    }

    /// Reports the end of the launcher from now on, unless it is wanted. Returns false if it is
    /// watched already.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn watch(&self) -> Result<bool, ProgramError> {
        if self.end.is_watched.swap(true, Ordering::Relaxed) {
            return Ok(false);
        }
        let failed = |error| ProgramError::system("cannot watch the launcher", error);
        let mut control = self.control.try_clone().map_err(failed)?;
        let end = self.end.clone();
        let watch = move || {
            // The launcher writes nothing after its start.
            let _ = control.read(&mut [0]);
            end.has_ended.store(true, Ordering::Relaxed);
            if !end.is_wanted.load(Ordering::Relaxed) {
                console::log(
                    "the launcher of CGI programs has ended: their requests fail (reload to start \
                     another)",
                );
            }
        };
        std::thread::Builder::new()
            .name("cgi-watch".to_owned())
            .spawn(watch)
            .map(|_| true)
            .map_err(failed)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // The watching thread has the socket, too.
        self.end.is_wanted.store(true, Ordering::Relaxed);
        let _ = self.control.shutdown(Shutdown::Both);
    }
}

/// Returns the finding of `millrace doctor` about the rights of CGI programs.
pub(crate) fn finding(config: &Config) -> Finding {
    let group = match millrace_cgi::can_make_control_groups() {
        true => "in a control group each",
        false => "in a process group each",
    };
    match privileges::program_users(config) {
        Ok(Some(users)) => {
            let value = format!("run as {}, {group}", privileges::describe(users.programs));
            Finding::new("CGI programs", Severity::Ok, value, "")
        }
        Ok(None) => {
            let value = format!("run as the user of millrace, {group}");
            let note = "they can read its files; started as root, it runs them as cgi-user";
            Finding::new("CGI programs", Severity::Note, value, note)
        }
        Err(error) => Finding::new("CGI programs", Severity::Note, "CANNOT RUN", error.to_string()),
    }
}

/// The device and the inode of a folder; `None` if the path names none.
type FolderIdentity = Option<(u64, u64)>;

fn identities(folders: &[PathBuf]) -> Vec<FolderIdentity> {
    let identity = |path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    folders.iter().map(identity).collect()
}

/// Returns the folders with programs of a configuration, each once.
pub(crate) fn folders(config: &Config) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for cgi in programs(config) {
        if !folders.contains(&cgi.folder) {
            folders.push(cgi.folder.clone());
        }
    }
    folders
}

/// Returns the folders of CGI programs in a configuration.
pub(crate) fn programs(config: &Config) -> impl Iterator<Item = &CgiRoute> {
    config.services.iter().flat_map(Service::routes).filter_map(|route| route.cgi.as_ref())
}

fn routes_mut(config: &mut Config) -> impl Iterator<Item = &mut Route> {
    config.services.iter_mut().flat_map(|service| service.routes_mut().iter_mut())
}

fn without_guard(folder: &Path) -> String {
    format!(
        "cannot run the programs of {}: this process was started without cgi (restart or upgrade \
         to use it)",
        folder.display()
    )
}
