//! Reads the file format: TOML into the values that were given, unknown keys refused. What the
//! values mean is decided in `build`.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::options::{OptionRow, Scope};
use super::raw::{RawConfig, RawLimit, RawService, RawTable, RawValue};
use crate::limits::Limits;

/// The longest file that is read. Far above any real one; below what makes reading slow.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// How many services, and how many routes of one booster, a file may have.
pub(super) const TABLES_MAX: usize = 256;

/// What `[[forward]]`, `[[boost]]` and `[[boost.route]]` take.
pub(super) const FORWARD: &[Scope] = &[Scope::Service, Scope::Forward, Scope::Cache];
pub(super) const BOOST: &[Scope] = &[Scope::Service, Scope::Boost, Scope::Cache];
pub(super) const ROUTE: &[Scope] = &[Scope::Route, Scope::Cache];

const PROCESS_TABLES: &[&str] = &["limits", "forward", "boost"];

/// Reads `text`, which messages call `name`.
pub(super) fn read(name: &str, text: &str) -> Result<RawConfig, ConfigError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ConfigError::rule(
            name,
            "is too long",
            format!("up to {FILE_BYTES_MAX} bytes"),
        ));
    }
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let file = ConfigFile { name, text, newlines: newlines.map(|(offset, _)| offset).collect() };
    let document = DeTable::parse(text).map_err(|error| {
        let location = file.location(error.span().map_or(0, |span| span.start));
        ConfigError::rule(location, error.message(), "TOML")
    })?;
    let mut tables = RawConfig::default();
    tables.process.location = name.to_owned();
    let mut boosters = Vec::new();
    for (key, value) in in_order(document.get_ref()) {
        match key.get_ref().as_ref() {
            "limits" => tables.limits = file.limits(key, value)?,
            "forward" => {
                for table in file.tables(key, value)? {
                    tables.services.push(file.service(table, None)?);
                }
            }
            "boost" => {
                for table in file.tables(key, value)? {
                    boosters.push(file.service(table, Some(Vec::new()))?);
                }
            }
            _ => file.option(&mut tables.process, key, value, &[Scope::Process], PROCESS_TABLES)?,
        }
    }
    tables.services.append(&mut boosters);
    Ok(tables)
}

/// Where a key that exists may stand.
fn allowed_location(key: &str) -> Option<String> {
    if Limits::TABLE.iter().any(|row| row.name == key) {
        return Some("in [limits]".to_owned());
    }
    let row = OptionRow::TABLE.iter().find(|row| row.key == key && row.key != "limit")?;
    Some(match row.scope {
        Scope::Process => "at the top of the file".to_owned(),
        Scope::Start => "on the command line".to_owned(),
        _ => format!("in {}", row.tables()),
    })
}

/// The table that takes rows of `scopes`.
fn table_name(scopes: &[Scope]) -> &'static str {
    match scopes {
        _ if scopes.contains(&Scope::Route) => "in [[boost.route]]",
        _ if scopes.contains(&Scope::Boost) => "in [[boost]]",
        _ if scopes.contains(&Scope::Forward) => "in [[forward]]",
        _ => "at the top of the file",
    }
}

type TomlKey<'i> = Spanned<toml::de::DeString<'i>>;
type TomlValue<'i> = Spanned<DeValue<'i>>;

/// The entries of a table as they stand in the file, so that the first error is the first there.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t TomlKey<'i>, &'t TomlValue<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

struct ConfigFile<'a> {
    name: &'a str,
    text: &'a str,
    /// Where each line ends; ascending.
    newlines: Vec<usize>,
}

impl ConfigFile<'_> {
    /// File and line of a position.
    fn location(&self, offset: usize) -> String {
        let line = self.newlines.partition_point(|newline| *newline < offset);
        format!("{}:{}", self.name, line + 1)
    }

    /// File, line and key.
    fn place_of_key(&self, key: &TomlKey<'_>) -> String {
        format!("{}: {}", self.location(key.span().start), key.get_ref())
    }

    /// `[[forward]]`, `[[boost]]` or `[[boost.route]]`: the tables of a list, or a lone table.
    fn tables<'t, 'i>(
        &self,
        key: &TomlKey<'i>,
        value: &'t TomlValue<'i>,
    ) -> Result<Vec<Spanned<&'t DeTable<'i>>>, ConfigError> {
        let refused = || {
            let expected = format!("up to {TABLES_MAX} tables with this name between [[ and ]]");
            ConfigError::rule(self.place_of_key(key), "is not a table", expected)
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(vec![Spanned::new(value.span(), table)]),
            DeValue::Array(list) if list.len() > TABLES_MAX => {
                let first = &list[TABLES_MAX];
                let location = format!("{}: {}", self.location(first.span().start), key.get_ref());
                let problem = format!("is one of {} tables with this name", list.len());
                Err(ConfigError::rule(location, problem, format!("up to {TABLES_MAX}")))
            }
            DeValue::Array(list) => list
                .iter()
                .map(|entry| match entry.get_ref() {
                    DeValue::Table(table) => Ok(Spanned::new(entry.span(), table)),
                    _ => Err(refused()),
                })
                .collect(),
            _ => Err(refused()),
        }
    }

    fn service(
        &self,
        table: Spanned<&DeTable<'_>>,
        mut routes: Option<Vec<RawTable>>,
    ) -> Result<RawService, ConfigError> {
        let name = if routes.is_some() { "[[boost]]" } else { "[[forward]]" };
        let mut values = self.values(name, &table);
        for (key, value) in in_order(table.get_ref()) {
            match &mut routes {
                Some(routes) if key.get_ref() == "route" => {
                    for table in self.tables(key, value)? {
                        routes.push(self.route(table)?);
                    }
                }
                Some(_) => self.option(&mut values, key, value, BOOST, &["route"])?,
                None => self.option(&mut values, key, value, FORWARD, &[])?,
            }
        }
        Ok(RawService { routes, values })
    }

    fn route(&self, table: Spanned<&DeTable<'_>>) -> Result<RawTable, ConfigError> {
        let mut values = self.values("[[boost.route]]", &table);
        for (key, value) in in_order(table.get_ref()) {
            self.option(&mut values, key, value, ROUTE, &[])?;
        }
        Ok(values)
    }

    fn values(&self, name: &str, table: &Spanned<&DeTable<'_>>) -> RawTable {
        let location = format!("{}: {name}", self.location(table.span().start));
        RawTable { location, ..RawTable::default() }
    }

    /// One key that should be a row of `scopes`; `tables` may stand beside those, and are named
    /// when it is not.
    fn option(
        &self,
        values: &mut RawTable,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
        scopes: &[Scope],
        tables: &[&str],
    ) -> Result<(), ConfigError> {
        let Some(row) = OptionRow::of_scopes(scopes).find(|row| row.key == key.get_ref()) else {
            if let Some(expected) = allowed_location(key.get_ref()) {
                let problem = format!("does not belong {}", table_name(scopes));
                return Err(ConfigError::rule(self.place_of_key(key), problem, expected));
            }
            let keys = OptionRow::of_scopes(scopes).map(|row| row.key);
            let expected: Vec<&str> = keys.chain(tables.iter().copied()).collect();
            let location = self.location(key.span().start);
            return Err(ConfigError::unknown(location, "key", key.get_ref(), &expected));
        };
        let entries: Vec<_> = match value.get_ref() {
            DeValue::Array(list) if row.is_repeatable() => list.iter().collect(),
            _ => vec![value],
        };
        if entries.is_empty() {
            values.empty_lists.push(row);
        }
        for entry in entries {
            let location = format!("{}: {}", self.location(entry.span().start), key.get_ref());
            let text = self.text_of(row, &location, entry)?;
            values.add(row, RawValue { location, text })?;
        }
        Ok(())
    }

    fn limits(
        &self,
        key: &TomlKey<'_>,
        value: &TomlValue<'_>,
    ) -> Result<Vec<RawLimit>, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            let expected = "[limits], with one line for each limit";
            return Err(ConfigError::rule(self.place_of_key(key), "is not a table", expected));
        };
        let given = |(key, value): (&TomlKey<'_>, &TomlValue<'_>)| {
            let location = self.place_of_key(key);
            let expected = || "a whole number, or a text with a unit".to_owned();
            Ok(RawLimit {
                name: key.get_ref().to_string(),
                name_location: self.location(key.span().start),
                value: RawValue { text: self.text(&location, value, expected())?, location },
            })
        };
        in_order(table).into_iter().map(given).collect()
    }

    /// A value of a row as text: a Boolean as the word that it means there.
    fn text_of(
        &self,
        row: &OptionRow,
        location: &str,
        value: &TomlValue<'_>,
    ) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::Boolean(switch) => {
                let word = row.kind.keyword_of_bool(*switch);
                Ok(word.map_or_else(|| switch.to_string(), str::to_owned))
            }
            _ => self.text(location, value, row.kind.expected()),
        }
    }

    /// A value that is not a list or a table, as text.
    fn text(
        &self,
        location: &str,
        value: &TomlValue<'_>,
        expected: String,
    ) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Boolean(switch) => Ok(switch.to_string()),
            _ => Err(ConfigError::Value {
                location: location.to_owned(),
                found: self.text.get(value.span()).unwrap_or_default().to_owned(),
                problem: "is of the wrong type",
                expected,
            }),
        }
    }
}
