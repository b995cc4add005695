//! A daemon and a registered process for tests: this one.

use std::path::PathBuf;
use std::sync::OnceLock;

use millrace_bpf::{Daemon, Error, Policy};
use uselect::Tracker;

/// This process, registered; `None` where that is not supported, which is said. With the
/// capabilities of root, on a kernel that has what is needed, not to be supported is a failure.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    static TRACKER: OnceLock<Option<Tracker>> = OnceLock::new();
    TRACKER.get_or_init(register).as_ref()
}

fn register() -> Option<Tracker> {
    if !may_load() {
        println!("skipped: programs are loaded with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
        return None;
    }
    if !std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ") {
        println!("skipped: no cgroup v2 is mounted");
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

/// Root in a container may be without them.
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    [12, 38, 39].iter().all(|capability| effective >> capability & 1 == 1)
}

pub(crate) fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("uselect-{name}-{}", std::process::id()))
}
