//! Finding the program of a request below a folder.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use millrace_sys::{BeneathRules, BeneathUse, Errno, InodeKind};

use crate::limits::{OPEN_TRIES_MAX, SEGMENTS_MAX};

/// A program that was found.
#[derive(Debug)]
pub(crate) struct FoundProgram<'a> {
    /// The file, by a descriptor that cannot read it (O_PATH).
    pub(crate) file: OwnedFd,
    /// The folder that has the file; `None`: the configured folder.
    pub(crate) folder: Option<OwnedFd>,
    /// The path of the file below the configured folder, which begins with a slash.
    pub(crate) path: &'a [u8],
    /// The rest of the path of the request: empty, or it begins with a slash.
    pub(crate) path_info: &'a [u8],
}

/// Finds the program of a path, which begins with a slash: the first part of it that is a regular
/// file. No symbolic link is followed, so nothing outside the folder is found. A name that begins
/// with a dot counts as missing.
///
/// # Errors
/// ENOENT if there is no program; EACCES if the user of the programs may not search a folder.
pub(crate) fn find<'a>(root: BorrowedFd<'_>, path: &'a [u8]) -> Result<FoundProgram<'a>, Errno> {
    let mut folder = None;
    let mut end = 0;
    for _ in 0..SEGMENTS_MAX {
        let rest = path[end..].strip_prefix(b"/").ok_or(Errno::NOENT)?;
        let segment = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
        if segment.is_empty() || segment.starts_with(b".") || segment.contains(&0) {
            return Err(Errno::NOENT);
        }
        end += 1 + segment.len();
        let file = open(root, &path[1..end])?;
        match millrace_sys::inode_status(file.as_fd())?.kind {
            InodeKind::Folder => folder = Some(file),
            InodeKind::Regular => {
                let (path, path_info) = path.split_at(end);
                return Ok(FoundProgram { file, folder, path, path_info });
            }
            InodeKind::Link | InodeKind::Pipe | InodeKind::Socket | InodeKind::Other => {
                return Err(Errno::NOENT);
            }
        }
    }
    Err(Errno::NOENT)
}

/// Opens a path below the folder without following a link. The whole path is resolved at once, so a
/// folder that is moved meanwhile does not matter.
fn open(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let rules = BeneathRules { follows_links: false, may_wait: true };
    for _ in 0..OPEN_TRIES_MAX {
        match millrace_sys::open_beneath(root, path, BeneathUse::Find, rules) {
            Err(Errno::AGAIN) => {}
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => {
                return Err(Errno::NOENT);
            }
            opened => return opened,
        }
    }
    Err(Errno::BUSY)
}

/// Returns whether a file is a script: its interpreter opens it again by the name under which it
/// was executed, which is that of a descriptor. A file that this user may not read is no script.
pub(crate) fn is_script(file: &OwnedFd) -> bool {
    let mut magic = [0; 4];
    let read = File::open(descriptor_path(file)).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) => magic != *b"\x7fELF",
        // Shorter than any binary.
        Err(error) => error.kind() == std::io::ErrorKind::UnexpectedEof,
    }
}

/// Returns a path that leads to the open file itself, whatever its name is by now.
pub(crate) fn descriptor_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_program_is_the_first_file_of_a_path() {
        let name = format!("millrace-cgi-find-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("in/sub")).unwrap();
        fs::write(path.join("in/a"), "#!/bin/sh\n").unwrap();
        fs::write(path.join("in/sub/b"), b"\x7fELF binary").unwrap();
        fs::write(path.join("in/.hidden"), "").unwrap();
        fs::write(path.join("secret"), "").unwrap();
        symlink("../secret", path.join("in/link")).unwrap();
        symlink("a", path.join("in/inside")).unwrap();
        symlink("..", path.join("in/up")).unwrap();
        let root = millrace_sys::open_folder(&path.join("in")).unwrap();
        let parts = |path: &str| {
            find(root.as_fd(), path.as_bytes()).map(|found| {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                (text(found.path), text(found.path_info), is_script(&found.file))
            })
        };
        let found = |path: &str, info: &str, script| Ok((path.to_owned(), info.to_owned(), script));
        assert_eq!(parts("/a"), found("/a", "", true));
        assert_eq!(parts("/a/x/../y"), found("/a", "/x/../y", true));
        assert_eq!(parts("/sub/b/"), found("/sub/b", "/", false));
        for missing in [
            "",
            "/",
            "a",
            "/no",
            "/sub",
            "/sub/",
            "/sub/no",
            "//a",
            "/../secret",
            "/./a",
            "/link",
            "/inside",
            "/up/secret",
            "/.hidden",
            "/a\0",
            "/sub/../a",
        ] {
            assert_eq!(parts(missing), Err(Errno::NOENT), "{missing}");
        }
        fs::remove_dir_all(path).unwrap();
    }
}
