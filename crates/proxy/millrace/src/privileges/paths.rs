//! The files of a configuration and the permissions that each needs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_config::{Config, ListenAddress, Origin, OriginProtocol, OriginTls, Service};
use millrace_confine::{Grant, Permission};
use millrace_sys::Errno;

/// The files that a running proxy needs by its configuration.
#[derive(Debug)]
pub(super) struct Paths(Vec<PathNeed>);

#[derive(Debug)]
struct PathNeed {
    path: PathBuf,
    kind: PathUse,
}

/// The use of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathUse {
    /// A configuration file. A reload reads it again, or its replacement.
    Configuration,
    /// The access log, which is reopened after a rotation.
    Log,
    /// A Unix socket to listen on. Its file is removed at the end.
    Listener,
    /// A Unix socket to connect to.
    Origin,
    /// The socket of a program with a channel.
    Program,
    /// A folder reserved for files that a reload may name.
    Folder,
    /// A folder of stored responses, private to this process.
    Disk,
    /// A folder of accounts and certificates of ACME.
    State,
    /// A folder whose files are served.
    Served,
}

/// System files that the C library and this program read: for names, container limits, process
/// metrics, congestion control and memory overcommit.
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
    /// Collects the files of `config`, which was read from `file`, if any.
    pub(super) fn from_config(config: &Config, file: Option<&Path>) -> Self {
        let mut needs = Vec::new();
        let mut need = |path: &Path, kind| needs.push(PathNeed { path: path.to_owned(), kind });
        for path in file.into_iter().chain(tls_files(config)) {
            need(path, PathUse::Configuration);
        }
        if let Some(log) = config.access_log.as_ref().filter(|log| log.path != Path::new("-")) {
            need(&log.path, PathUse::Log);
        }
        let ordered =
            config.services.iter().filter_map(|service| service.tls.as_ref()?.acme.as_ref());
        for content in ordered.filter_map(|acme| acme.content.as_ref()) {
            need(&content.folder, PathUse::State);
        }
        // A reload reads the user files again.
        for auth in config.services.iter().filter_map(|service| service.auth.as_ref()) {
            need(&auth.path, PathUse::Configuration);
        }
        for folder in &config.sandbox_folders {
            need(folder, PathUse::Folder);
        }
        if let Some(socket) = &config.iolited {
            need(socket, PathUse::Program);
        }
        for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
            need(&disk.folder, PathUse::Disk);
        }
        let listeners = config.listeners.iter().map(|listener| &listener.address);
        for address in listeners.chain(config.admin.iter().map(|admin| &admin.address)) {
            if let ListenAddress::Unix(path) = address {
                need(path, PathUse::Listener);
            }
        }
        let routes = config.services.iter().flat_map(Service::routes);
        let served = routes.clone().flat_map(|route| [&route.folder, &route.sendfile]).flatten();
        for path in served.flat_map(|folder| folder.paths()) {
            need(path, PathUse::Served);
        }
        // The launcher of CGI programs has no path.
        let routes = routes.filter(|route| route.cgi.is_none());
        for route in routes {
            let kind = match route.protocol {
                OriginProtocol::Program => PathUse::Program,
                OriginProtocol::Http | OriginProtocol::FastCgi => PathUse::Origin,
            };
            for origin in &route.origins {
                if let Origin::Unix(path) = origin {
                    need(path, kind);
                }
            }
        }
        Self(needs)
    }

    /// Returns whether files are written by more than appending.
    pub(super) fn has_stores(&self) -> bool {
        self.0.iter().any(|need| matches!(need.kind, PathUse::Disk | PathUse::State))
    }

    /// Returns whether there are programs with channels, or iolited.
    pub(super) fn has_channels(&self) -> bool {
        self.0.iter().any(|need| need.kind == PathUse::Program)
    }

    /// Returns the missing permissions of the current user as texts that follow its name, such as
    /// "may not read FILE". Missing files are not reported here.
    pub(super) fn problems(&self) -> Vec<String> {
        self.0.iter().filter_map(PathNeed::problem).collect()
    }

    /// Returns the permissions that must remain. A process that is not root may read everything in
    /// /etc that file permissions allow: a replaced resolv.conf is a new file, which a rule for the
    /// old file would not cover.
    pub(super) fn grants(&self, is_root: bool) -> Vec<(PathBuf, Grant)> {
        let mut grants = self.of_configuration();
        let mut read = |path: PathBuf| grants.push((path, Grant::Read));
        MACHINE.iter().for_each(|path| read(path.into()));
        // Often a link into a folder where a daemon updates it, such as /run/systemd/resolve.
        if let Ok(target) = fs::canonicalize("/etc/resolv.conf")
            && !target.starts_with("/etc")
        {
            read(folder(&target));
        }
        if !is_root {
            read("/etc".into());
        }
        // The panic hook reads the names of functions from the executable.
        std::env::current_exe().into_iter().for_each(read);
        grants
    }

    /// Returns the permissions for the files of the configuration.
    fn of_configuration(&self) -> Vec<(PathBuf, Grant)> {
        self.0.iter().flat_map(PathNeed::grants).collect()
    }

    /// Returns the first file that the grants in `granted` (canonical folders) do not cover.
    pub(super) fn find_outside(&self, granted: &[(PathBuf, Grant)]) -> Option<&Path> {
        let is_granted = |(path, grant): (PathBuf, Grant)| {
            granted.iter().any(|(folder, granted)| *granted == grant && path.starts_with(folder))
        };
        let is_outside = |need: &&PathNeed| !canonical(need.grants()).into_iter().all(is_granted);
        self.0.iter().find(is_outside).map(|need| need.path.as_path())
    }

    /// Returns the first served folder that this process cannot list although its user may. Such a
    /// folder has replaced another one: a rule of Landlock applies to the folder that had the path
    /// when the rule was made.
    pub(super) fn find_replaced(&self) -> Option<&Path> {
        let is_hidden = |path: &Path| {
            let is_denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
            fs::read_dir(path).is_err_and(is_denied)
                && millrace_confine::access(path, Permission::Read).is_ok()
        };
        let served = self.0.iter().filter(|need| need.kind == PathUse::Served);
        served.map(|need| need.path.as_path()).find(|path| is_hidden(path))
    }
}

/// Returns the files of the TLS settings, which a reload reads again.
fn tls_files(config: &Config) -> Vec<&Path> {
    let mut files = Vec::new();
    for tls in config.services.iter().filter_map(|service| service.tls.as_ref()) {
        files.extend(tls.paths());
    }
    if let Some(tls) = &config.admin_tls {
        files.extend([tls.files.chain.as_path(), &tls.files.key]);
    }
    let of_origins = config.services.iter().flat_map(Service::origin_tls);
    files.extend(of_origins.flat_map(OriginTls::paths));
    files
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
            // Landlock does not restrict connecting to a Unix socket by path.
            PathUse::Origin | PathUse::Program => return Vec::new(),
            PathUse::Disk | PathUse::State => return vec![(self.path.clone(), Grant::Store)],
            PathUse::Served => return vec![(self.path.clone(), Grant::Read)],
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
                .then(|| format!("may not read {path}, which a reload has to read")),
            PathUse::Log if denied(&self.path, Permission::Write) => {
                Some(format!("may not write the access log {path}"))
            }
            PathUse::Log => (!is_special(&self.path) && denied(&parent, Permission::Create))
                .then(|| format!("may not create {path} again after a log rotation")),
            PathUse::Listener => denied(&parent, Permission::Create).then(|| {
                let folder = parent.display();
                format!("may not write to {folder}, so unix:{path} would remain after the end")
            }),
            PathUse::Origin | PathUse::Program => denied(&self.path, Permission::Write)
                .then(|| format!("may not connect to unix:{path}")),
            PathUse::Folder => denied(&self.path, Permission::Create)
                .then(|| format!("may not create files in {path}")),
            PathUse::Served => denied(&self.path, Permission::Read)
                .then(|| format!("may not read the folder {path}")),
            PathUse::State => denied(&self.path, Permission::Create)
                .then(|| format!("may not create files in acme-dir {path}")),
            // A missing folder is created and given to the later user.
            PathUse::Disk => match fs::metadata(&self.path) {
                Ok(found) => (found.uid() != millrace_sys::effective_user())
                    .then(|| format!("does not own the disk folder {path}")),
                Err(error) => (error.kind() == ErrorKind::PermissionDenied)
                    .then(|| format!("may not open the disk folder {path}")),
            },
        }
    }
}

/// Returns the grants with canonical paths where the paths exist.
pub(super) fn canonical(grants: Vec<(PathBuf, Grant)>) -> Vec<(PathBuf, Grant)> {
    let real = |path: PathBuf| fs::canonicalize(&path).unwrap_or(path);
    grants.into_iter().map(|(path, grant)| (real(path), grant)).collect()
}

/// Returns the folder of a file.
pub(crate) fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns whether the path exists and is neither a file nor a folder, such as a terminal or a
/// pipe.
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
        let paths = Paths::from_config(&config, Some(Path::new("/c/millrace.toml")));
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
        let paths = Paths::from_config(&config.unwrap(), None);
        assert_eq!(paths.of_configuration(), [("/dev/null".into(), Grant::Append)]);
        let config = millrace_config::from_arguments(["forward", "--access-log=-"]);
        assert!(Paths::from_config(&config.unwrap(), None).of_configuration().is_empty());
    }

    #[test]
    fn a_reload_needs_the_folders_of_certificates_and_keys() {
        let words = "forward --listen=tls://[::1]:1 --certificate=/c/a --key=/k/a --fetch-ca=/r/a \
                     --client-certificate=required --client-ca=/s/a --client-crl=/l/a \
                     --ticket-key-file=/t/a --fetch-https=on --admin=tls://[::1]:2 \
                     --admin-certificate=/a/a --admin-key=/b/a";
        let config = millrace_config::from_arguments(words.split_whitespace()).unwrap();
        let paths = Paths::from_config(&config, Some(Path::new("/f/millrace.toml")));
        let folders = ["/f", "/c", "/k", "/s", "/l", "/t", "/a", "/b", "/r"];
        let granted = folders.map(|folder| (folder.into(), Grant::Read));
        assert_eq!(paths.of_configuration(), granted);
        assert_eq!(Paths::from_config(&config, None).of_configuration(), granted[1..]);
    }

    #[test]
    fn served_folders_are_readable_and_nothing_beside_them() {
        let words = ["serve", "/srv/www", "--allow-path=/srv/shared", "--allow-path=/data"];
        let config = millrace_config::from_arguments(words).unwrap();
        let paths = Paths::from_config(&config, None);
        let folders = ["/srv/www", "/srv/shared", "/data"];
        assert_eq!(paths.of_configuration(), folders.map(|path| (path.into(), Grant::Read)));
        let granted = [("/srv".into(), Grant::Read)];
        assert_eq!(paths.find_outside(&granted), Some(Path::new("/data")));
        assert_eq!(paths.find_replaced(), None, "missing folders are not hidden");
    }

    #[test]
    fn missing_files_are_not_permission_problems() {
        let config = millrace_config::from_arguments([
            "boost",
            "--origin=unix:/nowhere/origin",
            "--listen=unix:/nowhere/socket",
            "--access-log=/nowhere/log",
            "--disk=/nowhere/cache:1G",
        ]);
        let paths = Paths::from_config(&config.unwrap(), Some(Path::new("/nowhere/file")));
        assert_eq!(paths.problems(), [""; 0]);
    }
}
