//! A connection to the daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use millrace_sys::Errno;

use crate::service::message::{RESPONSE_BYTES_MAX, Request, Response};

/// A connection that carries one request at a time.
#[derive(Debug)]
pub(super) struct DaemonConnection {
    socket: OwnedFd,
    packet: Vec<u8>,
}

/// The daemon may read a file from a slow disk meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(10);

impl DaemonConnection {
    /// Connects to the daemon at `path`.
    ///
    /// # Errors
    /// The reason, unless no daemon listens there.
    pub(super) fn open(path: &Path) -> Result<Self, Option<String>> {
        let error = |error: Errno| match error {
            Errno::NOENT | Errno::CONNREFUSED => None,
            error => Some(format!("{}: {error}", path.display())),
        };
        let socket = millrace_sys::connect_and_wait(path, WAIT_MAX).map_err(error)?;
        let daemon = millrace_sys::peer_credentials(socket.as_fd()).map_err(error)?.user_id;
        let owns_folder = || {
            // The owner of the folder decides which socket is there.
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")));
            folder.is_ok_and(|folder| folder.uid() == daemon)
        };
        let is_trusted = daemon == 0 || daemon == millrace_sys::effective_user() || owns_folder();
        if !is_trusted {
            return Err(Some(format!("{}: it belongs to user {daemon}", path.display())));
        }
        Ok(Self { socket, packet: Vec::new() })
    }

    /// Sends a request, and waits for its response with its memory.
    ///
    /// # Errors
    /// The reason why the connection cannot be used any more.
    pub(super) fn request(
        &mut self,
        request: &Request,
        files: &[BorrowedFd<'_>],
    ) -> Result<(Response, Vec<OwnedFd>), String> {
        self.packet.clear();
        request.write(&mut self.packet);
        let failure = |error| match error {
            Errno::AGAIN => "iolited does not respond".to_owned(),
            error => format!("iolited: {error}"),
        };
        match millrace_sys::send_packet_and_wait(self.socket.as_fd(), &[&self.packet], files) {
            // A daemon that refuses a connection sends a response before it closes it.
            Ok(()) | Err(Errno::PIPE) => {}
            Err(error) => return Err(failure(error)),
        }
        let (mut packet, mut memory) = ([0; RESPONSE_BYTES_MAX], Vec::new());
        let mut receive =
            || millrace_sys::await_packet(self.socket.as_fd(), &mut packet, &mut memory);
        // The kernel reports once that the daemon has closed the connection without reading the
        // request, before it returns the response that the daemon sent earlier.
        let received = match receive() {
            Err(Errno::CONNRESET) => receive(),
            received => received,
        };
        match received {
            Ok(0) | Err(Errno::CONNRESET) => Err("iolited has ended".to_owned()),
            Ok(length) => {
                let response = Response::read(&packet[..length], memory.len());
                let response = response.ok_or("iolited has sent an unknown response")?;
                Ok((response, memory))
            }
            Err(error) => Err(failure(error)),
        }
    }
}
