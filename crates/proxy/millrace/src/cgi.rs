//! Starts the launcher of CGI programs (`crates/serve/cgi`) before the process gives up its rights,
//! and connects routes with it.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use millrace_cgi::{GUARD_COMMAND, LauncherSettings};
use millrace_config::{CgiRoute, Config, Origin, Route, Service};
use millrace_confine::Identity;

use crate::console;
use crate::finding::{Finding, Severity};
use crate::privileges;
use crate::program_error::ProgramError;

/// The longest start of the launcher.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The mode of the socket: any user, because the user of this process changes. Its name is gone
/// before the first connection, and the launcher checks which process connects.
const SOCKET_MODE: u32 = 0o666;

/// The running launcher. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Launcher {
    /// Its socket, by a descriptor that has no other use than its path below /proc/self/fd. The
    /// socket has no name.
    socket: OwnedFd,
    /// Ends when the launcher ends; the launcher ends when this does.
    control: UnixStream,
    /// The folders by their numbers, as configured.
    folders: Vec<PathBuf>,
    /// A description for the operator.
    line: String,
}

impl Launcher {
    /// Starts the launcher if a route of `config` needs it.
    ///
    /// # Errors
    /// If the user of the programs does not exist, or the launcher cannot start.
    pub(crate) fn start(config: &Config) -> Result<Option<Self>, ProgramError> {
        let mut folders: Vec<PathBuf> = Vec::new();
        for cgi in programs(config) {
            if !folders.contains(&cgi.folder) {
                folders.push(cgi.folder.clone());
            }
        }
        if folders.is_empty() {
            return Ok(None);
        }
        let user = privileges::program_user(&config.cgi_user)?;
        let failed =
            |error| ProgramError::system("cannot start the launcher of CGI programs", error);
        let (socket, listener) = open_socket().map_err(failed)?;
        let (control, of_launcher) = UnixStream::pair().map_err(failed)?;
        let limits = &config.limits;
        let settings = LauncherSettings {
            parent: std::process::id(),
            user,
            programs: limits.cgi_programs,
            run_ms: limits.cgi_ms,
            memory_bytes: limits.cgi_memory_bytes,
            processes: limits.cgi_processes,
            control_group: None,
            folders: folders.clone(),
        };
        // The group keeps signals of a terminal away.
        Command::new("/proc/self/exe")
            .arg0("millrace")
            .arg(GUARD_COMMAND)
            .args(settings.to_arguments())
            .env_clear()
            .stdin(OwnedFd::from(of_launcher))
            .stdout(listener)
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let started = read_start(&control).map_err(failed)?;
        let line = started.strip_prefix("ready ").ok_or_else(|| {
            ProgramError::System(format!("the launcher of CGI programs: {started}"))
        })?;
        let user = privileges::describe(user.unwrap_or_else(Identity::current));
        let line = format!("CGI programs run as {user}, {line}");
        Ok(Some(Self { socket, control, folders, line }))
    }

    /// Returns a description of the rights of programs.
    pub(crate) fn line(&self) -> &str {
        &self.line
    }

    /// Makes the launcher the origin of the routes of `config` with programs.
    ///
    /// # Errors
    /// The first folder that the launcher does not know.
    fn connect(&self, config: &mut Config) -> Result<(), String> {
        let path = format!("/proc/self/fd/{}", self.socket.as_raw_fd());
        let origin = Origin::Unix(Arc::from(Path::new(&path)));
        for route in routes_mut(config) {
            let Some(cgi) = &mut route.cgi else { continue };
            let number = self.folders.iter().position(|folder| *folder == cgi.folder);
            cgi.number = number.ok_or_else(|| not_included(&cgi.folder))?;
            route.origins = vec![origin.clone()];
        }
        Ok(())
    }

    /// Reports the end of the launcher.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn watch(&self) -> Result<(), ProgramError> {
        let failed = |error| ProgramError::system("cannot watch the launcher", error);
        let mut control = self.control.try_clone().map_err(failed)?;
        let watch = move || {
            // The launcher writes nothing after its start.
            let _ = control.read(&mut [0]);
            console::log(
                "the launcher of CGI programs has ended: their requests fail (restart or upgrade \
                 to start it again)",
            );
        };
        std::thread::Builder::new()
            .name("cgi-watch".to_owned())
            .spawn(watch)
            .map(drop)
            .map_err(failed)
    }
}

/// Returns the finding of `millrace doctor` about the rights of CGI programs.
pub(crate) fn finding(config: &Config) -> Finding {
    let group = match millrace_cgi::can_make_control_groups() {
        true => "in a control group each",
        false => "in a process group each",
    };
    match privileges::program_user(&config.cgi_user) {
        Ok(Some(user)) => {
            let value = format!("run as {}, {group}", privileges::describe(user));
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

/// Connects the routes of a configuration with the launcher, if they have programs.
///
/// # Errors
/// The first folder that the launcher does not know, as a sentence.
pub(crate) fn connect(launcher: Option<&Launcher>, config: &mut Config) -> Result<(), String> {
    match launcher {
        Some(launcher) => launcher.connect(config),
        None => programs(config).next().map_or(Ok(()), |cgi| Err(not_included(&cgi.folder))),
    }
}

/// Returns the folders of CGI programs in a configuration.
pub(crate) fn programs(config: &Config) -> impl Iterator<Item = &CgiRoute> {
    config.services.iter().flat_map(Service::routes).filter_map(|route| route.cgi.as_ref())
}

fn routes_mut(config: &mut Config) -> impl Iterator<Item = &mut Route> {
    config.services.iter_mut().flat_map(|service| service.routes_mut().iter_mut())
}

fn not_included(folder: &Path) -> String {
    format!(
        "the launcher of CGI programs does not have the folder {} (restart or upgrade to use it)",
        folder.display()
    )
}

/// Opens a listening socket whose name exists only during this call, in a directory that only this
/// user may enter.
fn open_socket() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let folder = private_folder()?;
    let path = folder.join("s");
    let opened = millrace_sys::listen_unix(&path, SOCKET_MODE).and_then(|listener| {
        let socket = millrace_sys::open_reference(&path)?;
        Ok((socket, listener))
    });
    let _ = std::fs::remove_file(&path);
    let _ = std::fs::remove_dir(&folder);
    Ok(opened?)
}

/// Creates a directory with a random name and mode 700.
fn private_folder() -> std::io::Result<PathBuf> {
    let mut random = [0; 16];
    millrace_sys::fill_random(&mut random);
    let name = format!("millrace-{:032x}", u128::from_ne_bytes(random));
    let path = std::env::temp_dir().join(name);
    match millrace_sys::create_directory(&path)? {
        true => Ok(path),
        false => Err(std::io::ErrorKind::AlreadyExists.into()),
    }
}

/// Reads the line that the launcher sends when it has started.
fn read_start(control: &UnixStream) -> std::io::Result<String> {
    let mut line = String::new();
    control.set_read_timeout(Some(START_TIMEOUT))?;
    let length = BufReader::new(control.take(4096)).read_line(&mut line)?;
    control.set_read_timeout(None)?;
    match length {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}
