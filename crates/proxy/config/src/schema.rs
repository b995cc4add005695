//! The JSON schema of a configuration file (draft 2020-12), written from the tables of options and
//! limits, for editors that complete and check TOML files and for programs that write them.
//!
//! A schema knows types, names, numbers' bounds and the forms of texts. It accepts whatever `check`
//! accepts; what it cannot say is left to `check`: rules between options, bounds of numbers that are
//! written as texts with a unit, prefixes that are too long for their address.

use std::fmt::Write;

use super::build::allowed_limit;
use super::file::{BOOST, FORWARD, ROUTE};
use super::options::{Kind, Row, Scope};
use crate::limits::{Limit, Limits};

/// What editors and validators know the schema by. It names no place to fetch it from.
const ID: &str = "urn:millrace:configuration";
/// How many services, and how many routes of one booster: as the reader of files has it.
const TABLES_MAX: usize = super::file::TABLES_MAX;

/// The schema, indented.
pub(super) fn schema() -> String {
    let route = object(&properties(ROUTE, &[]), &["origins"]);
    let forward = object(&properties(FORWARD, &[]), &[]);
    let routes = [("route".to_owned(), tables_of("route", 1))];
    let boost = object(&properties(BOOST, &routes), &["route"]);
    let limits: Vec<_> =
        Limits::TABLE.iter().map(|row| (row.name.to_owned(), limit(row))).collect();
    let top = [
        ("limits".to_owned(), reference("limits")),
        ("forward".to_owned(), tables_of("forward", 0)),
        ("boost".to_owned(), tables_of("boost", 0)),
    ];
    let definitions = [
        ("limits".to_owned(), object(&limits, &[])),
        ("forward".to_owned(), forward),
        ("boost".to_owned(), boost),
        ("route".to_owned(), route),
    ];
    let whole = format!(
        "{{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"$id\":{},\"title\":{},\
         \"anyOf\":[{{\"required\":[\"forward\"]}},{{\"required\":[\"boost\"]}}],{},\"$defs\":{{{}}}}}",
        text(ID),
        text("Configuration of millrace, for `millrace run FILE.toml`"),
        &braceless(&object(&properties(&[Scope::Process], &top), &[])),
        entries(&definitions)
    );
    indented(&whole)
}

type Entry = (String, String);

/// The properties of a table: the rows of `scopes`, limits apart, and those in `more`.
fn properties(scopes: &[Scope], more: &[Entry]) -> Vec<Entry> {
    let rows = Row::TABLE.iter().filter(|row| scopes.contains(&row.scope));
    let rows = rows.filter(|row| row.kind != Kind::Limit);
    rows.map(|row| (row.key.to_owned(), property(row))).chain(more.iter().cloned()).collect()
}

fn property(row: &Row) -> String {
    let one = value(row.kind);
    let about = format!("{} Allowed: {}. Default: {}.", row.text, row.kind.allowed(), row.default);
    let about = format!("\"description\":{}", text(&about));
    if !row.is_repeatable() {
        return format!("{{{about},{}}}", braceless(&one));
    }
    let most = row.values_max;
    format!(
        "{{{about},\"anyOf\":[{one},{{\"type\":\"array\",\"maxItems\":{most},\"items\":{one}}}]}}"
    )
}

fn limit(row: &Limit) -> String {
    let about = format!("{} Allowed: {}.", row.text.trim(), allowed_limit(row));
    let (least, most) = row.bounds;
    let suffix = match row.unit {
        "milliseconds" => "(ms|s|m|h)?",
        "bytes" | "bytes a second" => "[KMGTkmgt]?",
        _ => "",
    };
    let number = number(least, most, suffix);
    format!(
        "{{\"description\":{},\"default\":{},{}}}",
        text(&about),
        row.default,
        braceless(&number)
    )
}

/// The schema of one value. Numbers and switches may be texts too: both are read alike.
fn value(kind: Kind) -> String {
    const BLOCK: &str = "^([0-9]{1,3}\\.){3}[0-9]{1,3}(/[0-9]{1,2})?$|^[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(/[0-9]{1,3})?$";
    const SOCKET: &str = "^(localhost|[0-9.]+|\\[[0-9A-Fa-f:.%]+\\]):[0-9]{1,5}$";
    const NAME: &str = "[A-Za-z0-9_-]{1,63}(\\.[A-Za-z0-9_-]{1,63})*\\.?";
    const TIME: &str = "([0-9]+[smhd]|0)";
    const TOKEN: &str = "[!#$%&'*+.^_`|~0-9A-Za-z-]+";
    match kind {
        Kind::Flag | Kind::Switch => choice(&["on", "off"], true),
        Kind::Number { least, most } => number(least, most, ""),
        Kind::Size { least, most } => number(least, most, "[KMGTkmgt]?"),
        Kind::Choice(words) => choice(words, false),
        Kind::Listen => any(&[pattern(SOCKET), pattern("^unix:.+$")]),
        Kind::Admin => any(&[
            pattern(SOCKET),
            pattern("^unix:.+$"),
            choice(&["off"], false),
            constant("false"),
        ]),
        Kind::Service => pattern("^[A-Za-z0-9._-]{1,64}$"),
        Kind::Name => pattern(&format!("^{NAME}$")),
        Kind::Log => any(&[path(), constant("false")]),
        Kind::Origin => {
            let url =
                format!("^[Hh][Tt][Tt][Pp]://({NAME}|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{{1,5}})?/?$");
            any(&[pattern(&url), pattern("^unix:.+$")])
        }
        Kind::Block => pattern(BLOCK),
        Kind::Port => any(&[number(1, 65535, ""), pattern("^all$")]),
        Kind::Host => {
            any(&[pattern(&format!("^(\\*\\.)?{NAME}$")), pattern("^\\[?[0-9A-Fa-f:.]+\\]?$")])
        }
        Kind::Domain => pattern(&format!("^(\\*\\.)?{NAME}$")),
        Kind::File | Kind::Folder => path(),
        Kind::User => pattern("^.+$"),
        Kind::Realm => pattern("^[ !#-\\[\\]-~]{1,100}$"),
        Kind::Path => pattern("^/[!\"$->@-~]*$"),
        Kind::PassField => pattern(&format!("^{TOKEN}$")),
        Kind::Check => any(&[pattern("^/[!\"$-~]*$"), choice(&["off"], false), constant("false")]),
        Kind::Statuses => any(&[number(200, 599, ""), pattern("^[2-5][0-9]{2}-[2-5][0-9]{2}$")]),
        Kind::Share { most, .. } => {
            any(&[number(0, most, "[KMGTkmgt]?"), pattern("^[0-9]{1,2}%$")])
        }
        Kind::Disk { .. } => pattern("^/[^\\u0000-\\u001f\\u007f-\\u009f]*:[0-9]+[KMGTkmgt]?$"),
        Kind::Time => any(&[pattern(&format!("^{TIME}$")), constant("0")]),
        Kind::Ttl => {
            let statuses = "([2-5][0-9]{2}(-[2-5][0-9]{2})? )?";
            pattern(&format!("^{statuses}(origin|(default|override) {TIME})$"))
        }
        Kind::Field => any(&[pattern(&format!("^{TOKEN}$")), constant("false")]),
        Kind::Feature => pattern(&format!("^(field:{TOKEN}|cookie:[!#-+.-:<>-\\[\\]-~-]+)$")),
        Kind::Parameter => pattern("^[!-~]+$"),
        Kind::Congestion => pattern("^[A-Za-z0-9_-]{1,15}$"),
        Kind::Limit => unreachable!("limits have a table of their own"),
    }
}

fn path() -> String {
    pattern("^[^\\u0000-\\u001f\\u007f-\\u009f]+$")
}

/// A whole number, or its digits as a text, perhaps with a unit.
fn number(least: u64, most: u64, suffix: &str) -> String {
    let number = format!("{{\"type\":\"integer\",\"minimum\":{least},\"maximum\":{most}}}");
    any(&[number, pattern(&format!("^[0-9]+{suffix}$"))])
}

fn choice(words: &[&str], or_switch: bool) -> String {
    let words: Vec<_> = words.iter().map(|word| text(word)).collect();
    let words = format!("{{\"enum\":[{}]}}", words.join(","));
    if or_switch { any(&["{\"type\":\"boolean\"}".to_owned(), words]) } else { words }
}

fn constant(value: &str) -> String {
    format!("{{\"const\":{value}}}")
}

fn pattern(regex: &str) -> String {
    format!("{{\"type\":\"string\",\"pattern\":{}}}", text(regex))
}

fn any(schemas: &[String]) -> String {
    format!("{{\"anyOf\":[{}]}}", schemas.join(","))
}

/// A table that knows no other keys.
fn object(properties: &[Entry], required: &[&str]) -> String {
    let required: Vec<_> = required.iter().map(|key| text(key)).collect();
    let required = match required.is_empty() {
        true => String::new(),
        false => format!(",\"required\":[{}]", required.join(",")),
    };
    format!(
        "{{\"type\":\"object\",\"additionalProperties\":false{required},\"properties\":{{{}}}}}",
        entries(properties)
    )
}

/// A list of tables of a definition, at least so many, or one of them alone.
fn tables_of(name: &str, least: usize) -> String {
    let one = reference(name);
    let list = format!(
        "{{\"type\":\"array\",\"minItems\":{least},\"maxItems\":{TABLES_MAX},\"items\":{one}}}"
    );
    any(&[one, list])
}

fn reference(name: &str) -> String {
    format!("{{\"$ref\":\"#/$defs/{name}\"}}")
}

fn entries(entries: &[Entry]) -> String {
    let entries = entries.iter().map(|(key, value)| format!("{}:{value}", text(key)));
    entries.collect::<Vec<_>>().join(",")
}

/// An object without its braces, to be put into another.
fn braceless(object: &str) -> &str {
    let inner = object.strip_prefix('{').and_then(|object| object.strip_suffix('}'));
    inner.expect("the caller has made an object")
}

/// A string of JSON. Ours are printable.
fn text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// JSON without blanks, spread over lines.
fn indented(json: &str) -> String {
    let mut out = String::new();
    let (mut depth, mut is_text, mut is_escaped) = (0, false, false);
    let mut characters = json.chars().peekable();
    while let Some(character) = characters.next() {
        if is_text {
            out.push(character);
            is_text = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
            continue;
        }
        let opens = matches!(character, '{' | '[');
        let closes = matches!(character, '}' | ']');
        depth = if closes { depth - 1 } else { depth };
        if closes {
            new_line(&mut out, depth);
        }
        out.push(character);
        is_text = character == '"';
        if opens && characters.peek().is_some_and(|next| !matches!(next, '}' | ']')) {
            depth += 1;
            new_line(&mut out, depth);
        } else if opens {
            out.extend(characters.next());
        } else if character == ',' {
            new_line(&mut out, depth);
        } else if character == ':' {
            out.push(' ');
        }
    }
    out.push('\n');
    out
}

fn new_line(out: &mut String, depth: usize) {
    let _ = write!(out, "\n{:1$}", "", 2 * depth);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_in_the_schema_and_its_braces_match() {
        let schema = schema();
        let is_key = |row: &&Row| row.kind != Kind::Limit && row.scope != Scope::Start;
        for row in Row::TABLE.iter().filter(is_key) {
            assert!(schema.contains(&format!("\"{}\": {{", row.key)), "{}", row.key);
        }
        for row in Limits::TABLE {
            assert!(schema.contains(&format!("\"{}\": {{", row.name)), "{}", row.name);
        }
        assert_eq!(
            indented(r#"{"a":[1,{}],"b\"{":"c"}"#),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\\\"{\": \"c\"\n}\n"
        );
        assert!(schema.lines().all(|line| !line.ends_with(' ')));
    }
}
