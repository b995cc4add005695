//! The capabilities of the daemon.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};

use crate::error::Error;

/// The capabilities that the daemon needs: for programs and maps, for tracing, and for attaching
/// programs to cgroups.
const REQUIRED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
];

/// Checks that this process has the privileges for a [`crate::Daemon`]. Without this check the
/// first system call that fails would report an error that names no capability.
///
/// # Errors
/// [`Error::Privileges`]; [`Error::NestedUserNamespace`].
pub fn check_privileges() -> Result<(), Error> {
    let held = capabilities(None)?.effective;
    let lacks = |(capability, _): &(CapabilitySet, _)| !held.contains(*capability);
    let missing: Vec<&str> = REQUIRED.into_iter().filter(lacks).map(|(_, name)| name).collect();
    if !missing.is_empty() {
        return Err(Error::Privileges { missing });
    }
    // PROC_USER_INIT_INO of include/linux/proc_ns.h.
    const INITIAL: u64 = 0xEFFF_FFFD;
    match rustix::fs::stat("/proc/self/ns/user")?.st_ino {
        INITIAL => Ok(()),
        _ => Err(Error::NestedUserNamespace),
    }
}

/// Drops all capabilities that a loaded [`crate::Daemon`] does not need, and sets no_new_privs, for
/// this thread and the threads that it starts.
///
/// # Errors
/// EPERM if a seccomp filter forbids it.
pub fn drop_privileges() -> Result<(), Error> {
    let needed = REQUIRED.into_iter().fold(CapabilitySet::empty(), |all, (one, _)| all | one);
    let kept = capabilities(None)?.permitted & needed;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_no_new_privs(true)?;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
