//! The texts of `-h` and `--help`.

use std::fmt::Write;

use super::examples::EXAMPLES;
use super::options::OptionRow;
use super::value_type::ValueType;

/// The width of help, in columns.
const COLUMNS: usize = 96;
/// The columns before the text of an option in `--help`, where it begins on a line of its own.
const INDENT_COLUMNS: usize = 10;
/// The columns before the text of an option in `-h`: an option and its value name fit.
const SHORT_INDENT_COLUMNS: usize = 35;

/// Returns the text of an option in the `-h` of a command.
pub(super) fn short(row: &OptionRow, command: &str) -> String {
    let mut text = row.summary.to_owned();
    if let ValueType::Keyword(words) = row.value_type {
        let _ = write!(text, " [possible values: {}]", words.join(", "));
    }
    let default = row.default_for(command);
    if row.value_type != ValueType::Flag && !default.starts_with('(') {
        let default = format!("[default: {default}]").replace(' ', NO_BREAK);
        let _ = write!(text, " {default}");
    }
    wrapped(&text, COLUMNS - SHORT_INDENT_COLUMNS)
}

/// Returns the text of an option in the `--help` of a command.
pub(super) fn long(row: &OptionRow, command: &str) -> String {
    let summary = wrapped(row.summary, COLUMNS - INDENT_COLUMNS);
    if row.value_type == ValueType::Flag {
        return summary;
    }
    let default = row.default_for(command);
    let default =
        default.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(default);
    let mut facts = format!("[possible values: {}]", row.value_type.expected());
    let _ = write!(facts, " [default: {default}]");
    if row.is_repeatable() {
        facts.push_str(" [repeatable]");
    }
    format!("{summary}\n{}", wrapped(&facts, COLUMNS - INDENT_COLUMNS))
}

/// Returns the template of a command's help, with its examples in front of the options.
pub(super) fn template(command: &str) -> String {
    let mut out = "{about}\n\n{usage-heading} {usage}\n\nExamples:\n".to_owned();
    for example in EXAMPLES.iter().filter(|example| example.command == command) {
        let _ = writeln!(out, "  {}", example.line);
    }
    out.push_str("\n{all-args}");
    out
}

/// The template of the program's help.
pub(super) const PROGRAM_TEMPLATE: &str = "\
{about}
{usage-heading} {usage}

Examples:
  millrace demo                                   Try millrace in a browser
  millrace boost --origin http://127.0.0.1:8081   Reverse proxy on 127.0.0.1:8080
  millrace serve .                                Web server on 127.0.0.1:8080

{all-args}

\"millrace COMMAND -h\" lists the most used options, \"millrace COMMAND --help\" all options.";

/// A blank at which [`wrapped`] does not break a line.
const NO_BREAK: &str = "\u{a0}";

/// Breaks a text at blanks into lines of at most `columns`, unless a word is longer.
fn wrapped(text: &str, columns: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.chars().count() > columns {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.chars().count();
    }
    out.replace(NO_BREAK, " ")
}
