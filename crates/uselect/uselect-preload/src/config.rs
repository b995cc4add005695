//! What `uselect run` says by the environment. It is read before main, since programs change their
//! environment and write their titles over it.
//!
//! A program that has got privileges by being executed takes no word from the environment: the user
//! who executed it, and who has fewer, may have chosen each one.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::output::{Output, Program};

/// Where words of memory come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// The first of the others that there is.
    Auto,
    Bpf,
    Multishot,
    Calls,
}

pub(crate) struct Config {
    path: [u8; PATH_MAX],
    path_bytes: usize,
    pub(crate) wanted: Wanted,
    /// Whether the process is to say how its waits were answered.
    pub(crate) says_stats: bool,
    pub(crate) output: Output,
    pub(crate) program: Program,
}

/// No address of a Unix socket is longer, in bytes (unix(7)).
const PATH_MAX: usize = 108;

static CONFIG: OnceLock<Config> = OnceLock::new();

impl Config {
    /// Where the daemon listens.
    pub(crate) fn socket(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path[..self.path_bytes]))
    }

    fn of_environment() -> Self {
        let default = uselect::DEFAULT_SOCKET.as_bytes();
        let given = variable(c"USELECT_SOCKET").map(CStr::to_bytes);
        let socket = given.filter(|path| path.len() <= PATH_MAX).unwrap_or(default);
        let mut path = [0; PATH_MAX];
        path[..socket.len()].copy_from_slice(socket);
        let wanted = match variable(c"USELECT_BACKEND").map(CStr::to_bytes) {
            Some(b"bpf") => Wanted::Bpf,
            Some(b"multishot") => Wanted::Multishot,
            Some(b"calls") => Wanted::Calls,
            _ => Wanted::Auto,
        };
        let stats = variable(c"USELECT_STATS");
        // A word that is no path is for standard error.
        let output = Output::new(stats.filter(|path| path.to_bytes().starts_with(b"/")));
        let (says_stats, program) = (stats.is_some(), Program::current());
        Self { path, path_bytes: socket.len(), wanted, says_stats, output, program }
    }
}

/// To be called before main for the first time.
pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(Config::of_environment)
}

/// A variable; `None` in a program that is set-user-ID or set-group-ID or has capabilities of its
/// file, as with secure_getenv(3).
fn variable(name: &CStr) -> Option<&'static CStr> {
    if has_privileges() {
        return None;
    }
    // SAFETY: the name is a string of C.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: it is not null, so a string of C, and nothing changes the environment before main.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Whether the kernel gave this program privileges when it was executed (AT_SECURE).
fn has_privileges() -> bool {
    // SAFETY: it takes a number, and reads what the kernel gave this process.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    secure != 0
}
