//! `Listening`: the daemon's socket, which goes with it.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::error::Error;
use crate::limits::{OLD_DAEMON_RETRY, OLD_DAEMON_WAIT_MAX};

/// A Unix socket that is listened at. Its file is removed at the end; that of a daemon that was
/// killed is left, and replaced by the next one.
pub(crate) struct DaemonSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
}

impl DaemonSocket {
    /// Anybody may connect: the policy says who is answered.
    ///
    /// # Errors
    /// [`Error::Listen`].
    pub(crate) fn new(path: &Path) -> Result<Self, Error> {
        let refused = |why: String| Error::Listen { path: path.to_owned(), why };
        let file = std::fs::symlink_metadata(path);
        match file {
            Ok(file) if !file.file_type().is_socket() => {
                return Err(refused("a file that is no socket is there".to_owned()));
            }
            Ok(_) => remove_stale_socket(path).map_err(refused)?,
            // Why it cannot be looked at, bind(2) says.
            Err(_) => {}
        }
        let said = |error: std::io::Error| {
            refused(match error.kind() {
                ErrorKind::NotFound => "there is no such directory".to_owned(),
                ErrorKind::InvalidInput => format!("the path has more than {PATH_BYTES_MAX} bytes"),
                _ => error.to_string(),
            })
        };
        let listener = UnixListener::bind(path).map_err(said)?;
        let listening = Self { listener, path: path.to_owned() };
        listening.listener.set_nonblocking(true).map_err(said)?;
        // Connections that are accepted have it from the listener: each message names its sender.
        let passes = rustix::net::sockopt::set_socket_passcred(&listening.listener, true);
        passes.map_err(|error| said(error.into()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(said)?;
        Ok(listening)
    }
}

impl Drop for DaemonSocket {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes a socket that nobody listens at any more, and no other one. A daemon that was just told to
/// end is waited for.
fn remove_stale_socket(path: &Path) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(path).map_err(|error| (error.kind(), error)) {
            Ok(_) if begin.elapsed() < OLD_DAEMON_WAIT_MAX => std::thread::sleep(OLD_DAEMON_RETRY),
            Ok(_) => return Err("another process listens there already".to_owned()),
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

/// Bytes of a path that a Unix socket can have: `sun_path` of unix(7) but for the zero behind it.
const PATH_BYTES_MAX: usize = 107;
