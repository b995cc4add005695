//! The messages between millrace and the guard.
//!
//! A request is one byte. A reply is its length as four bytes (big-endian), then texts that each
//! end with NUL: the result, and the folders of the launcher by their numbers. The two sockets of
//! the launcher come with the first byte (SCM_RIGHTS).

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The most bytes of a reply. A configuration is shorter.
const REPLY_BYTES_MAX: usize = 1 << 24;

/// A launcher that was started.
#[derive(Debug)]
pub struct StartedLauncher {
    /// The listening socket, as a reference (O_PATH): the socket has no name, and the path of this
    /// descriptor below /proc/self/fd leads to it.
    pub socket: OwnedFd,
    /// Ends when the launcher ends; the launcher ends when this does.
    pub control: UnixStream,
    /// The folders with the programs, in the order of their numbers.
    pub folders: Vec<PathBuf>,
    /// The rights of the programs, for the operator.
    pub description: String,
}

/// A reply of the guard.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The description of the launcher, or why it did not start.
    text: String,
    folders: Vec<PathBuf>,
    /// The listening socket and the control socket of the launcher; none if it did not start.
    sockets: Vec<OwnedFd>,
}

impl Reply {
    pub(crate) fn refusal(text: String) -> Self {
        Self { text, folders: Vec::new(), sockets: Vec::new() }
    }

    pub(crate) fn launcher(
        description: &str,
        folders: &[PathBuf],
        socket: OwnedFd,
        control: OwnedFd,
    ) -> Self {
        let sockets = vec![socket, control];
        Self { text: description.to_owned(), folders: folders.to_vec(), sockets }
    }

    pub(crate) fn send(&self, mut to: &UnixStream) -> io::Result<()> {
        let folders = self.folders.iter().map(|folder| folder.as_os_str().as_bytes());
        let texts = [self.text.as_bytes()].into_iter().chain(folders);
        let body: Vec<u8> = texts.flat_map(|text| [text, b"\0"].concat()).collect();
        let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        let bytes = [&length.to_be_bytes()[..], &body].concat();
        let sockets: Vec<BorrowedFd<'_>> = self.sockets.iter().map(AsFd::as_fd).collect();
        let sent = millrace_sys::send_with_descriptors(to.as_fd(), &bytes, &sockets)?;
        to.write_all(&bytes[sent..])
    }

    pub(crate) fn receive(from: &UnixStream) -> io::Result<Self> {
        let mut sockets = Vec::new();
        let mut receive = |bytes: &mut [u8]| {
            let mut filled = 0;
            while filled < bytes.len() {
                let room = &mut bytes[filled..];
                match millrace_sys::receive_with_descriptors(from.as_fd(), room, &mut sockets)? {
                    0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                    count => filled += count,
                }
            }
            Ok(())
        };
        let mut length = [0; 4];
        receive(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > REPLY_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; length];
        receive(&mut body)?;
        let mut texts = body.strip_suffix(b"\0").unwrap_or(&body).split(|&byte| byte == 0);
        let text = String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
        let folders = texts.map(|text| OsString::from_vec(text.to_vec()).into()).collect();
        Ok(Self { text, folders, sockets })
    }

    pub(crate) fn into_launcher(self) -> Result<StartedLauncher, String> {
        let Self { text, folders, sockets } = self;
        let Ok([socket, control]) = <[OwnedFd; 2]>::try_from(sockets) else { return Err(text) };
        Ok(StartedLauncher { socket, control: control.into(), folders, description: text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn replies_are_received_as_they_were_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let folders = [PathBuf::from("/a b"), OsStr::from_bytes(b"/\xff\n").into()];
        let (socket, control) = UnixStream::pair().unwrap();
        let launcher =
            Reply::launcher("in a process group", &folders, socket.into(), control.into());
        for sent in [launcher, Reply::refusal("no".to_owned())] {
            sent.send(&here).unwrap();
            let received = Reply::receive(&there).unwrap();
            assert_eq!((&received.text, &received.folders), (&sent.text, &sent.folders));
            assert_eq!(received.sockets.len(), sent.sockets.len());
            match received.into_launcher() {
                Ok(launcher) => assert_eq!(launcher.folders, folders),
                Err(text) => assert_eq!(text, "no"),
            }
        }
        drop(here);
        assert!(Reply::receive(&there).is_err());
    }
}
