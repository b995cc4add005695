//! Reads the file format: TOML into the values that were given, unknown keys refused. What the
//! values mean is decided in `build`.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::given::{Given, LimitGiven, ServiceGiven, Tables, Values};
use super::options::{Row, Scope};
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
pub(super) fn read(name: &str, text: &str) -> Result<Tables, ConfigError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(ConfigError::rule(
            name,
            "is too long",
            format!("up to {FILE_BYTES_MAX} bytes"),
        ));
    }
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let file = File { name, text, newlines: newlines.map(|(offset, _)| offset).collect() };
    let document = DeTable::parse(text).map_err(|error| {
        let place = file.place(error.span().map_or(0, |span| span.start));
        ConfigError::rule(place, error.message(), "TOML")
    })?;
    let mut tables = Tables::default();
    tables.process.place = name.to_owned();
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
fn where_allowed(key: &str) -> Option<String> {
    if Limits::TABLE.iter().any(|row| row.name == key) {
        return Some("in [limits]".to_owned());
    }
    let row = Row::TABLE.iter().find(|row| row.key == key && row.key != "limit")?;
    Some(match row.scope {
        Scope::Process => "at the top of the file".to_owned(),
        Scope::Start => "on the command line".to_owned(),
        _ => format!("in {}", row.tables()),
    })
}

/// The table that takes rows of `scopes`.
fn where_read(scopes: &[Scope]) -> &'static str {
    match scopes {
        _ if scopes.contains(&Scope::Route) => "in [[boost.route]]",
        _ if scopes.contains(&Scope::Boost) => "in [[boost]]",
        _ if scopes.contains(&Scope::Forward) => "in [[forward]]",
        _ => "at the top of the file",
    }
}

type Key<'i> = Spanned<toml::de::DeString<'i>>;
type Value<'i> = Spanned<DeValue<'i>>;

/// The entries of a table as they stand in the file, so that the first error is the first there.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Key<'i>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

struct File<'a> {
    name: &'a str,
    text: &'a str,
    /// Where each line ends; ascending.
    newlines: Vec<usize>,
}

impl File<'_> {
    /// File and line of a position.
    fn place(&self, offset: usize) -> String {
        let line = self.newlines.partition_point(|newline| *newline < offset);
        format!("{}:{}", self.name, line + 1)
    }

    /// File, line and key.
    fn place_of_key(&self, key: &Key<'_>) -> String {
        format!("{}: {}", self.place(key.span().start), key.get_ref())
    }

    /// `[[forward]]`, `[[boost]]` or `[[boost.route]]`: the tables of a list, or a lone table.
    fn tables<'t, 'i>(
        &self,
        key: &Key<'i>,
        value: &'t Value<'i>,
    ) -> Result<Vec<Spanned<&'t DeTable<'i>>>, ConfigError> {
        let refused = || {
            let allowed = format!("up to {TABLES_MAX} tables with this name between [[ and ]]");
            ConfigError::rule(self.place_of_key(key), "is not a table", allowed)
        };
        match value.get_ref() {
            DeValue::Table(table) => Ok(vec![Spanned::new(value.span(), table)]),
            DeValue::Array(list) if list.len() > TABLES_MAX => {
                let first = &list[TABLES_MAX];
                let place = format!("{}: {}", self.place(first.span().start), key.get_ref());
                let wrong = format!("is one of {} tables with this name", list.len());
                Err(ConfigError::rule(place, wrong, format!("up to {TABLES_MAX}")))
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
        mut routes: Option<Vec<Values>>,
    ) -> Result<ServiceGiven, ConfigError> {
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
        Ok(ServiceGiven { routes, values })
    }

    fn route(&self, table: Spanned<&DeTable<'_>>) -> Result<Values, ConfigError> {
        let mut values = self.values("[[boost.route]]", &table);
        for (key, value) in in_order(table.get_ref()) {
            self.option(&mut values, key, value, ROUTE, &[])?;
        }
        Ok(values)
    }

    fn values(&self, name: &str, table: &Spanned<&DeTable<'_>>) -> Values {
        let place = format!("{}: {name}", self.place(table.span().start));
        Values { place, ..Values::default() }
    }

    /// One key that should be a row of `scopes`; `tables` may stand beside those, and are named
    /// when it is not.
    fn option(
        &self,
        values: &mut Values,
        key: &Key<'_>,
        value: &Value<'_>,
        scopes: &[Scope],
        tables: &[&str],
    ) -> Result<(), ConfigError> {
        let Some(row) = Row::of_scopes(scopes).find(|row| row.key == key.get_ref()) else {
            if let Some(allowed) = where_allowed(key.get_ref()) {
                let wrong = format!("does not belong {}", where_read(scopes));
                return Err(ConfigError::rule(self.place_of_key(key), wrong, allowed));
            }
            let keys = Row::of_scopes(scopes).map(|row| row.key);
            let allowed: Vec<&str> = keys.chain(tables.iter().copied()).collect();
            let place = self.place(key.span().start);
            return Err(ConfigError::unknown(place, key.get_ref(), &allowed));
        };
        let entries: Vec<_> = match value.get_ref() {
            DeValue::Array(list) if row.is_repeatable() => list.iter().collect(),
            _ => vec![value],
        };
        if entries.is_empty() {
            values.emptied.push(row);
        }
        for entry in entries {
            let place = format!("{}: {}", self.place(entry.span().start), key.get_ref());
            let text = self.text_of(row, &place, entry)?;
            values.add(row, Given { place, text })?;
        }
        Ok(())
    }

    fn limits(&self, key: &Key<'_>, value: &Value<'_>) -> Result<Vec<LimitGiven>, ConfigError> {
        let DeValue::Table(table) = value.get_ref() else {
            let allowed = "[limits], with one line for each limit";
            return Err(ConfigError::rule(self.place_of_key(key), "is not a table", allowed));
        };
        let given = |(key, value): (&Key<'_>, &Value<'_>)| {
            let place = self.place_of_key(key);
            let allowed = || "a whole number, or a text with a unit".to_owned();
            Ok(LimitGiven {
                name: key.get_ref().to_string(),
                name_place: self.place(key.span().start),
                value: Given { text: self.text(&place, value, allowed())?, place },
            })
        };
        in_order(table).into_iter().map(given).collect()
    }

    /// A value of a row as text: a Boolean as the word that it means there.
    fn text_of(&self, row: &Row, place: &str, value: &Value<'_>) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::Boolean(switch) => {
                let word = row.kind.word_of(*switch);
                Ok(word.map_or_else(|| switch.to_string(), str::to_owned))
            }
            _ => self.text(place, value, row.kind.allowed()),
        }
    }

    /// A value that is not a list or a table, as text.
    fn text(&self, place: &str, value: &Value<'_>, allowed: String) -> Result<String, ConfigError> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Boolean(switch) => Ok(switch.to_string()),
            _ => Err(ConfigError::Value {
                place: place.to_owned(),
                found: self.text.get(value.span()).unwrap_or_default().to_owned(),
                wrong: "is of the wrong type",
                allowed,
            }),
        }
    }
}
