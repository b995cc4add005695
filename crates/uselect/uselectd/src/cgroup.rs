//! The cgroup of a process, as a directory that programs can be attached to.

use std::ffi::OsString;
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::Error;

/// A cgroup of version 2, and the number that tells it from others.
pub(crate) struct Cgroup {
    pub(crate) fd: OwnedFd,
    pub(crate) id: u64,
}

impl Cgroup {
    /// That of a path as [`path_of`] gives it. Sockets have the cgroup that their process was in
    /// when they were made, or that of their listener; so it should have been there before it
    /// opened the first one.
    ///
    /// # Errors
    /// [`Error::NoCgroup`]; those of /proc.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let mounts = read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find_map(cgroup_mount).ok_or(Error::NoCgroup)?;
        let path = mount.join(path.strip_prefix("/").unwrap_or(path));
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty())?;
        let number = rustix::fs::fstat(&fd)?.st_ino;
        Ok(Self { fd, id: number })
    }
}

/// Where a process is in the tree of cgroups, from its root on.
///
/// # Errors
/// [`Error::NoCgroup`]; those of /proc.
pub(crate) fn cgroup_path(process: u32) -> Result<PathBuf, Error> {
    let groups = read_to_string(format!("/proc/{process}/cgroup"))?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(path.ok_or(Error::NoCgroup)?.into())
}

/// Where a line of mountinfo (proc_pid_mountinfo(5)) mounts the whole tree of cgroups.
fn cgroup_mount(line: &str) -> Option<PathBuf> {
    let (before, behind) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (root, path) = (fields.next()?, fields.next()?);
    let is_whole = behind.starts_with("cgroup2 ") && root == "/";
    is_whole.then(|| Path::new(&unescape_octal(path)).to_owned())
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape_octal(path: &str) -> OsString {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let number =
            digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(number.unwrap_or(first));
        rest = if number.is_some() { &behind[3..] } else { behind };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_tree_is_found_among_mounts() {
        let line = "31 24 0:27 / /sys/fs/a\\040b rw,relatime shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(cgroup_mount(line), Some(PathBuf::from("/sys/fs/a b")));
        let part = "31 24 0:27 /part /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(cgroup_mount(part), None);
        let old = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(cgroup_mount(old), None);
        assert_eq!(unescape_octal("\\x\\04"), "\\x\\04");
    }
}
