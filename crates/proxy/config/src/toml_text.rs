//! The lines of a file, as they are written.

use std::fmt::Write;

/// A key with its value.
pub(super) fn write_key(out: &mut String, key: &str, value: impl std::fmt::Display) {
    writeln!(out, "{key} = {value}").expect("a string takes every write");
}

/// A list of basic strings of TOML.
pub(super) fn string_array(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.map(|value| basic_string(&value)).collect::<Vec<_>>().join(", "))
}

/// A basic string of TOML.
pub(super) fn basic_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => {
                write!(out, "\\u{:04x}", u32::from(character)).expect("a string takes every write");
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
