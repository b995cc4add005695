//! A daemon and a registered process for tests: this one.

mod daemon;

use std::path::PathBuf;
use std::sync::OnceLock;

use uselect::{Tracker, TrackingMode};

/// This process, registered; `None` where that is not supported, which is said.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();
    TRACKER.get_or_init(register).as_ref()
}

fn register() -> Option<Tracker> {
    if is_multishot() {
        let tracker = Tracker::multishot();
        return tracker.inspect_err(|error| println!("skipped: {error}")).ok();
    }
    let path = socket("registered");
    let tracker = daemon::serve(&path).then(|| Tracker::register(&path, mode()).unwrap())?;
    std::fs::remove_file(&path).unwrap();
    Some(tracker)
}

/// MODE=lean is lean mode, MODE=exact exact mode: a process has one.
pub(crate) fn mode() -> TrackingMode {
    match std::env::var("MODE").as_deref() {
        Ok("lean") => TrackingMode::Lean,
        _ => TrackingMode::Exact,
    }
}

/// MODE=multishot is without programs: io_uring says of which sockets poll(2) is to be asked.
fn is_multishot() -> bool {
    std::env::var_os("MODE").is_some_and(|mode| mode == "multishot")
}

/// Where a daemon of that name may listen.
pub(crate) fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uselect-{name}-{}", std::process::id()))
}
