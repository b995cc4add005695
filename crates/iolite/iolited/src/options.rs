//! The command line: one [`OptionSpec`] for each option, for parsing, `--help` and errors.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

use iolite::service::DEFAULT_SOCKET;
use lexopt::{Arg, Parser, ValueExt};

use crate::limits::{CACHE_BYTES_DEFAULT, CACHE_BYTES_MIN, CLIENTS_MAX, CLIENTS_PER_USER_DEFAULT};

/// The action that a command line selects.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Write this text to standard output.
    Print(String),
    /// Run the daemon.
    Serve(DaemonOptions),
}

/// The configuration of the daemon.
#[derive(Debug)]
pub(crate) struct DaemonOptions {
    pub(crate) socket: PathBuf,
    /// `None`: as much as memory pressure leaves.
    pub(crate) cache_bytes: Option<u64>,
    /// `None`: half of the cache.
    pub(crate) user_bytes: Option<u64>,
    pub(crate) clients_per_user: usize,
    /// Public folders.
    pub(crate) public: Vec<PathBuf>,
}

/// An option of the command line. Each option takes a value.
struct OptionSpec {
    /// With the leading dashes.
    name: &'static str,
    /// The placeholder of the value in `--help`.
    value: &'static str,
    /// The allowed values, for errors.
    allowed: &'static str,
    /// The description in `--help`.
    text: &'static str,
    /// Stores a value, or returns the reason why it is wrong.
    apply: fn(&mut DaemonOptions, &str) -> Result<(), &'static str>,
}

const OPTIONS: [OptionSpec; 5] = [
    OptionSpec {
        name: "--socket",
        value: "PATH",
        allowed: "a path of up to 107 bytes",
        text: "listen at PATH [default: /run/iolited/iolited.sock]",
        apply: |options, value| {
            options.socket = value.into();
            match value.len() {
                0 => Err("is empty"),
                1..=107 => Ok(()),
                _ => Err("is too long"),
            }
        },
    },
    OptionSpec {
        name: "--cache-memory",
        value: "SIZE|auto",
        allowed: "bytes, or a number with K, M or G, from 16M; or auto",
        text: "limit the memory of cached files [default: 256M]",
        apply: |options, value| {
            let bytes = (value != "auto").then(|| parse_size(value)).transpose()?;
            options.cache_bytes = bytes;
            if bytes.is_some_and(|of| of < CACHE_BYTES_MIN) { Err("is too small") } else { Ok(()) }
        },
    },
    OptionSpec {
        name: "--user-memory",
        value: "SIZE",
        allowed: "bytes, or a number with K, M or G, from 1M",
        text: "limit the memory that one user holds [default: half]",
        apply: |options, value| {
            let bytes = parse_size(value)?;
            options.user_bytes = Some(bytes);
            if bytes < 1 << 20 { Err("is too small") } else { Ok(()) }
        },
    },
    OptionSpec {
        name: "--per-user",
        value: "N",
        allowed: "a number from 1 to 1024",
        text: "limit connected processes of a user [default: 128]",
        apply: |options, value| {
            options.clients_per_user = value.parse().map_err(|_| "is not a number")?;
            match options.clients_per_user {
                0 => Err("is too small"),
                1..=CLIENTS_MAX => Ok(()),
                _ => Err("is too large"),
            }
        },
    },
    OptionSpec {
        name: "--public",
        value: "DIR",
        allowed: "a folder; several times for several",
        text: "pack short files there that all users may read",
        apply: |options, value| {
            options.public.push(value.into());
            if value.is_empty() { Err("is empty") } else { Ok(()) }
        },
    },
];

impl DaemonOptions {
    /// Parses a command line without the name of the program. If an option occurs several times,
    /// its last value applies; of `--public`, all.
    ///
    /// # Errors
    /// One line that names the option, the value and what is allowed.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Invocation, String> {
        let mut options = Self {
            socket: DEFAULT_SOCKET.into(),
            cache_bytes: Some(CACHE_BYTES_DEFAULT),
            user_bytes: None,
            clients_per_user: CLIENTS_PER_USER_DEFAULT,
            public: Vec::new(),
        };
        let mut parser = Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            let spec = match &argument {
                Arg::Long("help") => return Ok(Invocation::Print(help())),
                Arg::Long("version") => return Ok(Invocation::Print(VERSION.to_owned())),
                Arg::Long(name) => OPTIONS.iter().find(|spec| spec.name[2..] == **name),
                Arg::Short(_) | Arg::Value(_) => None,
            };
            let Some(OptionSpec { name, allowed, apply, .. }) = spec else {
                let names = OPTIONS.map(|spec| spec.name).join(", ");
                let error = argument.unexpected();
                return Err(format!("{error} (expected: {names}, --help, --version)"));
            };
            let value = parser.value().and_then(ValueExt::string);
            let value = value.map_err(|error| format!("{error} (expected: {allowed})"))?;
            apply(&mut options, &value)
                .map_err(|wrong| format!("{name}: {value:?} {wrong} (expected: {allowed})"))?;
        }
        Ok(Invocation::Serve(options))
    }
}

/// Parses a number of bytes, with a suffix for powers of 1024.
fn parse_size(text: &str) -> Result<u64, &'static str> {
    const WRONG: &str = "is no size";
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| WRONG)?;
    number.checked_mul(1 << shift).ok_or("is too large")
}

const VERSION: &str = concat!("iolited ", env!("CARGO_PKG_VERSION"), "\n");

const USAGE: &str = "\
Caches files in memory that programs read where it is (libiolite).

Usage: iolited [OPTION]...
";

fn help() -> String {
    let mut text = format!("{USAGE}\nOptions:\n");
    for OptionSpec { name, value, text: description, .. } in &OPTIONS {
        let option = format!("{name} {value}");
        writeln!(text, "  {option:<22} {description}").expect("a string takes all text");
    }
    text + "  --help                 print this help\n  --version              print the version\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<DaemonOptions, String> {
        let words = line.split(' ').filter(|word| !word.is_empty()).map(OsString::from);
        match DaemonOptions::parse(words)? {
            Invocation::Serve(options) => Ok(options),
            Invocation::Print(_) => Err("help or version".to_owned()),
        }
    }

    #[test]
    fn values_are_stored() {
        let options = parse("").unwrap();
        assert_eq!(options.socket.to_str(), Some("/run/iolited/iolited.sock"));
        assert_eq!((options.cache_bytes, options.user_bytes), (Some(256 << 20), None));
        let options = parse("--socket a --cache-memory 1G --user-memory=7M --per-user 9").unwrap();
        assert_eq!(options.socket.to_str(), Some("a"));
        assert_eq!((options.cache_bytes, options.user_bytes), (Some(1 << 30), Some(7 << 20)));
        assert_eq!(options.clients_per_user, 9);
        let public = parse("--public a --public b").unwrap().public;
        assert_eq!(public, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(parse("--cache-memory auto").unwrap().cache_bytes, None);
    }

    #[test]
    fn an_error_is_one_line_that_names_what_is_allowed() {
        let wrong = [
            ("--sockets a", "invalid option '--sockets' (expected: --socket, --cache-memory,"),
            ("now", "unexpected argument \"now\" (expected: --socket, --cache-memory,"),
            ("--socket", "missing argument for option '--socket' (expected: a path of up to 107"),
            ("--cache-memory 1X", "--cache-memory: \"1X\" is no size (expected: bytes, or a"),
            ("--cache-memory 15M", "--cache-memory: \"15M\" is too small (expected: bytes, or"),
            ("--cache-memory M", "--cache-memory: \"M\" is no size (expected: bytes, or a"),
            (
                "--cache-memory automatic",
                "--cache-memory: \"automatic\" is no size (expected: bytes, or a number with K, M \
                 or G, from 16M; or auto)",
            ),
            ("--user-memory 17179869184G", "--user-memory: \"17179869184G\" is too large (exp"),
            ("--per-user 0", "--per-user: \"0\" is too small (expected: a number from 1 to 1024"),
            ("--per-user 1025", "--per-user: \"1025\" is too large (expected: a number from 1"),
        ];
        for (line, begin) in wrong {
            let mistake = parse(line).unwrap_err();
            assert!(mistake.starts_with(begin) && !mistake.contains('\n'), "{mistake}");
        }
        assert_eq!(CLIENTS_MAX, 1024);
        assert!(help().lines().all(|line| line.len() <= 80), "{}", help());
    }
}
