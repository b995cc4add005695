//! Checks what a configuration needs of this machine before anything is opened. `check` runs the
//! same checks as a start, with the same messages and exit status.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use millrace_config::{Config, ConfigError, ListenAddress, RawConfig};

use crate::admin::Token;
use crate::cgi;
use crate::privileges;
use crate::program_error::ProgramError;

/// Checks the user, the token, and the folders of the access log, of disks and of Unix sockets.
/// `raw` is the source of `config`.
///
/// # Errors
/// The first failed check.
pub(crate) fn check(config: &Config, raw: &RawConfig) -> Result<(), ProgramError> {
    privileges::check_user(&config.user)?;
    privileges::program_users(config)?;
    if let Some(path) = &config.admin_token_file {
        Token::read(&raw.name_of("admin-token-file"), path)?;
    }
    Ok(check_folders(config, raw)?)
}

/// Checks only the folders, which a reload may change.
///
/// # Errors
/// The first missing folder.
pub(crate) fn check_folders(config: &Config, raw: &RawConfig) -> Result<(), ConfigError> {
    if let Some(log) = config.access_log.as_ref().filter(|log| log.path != Path::new("-")) {
        let place = format!("{} {}", raw.name_of("access-log"), log.path.display());
        check_folder(&place, &log.path)?;
    }
    for programs in cgi::programs(config) {
        let place = format!("{} {}", raw.name_of("cgi"), programs.folder.display());
        check_folder(&place, &programs.folder.join("any"))?;
    }
    for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
        check_disk(&raw.name_of("disk"), &disk.folder)?;
    }
    let listeners = config.listeners.iter().map(|listener| ("listen", &listener.address));
    let admin = config.admin.iter().map(|admin| ("admin", &admin.address));
    for (option, address) in listeners.chain(admin) {
        if let ListenAddress::Unix(path) = address {
            check_folder(&format!("{} {address}", raw.name_of(option)), path)?;
        }
    }
    Ok(())
}

/// Checks that the folder of a disk exists and is private, or can be created.
fn check_disk(option: &str, folder: &Path) -> Result<(), ConfigError> {
    let place = format!("{option} {}", folder.display());
    let Ok(mut found) = fs::symlink_metadata(folder) else { return check_folder(&place, folder) };
    // A link owned by root is followed, as when the disk is opened: systemd creates one for
    // CacheDirectory= with DynamicUser=.
    if found.is_symlink() && found.uid() == 0 {
        found = fs::metadata(folder).unwrap_or(found);
    }
    let mode = found.permissions().mode() & 0o7777;
    let wrong = if found.is_symlink() {
        format!("{} is a symbolic link that root does not own", folder.display())
    } else if !found.is_dir() {
        format!("{} is not a folder", folder.display())
    } else if mode & 0o077 != 0 {
        format!("{} is accessible to other users (mode {mode:o})", folder.display())
    } else {
        return Ok(());
    };
    Err(ConfigError::rule(
        place,
        wrong,
        "a folder with mode 700, or a new name in an existing folder",
    ))
}

/// Checks that the folder of a file exists. The file need not exist.
fn check_folder(place: &str, path: &Path) -> Result<(), ConfigError> {
    let folder = privileges::folder(path);
    let wrong = match fs::metadata(&folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => format!("{} is not a folder", folder.display()),
        Err(error) => format!("{}: {error}", folder.display()),
    };
    Err(ConfigError::rule(place, wrong, "a path in an existing folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(arguments: &[&str]) -> Option<String> {
        let arguments = [&["forward"], arguments].concat();
        let config = millrace_config::from_arguments(arguments).unwrap();
        check(&config, &RawConfig::default()).err().map(|error| error.to_string())
    }

    #[test]
    fn the_checks_report_why_a_start_would_fail() {
        let reports = |arguments: &[&str], text: &str| {
            let message = refusal(arguments).unwrap();
            assert!(message.contains(text), "{message}");
        };
        reports(
            &["--access-log", "/no/such/a.log"],
            "access-log /no/such/a.log: /no/such: No such",
        );
        reports(&["--access-log", "/dev/null/a.log"], "/dev/null is not a folder");
        reports(&["--listen", "unix:/no/such/socket"], "listen unix:/no/such/socket: ");
        reports(&["--admin", "unix:/no/such/socket"], "admin unix:/no/such/socket: ");
        reports(&["--disk", "/no/such:1G"], "disk /no/such: /no: No such");
        reports(&["--disk", "/dev/null:1G"], "disk /dev/null: /dev/null is not a folder");
        reports(&["--disk", "/tmp:1G"], "disk /tmp: /tmp is accessible to other users (mode 1777)");
        reports(&["--user", "no-such-user"], "/etc/passwd has no \"no-such-user\"");
        let admin = ["--admin", "127.0.0.1:0", "--admin-token-file", "/no/such"];
        reports(&admin, "admin-token-file /no/such: cannot be read");
    }

    #[test]
    fn existing_folders_are_accepted() {
        for log in ["-", "here.log", "/tmp/a.log", "off"] {
            assert_eq!(refusal(&["--access-log", log]), None, "{log}");
        }
        assert_eq!(refusal(&["--disk", "/tmp/not-there-yet:1G"]), None);
        assert_eq!(refusal(&["--user", "root", "--admin", "127.0.0.1:0"]), None);
    }
}
