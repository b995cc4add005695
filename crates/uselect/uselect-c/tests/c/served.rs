//! The backends with which test programs run, and the daemon for eBPF.

#[path = "../../../uselectd/tests/common/daemon.rs"]
mod daemon;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The names of the backends for test programs.
pub(crate) const BACKENDS: [&str; 4] = ["calls", "multishot", "bpf", "lean"];

/// Returns the arguments of test programs for a backend. Returns `None`, with a message, if it is
/// not supported.
pub(crate) fn options(backend: &str) -> Option<Vec<String>> {
    let mut options = vec![backend.to_owned()];
    if ["bpf", "lean"].contains(&backend) {
        options.push(socket()?.display().to_string());
    }
    Some(options)
}

/// Returns the socket of a daemon for all tests of a program. A socket of an earlier run is
/// replaced.
fn socket() -> Option<&'static PathBuf> {
    static SOCKET: OnceLock<Option<PathBuf>> = OnceLock::new();
    let start = || {
        let name = concat!("uselect-", env!("CARGO_CRATE_NAME"), ".sock");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        daemon::start_daemon(&path).then_some(path)
    };
    SOCKET.get_or_init(start).as_ref()
}
