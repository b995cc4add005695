//! Files below an open folder: opened without leaving it, described, listed and read without
//! waiting.

use std::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{IoSliceMut, ReadWriteFlags};

use crate::Result;

/// The use of a descriptor of [`open_beneath`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BeneathUse {
    /// It refers to the file and cannot read it. Nothing is opened, so a device or a pipe does not
    /// notice.
    Find,
    /// Like [`BeneathUse::Find`], but refers to a symbolic link itself if the path ends in one.
    FindLink,
    /// Reads a file. Neither the open nor a read of a pipe waits for a writer.
    Read,
    /// Lists a folder.
    List,
}

/// How [`open_beneath`] resolves a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeneathRules {
    /// Whether symbolic links are followed that stay below the folder.
    pub follows_links: bool,
    /// Whether the call may wait for a disk.
    pub may_wait: bool,
}

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InodeKind {
    /// A regular file.
    Regular,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, with a name or without one.
    Pipe,
    /// A socket, with a name or without one.
    Socket,
    /// A device, or unknown to the folder that lists it.
    Other,
}

/// A time of the file system, as it stores it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InodeTime {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// The nanoseconds after them, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The status of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeStatus {
    /// Its type.
    pub kind: InodeKind,
    /// The number of the file system that has it.
    pub device: u64,
    /// Its number in the file system.
    pub inode: u64,
    /// The size of a regular file, in bytes.
    pub bytes: u64,
    /// The time at which its bytes changed last. Any writer can set it.
    pub modified: InodeTime,
    /// The time at which its bytes or its attributes changed last.
    pub changed: InodeTime,
}

/// Opens a folder to find files below it, and follows symbolic links; closed on exec.
///
/// # Errors
/// Those of open(2).
pub fn open_folder(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, path, how, Mode::empty()))
}

/// Returns a descriptor that only refers to the file of a path (O_PATH), whatever name the file
/// gets later; closed on exec. A Unix socket is reached by the path of the descriptor below
/// /proc/self/fd.
///
/// # Errors
/// Those of open(2).
pub fn open_reference(path: &Path) -> Result<OwnedFd> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::io::retry_on_intr(|| rustix::fs::openat(CWD, path, how, Mode::empty()))
}

/// Opens a path below a folder (openat2(2), since Linux 5.6); closed on exec. `.` is the folder
/// itself. No part of the path, and no symbolic link, leads out of the folder or to a magic link of
/// /proc.
///
/// # Errors
/// EXDEV if the path or a link would leave the folder, also by an absolute target that lies below
/// it; ELOOP for too many links, and for any link if links are not followed. EAGAIN if the call
/// would have to wait and may not (RESOLVE_CACHED, since Linux 5.12), if a folder was renamed
/// meanwhile, or if another process holds a lease on the file. EINVAL for a NUL. Those of
/// openat2(2).
pub fn open_beneath(
    folder: BorrowedFd<'_>,
    path: &[u8],
    purpose: BeneathUse,
    rules: BeneathRules,
) -> Result<OwnedFd> {
    let how = match purpose {
        BeneathUse::Find => OFlags::PATH,
        BeneathUse::FindLink => OFlags::PATH | OFlags::NOFOLLOW,
        BeneathUse::Read => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
        BeneathUse::List => OFlags::RDONLY | OFlags::DIRECTORY,
    };
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_SYMLINKS, !rules.follows_links);
    resolve.set(ResolveFlags::CACHED, !rules.may_wait);
    rustix::io::retry_on_intr(|| {
        rustix::fs::openat2(folder, path, how | OFlags::CLOEXEC, Mode::empty(), resolve)
    })
}

/// Returns the status of an open file, folder or link.
///
/// # Errors
/// Those of fstat(2).
pub fn inode_status(file: BorrowedFd<'_>) -> Result<InodeStatus> {
    Ok(status_of(&rustix::fs::fstat(file)?))
}

/// Returns the status of a name in a folder. A symbolic link is not followed.
///
/// # Errors
/// Those of fstatat(2).
pub fn entry_status(folder: BorrowedFd<'_>, name: &[u8]) -> Result<InodeStatus> {
    Ok(status_of(&rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?))
}

fn status_of(status: &rustix::fs::Stat) -> InodeStatus {
    InodeStatus {
        kind: kind_of(FileType::from_raw_mode(status.st_mode)),
        device: status.st_dev,
        inode: status.st_ino,
        bytes: status.st_size as u64,
        modified: InodeTime { seconds: status.st_mtime, nanoseconds: status.st_mtime_nsec as u32 },
        changed: InodeTime { seconds: status.st_ctime, nanoseconds: status.st_ctime_nsec as u32 },
    }
}

fn kind_of(kind: FileType) -> InodeKind {
    match kind {
        FileType::RegularFile => InodeKind::Regular,
        FileType::Directory => InodeKind::Folder,
        FileType::Symlink => InodeKind::Link,
        FileType::Fifo => InodeKind::Pipe,
        FileType::Socket => InodeKind::Socket,
        _ => InodeKind::Other,
    }
}

/// Returns the target of a symbolic link that was opened by [`BeneathUse::FindLink`].
///
/// # Errors
/// ENOENT if it is no link; those of readlinkat(2).
pub fn read_link(link: BorrowedFd<'_>) -> Result<Vec<u8>> {
    Ok(rustix::fs::readlinkat(link, c"", Vec::new())?.into_bytes())
}

/// Calls `visit` for the names in a folder without `.` and `..`, in the order of the file system,
/// until it breaks. The kind is a hint: [`InodeKind::Other`] is also the kind of a name whose kind
/// the file system does not list.
///
/// # Errors
/// Those of getdents(2).
pub fn visit_entries(
    folder: BorrowedFd<'_>,
    visit: &mut dyn FnMut(&[u8], InodeKind) -> ControlFlow<()>,
) -> Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if visit(name, kind_of(entry.file_type())).is_break() {
            break;
        }
    }
    Ok(())
}

/// Reads from an offset of a file as far as its bytes are in memory (RWF_NOWAIT, since Linux 4.14).
/// Returns the number of bytes, 0 at the end of the file.
///
/// # Errors
/// EAGAIN if the first byte is not in memory; EOPNOTSUPP if the file system cannot tell. Those of
/// preadv2(2).
pub fn read_cached_at(file: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> Result<usize> {
    read_by(file, bytes, at, ReadWriteFlags::NOWAIT)
}

/// Reads from an offset of a file, and does not leave bytes in the page cache that were not there
/// (RWF_DONTCACHE, since Linux 6.14). Returns the number of bytes, 0 at the end of the file.
///
/// # Errors
/// EOPNOTSUPP before Linux 6.14 and on file systems without it. Those of preadv2(2).
pub fn read_uncached_at(file: BorrowedFd<'_>, bytes: &mut [u8], at: u64) -> Result<usize> {
    read_by(file, bytes, at, ReadWriteFlags::from_bits_retain(RWF_DONTCACHE))
}

/// Neither libc nor rustix defines it.
const RWF_DONTCACHE: u32 = 0x80;

fn read_by(
    file: BorrowedFd<'_>,
    bytes: &mut [u8],
    at: u64,
    flags: ReadWriteFlags,
) -> Result<usize> {
    let mut slices = [IoSliceMut::new(bytes)];
    rustix::io::retry_on_intr(|| rustix::io::preadv2(file, &mut slices, at, flags))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::mknodat;
    use rustix::io::Errno;

    use super::*;

    const FOLLOW: BeneathRules = BeneathRules { follows_links: true, may_wait: true };

    fn folder(name: &str) -> (PathBuf, OwnedFd) {
        let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::create_dir(path.join("in")).unwrap();
        std::fs::write(path.join("in/a"), b"0123456789").unwrap();
        let folder = open_folder(&path).unwrap();
        (path, folder)
    }

    #[test]
    fn no_path_leaves_the_folder() {
        let (path, root) = folder("beneath");
        let inside = open_folder(&path.join("in")).unwrap();
        std::fs::write(path.join("secret"), b"x").unwrap();
        for (link, target) in [
            ("up", PathBuf::from("../secret")),
            ("absolute", path.join("secret")),
            ("absolute-inside", path.join("in/a")),
            ("inside", PathBuf::from("./../in/a")),
            ("here", PathBuf::from("a")),
            ("loop", PathBuf::from("loop")),
            ("magic", PathBuf::from("/proc/self/exe")),
        ] {
            symlink(target, path.join("in").join(link)).unwrap();
        }
        let open = |path: &str, rules| {
            open_beneath(inside.as_fd(), path.as_bytes(), BeneathUse::Read, rules).map(drop)
        };
        for escape in [
            "../secret",
            "/etc/passwd",
            "up",
            "absolute",
            "absolute-inside",
            "inside",
            "magic",
            "..",
        ] {
            assert_eq!(open(escape, FOLLOW), Err(Errno::XDEV), "{escape}");
        }
        assert_eq!(open("here", FOLLOW), Ok(()));
        assert_eq!(open("here", BeneathRules { follows_links: false, ..FOLLOW }), Err(Errno::LOOP));
        assert_eq!(open("loop", FOLLOW), Err(Errno::LOOP));
        assert_eq!(open("a\0b", FOLLOW), Err(Errno::INVAL));
        let link = open_beneath(root.as_fd(), b"in/here", BeneathUse::FindLink, FOLLOW).unwrap();
        assert_eq!(inode_status(link.as_fd()).unwrap().kind, InodeKind::Link);
        assert_eq!(read_link(link.as_fd()).unwrap(), b"a");
        assert_eq!(read_link(inside.as_fd()), Err(Errno::NOENT));
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_socket_without_a_name_is_reached_by_its_reference() {
        use std::os::fd::AsRawFd;
        use std::os::unix::net::{UnixListener, UnixStream};
        let (path, _) = folder("beneath-socket");
        let listener = UnixListener::bind(path.join("s")).unwrap();
        let reference = open_reference(&path.join("s")).unwrap();
        std::fs::remove_dir_all(path).unwrap();
        let _client = UnixStream::connect(format!("/proc/self/fd/{}", reference.as_raw_fd()));
        let (accepted, _) = listener.accept().unwrap();
        let peer = crate::peer_credentials(accepted.as_fd()).unwrap();
        assert_eq!(peer.process_id, std::process::id());
    }

    #[test]
    fn a_found_pipe_is_not_opened() {
        let (path, root) = folder("beneath-pipe");
        mknodat(CWD, path.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let found = open_beneath(root.as_fd(), b"pipe", BeneathUse::Find, FOLLOW).unwrap();
        assert_eq!(inode_status(found.as_fd()).unwrap().kind, InodeKind::Pipe);
        // A writer that does not wait finds no reader.
        let write = OFlags::WRONLY | OFlags::NONBLOCK;
        let write = || rustix::fs::openat(&root, "pipe", write, Mode::empty()).map(drop);
        assert_eq!(write(), Err(Errno::NXIO));
        let _reader = open_beneath(root.as_fd(), b"pipe", BeneathUse::Read, FOLLOW).unwrap();
        assert_eq!(write(), Ok(()));
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn names_are_listed_with_kind_and_status() {
        let (path, root) = folder("beneath-list");
        symlink("in", path.join("link")).unwrap();
        std::fs::write(path.join("b"), b"123").unwrap();
        let list = open_beneath(root.as_fd(), b".", BeneathUse::List, FOLLOW).unwrap();
        let mut found = Vec::new();
        visit_entries(list.as_fd(), &mut |name, kind| {
            let status = entry_status(list.as_fd(), name).unwrap();
            assert!(kind == status.kind || kind == InodeKind::Other);
            found.push((String::from_utf8(name.to_vec()).unwrap(), status.kind));
            ControlFlow::Continue(())
        })
        .unwrap();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let expected = [InodeKind::Regular, InodeKind::Folder, InodeKind::Link];
        let expected = ["b", "in", "link"].map(str::to_owned).into_iter().zip(expected);
        assert_eq!(found, expected.collect::<Vec<_>>());
        let mut count = 0;
        visit_entries(list.as_fd(), &mut |_, _| {
            count += 1;
            ControlFlow::Break(())
        })
        .unwrap();
        assert_eq!(count, 1);
        assert_eq!(entry_status(list.as_fd(), b"b").unwrap().bytes, 3);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn cached_bytes_are_read_without_waiting() {
        let (path, root) = folder("beneath-read");
        let cached = BeneathRules { follows_links: true, may_wait: false };
        let file = open_beneath(root.as_fd(), b"in/a", BeneathUse::Read, cached).unwrap();
        let mut read = [0; 8];
        match read_cached_at(file.as_fd(), &mut read, 4) {
            Err(Errno::OPNOTSUPP) => println!("skip: the file system has no RWF_NOWAIT"),
            count => assert_eq!((count, &read[..6]), (Ok(6), &b"456789"[..])),
        }
        match read_uncached_at(file.as_fd(), &mut read, 8) {
            Err(Errno::OPNOTSUPP) => println!("skip: the file system has no RWF_DONTCACHE"),
            count => assert_eq!((count, &read[..2]), (Ok(2), &b"89"[..])),
        }
        assert!(matches!(
            read_cached_at(file.as_fd(), &mut read, 10),
            Ok(0) | Err(Errno::OPNOTSUPP)
        ));
        let status = inode_status(file.as_fd()).unwrap();
        assert_eq!((status.kind, status.bytes), (InodeKind::Regular, 10));
        assert!(status.modified.seconds > 1_700_000_000 && status.changed >= status.modified);
        std::fs::remove_dir_all(path).unwrap();
    }
}
