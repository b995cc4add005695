//! Landlock(7): restricts the files that the process can open from now on, whichever user it runs
//! as. As with [`drop_privileges`](crate::drop_privileges), threads that are running already are
//! not affected.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    path_beneath_rules,
};
use rustix::io::Errno;

use millrace_sys::Result;

/// The access that is granted to a file, or to everything below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// Reading files and listing directories.
    Read,
    /// Creating and writing files; not removing, truncating or reading them.
    Append,
    /// Creating Unix sockets and removing files.
    Sockets,
    /// Creating, reading, writing and truncating files, renaming them within their directory,
    /// removing them, and listing directories.
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

/// The newest Landlock ABI that this module uses, with all of its rights. An older kernel enforces
/// the rights that it knows.
const NEWEST: ABI = ABI::V7;

/// Returns the version of the kernel's Landlock ABI.
///
/// # Errors
/// ENOSYS: the kernel is older than Linux 5.13, or was built without Landlock. EOPNOTSUPP: Landlock
/// is not among the security modules that were enabled at boot.
pub fn landlock_version() -> Result<u32> {
    const VERSION: libc::c_uint = 1;
    let nothing = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag the call takes no attribute and only returns a number.
    let number = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0, VERSION) };
    u32::try_from(number).map_err(|_| millrace_sys::last_error())
}

/// Restricts the process to the files of `grants`. Open files stay open, and connecting to a Unix
/// socket needs no right to its file. Since Linux 6.12, the process cannot send signals to
/// processes outside the restriction, and can connect to their abstract Unix sockets only if
/// `abstract_sockets` is set. Grants of files that do not exist are skipped.
///
/// A grant of a directory in /proc ends when the kernel drops its inode, so such directories are
/// kept open until the process ends.
///
/// # Errors
/// As [`landlock_version`]; E2BIG after sixteen layers of restrictions.
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

/// Restricts the process, and the programs that it starts, to executing files of `folders` and
/// below them; they read and write what their user may. Since Linux 6.12, they cannot send signals
/// to processes outside the restriction, nor connect to abstract Unix sockets of these. Folders
/// that do not exist are skipped.
///
/// # Errors
/// As [`restrict_files`].
pub fn restrict_execution(folders: &[impl AsRef<Path>]) -> Result<()> {
    landlock_version()?;
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::Execute)
        .and_then(|rules| rules.scope(Scope::from_all(NEWEST)))
        .and_then(Ruleset::create);
    let rules = path_beneath_rules(folders, AccessFs::Execute);
    let rules = ruleset.and_then(|ruleset| ruleset.add_rules(rules)).map_err(errno)?;
    rules.restrict_self().map_err(errno)?;
    Ok(())
}

/// Returns the error number of an error of the crate `landlock`.
fn errno(error: landlock::RulesetError) -> Errno {
    let number = landlock::Errno::from(error);
    Errno::from_raw_os_error(*number)
}
