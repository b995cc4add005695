//! The identity of a file, and of its contents.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use millrace_sys::{InodeKind, InodeStatus, InodeTime, Result};

/// The identity of a file: fstat(2), `st_dev` and `st_ino`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileKey {
    /// The number of the file system.
    pub device: u64,
    /// The number of the file there.
    pub inode: u64,
}

/// The identity of a file's contents: every write(2), truncation, and change of owner, mode, name
/// or access list gives the file another `st_ctime`, if it comes late enough
/// ([`FileVersion::is_settled`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileVersion {
    /// The file.
    pub key: FileKey,
    /// Its length in bytes.
    pub bytes: u64,
    /// When its bytes changed last. Any writer can set it.
    pub modified: InodeTime,
    /// When its bytes or its attributes changed last.
    pub changed: InodeTime,
}

/// Longer than a tick of any kernel's clock: 10 ms at 100 Hz. Times are as coarse as that before
/// Linux 6.13 and on some file systems.
const TICK_MAX: Duration = Duration::from_millis(20);
/// Longer than a tick where times are whole seconds: on ext4 with inodes of 128 bytes.
const LONG_TICK_MAX: Duration = Duration::from_secs(2);

impl FileVersion {
    /// Returns the present version of a regular file; `None` for another kind of file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn of(file: BorrowedFd<'_>) -> Result<Option<Self>> {
        Ok(Self::from_status(&millrace_sys::inode_status(file)?))
    }

    /// Returns the version that a status shows; `None` for another kind of file.
    pub fn from_status(status: &InodeStatus) -> Option<Self> {
        let InodeStatus { kind, device, inode, bytes, modified, changed } = *status;
        let version = Self { key: FileKey { device, inode }, bytes, modified, changed };
        (kind == InodeKind::Regular).then_some(version)
    }

    /// Returns whether a later change certainly has another version. `now` is a time since 1970 at
    /// which the file had this one.
    pub fn is_settled(&self, now: Duration) -> bool {
        let InodeTime { seconds, nanoseconds } = self.changed;
        let changed = Duration::new(seconds.try_into().unwrap_or(0), nanoseconds);
        changed + if nanoseconds == 0 { LONG_TICK_MAX } else { TICK_MAX } < now
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    use super::*;

    #[test]
    fn every_change_has_another_version() {
        let path = std::env::temp_dir().join(format!("iolite-version-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        let version = || FileVersion::of(file.as_fd()).unwrap().unwrap();
        let mut before = version();
        assert_eq!(before.bytes, 0);
        let mut changed = |change: &dyn Fn()| {
            // Longer than a tick, for file systems with coarse times.
            std::thread::sleep(TICK_MAX);
            change();
            let after = version();
            assert_ne!(after, before);
            assert_eq!(after.key, before.key);
            before = after;
        };
        changed(&|| file.write_all_at(b"a", 0).unwrap());
        changed(&|| file.write_all_at(b"b", 0).unwrap());
        changed(&|| file.set_len(1).unwrap());
        changed(&|| file.set_permissions(PermissionsExt::from_mode(0o600)).unwrap());
        changed(&|| std::fs::remove_file(&path).unwrap());
        assert_eq!(version(), version());
    }

    #[test]
    fn other_kinds_have_no_version() {
        for path in ["/", "/dev/null"] {
            assert_eq!(FileVersion::of(File::open(path).unwrap().as_fd()), Ok(None));
        }
    }

    #[test]
    fn a_version_is_settled_after_a_tick() {
        let key = FileKey { device: 1, inode: 2 };
        let is_settled = |nanoseconds, now_ms| {
            let changed = InodeTime { seconds: 10, nanoseconds };
            let version = FileVersion { key, bytes: 0, modified: changed, changed };
            version.is_settled(Duration::from_millis(now_ms))
        };
        assert!(!is_settled(5, 10_020) && is_settled(5, 10_021));
        assert!(!is_settled(0, 12_000) && is_settled(0, 12_001), "whole seconds");
    }
}
