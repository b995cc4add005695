//! Reads the command line by clap, whose commands are built from the table of options. clap sees
//! every value as text: what it means is decided in `build`, as for files. clap's messages of many
//! lines are replaced by ours of one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches};

use super::cache_command::{self, AdminRequest};
use super::error::{ConfigError, nearest};
use super::options::{COMMANDS, OptionRow, Scope, ValueType};
use super::raw::{RawConfig, RawLimit, RawService, RawTable, RawValue};

/// What a command line asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Run the service that the options describe.
    Serve(RawConfig),
    /// Run what a file describes, with these options before its own.
    Run {
        /// The file.
        file: PathBuf,
        /// Options of the process.
        over: RawConfig,
    },
    /// Check the same and print it.
    Check {
        /// The file.
        file: PathBuf,
        /// Options of the process.
        over: RawConfig,
    },
    /// Say what this machine offers to a process with these options.
    Doctor(RawConfig),
    /// Run the demonstration.
    Demo,
    /// Ask a running process about its cache.
    Cache(AdminRequest),
    /// Print a page of the reference, by its name.
    Reference(String),
    /// Print this text: help, or the version.
    Print(String),
}

/// The width of help, in columns.
const HELP_COLUMNS: usize = 92;

/// Reads a command line whose first word is the program's name.
pub(super) fn read(words: &[OsString]) -> Result<Command, ConfigError> {
    let matches = match program().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            return Ok(Command::Print(error.render().to_string()));
        }
        Err(error) => return Err(refused(words, &error)),
    };
    let (name, matches) = matches.subcommand().expect("clap insists on a command");
    let file = || PathBuf::from(text_of(matches, "FILE"));
    Ok(match name {
        "run" => Command::Run { file: file(), over: tables(name, matches)? },
        "check" => Command::Check { file: file(), over: tables(name, matches)? },
        "doctor" => Command::Doctor(tables(name, matches)?),
        "demo" => Command::Demo,
        "cache" => Command::Cache(cache_command::read(matches)?),
        "reference" => Command::Reference(text_of(matches, "PAGE")),
        _ => Command::Serve(tables(name, matches)?),
    })
}

fn program() -> clap::Command {
    let commands = COMMANDS.iter().map(|(name, about)| {
        if *name == "cache" {
            return cache_command::command(name, about);
        }
        let rows = OptionRow::TABLE.iter().filter(|row| row.is_of_command(name));
        let command = clap::Command::new(*name).about(*about).args(rows.map(argument));
        match *name {
            "run" | "check" => command
                .arg(Arg::new("FILE").required(true).help("A configuration, see millrace.toml(5)")),
            _ => command,
        }
    });
    let reference = clap::Command::new("reference").hide(true).arg(Arg::new("PAGE").required(true));
    clap::Command::new("millrace")
        .about("An HTTP proxy: forward proxy and booster")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommands(commands)
        .subcommand(reference)
}

fn argument(row: &OptionRow) -> Arg {
    let flag = row.flag.expect("rows of a command have a flag");
    let argument = Arg::new(row.key).long(flag).help(help_of(row)).next_line_help(true);
    // The short form of the one option whose name is longer than its meaning.
    let argument = if flag == "allow-private" { argument.alias("private") } else { argument };
    if row.kind == ValueType::Flag {
        return argument.action(ArgAction::SetTrue);
    }
    let action = if row.is_repeatable() { ArgAction::Append } else { ArgAction::Set };
    argument.value_name(row.kind.placeholder()).value_parser(ValueParser::string()).action(action)
}

fn help_of(row: &OptionRow) -> String {
    let mut text = row.text.to_owned();
    if row.kind != ValueType::Flag {
        text.push_str(&format!(" Allowed: {}.", row.kind.expected()));
        text.push_str(&format!(" Default: {}.", row.default));
    }
    if row.is_repeatable() {
        text.push_str(" May be given several times.");
    }
    wrapped(&text, HELP_COLUMNS - 10)
}

/// Breaks a text into lines of at most `columns` where its words allow.
fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > columns {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

fn text_of(matches: &ArgMatches, name: &str) -> String {
    matches.get_one::<String>(name).cloned().unwrap_or_default()
}

/// The values of a command as the tables of a file would have them.
fn tables(command: &str, matches: &ArgMatches) -> Result<RawConfig, ConfigError> {
    let values =
        || RawTable { location: command.to_owned(), is_command_line: true, ..RawTable::default() };
    let mut tables = RawConfig { process: values(), ..RawConfig::default() };
    let (mut service, mut route) = (values(), values());
    for row in OptionRow::TABLE.iter().filter(|row| row.is_of_command(command)) {
        let location = format!("--{}", row.flag.unwrap_or(row.key));
        for text in texts(row, matches) {
            if row.kind == ValueType::Limit {
                tables.limits.push(limit(&location, &text)?);
                continue;
            }
            let values = match row.scope {
                Scope::Process | Scope::Start => &mut tables.process,
                Scope::Service | Scope::Forward | Scope::Boost | Scope::Cache => &mut service,
                Scope::Route => &mut route,
            };
            values.add(row, RawValue { location: location.clone(), text })?;
        }
    }
    let routes = match command {
        "forward" => None,
        "boost" => Some(vec![route]),
        _ => return Ok(tables),
    };
    tables.services.push(RawService { routes, values: service });
    Ok(tables)
}

/// The texts given for a row; a list in one word is taken apart.
fn texts(row: &OptionRow, matches: &ArgMatches) -> Vec<String> {
    if row.kind == ValueType::Flag {
        return if matches.get_flag(row.key) { vec!["on".to_owned()] } else { Vec::new() };
    }
    let words = matches.get_many::<String>(row.key).into_iter().flatten();
    match row.kind {
        ValueType::Origin | ValueType::Keyword(_) => {
            words.flat_map(|word| word.split(',')).map(str::to_owned).collect()
        }
        _ => words.cloned().collect(),
    }
}

fn limit(location: &str, text: &str) -> Result<RawLimit, ConfigError> {
    let given = RawValue { location: location.to_owned(), text: text.to_owned() };
    let Some((name, value)) = text.split_once('=') else {
        return Err(given.error("has no = in it", ValueType::Limit.expected()));
    };
    Ok(RawLimit {
        name: name.to_owned(),
        name_location: location.to_owned(),
        value: RawValue { location: format!("{location} {name}"), text: value.to_owned() },
    })
}

/// One line for what clap refuses.
fn refused(words: &[OsString], error: &clap::Error) -> ConfigError {
    let command = words
        .get(1)
        .and_then(|word| COMMANDS.iter().map(|(name, _)| *name).find(|name| word == *name));
    let action = words.get(2).and_then(|word| word.to_str());
    let location = command.unwrap_or_default().to_owned();
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    // clap shows an option with its placeholder, "--workers <N>".
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
            ConfigError::rule(
                location,
                "nothing is asked for",
                cache_command::expected(None).join(", "),
            )
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            ConfigError::rule(location, "no command is given", command_names().join(", "))
        }
        ErrorKind::InvalidUtf8 => ConfigError::rule(location, "a word is not UTF-8", "UTF-8"),
        ErrorKind::MissingRequiredArgument if command == Some("cache") => {
            ConfigError::rule(location, "the URL is missing", "millrace cache show URL")
        }
        ErrorKind::MissingRequiredArgument => ConfigError::rule(
            location,
            "the file is missing",
            format!("millrace {} FILE", command.unwrap_or("run")),
        ),
        ErrorKind::ArgumentConflict => ConfigError::rule(option, "is given twice", "one value"),
        ErrorKind::InvalidValue | ErrorKind::NoEquals => {
            ConfigError::rule(option.clone(), "has no value", allowed_for(&option))
        }
        ErrorKind::TooManyValues => ConfigError::rule(option, "takes no value", "the option alone"),
        kind => ConfigError::rule(location, kind.to_string(), allowed_for(&option)),
    }
}

fn command_names() -> Vec<&'static str> {
    COMMANDS.iter().map(|(name, _)| *name).collect()
}

/// A word that is not known where it stands. Where few may stand, they are all named.
fn unknown(
    location: String,
    command: Option<&str>,
    action: Option<&str>,
    found: &str,
) -> ConfigError {
    let expected: Vec<String> = match command {
        None => {
            let others = ["help", "--help", "--version"];
            command_names().into_iter().chain(others).map(str::to_owned).collect()
        }
        Some("cache") => cache_command::expected(action),
        Some(command) => return unknown_to_command(location, command, found),
    };
    ConfigError::unknown(location, item_of(command, action, found), found, &expected)
}

/// What stands at a position of the command line.
fn item_of(command: Option<&str>, action: Option<&str>, found: &str) -> &'static str {
    match command {
        _ if found.starts_with('-') => "option",
        None => "command",
        Some("cache") if action == Some(found) => "command",
        Some(_) => "argument",
    }
}

/// A word that a command with many options does not know.
fn unknown_to_command(location: String, command: &str, found: &str) -> ConfigError {
    let name = found.strip_prefix("--").unwrap_or_default();
    let help = format!("an option that \"millrace {command} --help\" lists");
    if matches!(command, "run" | "check") && matches!(name, "config" | "file") {
        let expected = format!("millrace {command} FILE");
        return ConfigError::rule(location, format!("\"{found}\" is not known"), expected);
    }
    if let Some(row) = OptionRow::TABLE.iter().find(|row| row.flag == Some(name)) {
        let problem = format!("{found} is an option of {} alone", row.commands());
        return ConfigError::rule(location, problem, help);
    }
    if let Some(row) = OptionRow::TABLE.iter().find(|row| row.flag.is_none() && row.key == name) {
        let expected = format!("{name} in {} of a file", row.tables());
        return ConfigError::rule(location, format!("{found} is a key of files alone"), expected);
    }
    let rows = OptionRow::TABLE.iter().filter(|row| row.is_of_command(command));
    let flags: Vec<_> = rows.filter_map(|row| Some(format!("--{}", row.flag?))).collect();
    ConfigError::Unknown {
        location,
        item: item_of(Some(command), None, found),
        found: found.to_owned(),
        // A word without dashes was not meant as an option.
        nearest: nearest(found, flags.iter().map(String::as_str))
            .filter(|_| found.starts_with('-')),
        expected: help,
    }
}

fn allowed_for(option: &str) -> String {
    let row = OptionRow::TABLE.iter().find(|row| row.flag == option.strip_prefix("--"));
    row.map_or_else(|| "what --help shows".to_owned(), |row| row.kind.expected())
}
