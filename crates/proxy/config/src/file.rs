//! Reads the file format: TOML into raw values. Unknown keys are errors. `build` interprets the
//! values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::build::expected_of_limit;
use super::error::{ConfigError, nearest};
use super::options::{OptionRow, Scope};
use super::raw::{RawConfig, RawLimit, RawService, RawTable, RawValue};
use crate::limits::Limits;

/// The largest file that is read, in bytes: far above real files, and small enough to be parsed
/// quickly.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The most tables of one name: services of a role, or routes of a reverse proxy.
pub(super) const TABLES_MAX: usize = 256;

/// The scopes of the options in `[[forward]]`.
pub(super) const FORWARD: &[Scope] = &[Scope::Service, Scope::Forward, Scope::Cache];
/// The scopes of the options in `[[boost]]`.
pub(super) const BOOST: &[Scope] = &[Scope::Service, Scope::Boost, Scope::Cache];
/// The scopes of the options in `[[boost.route]]`.
pub(super) const ROUTE: &[Scope] = &[Scope::Route, Scope::Cache];

const PROCESS_TABLES: &[&str] = &["limits", "forward", "boost"];

/// Reads the text of a file. Messages call the file `name`.
pub(super) fn read(name: &str, text: &str) -> Result<RawConfig, ConfigError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ConfigError::rule(
            name,
            "is too large",
            format!("up to {FILE_BYTES_MAX} bytes"),
        ));
    }
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let file = ConfigFile { name, text, newlines: newlines.map(|(offset, _)| offset).collect() };
    let document = DeTable::parse(text).map_err(|error| {
        let location = file.location(error.span().map_or(0, |span| span.start));
        ConfigError::rule(location, error.message(), "TOML")
    })?;
    let mut config = RawConfig::default();
    config.process.location = name.to_owned();
    let mut reverse_proxies = Vec::new();
    for (key, value) in in_order(document.get_ref()) {
        match key.get_ref().as_ref() {
            "limits" => config.limits = file.limits(key, value)?,
            "forward" => {
                for table in file.tables(key, value)? {
                    config.services.push(file.service(table, None)?);
                }
            }
            "boost" => {
                for table in file.tables(key, value)? {
                    reverse_proxies.push(file.service(table, Some(Vec::new()))?);
                }
            }
            _ => file.option(&mut config.process, key, value, &[Scope::Process], PROCESS_TABLES)?,
        }
    }
    config.services.append(&mut reverse_proxies);
    Ok(config)
}

/// Returns the table that takes a key, to follow "expected: "; `None` if the key is unknown.
fn allowed_location(key: &str) -> Option<String> {
    if Limits::TABLE.iter().any(|row| row.name == key) {
        return Some("in [limits]".to_owned());
    }
    let row = OptionRow::TABLE.iter().find(|row| row.key == key && row.key != "limit")?;
    Some(match row.scope {
        Scope::Process => "at the top level".to_owned(),
        Scope::Start => "on the command line".to_owned(),
        _ => format!("in {}", row.toml_tables()),
    })
}

/// Adds a hint to the error for an unknown key that resembles no key of its table: the author may
/// mean a limit, or the `weight` that other proxies have.
fn with_hint(error: ConfigError) -> ConfigError {
    let ConfigError::Unknown { location, item, found, nearest: None, expected } = error else {
        return error;
    };
    let limits = Limits::TABLE.iter().map(|row| row.name);
    let (nearest, expected) = match nearest(&found, limits) {
        _ if found == "weight" => (None, "an origin that origins lists several times".to_owned()),
        Some(limit) => (Some(limit), "a limit in [limits]".to_owned()),
        None => (None, expected),
    };
    ConfigError::Unknown { location, item, found, nearest, expected }
}

/// Returns the table that takes options of `scopes`, with a preposition.
fn table_name(scopes: &[Scope]) -> &'static str {
    match scopes {
        _ if scopes.contains(&Scope::Route) => "in [[boost.route]]",
        _ if scopes.contains(&Scope::Boost) => "in [[boost]]",
        _ if scopes.contains(&Scope::Forward) => "in [[forward]]",
        _ => "at the top level",
    }
}

type TomlKey<'i> = Spanned<toml::de::DeString<'i>>;
type TomlValue<'i> = Spanned<DeValue<'i>>;

/// Returns the entries of a table in the order of the file, so that the first error is the first in
/// the file.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t TomlKey<'i>, &'t TomlValue<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// The text of a file, with what messages need to locate a part of it.
struct ConfigFile<'a> {
    name: &'a str,
    text: &'a str,
    /// The offsets of all line ends, ascending.
    newlines: Vec<usize>,
}

impl ConfigFile<'_> {
    /// Returns the file and line of an offset, for messages.
    fn location(&self, offset: usize) -> String {
        let line = self.newlines.partition_point(|newline| *newline < offset);
        format!("{}:{}", self.name, line + 1)
    }

    /// Returns the file, line and key, for messages.
    fn location_of_key(&self, key: &TomlKey<'_>) -> String {
        format!("{}: {}", self.location(key.span().start), key.get_ref())
    }

    /// Returns the tables of an array such as `[[boost]]`, or a single table of that name.
    fn tables<'t, 'i>(
        &self,
        key: &TomlKey<'i>,
        value: &'t TomlValue<'i>,
    ) -> Result<Vec<Spanned<&'t DeTable<'i>>>, ConfigError> {
        let refusal = || {
            let expected = format!("up to {TABLES_MAX} tables [[{}]]", key.get_ref());
            ConfigError::rule(self.location_of_key(key), "is not a table", expected)
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(vec![Spanned::new(value.span(), table)]),
            DeValue::Array(list) if list.len() > TABLES_MAX => {
                let first = &list[TABLES_MAX];
                let location = format!("{}: {}", self.location(first.span().start), key.get_ref());
                let problem = format!("is one of {} tables of this name", list.len());
                Err(ConfigError::rule(location, problem, format!("up to {TABLES_MAX}")))
            }
            DeValue::Array(list) => list
                .iter()
                .map(|entry| match entry.get_ref() {
                    DeValue::Table(table) => Ok(Spanned::new(entry.span(), table)),
                    _ => Err(refusal()),
                })
                .collect(),
            _ => Err(refusal()),
        }
    }

    /// Reads one table of a service: `[[forward]]` if `routes` is `None`, `[[boost]]` if it is an
    /// empty list.
    fn service(
        &self,
        table: Spanned<&DeTable<'_>>,
        mut routes: Option<Vec<RawTable>>,
    ) -> Result<RawService, ConfigError> {
        let name = if routes.is_some() { "[[boost]]" } else { "[[forward]]" };
        let mut raw = self.raw_table(name, &table);
        for (key, value) in in_order(table.get_ref()) {
            match &mut routes {
                Some(routes) if key.get_ref() == "route" => {
                    for table in self.tables(key, value)? {
                        routes.push(self.route(table)?);
                    }
                }
                Some(_) => self.option(&mut raw, key, value, BOOST, &["route"])?,
                None => self.option(&mut raw, key, value, FORWARD, &[])?,
            }
        }
        Ok(RawService { routes, table: raw })
    }

    /// Reads `[[boost.route]]`.
    fn route(&self, table: Spanned<&DeTable<'_>>) -> Result<RawTable, ConfigError> {
        let mut raw = self.raw_table("[[boost.route]]", &table);
        for (key, value) in in_order(table.get_ref()) {
            self.option(&mut raw, key, value, ROUTE, &[])?;
        }
        Ok(raw)
    }

    /// Returns an empty table of this name.
    fn raw_table(&self, name: &str, table: &Spanned<&DeTable<'_>>) -> RawTable {
        let location = format!("{}: {name}", self.location(table.span().start));
        RawTable { location, ..RawTable::default() }
    }

    /// Reads a key, which has to be that of a row of `scopes`. `tables` are the names of tables
    /// that the error for an unknown key lists too.
    fn option(
        &self,
        raw: &mut RawTable,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
        scopes: &[Scope],
        tables: &[&str],
    ) -> Result<(), ConfigError> {
        let Some(row) = OptionRow::of_scopes(scopes).find(|row| row.key == key.get_ref()) else {
            if let Some(expected) = allowed_location(key.get_ref()) {
                let problem = format!("does not belong {}", table_name(scopes));
                return Err(ConfigError::rule(self.location_of_key(key), problem, expected));
            }
            let keys = OptionRow::of_scopes(scopes).map(|row| row.key);
            let expected: Vec<&str> = keys.chain(tables.iter().copied()).collect();
            let location = self.location(key.span().start);
            let error = ConfigError::unknown(location, "key", key.get_ref(), &expected);
            return Err(with_hint(error));
        };
        let entries: Vec<_> = match value.get_ref() {
            DeValue::Array(list) if row.is_repeatable() => list.iter().collect(),
            _ => vec![value],
        };
        if entries.is_empty() && !row.may_be_empty {
            let expected = format!("at least one of {}", row.value_type.expected());
            return Err(ConfigError::rule(
                self.location_of_key(key),
                "is an empty list: []",
                expected,
            ));
        }
        if entries.is_empty() {
            raw.empty_lists.push(row);
        }
        for entry in entries {
            let location = format!("{}: {}", self.location(entry.span().start), key.get_ref());
            let text = self.text_of(row, &location, entry)?;
            raw.add(row, RawValue { location, text })?;
        }
        Ok(())
    }

    /// Reads `[limits]`. `build` checks the names.
    fn limits(
        &self,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
    ) -> Result<Vec<RawLimit>, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            let expected = "[limits], with a key for each limit";
            return Err(ConfigError::rule(self.location_of_key(key), "is not a table", expected));
        };
        let limit = |(key, value): (&TomlKey<'_>, &TomlValue<'_>)| {
            let location = self.location_of_key(key);
            let row = Limits::TABLE.iter().find(|row| row.name == key.get_ref());
            let expected =
                || row.map_or_else(|| "the name of a limit".to_owned(), expected_of_limit);
            Ok(RawLimit {
                name: key.get_ref().to_string(),
                name_location: self.location(key.span().start),
                value: RawValue { text: self.text(&location, value, expected())?, location },
            })
        };
        in_order(table).into_iter().map(limit).collect()
    }

    /// Returns the text of a row's value. A Boolean becomes the keyword that it stands for.
    fn text_of(
        &self,
        row: &OptionRow,
        location: &str,
        value: &TomlValue<'_>,
    ) -> Result<String, ConfigError> {
        let keyword = match value.get_ref() {
            DeValue::Boolean(switch) => row.value_type.keyword_of_bool(*switch),
            _ => None,
        };
        match keyword {
            Some(keyword) => Ok(keyword.to_owned()),
            None => self.text(location, value, row.value_type.expected()),
        }
    }

    /// Returns the text of a string or of a decimal integer.
    fn text(
        &self,
        location: &str,
        value: &TomlValue<'_>,
        expected: String,
    ) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            _ => Err(ConfigError::Value {
                location: location.to_owned(),
                found: self.text.get(value.span()).unwrap_or_default().to_owned(),
                problem: "has the wrong type",
                suggestions: Vec::new(),
                expected,
            }),
        }
    }
}
