//! Reads the command line with clap, whose commands are built from the table of options. clap sees
//! every value as text; `build` interprets values, as for files. Messages of clap, which have
//! several lines, are replaced by messages of one line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches};

use super::cache_command::{self, AdminRequest};
use super::error::{ConfigError, nearest};
use super::help;
use super::options::{self, ALIASES, COMMANDS, Group, OptionRow, Scope, ValueType};
use super::raw::{RawConfig, RawLimit, RawService, RawTable, RawValue, ServiceKind};
use crate::limits::Limits;

/// A command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Run the service that the options describe.
    Serve(RawConfig),
    /// Run the configuration of a file.
    Run {
        /// The file.
        file: PathBuf,
        /// Options of the process, which replace those of the file.
        overrides: RawConfig,
    },
    /// Check the configuration of a file and print it.
    Check {
        /// The file.
        file: PathBuf,
        /// Options of the process, which replace those of the file.
        overrides: RawConfig,
        /// Whether to place a test order for each certificate by ACME, and print the results
        /// instead.
        has_test_orders: bool,
    },
    /// Report what this machine supports for a process.
    Doctor {
        /// The file with the configuration; `None`: there is no service.
        file: Option<PathBuf>,
        /// Options of the process, which replace those of the file.
        overrides: RawConfig,
    },
    /// Run the demonstration.
    Demo,
    /// Send a request about the cache to a running process.
    Cache(AdminRequest),
    /// Print the reference page of this name.
    Reference(String),
    /// Print this text: help, or the version.
    Print(String),
}

/// The option of `check` for test orders.
pub(super) const TEST_ORDERS: &str = "acme";
pub(super) const TEST_ORDERS_HELP: &str =
    "Place a test order for each ACME certificate, print the results";

/// The path of the CGI programs of a command line.
const CGI_PATH: &str = "/cgi-bin/";

/// The argument of `serve`, which sets the option `folder`.
pub(super) const FOLDER: &str = "DIR";

/// Reads a command line whose first word is the name of the program.
pub(super) fn read(words: &[OsString]) -> Result<Command, ConfigError> {
    let is_short_help = words.iter().any(|word| word == "-h");
    let matches = match program(is_short_help).try_get_matches_from(with_switch_values(words)) {
        Ok(matches) => matches,
        Err(error) if is_help(&error, words) => {
            return Ok(Command::Print(error.render().to_string()));
        }
        Err(error) => return Err(refusal(words, &error)),
    };
    let (name, matches) = matches.subcommand().expect("clap requires a command");
    let file = || PathBuf::from(text_of(matches, "FILE"));
    Ok(match name {
        "run" => Command::Run { file: file(), overrides: raw_config(name, matches)? },
        "check" => Command::Check {
            file: file(),
            overrides: raw_config(name, matches)?,
            has_test_orders: matches.get_flag(TEST_ORDERS),
        },
        "doctor" => Command::Doctor {
            file: matches.get_one::<String>("FILE").map(PathBuf::from),
            overrides: raw_config(name, matches)?,
        },
        "demo" => Command::Demo,
        "cache" => Command::Cache(cache_command::read(matches)?),
        "reference" => Command::Reference(text_of(matches, "PAGE")),
        _ => Command::Serve(raw_config(name, matches)?),
    })
}

/// Adds the value of each switch of `serve` that is not followed by `on` or `off`: clap would take
/// DIR for it.
fn with_switch_values(words: &[OsString]) -> Vec<OsString> {
    let is_serve = words.get(1).is_some_and(|word| word == "serve");
    let is_switch = |word: &OsString| {
        let flag = word.to_str().and_then(|word| word.strip_prefix("--"));
        let is_it = |row: &OptionRow| row.flag == flag && row.value_type == ValueType::Switch;
        flag.is_some() && OptionRow::TABLE.iter().any(is_it)
    };
    let has_value = |at: usize| words.get(at + 1).is_some_and(|next| next == "on" || next == "off");
    let with_value = |(at, word): (usize, &OsString)| {
        let mut word = word.clone();
        if is_serve && is_switch(&word) && !has_value(at) {
            word.push("=on");
        }
        word
    };
    words.iter().enumerate().map(with_value).collect()
}

/// Returns whether the "error" of clap is a text to print: the help or the version that the user
/// requested, or the help of the program for a command line without a command.
fn is_help(error: &clap::Error, words: &[OsString]) -> bool {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => words.len() < 2,
        _ => false,
    }
}

/// Returns the program for clap. With `is_short_help`, its commands have only the most used options
/// visible, without headings.
fn program(is_short_help: bool) -> clap::Command {
    let commands = COMMANDS.iter().map(|(name, about)| {
        let command = match *name {
            "cache" => cache_command::command(name, about),
            _ => command(name, about, is_short_help),
        };
        let aliases = ALIASES.iter().filter(|(_, command)| command == name);
        command
            .visible_aliases(aliases.map(|(alias, _)| *alias))
            .help_template(help::template(name))
    });
    let reference = clap::Command::new("reference")
        .about("Print a reference page: man, toml, markdown, schema or metrics")
        .hide(true)
        .arg(Arg::new("PAGE").required(true));
    clap::Command::new("millrace")
        .about("A caching HTTP proxy: forward proxy and reverse proxy")
        .version(env!("CARGO_PKG_VERSION"))
        .help_template(help::PROGRAM_TEMPLATE)
        .arg_required_else_help(true)
        .subcommand_required(true)
        .subcommands(commands)
        .subcommand(reference)
}

/// Returns a command with options of the table.
fn command(name: &'static str, about: &'static str, is_short_help: bool) -> clap::Command {
    let rows = OptionRow::TABLE.iter().filter(|row| row.is_of_command(name));
    let mut rows: Vec<_> = rows.collect();
    let short_keys = options::short_help_keys(name);
    let short_order = |row: &OptionRow| short_keys.iter().position(|key| *key == row.key);
    if is_short_help {
        rows.sort_by_key(|row| short_order(row).unwrap_or(usize::MAX));
    } else {
        rows.sort_by_key(|row| Group::ALL.iter().position(|group| *group == row.group));
    }
    let arguments = rows.into_iter().map(|row| match is_short_help {
        true => argument(row).help(help::short(row, name)).hide(short_order(row).is_none()),
        false => argument(row)
            .help(help::long(row, name))
            .help_heading(row.group.title())
            .next_line_help(true),
    });
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    let help = match is_short_help {
        true => help.help("Print this help; --help prints all options"),
        false => help
            .help("Print help; -h prints only the most used options")
            .help_heading("Help")
            .next_line_help(true),
    };
    let command = clap::Command::new(name).about(about).disable_help_flag(true).args(arguments);
    let command = match name {
        "run" | "check" | "doctor" => command.arg(
            Arg::new("FILE")
                .required(name != "doctor")
                .help("A configuration file; see millrace.toml(5)"),
        ),
        "serve" => command
            .arg(Arg::new(FOLDER).required(true).help("The directory whose files are served")),
        _ => command,
    };
    let command = match name {
        "check" => command.arg(
            Arg::new(TEST_ORDERS)
                .long(TEST_ORDERS)
                .help(TEST_ORDERS_HELP)
                .action(ArgAction::SetTrue),
        ),
        _ => command,
    };
    command.arg(help)
}

fn argument(row: &OptionRow) -> Arg {
    let flag = row.flag.expect("rows of a command have a flag");
    let argument = Arg::new(row.key).long(flag);
    // A shorter form of an option that is often typed.
    let argument = if flag == "allow-private" { argument.alias("private") } else { argument };
    if row.value_type == ValueType::Flag {
        return argument.action(ArgAction::SetTrue);
    }
    let argument = match row.value_type {
        ValueType::Switch => argument.num_args(0..=1).default_missing_value("on"),
        _ => argument,
    };
    let action = if row.is_repeatable() { ArgAction::Append } else { ArgAction::Set };
    argument
        .value_name(row.value_type.value_name())
        .value_parser(ValueParser::string())
        .action(action)
}

fn text_of(matches: &ArgMatches, name: &str) -> String {
    matches.get_one::<String>(name).cloned().unwrap_or_default()
}

/// Returns the values of a command, in the form of the tables of a file.
fn raw_config(command: &str, matches: &ArgMatches) -> Result<RawConfig, ConfigError> {
    let table =
        || RawTable { location: command.to_owned(), is_command_line: true, ..RawTable::default() };
    let mut config = RawConfig { process: table(), ..RawConfig::default() };
    let (mut service, mut route, mut programs) = (table(), table(), table());
    for row in OptionRow::TABLE.iter().filter(|row| row.is_of_command(command)) {
        let location = format!("--{}", row.flag.unwrap_or(row.key));
        for text in texts(row, matches) {
            if row.value_type == ValueType::Limit {
                config.limits.push(limit(&location, &text)?);
                continue;
            }
            let table = match row.scope {
                Scope::Process | Scope::Start => &mut config.process,
                Scope::Service | Scope::Forward | Scope::Boost | Scope::Cache => &mut service,
                Scope::Folder if row.key == "cgi" => &mut programs,
                Scope::Route | Scope::Folder => &mut route,
            };
            table.add(row, RawValue { location: location.clone(), text })?;
        }
    }
    let Some(kind) = ServiceKind::ALL.into_iter().find(|kind| kind.name() == command) else {
        return Ok(config);
    };
    if kind == ServiceKind::Serve {
        let row = OptionRow::of_key("folder").expect("the table has the key");
        let (location, text) = (FOLDER.to_owned(), text_of(matches, FOLDER));
        route.add(row, RawValue { location, text })?;
    }
    if !programs.is_empty() {
        let row = OptionRow::of_key("path").expect("the table has the key");
        let (location, text) = ("--cgi".to_owned(), CGI_PATH.to_owned());
        programs.add(row, RawValue { location, text })?;
    }
    let routes = match kind {
        ServiceKind::Forward => Vec::new(),
        _ if programs.is_empty() => vec![route],
        _ => vec![programs, route],
    };
    config.services.push(RawService { kind, routes, table: service });
    Ok(config)
}

/// Returns the values of a row. Origins and keywords may be separated by commas in one word.
fn texts(row: &OptionRow, matches: &ArgMatches) -> Vec<String> {
    if row.value_type == ValueType::Flag {
        return if matches.get_flag(row.key) { vec!["on".to_owned()] } else { Vec::new() };
    }
    let words = matches.get_many::<String>(row.key).into_iter().flatten();
    match row.value_type {
        ValueType::Origin | ValueType::Keyword(_) => {
            words.flat_map(|word| word.split(',')).map(str::to_owned).collect()
        }
        _ => words.cloned().collect(),
    }
}

fn limit(location: &str, text: &str) -> Result<RawLimit, ConfigError> {
    let raw = RawValue { location: location.to_owned(), text: text.to_owned() };
    let Some((name, value)) = text.split_once('=') else {
        return Err(raw.error("has no =", ValueType::Limit.expected()));
    };
    Ok(RawLimit {
        name: name.to_owned(),
        name_location: location.to_owned(),
        value: RawValue { location: format!("{location} {name}"), text: value.to_owned() },
    })
}

/// Returns the one-line error for a command line that clap refuses.
fn refusal(words: &[OsString], error: &clap::Error) -> ConfigError {
    let typed = words.get(1).and_then(|word| word.to_str());
    let command = typed.and_then(options::command_of);
    let action = words.get(2).and_then(|word| word.to_str());
    let location = command.and(typed).unwrap_or_default().to_owned();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    // clap adds the value name to an option: "--workers <N>".
    let option = context(ContextKind::InvalidArg);
    let option = option.split(' ').next().unwrap_or_default().to_owned();
    match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => {
            let found = match option.is_empty() {
                true => context(ContextKind::InvalidSubcommand),
                false => option,
            };
            unknown(location, command, action, &found)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if command == Some("cache") =>
        {
            let expected = cache_command::expected(None).join(", ");
            ConfigError::rule(location, "no action is given", expected)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            ConfigError::rule(location, "no command is given", command_names().join(", "))
        }
        ErrorKind::InvalidUtf8 => ConfigError::rule(location, "an argument is not UTF-8", "UTF-8"),
        ErrorKind::MissingRequiredArgument if command == Some("cache") => {
            ConfigError::rule(location, "the URL is missing", "millrace cache show URL")
        }
        ErrorKind::MissingRequiredArgument if command == Some("serve") => {
            ConfigError::rule(location, "the folder is missing", "millrace serve DIR")
        }
        ErrorKind::MissingRequiredArgument => ConfigError::rule(
            location,
            "the file is missing",
            format!("millrace {} FILE", command.unwrap_or("run")),
        ),
        ErrorKind::ArgumentConflict => ConfigError::rule(option, "is given twice", "one value"),
        ErrorKind::InvalidValue | ErrorKind::NoEquals => {
            ConfigError::rule(option.clone(), "has no value", expected_of_option(&option))
        }
        ErrorKind::TooManyValues => ConfigError::Value {
            location: option,
            found: context(ContextKind::InvalidValue),
            problem: "is given to an option without a value",
            suggestions: Vec::new(),
            expected: "the option alone".to_owned(),
        },
        kind => ConfigError::rule(location, kind.to_string(), expected_of_option(&option)),
    }
}

fn command_names() -> Vec<&'static str> {
    COMMANDS.iter().map(|(name, _)| *name).collect()
}

/// Returns the error for the unknown word `found`. `command` is the command on the command line;
/// `None` if it is missing or unknown. `action` is the word after the command, which may be `found`
/// itself.
fn unknown(
    location: String,
    command: Option<&str>,
    action: Option<&str>,
    found: &str,
) -> ConfigError {
    let is_option = found.starts_with('-');
    let item = match command {
        _ if is_option => "option",
        None => "command",
        Some("cache") if action == Some(found) => "action",
        Some(_) => "argument",
    };
    let expected: Vec<String> = match command {
        None => {
            let others = ["help", "--help", "--version"];
            command_names().into_iter().chain(others).map(str::to_owned).collect()
        }
        Some("cache") => cache_command::expected(action),
        Some(command) => return unknown_to_command(location, item, command, found),
    };
    ConfigError::unknown(location, item, found, &expected)
}

/// Returns the error for a word that is unknown to a command other than `cache`. Its options are
/// too many to list, so the error refers to `--help`.
fn unknown_to_command(
    location: String,
    item: &'static str,
    command: &str,
    found: &str,
) -> ConfigError {
    let name = found.strip_prefix("--").unwrap_or_default();
    let help = format!("an option that \"millrace {command} --help\" lists");
    let argument = match (command, name) {
        ("run" | "check" | "doctor", "config" | "file") => Some("FILE"),
        ("serve", "folder" | "dir" | "directory" | "root") => Some(FOLDER),
        _ => None,
    };
    if let Some(argument) = argument {
        let problem = format!("unknown option \"{found}\"");
        return ConfigError::rule(location, problem, format!("millrace {command} {argument}"));
    }
    if let Some(row) = OptionRow::TABLE.iter().find(|row| row.flag == Some(name)) {
        let problem = format!("{found} is an option of {} only", row.commands());
        return ConfigError::rule(location, problem, help);
    }
    if let Some(row) = OptionRow::TABLE.iter().find(|row| row.flag.is_none() && row.key == name) {
        let expected = format!("{name} in {} of a file", row.toml_tables());
        return ConfigError::rule(location, format!("{found} is a key of files only"), expected);
    }
    let rows = OptionRow::TABLE.iter().filter(|row| row.is_of_command(command));
    let flags: Vec<_> = rows.filter_map(|row| Some(format!("--{}", row.flag?))).collect();
    let limit = || {
        let limit = nearest(name, Limits::TABLE.iter().map(|row| row.name))?;
        Some(format!("--limit {limit}=VALUE"))
    };
    ConfigError::Unknown {
        location,
        item,
        found: found.to_owned(),
        // A word without dashes was not meant as an option.
        nearest: nearest(found, flags.iter().map(String::as_str))
            .or_else(limit)
            .filter(|_| found.starts_with('-')),
        expected: help,
    }
}

fn expected_of_option(option: &str) -> String {
    let row = OptionRow::TABLE.iter().find(|row| row.flag == option.strip_prefix("--"));
    row.map_or_else(|| "what --help lists".to_owned(), |row| row.value_type.expected())
}
