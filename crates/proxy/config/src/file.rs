//! Reads the file format: TOML into raw values. Unknown keys are errors. `build` interprets the
//! values.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::build::expected_of_limit;
use super::error::{ConfigError, nearest};
use super::options::{OptionRow, Scope};
use super::raw::{RawConfig, RawLimit, RawService, RawTable, RawValue, ServiceKind};
use crate::limits::Limits;

/// The largest file that is read, in bytes: far above real files, and small enough to be parsed
/// quickly.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// The most tables of one name: services of a kind, or routes of a service.
pub(super) const TABLES_MAX: usize = 256;

/// The scopes of the options in `[[forward]]`.
pub(super) const FORWARD: &[Scope] = &[Scope::Service, Scope::Forward, Scope::Cache];
/// The scopes of the options in `[[boost]]`.
pub(super) const BOOST: &[Scope] = &[Scope::Service, Scope::Boost, Scope::Cache];
/// The scopes of the options in `[[boost.route]]` and `[[serve.route]]`.
pub(super) const ROUTE: &[Scope] = &[Scope::Route, Scope::Folder, Scope::Cache];
/// The scopes of the options in `[[serve]]`.
pub(super) const SERVE: &[Scope] =
    &[Scope::Service, Scope::Boost, Scope::Route, Scope::Folder, Scope::Cache];
/// The scopes of the options of the last route of a file server.
const LAST_ROUTE: &[Scope] = &[Scope::Route, Scope::Folder];

/// The keys that a table may have.
struct TableKeys {
    /// The table, with a preposition.
    place: &'static str,
    /// The scopes of its options.
    scopes: &'static [Scope],
    /// The names of its tables, which the error for an unknown key lists too.
    tables: &'static [&'static str],
}

const TOP_KEYS: TableKeys = TableKeys {
    place: "at the top level",
    scopes: &[Scope::Process],
    tables: &["limits", "forward", "boost", "serve"],
};

impl ServiceKind {
    fn keys(self) -> TableKeys {
        match self {
            Self::Forward => TableKeys { place: "in [[forward]]", scopes: FORWARD, tables: &[] },
            Self::Boost => TableKeys { place: "in [[boost]]", scopes: BOOST, tables: &["route"] },
            Self::Serve => TableKeys { place: "in [[serve]]", scopes: SERVE, tables: &["route"] },
        }
    }

    fn route_keys(self) -> TableKeys {
        let place = match self {
            Self::Serve => "in [[serve.route]]",
            Self::Forward | Self::Boost => "in [[boost.route]]",
        };
        TableKeys { place, scopes: ROUTE, tables: &[] }
    }
}

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
    for (key, value) in in_order(document.get_ref()) {
        let kind = ServiceKind::ALL.into_iter().find(|kind| kind.name() == key.get_ref());
        match kind {
            Some(kind) => {
                for table in file.tables(key, value)? {
                    config.services.push(file.service(table, kind)?);
                }
            }
            None if key.get_ref() == "limits" => config.limits = file.limits(key, value)?,
            None => file.option(&mut config.process, key, value, &TOP_KEYS)?,
        }
    }
    config.services.sort_by_key(|service| service.kind);
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

    /// Reads one table of a service.
    fn service(
        &self,
        table: Spanned<&DeTable<'_>>,
        kind: ServiceKind,
    ) -> Result<RawService, ConfigError> {
        let (name, keys) = (kind.name(), kind.keys());
        let mut raw = self.raw_table(&format!("[[{name}]]"), &table);
        let mut routes = Vec::new();
        for (key, value) in in_order(table.get_ref()) {
            if keys.tables.contains(&key.get_ref().as_ref()) {
                for table in self.tables(key, value)? {
                    routes.push(self.route(table, kind)?);
                }
            } else {
                self.option(&mut raw, key, value, &keys)?;
            }
        }
        if kind == ServiceKind::Serve {
            let last = raw.split_off(LAST_ROUTE);
            routes.extend((!last.is_empty()).then_some(last));
            if routes.len() > TABLES_MAX {
                let problem = format!("has {} routes", routes.len());
                let expected = format!("up to {TABLES_MAX}, with its own");
                return Err(ConfigError::rule(raw.location, problem, expected));
            }
        }
        Ok(RawService { kind, routes, table: raw })
    }

    /// Reads the table of a route, such as `[[boost.route]]`.
    fn route(
        &self,
        table: Spanned<&DeTable<'_>>,
        kind: ServiceKind,
    ) -> Result<RawTable, ConfigError> {
        let mut raw = self.raw_table(&format!("[[{}.route]]", kind.name()), &table);
        for (key, value) in in_order(table.get_ref()) {
            self.option(&mut raw, key, value, &kind.route_keys())?;
        }
        Ok(raw)
    }

    /// Returns an empty table of this name.
    fn raw_table(&self, name: &str, table: &Spanned<&DeTable<'_>>) -> RawTable {
        let location = format!("{}: {name}", self.location(table.span().start));
        RawTable { location, ..RawTable::default() }
    }

    /// Reads an option of a table with these keys.
    fn option(
        &self,
        raw: &mut RawTable,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
        keys: &TableKeys,
    ) -> Result<(), ConfigError> {
        let &TableKeys { place, scopes, tables } = keys;
        let Some(row) = OptionRow::of_scopes(scopes).find(|row| row.key == key.get_ref()) else {
            if let Some(expected) = allowed_location(key.get_ref()) {
                let problem = format!("does not belong {place}");
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
