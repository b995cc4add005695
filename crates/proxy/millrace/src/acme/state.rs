//! The state folder: account keys, certificates with their keys, and orders in progress.
//!
//! A file is replaced as a whole: written under another name, synchronized, renamed, and the folder
//! synchronized. So a file is old or new, whenever the process is killed.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use millrace_config::Acme;
use millrace_sys::OpenMode;

/// The most bytes of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The bytes that are reserved for a file: more than an account or an order takes.
const RESERVED_BYTES: usize = 4096;
/// The lock file. The process that holds its lock orders certificates.
const LOCK: &str = "lock";
/// The end of the name of a file that is being written.
const UNFINISHED: &str = ".new";

/// A state folder that this process has locked.
pub(super) struct StateFolder {
    path: PathBuf,
    folder: OwnedFd,
    /// The kernel releases the lock when the process ends, however it ends.
    _lock: OwnedFd,
}

impl StateFolder {
    /// Opens and locks a folder. Returns `None` while another process holds the lock.
    ///
    /// # Errors
    /// Those of opening the folder and the lock file.
    pub(super) fn lock(path: &Path) -> Result<Option<Self>> {
        let folder = millrace_sys::open_directory(path)?;
        let lock = millrace_sys::open_file(folder.as_fd(), LOCK, OpenMode::Any)?;
        if !millrace_sys::lock_file(lock.as_fd())? {
            return Ok(None);
        }
        Ok(Some(Self { path: path.to_owned(), folder, _lock: lock }))
    }

    /// Returns the path of the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of a file; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::InvalidData`] if it is too large or no text.
    pub(super) fn read(&self, name: &str) -> Result<Option<String>> {
        let file = match millrace_sys::open_file(self.folder.as_fd(), name, OpenMode::Existing) {
            Ok(file) => file,
            Err(error) if Error::from(error).kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let status = millrace_sys::file_status(file.as_fd())?;
        if !status.is_file || status.bytes > FILE_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; status.bytes as usize];
        let mut read = 0;
        while read < bytes.len() {
            match millrace_sys::read_at(file.as_fd(), &mut bytes[read..], read as u64)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => read += count,
            }
        }
        String::from_utf8(bytes).map(Some).map_err(|_| ErrorKind::InvalidData.into())
    }

    /// Replaces a file. Only its owner can read it.
    ///
    /// # Errors
    /// Those of writing. The file is the old one then.
    pub(super) fn write(&self, name: &str, content: &str) -> Result<()> {
        self.create(name)?.finish(content)
    }

    /// Reserves the space of a file before the authority creates the object that the file
    /// describes. Without a call of [`NewFile::finish`] the file remains the old one.
    ///
    /// # Errors
    /// Those of writing.
    pub(super) fn reserve(&self, name: &str) -> Result<NewFile<'_>> {
        let file = self.create(name)?;
        file.fill(&[b' '; RESERVED_BYTES])?;
        Ok(file)
    }

    fn create(&self, name: &str) -> Result<NewFile<'_>> {
        let unfinished = format!("{name}{UNFINISHED}");
        self.remove(&unfinished)?;
        let file = millrace_sys::open_file(self.folder.as_fd(), &unfinished, OpenMode::New)?;
        Ok(NewFile { folder: self, name: name.to_owned(), unfinished, file })
    }

    /// Removes a file, which need not exist.
    ///
    /// # Errors
    /// Those of unlink(2).
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        match millrace_sys::remove_file(self.folder.as_fd(), name).map_err(Error::from) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A file under its other name, before it replaces the old one.
pub(super) struct NewFile<'a> {
    folder: &'a StateFolder,
    name: String,
    unfinished: String,
    file: OwnedFd,
}

impl NewFile<'_> {
    /// Writes the content and replaces the old file.
    ///
    /// # Errors
    /// Those of writing. The file is the old one then.
    pub(super) fn finish(self, content: &str) -> Result<()> {
        self.fill(content.as_bytes())?;
        let folder = self.folder.folder.as_fd();
        millrace_sys::rename_file(folder, &self.unfinished, &self.name)?;
        millrace_sys::sync_directory(folder)?;
        Ok(())
    }

    fn fill(&self, bytes: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            let parts = [IoSlice::new(&bytes[written..])];
            written += millrace_sys::write_parts_at(self.file.as_fd(), &parts, written as u64)?;
        }
        millrace_sys::truncate_file(self.file.as_fd(), bytes.len() as u64)?;
        millrace_sys::sync_file(self.file.as_fd())?;
        Ok(())
    }
}

/// The names of the files of an order. They contain the authority, so that certificates for tests
/// and real ones never mix.
pub(super) struct FileNames {
    /// Identifier and key of the account.
    pub(super) account: String,
    /// The certificate chain and its key, as PEM.
    pub(super) certificate: String,
    /// The URL of the order in progress and the key of its certificate.
    pub(super) order: String,
    /// The description of the last failure. It is missing after a success.
    pub(super) failure: String,
}

impl FileNames {
    /// Returns the names for a certificate.
    pub(super) fn of(acme: &Acme) -> Self {
        let authority = authority(acme);
        let first = &acme.names[0];
        let names = match acme.names.len() {
            1 => plain(first),
            // One name of the set, and a checksum of all.
            _ => format!("{}+{:08x}", plain(first), checksum(&acme.names.join(","))),
        };
        let of = |ending| format!("{names}@{authority}.{ending}");
        Self {
            account: format!("account@{authority}.json"),
            certificate: of("pem"),
            order: of("order.json"),
            failure: of("failure"),
        }
    }
}

/// Returns the path of the file with the ordered certificate in the state folder `folder`.
pub(crate) fn certificate_path(folder: &Path, acme: &Acme) -> PathBuf {
    folder.join(FileNames::of(acme).certificate)
}

/// Returns whether the name of a file is that of a certificate by the authority of `acme`.
pub(crate) fn is_of_authority(path: &Path, acme: &Acme) -> bool {
    let end = format!("@{}.pem", authority(acme));
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(&end))
}

/// Returns the directory of the authority as a part of a file name.
fn authority(acme: &Acme) -> String {
    plain(acme.directory.strip_prefix("https://").unwrap_or(&acme.directory))
}

/// Replaces the characters that a file name should not contain. A long text ends in a checksum.
fn plain(text: &str) -> String {
    const BYTES_MAX: usize = 90;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let mut name: String = text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    if name.len() > BYTES_MAX {
        name.truncate(BYTES_MAX);
        name.push_str(&format!("+{:08x}", checksum(text)));
    }
    name
}

/// FNV-1a: the same in each version of the program.
pub(super) fn checksum(text: &str) -> u32 {
    let add = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    text.bytes().fold(0x811c_9dc5, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once_and_its_files_are_replaced() {
        let path = std::env::temp_dir().join(format!("millrace-acme-{}", std::process::id()));
        assert!(millrace_sys::create_directory(&path).unwrap());
        let folder = StateFolder::lock(&path).unwrap().unwrap();
        assert!(StateFolder::lock(&path).unwrap().is_none());
        assert_eq!(folder.read("a").unwrap(), None);
        // An earlier write was interrupted.
        std::fs::write(path.join("a.new"), "half").unwrap();
        for content in ["one", "", "three"] {
            folder.write("a", content).unwrap();
            assert_eq!(folder.read("a").unwrap().as_deref(), Some(content));
        }
        // An unused reservation keeps the old file.
        drop(folder.reserve("a").unwrap());
        assert_eq!(folder.read("a").unwrap().as_deref(), Some("three"));
        folder.reserve("a").unwrap().finish("four").unwrap();
        assert_eq!(folder.read("a").unwrap().as_deref(), Some("four"));
        assert!(!path.join("a.new").exists());
        folder.remove("a").unwrap();
        folder.remove("a").unwrap();
        drop(folder);
        assert!(StateFolder::lock(&path).unwrap().is_some());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn file_names_depend_on_the_names_and_the_authority() {
        let names = |words: &str| {
            let words =
                format!("boost --origin=http://a --listen=tls://[::1]:1 --acme=a@b {words}");
            let config = millrace_config::from_arguments(words.split(' ')).unwrap();
            FileNames::of(config.services[0].tls.as_ref().unwrap().acme.as_ref().unwrap())
        };
        let one = names("--server-name=b.example");
        let authority = "acme-v02.api.letsencrypt.org_directory";
        assert_eq!(one.account, format!("account@{authority}.json"));
        assert_eq!(one.certificate, format!("b.example@{authority}.pem"));
        let two = names("--server-name=b.example --server-name=c.example");
        assert!(two.order.starts_with("b.example+") && two.order.ends_with(".order.json"));
        assert_ne!(two.certificate, names("--server-name=b.example --server-name=d.example").order);
        let other = names("--server-name=b.example --acme-directory=https://[::1]:14000/dir");
        assert_eq!(other.failure, "b.example@___1__14000_dir.failure");
        assert_eq!(plain(&"a".repeat(200)).len(), 99);
    }
}
