//! The backends that test programs are run with, and the daemon that one of them needs.

#[path = "../../../uselectd/tests/common/daemon.rs"]
mod daemon;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Each backend, by the name that test programs have for it.
pub(crate) const BACKENDS: [&str; 4] = ["calls", "multishot", "bpf", "lean"];

/// The arguments of test programs for a backend; `None`, and said, where it is not supported.
pub(crate) fn options(backend: &str) -> Option<Vec<String>> {
    let mut options = vec![backend.to_owned()];
    if ["bpf", "lean"].contains(&backend) {
        options.push(socket()?.display().to_string());
    }
    Some(options)
}

/// A daemon's, for all tests of a program. That of the run before is replaced.
fn socket() -> Option<&'static PathBuf> {
    static SOCKET: OnceLock<Option<PathBuf>> = OnceLock::new();
    let start = || {
        let name = concat!("uselect-", env!("CARGO_CRATE_NAME"), ".sock");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        daemon::serve(&path).then_some(path)
    };
    SOCKET.get_or_init(start).as_ref()
}
