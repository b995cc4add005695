//! The guard: the parent process of the launchers. It keeps the rights with which millrace was
//! started, so that it can start another launcher for a reload, and remove control groups.
//!
//! millrace sends only the request for a launcher to it. An attacker who controls a worker could
//! name any folder, so the guard finds the folders in the configuration itself.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::{self, JoinHandle};

use millrace_sys::Signals;

use crate::control_group;
use crate::guard_reply::Reply;
use crate::limits::{LAUNCHERS_MAX, START_TIMEOUT};
use crate::settings::{LAUNCHER_COMMAND, LauncherSettings, OWN_PROGRAM};

/// Returns the folders of the programs in the present configuration of a command line of millrace.
/// An error is one line.
pub type FindFolders = fn(&[OsString]) -> Result<Vec<PathBuf>, String>;

/// The mode of the socket: any user, because the user of millrace changes. Its name is gone before
/// the first connection, and the launcher checks which process connects.
const SOCKET_MODE: u32 = 0o666;

/// Runs the guard. Standard input is the socket to millrace. Returns the exit status.
pub(crate) fn run(arguments: &[OsString], find_folders: FindFolders) -> u8 {
    let Some((mut settings, words)) = split_arguments(arguments) else { return 1 };
    // Signals for all processes of a service must not end it before the launchers.
    let _ = Signals::block();
    let Ok(mut millrace) = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from) else {
        return 1;
    };
    let mut launchers: Vec<JoinHandle<()>> = Vec::new();
    for number in 0.. {
        // The content of the byte means nothing.
        if millrace.read_exact(&mut [0]).is_err() {
            break;
        }
        launchers.retain(|launcher| !launcher.is_finished());
        let folders = match number {
            0 => Ok(settings.folders.clone()),
            _ if launchers.len() >= LAUNCHERS_MAX => {
                Err(format!("{LAUNCHERS_MAX} launchers still run programs"))
            }
            _ => find_folders(words),
        };
        let reply = folders.and_then(|folders| {
            settings.folders = folders;
            start(&settings, number, &mut launchers)
        });
        if reply.unwrap_or_else(Reply::refusal).send(&millrace).is_err() {
            break;
        }
    }
    // A launcher ends when millrace closes its control socket.
    for launcher in launchers {
        let _ = launcher.join();
    }
    0
}

/// Splits the arguments of the guard: the number of words of the command line of millrace, these
/// words, and the settings of the first launcher.
fn split_arguments(arguments: &[OsString]) -> Option<(LauncherSettings, &[OsString])> {
    let (count, rest) = arguments.split_first()?;
    let (words, settings) = rest.split_at_checked(count.to_str()?.parse().ok()?)?;
    Some((LauncherSettings::from_arguments(settings)?, words))
}

/// Returns the arguments of the guard.
pub(crate) fn arguments(settings: &LauncherSettings, words: &[OsString]) -> Vec<OsString> {
    let count = OsString::from(words.len().to_string());
    [&[count], words, &settings.to_arguments()].concat()
}

/// Starts a launcher, and adds the thread that waits for its end. Returns the reply with its
/// sockets.
///
/// # Errors
/// Why it did not start, on one line.
fn start(
    settings: &LauncherSettings,
    number: usize,
    launchers: &mut Vec<JoinHandle<()>>,
) -> Result<Reply, String> {
    let failed = |error: io::Error| error.to_string();
    let (socket, listener) = open_socket().map_err(failed)?;
    let (control, of_launcher) = UnixStream::pair().map_err(failed)?;
    let groups = control_group::make_groups(&number.to_string(), settings.programs).ok();
    let settings = LauncherSettings { control_group: groups.clone(), ..settings.clone() };
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("millrace").arg(LAUNCHER_COMMAND).args(settings.to_arguments());
    command.stdin(OwnedFd::from(of_launcher)).stdout(listener);
    let child = command.spawn().map_err(|error| {
        if let Some(groups) = &groups {
            control_group::remove_groups(groups);
        }
        failed(error)
    })?;
    // The command holds the sockets of the launcher, whose end has to be noticed.
    drop(command);
    launchers.push(thread::spawn(move || wait_for_end(child, groups.as_deref())));
    let started = read_start(&control).map_err(failed)?;
    match started.strip_prefix("ready ") {
        Some(description) => {
            Ok(Reply::launcher(description, &settings.folders, socket, control.into()))
        }
        None => Err(started),
    }
}

/// Waits for the end of a launcher, then removes its control groups.
fn wait_for_end(mut launcher: Child, groups: Option<&Path>) {
    let _ = launcher.wait();
    if let Some(groups) = groups {
        control_group::remove_groups(groups);
    }
}

/// Reads the line that the launcher sends when it has started.
fn read_start(control: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    control.set_read_timeout(Some(START_TIMEOUT))?;
    let length = BufReader::new(control.take(4096)).read_line(&mut line)?;
    control.set_read_timeout(None)?;
    match length {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Opens a listening socket whose name exists only during this call, in a directory that only this
/// user may enter. Returns a reference to the socket (O_PATH), and the socket.
fn open_socket() -> io::Result<(OwnedFd, OwnedFd)> {
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
fn private_folder() -> io::Result<PathBuf> {
    let mut random = [0; 16];
    millrace_sys::fill_random(&mut random);
    let name = format!("millrace-{:032x}", u128::from_ne_bytes(random));
    let path = std::env::temp_dir().join(name);
    match millrace_sys::create_directory(&path)? {
        true => Ok(path),
        false => Err(io::ErrorKind::AlreadyExists.into()),
    }
}
