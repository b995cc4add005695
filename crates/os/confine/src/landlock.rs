//! Landlock(7): the files that the process may open from now on, whoever it runs as. As with
//! [`drop_privileges`](crate::drop_privileges), threads that run already are not affected.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};
use rustix::io::Errno;

use millrace_sys::Result;

/// What may be done with a file, or with everything below a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// Files are read, folders listed.
    Read,
    /// Files are written and created; none is removed, cut short, or read.
    Append,
    /// Unix sockets are made, and files removed.
    Sockets,
    /// Files are made, read, written, cut short, renamed within their folder and removed; folders
    /// are listed.
    Store,
}

impl Grant {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Self::Append => AccessFs::WriteFile | AccessFs::MakeReg,
            Self::Sockets => AccessFs::MakeSock | AccessFs::RemoveFile,
            Self::Store => {
                Self::Read.rights()
                    | Self::Append.rights()
                    | AccessFs::RemoveFile
                    | AccessFs::Truncate
            }
        }
    }
}

/// The newest Landlock whose rights are all ruled here; an older kernel enforces what it knows.
const NEWEST: ABI = ABI::V7;

/// The Landlock that this kernel has, by the number of its interface.
///
/// # Errors
/// ENOSYS: the kernel is older than Linux 5.13, or built without it. EOPNOTSUPP: it is not among
/// the security modules that were enabled at boot.
pub fn landlock_version() -> Result<u32> {
    const VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag there is no attribute, and the call only gives a number.
    let number = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    u32::try_from(number).map_err(|_| millrace_sys::last_error())
}

/// Leaves the process the files that `grants` name, and takes away every other. What is open stays
/// so, and connecting to a Unix socket needs no right to its file. Since Linux 6.12 signals no
/// longer reach processes outside, and neither do abstract Unix sockets if `abstract_sockets` is
/// false. Files that are not there are passed over.
///
/// A folder in /proc keeps its grant only as long as the kernel has its inode, so those are kept
/// open until the process ends.
///
/// # Errors
/// As [`landlock_version`]; E2BIG below sixteen layers of restrictions.
pub fn restrict_files(grants: &[(impl AsRef<Path>, Grant)], abstract_sockets: bool) -> Result<()> {
    landlock_version()?;
    let mut scopes = Scope::from_all(NEWEST);
    if abstract_sockets {
        scopes &= !BitFlags::from(Scope::AbstractUnixSocket);
    }
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|rules| rules.scope(scopes))
        .and_then(Ruleset::create);
    let mut rules = ruleset.map_err(errno)?;
    for (path, grant) in grants {
        let path = path.as_ref();
        if path.starts_with("/proc")
            && let Ok(kept) = PathFd::new(path)
        {
            std::mem::forget(kept);
        }
        let rule = path_beneath_rules([path], grant.rights());
        rules = rules.add_rules(rule).map_err(errno)?;
    }
    rules.restrict_self().map_err(errno)?;
    Ok(())
}

/// The kernel's number behind an error of the crate.
fn errno(error: landlock::RulesetError) -> Errno {
    let number = landlock::Errno::from(error);
    Errno::from_raw_os_error(*number)
}
