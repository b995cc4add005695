//! The guard as millrace sees it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::guard;
use crate::guard_reply::{Reply, StartedLauncher};
use crate::limits::START_TIMEOUT;
use crate::settings::{GUARD_COMMAND, LauncherSettings, OWN_PROGRAM};

/// The running guard. It ends when this is dropped and its launchers have ended.
#[derive(Debug)]
pub struct Guard {
    socket: UnixStream,
}

impl Guard {
    /// Starts the guard, with the rights of this process. `settings` are those of all launchers;
    /// the first one gets its folders, too. `words` are the command line of this process, by which
    /// the guard finds the folders of later ones.
    ///
    /// # Errors
    /// Those of the start of a process.
    pub fn start(settings: &LauncherSettings, words: &[OsString]) -> io::Result<Self> {
        let (socket, of_guard) = UnixStream::pair()?;
        // The group keeps signals of a terminal away.
        Command::new(OWN_PROGRAM)
            .arg0("millrace")
            .arg(GUARD_COMMAND)
            .args(guard::arguments(settings, words))
            .env_clear()
            .stdin(OwnedFd::from(of_guard))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()?;
        socket.set_read_timeout(Some(2 * START_TIMEOUT))?;
        Ok(Self { socket })
    }

    /// Starts a launcher, and waits until it is ready.
    ///
    /// # Errors
    /// Why the launcher did not start, on one line; that the guard does not respond. In the latter
    /// case it cannot be used any more.
    pub fn start_launcher(&mut self) -> Result<StartedLauncher, String> {
        let reply = self.socket.write_all(&[0]).and_then(|()| Reply::receive(&self.socket));
        let reply = reply.map_err(|error| {
            // A late reply must not be taken for that to another request.
            let _ = self.socket.shutdown(Shutdown::Both);
            format!("the guard does not respond: {error} (restart or upgrade to start another)")
        })?;
        reply.into_launcher()
    }
}
