//! What a configuration needs of this machine, looked at before anything is opened: so `check`
//! tells what a start would fail by, in the same words and with the same status.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use millrace_config::{Config, ConfigError, ListenAddress, RawConfig};

use crate::admin::Token;
use crate::privileges;
use crate::program_error::ProgramError;

/// Looks at the user, the token, and the folders of the access log, of disks and of Unix sockets.
/// `tables` are what a command line has given of the configuration.
///
/// # Errors
/// The first thing that is not as it has to be.
pub(crate) fn check(config: &Config, tables: &RawConfig) -> Result<(), ProgramError> {
    privileges::check_user(&config.user)?;
    if let Some(path) = &config.admin_token_file {
        Token::read(&tables.name_of("admin-token-file"), path)?;
    }
    Ok(check_folders(config, tables)?)
}

/// Looks at the folders alone, which a reload may name.
///
/// # Errors
/// The first one that is not there.
pub(crate) fn check_folders(config: &Config, tables: &RawConfig) -> Result<(), ConfigError> {
    if let Some(log) = config.access_log.as_ref().filter(|log| log.path != Path::new("-")) {
        let place = format!("{} {}", tables.name_of("access-log"), log.path.display());
        check_folder(&place, &log.path)?;
    }
    for disk in config.cache.iter().flat_map(|cache| &cache.disks) {
        check_disk(&tables.name_of("disk"), &disk.folder)?;
    }
    let listeners = config.listeners.iter().map(|listener| ("listen", &listener.address));
    let admin = config.admin.iter().map(|address| ("admin", address));
    for (option, address) in listeners.chain(admin) {
        if let ListenAddress::Unix(path) = address {
            check_folder(&format!("{} {address}", tables.name_of(option)), path)?;
        }
    }
    Ok(())
}

/// Whether the folder is there and nobody else's, or can be made in the one that it is in.
fn check_disk(option: &str, folder: &Path) -> Result<(), ConfigError> {
    let place = format!("{option} {}", folder.display());
    let Ok(mut found) = fs::symlink_metadata(folder) else { return check_folder(&place, folder) };
    // One of root's is followed, as it is when the disk is opened: systemd makes one for the
    // CacheDirectory= of a DynamicUser=.
    if found.is_symlink() && found.uid() == 0 {
        found = fs::metadata(folder).unwrap_or(found);
    }
    let mode = found.permissions().mode() & 0o7777;
    let wrong = if found.is_symlink() {
        format!("{} is a symbolic link, and not root's", folder.display())
    } else if !found.is_dir() {
        format!("{} is no folder", folder.display())
    } else if mode & 0o077 != 0 {
        format!("others may look into {}: its mode is {mode:o}", folder.display())
    } else {
        return Ok(());
    };
    Err(ConfigError::rule(place, wrong, "a folder with the mode 700, or a name for a new one"))
}

/// Whether the file can be there, be it or not.
fn check_folder(place: &str, path: &Path) -> Result<(), ConfigError> {
    let folder = privileges::folder(path);
    let wrong = match fs::metadata(&folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => format!("{} is no folder", folder.display()),
        Err(error) => format!("{}: {error}", folder.display()),
    };
    Err(ConfigError::rule(place, wrong, "a place in a folder that is there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> Option<String> {
        let words = [&["forward"], words].concat();
        let config = millrace_config::from_arguments(words).unwrap();
        check(&config, &RawConfig::default()).err().map(|error| error.to_string())
    }

    #[test]
    fn what_a_start_would_fail_by_is_told_before() {
        let is_told = |words: &[&str], said: &str| {
            let message = refusal(words).unwrap();
            assert!(message.contains(said), "{message}");
        };
        is_told(
            &["--access-log", "/no/such/a.log"],
            "access-log /no/such/a.log: /no/such: No such",
        );
        is_told(&["--access-log", "/dev/null/a.log"], "/dev/null is no folder");
        is_told(&["--listen", "unix:/no/such/socket"], "listen unix:/no/such/socket: ");
        is_told(&["--admin", "unix:/no/such/socket"], "admin unix:/no/such/socket: ");
        is_told(&["--disk", "/no/such:1G"], "disk /no/such: /no: No such");
        is_told(&["--disk", "/dev/null:1G"], "disk /dev/null: /dev/null is no folder");
        is_told(&["--disk", "/tmp:1G"], "disk /tmp: others may look into /tmp: its mode is 1777");
        is_told(&["--user", "no-such-user"], "/etc/passwd has no \"no-such-user\"");
        let admin = ["--admin", "127.0.0.1:0", "--admin-token-file", "/no/such"];
        is_told(&admin, "admin-token-file /no/such: cannot be read");
    }

    #[test]
    fn what_is_there_is_fine() {
        for log in ["-", "here.log", "/tmp/a.log", "off"] {
            assert_eq!(refusal(&["--access-log", log]), None, "{log}");
        }
        assert_eq!(refusal(&["--disk", "/tmp/not-there-yet:1G"]), None);
        assert_eq!(refusal(&["--user", "root", "--admin", "127.0.0.1:0"]), None);
    }
}
