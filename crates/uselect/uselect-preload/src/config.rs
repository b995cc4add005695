//! The settings that `uselect run` passes by environment variables. They are read before main,
//! because programs change their environment, and overwrite it to change their title in ps(1).
//!
//! A program that gained privileges when it was executed ignores the variables: the user who
//! executed it has fewer privileges and may have chosen them.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::output::{MessageOutput, ProgramName};

/// The requested backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestedBackend {
    /// The first available one.
    Auto,
    Bpf,
    Multishot,
    Calls,
}

/// The settings of this process.
pub(crate) struct Config {
    path: [u8; PATH_MAX],
    path_bytes: usize,
    pub(crate) backend: RequestedBackend,
    /// Whether the process reports how its waits were served.
    pub(crate) reports_stats: bool,
    pub(crate) output: MessageOutput,
    pub(crate) program: ProgramName,
}

/// The longest path in the address of a Unix socket, in bytes (unix(7)).
const PATH_MAX: usize = 108;

static CONFIG: OnceLock<Config> = OnceLock::new();

impl Config {
    /// Returns the socket of the daemon.
    pub(crate) fn socket(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path[..self.path_bytes]))
    }

    fn from_environment() -> Self {
        let default = uselect::DEFAULT_SOCKET.as_bytes();
        let path_given = variable(c"USELECT_SOCKET").map(CStr::to_bytes);
        let socket = path_given.filter(|path| path.len() <= PATH_MAX).unwrap_or(default);
        let mut path = [0; PATH_MAX];
        path[..socket.len()].copy_from_slice(socket);
        let backend = match variable(c"USELECT_BACKEND").map(CStr::to_bytes) {
            Some(b"bpf") => RequestedBackend::Bpf,
            Some(b"multishot") => RequestedBackend::Multishot,
            Some(b"calls") => RequestedBackend::Calls,
            _ => RequestedBackend::Auto,
        };
        let stats = variable(c"USELECT_STATS");
        // A value that is not an absolute path means standard error.
        let output = MessageOutput::new(stats.filter(|path| path.to_bytes().starts_with(b"/")));
        let (reports_stats, program) = (stats.is_some(), ProgramName::current());
        Self { path, path_bytes: socket.len(), backend, reports_stats, output, program }
    }
}

/// Returns the settings. The first call must be before main.
pub(crate) fn get() -> &'static Config {
    CONFIG.get_or_init(Config::from_environment)
}

/// Returns a variable. Returns `None` in a program that is set-user-ID or set-group-ID or has file
/// capabilities, like secure_getenv(3).
fn variable(name: &CStr) -> Option<&'static CStr> {
    if has_privileges() {
        return None;
    }
    // SAFETY: the name is a C string.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: it is not null, so it is a C string, and nothing changes the environment before main.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) })
}

/// Returns whether the kernel gave this program privileges when it was executed (AT_SECURE).
fn has_privileges() -> bool {
    // SAFETY: the call takes a number, and reads the auxiliary vector of this process.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    secure != 0
}
