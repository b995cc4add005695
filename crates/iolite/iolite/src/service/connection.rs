//! A connection to the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use millrace_sys::Errno;

use crate::service::message::{RESPONSE_BYTES_MAX, Refusal, Request, Response};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct DaemonConnection {
    socket: OwnedFd,
    packet: Vec<u8>,
}

/// The reason why there is no connection, or why it cannot be used any more.
#[derive(Debug)]
pub(super) enum Loss {
    /// No daemon listens there.
    NotThere,
    /// The daemon has refused the connection.
    Refused(Refusal),
    /// The daemon has not responded in time.
    Silent,
    Failed(String),
}

/// The daemon may read a file from a slow disk meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl DaemonConnection {
    /// Connects to the daemon at `path`, and waits until it has accepted the connection.
    ///
    /// # Errors
    /// The reason why there is no connection.
    pub(super) fn open(path: &Path) -> Result<Self, Loss> {
        let failed = |error: Errno| Loss::Failed(format!("{}: {error}", path.display()));
        let socket = match millrace_sys::connect_and_wait(path, WAIT_MAX) {
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Err(Loss::NotThere),
            Err(Errno::AGAIN) => return Err(Loss::Silent),
            socket => socket.map_err(failed)?,
        };
        let daemon = millrace_sys::peer_credentials(socket.as_fd()).map_err(failed)?.user_id;
        let owns_folder = || {
            // The owner of the folder decides which socket is there.
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
            folder.is_ok_and(|folder| folder.uid() == daemon)
        };
        let is_trusted = daemon == 0 || daemon == millrace_sys::effective_user() || owns_folder();
        if !is_trusted {
            let reason = format!("{}: it belongs to user {daemon}", path.display());
            return Err(Loss::Failed(reason));
        }
        let mut connection = Self { socket, packet: Vec::new() };
        match connection.response()? {
            (Response::Ready, _) => Ok(connection),
            (Response::Refused(refusal), _) => Err(Loss::Refused(refusal)),
            _ => Err(Loss::Failed("iolited has sent another response".to_owned())),
        }
    }

    /// Sends a request, and waits for its response with its memory.
    ///
    /// # Errors
    /// The reason why the connection cannot be used any more.
    pub(super) fn request(
        &mut self,
        request: Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Response, Vec<OwnedFd>), Loss> {
        self.packet.clear();
        request.write(&mut self.packet);
        millrace_sys::send_packet_and_wait(self.socket.as_fd(), &[&self.packet], files)
            .map_err(loss_of)?;
        self.response()
    }

    fn response(&mut self) -> Result<(Response, Vec<OwnedFd>), Loss> {
        let (mut packet, mut memory) = ([0; RESPONSE_BYTES_MAX], Vec::new());
        let length = millrace_sys::await_packet(self.socket.as_fd(), &mut packet, &mut memory)
            .map_err(loss_of)?;
        if length == 0 {
            return Err(loss_of(Errno::CONNRESET));
        }
        let response = Response::read(&packet[..length], memory.len());
        let unknown = || Loss::Failed("iolited has sent an unknown response".to_owned());
        Ok((response.ok_or_else(unknown)?, memory))
    }
}

fn loss_of(error: Errno) -> Loss {
    match error {
        Errno::AGAIN => Loss::Silent,
        Errno::CONNRESET | Errno::PIPE => Loss::Failed("iolited has ended".to_owned()),
        error => Loss::Failed(format!("iolited: {error}")),
    }
}
