//! What can go wrong, and whose fault it is.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why there are no programs, or a process is not registered.
#[derive(Debug)]
pub enum Error {
    /// The kernel has not what is needed.
    Unsupported {
        /// What it lacks.
        feature: &'static str,
        /// Where that began.
        since: &'static str,
    },
    /// The kernel refused a program: for want of privileges, or because it is another kernel than
    /// the programs are made for.
    Program {
        /// Which.
        name: &'static str,
        /// In the kernel's or the loader's words.
        why: String,
    },
    /// The process lacks capabilities that are needed.
    Privileges {
        /// By their names.
        missing: Vec<&'static str>,
    },
    /// The daemon is in a user namespace of its own, whose privileges are none for programs.
    NestedUserNamespace,
    /// The daemon is in a pid namespace of its own, where the programs would mistake processes.
    NestedPidNamespace,
    /// No mounted cgroup v2 has the process's cgroup.
    NoCgroup,
    /// There can be no socket of the daemon's at that path.
    Listen {
        /// Which.
        path: PathBuf,
        /// What is in the way.
        why: String,
    },
    /// The kernel's error of a system call.
    Kernel(Errno),
    /// An error of files in /proc.
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
            Self::Unsupported { feature, since } => write!(out, "no {feature}, since {since}"),
            Self::Program { name, why } => write!(out, "the program {name} was refused: {why}"),
            Self::Privileges { missing } => {
                let missing = missing.join(", ");
                write!(out, "needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; ")?;
                write!(out, "this process lacks {missing}")
            }
            Self::NestedUserNamespace => {
                out.write_str("runs in a user namespace that is not the first")
            }
            Self::NestedPidNamespace => {
                out.write_str("runs in a pid namespace that is not the first")
            }
            Self::NoCgroup => out.write_str("no mounted cgroup v2 has the cgroup of the process"),
            Self::Listen { path, why } => {
                write!(out, "cannot listen at unix:{}: {why}", path.display())
            }
            Self::Kernel(error) => error.fmt(out),
            Self::File(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for Error {}
