//! `millrace cache`: requests to the admin address of a running process. Their arguments are not
//! configuration, so they have a table of their own. Help and the reference pages come from this
//! table.

use std::fmt::Write;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};
use millrace_store::Selector;

use super::error::ConfigError;
use super::options::ValueType;
use super::raw::RawValue;
use super::{AdminAddress, value};

/// A request about the cache of a running process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminRequest {
    /// The path at the admin address.
    pub path: &'static str,
    /// Whether the request changes something.
    pub is_change: bool,
    /// The names and values of the query, not yet percent-encoded.
    pub query: Vec<(&'static str, String)>,
    /// The admin address.
    pub admin: AdminAddress,
    /// The file with the authorities that the certificate of the address is verified by; `None` for
    /// those of the system.
    pub ca_file: Option<PathBuf>,
    /// The name that the certificate must be valid for; `None` for the address.
    pub server_name: Option<String>,
    /// The file with the token; `None` if the request has no token.
    pub token_file: Option<PathBuf>,
}

/// An action of `millrace cache`.
struct CacheAction {
    name: &'static str,
    about: &'static str,
    path: &'static str,
    is_change: bool,
    arguments: &'static [ActionArgument],
}

/// An argument of an action, which becomes a parameter of the query with the same name.
struct ActionArgument {
    name: &'static str,
    form: ArgumentForm,
    text: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ArgumentForm {
    /// `--name VALUE`, with this value name.
    Option(&'static str),
    /// `--name`.
    Flag,
    /// A required value without a name.
    RequiredPositional(&'static str),
    /// A value without a name.
    Positional(&'static str),
}

const fn argument(name: &'static str, form: ArgumentForm, text: &'static str) -> ActionArgument {
    ActionArgument { name, form, text }
}

const ACTIONS: &[CacheAction] = &[
    CacheAction {
        name: "list",
        about: "List stored responses with status, size, state, remaining lifetime and URL",
        path: "/cache",
        is_change: false,
        arguments: &[
            argument(
                "prefix",
                ArgumentForm::Positional("URL"),
                "Only URLs with this prefix: http[s]://HOST[:PORT] and the beginning of a path",
            ),
            argument(
                "limit",
                ArgumentForm::Option("N"),
                "Number of responses, 1 to 10000 [default: 100]",
            ),
        ],
    },
    CacheAction {
        name: "show",
        about: "Show the stored responses of a URL with their header fields",
        path: "/cache/object",
        is_change: false,
        arguments: &[argument(
            "url",
            ArgumentForm::RequiredPositional("URL"),
            "The URL as clients request it",
        )],
    },
    CacheAction {
        name: "purge",
        about: "Remove the stored responses of a URL, or those that one option selects",
        path: "/cache/purge",
        is_change: true,
        arguments: &[
            argument("url", ArgumentForm::Positional("URL"), "The URL as `list` prints it"),
            argument(
                "prefix",
                ArgumentForm::Option("URL"),
                "All URLs with this prefix: http[s]://HOST[:PORT] and the beginning of a path",
            ),
            argument(
                "tag",
                ArgumentForm::Option("TAG"),
                "Responses with this tag in Surrogate-Key or Cache-Tag",
            ),
            argument(
                "group",
                ArgumentForm::Option("GROUP"),
                "Responses of --site with this group in Cache-Groups (RFC 9875)",
            ),
            argument(
                "site",
                ArgumentForm::Option("URL"),
                "The site of --group: http[s]://HOST[:PORT]",
            ),
            argument("all", ArgumentForm::Flag, "All responses"),
            argument(
                "soft",
                ArgumentForm::Flag,
                "Mark the responses as stale instead; the rules for stale reuse still apply",
            ),
        ],
    },
    CacheAction {
        name: "stat",
        about: "Print how much is stored and how often it was used",
        path: "/cache/stat",
        is_change: false,
        arguments: &[],
    },
];

/// The arguments of every action.
const COMMON_ARGUMENTS: &[ActionArgument] = &[
    argument(
        "admin",
        ArgumentForm::Option("ADDRESS"),
        "Admin address, unix:PATH, ADDRESS:PORT or tls://ADDRESS:PORT [default: \
         unix:/run/millrace/admin.sock]",
    ),
    argument(
        "ca",
        ArgumentForm::Option("FILE"),
        "PEM file with the authorities of a tls:// address [default: those of the system]",
    ),
    argument(
        "server-name",
        ArgumentForm::Option("NAME"),
        "Name that the certificate of a tls:// address must have [default: the address]",
    ),
    argument(
        "token-file",
        ArgumentForm::Option("FILE"),
        "File with the token of a TCP admin address; `stat` needs none",
    ),
    argument("json", ArgumentForm::Flag, "Print JSON"),
];

const ADMIN_DEFAULT: &str = "unix:/run/millrace/admin.sock";
/// The most responses in one list.
pub const LIST_OBJECTS_MAX: u64 = 10_000;

/// Returns the command for clap, with its actions.
pub(super) fn command(name: &'static str, about: &'static str) -> clap::Command {
    let actions = ACTIONS.iter().map(|action| {
        let arguments = action.arguments.iter().chain(COMMON_ARGUMENTS).map(clap_argument);
        clap::Command::new(action.name).about(action.about).args(arguments)
    });
    clap::Command::new(name)
        .about(about)
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(actions)
}

fn clap_argument(argument: &ActionArgument) -> Arg {
    let arg = Arg::new(argument.name).help(argument.text).next_line_help(true);
    match argument.form {
        ArgumentForm::Flag => arg.long(argument.name).action(ArgAction::SetTrue),
        ArgumentForm::Option(value_name) => {
            arg.long(argument.name).value_name(value_name).value_parser(ValueParser::string())
        }
        ArgumentForm::RequiredPositional(value_name) => arg.value_name(value_name).required(true),
        ArgumentForm::Positional(value_name) => arg.value_name(value_name),
    }
}

/// Converts the arguments that clap has parsed into a request.
pub(super) fn read(matches: &ArgMatches) -> Result<AdminRequest, ConfigError> {
    let (name, matches) = matches.subcommand().expect("clap requires an action");
    let action =
        ACTIONS.iter().find(|action| action.name == name).expect("clap accepts only these actions");
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let mut query: Vec<_> = action
        .arguments
        .iter()
        .filter_map(|argument| match argument.form {
            ArgumentForm::Flag => {
                matches.get_flag(argument.name).then(|| (argument.name, String::new()))
            }
            _ => text(argument.name).map(|value| (argument.name, value)),
        })
        .collect();
    check_query(action, &query)?;
    if action.is_change {
        check_purge(&query)?;
    }
    if !matches.get_flag("json") {
        query.push(("format", "text".to_owned()));
    }
    let address = RawValue {
        location: "--admin".to_owned(),
        text: text("admin").unwrap_or_else(|| ADMIN_DEFAULT.to_owned()),
    };
    let expected =
        || "unix:PATH, ADDRESS:PORT, [IPV6]:PORT, localhost:PORT, tls://ADDRESS:PORT".to_owned();
    let (admin, tls) = value::parse_listener(&address.text)
        .map_err(|problem| address.error(problem, expected()))?;
    let admin = AdminAddress { address: admin, tls };
    let [ca_file, server_name] = ["ca", "server-name"].map(text);
    for (option, is_given) in [("ca", ca_file.is_some()), ("server-name", server_name.is_some())] {
        if is_given && !tls {
            let problem = "has no effect: the admin address does not use TLS";
            let expected = "--admin tls://ADDRESS:PORT";
            return Err(ConfigError::rule(format!("--{option}"), problem, expected));
        }
    }
    Ok(AdminRequest {
        path: action.path,
        is_change: action.is_change,
        query,
        admin,
        ca_file: ca_file.map(PathBuf::from),
        server_name,
        token_file: text("token-file").map(PathBuf::from),
    })
}

/// Checks the values by the rules of the running process, so that errors name the option.
fn check_query(action: &CacheAction, query: &[(&'static str, String)]) -> Result<(), ConfigError> {
    const SITE: &str = "http[s]://HOST[:PORT]";
    const LIMIT: ValueType = ValueType::Number { least: 1, most: LIST_OBJECTS_MAX };
    for (name, text) in query {
        let bytes = text.as_bytes();
        let (problem, expected) = match *name {
            "url" if Selector::url(bytes).is_none() => ("is not a URL", format!("{SITE}/PATH")),
            "prefix" if Selector::prefix(bytes).is_none() => {
                ("is not the beginning of a URL", format!("{SITE} and the beginning of a path"))
            }
            "site" if !Selector::is_site(bytes) => ("is not a site", SITE.to_owned()),
            "limit" => {
                let number = value::parse_number(text);
                match number.and_then(|number| value::check_bounds(number, 1, LIST_OBJECTS_MAX)) {
                    Ok(_) => continue,
                    Err(problem) => (problem, LIMIT.expected()),
                }
            }
            _ => continue,
        };
        let is_option = |argument: &&ActionArgument| {
            argument.name == *name && matches!(argument.form, ArgumentForm::Option(_))
        };
        let option = action.arguments.iter().find(is_option);
        let location = option.map_or("URL".to_owned(), |argument| format!("--{}", argument.name));
        return Err(RawValue { location, text: text.clone() }.error(problem, expected));
    }
    Ok(())
}

/// Checks that a purge has exactly one selection.
fn check_purge(query: &[(&'static str, String)]) -> Result<(), ConfigError> {
    let has = |name: &str| query.iter().any(|(other, _)| *other == name);
    for (option, missing) in [("group", "site"), ("site", "group")] {
        if has(option) && !has(missing) {
            let (location, problem) = (format!("--{option}"), format!("needs --{missing}"));
            let expected = "--group GROUP --site http[s]://HOST[:PORT]";
            return Err(ConfigError::rule(location, problem, expected));
        }
    }
    let selections = ["url", "prefix", "tag", "group", "all"].into_iter().filter(|name| has(name));
    let problem = match selections.count() {
        1 => return Ok(()),
        0 => "does not select what to purge",
        _ => "has more than one selection",
    };
    let expected =
        "exactly one of URL, --prefix URL, --tag TAG, --group GROUP with --site URL, --all";
    Err(ConfigError::rule("cache purge", problem, expected))
}

/// Returns the words that are valid after `millrace cache`, or after an action.
pub(super) fn expected(action: Option<&str>) -> Vec<String> {
    let action = ACTIONS.iter().find(|known| Some(known.name) == action);
    let Some(action) = action else {
        return ACTIONS.iter().map(|action| action.name.to_owned()).collect();
    };
    let arguments = action.arguments.iter().chain(COMMON_ARGUMENTS);
    let options = arguments
        .filter(|argument| matches!(argument.form, ArgumentForm::Option(_) | ArgumentForm::Flag));
    options.map(|argument| format!("--{}", argument.name)).chain(["--help".to_owned()]).collect()
}

/// Returns the form of an argument on a command line.
fn usage(argument: &ActionArgument) -> String {
    match argument.form {
        ArgumentForm::Option(value_name) => format!("--{} {value_name}", argument.name),
        ArgumentForm::Flag => format!("--{}", argument.name),
        ArgumentForm::RequiredPositional(value_name) => value_name.to_owned(),
        ArgumentForm::Positional(value_name) => format!("[{value_name}]"),
    }
}

/// Writes the section of the manual page.
pub(super) fn roff_section(out: &mut String, roff: impl Fn(&str) -> String) {
    out.push_str(".SH CACHE OF A RUNNING PROCESS\n");
    let mut put = |name: &str, about: &str, arguments: &[ActionArgument]| {
        let _ = writeln!(out, ".TP\n.B millrace cache {name}\n{}.", roff(about));
        for argument in arguments {
            let _ = writeln!(
                out,
                ".RS\n.TP\n.B {}\n{}.\n.RE",
                roff(&usage(argument)),
                roff(argument.text)
            );
        }
    };
    put("ACTION", "Options of every action", COMMON_ARGUMENTS);
    ACTIONS.iter().for_each(|action| put(action.name, action.about, action.arguments));
}

/// Writes the section of the reference.
pub(super) fn markdown_section(out: &mut String) {
    out.push_str(
        "\n## The cache of a running process\n\n| command | option | purpose |\n| --- | --- | --- \
         |\n",
    );
    for action in ACTIONS {
        let _ = writeln!(out, "| `millrace cache {}` | | {}. |", action.name, action.about);
        for argument in action.arguments {
            let _ = writeln!(out, "| | `{}` | {}. |", usage(argument), argument.text);
        }
    }
    for argument in COMMON_ARGUMENTS {
        let _ = writeln!(out, "| every action | `{}` | {}. |", usage(argument), argument.text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, command};
    use super::*;
    use crate::config_tests::help;

    fn parse(words: &str) -> Result<AdminRequest, String> {
        match command(words.split_whitespace().map(Into::into)) {
            Ok(Command::Cache(request)) => Ok(request),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn a_command_line_becomes_a_request() {
        let request = parse("millrace cache purge --tag a --soft --admin 127.0.0.1:9180").unwrap();
        let query = [("tag", "a"), ("soft", ""), ("format", "text")];
        let query = query.map(|(name, value)| (name, value.to_owned()));
        assert_eq!((request.path, request.is_change), ("/cache/purge", true));
        assert_eq!(request.query, query);
        assert_eq!(request.admin.to_string(), "127.0.0.1:9180");
        let request = parse("millrace cache list a/b --json --token-file x").unwrap();
        assert_eq!(request.query, [("prefix", "a/b".to_owned())]);
        assert_eq!(request.admin.to_string(), ADMIN_DEFAULT);
        assert_eq!(request.token_file, Some("x".into()));
    }

    #[test]
    fn errors_name_the_argument_and_what_is_expected() {
        for (words, parts) in [
            ("cache", &["cache: ", "list, show, purge, stat"][..]),
            ("cache lst", &["unknown action \"lst\"", "did you mean \"list\"?"]),
            ("cache show", &["cache: ", "URL"]),
            ("cache list --tags a", &["unknown option \"--tags\"", "--limit"]),
            ("cache purge", &["cache purge: does not select", "--group GROUP with --site URL"]),
            ("cache purge a/b --all", &["has more than one selection", "exactly one of URL"]),
            ("cache purge --group a", &["--group: needs --site (expected: --group GROUP --site"]),
            ("cache purge --site http://a", &["--site: needs --group "]),
            (
                "cache purge --group a --site /",
                &["--site: \"/\" is not a site (expected: http[s]:"],
            ),
            ("cache purge /a.html", &["URL: \"/a.html\" is not a URL (expected: http[s]://HOST"]),
            ("cache show /", &["URL: \"/\" is not a URL"]),
            ("cache purge --prefix /", &["--prefix: \"/\" is not the beginning of a URL"]),
            ("cache list --limit 0", &["--limit: \"0\" is too small (expected: a whole number"]),
            ("cache list --limit 10001", &["--limit: \"10001\" is too large", "1 to 10000"]),
            ("cache list --limit all", &["--limit: \"all\" is not a whole number"]),
            ("cache stat --ca a", &["--ca: has no effect", "--admin tls://ADDRESS:PORT"]),
            ("cache stat --server-name a", &["--server-name: has no effect"]),
            ("cache stat --admin 9180", &["--admin: \"9180\" is a port without", "unix:PATH"]),
        ] {
            let line = parse(&format!("millrace {words}")).unwrap_err();
            for part in parts {
                assert!(line.contains(part), "{words}: {line:?} has no {part:?}");
            }
        }
    }

    #[test]
    fn every_argument_is_in_every_page() {
        assert!(help("cache").contains("purge"));
        let pages = ["man", "markdown"].map(|name| super::super::page(name).unwrap());
        for argument in ACTIONS.iter().flat_map(|action| action.arguments).chain(COMMON_ARGUMENTS) {
            assert!(
                pages[0].contains(&argument.text.replace('-', "\\-").replace('`', "")),
                "{}",
                argument.name
            );
            assert!(pages[1].contains(argument.text), "{}", argument.name);
        }
    }
}
