//! Which changes of a configuration need an upgrade or a restart.

use super::Config;
use super::cache::{memory_written, reads_written, send_written, write_disk};
use super::error::ConfigError;
use super::keywords;
use super::toml_text::string_array;
use super::value::write_size;

/// Checks that a process with the configuration `old` can apply `new` by a reload. Both are the
/// configurations as read, with port 0 where the kernel chooses the port. Messages call the file
/// `name`.
///
/// # Errors
/// Returns the first changed setting that a reload cannot apply: threads, pools, disks, sandbox and
/// admin addresses are set up at start.
pub fn check_reload(name: &str, old: &Config, new: &Config) -> Result<(), ConfigError> {
    for (option, value) in FIXED_SETTINGS {
        let (is, wanted) = (value(old), value(new));
        if is != wanted {
            let problem = format!("cannot become {wanted} while the process runs");
            let expected = format!("{is}, or an upgrade or a restart");
            return Err(ConfigError::rule(format!("{name}: {option}"), problem, expected));
        }
    }
    Ok(())
}

/// A setting that only an upgrade or a restart can change: its key, and its value as text.
type FixedSetting = (&'static str, fn(&Config) -> String);

/// The settings that only an upgrade or a restart can change.
const FIXED_SETTINGS: [FixedSetting; 22] = [
    ("engine", |config| keywords::ENGINE.name(config.engine).to_owned()),
    ("uselectd", |config| config.uselectd.display().to_string()),
    ("spin-us", |config| config.spin_us.to_string()),
    ("splice", |config| keywords::SPLICE.name(config.splice).to_owned()),
    ("workers", |config| config.workers.to_string()),
    ("memory", |config| write_size(config.memory_bytes)),
    ("cache-memory", |config| match &config.cache {
        None => "0 (no-cache)".to_owned(),
        cache => memory_written(cache.as_ref()),
    }),
    ("disk", |config| {
        let disks = config.cache.as_ref().map_or(&[][..], |cache| &cache.disks);
        string_array(disks.iter().map(write_disk))
    }),
    ("iolited", |config| match &config.iolited {
        None => "off".to_owned(),
        Some(path) => path.display().to_string(),
    }),
    ("disk-reads", |config| reads_written(config.cache.as_ref()).to_owned()),
    ("cache-send", |config| send_written(config.cache.as_ref()).to_owned()),
    ("admin", |config| match config.admin.as_slice() {
        [] => "off".to_owned(),
        addresses => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }),
    ("user", |config| config.user.to_string()),
    ("sandbox", |config| keywords::SANDBOX.name(config.sandbox).to_owned()),
    ("sandbox-folder", |config| {
        string_array(config.sandbox_folders.iter().map(|folder| folder.display().to_string()))
    }),
    ("cgi-user", |config| config.cgi_user.to_string()),
    ("cgi_programs", |config| config.limits.cgi_programs.to_string()),
    ("cgi_ms", |config| config.limits.cgi_ms.to_string()),
    ("cgi_memory_bytes", |config| config.limits.cgi_memory_bytes.to_string()),
    ("cgi_processes", |config| config.limits.cgi_processes.to_string()),
    ("admin-token-file", |config| {
        let path = config.admin_token_file.as_ref();
        path.map_or_else(|| "none".to_owned(), |path| path.display().to_string())
    }),
    ("admin-name", |config| config.admin_name.clone().unwrap_or_else(|| "none".to_owned())),
];

/// Returns the settings that need an upgrade or a restart, as a sentence for the reference.
pub(super) fn fixed_settings_sentence() -> String {
    let keys: Vec<_> = FIXED_SETTINGS.iter().map(|(key, _)| *key).collect();
    format!(
        "A change of these settings needs an upgrade or a restart: {}. The same is true of no-cache, \
         which sets cache-memory to 0.",
        keys.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineChoice, Splice, from_arguments};

    #[test]
    fn a_change_that_a_reload_cannot_apply_is_an_error() {
        let config = |words: &str| {
            let words = format!("boost --origin=http://a --workers=2 --engine=epoll {words}");
            from_arguments(words.split_whitespace()).unwrap()
        };
        let old = config("--admin=127.0.0.1:0");
        for words in [
            "--listen=[::1]:1",
            "--limit=idle_ms=1s",
            "--access-log=-",
            "--trust=::1",
            "--cache=off",
            "--cache-ttl-max=1h --cache-key=cookie:a --limit=object_bytes=1M",
        ] {
            let new = config(&format!("--admin=127.0.0.1:0 {words}"));
            assert_eq!(check_reload("a", &old, &new), Ok(()), "{words}");
        }
        let other = Config { engine: EngineChoice::Auto, ..old.clone() };
        let message = check_reload("a.toml", &old, &other).unwrap_err().to_string();
        assert_eq!(
            message,
            "a.toml: engine: cannot become auto while the process runs \
             (expected: epoll, or an upgrade or a restart)"
        );
        let fixed = [
            ("splice", Config { splice: Splice::Never, ..old.clone() }),
            ("workers", Config { workers: 3, ..old.clone() }),
            ("memory", Config { memory_bytes: 1 << 30, ..old.clone() }),
            ("cache-memory", Config { cache: None, ..old.clone() }),
            ("disk", config("--admin=127.0.0.1:0 --disk=/a:1G")),
            ("disk-reads", config("--admin=127.0.0.1:0 --disk-reads=always")),
            ("cache-send", config("--admin=127.0.0.1:0 --cache-send=copy")),
            ("sandbox", Config { sandbox: false, ..old.clone() }),
            ("admin", Config { admin: Vec::new(), ..old.clone() }),
            ("admin-token-file", Config { admin_token_file: Some("/a".into()), ..old.clone() }),
            ("admin-name", Config { admin_name: Some("a".to_owned()), ..old.clone() }),
        ];
        let message = check_reload("a", &old, &fixed[3].1).unwrap_err().to_string();
        assert!(message.contains("cannot become 0 (no-cache) while"), "{message}");
        for (option, new) in fixed {
            let message = check_reload("a.toml", &old, &new).unwrap_err().to_string();
            assert!(message.starts_with(&format!("a.toml: {option}: ")), "{message}");
        }
    }
}
