//! Which changes of a configuration need a restart.

use super::Config;
use super::cache::{memory_written, reads_written, send_written, write_disk};
use super::error::ConfigError;
use super::keywords;
use super::toml_text::string_array;
use super::value::write_size;

/// Checks that a process with the configuration `old` can apply `new` without a restart. Both are
/// the configurations as read, with port 0 where the kernel chooses the port. Messages call the
/// file `name`.
///
/// # Errors
/// Returns the first changed setting that needs a restart: threads, pools, disks, sandbox and admin
/// addresses are set up at start.
pub fn check_reload(name: &str, old: &Config, new: &Config) -> Result<(), ConfigError> {
    for ((option, is), (_, wanted)) in restart_only(old).into_iter().zip(restart_only(new)) {
        if is != wanted {
            let problem = format!("cannot become {wanted} while the process runs");
            let expected = format!("{is}, or a restart");
            return Err(ConfigError::rule(format!("{name}: {option}"), problem, expected));
        }
    }
    Ok(())
}

/// Returns the settings that only a restart can change, with their values as text.
fn restart_only(config: &Config) -> [(&'static str, String); 16] {
    let admin: Vec<_> = config.admin.iter().map(ToString::to_string).collect();
    let admin = if admin.is_empty() { "off".to_owned() } else { admin.join(", ") };
    let token = config.admin_token_file.as_ref();
    let token = token.map_or_else(|| "none".to_owned(), |path| path.display().to_string());
    let name = config.admin_name.clone().unwrap_or_else(|| "none".to_owned());
    let cache = config.cache.as_ref();
    let disks = cache.map_or(&[][..], |cache| &cache.disks);
    [
        ("engine", keywords::ENGINE.name(config.engine).to_owned()),
        ("uselectd", config.uselectd.display().to_string()),
        ("spin-us", config.spin_us.to_string()),
        ("splice", keywords::SPLICE.name(config.splice).to_owned()),
        ("workers", config.workers.to_string()),
        ("memory", write_size(config.memory_bytes)),
        ("cache-memory", memory_written(cache)),
        ("disk", string_array(disks.iter().map(write_disk))),
        ("disk-reads", reads_written(cache).to_owned()),
        ("cache-send", send_written(cache).to_owned()),
        ("admin", admin),
        ("user", config.user.to_string()),
        ("sandbox", keywords::SANDBOX.name(config.sandbox).to_owned()),
        (
            "sandbox-folder",
            string_array(config.sandbox_folders.iter().map(|it| it.display().to_string())),
        ),
        ("admin-token-file", token),
        ("admin-name", name),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineChoice, Splice, from_arguments};

    #[test]
    fn a_change_that_needs_a_restart_is_an_error() {
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
             (expected: epoll, or a restart)"
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
        for (option, new) in fixed {
            let message = check_reload("a.toml", &old, &new).unwrap_err().to_string();
            assert!(message.starts_with(&format!("a.toml: {option}: ")), "{message}");
        }
    }
}
