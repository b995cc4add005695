//! What can go wrong, and whose fault it is.

use std::fmt;
use std::path::Path;

pub use rustix::io::Errno;

/// Why a process is not registered, or a call failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// There is no daemon at that address (ENOENT, ECONNREFUSED), or none that can be connected to. A
    /// retry is sound once it runs.
    NoDaemon(Errno),
    /// The daemon's policy does not have this user: its options say whom it serves.
    Refused,
    /// As many processes are registered as there is room for, in all or of this user. A retry is
    /// sound.
    Full,
    /// The process is registered already.
    AlreadyRegistered,
    /// The process is of another pid namespace than the daemon.
    OtherNamespace,
    /// The daemon could not do it; it says why in its log.
    Daemon,
    /// The daemon is there, and has not answered in time, or at all. A retry is sound.
    NoReply,
    /// The daemon says what this version does not understand.
    Protocol,
    /// There is no io_uring as of Linux 6.0 to be had.
    NoRing(Errno),
    /// The kernel's error of a system call.
    Kernel(Errno),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

impl Error {
    /// The same for people, with the place where the daemon was looked for if it was not found.
    pub fn at_path(self, path: &Path) -> impl fmt::Display {
        ErrorAtPath { error: self, path }
    }
}

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
    place: &dyn fmt::Display,
) -> fmt::Result {
    match error {
        // No socket, or one that was left.
        Errno::NOENT | Errno::CONNREFUSED => write!(out, "uselectd is not running{place}"),
        error => write!(out, "uselectd cannot be reached{place}: {error}"),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDaemon(error) => write_no_daemon(out, *error, &""),
            Self::Refused => {
                out.write_str("uselectd does not serve this user (--allow-user of uselectd(8))")
            }
            Self::Full => out.write_str("uselectd has no room for another process"),
            Self::AlreadyRegistered => out.write_str("the process is registered already"),
            Self::OtherNamespace => out.write_str("uselectd is of another pid namespace"),
            Self::Daemon => out.write_str("uselectd failed; its log says why"),
            Self::NoReply => out.write_str("uselectd does not answer"),
            Self::Protocol => out.write_str("uselectd is of another version"),
            Self::NoRing(Errno::NOSYS) => out.write_str("there is no io_uring here"),
            Self::NoRing(Errno::PERM) => {
                out.write_str("kernel.io_uring_disabled or a filter forbids io_uring")
            }
            Self::NoRing(Errno::INVAL) => out.write_str("io_uring is older than that of Linux 6.0"),
            Self::NoRing(error) => write!(out, "io_uring cannot be had: {error}"),
            Self::Kernel(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_there_is_told_from_who_cannot_be_reached() {
        let at = |error| Error::NoDaemon(error).at_path(Path::new("/a")).to_string();
        for error in [Errno::NOENT, Errno::CONNREFUSED] {
            assert_eq!(at(error), "uselectd is not running at /a");
            assert_eq!(Error::NoDaemon(error).to_string(), "uselectd is not running");
        }
        assert!(at(Errno::ACCESS).starts_with("uselectd cannot be reached at /a: Permission"));
        assert_eq!(Error::Full.at_path(Path::new("/a")).to_string(), Error::Full.to_string());
    }
}
