//! A daemon for tests: a thread of theirs.

use std::path::Path;

use uselectd::{AccessPolicy, Daemon, Error};

/// Starts one that listens at `path`; false where that is not supported, which is said.
pub(crate) fn serve(path: &Path) -> bool {
    let Some(mut daemon) = load(path) else { return false };
    // Its links and maps end with the process, whichever way that ends.
    std::thread::spawn(move || daemon.run(None).unwrap());
    true
}

/// One that does not serve yet. With the capabilities of root, on a kernel that has what is needed,
/// not to be supported is a failure.
pub(crate) fn load(path: &Path) -> Option<Daemon> {
    if !may_load() {
        println!("skipped: programs are loaded with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
        return None;
    }
    if !std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" - cgroup2 ") {
        println!("skipped: no cgroup v2 is mounted");
        return None;
    }
    match Daemon::new(path, AccessPolicy::default()) {
        Ok(daemon) => Some(daemon),
        Err(error @ (Error::Unsupported { .. } | Error::NestedPidNamespace)) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("the programs load: {error}"),
    }
}

/// Root in a container may be without them.
fn may_load() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    [12, 38, 39].iter().all(|capability| effective >> capability & 1 == 1)
}
