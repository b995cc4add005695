//! Who a process, and the other end of a Unix socket, is.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Result, last_error};

/// The process at the other end of a Unix socket, as it was when it connected, or listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCredentials {
    /// Its process id; 0 when it is of another namespace.
    pub process_id: u32,
    /// Its effective user id.
    pub user_id: u32,
}

/// The effective user id of this process (geteuid(2)).
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Who is at the other end of a connected Unix stream socket (SO_PEERCRED, unix(7)): for one that
/// accepted, who connected; for one that connected, who called listen(2).
///
/// # Errors
/// ENOTSOCK; ENODATA or EINVAL where the socket has no peer.
pub fn peer_credentials(fd: BorrowedFd<'_>) -> Result<PeerCredentials> {
    // Not by `rustix`, whose process ids cannot be the 0 of another namespace's process.
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
    assert!(length as usize == size_of::<libc::ucred>(), "the kernel gives all of it");
    // SAFETY: the kernel filled it whole, and every bit pattern is a value.
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
