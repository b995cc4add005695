//! Stamps of the certificate files of a configuration, by which a changed file is found. Never
//! reads a file.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_config::{Config, OriginTls, Service, Tls};

/// The certificates, keys, ticket keys and lists of a configuration, for clients and for origins,
/// as they were at one time.
#[derive(Default)]
pub(crate) struct FileStamps(Vec<(PathBuf, Option<Stamp>)>);

/// Device, inode, length, and time of the last change in seconds and nanoseconds.
type Stamp = (u64, u64, u64, i64, i64);

impl FileStamps {
    /// Checks the files of `config`. The thread that orders certificates checks those itself.
    pub(crate) fn of(config: &Config) -> Self {
        let own = config.services.iter().filter_map(|service| service.tls.as_ref());
        let of_origins = config.services.iter().flat_map(Service::origin_tls);
        let files = own.flat_map(Tls::paths).chain(of_origins.flat_map(OriginTls::paths));
        let admin = config.admin_tls.iter().flat_map(|tls| [&tls.files.chain, &tls.files.key]);
        let files = files.chain(admin.map(PathBuf::as_path));
        Self(files.map(|path| (path.to_owned(), stamp(path))).collect())
    }

    /// Checks the files again. Returns whether one has changed since it was read for the
    /// configuration in force, or refused.
    pub(crate) fn have_changed(&self) -> bool {
        self.0.iter().any(|(path, seen)| *seen != stamp(path))
    }

    /// Records files as missing that this process can no longer reach because it has changed its
    /// user.
    pub(crate) fn forget_unreachable(&mut self) {
        for (path, seen) in &mut self.0 {
            *seen = seen.filter(|_| stamp(path).is_some());
        }
    }

    /// Adds the files of a refused configuration with their stamps. The files of the configuration
    /// in force are still checked, from their present state on.
    pub(crate) fn set_refused(&mut self, refused: Self) {
        self.0.retain(|(path, _)| !refused.0.iter().any(|(other, _)| other == path));
        self.0.iter_mut().for_each(|(path, seen)| *seen = stamp(path));
        self.0.extend(refused.0);
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}
