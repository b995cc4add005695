//! The process of the launcher.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use millrace_sys::Signals;

use crate::limits::{CONNECTIONS_MAX, STACK_BYTES};
use crate::programs::Programs;
use crate::settings::LauncherSettings;
use crate::{connection, control_group};

/// Folders of the system that have programs, interpreters and the dynamic linker.
const EXECUTABLE_FOLDERS: [&str; 10] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/gnu/store",
];

/// The exit status after a failed start.
const FAILED: u8 = 1;

/// The pause after accept(2) has failed, for example because no descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Runs the launcher. Standard input is the control socket, standard output the listening socket.
/// Returns the exit status.
pub(crate) fn run(arguments: &[OsString]) -> u8 {
    let Some(settings) = LauncherSettings::from_arguments(arguments) else { return FAILED };
    let (Ok(control), Ok(listener)) = (
        io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from),
        io::stdout().as_fd().try_clone_to_owned().map(UnixListener::from),
    ) else {
        return FAILED;
    };
    let parent = settings.parent;
    match prepare(settings) {
        Ok((programs, description)) => {
            report(&control, &format!("ready {description}\n"));
            serve(&listener, control, parent, programs)
        }
        Err(error) => {
            report(&control, &format!("{error}\n"));
            FAILED
        }
    }
}

/// Sends the result of the start. If the parent is gone, the control socket ends too.
fn report(mut control: &UnixStream, line: &str) {
    let _ = control.write_all(line.as_bytes());
}

/// Opens the folders, then gives up all rights that programs should not have. Returns a description
/// of those that are left.
fn prepare(mut settings: LauncherSettings) -> Result<(Arc<Programs>, String), String> {
    // A program runs in its own folder, and gets its path.
    for folder in &mut settings.folders {
        *folder = std::path::absolute(&*folder).map_err(|error| error.to_string())?;
    }
    // A service manager signals all processes of a service. The control socket ends this one.
    // Programs get an empty mask.
    Signals::block().map_err(|error| format!("cannot block signals: {error}"))?;
    // Room for three pipes and a socket of each program.
    let _ = millrace_sys::raise_descriptor_limit();
    let folders = settings.folders.iter().map(|folder| {
        let opened = millrace_sys::open_folder(folder);
        opened.map_err(|error| format!("cannot open the folder {}: {error}", folder.display()))
    });
    let folders: Vec<OwnedFd> = folders.collect::<Result<_, _>>()?;
    let groups = control_group::open_groups(&settings)
        .map_err(|error| format!("cannot open the control groups: {error}"))?;
    let dropped = match settings.users {
        Some(users) => {
            millrace_confine::drop_privileges_of_launcher(users.launcher, users.programs)
        }
        None => millrace_confine::drop_privileges(None, false),
    };
    dropped
        .and_then(|()| millrace_confine::set_no_new_privs())
        .and_then(|()| millrace_confine::set_dumpable(false))
        .map_err(|error| format!("cannot drop privileges: {error}"))?;
    // Before Landlock, which does not allow this program to be executed.
    let groups = control_group::tested(groups);
    match control_group::try_start(None) {
        // The file of this program may be closed to the user of the programs.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
            return Err(format!("cannot start programs (expected: Linux 5.11 or newer): {error}"));
        }
        _ => {}
    }
    let mut executable: Vec<_> = EXECUTABLE_FOLDERS.iter().map(std::path::PathBuf::from).collect();
    executable.extend(settings.folders.iter().cloned());
    let execution = match millrace_confine::restrict_execution(&executable) {
        Ok(()) => "execution restricted by Landlock".to_owned(),
        Err(error) => format!("EXECUTION NOT RESTRICTED ({error})"),
    };
    let group = if groups.is_empty() { "process group" } else { "control group" };
    let description = format!("in a {group} each; {execution}");
    // The limit counts all processes of a user, so it would also count those of an own user that
    // are no programs.
    let processes = settings.users.and(Some(settings.processes)).filter(|&count| count > 0);
    Ok((Arc::new(Programs::new(settings, folders, groups, processes)), description))
}

/// Serves connections of the parent. Ends the process when the parent ends.
fn serve(
    listener: &UnixListener,
    mut control: UnixStream,
    parent: u32,
    programs: Arc<Programs>,
) -> ! {
    let watched = Arc::clone(&programs);
    let watch = move || {
        // The parent never writes.
        let _ = control.read(&mut [0]);
        watched.end_process()
    };
    if thread::Builder::new().stack_size(STACK_BYTES).spawn(watch).is_err() {
        programs.end_process();
    }
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(_) => {
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let peer = millrace_sys::peer_credentials(socket.as_fd());
        if !peer.is_ok_and(|peer| peer.process_id == parent)
            || socket.set_nonblocking(true).is_err()
        {
            continue;
        }
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (counted, programs) = (OpenConnection(Arc::clone(&open)), Arc::clone(&programs));
        // A thread that cannot be started drops the connection.
        let _ = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
            let _counted = counted;
            let _ = connection::serve(socket.into(), &programs);
        });
    }
}

/// A counted connection. Its end is counted when it is dropped, also by a panic.
struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        // No memory depends on the number.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
