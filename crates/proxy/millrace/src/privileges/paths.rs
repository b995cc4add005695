//! The files that a configuration is about, and what has to be possible with each.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_config::{Config, ListenAddress, Origin, Service};
use millrace_confine::{Grant, Permission};
use millrace_sys::Errno;

/// Files that a running proxy needs by its configuration.
#[derive(Debug)]
pub(super) struct Paths(Vec<PathNeed>);

#[derive(Debug)]
struct PathNeed {
    path: PathBuf,
    kind: PathUse,
}

/// What a file is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathUse {
    /// The configuration: a reload reads it again, or what took its place.
    Configuration,
    /// The access log: it is reopened after a rotation.
    Log,
    /// A Unix socket that is listened on: its file is removed at the end.
    Listener,
    /// A Unix socket that is connected to.
    Origin,
    /// A folder that is left for what a reload may name.
    Folder,
    /// A folder in which answers are stored, and nobody else has anything.
    Disk,
}

/// What the C library and this program read of a machine: names, the bounds of a container, the
/// metrics of this process, congestion control, and how freely memory is given.
const MACHINE: [&str; 11] = [
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/proc/self",
    "/proc/sys/net",
    "/proc/sys/vm/overcommit_memory",
    "/sys/fs/cgroup",
];

impl Paths {
    /// Of `config`, which was read from `file` if it is one.
    pub(super) fn of(config: &Config, file: Option<&Path>) -> Self {
        let mut needs = Vec::new();
        let mut need = |path: &Path, kind| needs.push(PathNeed { path: path.to_owned(), kind });
        if let Some(file) = file {
            need(file, PathUse::Configuration);
        }
        if let Some(log) = config.access_log.as_ref().filter(|log| log.path != Path::new("-")) {
            need(&log.path, PathUse::Log);
        }
        // The files of users are read again with the configuration.
        for auth in config.services.iter().filter_map(|service| service.auth.as_ref()) {
            need(&auth.path, PathUse::Configuration);
        }
        for folder in &config.sandbox_folders {
            need(folder, PathUse::Folder);
        }
        for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
            need(&disk.folder, PathUse::Disk);
        }
        let listeners = config.listeners.iter().map(|listener| &listener.address);
        for address in listeners.chain(&config.admin) {
            if let ListenAddress::Unix(path) = address {
                need(path, PathUse::Listener);
            }
        }
        let routes = config.services.iter().flat_map(Service::routes);
        for origin in routes.flat_map(|route| &route.origins) {
            if let Origin::Unix(path) = origin {
                need(path, PathUse::Origin);
            }
        }
        Self(needs)
    }

    /// Whether there are disks of the cache.
    pub(super) fn has_disks(&self) -> bool {
        self.0.iter().any(|need| matches!(need.kind, PathUse::Disk))
    }

    /// What the process could not do as it is now, each to be read after its user: "may not ...".
    /// What is merely missing is not this module's affair.
    pub(super) fn problems(&self) -> Vec<String> {
        self.0.iter().filter_map(PathNeed::problem).collect()
    }

    /// What has to be left of the file system. Whoever is not root may read what everybody may
    /// read in /etc: a resolv.conf that is replaced is another file, of which no rule could know.
    pub(super) fn grants(&self, is_root: bool) -> Vec<(PathBuf, Grant)> {
        let mut grants = self.of_configuration();
        let mut read = |path: PathBuf| grants.push((path, Grant::Read));
        MACHINE.iter().for_each(|path| read(path.into()));
        // A link to where something else keeps it up to date, such as /run/systemd/resolve.
        if let Ok(target) = fs::canonicalize("/etc/resolv.conf")
            && !target.starts_with("/etc")
        {
            read(folder(&target));
        }
        if !is_root {
            read("/etc".into());
        }
        // A panic is told with the names of functions.
        std::env::current_exe().into_iter().for_each(read);
        grants
    }

    /// What has to be left for the files of the configuration.
    fn of_configuration(&self) -> Vec<(PathBuf, Grant)> {
        self.0.iter().flat_map(PathNeed::grants).collect()
    }

    /// The first file that `left`, folders by their real paths, has no grant for.
    pub(super) fn find_outside(&self, left: &[(PathBuf, Grant)]) -> Option<&Path> {
        let is_left = |(path, grant): (PathBuf, Grant)| {
            left.iter().any(|(folder, left)| *left == grant && path.starts_with(folder))
        };
        let is_outside = |need: &&PathNeed| !canonical(need.grants()).into_iter().all(is_left);
        self.0.iter().find(is_outside).map(|need| need.path.as_path())
    }
}

impl PathNeed {
    fn grants(&self) -> Vec<(PathBuf, Grant)> {
        let grant = match self.kind {
            PathUse::Configuration => Grant::Read,
            PathUse::Log if is_special(&self.path) => {
                return vec![(self.path.clone(), Grant::Append)];
            }
            PathUse::Log => Grant::Append,
            PathUse::Listener => Grant::Sockets,
            // To connect needs no right that Landlock knows of.
            PathUse::Origin => return Vec::new(),
            PathUse::Disk => return vec![(self.path.clone(), Grant::Store)],
            PathUse::Folder => {
                let all = [Grant::Read, Grant::Append, Grant::Sockets];
                return all.map(|grant| (self.path.clone(), grant)).into();
            }
        };
        // The file may be replaced, and may be a link into another folder.
        let mut folders = vec![folder(&self.path)];
        if let Ok(target) = fs::canonicalize(&self.path) {
            folders.push(folder(&target));
        }
        folders.into_iter().map(|folder| (folder, grant)).collect()
    }

    fn problem(&self) -> Option<String> {
        let path = self.path.display();
        let parent = folder(&self.path);
        let denied = |path: &Path, permission| {
            let tried = millrace_confine::access(path, permission);
            matches!(tried, Err(Errno::ACCESS | Errno::PERM))
        };
        match self.kind {
            PathUse::Configuration => denied(&self.path, Permission::Read)
                .then(|| format!("may not read {path}, so that it cannot be read again")),
            PathUse::Log if denied(&self.path, Permission::Write) => {
                Some(format!("may not write the access log {path}"))
            }
            PathUse::Log => (!is_special(&self.path) && denied(&parent, Permission::Create))
                .then(|| format!("may not make a new {path} after the old one is moved away")),
            PathUse::Listener => denied(&parent, Permission::Create)
                .then(|| format!("may not remove unix:{path} at the end")),
            PathUse::Origin => denied(&self.path, Permission::Write)
                .then(|| format!("may not connect to unix:{path}")),
            PathUse::Folder => denied(&self.path, Permission::Create)
                .then(|| format!("may not make files in {path}")),
            // One that is missing is made, and given to whom the process becomes.
            PathUse::Disk => match fs::metadata(&self.path) {
                Ok(found) => (found.uid() != millrace_sys::effective_user())
                    .then(|| format!("does not own the disk's folder {path}")),
                Err(error) => (error.kind() == ErrorKind::PermissionDenied)
                    .then(|| format!("may not get to the disk's folder {path}")),
            },
        }
    }
}

/// The grants by paths without links and dots, where they are there.
pub(super) fn canonical(grants: Vec<(PathBuf, Grant)>) -> Vec<(PathBuf, Grant)> {
    let real = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path);
    grants.into_iter().map(|(path, grant)| (real(path), grant)).collect()
}

/// The folder that a file is in.
pub(crate) fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether it is there and neither a file nor a folder: a terminal, a pipe, a null device.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_needs_the_folders_of_its_files() {
        let config = millrace_config::from_arguments([
            "boost",
            "--origin=unix:/o/origin",
            "--listen=unix:/l/socket",
            "--access-log=log",
            "--sandbox-folder=/f",
            "--disk=/d/cache:1G",
        ])
        .unwrap();
        let paths = Paths::of(&config, Some(Path::new("/c/millrace.toml")));
        let expected = [
            ("/c", Grant::Read),
            (".", Grant::Append),
            ("/f", Grant::Read),
            ("/f", Grant::Append),
            ("/f", Grant::Sockets),
            ("/d/cache", Grant::Store),
            ("/l", Grant::Sockets),
        ];
        let expected = expected.map(|(path, grant)| (PathBuf::from(path), grant));
        assert_eq!(paths.of_configuration(), expected);
        let all = paths.grants(false);
        assert!(all.contains(&("/etc".into(), Grant::Read)) && all.starts_with(&expected));
        assert!(!paths.grants(true).contains(&("/etc".into(), Grant::Read)));
        let config = millrace_config::from_arguments(["forward", "--access-log=/dev/null"]);
        let paths = Paths::of(&config.unwrap(), None);
        assert_eq!(paths.of_configuration(), [("/dev/null".into(), Grant::Append)]);
        let config = millrace_config::from_arguments(["forward", "--access-log=-"]);
        assert!(Paths::of(&config.unwrap(), None).of_configuration().is_empty());
    }

    #[test]
    fn what_is_missing_is_no_problem_of_rights() {
        let config = millrace_config::from_arguments([
            "boost",
            "--origin=unix:/nowhere/origin",
            "--listen=unix:/nowhere/socket",
            "--access-log=/nowhere/log",
            "--disk=/nowhere/cache:1G",
        ]);
        let paths = Paths::of(&config.unwrap(), Some(Path::new("/nowhere/file")));
        assert_eq!(paths.problems(), [""; 0]);
    }
}
