//! Dropping the user and the capabilities with which the process was started, and the ways to
//! regain them. Linux keeps all of these for each thread. A call affects the calling thread and
//! those that it starts later, so it has to be made before there are other threads.

use std::net::ToSocketAddrs;
use std::path::Path;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::{process, thread};

use millrace_sys::Result;

/// A user id and a group id, without supplementary groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The user id (credentials(7)).
    pub user: u32,
    /// The group id.
    pub group: u32,
}

impl Identity {
    /// Returns the effective ids of this process.
    pub fn current() -> Self {
        Self { user: process::geteuid().as_raw(), group: process::getegid().as_raw() }
    }

    /// Calls `action` with the rights of this identity, and then restores the old ones.
    ///
    /// # Errors
    /// EPERM without CAP_SETUID and CAP_SETGID; EINVAL for an id that the user namespace does not
    /// have. `action` is not called then.
    ///
    /// # Panics
    /// Panics if the kernel refuses to restore the old rights, which it never does.
    pub fn run_as<T>(self, action: impl FnOnce() -> T) -> Result<T> {
        let groups = process::getgroups()?;
        let own = Self::current();
        let assumed = self.assume(self, own);
        let result = assumed.map(|()| action());
        // The old user is the saved one, so returning to it is allowed.
        let all = thread::Uid::from_raw(own.user);
        thread::set_thread_res_uid(all, all, all).expect("the saved user may return");
        let all = thread::Gid::from_raw(own.group);
        thread::set_thread_res_gid(all, all, all).expect("the saved group may return");
        // If setgroups(2) is denied, the groups were not changed either.
        let _ = thread::set_thread_groups(&groups);
        result
    }

    /// Takes the identity as the effective one, with `real` and `saved` as the other ones.
    fn assume(self, real: Self, saved: Self) -> Result<()> {
        let groups = [real, self, saved].map(|ids| thread::Gid::from_raw(ids.group));
        let users = [real, self, saved].map(|ids| thread::Uid::from_raw(ids.user));
        thread::set_thread_groups(&[])?;
        thread::set_thread_res_gid(groups[0], groups[1], groups[2])?;
        thread::set_thread_res_uid(users[0], users[1], users[2])
    }

    /// Takes the identity permanently, with `real` as the real and the saved one. Capabilities stay
    /// permitted, so that [`drop_privileges`] can choose among them.
    fn assume_permanently(self, real: Self) -> Result<()> {
        thread::set_keep_capabilities(true)?;
        self.assume(real, real)?;
        thread::set_keep_capabilities(false)
    }
}

/// Takes `identity`, if there is one, and drops every capability (capabilities(7)), except
/// CAP_NET_BIND_SERVICE if `low_ports` is set and the process has it. The bounding set is reduced
/// too if the process may do that, and the ambient and inheritable sets are cleared.
///
/// # Errors
/// As [`Identity::run_as`]. Some privileges may have been dropped by then, so the process must not
/// continue.
///
/// # Panics
/// Panics if the kernel reports success without effect.
pub fn drop_privileges(identity: Option<Identity>, low_ports: bool) -> Result<()> {
    let wanted = if low_ports { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
    drop_all_but(wanted, identity.map(|identity| (identity, identity)))
}

/// Drops every capability, and takes `own` as the real and the saved identity and `programs` as the
/// effective one. Files are opened with the rights of `programs`. Programs of
/// [`start_program`](millrace_sys::start_program) have the effective identity alone, so they can
/// neither signal this process nor change its limits, and RLIMIT_NPROC does not count its threads.
///
/// # Errors
/// As [`drop_privileges`].
///
/// # Panics
/// As [`drop_privileges`].
pub fn drop_privileges_of_launcher(own: Identity, programs: Identity) -> Result<()> {
    drop_all_but(CapabilitySet::empty(), Some((own, programs)))
}

/// Takes the real and the effective identity, and drops every capability that is not wanted.
fn drop_all_but(wanted: CapabilitySet, identities: Option<(Identity, Identity)>) -> Result<()> {
    lower_bounding_set(wanted)?;
    if let Some((real, effective)) = identities {
        effective.assume_permanently(real)?;
        assert_eq!(Identity::current(), effective, "the process has the requested user");
    }
    match thread::clear_ambient_capability_set() {
        // EINVAL: before Linux 4.3, which has no ambient set.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let had = thread::capabilities(None)?;
    let (kept, none) = (had.permitted & wanted, CapabilitySet::empty());
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    // A service manager may have dropped them already, and forbidden capset(2).
    if had != sets {
        thread::set_capabilities(None, sets)?;
    }
    assert_eq!(thread::capabilities(None)?, sets, "the process has the requested capabilities");
    Ok(())
}

/// Removes every capability that is not in `kept` from the bounding set.
fn lower_bounding_set(kept: CapabilitySet) -> Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(capability) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // EPERM: the process lacks CAP_SETPCAP. Capabilities in the set can be gained only by
            // execve(2), and not at all once no_new_privs is set. EINVAL: the kernel has no more
            // capabilities.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// CAP_NET_BIND_SERVICE as a bit of [`capabilities`].
pub const NET_BIND_SERVICE: u64 = CapabilitySet::NET_BIND_SERVICE.bits();

/// Returns the permitted capabilities of the process as bits (capabilities(7)).
///
/// # Errors
/// None is known.
pub fn capabilities() -> Result<u64> {
    Ok(thread::capabilities(None)?.permitted.bits())
}

/// Returns whether the process has CAP_IPC_LOCK, which exempts it from RLIMIT_MEMLOCK.
pub fn has_cap_ipc_lock() -> bool {
    let set = thread::capabilities(None).map(|sets| sets.effective);
    set.is_ok_and(|set| set.contains(CapabilitySet::IPC_LOCK))
}

/// Sets no_new_privs (PR_SET_NO_NEW_PRIVS): programs gain no rights by being executed. It also
/// allows an unprivileged user to restrict itself further.
///
/// # Errors
/// EINVAL before Linux 3.5.
pub fn set_no_new_privs() -> Result<()> {
    thread::set_no_new_privs(true)
}

/// Sets whether the memory of the process may be dumped to a file, and read by other processes of
/// its user (PR_SET_DUMPABLE, RLIMIT_CORE). The memory contains clients' bytes. The kernel disables
/// dumping by itself when the user changes. Debugging tools need it enabled.
///
/// # Errors
/// None is known.
pub fn set_dumpable(allowed: bool) -> Result<()> {
    if allowed {
        return process::set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
    // Without a right to set the limit, the other setting suffices.
    if let Err(error) = forbid_core_dumps()
        && error != Errno::PERM
    {
        return Err(error);
    }
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Forbids core dumps permanently (RLIMIT_CORE). Debugging tools may still read the memory. The
/// limit is one byte: the kernel ignores smaller and larger ones for dumps that it pipes to a
/// program (core(5)), and never writes a file of that size.
///
/// # Errors
/// EPERM if a filter forbids setting limits, or if the limit is zero and may not be raised.
pub fn forbid_core_dumps() -> Result<()> {
    if process::getrlimit(Resource::Core).maximum == Some(CORE_BYTES) {
        return Ok(());
    }
    let limit = Rlimit { current: Some(CORE_BYTES), maximum: Some(CORE_BYTES) };
    process::setrlimit(Resource::Core, limit)
}

/// The limit of a core dump that forbids it.
const CORE_BYTES: u64 = 1;

/// Makes the C library load the modules with which it looks up names. It does so at the first
/// lookup, which is impossible once files or system calls are restricted. A module that cannot be
/// loaded later counts as not installed: the next one of nsswitch.conf(5) is used.
pub fn prepare_name_lookup() {
    // The module is part of the C library since glibc 2.34; older versions load it for names that
    // are in no file.
    // SAFETY: the name is a C string; loading the library runs the same code as the first lookup
    // would.
    unsafe { libc::dlopen(c"libnss_dns.so.2".as_ptr(), libc::RTLD_NOW) };
    let _ = ("localhost", 0).to_socket_addrs();
}

/// Creates a directory that only `owner` can access. Returns `false` and changes nothing if the
/// name exists already.
///
/// # Errors
/// Those of mkdir(2) other than EEXIST; EPERM without CAP_CHOWN, if `owner` is not this process's
/// user.
pub fn create_directory_for(owner: Identity, path: &Path) -> Result<bool> {
    if !millrace_sys::create_directory(path)? {
        return Ok(false);
    }
    if owner != Identity::current() {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, how, Mode::empty())?;
        let (user, group) = (thread::Uid::from_raw(owner.user), thread::Gid::from_raw(owner.group));
        rustix::fs::fchown(folder, Some(user), Some(group))?;
    }
    Ok(true)
}

/// An access to a file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// Reading a file.
    Read,
    /// Writing a file, or connecting to a socket.
    Write,
    /// Creating and removing files in a directory.
    Create,
}

/// Checks whether the process's real user has an access, by the permissions of the file and of the
/// directories above it (access(2)). The result may change at any moment, so it is for reports, not
/// for decisions.
///
/// # Errors
/// EACCES: the access is denied. ENOENT, ENOTDIR and the others of access(2).
pub fn access(path: &Path, permission: Permission) -> Result<()> {
    let how = match permission {
        Permission::Read => Access::READ_OK,
        Permission::Write => Access::WRITE_OK,
        Permission::Create => Access::WRITE_OK | Access::EXEC_OK,
    };
    rustix::fs::access(path, how)
}
