//! Examples of command lines, which help and the manual page show.

/// A command line and its effect. The texts have no full stop.
pub(super) struct Example {
    /// The command that it shows.
    pub(super) command: &'static str,
    /// The command line. A backslash may continue it on a further line.
    pub(super) line: &'static str,
    /// Its effect.
    pub(super) effect: &'static str,
}

const fn example(command: &'static str, line: &'static str, effect: &'static str) -> Example {
    Example { command, line, effect }
}

/// The examples, in the order of [`COMMANDS`](super::options::COMMANDS).
pub(super) const EXAMPLES: &[Example] = &[
    example("forward", "millrace forward", "Serve programs of this machine on 127.0.0.1:3128"),
    example(
        "forward",
        "millrace forward --listen 0.0.0.0:3128 --allow-client 192.168.0.0/16 --access-log -",
        "Serve a local network and print a record of each exchange",
    ),
    example(
        "boost",
        "millrace boost --origin http://127.0.0.1:8081",
        "Accept requests on 127.0.0.1:8080 and cache the responses of a web server",
    ),
    example(
        "boost",
        "millrace boost --origin http://10.0.0.2,http://10.0.0.3 --disk /var/cache/millrace:10G",
        "Balance two web servers and also store responses on disk",
    ),
    example(
        "boost",
        "millrace boost --origin http://127.0.0.1:8081 --listen tls://0.0.0.0:443 \\\n        \
         --server-name example.org --acme you@example.org",
        "Serve HTTPS with a certificate from Let's Encrypt, and redirect port 80 to it",
    ),
    example("serve", "millrace serve .", "Serve the files of this directory on 127.0.0.1:8080"),
    example(
        "serve",
        "millrace serve /srv/app --fallback /index.html --file-cache-control max-age=600",
        "Serve a single-page application",
    ),
    example(
        "serve",
        "millrace serve /srv/app/public --fastcgi unix:/run/php/php-fpm.sock \\\n        \
         --fallback /index.php",
        "Serve an application in PHP with a front controller",
    ),
    example(
        "serve",
        "millrace serve /srv/www --listen tls://0.0.0.0:443 --server-name example.org \\\n        \
         --acme you@example.org",
        "Serve files over HTTPS with a certificate from Let's Encrypt",
    ),
    example(
        "run",
        "millrace run /etc/millrace/millrace.toml",
        "Run a configuration file, as described in millrace.toml(5)",
    ),
    example(
        "check",
        "millrace check /etc/millrace/millrace.toml",
        "Check a configuration file before a reload",
    ),
    example("doctor", "millrace doctor", "Report which engine and limits millrace would use"),
    example("demo", "millrace demo", "Try millrace in a browser"),
    example("cache", "millrace cache stat", "Print the statistics of the cache"),
    example(
        "cache",
        "millrace cache purge --prefix http://example.org/static/",
        "Purge all stored responses below a URL",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, command, from_raw};

    #[test]
    fn every_example_is_valid() {
        for Example { command: name, line, .. } in EXAMPLES {
            let line = line.replace("\\\n", "");
            let words = line.split_whitespace().map(Into::into);
            let parsed = command(words).unwrap_or_else(|error| panic!("{line}: {error}"));
            if let Command::Serve(raw) = &parsed {
                assert!(matches!(*name, "forward" | "boost" | "serve"), "{line}");
                assert!(from_raw(raw).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn every_command_has_an_example() {
        for (name, _) in crate::options::COMMANDS {
            assert!(EXAMPLES.iter().any(|example| example.command == *name), "{name}");
        }
    }
}
