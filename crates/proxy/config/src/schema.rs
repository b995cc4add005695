//! The JSON schema of a configuration file (draft 2020-12), written from the tables of options and
//! limits. Editors use it to complete and check TOML files.
//!
//! The schema has names, types, bounds of numbers and patterns of strings. It accepts every file
//! that `check` accepts. Only `check` finds these errors: broken rules between options, numbers
//! with a unit that are out of bounds, and prefixes that are too long for their address.

use serde_json::{Map, Value, json};

use super::TLS_PREFIX;
use super::build::expected_of_limit;
use super::file::{BOOST, FORWARD, ROUTE, SERVE, TABLES_MAX};
use super::options::{OptionRow, Scope, ValueType};
use crate::limits::{LimitRow, Limits};

/// The identifier of the schema. It is not an address to fetch the schema from.
const ID: &str = "urn:millrace:configuration";

/// Returns the schema, indented.
pub(super) fn schema() -> String {
    let limits = Limits::TABLE.iter().map(|row| (row.name.to_owned(), limit(row)));
    let top = [
        ("limits", reference("limits")),
        ("forward", tables_of("forward", 0)),
        ("boost", tables_of("boost", 0)),
        ("serve", tables_of("serve", 0)),
    ];
    let about = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "Configuration of millrace, for `millrace run FILE.toml`",
        "anyOf": any_key(&["forward", "boost", "serve"]),
    });
    let process = object(properties(&[Scope::Process], top), &[]);
    let definitions = json!({
        "limits": object(limits.collect(), &[]),
        "forward": object(properties(FORWARD, []), &[]),
        "boost": object(properties(BOOST, [("route", tables_of("route", 1))]), &["route"]),
        "serve": merged(
            json!({"anyOf": any_key(&["folder", "origins", "fastcgi", "cgi", "program", "route"])}),
            object(properties(SERVE, [("route", tables_of("route", 1))]), &[]),
        ),
        "route": merged(
            json!({"anyOf": any_key(&["folder", "origins", "fastcgi", "cgi", "program"])}),
            object(properties(ROUTE, []), &[]),
        ),
    });
    let schema = merged(merged(about, process), json!({"$defs": definitions}));
    format!("{schema:#}\n")
}

/// Returns the properties of a table: the rows of `scopes` without the limits, and `more`.
fn properties<const N: usize>(scopes: &[Scope], more: [(&str, Value); N]) -> Map<String, Value> {
    let rows = OptionRow::of_scopes(scopes).map(|row| (row.key, property(row)));
    rows.chain(more).map(|(key, value)| (key.to_owned(), value)).collect()
}

fn property(row: &OptionRow) -> Value {
    let about = format!(
        "{} Values: {}. Default: {}.",
        row.sentences(),
        row.value_type.expected(),
        row.default_text()
    );
    let one = value(row.value_type);
    let value = match row.is_repeatable() {
        false => one,
        true => {
            let list = json!({
                "type": "array",
                "minItems": usize::from(!row.may_be_empty),
                "maxItems": row.values_max,
                "items": one,
            });
            any([one, list])
        }
    };
    merged(json!({"description": about}), value)
}

fn limit(row: &LimitRow) -> Value {
    let about = format!("{} Values: {}.", row.text.trim(), expected_of_limit(row));
    let (least, most) = row.bounds;
    let suffix = match row.unit {
        "milliseconds" => "(ms|s|m|h)?",
        "bytes" | "bytes a second" => "[KMGTkmgt]?",
        _ => "",
    };
    let about = json!({"description": about, "default": row.default});
    merged(about, number(least, most, suffix))
}

/// The pattern of an address and a port.
const SOCKET: &str = "(localhost|[0-9.]+|\\[[0-9A-Fa-f:.%]+\\]):[0-9]{1,5}";

/// The pattern of an address block.
const BLOCK: &str =
    "^([0-9]{1,3}\\.){3}[0-9]{1,3}(/[0-9]{1,2})?$|^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(/[0-9]{1,3})?$";
/// The pattern of a host name.
const NAME: &str = "[A-Za-z0-9_-]{1,63}(\\.[A-Za-z0-9_-]{1,63})*\\.?";
/// The pattern of a time in seconds.
const TIME: &str = "([0-9]+[smhd]|0)";
/// The pattern of a token (RFC 9110 section 5.6.2).
const TOKEN: &str = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
/// The pattern of a character of a file name.
const NAME_PART: &str = "[^\\u0000-\\u001f\\u007f-\\u009f/]";

/// Returns the schema of a host name, or a wildcard for all names below one.
fn domains() -> Value {
    pattern(&format!("^(\\*\\.)?{NAME}$"))
}

/// Returns the schema of one value. Numbers and switches may also be strings.
fn value(kind: ValueType) -> Value {
    let socket = format!("^({TLS_PREFIX})?{SOCKET}$");
    match kind {
        ValueType::Flag | ValueType::Switch => choice(&["on", "off"], true),
        ValueType::Number { least, most } => number(least, most, ""),
        ValueType::NumberOrOff { least, most } => or_off(number(least, most, "")),
        ValueType::Size { least, most } => number(least, most, "[KMGTkmgt]?"),
        ValueType::Keyword(words) => choice(words, false),
        ValueType::ListenAddress => any([pattern(&socket), pattern("^unix:.+$")]),
        ValueType::AdminAddress => or_off(any([pattern(&socket), pattern("^unix:.+$")])),
        ValueType::ServiceName => pattern("^[A-Za-z0-9._-]{1,64}$"),
        ValueType::HostName | ValueType::ServerName => pattern(&format!("^{NAME}$")),
        ValueType::MailAddress => pattern("^[!-~]+@[!-~]+$"),
        ValueType::HttpsUrl => pattern("^https://[!-~]+$"),
        ValueType::SocketAddress => or_off(pattern(&format!("^{SOCKET}$"))),
        ValueType::LogFile => any([path(), json!({"const": false})]),
        ValueType::FastCgi => any([pattern(&host_and_port()), pattern("^unix:.+$")]),
        ValueType::ProgramSocket => pattern("^unix:.+$"),
        ValueType::Origin => any([pattern(&origin_url()), pattern("^unix:.+$")]),
        ValueType::Cidr => pattern(BLOCK),
        ValueType::Port => any([number(1, 65535, ""), pattern("^all$")]),
        ValueType::HostPattern => any([domains(), pattern("^\\[?[0-9A-Fa-f:.]+\\]?$")]),
        ValueType::DomainPattern => domains(),
        ValueType::File | ValueType::Folder => path(),
        ValueType::FileName | ValueType::NamePattern => pattern(&format!("^{NAME_PART}+$")),
        ValueType::ExtensionPattern => pattern(&format!("^[.*?]{NAME_PART}*$")),
        ValueType::TryFile => pattern("^(/|\\{path\\})[^\\u0000-\\u001f\\u007f-\\u009f]*$"),
        ValueType::FilePath => pattern("^/[^\\u0000-\\u001f\\u007f-\\u009f]+$"),
        ValueType::MediaPattern => pattern("^[!-:<-~]*[*/][!-:<-~]*$"),
        ValueType::MediaType => {
            pattern("^\\.[^\\u0000-\\u001f\\u007f-\\u009f=./]+=[ -.0-~]+/[ -~]+$")
        }
        ValueType::Charset => any([pattern("^[!-~]+$"), json!({"const": false})]),
        ValueType::CacheControl => any([pattern("^[ -~]+$"), json!({"const": false})]),
        ValueType::User => pattern("^.+$"),
        ValueType::Realm => pattern("^[ !#-\\[\\]-~]{1,100}$"),
        ValueType::PathPrefix => pattern("^/[!\"$->@-~]*$"),
        ValueType::PassedField => pattern(&format!("^{TOKEN}$")),
        ValueType::CheckPath => {
            any([pattern("^/[!\"$-~]*$"), choice(&["off"], false), json!({"const": false})])
        }
        ValueType::Statuses => {
            any([number(200, 599, ""), pattern("^[2-5][0-9]{2}-[2-5][0-9]{2}$")])
        }
        ValueType::MemoryShare { most, .. } => {
            any([number(0, most, "[KMGTkmgt]?"), pattern("^[0-9]{1,2}%$")])
        }
        ValueType::Disk { .. } => {
            pattern("^/[^\\u0000-\\u001f\\u007f-\\u009f]*:[0-9]+[KMGTkmgt]?$")
        }
        ValueType::Duration => any([pattern(&format!("^{TIME}$")), json!({"const": 0})]),
        ValueType::DurationOrOff => any([
            pattern(&format!("^{TIME}$")),
            json!({"const": 0}),
            choice(&["off"], false),
            json!({"const": false}),
        ]),
        ValueType::CacheLifetime => {
            let statuses = "([2-5][0-9]{2}(-[2-5][0-9]{2})? )?";
            pattern(&format!("^{statuses}(origin|(default|override) {TIME})$"))
        }
        ValueType::FieldName => any([pattern(&format!("^{TOKEN}$")), json!({"const": false})]),
        ValueType::FieldOrCookie => {
            pattern(&format!("^(field:{TOKEN}|cookie:[!#-+.-:<>-\\[\\]-~-]+)$"))
        }
        ValueType::QueryParameter => pattern("^[!-~]+$"),
        ValueType::Congestion => pattern("^[A-Za-z0-9_-]{1,15}$"),
        ValueType::Limit => unreachable!("limits have a table of their own"),
    }
}

/// Returns the pattern of the URL of an origin.
fn origin_url() -> String {
    format!("^[Hh][Tt][Tt][Pp][Ss]?://({NAME}|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{{1,5}})?/?$")
}

/// Returns the pattern of a host with a port.
fn host_and_port() -> String {
    format!("^({NAME}|\\[[0-9A-Fa-f:.]+\\]):[0-9]{{1,5}}$")
}

/// Returns the schema of a value that may also be `off`.
fn or_off(value: Value) -> Value {
    any([value, choice(&["off"], false), json!({"const": false})])
}

fn path() -> Value {
    pattern("^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
}

/// Returns the schema of a whole number, or of a string of its digits and a unit.
fn number(least: u64, most: u64, suffix: &str) -> Value {
    let number = json!({"type": "integer", "minimum": least, "maximum": most});
    any([number, pattern(&format!("^[0-9]+{suffix}$"))])
}

fn choice(words: &[&str], or_switch: bool) -> Value {
    let words = json!({"enum": words});
    if or_switch { any([json!({"type": "boolean"}), words]) } else { words }
}

fn pattern(regex: &str) -> Value {
    json!({"type": "string", "pattern": regex})
}

fn any<const N: usize>(schemas: [Value; N]) -> Value {
    json!({"anyOf": schemas.to_vec()})
}

/// Returns the schema of a table that has only these properties.
fn object(properties: Map<String, Value>, required: &[&str]) -> Value {
    let mut object = json!({"type": "object", "additionalProperties": false});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object["properties"] = properties.into();
    object
}

/// Returns the schemas for `anyOf` of a table that has at least one of these keys.
fn any_key(keys: &[&str]) -> Value {
    keys.iter().map(|key| json!({"required": [key]})).collect()
}

/// Returns the schema of an array of at least `least` tables of a definition, or a single one.
fn tables_of(name: &str, least: usize) -> Value {
    let one = reference(name);
    let (most, items) = (TABLES_MAX, &one);
    let list = json!({"type": "array", "minItems": least, "maxItems": most, "items": items});
    any([one, list])
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// Returns `object` with the members of `more` added at its end.
fn merged(mut object: Value, more: Value) -> Value {
    let (Value::Object(members), Value::Object(more)) = (&mut object, more) else {
        unreachable!("schemas are objects");
    };
    members.extend(more);
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_row() {
        let schema: Value = schema().parse().unwrap();
        let tables = ["", "/$defs/forward", "/$defs/boost", "/$defs/serve", "/$defs/route"];
        for row in OptionRow::TABLE.iter().filter(|row| row.is_file_key()) {
            let at = |table| schema.pointer(&format!("{table}/properties/{}", row.key));
            assert!(tables.iter().any(|table| at(table).is_some()), "{}", row.key);
        }
        for row in Limits::TABLE {
            let at = format!("/$defs/limits/properties/{}", row.name);
            assert!(schema.pointer(&at).is_some(), "{}", row.name);
        }
    }
}
