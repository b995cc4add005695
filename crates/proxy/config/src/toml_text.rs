//! Writes keys and values in the syntax of TOML.

use std::fmt::Write;

/// Writes a key and its value, which has to be in the syntax of TOML.
pub(super) fn write_key(out: &mut String, key: &str, value: impl std::fmt::Display) {
    writeln!(out, "{key} = {value}").expect("a String accepts every write");
}

/// Returns an array of basic strings.
pub(super) fn string_array(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.map(|value| basic_string(&value)).collect::<Vec<_>>().join(", "))
}

/// Returns a text as a basic string.
pub(super) fn basic_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => {
                write!(out, "\\u{:04x}", u32::from(character))
                    .expect("a String accepts every write");
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
