//! Errors of a configuration. Each has a one-line message about a mistake in a command line or a
//! file.

use std::fmt;

/// Why a command line or a file is not a valid configuration. The message is one line that names
/// the option (or the file, line and key), the problem and what is expected. A retry does not help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A value that is not valid for its option.
    Value {
        /// The option: `--workers`, or `millrace.toml:3: workers`.
        location: String,
        /// The value as written.
        found: String,
        /// The problem, to follow the value: "is not a number".
        problem: &'static str,
        /// Values that the author may have meant.
        suggestions: Vec<String>,
        /// The valid values.
        expected: String,
    },
    /// An option, key, command or table that does not exist.
    Unknown {
        /// Its location: `boost`, or `millrace.toml:3`. Empty for a command.
        location: String,
        /// The kind of word that was expected: `option`, `key`, `command`, `limit`.
        item: &'static str,
        /// The word as written.
        found: String,
        /// The valid word that is most similar, if one is similar.
        nearest: Option<String>,
        /// All valid words, or where they are listed.
        expected: String,
    },
    /// Something that is missing, given twice or not possible together with another setting, or a
    /// file that is not TOML.
    Rule {
        /// Where the rule is broken.
        location: String,
        /// The problem.
        problem: String,
        /// How to correct it.
        expected: String,
    },
}

impl ConfigError {
    /// Returns the error for a broken rule.
    pub fn rule(
        location: impl Into<String>,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Rule { location: location.into(), problem: problem.into(), expected: expected.into() }
    }

    /// Returns the error for a word that is none of the `expected` ones.
    pub fn unknown(
        location: impl Into<String>,
        item: &'static str,
        found: &str,
        expected: &[impl AsRef<str>],
    ) -> Self {
        let expected: Vec<_> = expected.iter().map(AsRef::as_ref).collect();
        let nearest = nearest(found, expected.iter().copied());
        let expected = expected.join(", ");
        Self::Unknown {
            location: location.into(),
            item,
            found: found.to_owned(),
            nearest,
            expected,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Value { location, .. }
        | Self::Unknown { location, .. }
        | Self::Rule { location, .. }) = self;
        if !location.is_empty() {
            write!(f, "{}: ", plain(location))?;
        }
        match self {
            Self::Value { found, problem, suggestions, expected, .. } => {
                write!(f, "{} {problem}", quoted(found))?;
                if !suggestions.is_empty() {
                    let quoted: Vec<_> = suggestions.iter().map(|text| quoted(text)).collect();
                    write!(f, "; did you mean {}?", quoted.join(" or "))?;
                }
                write!(f, " (expected: {expected})")
            }
            Self::Unknown { item, found, nearest, expected, .. } => {
                write!(f, "unknown {item} {}", quoted(found))?;
                if let Some(nearest) = nearest {
                    write!(f, "; did you mean \"{nearest}\"?")?;
                }
                write!(f, " (expected: {expected})")
            }
            Self::Rule { problem, expected, .. } => {
                write!(f, "{} (expected: {})", plain(problem), plain(expected))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// The longest part of a value that a message repeats, in characters.
const QUOTE_CHARACTERS_MAX: usize = 100;
/// The longest other part of a message, in characters.
const PART_CHARACTERS_MAX: usize = 400;

/// Returns untrusted text in quotes, cut to a bounded length and without characters that break the
/// line.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text, QUOTE_CHARACTERS_MAX))
}

/// Returns a text that may contain untrusted parts, cut and escaped as in [`quoted`] but without
/// quotes.
fn plain(text: &str) -> String {
    printable(text, PART_CHARACTERS_MAX)
}

/// Returns an untrusted text, cut to `characters_max` characters and with escapes for characters
/// that break the line or control a terminal.
pub fn printable(text: &str, characters_max: usize) -> String {
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == characters_max {
            out.push_str("...");
            break;
        }
        // Line and paragraph separators break lines in some terminals, as control characters do.
        if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// Returns the `expected` word that `found` was probably meant to be, if there is one. Such a word
/// begins with `found`, is abbreviated by `found`, or differs from it in at most a third of its
/// bytes. The first one wins a tie.
pub(super) fn nearest<'a>(
    found: &str,
    expected: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    let found = found.trim_start_matches('-').replace('_', "-");
    if found.len() > QUOTE_CHARACTERS_MAX {
        return None;
    }
    let distance = |name: &str| {
        let name = name.trim_start_matches('-').replace('_', "-");
        let is_beginning = found.len() >= 3 && name.starts_with(&found);
        let is_short = 2 * found.len() >= name.len() && abbreviates(&found, &name);
        if is_beginning || is_short { 1 } else { edits(&found, &name) }
    };
    expected
        .into_iter()
        .map(|name| (distance(name), name))
        .filter(|(distance, name)| 3 * distance <= name.len().max(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name.to_owned())
}

/// Returns whether `short` abbreviates `name`: it has at least three bytes, begins with the first
/// byte of `name`, and all its bytes occur in `name` in the same order.
fn abbreviates(short: &str, name: &str) -> bool {
    let mut bytes = name.bytes();
    short.len() >= 3
        && short.as_bytes()[0] == *name.as_bytes().first().unwrap_or(&0)
        && short.bytes().all(|wanted| bytes.any(|byte| byte == wanted))
}

/// Returns the number of insertions, deletions and replacements of bytes that turn `from` into
/// `into` (Levenshtein distance).
fn edits(from: &str, into: &str) -> usize {
    let into = into.as_bytes();
    let mut row: Vec<usize> = (0..=into.len()).collect();
    for (line, byte) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for column in 0..into.len() {
            let replaced = diagonal + usize::from(byte != into[column]);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[into.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_a_far_one_is_not() {
        let expected = ["listen", "workers", "allow-client"];
        assert_eq!(nearest("worker", expected).as_deref(), Some("workers"));
        assert_eq!(nearest("--lisen", expected).as_deref(), Some("listen"));
        assert_eq!(nearest("allow_client", expected).as_deref(), Some("allow-client"));
        assert_eq!(nearest("allow", expected).as_deref(), Some("allow-client"));
        assert_eq!(nearest("wrkrs", expected).as_deref(), Some("workers"));
        assert_eq!(nearest("frwd", ["forward", "boost"]).as_deref(), Some("forward"));
        assert_eq!(nearest("colour", expected), None);
        assert_eq!(nearest(&"x".repeat(100_000), expected), None);
    }

    #[test]
    fn a_message_stays_on_one_line_whatever_was_written() {
        let error = ConfigError::Value {
            location: "a\nb".into(),
            found: "\u{2028}\r\n\u{7}".repeat(1000),
            problem: "is not a number",
            suggestions: Vec::new(),
            expected: "1 to 2".into(),
        };
        let text = error.to_string();
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{2028}'), "{text}");
        assert!(text.len() < 5000);
    }
}
