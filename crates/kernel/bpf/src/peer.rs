//! Who asks: the process at the other end of the daemon's socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use crate::error::Error;

/// A process that has connected. Its number stays its own while `process` is not readable.
pub(crate) struct Peer {
    /// Readable once the process has ended.
    pub(crate) process: OwnedFd,
    pub(crate) number: u32,
    pub(crate) user: u32,
    /// It has another number where it lives.
    pub(crate) is_nested: bool,
}

impl Peer {
    /// The process that called connect(2).
    ///
    /// # Errors
    /// [`Error::Unsupported`] before Linux 6.5; ESRCH when it has ended already.
    pub(crate) fn of(connection: BorrowedFd<'_>) -> Result<Self, Error> {
        let user = socket_peercred(connection)?.uid.as_raw();
        let process = peer_process(connection)?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        let numbers = field("NSpid:").ok_or(Errno::SRCH)?;
        let number = field("Pid:").and_then(|number| number.trim().parse::<u32>().ok());
        // 0: of no namespace that we see; -1, which is no u32: it has ended.
        let number = number.filter(|number| *number > 0).ok_or(Errno::SRCH)?;
        let is_nested = numbers.split_whitespace().count() != 1;
        Ok(Self { process, number, user, is_nested })
    }
}

/// SO_PEERPIDFD: the process as it was when it connected, so no other one that has its number now.
fn peer_process(connection: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERPIDFD);
    let socket = connection.as_fd().as_raw_fd();
    // SAFETY: `fd` has room for the `length` bytes, and both outlive the call.
    let result =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut fd).cast(), &raw mut length) };
    if result == 0 {
        // SAFETY: the kernel has just given it to us.
        return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let error = std::io::Error::last_os_error();
    Err(match Errno::from_io_error(&error) {
        Some(Errno::NOPROTOOPT) => {
            Error::Unsupported { feature: "SO_PEERPIDFD", since: "Linux 6.5" }
        }
        error => Error::Kernel(error.unwrap_or(Errno::IO)),
    })
}

/// Whether this process is where processes have the numbers that programs in the kernel see.
///
/// # Errors
/// When /proc is not mounted.
pub(crate) fn is_in_first_namespace() -> Result<bool, Error> {
    // PROC_PID_INIT_INO of include/linux/proc_ns.h.
    const FIRST: u64 = 0xEFFF_FFFC;
    Ok(rustix::fs::stat("/proc/self/ns/pid")?.st_ino == FIRST)
}
