//! What the kernel answers when an operation fails, sorted by what the proxy does about it.

use std::fmt;

use millrace_sys::Errno;

/// Why an operation on a socket or pipe failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The peer reset the connection (ECONNRESET, ECONNABORTED). The peer's doing.
    Reset,
    /// The peer no longer reads (EPIPE). What it sent before may still be readable.
    BrokenPipe,
    /// Nobody listens at the address (ECONNREFUSED, ENOENT of a Unix path). Another address may do.
    Refused,
    /// The network does not lead there (ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL). Another address
    /// may do.
    Unreachable,
    /// The kernel gave up waiting for the peer (ETIMEDOUT).
    TimedOut,
    /// No descriptor is left (EMFILE, ENFILE). Ours: sound to retry when one was closed.
    OutOfDescriptors,
    /// No kernel memory (ENOBUFS, ENOMEM). Ours: sound to retry later.
    OutOfMemory,
    /// The kernel lacks or refuses what an engine is made of. Ours, until another is picked.
    Unsupported(Unsupported),
    /// Anything else, by its number.
    Other(i32),
}

/// What an engine needs, and this machine lacks or refuses. Small, as every operation may carry an
/// error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsupported {
    /// There is no io_uring_setup(2): ENOSYS.
    RingMissing,
    /// It is forbidden: EPERM or EACCES.
    RingForbidden,
    /// It lacks what the engine asks for: EINVAL.
    RingTooOld,
    /// The process is not registered with uselectd.
    Untracked,
}

impl Unsupported {
    /// The feature, by the kernel's name.
    pub fn feature(self) -> &'static str {
        match self {
            Self::RingMissing | Self::RingForbidden | Self::RingTooOld => "io_uring",
            Self::Untracked => "user-level connection tracking",
        }
    }

    /// Since when the kernel has it, or what hides it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::RingMissing => {
                "the kernel was built without it, or a filter of system calls hides it"
            }
            Self::Untracked => "the process is not registered with uselectd",
            Self::RingForbidden => {
                "kernel.io_uring_disabled, or a filter of system calls, forbids it"
            }
            Self::RingTooOld => "Linux 6.1 is the first with all that is used",
        }
    }
}

impl Error {
    /// What an error number means (errno(3)). EAGAIN and EINTR never get here.
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
            // ENOSPC is epoll_ctl(2) at its limit of registrations, which bounds kernel memory.
            Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC => Self::OutOfMemory,
            other => Self::Other(other.raw_os_error()),
        }
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
            Self::Unsupported(what) => {
                write!(f, "{} cannot be used here: {}", what.feature(), what.reason())
            }
            Self::Other(number) => write!(f, "error {number} of the kernel"),
        }
    }
}

impl std::error::Error for Error {}
