//! The error type of the crate.

use std::fmt;
use std::path::Path;

pub use rustix::io::Errno;

/// Why a registration or a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// No daemon listens at the path (ENOENT, ECONNREFUSED), or it cannot be reached. A retry may
    /// succeed once it runs.
    NoDaemon(Errno),
    /// The policy of the daemon does not allow this user (`--allow-user` of uselectd(8)).
    Refused,
    /// The daemon has reached its limit of processes, in total or for this user. A retry may
    /// succeed.
    Full,
    /// The process is registered already.
    AlreadyRegistered,
    /// The process is in another pid namespace than the daemon.
    OtherNamespace,
    /// The daemon failed; its log has the reason.
    Daemon,
    /// The daemon did not reply in time, or closed the connection. A retry may succeed.
    NoReply,
    /// This version does not understand a reply of the daemon.
    Protocol,
    /// An io_uring with the features of Linux 6.0 is not available.
    NoRing(Errno),
    /// The error of a system call.
    Kernel(Errno),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

impl Error {
    /// Returns the error as text. For [`Error::NoDaemon`] the text has the address of the daemon.
    pub fn at_path(self, path: &Path) -> impl fmt::Display {
        ErrorAtPath { error: self, path }
    }
}

/// An error with the address of the daemon.
struct ErrorAtPath<'a> {
    error: Error,
    path: &'a Path,
}

impl fmt::Display for ErrorAtPath<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            Error::NoDaemon(error) => {
                write_no_daemon(out, error, &format_args!(" at {}", self.path.display()))
            }
            other => other.fmt(out),
        }
    }
}

fn write_no_daemon(
    out: &mut fmt::Formatter<'_>,
    error: Errno,
    suffix: &dyn fmt::Display,
) -> fmt::Result {
    match error {
        // There is no socket, or a stale one.
        Errno::NOENT | Errno::CONNREFUSED => write!(out, "uselectd is not running{suffix}"),
        error => write!(out, "uselectd cannot be reached{suffix}: {error}"),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(error) => write_no_daemon(out, *error, &""),
            Self::Refused => {
                out.write_str("uselectd does not serve this user (--allow-user of uselectd(8))")
            }
            Self::Full => out.write_str("uselectd has reached its limit of processes"),
            Self::AlreadyRegistered => out.write_str("the process is registered already"),
            Self::OtherNamespace => out.write_str("uselectd runs in another pid namespace"),
            Self::Daemon => out.write_str("uselectd failed (see its log)"),
            Self::NoReply => out.write_str("uselectd does not reply"),
            Self::Protocol => out.write_str("uselectd has another version"),
            Self::NoRing(Errno::NOSYS) => out.write_str("this kernel has no io_uring"),
            Self::NoRing(Errno::PERM) => {
                out.write_str("kernel.io_uring_disabled or a seccomp filter forbids io_uring")
            }
            Self::NoRing(Errno::INVAL) => {
                out.write_str("io_uring lacks features (required: Linux 6.0)")
            }
            Self::NoRing(error) => write!(out, "io_uring is not available: {error}"),
            Self::Kernel(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_differs_from_an_unreachable_one() {
        let at = |error| Error::NoDaemon(error).at_path(Path::new("/a")).to_string();
        for error in [Errno::NOENT, Errno::CONNREFUSED] {
            assert_eq!(at(error), "uselectd is not running at /a");
            assert_eq!(Error::NoDaemon(error).to_string(), "uselectd is not running");
        }
        assert!(at(Errno::ACCESS).starts_with("uselectd cannot be reached at /a: Permission"));
        assert_eq!(Error::Full.at_path(Path::new("/a")).to_string(), Error::Full.to_string());
    }
}
