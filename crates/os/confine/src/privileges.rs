//! Giving up what the process was started with: its user, its capabilities, and the ways back to
//! either. Linux keeps all of this for each thread, and what is given up here is given up by the
//! calling thread and those that it starts later: to be called before there are others.

use std::net::ToSocketAddrs;
use std::path::Path;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustix::{process, thread};

use millrace_sys::Result;

/// A user and a group by their numbers; no supplementary groups go with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Number of the user (credentials(7)).
    pub user: u32,
    /// Number of the group.
    pub group: u32,
}

impl Identity {
    /// Whose rights this process has.
    pub fn current() -> Self {
        Self { user: process::geteuid().as_raw(), group: process::getegid().as_raw() }
    }

    /// Calls `look` with the rights of this identity, and takes the old ones back.
    ///
    /// # Errors
    /// EPERM without CAP_SETUID and CAP_SETGID; EINVAL for a number that the user namespace does
    /// not have. `look` is not called then.
    ///
    /// # Panics
    /// When the kernel refuses to give back what was lent, which it never does.
    pub fn run_as<T>(self, look: impl FnOnce() -> T) -> Result<T> {
        let groups = process::getgroups()?;
        let own = Self::current();
        let given = self.assume(own);
        let seen = given.map(|()| look());
        // The saved user is the old one, which is what lets it return.
        let all = thread::Uid::from_raw(own.user);
        thread::set_thread_res_uid(all, all, all).expect("the saved user may return");
        let all = thread::Gid::from_raw(own.group);
        thread::set_thread_res_gid(all, all, all).expect("the saved group may return");
        // Where setgroups(2) is denied the groups were not changed either.
        let _ = thread::set_thread_groups(&groups);
        seen
    }

    /// Takes the identity, with `saved` as the saved one.
    fn assume(self, saved: Self) -> Result<()> {
        let (user, group) = (thread::Uid::from_raw(self.user), thread::Gid::from_raw(self.group));
        thread::set_thread_groups(&[])?;
        thread::set_thread_res_gid(group, group, thread::Gid::from_raw(saved.group))?;
        thread::set_thread_res_uid(user, user, thread::Uid::from_raw(saved.user))
    }

    /// Takes the identity for good. Capabilities stay permitted, for [`drop_privileges`] to
    /// choose from.
    fn assume_permanently(self) -> Result<()> {
        thread::set_keep_capabilities(true)?;
        self.assume(self)?;
        thread::set_keep_capabilities(false)
    }
}

/// Gives up every capability (capabilities(7)), except CAP_NET_BIND_SERVICE if `low_ports` asks for
/// it and the process has it, and becomes `identity`, if one is given. The bounding set goes as
/// well where the process may lower it, and so do the ambient and the inheritable one.
///
/// # Errors
/// As [`Identity::run_as`]; the process is not to go on then, as some of it may be done.
///
/// # Panics
/// When the kernel says that it is done and it is not.
pub fn drop_privileges(identity: Option<Identity>, low_ports: bool) -> Result<()> {
    let wanted = if low_ports { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
    lower_bounding_set(wanted)?;
    if let Some(identity) = identity {
        identity.assume_permanently()?;
        assert_eq!(Identity::current(), identity, "the user is the one that was asked for");
    }
    match thread::clear_ambient_capability_set() {
        // EINVAL: before Linux 4.3, which has no such set.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(error),
    }
    let had = thread::capabilities(None)?;
    let (kept, none) = (had.permitted & wanted, CapabilitySet::empty());
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    // A service manager may have done it, and taken capset(2) away.
    if had != sets {
        thread::set_capabilities(None, sets)?;
    }
    assert_eq!(thread::capabilities(None)?, sets, "capabilities are those that were asked for");
    Ok(())
}

/// Takes from the bounding set what is not in `kept`.
fn lower_bounding_set(kept: CapabilitySet) -> Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(capability) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // EPERM: not without CAP_SETPCAP. What the set allows is gained by execve(2) alone,
            // and no longer once no_new_privs is set. EINVAL: the kernel has no more of them.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// CAP_NET_BIND_SERVICE among [`capabilities`].
pub const NET_BIND_SERVICE: u64 = CapabilitySet::NET_BIND_SERVICE.bits();

/// The capabilities that the process could use, by bits (capabilities(7)).
///
/// # Errors
/// None is known.
pub fn capabilities() -> Result<u64> {
    Ok(thread::capabilities(None)?.permitted.bits())
}

/// Whether the process has CAP_IPC_LOCK, with which RLIMIT_MEMLOCK does not bound it.
pub fn has_cap_ipc_lock() -> bool {
    let set = thread::capabilities(None).map(|sets| sets.effective);
    set.is_ok_and(|set| set.contains(CapabilitySet::IPC_LOCK))
}

/// From now on no program that is executed gains rights by its file (PR_SET_NO_NEW_PRIVS), which
/// is also what lets an ordinary user restrict itself further.
///
/// # Errors
/// EINVAL before Linux 3.5.
pub fn set_no_new_privs() -> Result<()> {
    thread::set_no_new_privs(true)
}

/// Whether the memory of the process may be dumped into a file, and looked at by other processes of
/// its user (PR_SET_DUMPABLE, RLIMIT_CORE). It holds clients' bytes. The kernel forbids it by
/// itself when the user changes; allowing it is for debugging tools.
///
/// # Errors
/// None is known.
pub fn set_dumpable(allowed: bool) -> Result<()> {
    if allowed {
        return process::set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
    let limit = Rlimit { current: Some(0), maximum: Some(0) };
    process::setrlimit(Resource::Core, limit)?;
    process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}

/// Has the C library load what it looks names up with, which it does when it is first asked and
/// could not do once files or system calls are restricted. A module that is missed all the same is
/// as if it were not installed: the next one of nsswitch.conf(5) is asked.
pub fn prepare_name_lookup() {
    // Part of the C library itself since glibc 2.34, and loaded for names that no file has.
    // SAFETY: the name is a string of C; what the library does when it is loaded is what it would
    // do at the first look-up.
    unsafe { libc::dlopen(c"libnss_dns.so.2".as_ptr(), libc::RTLD_NOW) };
    let _ = ("localhost", 0).to_socket_addrs();
}

/// Makes a folder that nobody but `owner` has access to. `false`: something of that name is there
/// already, and stays as it is.
///
/// # Errors
/// Those of mkdir(2), but for EEXIST; EPERM without CAP_CHOWN, if `owner` is not this process's user.
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

/// What may be wanted of a file or folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// To read a file.
    Read,
    /// To write a file, or to connect to a socket.
    Write,
    /// To create and remove files in a folder.
    Create,
}

/// Whether the process's real user may do something by the permissions of a file and of the folders
/// above it (access(2)). Another answer may be right a moment later: it is good for telling, not
/// for deciding.
///
/// # Errors
/// EACCES: no. ENOENT, ENOTDIR and the others of access(2).
pub fn access(path: &Path, permission: Permission) -> Result<()> {
    let how = match permission {
        Permission::Read => Access::READ_OK,
        Permission::Write => Access::WRITE_OK,
        Permission::Create => Access::WRITE_OK | Access::EXEC_OK,
    };
    rustix::fs::access(path, how)
}
