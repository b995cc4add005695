//! The one table of options. The command line, the file format, `--help`, the reference pages and
//! the errors for bad values all come from its rows. No other place describes an option.
//! Limits have a table of their own, [`Limits::TABLE`](crate::limits::Limits::TABLE), which the row
//! `limit` gives access to.

pub use super::value_type::ValueType;

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionRow {
    /// The name on the command line, without the dashes; `None` if only files have the option.
    pub flag: Option<&'static str>,
    /// The key in files.
    pub key: &'static str,
    /// The commands and the tables of a file that take the option.
    pub scope: Scope,
    /// The heading under which help and the manual page list the option.
    pub group: Group,
    /// The type of its values, with bounds.
    pub value_type: ValueType,
    /// The default as a user would write it, or a description in parentheses.
    pub default: &'static str,
    /// Pairs of a command and its default, which replaces `default` in the help of that command.
    pub command_defaults: &'static [(&'static str, &'static str)],
    /// The maximum number of values. Above 1 the option is repeatable on the command line, and
    /// files may have a list.
    pub values_max: usize,
    /// Whether an empty list in a file is valid. It is invalid if its effect would be the default,
    /// which may be the opposite of what the author means: without `allow-client`, every client is
    /// served.
    pub may_be_empty: bool,
    /// The purpose in one short sentence without a full stop, for `-h` and `--help`.
    pub summary: &'static str,
    /// Details for the manual and reference pages: sentences, or nothing.
    pub detail: &'static str,
}

/// The part of a configuration that an option belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The process. On the command line: every command that runs or reads a configuration. In
    /// files: the top level.
    Process,
    /// The start of the process. On the command line: the commands that serve. Not in files.
    Start,
    /// A service of any kind: `forward`, `boost` and `serve`; `[[forward]]`, `[[boost]]` and
    /// `[[serve]]`.
    Service,
    /// A forward proxy: `forward`; `[[forward]]`.
    Forward,
    /// A reverse proxy or a file server: `boost` and `serve`; `[[boost]]` and `[[serve]]`.
    Boost,
    /// A route of either: `boost` and `serve`; `[[boost.route]]`, `[[serve.route]]`, and
    /// `[[serve]]` for its last route.
    Route,
    /// The folder of a route: `serve`; the tables of [`Scope::Route`].
    Folder,
    /// Caching of the responses of a forward proxy or of a route: all commands and tables that
    /// take options of services or routes. Those of `[[boost]]` and `[[serve]]` are the defaults of
    /// their routes.
    Cache,
}

/// A heading of the options in help and in the manual page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// Addresses to listen on.
    Listeners,
    /// TLS of listeners.
    Tls,
    /// Files of folders.
    Files,
    /// Clients that may use a service.
    Access,
    /// Targets that clients of a forward proxy may reach.
    Targets,
    /// Routes and origins of a reverse proxy.
    Origins,
    /// Transport options of connections, and fields of responses.
    Connections,
    /// Rules for storing and reusing responses.
    Caching,
    /// Memory and disks.
    Storage,
    /// Access log and administration.
    AccessLogAndAdmin,
    /// The process: engine, threads, privileges, limits.
    Processing,
}

impl Group {
    /// The groups in the order of help.
    pub const ALL: &'static [Self] = &[
        Self::Listeners,
        Self::Tls,
        Self::Files,
        Self::Origins,
        Self::Access,
        Self::Targets,
        Self::Caching,
        Self::Storage,
        Self::AccessLogAndAdmin,
        Self::Connections,
        Self::Processing,
    ];

    /// Returns the heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Listeners => "Listeners",
            Self::Tls => "TLS",
            Self::Files => "Files",
            Self::Access => "Access",
            Self::Targets => "Targets",
            Self::Origins => "Routes and origins",
            Self::Connections => "Connections and responses",
            Self::Caching => "Cache rules",
            Self::Storage => "Memory and disks",
            Self::AccessLogAndAdmin => "Access log and administration",
            Self::Processing => "Process and limits",
        }
    }
}

/// The commands that take options from the table, each with its purpose.
pub const COMMANDS: &[(&str, &str)] = &[
    ("forward", "Run a caching forward proxy, with CONNECT"),
    ("boost", "Run a caching reverse proxy in front of web servers"),
    ("serve", "Run a caching web server for the files of a folder"),
    ("run", "Run the configuration of a file"),
    ("check", "Check a configuration file and print all settings that it results in"),
    ("doctor", "Report what this machine supports and what millrace would use"),
    ("demo", "Run a reverse proxy in front of a built-in site and report each request"),
    ("cache", "List, show or purge what the cache of a running process stores"),
];

/// Other names of commands: the alias and the command.
pub const ALIASES: &[(&str, &str)] = &[("reverse", "boost")];

/// Returns the command of a name, which may be an alias; `None` if there is no such command.
pub(super) fn command_of(name: &str) -> Option<&'static str> {
    let name =
        ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, command)| command);
    COMMANDS.iter().map(|(command, _)| *command).find(|command| *command == name)
}

/// Returns the keys that `-h` lists for a command: the most used options, at most 20.
pub(super) fn short_help_keys(command: &str) -> &'static [&'static str] {
    match command {
        "forward" => &[
            "listen",
            "allow-client",
            "auth-file",
            "allow-target",
            "allow-domain",
            "deny-domain",
            "cache-ttl",
            "no-cache",
            "memory",
            "disk",
            "access-log",
            "admin",
            "engine",
            "workers",
            "limit",
        ],
        "boost" => &[
            "listen",
            "origins",
            "certificate",
            "key",
            "redirect-https",
            "server-name",
            "acme",
            "balance",
            "host-header",
            "check",
            "allow-client",
            "trust",
            "cache-ttl",
            "no-cache",
            "memory",
            "disk",
            "access-log",
            "admin",
            "workers",
            "limit",
        ],
        "serve" => SHORT_HELP_OF_SERVE,
        _ => &[
            "no-cache",
            "memory",
            "cache-memory",
            "disk",
            "access-log",
            "log-format",
            "admin",
            "admin-token-file",
            "engine",
            "workers",
            "splice",
            "user",
            "sandbox",
            "upgrade",
            "limit",
        ],
    }
}

const SHORT_HELP_OF_SERVE: &[&str] = &[
    "listen",
    "certificate",
    "key",
    "redirect-https",
    "server-name",
    "acme",
    "index",
    "listing",
    "fallback",
    "hide",
    "file-cache-control",
    "origins",
    "allow-client",
    "memory",
    "access-log",
    "admin",
    "workers",
    "limit",
];

impl OptionRow {
    /// Returns the default without the parentheses of a description.
    pub(super) fn default_text(&self) -> &'static str {
        let description = self.default.strip_prefix('(').and_then(|text| text.strip_suffix(')'));
        description.unwrap_or(self.default)
    }

    /// Returns the summary and the detail as sentences.
    pub(super) fn sentences(&self) -> String {
        format!("{}. {}", self.summary, self.detail).trim_end().to_owned()
    }

    /// Returns whether a command takes the option.
    pub fn is_of_command(&self, command: &str) -> bool {
        self.flag.is_some()
            && match self.scope {
                Scope::Process => !matches!(command, "demo" | "cache"),
                Scope::Start => matches!(command, "forward" | "boost" | "serve" | "run"),
                Scope::Service | Scope::Cache => matches!(command, "forward" | "boost" | "serve"),
                Scope::Forward => command == "forward",
                Scope::Boost | Scope::Route => matches!(command, "boost" | "serve"),
                Scope::Folder => command == "serve",
            }
    }

    /// Returns the commands that take the option, separated by commas.
    pub fn commands(&self) -> String {
        let names = COMMANDS.iter().map(|(name, _)| *name);
        names.filter(|name| self.is_of_command(name)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the tables of a file that take the option, for the reference.
    pub fn toml_tables(&self) -> &'static str {
        match self.scope {
            Scope::Process if self.value_type == ValueType::Limit => "[limits]",
            Scope::Process => "top level",
            Scope::Start => "not in files",
            Scope::Service => "[[forward]], [[boost]] and [[serve]]",
            Scope::Forward => "[[forward]]",
            Scope::Boost => "[[boost]] and [[serve]]",
            Scope::Route | Scope::Folder => "[[boost.route]], [[serve]] and [[serve.route]]",
            Scope::Cache => {
                "[[forward]], [[boost]], [[boost.route]], [[serve]] and [[serve.route]]"
            }
        }
    }

    /// Returns the default of a command.
    pub fn default_for(&self, command: &str) -> &'static str {
        let own = self.command_defaults.iter().find(|(name, _)| *name == command);
        own.map_or(self.default, |(_, default)| default)
    }

    /// Returns whether the option may be given more than once.
    pub fn is_repeatable(&self) -> bool {
        self.values_max > 1
    }

    /// Returns whether files have the option as a key of its own.
    pub fn is_file_key(&self) -> bool {
        self.value_type != ValueType::Limit && self.scope != Scope::Start
    }

    /// Returns the rows of `scopes` that are keys in a file. The row `limit` is not one of them:
    /// limits have a table of their own.
    pub(super) fn of_scopes(scopes: &[Scope]) -> impl Iterator<Item = &'static Self> {
        let rows = Self::TABLE.iter().filter(|row| row.value_type != ValueType::Limit);
        rows.filter(|row| scopes.contains(&row.scope))
    }

    /// Returns the type of the option with a key that the table has.
    pub(super) fn value_type_of(key: &str) -> ValueType {
        Self::of_key(key).expect("the table has the key").value_type
    }

    /// Returns the row of a key.
    pub(super) fn of_key(key: &str) -> Option<&'static Self> {
        Self::TABLE.iter().find(|row| row.key == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_texts_have_their_form() {
        for (index, row) in OptionRow::TABLE.iter().enumerate() {
            let is_short = (1..=76).contains(&row.summary.len()) && !row.summary.ends_with('.');
            assert!(is_short, "{}: {} columns", row.key, row.summary.len());
            assert!(row.detail.is_empty() || row.detail.ends_with('.'), "{}", row.key);
            assert!(Group::ALL.contains(&row.group), "{}", row.key);
            let is_for_files = matches!(row.scope, Scope::Boost | Scope::Route | Scope::Folder)
                || row.key == "name";
            assert!(row.flag.is_some() || is_for_files, "{}", row.key);
            for other in &OptionRow::TABLE[index + 1..] {
                assert!(row.key != other.key, "{}", row.key);
                assert!(row.flag.is_none() || row.flag != other.flag, "{}", row.key);
            }
        }
    }

    #[test]
    fn short_help_lists_up_to_twenty_options_of_the_command() {
        for (command, _) in COMMANDS.iter().filter(|(name, _)| !matches!(*name, "demo" | "cache")) {
            let keys = short_help_keys(command);
            assert!(keys.len() <= 20, "{command}");
            for key in keys {
                let row = OptionRow::of_key(key).expect("the table has the key");
                let is_expected = row.is_of_command(command) || row.scope == Scope::Start;
                assert!(is_expected, "{command} {key}");
            }
        }
    }
}
