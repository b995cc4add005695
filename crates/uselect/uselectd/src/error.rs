//! The error type of the crate.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why the programs cannot be loaded, or a process cannot be registered.
#[derive(Debug)]
pub enum Error {
    /// The kernel lacks a feature.
    Unsupported {
        /// The feature.
        feature: &'static str,
        /// The first version that has it.
        since: &'static str,
    },
    /// The kernel or the loader rejected a program, because privileges are missing or the kernel
    /// differs from those that the programs are written for.
    Program {
        /// The name of the program, or "object".
        name: &'static str,
        /// The error of the kernel or the loader.
        why: String,
    },
    /// A policy of the kernel refuses a BPF iterator, although the daemon has the capabilities.
    IteratorForbidden {
        /// The name of the program.
        iterator: &'static str,
    },
    /// The daemon lacks capabilities.
    Privileges {
        /// The names of the missing capabilities.
        missing: Vec<&'static str>,
    },
    /// The daemon runs in a user namespace other than the initial one, where its capabilities do
    /// not permit it to load programs.
    NestedUserNamespace,
    /// The daemon runs in a pid namespace other than the initial one, so its process ids differ
    /// from those that the programs see.
    NestedPidNamespace,
    /// The cgroup of the process is in no mounted hierarchy of cgroup v2.
    NoCgroup,
    /// The daemon cannot listen at its path.
    Listen {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A system call failed.
    Kernel(Errno),
    /// A file in /proc could not be read.
    File(std::io::Error),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { feature, since } => {
                write!(out, "the kernel lacks {feature} (expected: {since} or later)")
            }
            Self::Program { name, why } => write!(out, "cannot load or attach {name}: {why}"),
            Self::IteratorForbidden { iterator } => {
                write!(
                    out,
                    "the kernel refuses the BPF iterator {iterator}, although the process "
                )?;
                out.write_str("has the capabilities (expected: no policy against BPF iterators)")
            }
            Self::Privileges { missing } => {
                let missing = missing.join(", ");
                write!(out, "missing {missing} (expected: root, or CAP_BPF, CAP_PERFMON and ")?;
                out.write_str("CAP_NET_ADMIN)")
            }
            Self::NestedUserNamespace => {
                out.write_str("unsupported user namespace (expected: the initial one)")
            }
            Self::NestedPidNamespace => {
                out.write_str("unsupported pid namespace (expected: the initial one)")
            }
            Self::NoCgroup => {
                out.write_str("the cgroup of the process is in no mounted cgroup v2 hierarchy")
            }
            Self::Listen { path, why } => {
                write!(out, "cannot listen on unix:{}: {why}", path.display())
            }
            Self::Kernel(error) => error.fmt(out),
            Self::File(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for Error {}
