//! The kernel's errors, grouped by how the proxy handles them.

use std::fmt;

use millrace_sys::Errno;

/// The reason why an operation on a socket or pipe failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The peer reset the connection (ECONNRESET, ECONNABORTED).
    Reset,
    /// The peer no longer reads (EPIPE). Bytes that it sent before may still be readable.
    BrokenPipe,
    /// No process listens at the address (ECONNREFUSED; ENOENT for a Unix path), or the backlog of
    /// a Unix listener is full. Another address may work.
    Refused,
    /// The address cannot be reached: there is no route to it (ENETUNREACH, EHOSTUNREACH), the
    /// network or the host is down (ENETDOWN, EHOSTDOWN), or this machine has no local address or
    /// no free port for it (EADDRNOTAVAIL). Another address may work.
    Unreachable,
    /// The kernel stopped waiting for the peer (ETIMEDOUT).
    TimedOut,
    /// The process or the machine has no free descriptor (EMFILE, ENFILE). A local limit: retrying
    /// is sound once a descriptor has been closed.
    OutOfDescriptors,
    /// The kernel has no memory (ENOBUFS, ENOMEM), or a limit that bounds its memory is reached
    /// (ENOSPC). A local limit: retrying later is sound.
    OutOfMemory,
    /// A file ended before the last byte that was to be sent, because it was truncated. The
    /// connection is not broken, but the peer lacks the rest.
    FileEnded,
    /// A file that was to be sent cannot be read; the error number is that of read(2), such as EIO.
    /// The connection is not broken, but the peer lacks the rest.
    FileUnreadable(i32),
    /// The kernel lacks or forbids a feature that the engine needs. Another engine may work.
    Unsupported(Unsupported),
    /// Any other error number.
    Other(i32),
}

/// A feature that an engine needs and that this machine lacks or forbids. The type is small, since
/// every operation may return an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsupported {
    /// The kernel has no io_uring_setup(2): ENOSYS.
    RingMissing,
    /// io_uring is forbidden: EPERM or EACCES.
    RingForbidden,
    /// The kernel's io_uring lacks a feature that the engine uses: EINVAL.
    RingTooOld,
    /// The process is not registered with uselectd.
    Untracked,
}

impl Unsupported {
    /// Returns the name of the feature.
    pub fn feature(self) -> &'static str {
        match self {
            Self::RingMissing | Self::RingForbidden | Self::RingTooOld => "io_uring",
            Self::Untracked => "user-level connection tracking",
        }
    }

    /// Returns why the feature cannot be used.
    pub fn reason(self) -> &'static str {
        match self {
            Self::RingMissing => {
                "the kernel was built without it, or a filter of system calls hides it"
            }
            Self::Untracked => "the process is not registered with uselectd",
            Self::RingForbidden => {
                "kernel.io_uring_disabled, or a filter of system calls, forbids it"
            }
            Self::RingTooOld => "it lacks a feature of Linux 6.1 that the engine uses",
        }
    }
}

impl Error {
    /// Converts an error number (errno(3)). EAGAIN and EINTR are handled before this call.
    pub(crate) fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::CONNRESET | Errno::CONNABORTED => Self::Reset,
            Errno::PIPE => Self::BrokenPipe,
            Errno::CONNREFUSED | Errno::NOENT => Self::Refused,
            Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::ADDRNOTAVAIL => Self::Unreachable,
            Errno::TIMEDOUT => Self::TimedOut,
            Errno::MFILE | Errno::NFILE => Self::OutOfDescriptors,
            // epoll_ctl(2) returns ENOSPC at its limit of registrations, which bounds kernel
            // memory.
            Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC => Self::OutOfMemory,
            other => Self::Other(other.raw_os_error()),
        }
    }

    /// Converts an error number of sendfile(2), which does not show whether the file or the socket
    /// failed. The numbers that established connections return have variants of their own.
    pub(crate) fn from_sendfile(errno: Errno) -> Self {
        match Self::from_errno(errno) {
            Self::Other(number) => Self::FileUnreadable(number),
            other => other,
        }
    }

    /// Returns whether a file failed, and not the connection on which it was sent.
    pub fn is_of_file(self) -> bool {
        matches!(self, Self::FileEnded | Self::FileUnreadable(_))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("connection reset by peer"),
            Self::BrokenPipe => f.write_str("the peer no longer reads"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable => f.write_str("address unreachable"),
            Self::TimedOut => f.write_str("timed out in the network"),
            Self::OutOfDescriptors => f.write_str("out of file descriptors"),
            Self::OutOfMemory => f.write_str("out of kernel memory"),
            Self::FileEnded => f.write_str("the file ended too early"),
            Self::FileUnreadable(number) => {
                write!(f, "cannot read the file: kernel error {number}")
            }
            Self::Unsupported(unsupported) => {
                let (feature, reason) = (unsupported.feature(), unsupported.reason());
                write!(f, "{feature} cannot be used here: {reason}")
            }
            Self::Other(number) => write!(f, "kernel error {number}"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_sendfile_is_of_the_file_or_of_the_connection() {
        for errno in [Errno::IO, Errno::STALE, Errno::INVAL, Errno::ISDIR] {
            let error = Error::from_sendfile(errno);
            assert_eq!(error, Error::FileUnreadable(errno.raw_os_error()));
            assert!(error.is_of_file());
        }
        for errno in [Errno::PIPE, Errno::CONNRESET, Errno::TIMEDOUT, Errno::HOSTUNREACH] {
            assert!(!Error::from_sendfile(errno).is_of_file(), "{errno}");
        }
    }
}
