//! Loads the user files of services with authentication. They are read together with the
//! configuration, so that their errors are reported with it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use millrace_config::users::{USERS_BYTES_MAX, Users};
use millrace_config::{Config, ConfigError, RawConfig};

/// Write permission for users other than the owner and the group of a file.
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// Reads the user file of each service in `config` that has one. `raw` is the source of
/// `config`.
///
/// # Errors
/// The first error, with the name of the file and the number of the line.
pub(crate) fn load(config: &mut Config, raw: &RawConfig) -> Result<(), ConfigError> {
    for auth in config.services.iter_mut().filter_map(|service| service.auth.as_mut()) {
        let name = auth.path.display().to_string();
        let text = read(&auth.path).map_err(|wrong| {
            let place = format!("{} {name}", raw.name_of("auth-file"));
            let allowed = format!(
                "a readable file of up to {USERS_BYTES_MAX} bytes, writable only by its owner and \
                 group"
            );
            ConfigError::rule(place, wrong, allowed)
        })?;
        auth.users = Some(Arc::new(Users::parse(&name, &text)?));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    let to_text = |error: std::io::Error| error.to_string();
    // Checked before opening: opening a pipe would wait for its writer.
    if !fs::metadata(path).map_err(to_text)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let file = File::open(path).map_err(to_text)?;
    let found = file.metadata().map_err(to_text)?;
    if !found.is_file() || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err("is writable by other users".to_owned());
    }
    let mut text = String::new();
    // Reading one byte more than allowed detects a file that is too long.
    file.take(USERS_BYTES_MAX as u64 + 1).read_to_string(&mut text).map_err(to_text)?;
    if text.len() > USERS_BYTES_MAX {
        return Err("is too long".to_owned());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn load_file(path: &Path) -> Result<Config, ConfigError> {
        let arguments = ["forward", "--auth-file", path.to_str().unwrap()];
        let mut config = millrace_config::from_arguments(arguments)?;
        load(&mut config, &RawConfig::default()).map(|()| config)
    }

    #[test]
    fn a_file_writable_by_others_is_refused() {
        let path = std::env::temp_dir().join(format!("millrace-users-{}", std::process::id()));
        let token = "0".repeat(64);
        fs::write(&path, format!("# comment\na:token:{token}\n")).unwrap();
        let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o640);
        let config = load_file(&path).unwrap();
        assert!(config.services[0].auth.as_ref().unwrap().users.is_some());
        allow(0o646);
        let message = load_file(&path).unwrap_err().to_string();
        assert!(message.contains("is writable by other users"), "{message}");
        allow(0o600);
        fs::write(&path, "a:token:1\n").unwrap();
        let message = load_file(&path).unwrap_err().to_string();
        assert!(message.contains(&format!("{}:1: ", path.display())), "{message}");
        fs::remove_file(&path).unwrap();
        for path in [path.as_path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(load_file(path).is_err(), "{path:?}");
        }
    }
}
