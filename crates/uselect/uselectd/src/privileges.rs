//! What the daemon may do: what it needs, and what it keeps.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities};

use crate::error::Error;

/// What loading and registering take, by their names: programs and maps, tracing, and what is
/// attached to cgroups.
const REQUIRED: [(CapabilitySet, &str); 3] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
];

/// Whether this process has the privileges for a [`crate::Daemon`]. The kernel's own error would be
/// that of whichever call comes first, and name none of them.
///
/// # Errors
/// [`Error::Privileges`], [`Error::NestedUsers`].
pub fn check_privileges() -> Result<(), Error> {
    let had = capabilities(None)?.effective;
    let lacks = |(capability, _): &(CapabilitySet, _)| !had.contains(*capability);
    let missing: Vec<&str> = REQUIRED.into_iter().filter(lacks).map(|(_, name)| name).collect();
    if !missing.is_empty() {
        return Err(Error::Privileges { missing });
    }
    // PROC_USER_INIT_INO of include/linux/proc_ns.h.
    const FIRST: u64 = 0xEFFF_FFFD;
    match rustix::fs::stat("/proc/self/ns/user")?.st_ino {
        FIRST => Ok(()),
        _ => Err(Error::NestedUserNamespace),
    }
}

/// Gives up, for this thread and those that it starts, what a loaded [`crate::Daemon`] does not need
/// to register processes, and every way to more.
///
/// # Errors
/// EPERM where a filter of system calls forbids it.
pub fn drop_privileges() -> Result<(), Error> {
    let needed = REQUIRED.into_iter().fold(CapabilitySet::empty(), |all, (one, _)| all | one);
    let kept = capabilities(None)?.permitted & needed;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_no_new_privs(true)?;
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
