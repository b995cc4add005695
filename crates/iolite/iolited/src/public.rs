//! Public folders: which short files may share memory, because all users may read them.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use iolite::service::FileKey;
use millrace_sys::{BeneathRules, BeneathUse, InodeKind};

/// The folders that the operator calls public.
#[derive(Debug)]
pub(crate) struct PublicFolders(Vec<PublicFolder>);

#[derive(Debug)]
struct PublicFolder {
    path: PathBuf,
    folder: OwnedFd,
}

/// The place of a file in a public folder, or in a folder below it.
#[derive(Debug)]
pub(crate) struct PublicPlace {
    /// The folder that has the file.
    pub(crate) folder: OwnedFd,
    pub(crate) key: FileKey,
    /// The name of the file there.
    pub(crate) name: Vec<u8>,
}

/// No symbolic link is followed.
const RULES: BeneathRules = BeneathRules { follows_links: false, may_wait: true };
/// The bits of the permission to read a file.
const READ: u32 = 4;
/// The bits of the permissions to list a folder and to open the files in it.
const LIST_AND_SEARCH: u32 = 5;

impl PublicFolders {
    /// Opens the folders.
    ///
    /// # Errors
    /// One line that names the folder and the reason.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, String> {
        let open = |path: &PathBuf| {
            let wrong =
                |error| format!("cannot open the public folder {}: {error}", path.display());
            let real = fs::canonicalize(path).map_err(|error| wrong(error.to_string()))?;
            let folder = millrace_sys::open_folder(&real);
            let folder = folder.map_err(|error| wrong(error.to_string()))?;
            Ok(PublicFolder { path: real, folder })
        };
        paths.iter().map(open).collect::<Result<_, String>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the place of an open file, if it is in a public folder now, all users may read it,
    /// and they may list and search all folders on the way from the public one.
    pub(crate) fn place_of(&self, file: BorrowedFd<'_>, key: FileKey) -> Option<PublicPlace> {
        // The path is a hint only: the daemon opens it itself, and compares the files.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = fs::read_link(link).ok()?;
        self.0.iter().find_map(|public| {
            let place = public.place_of(path.strip_prefix(&public.path).ok()?)?;
            let found = open_public(place.folder.as_fd(), &place.name)?;
            (key_of(found.as_fd())?.1 == key).then_some(place)
        })
    }
}

impl PublicFolder {
    fn place_of(&self, path: &Path) -> Option<PublicPlace> {
        let (parent, name) = (path.parent()?, path.file_name()?);
        let list = |path: &Path| {
            let path = if path == Path::new("") { Path::new(".") } else { path };
            let path = path.as_os_str().as_bytes();
            millrace_sys::open_beneath(self.folder.as_fd(), path, BeneathUse::List, RULES).ok()
        };
        let mut folder = list(Path::new(""))?;
        let mut on_the_way = PathBuf::new();
        let has_all = |folder: &OwnedFd| {
            millrace_sys::permits_all_users(folder.as_fd(), LIST_AND_SEARCH) == Ok(true)
        };
        for component in parent.components() {
            let Component::Normal(name) = component else { return None };
            if !has_all(&folder) {
                return None;
            }
            on_the_way.push(name);
            folder = list(&on_the_way)?;
        }
        let (_, key) = key_of(folder.as_fd())?;
        let name = name.as_bytes().to_vec();
        has_all(&folder).then_some(PublicPlace { folder, key, name })
    }
}

/// Opens a regular file in a folder for reading, if all users may read it. Nothing else is opened,
/// because devices notice that.
pub(crate) fn open_public(folder: BorrowedFd<'_>, name: &[u8]) -> Option<OwnedFd> {
    let open = |purpose| millrace_sys::open_beneath(folder, name, purpose, RULES).ok();
    let found = key_of(open(BeneathUse::Find)?.as_fd()).filter(|(kind, _)| is_file(*kind))?;
    let file = open(BeneathUse::Read)?;
    let is_public = millrace_sys::permits_all_users(file.as_fd(), READ) == Ok(true);
    (is_public && key_of(file.as_fd())? == found).then_some(file)
}

fn is_file(kind: InodeKind) -> bool {
    kind == InodeKind::Regular
}

fn key_of(file: BorrowedFd<'_>) -> Option<(InodeKind, FileKey)> {
    let status = millrace_sys::inode_status(file).ok()?;
    Some((status.kind, FileKey { device: status.device, inode: status.inode }))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("iolited-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("public/below")).unwrap();
            fs::create_dir_all(path.join("private")).unwrap();
            for folder in ["public", "public/below", "private"] {
                Self::set_mode(&path.join(folder), 0o755);
            }
            for file in ["public/a", "public/below/b", "private/c", "public/d"] {
                fs::write(path.join(file), file).unwrap();
                Self::set_mode(&path.join(file), 0o644);
            }
            Self(path)
        }

        fn set_mode(path: &Path, mode: u32) {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }

        fn mode(&self, name: &str, mode: u32) {
            Self::set_mode(&self.0.join(name), mode);
        }

        fn folders(&self) -> PublicFolders {
            PublicFolders::open(&[self.0.join("public")]).unwrap()
        }

        /// Returns the name of an open file in its public folder.
        fn place(&self, name: &str) -> Option<String> {
            let file = File::open(self.0.join(name)).unwrap();
            let (_, key) = key_of(file.as_fd()).unwrap();
            let place = self.folders().place_of(file.as_fd(), key)?;
            Some(String::from_utf8(place.name).unwrap())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_for_all_users_in_a_public_folder_have_a_place() {
        let tree = Tree::new("public");
        assert_eq!(tree.place("public/a").as_deref(), Some("a"));
        assert_eq!(tree.place("public/below/b").as_deref(), Some("b"));
        assert_eq!(tree.place("private/c"), None);
        for mode in [0o640, 0o604, 0o044, 0o600] {
            tree.mode("public/a", mode);
            assert_eq!(tree.place("public/a"), None, "{mode:o}");
        }
        tree.mode("public/a", 0o444);
        assert!(tree.place("public/a").is_some());
        // Not all users may open the files below, or may find them.
        for mode in [0o750, 0o711, 0o744, 0o700] {
            tree.mode("public/below", mode);
            assert_eq!(tree.place("public/below/b"), None, "{mode:o}");
            tree.mode("public/below", 0o755);
            tree.mode("public", mode);
            assert_eq!(tree.place("public/a"), None, "{mode:o}");
            assert_eq!(tree.place("public/below/b"), None, "{mode:o}");
            tree.mode("public", 0o755);
        }
        assert!(PublicFolders::open(&[tree.0.join("other")]).is_err());
        assert!(PublicFolders::open(&[tree.0.join("public/a")]).is_err());
    }

    #[test]
    fn the_path_of_a_descriptor_is_not_trusted() {
        let tree = Tree::new("path");
        let place = |file: &File| {
            let (_, key) = key_of(file.as_fd()).unwrap();
            tree.folders().place_of(file.as_fd(), key)
        };
        let path = tree.0.join("public/a");
        let file = File::open(&path).unwrap();
        assert!(place(&file).is_some());
        // Another file has its path now, also one with the path that the kernel shows then.
        fs::remove_file(&path).unwrap();
        assert!(place(&file).is_none());
        fs::copy(tree.0.join("public/d"), &path).unwrap();
        fs::copy(tree.0.join("public/d"), tree.0.join("public/a (deleted)")).unwrap();
        assert!(place(&file).is_none());
        // A symbolic link to a private file, and one on the way.
        symlink(tree.0.join("private/c"), tree.0.join("public/link")).unwrap();
        symlink(tree.0.join("private"), tree.0.join("public/folder")).unwrap();
        assert_eq!(tree.place("public/link"), None);
        assert_eq!(tree.place("public/folder/c"), None);
        let folder = millrace_sys::open_folder(&tree.0.join("public")).unwrap();
        assert!(open_public(folder.as_fd(), b"link").is_none());
        assert!(open_public(folder.as_fd(), b"../private/c").is_none());
        assert!(open_public(folder.as_fd(), b"below").is_none());
        assert!(open_public(folder.as_fd(), b"d").is_some());
    }
}
