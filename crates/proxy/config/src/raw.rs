//! What was given, before it is understood: the texts of values, each with the place where it was
//! written. Command line and file are read into the same form, so that they cannot differ in what
//! they mean.

use super::error::ConfigError;
use super::options::{OptionRow, Scope, ValueType};
use super::value::{self, Problem};

/// One value as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawValue {
    /// The option, as messages call it: `--workers`, or `millrace.toml:3: workers`.
    pub(super) location: String,
    /// The value; numbers and true or false of a file as they stand there.
    pub(super) text: String,
}

/// The values of one table of a file, or of a command line's part that is like it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct RawTable {
    /// What messages call the table: `millrace.toml:3: [[boost]]`, or `boost`.
    pub(super) location: String,
    /// Whether it came from a command line, where options have dashes before them.
    pub(super) is_command_line: bool,
    /// In the order given; the row decides how often it may stand here.
    pub(super) given: Vec<(&'static OptionRow, RawValue)>,
    /// Rows that a file gives an empty list: nothing is given, and that is said.
    pub(super) empty_lists: Vec<&'static OptionRow>,
}

/// One service as given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawService {
    /// `None`: a forward proxy; else a booster with these routes.
    pub(super) routes: Option<Vec<RawTable>>,
    /// Its values of [`Scope::Service`], [`Scope::Forward`] and [`Scope::Cache`].
    pub(super) values: RawTable,
}

/// A whole configuration as given.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RawConfig {
    /// Values of [`Scope::Process`], limits apart.
    pub(super) process: RawTable,
    /// Limits as (place, name, value), in the order given; the last of a name counts.
    pub(super) limits: Vec<RawLimit>,
    /// Forward proxies first, then boosters, each kind in the order given.
    pub(super) services: Vec<RawService>,
}

/// One limit as given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RawLimit {
    /// The name, not yet looked up.
    pub(super) name: String,
    /// Where its name stands, for messages that complain about the name.
    pub(super) name_location: String,
    /// The value; its place names the limit too.
    pub(super) value: RawValue,
}

impl RawConfig {
    /// Whether the process is to take over from a running one.
    pub fn is_upgrade(&self) -> bool {
        self.process.given.iter().any(|(row, _)| row.key == "upgrade")
    }

    /// What messages call an option of the process or of any service: `--access-log`, if a command
    /// line has given it, else `access-log`.
    pub fn name_of<'a>(&self, key: &'a str) -> std::borrow::Cow<'a, str> {
        let tables =
            std::iter::once(&self.process).chain(self.services.iter().map(|it| &it.values));
        let given = tables.flat_map(|values| &values.given).find(|(row, _)| row.key == key);
        match given {
            Some((_, given)) if given.location.starts_with("--") => given.location.clone().into(),
            _ => key.into(),
        }
    }

    /// Where an option of a service was written, as messages call it: `--congestion`, or
    /// `millrace.toml:3: congestion`; the service, where it was not given. `service` is the number
    /// of the service in the configuration that these tables mean.
    ///
    /// # Panics
    /// When there are not so many services.
    pub fn location_in_service(&self, service: usize, key: &str) -> &str {
        self.services[service].values.location_of(key)
    }

    /// These tables with the process's values of `other` in place of their own: a command line's
    /// options before those of the file that it runs.
    #[must_use]
    pub fn with_overrides(mut self, other: &Self) -> Self {
        let replaced = |key| other.process.given.iter().any(|(row, _)| row.key == key);
        self.process.given.retain(|(row, _)| !replaced(row.key));
        self.process.given.extend(other.process.given.iter().cloned());
        self.limits.extend(other.limits.iter().cloned());
        self
    }
}

impl RawTable {
    /// Every value of a key, read by `read`.
    pub(super) fn all<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Vec<T>, ConfigError> {
        self.given
            .iter()
            .filter(|(row, _)| row.key == key)
            .map(|(row, given)| given.read(row, &read))
            .collect()
    }

    /// These values of a route, with those of its booster about the cache where it has none.
    pub(super) fn with_cache_of(&self, booster: &Self) -> Self {
        let mut all = self.clone();
        let said = self.given.iter().map(|(row, _)| *row).chain(self.empty_lists.iter().copied());
        let said: Vec<_> = said.map(|row| row.key).collect();
        let more = booster.given.iter().filter(|(row, _)| row.scope == Scope::Cache);
        all.given.extend(more.filter(|(row, _)| !said.contains(&row.key)).cloned());
        all
    }

    /// The one value of a key, read by `read`; `None`: not given.
    pub(super) fn one<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<Option<T>, ConfigError> {
        Ok(self.all(key, read)?.pop())
    }

    /// The one value of a key, or the row's default, which must then be a value itself.
    pub(super) fn one_or_default<T>(
        &self,
        key: &str,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        match self.one(key, &read)? {
            Some(value) => Ok(value),
            None => Self::default_of(key, read),
        }
    }

    /// The default of a key's row, which must be a value itself.
    pub(super) fn default_of<T>(
        key: &str,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        let row = OptionRow::of_key(key).expect("the keys asked for are those of the table");
        RawValue { location: "default".to_owned(), text: row.default.to_owned() }.read(row, read)
    }

    /// Where a key was given, or the table if it was not.
    pub(super) fn location_of(&self, key: &str) -> &str {
        self.given
            .iter()
            .find(|(row, _)| row.key == key)
            .map_or(self.location.as_str(), |(_, given)| given.location.as_str())
    }

    /// What a key is called where these values were written.
    pub(super) fn name_of(&self, key: &'static str) -> String {
        let flag = OptionRow::of_key(key).and_then(|row| row.flag);
        match flag {
            Some(flag) if self.is_command_line => format!("--{flag}"),
            _ => key.to_owned(),
        }
    }

    /// Adds a value, unless its row has as many as it takes.
    pub(super) fn add(
        &mut self,
        row: &'static OptionRow,
        given: RawValue,
    ) -> Result<(), ConfigError> {
        let count = self.given.iter().filter(|(other, _)| other.key == row.key).count();
        if count == row.values_max {
            let expected = match row.values_max {
                1 => "one value".to_owned(),
                most => format!("up to {most} values"),
            };
            return Err(ConfigError::rule(given.location, "is given too often", expected));
        }
        self.given.push((row, given));
        Ok(())
    }
}

impl RawValue {
    /// The value, or the error that says what its row allows.
    fn read<T>(
        &self,
        row: &OptionRow,
        read: impl Fn(&str) -> Result<T, Problem>,
    ) -> Result<T, ConfigError> {
        read(&self.text).map_err(|problem| self.error(problem, row.kind.expected()))
    }

    /// An error about this value.
    pub(super) fn error(&self, problem: Problem, mut expected: String) -> ConfigError {
        if let Some(meant) = value::suggestion(&self.text, problem) {
            expected = format!("{meant}; in general {expected}");
        }
        ConfigError::Value {
            location: self.location.clone(),
            found: self.text.clone(),
            problem,
            expected,
        }
    }
}

/// Reads a number or size and checks it against the bounds of its row.
pub(super) fn bounded(key: &str, text: &str) -> Result<u64, Problem> {
    let (number, least, most) = match OptionRow::kind_of(key) {
        ValueType::Number { least, most } => (value::number(text)?, least, most),
        ValueType::Size { least, most } => (value::size(text)?, least, most),
        _ => unreachable!("only rows with bounds are asked for"),
    };
    value::within(number, least, most)
}
