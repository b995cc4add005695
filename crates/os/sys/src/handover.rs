//! Descriptors that are passed between processes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
};

use crate::Result;

/// The most descriptors in one message. Linux allows 253 (SCM_MAX_FD).
pub const DESCRIPTORS_PER_MESSAGE_MAX: usize = 64;
/// The number of the first descriptor that a service manager passes (sd_listen_fds(3)).
const LISTEN_FDS_START: i32 = 3;
/// The most descriptors accepted from a service manager; a larger number is a mistake.
const LISTEN_FDS_MAX: i32 = 4096;

/// Sends `bytes` over a Unix stream socket, and copies of `descriptors` with the first byte
/// (SCM_RIGHTS, unix(7)). Returns the number of bytes taken. If it is not 0, the descriptors were
/// sent.
///
/// # Errors
/// Those of sendmsg(2); ETOOMANYREFS if too many descriptors are in flight already.
///
/// # Panics
/// Panics if there are no bytes, or more than [`DESCRIPTORS_PER_MESSAGE_MAX`] descriptors.
pub fn send_with_descriptors(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize> {
    assert!(!bytes.is_empty() && descriptors.len() <= DESCRIPTORS_PER_MESSAGE_MAX);
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the buffer has room for the maximum");
    }
    let parts = [IoSlice::new(bytes)];
    retry_on_intr(|| rustix::net::sendmsg(fd, &parts, &mut control, SendFlags::NOSIGNAL))
}

/// Receives up to `bytes.len()` bytes from a Unix stream socket, and appends the descriptors that
/// arrived with them to `descriptors`; closed on exec. Returns 0 at the end of the stream.
///
/// # Errors
/// Those of recvmsg(2); EMFILE if some descriptors could not be received (MSG_CTRUNC). The kernel
/// closes those.
pub fn receive_with_descriptors(
    fd: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> Result<usize> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(fd, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received_descriptors) = message {
            descriptors.extend(received_descriptors);
        }
    }
    match received.flags.contains(ReturnFlags::CTRUNC) {
        true => Err(Errno::MFILE),
        false => Ok(received.bytes),
    }
}

/// The address at which a socket listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BoundAddress {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path to which the socket was bound.
    Unix(PathBuf),
    /// The name of a Unix socket in the abstract namespace.
    Abstract(Vec<u8>),
}

/// Returns the address at which a socket listens that another process has opened; `None` if it is
/// not a listening stream socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn listening_address(fd: BorrowedFd<'_>) -> Result<Option<BoundAddress>> {
    let kind = rustix::net::sockopt::socket_type(fd)?;
    if kind != rustix::net::SocketType::STREAM || !crate::is_listening(fd)? {
        return Ok(None);
    }
    let address = rustix::net::getsockname(fd)?;
    Ok(match address.address_family() {
        AddressFamily::UNIX => {
            let address = SocketAddrUnix::try_from(address)?;
            Some(match address.path_bytes() {
                Some(path) => {
                    BoundAddress::Unix(std::ffi::OsString::from_vec(path.to_vec()).into())
                }
                None => {
                    BoundAddress::Abstract(address.abstract_name().unwrap_or_default().to_vec())
                }
            })
        }
        _ => SocketAddr::try_from(address).ok().map(BoundAddress::Tcp),
    })
}

/// Returns the descriptors that a service manager passed to this process (sd_listen_fds(3):
/// LISTEN_PID, LISTEN_FDS), each with its name from LISTEN_FDNAMES if there is one. Only the first
/// call returns any. The descriptors are set to be closed on exec.
///
/// # Errors
/// EINVAL if LISTEN_FDS is not a valid number; EBADF if a descriptor is not open.
pub fn take_passed_descriptors() -> Result<Vec<(OwnedFd, String)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var(name).ok();
    let is_for_this_process =
        variable("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    // The first caller owns the descriptors. The swap pairs with itself; no other memory depends on
    // it.
    if !is_for_this_process || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let count = variable("LISTEN_FDS").and_then(|count| count.parse().ok());
    let count = count.filter(|count| (0..=LISTEN_FDS_MAX).contains(count)).ok_or(Errno::INVAL)?;
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = Vec::new();
    for number in LISTEN_FDS_START..LISTEN_FDS_START + count {
        // SAFETY: LISTEN_PID says that the parent opened these numbers for this process before it
        // started, so nothing in this process owns them; the swap above lets them be taken only
        // once.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        if let Err(error) = rustix::io::fcntl_setfd(fd.as_fd(), FdFlags::CLOEXEC) {
            // A descriptor that is not open is not owned, and must not be closed.
            std::mem::forget(fd);
            return Err(error);
        }
        passed.push((fd, names.next().unwrap_or_default().to_owned()));
    }
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn listeners_travel_with_their_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let tcp = crate::listen_tcp("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let bound = crate::local_address(tcp.as_fd()).unwrap().unwrap();
        let all = vec![tcp.as_fd(); DESCRIPTORS_PER_MESSAGE_MAX];
        assert_eq!(send_with_descriptors(here.as_fd(), b"many", &all), Ok(4));
        assert_eq!(send_with_descriptors(here.as_fd(), b"none", &[]), Ok(4));
        drop(here);
        let (mut bytes, mut got) = ([0; 16], Vec::new());
        // A message's descriptors arrive with its first byte, not with an earlier one.
        let mut count = receive_with_descriptors(there.as_fd(), &mut bytes[..1], &mut got).unwrap();
        assert_eq!(got.len(), all.len());
        while count < 8 {
            let room = &mut bytes[count..];
            count += receive_with_descriptors(there.as_fd(), room, &mut got).unwrap();
        }
        assert_eq!((&bytes[..8], got.len()), (&b"manynone"[..], all.len()));
        assert_eq!(receive_with_descriptors(there.as_fd(), &mut bytes, &mut got), Ok(0));
        for fd in got {
            assert_eq!(listening_address(fd.as_fd()), Ok(Some(BoundAddress::Tcp(bound))));
        }
    }

    #[test]
    fn only_a_listening_socket_has_a_listening_address() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(listening_address(one.as_fd()), Ok(None));
        let path = std::env::temp_dir().join(format!("millrace-at-{}", std::process::id()));
        let unix = crate::listen_unix(&path, 0o600).unwrap();
        assert_eq!(listening_address(unix.as_fd()), Ok(Some(BoundAddress::Unix(path.clone()))));
        std::fs::remove_file(&path).unwrap();
        assert!(take_passed_descriptors().unwrap().is_empty());
    }
}
