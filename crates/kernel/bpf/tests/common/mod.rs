//! A daemon and a registered process for tests: this one.

use std::path::PathBuf;
use std::sync::OnceLock;

use millrace_bpf::{Daemon, Error, Policy};
use uselect::Tracker;

/// This process, registered; `None` where that is not supported, which is said. As root on a kernel
/// that has what is needed, not to be supported is a failure.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();
    TRACKER.get_or_init(register).as_ref()
}

fn register() -> Option<Tracker> {
    if rustix::process::geteuid().as_raw() != 0 {
        println!("skipped: programs are loaded as root");
        return None;
    }
    let path = socket("registered");
    let mut daemon = match Daemon::new(&path, Policy { users: vec![0] }) {
        Ok(daemon) => daemon,
        Err(error @ (Error::Unsupported { .. } | Error::NestedNamespace)) => {
            println!("skipped: {error}");
            return None;
        }
        Err(error) => panic!("the programs load: {error}"),
    };
    // Its links and maps end with the process, whichever way that ends.
    std::thread::spawn(move || daemon.run().unwrap());
    let tracker = Tracker::register(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Some(tracker)
}

pub(crate) fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uselect-{name}-{}", std::process::id()))
}
