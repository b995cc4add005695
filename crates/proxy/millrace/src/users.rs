//! The files of users that services ask clients against: read when a configuration is, so that what
//! is wrong with one is found together with the rest.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use millrace_config::users::{USERS_BYTES_MAX, Users};
use millrace_config::{Config, ConfigError, RawConfig};

/// Whoever is neither the file's owner nor of its group.
const WRITABLE_BY_OTHERS: u32 = 0o002;

/// Reads the file of each service of `config`, which `tables` mean, that has one.
///
/// # Errors
/// The first thing that is wrong, with the file's name, and the line's number where it is a line.
pub(crate) fn load(config: &mut Config, tables: &RawConfig) -> Result<(), ConfigError> {
    for auth in config.services.iter_mut().filter_map(|service| service.auth.as_mut()) {
        let name = auth.path.display().to_string();
        let text = read(&auth.path).map_err(|wrong| {
            let place = format!("{} {name}", tables.name_of("auth-file"));
            let allowed = format!(
                "a file of up to {USERS_BYTES_MAX} bytes that can be read, and that only its owner \
                 and group can write"
            );
            ConfigError::rule(place, wrong, allowed)
        })?;
        auth.users = Some(Arc::new(Users::parse(&name, &text)?));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    let to_text = |error: std::io::Error| error.to_string();
    // Looked at before it is opened as well: opening a pipe would wait for somebody to write.
    if !fs::metadata(path).map_err(to_text)?.is_file() {
        return Err("is no file".to_owned());
    }
    let file = File::open(path).map_err(to_text)?;
    let found = file.metadata().map_err(to_text)?;
    if !found.is_file() || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err("can be written by everybody".to_owned());
    }
    let mut text = String::new();
    // One byte more than allowed is enough to know that a file is too long.
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
        let words = ["forward", "--auth-file", path.to_str().unwrap()];
        let mut config = millrace_config::from_arguments(words)?;
        load(&mut config, &RawConfig::default()).map(|()| config)
    }

    #[test]
    fn a_file_is_read_unless_anybody_may_write_it() {
        let path = std::env::temp_dir().join(format!("millrace-users-{}", std::process::id()));
        let token = "0".repeat(64);
        fs::write(&path, format!("# nobody\na:token:{token}\n")).unwrap();
        let allow = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        allow(0o640);
        let config = load_file(&path).unwrap();
        assert!(config.services[0].auth.as_ref().unwrap().users.is_some());
        allow(0o646);
        let message = load_file(&path).unwrap_err().to_string();
        assert!(message.contains("can be written by everybody"), "{message}");
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
