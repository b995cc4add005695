//! A daemon in the test process, and the registration of the test process.

mod daemon;

use std::path::PathBuf;
use std::sync::OnceLock;

use uselect::{Tracker, TrackingMode};

/// Registers this process once. Prints why and returns `None` if that is not supported.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();
    TRACKER.get_or_init(register).as_ref()
}

fn register() -> Option<Tracker> {
    if wants_multishot() {
        let tracker = Tracker::multishot();
        return tracker.inspect_err(|error| println!("skipped: {error}")).ok();
    }
    let path = socket_path("registered");
    let tracker = daemon::start_daemon(&path).then(|| Tracker::register(&path, mode()).unwrap())?;
    std::fs::remove_file(&path).unwrap();
    Some(tracker)
}

/// The mode of this process: lean with MODE=lean, else exact.
pub(crate) fn mode() -> TrackingMode {
    match std::env::var("MODE").as_deref() {
        Ok("lean") => TrackingMode::Lean,
        _ => TrackingMode::Exact,
    }
}

/// Returns whether MODE=multishot is set: no programs, and io_uring reports for which sockets to
/// call poll(2).
fn wants_multishot() -> bool {
    std::env::var_os("MODE").is_some_and(|mode| mode == "multishot")
}

/// Returns a path for the socket of a daemon.
pub(crate) fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uselect-{name}-{}", std::process::id()))
}
