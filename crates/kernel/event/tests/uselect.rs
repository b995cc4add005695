//! The contract of an engine, kept by [`millrace_event::Uselect`].

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod conformance;
#[path = "../../bpf/tests/common/daemon.rs"]
mod daemon;

type Tested = millrace_event::Uselect;

/// This process is registered with a daemon of its own, which ends with it.
fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let path = std::env::temp_dir().join(format!("uselect-engine-{}", std::process::id()));
        if daemon::serve(&path) {
            millrace_event::track(&path, std::time::Duration::ZERO).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    });
}
