//! The command line: one [`OptionSpec`] for each option, for parsing, `--help` and errors.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

use lexopt::{Arg, Parser, ValueExt};
use uselectd::{AccessPolicy, REGIONS_MAX};

/// The action that a command line selects.
pub(crate) enum Invocation {
    /// Write this text to standard output.
    Print(String),
    /// Run the daemon.
    Serve(DaemonOptions),
}

/// The configuration of the daemon.
pub(crate) struct DaemonOptions {
    pub(crate) socket: PathBuf,
    pub(crate) policy: AccessPolicy,
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
    /// Stores a value, or returns what is wrong with it.
    apply: fn(&mut DaemonOptions, &str) -> Result<(), &'static str>,
}

const OPTIONS: [OptionSpec; 5] = [
    OptionSpec {
        name: "--socket",
        value: "PATH",
        allowed: "a path of up to 107 bytes",
        text: "listen at this path [default: /run/uselectd.sock]",
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
        name: "--allow-user",
        value: "USER",
        allowed: "a number up to 4294967295, or a name in /etc/passwd",
        text: "register processes of this user",
        apply: |options, value| {
            options.policy.users.push(parse_id(value, "/etc/passwd")?);
            Ok(())
        },
    },
    OptionSpec {
        name: "--allow-group",
        value: "GROUP",
        allowed: "a number up to 4294967295, or a name in /etc/group",
        text: "register processes that have this group",
        apply: |options, value| {
            options.policy.groups.push(parse_id(value, "/etc/group")?);
            Ok(())
        },
    },
    OptionSpec {
        name: "--allow-cgroup",
        value: "PATH",
        allowed: "a path from the cgroup v2 root, such as /system.slice",
        text: "register processes in this cgroup or below it",
        apply: |options, value| {
            let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
            let path = Path::new(value);
            options.policy.cgroups.push(path.to_owned());
            match path.is_absolute() && path.components().all(is_plain) {
                true => Ok(()),
                false => Err("is not such a path"),
            }
        },
    },
    OptionSpec {
        name: "--per-user",
        value: "N",
        allowed: "a number from 1 to 256",
        text: "limit registered processes of a user [default: 32]",
        apply: |options, value| {
            options.policy.per_user = value.parse().map_err(|_| "is not a number")?;
            match options.policy.per_user {
                0 => Err("is too small"),
                1..=REGIONS_MAX => Ok(()),
                _ => Err("is too large"),
            }
        },
    },
];

impl DaemonOptions {
    /// Parses a command line without the name of the program. An `--allow-…` option may occur
    /// several times and adds to its list. If any other option occurs several times, its last value
    /// applies.
    ///
    /// # Errors
    /// One line that names the option, the value and what is allowed.
    pub(crate) fn parse(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Invocation, String> {
        let mut options =
            Self { socket: uselect::DEFAULT_SOCKET.into(), policy: AccessPolicy::default() };
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

const VERSION: &str = concat!("uselectd ", env!("CARGO_PKG_VERSION"), "\n");

const USAGE: &str = "\
usage: uselectd [OPTION VALUE]...

Registers processes, which then read the state of their sockets from memory.
Without an --allow option, only processes of root are registered.

";

/// Returns the text of `--help`.
fn help() -> String {
    let mut text = String::from(USAGE);
    let specs =
        OPTIONS.map(|OptionSpec { name, value, text, .. }| (format!("{name} {value}"), text));
    let flags = [("--help", "print this help"), ("--version", "print the version")];
    let flags = flags.map(|(name, text)| (name.to_owned(), text));
    for (option, description) in specs.into_iter().chain(flags) {
        writeln!(text, "  {option:<21} {description}").expect("writing to a string cannot fail");
    }
    text
}

/// Parses the id of a user or a group: a number, or a name in `file` (passwd(5), group(5)).
fn parse_id(word: &str, file: &str) -> Result<u32, &'static str> {
    if let Ok(number) = word.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string(file)
        .map_err(|_| "is not a number, and the names cannot be read")?;
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(':'));
    let number = line.and_then(|line| line.split(':').nth(1)?.parse().ok());
    number.filter(|_| !word.is_empty()).ok_or("is unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<DaemonOptions, String> {
        parse_words(line.split(' ').filter(|word| !word.is_empty()))
    }

    fn parse_words<'a>(words: impl Iterator<Item = &'a str>) -> Result<DaemonOptions, String> {
        match DaemonOptions::parse(words.map(OsString::from))? {
            Invocation::Serve(options) => Ok(options),
            Invocation::Print(_) => Err("help or version".to_owned()),
        }
    }

    #[test]
    fn values_are_stored() {
        let options = parse("").unwrap();
        assert_eq!(options.socket, Path::new("/run/uselectd.sock"));
        let AccessPolicy { users, groups, cgroups, per_user } = options.policy;
        assert!(users.is_empty() && groups.is_empty() && cgroups.is_empty());
        assert_eq!(per_user, 32);
        let lists = "--allow-user 7 --allow-user root --allow-group 4294967295 --allow-group root";
        let options = parse(&format!("--socket=a {lists} --allow-cgroup /a/b/ --per-user 256"));
        let DaemonOptions { socket, policy } = options.unwrap();
        let AccessPolicy { users, groups, cgroups, per_user } = policy;
        assert_eq!((socket.as_path(), users), (Path::new("a"), vec![7, 0]));
        assert_eq!((groups, per_user), (vec![u32::MAX, 0], 256));
        assert_eq!(cgroups, [Path::new("/a/b")]);
    }

    #[test]
    fn an_error_is_one_line_that_names_what_is_allowed() {
        let wrong = [
            ("--allow", "invalid option '--allow' (expected: --socket, --allow-user,"),
            ("-s", "invalid option '-s' (expected: --socket, --allow-user,"),
            ("now", "unexpected argument \"now\" (expected: --socket, --allow-user,"),
            ("--socket", "missing argument for option '--socket' (expected: a path of up to 107"),
            ("--allow-user x\n", "--allow-user: \"x\\n\" is unknown (expected: a number up to"),
            ("--allow-user 4294967296", "--allow-user: \"4294967296\" is unknown (expected: a"),
            ("--allow-user -1", "--allow-user: \"-1\" is unknown (expected: a number up to"),
            ("--allow-group roo", "--allow-group: \"roo\" is unknown (expected: a number up to"),
            ("--allow-cgroup a", "--allow-cgroup: \"a\" is not such a path (expected: a path from"),
            (
                "--allow-cgroup /a/../b",
                "--allow-cgroup: \"/a/../b\" is not such a path (expected: a",
            ),
            ("--per-user 0", "--per-user: \"0\" is too small (expected: a number from 1 to 256"),
            (
                "--per-user 257",
                "--per-user: \"257\" is too large (expected: a number from 1 to 256",
            ),
            ("--per-user -1", "--per-user: \"-1\" is not a number (expected: a number from 1 to"),
        ];
        for (line, begin) in wrong {
            let mistake = parse(line).err().unwrap();
            assert!(mistake.starts_with(begin) && !mistake.contains('\n'), "{mistake}");
        }
        assert!(parse(&format!("--socket {}", "a".repeat(107))).is_ok());
        let long = "a".repeat(108);
        let mistake = parse(&format!("--socket {long}")).err().unwrap();
        assert!(mistake.starts_with(&format!("--socket: \"{long}\" ")), "{mistake}");
        assert!(mistake.ends_with("(expected: a path of up to 107 bytes)"), "{mistake}");
        let mistake = parse_words(["--allow-user", ""].into_iter()).err().unwrap();
        assert!(mistake.starts_with("--allow-user: \"\" is unknown (expected: "), "{mistake}");
        // The text of --per-user contains this number.
        assert_eq!(REGIONS_MAX, 256);
        assert!(help().lines().all(|line| line.len() <= 80), "{}", help());
    }
}
