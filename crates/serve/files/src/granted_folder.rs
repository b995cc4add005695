//! Folders that a path may enter, and the search for the one to which a leaving link leads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use millrace_sys::{BeneathRules, BeneathUse, Errno, InodeKind};

use super::limits::SEGMENTS_MAX;

/// A folder that paths may enter: the root, or a folder to which links of the root may lead. It is
/// used by its descriptor, so renaming it changes nothing.
#[derive(Debug)]
pub struct GrantedFolder {
    descriptor: OwnedFd,
    /// The path without symbolic links: segments separated by `/`.
    path: Vec<u8>,
    /// The path by which the operator named it, in the same form. Links may use it too.
    alias: Vec<u8>,
}

impl GrantedFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// Those of open(2), also ENOTDIR.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let descriptor = millrace_sys::open_folder(path)?;
        let alias = std::path::absolute(path).map_err(errno)?;
        let path = std::fs::canonicalize(path).map_err(errno)?;
        let trim = |path: &Path| split(path.as_os_str().as_bytes()).collect::<Vec<_>>().join(&b'/');
        Ok(Self { descriptor, path: trim(&path), alias: trim(&alias) })
    }

    /// Returns the descriptor.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Returns whether an absolute path, in the form of `path`, is that of the folder.
    fn is_at(&self, path: &[u8]) -> bool {
        self.path == path || self.alias == path
    }
}

/// A path below a folder: the folder, and segments separated by `/`. The segments may be `..`, but
/// the kernel does not let them leave the folder.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub(super) folder: &'a GrantedFolder,
    pub(super) path: Vec<u8>,
}

impl<'a> Place<'a> {
    /// Creates a place; the folder itself if `path` is empty.
    pub(super) fn new(folder: &'a GrantedFolder, path: &[u8]) -> Self {
        Self { folder, path: if path.is_empty() { b".".to_vec() } else { path.to_vec() } }
    }

    pub(super) fn open(&self, purpose: BeneathUse, rules: BeneathRules) -> Result<OwnedFd, Errno> {
        millrace_sys::open_beneath(self.folder.descriptor(), &self.path, purpose, rules)
    }

    /// Returns the place to which the first link leads that leaves the folder, followed by the rest
    /// of the path. Called if opening this place failed with EXDEV. Each call replaces one link.
    /// Returns this place if a part of it was replaced meanwhile.
    ///
    /// Nothing found here is trusted: the result is only another path below a granted folder, which
    /// the kernel resolves again. So a folder that changes meanwhile causes an error, or the
    /// response for the changed folder.
    ///
    /// # Errors
    /// EACCES if the link leads to no granted folder; ENAMETOOLONG; those of openat2(2).
    pub(super) fn after_link(&self, granted: &Granted<'a>) -> Result<Place<'a>, Errno> {
        let segments: Vec<&[u8]> = split(&self.path).collect();
        for end in 1..=segments.len() {
            let at = Place { folder: self.folder, path: segments[..end].join(&b'/') };
            let (before, rest) = (&segments[..end - 1], &segments[end..]);
            match at.open(BeneathUse::Find, WAIT) {
                Ok(_) => continue,
                Err(Errno::XDEV) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error),
            }
            if segments[end - 1] == b".." {
                let above = self.folder.path.as_slice();
                return granted.find(above, &[&[&b".."[..]][..], rest].concat());
            }
            let link = match at.open(BeneathUse::FindLink, WAIT) {
                Err(Errno::XDEV | Errno::AGAIN) => break,
                link => link?,
            };
            if millrace_sys::inode_status(link.as_fd())?.kind != InodeKind::Link {
                break;
            }
            let target = millrace_sys::read_link(link.as_fd())?;
            let parts: Vec<&[u8]> = split(&target).chain(rest.iter().copied()).collect();
            if target.starts_with(b"/") {
                return granted.find(b"", &parts);
            }
            let path = [before, &parts[..]].concat();
            check_length(&path)?;
            return Ok(Place::new(self.folder, &path.join(&b'/')));
        }
        // A part was replaced meanwhile, as in a deployment. The caller tries again, and counts.
        Ok(self.clone())
    }
}

const WAIT: BeneathRules = BeneathRules { follows_links: true, may_wait: true };

/// The folders that a path may enter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted<'a> {
    pub(super) root: &'a GrantedFolder,
    pub(super) others: &'a [Arc<GrantedFolder>],
}

impl<'a> Granted<'a> {
    /// Finds the granted folder that has an absolute path: `base`, which has no links, followed by
    /// `parts`. The innermost one counts.
    ///
    /// # Errors
    /// EACCES if there is none. A `..` that would cancel a part is refused too, because the part
    /// may be a link.
    fn find(&self, base: &[u8], parts: &[&[u8]]) -> Result<Place<'a>, Errno> {
        check_length(parts)?;
        let mut path: Vec<&[u8]> = split(base).collect();
        // The first `known` segments have no links.
        let mut known = path.len();
        let mut found = self.at(&path).map(|folder| (folder, 0));
        for (at, part) in parts.iter().enumerate() {
            if *part != b".." {
                path.push(part);
            } else if path.len() == known {
                path.pop();
                known = path.len();
                found = None;
            } else {
                break;
            }
            if let Some(folder) = self.at(&path) {
                found = Some((folder, at + 1));
            }
        }
        let (folder, used) = found.ok_or(Errno::ACCESS)?;
        Ok(Place::new(folder, &parts[used..].join(&b'/')))
    }

    /// Returns the folder with a path.
    fn at(&self, path: &[&[u8]]) -> Option<&'a GrantedFolder> {
        let path = path.join(&b'/');
        let mut all = std::iter::once(self.root).chain(self.others.iter().map(|other| &**other));
        all.find(|folder| folder.is_at(&path))
    }
}

/// Splits a path into segments without empty ones and `.`.
fn split(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|segment| !matches!(*segment, b"" | b"."))
}

fn check_length(segments: &[&[u8]]) -> Result<(), Errno> {
    if segments.len() > SEGMENTS_MAX { Err(Errno::NAMETOOLONG) } else { Ok(()) }
}
