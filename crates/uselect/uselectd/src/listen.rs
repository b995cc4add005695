//! `DaemonSocket`: the Unix socket at which the daemon listens.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::Error;
use crate::limits::{OLD_DAEMON_RETRY, OLD_DAEMON_WAIT_MAX};

/// A listening Unix socket whose file is removed on drop. A daemon that was killed leaves its file
/// behind, and the next daemon replaces it.
pub(crate) struct DaemonSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl DaemonSocket {
    /// Listens at `path`. Any user may connect; the policy decides which processes are registered.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub(crate) fn new(path: &Path) -> Result<Self, Error> {
        let listen_error = |why: String| Error::Listen { path: path.to_owned(), why };
        match std::fs::symlink_metadata(path) {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(listen_error("the path is a file that is no socket".to_owned()));
            }
            Ok(_) => remove_stale_socket(path).map_err(listen_error)?,
            // bind(2) reports the error.
            Err(_) => {}
        }
        let io_error = |error: std::io::Error| {
            listen_error(match error.kind() {
                ErrorKind::NotFound => "the directory does not exist".to_owned(),
                ErrorKind::InvalidInput => {
                    format!("the path is too long (expected: at most {PATH_BYTES_MAX} bytes)")
                }
                _ => error.to_string(),
            })
        };
        let listener = UnixListener::bind(path).map_err(io_error)?;
        let socket = Self { listener, path: path.to_owned() };
        socket.listener.set_nonblocking(true).map_err(io_error)?;
        // Accepted connections inherit SO_PASSCRED: each message carries the pid of its sender.
        let result = rustix::net::sockopt::set_socket_passcred(&socket.listener, true);
        result.map_err(|error| io_error(error.into()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(io_error)?;
        Ok(socket)
    }
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket file at which no process listens. If a process listens there, waits for it to
/// end, because it may be a daemon that is about to end.
fn remove_stale_socket(path: &Path) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(path).map_err(|error| (error.kind(), error)) {
            Ok(_) if begin.elapsed() < OLD_DAEMON_WAIT_MAX => std::thread::sleep(OLD_DAEMON_RETRY),
            Ok(_) => return Err("another process listens there".to_owned()),
            Err((ErrorKind::NotFound, _)) => return Ok(()),
            Err((ErrorKind::ConnectionRefused, _)) => {
                return match std::fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(error.to_string()),
                    _ => Ok(()),
                };
            }
            Err((_, error)) => return Err(error.to_string()),
        }
    }
}

/// The longest path of a Unix socket: the size of `sun_path` (unix(7)) without the terminating
/// zero.
const PATH_BYTES_MAX: usize = 107;
