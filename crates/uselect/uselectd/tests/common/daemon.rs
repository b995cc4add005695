//! A daemon that runs as a thread of the test process.

use std::path::Path;

use uselectd::{AccessPolicy, Daemon, Error};

/// Starts a daemon that listens at `path`. Prints why and returns false if that is not supported.
pub(crate) fn start_daemon(path: &Path) -> bool {
    let Some(mut daemon) = load_daemon(path) else { return false };
    // The kernel removes its links and maps when the process ends.
    std::thread::spawn(move || daemon.run(None).unwrap());
    true
}

/// Loads a daemon that does not serve yet. With the capabilities of root and a kernel that has all
/// features, a failure to load it fails the test.
pub(crate) fn load_daemon(path: &Path) -> Option<Daemon> {
    if !has_capabilities() {
        println!("skipped: needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
        return None;
    }
    if !std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ") {
        println!("skipped: no cgroup v2 is mounted");
        return None;
    }
    match Daemon::new(path, AccessPolicy::default()) {
        Ok(daemon) => Some(daemon),
        Err(
            error @ (Error::Unsupported { .. }
            | Error::IteratorForbidden { .. }
            | Error::NestedPidNamespace),
        ) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("cannot load the programs: {error}"),
    }
}

/// Returns whether this process has the capabilities for a daemon. Root in a container may lack
/// them.
fn has_capabilities() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    [12, 38, 39].iter().all(|capability| effective >> capability & 1 == 1)
}
