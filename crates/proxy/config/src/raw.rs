//! A configuration before its values are interpreted: the text of each value and its location.
//! Command lines and files are read into the same form, so that a value means the same in both.

use super::error::ConfigError;
use super::options::{OptionRow, Scope, ValueType};
use super::value::{self, Problem};

/// A value as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawValue {
    /// The option, for messages: `--workers`, or `millrace.toml:3: workers`.
    pub(super) location: String,
    /// The text of the value. A number in a file keeps its text. A Boolean in a file becomes `on`
    /// or `off` if these are keywords of the option.
    pub(super) text: String,
}

/// The values of one table of a file, or of the options of a command line that correspond to it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct RawTable {
    /// The table, for messages: `millrace.toml:3: [[boost]]`, or `boost`.
    pub(super) location: String,
    /// Whether the values are those of a command line, so that messages put dashes before names.
    pub(super) is_command_line: bool,
    /// The values in the order written, at most [`OptionRow::values_max`] per row.
    pub(super) values: Vec<(&'static OptionRow, RawValue)>,
    /// Rows with an empty list in a file.
    pub(super) empty_lists: Vec<&'static OptionRow>,
}

/// A service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawService {
    /// The kind.
    pub(super) kind: ServiceKind,
    /// The routes; empty for a forward proxy. The last one of a file server may come from its own
    /// table.
    pub(super) routes: Vec<RawTable>,
    /// The values of [`Scope::Service`], [`Scope::Forward`], [`Scope::Boost`] and
    /// [`Scope::Cache`].
    pub(super) table: RawTable,
}

/// The kind of a service: the table of a file or the command that defines it. The services of a
/// configuration are in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ServiceKind {
    /// A forward proxy.
    Forward,
    /// A reverse proxy.
    Boost,
    /// A file server. It has the role of a reverse proxy.
    Serve,
}

impl ServiceKind {
    pub(super) const ALL: [Self; 3] = [Self::Forward, Self::Boost, Self::Serve];

    /// Returns the name of the table and of the command.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Boost => "boost",
            Self::Serve => "serve",
        }
    }
}

/// A whole configuration whose values are not yet interpreted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RawConfig {
    /// The values of [`Scope::Process`] without the limits.
    pub(super) process: RawTable,
    /// The limits in the order written; the last one of a name applies.
    pub(super) limits: Vec<RawLimit>,
    /// The services in the order of their kinds, those of a kind in the order written.
    pub(super) services: Vec<RawService>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawLimit {
    /// The name, which may be unknown.
    pub(super) name: String,
    /// The location of the name, for messages about an unknown name.
    pub(super) name_location: String,
    /// The value; its location names the limit.
    pub(super) value: RawValue,
}

impl RawConfig {
    /// Returns whether the process takes over from a running one.
    pub fn is_upgrade(&self) -> bool {
        self.process.values.iter().any(|(row, _)| row.key == "upgrade")
    }

    /// Returns the name of an option for messages: `--access-log` if a command line has set it,
    /// otherwise `access-log`.
    pub fn name_of<'a>(&self, key: &'a str) -> std::borrow::Cow<'a, str> {
        let tables = std::iter::once(&self.process)
            .chain(self.services.iter().map(|service| &service.table));
        let value = tables.flat_map(|table| &table.values).find(|(row, _)| row.key == key);
        match value {
            Some((_, value)) if value.location.starts_with("--") => value.location.clone().into(),
            _ => key.into(),
        }
    }

    /// Returns the location of an option of a service, for messages: `--congestion`, or
    /// `millrace.toml:3: congestion`; the location of the service if it does not set the option.
    /// `service` is an index into [`Config::services`](super::Config::services).
    ///
    /// # Panics
    /// If there is no such service.
    pub fn location_in_service(&self, service: usize, key: &str) -> &str {
        self.services[service].table.location_of(key)
    }

    /// Returns the location of an option of a route, for messages, as
    /// [`RawConfig::location_in_service`] does. `route` is an index into
    /// [`Service::routes`](super::Service::routes).
    ///
    /// # Panics
    /// If there is no such route.
    pub fn location_in_route(&self, service: usize, route: usize, key: &str) -> &str {
        self.services[service].routes[route].location_of(key)
    }

    /// Replaces the values of the process by those that `other` sets: options of a command line
    /// override those of the file that it runs.
    #[must_use]
    pub fn with_overrides(mut self, other: &Self) -> Self {
        let is_replaced = |key| other.process.values.iter().any(|(row, _)| row.key == key);
        self.process.values.retain(|(row, _)| !is_replaced(row.key));
        self.process.values.extend(other.process.values.iter().cloned());
        self.limits.extend(other.limits.iter().cloned());
        self
    }
}

impl RawTable {
    /// Returns all values of a key, parsed by `parse`.
    pub(super) fn all<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Vec<T>, ConfigError> {
        self.values
            .iter()
            .filter(|(row, _)| row.key == key)
            .map(|(row, value)| value.parse(row, &parse))
            .collect()
    }

    /// Returns the table of a route, with the cache options of its reverse proxy where the route
    /// does not set them itself.
    pub(super) fn with_cache_of(&self, reverse_proxy: &Self) -> Self {
        let mut all = self.clone();
        let set = self.values.iter().map(|(row, _)| *row).chain(self.empty_lists.iter().copied());
        let set: Vec<_> = set.map(|row| row.key).collect();
        let is_inherited = |row: &OptionRow| row.scope == Scope::Cache && !set.contains(&row.key);
        let values = reverse_proxy.values.iter().filter(|(row, _)| is_inherited(row));
        all.values.extend(values.cloned());
        let empty_lists = reverse_proxy.empty_lists.iter().filter(|row| is_inherited(row));
        all.empty_lists.extend(empty_lists);
        all
    }

    /// Returns the value of a key, parsed by `parse`; `None` if it is not set.
    pub(super) fn one<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Option<T>, ConfigError> {
        Ok(self.all(key, parse)?.pop())
    }

    /// Returns the value of a key. If the key is not set, returns the default of its row, which has
    /// to be a value and not a description.
    pub(super) fn one_or_default<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        match self.one(key, &parse)? {
            Some(value) => Ok(value),
            None => Self::default_of(key, parse),
        }
    }

    /// Returns the default of a key's row, which has to be a value and not a description.
    pub(super) fn default_of<T>(
        key: &str,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        let row = OptionRow::of_key(key).expect("the table has the key");
        RawValue { location: "default".to_owned(), text: row.default.to_owned() }.parse(row, parse)
    }

    /// Returns whether a file sets a key to an empty list.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.empty_lists.iter().any(|row| row.key == key)
    }

    /// Returns the location of a key, or of the table if the key is not set.
    pub(super) fn location_of(&self, key: &str) -> &str {
        self.values
            .iter()
            .find(|(row, _)| row.key == key)
            .map_or(self.location.as_str(), |(_, value)| value.location.as_str())
    }

    /// Returns the location of the first row that the table sets and `is_wanted` accepts.
    pub(super) fn find_set(&self, is_wanted: impl Fn(&OptionRow) -> bool) -> Option<String> {
        let is_wanted = |row: &&OptionRow| is_wanted(row);
        let value = self.values.iter().find(|(row, _)| is_wanted(row));
        let empty_list = || self.empty_lists.iter().copied().find(is_wanted);
        match value {
            Some((_, value)) => Some(value.location.clone()),
            None => empty_list().map(|row| format!("{}: {}", self.location, row.key)),
        }
    }

    /// Removes the values of `scopes`. Returns them as a table with the same location.
    pub(super) fn split_off(&mut self, scopes: &[Scope]) -> Self {
        let is_taken = |row: &OptionRow| scopes.contains(&row.scope);
        Self {
            location: self.location.clone(),
            is_command_line: self.is_command_line,
            values: self.values.extract_if(.., |(row, _)| is_taken(row)).collect(),
            empty_lists: self.empty_lists.extract_if(.., |row| is_taken(row)).collect(),
        }
    }

    /// Returns whether the table sets nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.empty_lists.is_empty()
    }

    /// Returns the name of a key for messages, in the form of a command line or of a file.
    pub(super) fn name_of(&self, key: &'static str) -> String {
        let flag = OptionRow::of_key(key).and_then(|row| row.flag);
        match flag {
            Some(flag) if self.is_command_line => format!("--{flag}"),
            _ => key.to_owned(),
        }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// Returns an error if the row has as many values as it takes.
    pub(super) fn add(
        &mut self,
        row: &'static OptionRow,
        value: RawValue,
    ) -> Result<(), ConfigError> {
        let count = self.values.iter().filter(|(other, _)| other.key == row.key).count();
        if count == row.values_max {
            let expected = match row.values_max {
                1 => "one value".to_owned(),
                most => format!("up to {most} values"),
            };
            return Err(ConfigError::rule(value.location, "has too many values", expected));
        }
        self.values.push((row, value));
        Ok(())
    }
}

impl RawValue {
    /// Parses the value. The error names the values that its row allows.
    fn parse<T>(
        &self,
        row: &OptionRow,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        parse(&self.text).map_err(|problem| self.error(problem, row.value_type.expected()))
    }

    /// Returns an error about this value.
    pub(super) fn error(&self, problem: Problem, expected: String) -> ConfigError {
        ConfigError::Value {
            location: self.location.clone(),
            found: self.text.clone(),
            problem,
            suggestions: value::suggestions(&self.text, problem),
            expected,
        }
    }
}

/// Parses a number or a size and checks it against the bounds of its row.
pub(super) fn bounded(key: &str, text: &str) -> Result<u64, Problem> {
    let (number, least, most) = match OptionRow::value_type_of(key) {
        ValueType::Number { least, most } | ValueType::NumberOrOff { least, most } => {
            (value::parse_number(text)?, least, most)
        }
        ValueType::Size { least, most } => (value::parse_size(text)?, least, most),
        _ => unreachable!("the row has bounds"),
    };
    value::check_bounds(number, least, most)
}
