//! The cgroup of a process, as a directory to which programs can be attached.

use std::ffi::OsString;
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::Error;

/// A cgroup of version 2.
pub(crate) struct Cgroup {
    pub(crate) fd: OwnedFd,
    /// The inode number of its directory, which identifies it.
    pub(crate) id: u64,
}

impl Cgroup {
    /// Opens the cgroup at a path that [`cgroup_path`] returned. A socket stays in the cgroup in
    /// which its process was when it opened the socket, and an accepted socket in that of its
    /// listener. A process should therefore be in its cgroup before it opens its first socket.
    ///
    /// # Errors
    /// [`Error::NoCgroup`]; errors of files in /proc.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mounts = read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find_map(cgroup_mount).ok_or(Error::NoCgroup)?;
        let path = mount.join(path.strip_prefix("/").unwrap_or(path));
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        let id = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Self { fd, id })
    }
}

/// Returns the path of a process's cgroup from the root of the hierarchy.
///
/// # Errors
/// [`Error::NoCgroup`]; errors of files in /proc.
pub(crate) fn cgroup_path(pid: u32) -> Result<PathBuf, Error> {
    let groups = read_to_string(format!("/proc/{pid}/cgroup"))?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path.ok_or(Error::NoCgroup)?.into())
}

/// Returns the mount point if a line of mountinfo (proc_pid_mountinfo(5)) mounts the whole
/// hierarchy of cgroup v2.
fn cgroup_mount(line: &str) -> Option<PathBuf> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, path) = (fields.next()?, fields.next()?);
    let is_whole = after.starts_with("cgroup2 ") && root == "/";
    is_whole.then(|| Path::new(&unescape_octal(path)).to_owned())
}

/// Decodes the escapes of mountinfo: blanks and the like are a backslash and three octal digits.
fn unescape_octal(path: &str) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let byte =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mount_of_the_whole_hierarchy_is_found() {
        let whole = "31 24 0:27 / /sys/fs/a\\040b rw,relatime shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(cgroup_mount(whole), Some(PathBuf::from("/sys/fs/a b")));
        let subtree = "31 24 0:27 /part /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(cgroup_mount(subtree), None);
        let version_1 = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(cgroup_mount(version_1), None);
        assert_eq!(unescape_octal("\\x\\04"), "\\x\\04");
    }
}
