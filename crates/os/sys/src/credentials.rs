//! Credentials of this process, and of the peer of a Unix socket.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Result, last_error};

/// The credentials that the process at the other end of a Unix socket had when it called connect(2)
/// or listen(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCredentials {
    /// The process id; 0 if the process is not visible in the PID namespace of this process.
    pub process_id: u32,
    /// The effective user id.
    pub user_id: u32,
}

/// Returns the effective user id of this process (geteuid(2)).
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the credentials of the peer of a connected Unix stream socket (SO_PEERCRED, unix(7)).
/// For an accepted socket, the peer is the process that connected. For a socket that connected, it
/// is the process that called listen(2).
///
/// # Errors
/// ENOTSOCK; ENODATA or EINVAL if the socket has no peer.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> Result<PeerCredentials> {
    // `rustix` is not used: its process ids cannot be 0, the id of a process that is not visible in
    // this PID namespace.
    let mut credentials = MaybeUninit::<libc::ucred>::uninit();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `fd` is open while it is borrowed; `credentials` is writable memory of `length`
    // bytes, and both outlive the call.
    let got = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(last_error());
    }
    assert!(length as usize == size_of::<libc::ucred>(), "the kernel fills the whole ucred");
    // SAFETY: the kernel has filled the whole value, and every bit pattern is valid.
    let credentials = unsafe { credentials.assume_init() };
    Ok(PeerCredentials { process_id: credentials.pid.unsigned_abs(), user_id: credentials.uid })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let expected =
            PeerCredentials { process_id: std::process::id(), user_id: effective_user() };
        assert_eq!(peer_credentials(one.as_fd()), Ok(expected));
    }
}
