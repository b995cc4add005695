//! `millrace cache`: what a command line asks of a process that runs, by its admin address. A table
//! of its own, since none of it is configuration; help and the reference pages come from it.

use std::fmt::Write;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches};
use millrace_store::Selector;

use super::error::ConfigError;
use super::options::ValueType;
use super::raw::RawValue;
use super::{ListenAddress, value};

/// What is asked of the cache of a running process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdminRequest {
    /// The path at the admin address.
    pub path: &'static str,
    /// Whether it changes something.
    pub is_change: bool,
    /// The query: names and values, not encoded.
    pub query: Vec<(&'static str, String)>,
    /// Where the process is asked.
    pub admin: ListenAddress,
    /// Where the token is; `None`: it goes without.
    pub token_file: Option<PathBuf>,
}

/// Something to ask for.
struct CacheAction {
    name: &'static str,
    about: &'static str,
    path: &'static str,
    is_change: bool,
    words: &'static [ActionArgument],
}

/// A word of the command line, which is one of the query too.
struct ActionArgument {
    name: &'static str,
    form: ArgumentForm,
    text: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ArgumentForm {
    /// `--name VALUE`
    Option(&'static str),
    /// `--name`
    Flag,
    /// Without its name, and needed.
    RequiredPositional(&'static str),
    /// Without its name.
    Positional(&'static str),
}

impl ActionArgument {
    const fn text(self, text: &'static str) -> Self {
        Self { text, ..self }
    }
}

/// A word; [`Word::text`] follows.
const fn word(name: &'static str, form: ArgumentForm) -> ActionArgument {
    ActionArgument { name, form, text: "" }
}

const ACTIONS: &[CacheAction] = &[
    CacheAction {
        name: "list",
        about: "List what is stored: status, size, state, seconds left, URL, and what else is in \
                the key",
        path: "/cache",
        is_change: false,
        words: &[
            word("prefix", ArgumentForm::Positional("URL"))
                .text("Only URLs that begin so: http://HOST[:PORT], and the beginning of a path."),
            word("limit", ArgumentForm::Option("N"))
                .text("So many at most: 1 to 10000. Default: 100."),
        ],
    },
    CacheAction {
        name: "show",
        about: "Show what is stored for a URL, with its head",
        path: "/cache/object",
        is_change: false,
        words: &[word("url", ArgumentForm::RequiredPositional("URL"))
            .text("The URL, as clients ask for it.")],
    },
    CacheAction {
        name: "purge",
        about: "Take out what is stored for a URL, or what one of the options names",
        path: "/cache/purge",
        is_change: true,
        words: &[
            word("url", ArgumentForm::Positional("URL")).text("The URL, as `list` shows it."),
            word("prefix", ArgumentForm::Option("URL"))
                .text("All URLs that begin so: http://HOST[:PORT], and the beginning of a path."),
            word("tag", ArgumentForm::Option("TAG"))
                .text("What has this in its Surrogate-Key or Cache-Tag."),
            word("group", ArgumentForm::Option("GROUP")).text(
                "What has this in its Cache-Groups (RFC 9875), of the site that --site names.",
            ),
            word("site", ArgumentForm::Option("URL"))
                .text("The site of --group: http://HOST[:PORT]."),
            word("all", ArgumentForm::Flag).text("Everything."),
            word("soft", ArgumentForm::Flag).text(
                "Leave it, but stale: it is validated, and used meanwhile or if the origin fails \
                 where stale answers may be.",
            ),
        ],
    },
    CacheAction {
        name: "stat",
        about: "Say how much is stored, and what became of it",
        path: "/cache/stat",
        is_change: false,
        words: &[],
    },
];

/// What every action takes.
const COMMON_ARGUMENTS: &[ActionArgument] = &[
    word("admin", ArgumentForm::Option("ADDRESS")).text(
        "An admin address of the running process: unix:PATH, or ADDRESS:PORT. Default: \
         unix:/run/millrace/admin.sock.",
    ),
    word("token-file", ArgumentForm::Option("FILE"))
        .text("The file with the token of admin-token-file, which all but `stat` need over TCP."),
    word("json", ArgumentForm::Flag).text("Print JSON, for programs."),
];

const ADMIN_DEFAULT: &str = "unix:/run/millrace/admin.sock";
/// The most that one list has.
pub const LIST_OBJECTS_MAX: u64 = 10_000;

/// The command for clap, as `millrace NAME` is to be.
pub(super) fn command(name: &'static str, about: &'static str) -> clap::Command {
    let actions = ACTIONS.iter().map(|action| {
        let words = action.words.iter().chain(COMMON_ARGUMENTS).map(argument);
        clap::Command::new(action.name).about(action.about).args(words)
    });
    clap::Command::new(name)
        .about(about)
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(actions)
}

fn argument(word: &ActionArgument) -> Arg {
    let argument = Arg::new(word.name).help(word.text).next_line_help(true);
    match word.form {
        ArgumentForm::Flag => argument.long(word.name).action(ArgAction::SetTrue),
        ArgumentForm::Option(placeholder) => {
            argument.long(word.name).value_name(placeholder).value_parser(ValueParser::string())
        }
        ArgumentForm::RequiredPositional(placeholder) => {
            argument.value_name(placeholder).required(true)
        }
        ArgumentForm::Positional(placeholder) => argument.value_name(placeholder),
    }
}

/// What clap has found.
pub(super) fn read(matches: &ArgMatches) -> Result<AdminRequest, ConfigError> {
    let (name, matches) = matches.subcommand().expect("clap insists on one");
    let action = ACTIONS.iter().find(|action| action.name == name).expect("clap knows no others");
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let mut query: Vec<_> = action
        .words
        .iter()
        .filter_map(|word| match word.form {
            ArgumentForm::Flag => matches.get_flag(word.name).then(|| (word.name, String::new())),
            _ => text(word.name).map(|value| (word.name, value)),
        })
        .collect();
    check_query(action, &query)?;
    if action.is_change {
        check_purge(&query)?;
    }
    if !matches.get_flag("json") {
        query.push(("format", "text".to_owned()));
    }
    let given = RawValue {
        location: "--admin".to_owned(),
        text: text("admin").unwrap_or_else(|| ADMIN_DEFAULT.to_owned()),
    };
    let expected = || "unix:PATH, ADDRESS:PORT, [IPV6]:PORT, localhost:PORT".to_owned();
    let admin =
        value::listen_address(&given.text).map_err(|problem| given.error(problem, expected()))?;
    Ok(AdminRequest {
        path: action.path,
        is_change: action.is_change,
        query,
        admin,
        token_file: text("token-file").map(PathBuf::from),
    })
}

/// Refuses the values that the running process would refuse.
fn check_query(action: &CacheAction, query: &[(&'static str, String)]) -> Result<(), ConfigError> {
    const SITE: &str = "http://HOST[:PORT]";
    const LIMIT: ValueType = ValueType::Number { least: 1, most: LIST_OBJECTS_MAX };
    for (name, text) in query {
        let bytes = text.as_bytes();
        let (problem, expected) = match *name {
            "url" if Selector::url(bytes).is_none() => ("is not a URL", format!("{SITE}/PATH")),
            "prefix" if Selector::prefix(bytes).is_none() => {
                ("is not the beginning of a URL", format!("{SITE}, and the beginning of a path"))
            }
            "site" if !Selector::is_site(bytes) => ("is not a site", SITE.to_owned()),
            "limit" => {
                let number = value::number(text);
                match number.and_then(|number| value::within(number, 1, LIST_OBJECTS_MAX)) {
                    Ok(_) => continue,
                    Err(problem) => (problem, LIMIT.expected()),
                }
            }
            _ => continue,
        };
        let is_option = |word: &&ActionArgument| {
            word.name == *name && matches!(word.form, ArgumentForm::Option(_))
        };
        let option = action.words.iter().find(is_option);
        let location = option.map_or("URL".to_owned(), |word| format!("--{}", word.name));
        return Err(RawValue { location, text: text.clone() }.error(problem, expected));
    }
    Ok(())
}

/// Says at once what the running process would: that one thing has to be named.
fn check_purge(query: &[(&'static str, String)]) -> Result<(), ConfigError> {
    let has = |name: &str| query.iter().any(|(other, _)| *other == name);
    for (given, missing) in [("group", "site"), ("site", "group")] {
        if has(given) && !has(missing) {
            let (location, problem) = (format!("--{given}"), format!("needs --{missing}"));
            let expected = "--group GROUP --site http://HOST[:PORT]";
            return Err(ConfigError::rule(location, problem, expected));
        }
    }
    let named = ["url", "prefix", "tag", "group", "all"].into_iter().filter(|name| has(name));
    if named.count() == 1 {
        return Ok(());
    }
    let expected = "one of URL, --prefix URL, --tag TAG, --group GROUP with --site URL, and --all";
    Err(ConfigError::rule("cache purge", "does not name one thing", expected))
}

/// What may stand where clap has found something else: after `millrace cache`, or after an action.
pub(super) fn expected(action: Option<&str>) -> Vec<String> {
    let action = ACTIONS.iter().find(|known| Some(known.name) == action);
    let Some(action) = action else {
        return ACTIONS.iter().map(|action| action.name.to_owned()).collect();
    };
    let words = action.words.iter().chain(COMMON_ARGUMENTS);
    let named =
        words.filter(|word| matches!(word.form, ArgumentForm::Option(_) | ArgumentForm::Flag));
    named.map(|word| format!("--{}", word.name)).chain(["--help".to_owned()]).collect()
}

/// A word as it is given.
fn usage(word: &ActionArgument) -> String {
    match word.form {
        ArgumentForm::Option(placeholder) => format!("--{} {placeholder}", word.name),
        ArgumentForm::Flag => format!("--{}", word.name),
        ArgumentForm::RequiredPositional(placeholder) => placeholder.to_owned(),
        ArgumentForm::Positional(placeholder) => format!("[{placeholder}]"),
    }
}

/// The part of the program's manual page.
pub(super) fn roff_section(out: &mut String, roff: impl Fn(&str) -> String) {
    out.push_str(".SH CACHE OF A RUNNING PROCESS\n");
    let mut put = |name: &str, about: &str, words: &[ActionArgument]| {
        let _ = writeln!(out, ".TP\n.B millrace cache {name}\n{}.", roff(about));
        for word in words {
            let _ = writeln!(out, ".RS\n.TP\n.B {}\n{}\n.RE", roff(&usage(word)), roff(word.text));
        }
    };
    put("...", "Each of them takes", COMMON_ARGUMENTS);
    ACTIONS.iter().for_each(|action| put(action.name, action.about, action.words));
}

/// The part of the reference.
pub(super) fn markdown_section(out: &mut String) {
    out.push_str(
        "\n## The cache of a running process\n\n| command | option | what for |\n| --- | --- | --- \
         |\n",
    );
    for action in ACTIONS {
        let _ = writeln!(out, "| `millrace cache {}` | | {}. |", action.name, action.about);
        for word in action.words {
            let _ = writeln!(out, "| | `{}` | {} |", usage(word), word.text);
        }
    }
    for word in COMMON_ARGUMENTS {
        let _ = writeln!(out, "| each of them | `{}` | {} |", usage(word), word.text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, command};
    use super::*;
    use crate::config_tests::help;

    fn asked(words: &str) -> Result<AdminRequest, String> {
        match command(words.split_whitespace().map(Into::into)) {
            Ok(Command::Cache(asking)) => Ok(asking),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn words_become_a_request() {
        let asking = asked("millrace cache purge --tag a --soft --admin 127.0.0.1:9180").unwrap();
        let query = [("tag", "a"), ("soft", ""), ("format", "text")];
        let query = query.map(|(name, value)| (name, value.to_owned()));
        assert_eq!((asking.path, asking.is_change), ("/cache/purge", true));
        assert_eq!(asking.query, query);
        assert_eq!(asking.admin.to_string(), "127.0.0.1:9180");
        let asking = asked("millrace cache list a/b --json --token-file x").unwrap();
        assert_eq!(asking.query, [("prefix", "a/b".to_owned())]);
        assert_eq!(asking.admin.to_string(), ADMIN_DEFAULT);
        assert_eq!(asking.token_file, Some("x".into()));
    }

    #[test]
    fn what_is_wrong_is_said_in_a_line_with_what_is_allowed() {
        for (words, parts) in [
            ("cache", &["cache: ", "list, show, purge, stat"][..]),
            ("cache lst", &["unknown command \"lst\"", "did you mean \"list\"?"]),
            ("cache show", &["cache: ", "URL"]),
            ("cache list --tags a", &["unknown option \"--tags\"", "--limit"]),
            ("cache purge", &["cache purge: ", "--group GROUP with --site URL"]),
            ("cache purge a/b --all", &["one of URL"]),
            ("cache purge --group a", &["--group: needs --site (expected: --group GROUP --site"]),
            ("cache purge --site http://a", &["--site: needs --group "]),
            ("cache purge --group a --site /", &["--site: \"/\" is not a site (expected: http:"]),
            ("cache purge /a.html", &["URL: \"/a.html\" is not a URL (expected: http://HOST"]),
            ("cache show /", &["URL: \"/\" is not a URL"]),
            ("cache purge --prefix /", &["--prefix: \"/\" is not the beginning of a URL"]),
            ("cache list --limit 0", &["--limit: \"0\" is too small (expected: a whole number"]),
            ("cache list --limit 10001", &["--limit: \"10001\" is too large", "1 to 10000"]),
            ("cache list --limit all", &["--limit: \"all\" is not a whole number"]),
            ("cache stat --admin 9180", &["--admin: \"9180\" is a port without", "unix:PATH"]),
        ] {
            let line = asked(&format!("millrace {words}")).unwrap_err();
            for part in parts {
                assert!(line.contains(part), "{words}: {line:?} has no {part:?}");
            }
        }
    }

    #[test]
    fn every_word_is_in_every_page() {
        assert!(help("cache").contains("purge"));
        let pages = ["man", "markdown"].map(|name| super::super::page(name).unwrap());
        for word in ACTIONS.iter().flat_map(|action| action.words).chain(COMMON_ARGUMENTS) {
            assert!(pages[0].contains(&word.text.replace('-', "\\-")), "{}", word.name);
            assert!(pages[1].contains(word.text), "{}", word.name);
        }
    }
}
