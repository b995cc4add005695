//! What is wrong with a configuration: always the fault of whoever wrote it, always one line.

use std::fmt;

/// Why a command line or a file is not a configuration. Its text is one line that names the
/// option (or file, line and key), what was wrong and what is allowed. Retrying does not help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// A value that its option does not take.
    Value {
        /// The option: `--workers`, or `millrace.toml:3: workers`.
        location: String,
        /// The value as written.
        found: String,
        /// What is wrong with it: "is not a number".
        problem: &'static str,
        /// What would have been right.
        expected: String,
    },
    /// An option, key, command or table that does not exist where it stands.
    Unknown {
        /// What was expected here: `option`, `key`, `command`, `limit`.
        item: &'static str,
        /// Where it stands: `command boost`, or `millrace.toml:3`.
        location: String,
        /// What was written.
        found: String,
        /// The allowed one that looks most like it, if one does.
        nearest: Option<String>,
        /// All that may stand there.
        expected: String,
    },
    /// What has to be given and is not, cannot be given twice, does not go with the rest, or is no
    /// TOML.
    Rule {
        /// Where the rule is broken.
        location: String,
        /// Which rule.
        problem: String,
        /// How to follow it.
        expected: String,
    },
}

impl ConfigError {
    /// A rule that is broken at a place.
    pub fn rule(
        location: impl Into<String>,
        problem: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Rule { location: location.into(), problem: problem.into(), expected: expected.into() }
    }

    /// Something that is none of what may stand at a place.
    pub fn unknown(
        location: impl Into<String>,
        item: &'static str,
        found: &str,
        expected: &[impl AsRef<str>],
    ) -> Self {
        let location = location.into();
        let expected: Vec<_> = expected.iter().map(AsRef::as_ref).collect();
        let nearest = nearest(found, expected.iter().copied());
        Self::Unknown {
            location,
            item,
            found: found.to_owned(),
            nearest,
            expected: expected.join(", "),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value { location, found, problem, expected } => {
                write!(f, "{}{} {problem} (expected: {expected})", prefix(location), quoted(found))
            }
            Self::Unknown { location, item, found, nearest, expected } => {
                write!(f, "{}unknown {item} {}", prefix(location), quoted(found))?;
                if let Some(nearest) = nearest {
                    write!(f, "; did you mean \"{nearest}\"?")?;
                }
                write!(f, " (expected: {expected})")
            }
            Self::Rule { location, problem, expected } => {
                write!(f, "{}{} (expected: {})", prefix(location), plain(problem), plain(expected))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Longest value that a message repeats, and longest other part of it, in characters.
const QUOTE_CHARACTERS_MAX: usize = 100;
const PART_CHARACTERS_MAX: usize = 400;

/// Somebody else's text between quotes, cut, with nothing in it that breaks the line.
fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(text, QUOTE_CHARACTERS_MAX))
}

/// The location with a colon and a blank; nothing for an empty one.
fn prefix(location: &str) -> String {
    if location.is_empty() { String::new() } else { format!("{}: ", plain(location)) }
}

/// A part that may hold somebody else's text, treated likewise.
fn plain(text: &str) -> String {
    cut(text, PART_CHARACTERS_MAX)
}

fn cut(text: &str, characters_max: usize) -> String {
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == characters_max {
            out.push_str("...");
            break;
        }
        // Line and paragraph separators break lines in some terminals, as controls do.
        if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            out.extend(character.escape_default());
        } else {
            out.push(character);
        }
    }
    out
}

/// The one of `allowed` that `found` was probably meant to be: it begins like it, is an abbreviation
/// of it, or at most a third of its letters differ. Ties go to the first.
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

/// Whether `short` begins like `name`, and has some of its other bytes in their order.
fn abbreviates(short: &str, name: &str) -> bool {
    let mut bytes = name.bytes();
    short.len() >= 3
        && short.as_bytes()[0] == *name.as_bytes().first().unwrap_or(&0)
        && short.bytes().all(|wanted| bytes.any(|byte| byte == wanted))
}

/// Insertions, deletions and replacements of bytes that turn `from` into `into` (Levenshtein).
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
            expected: "1 to 2".into(),
        };
        let text = error.to_string();
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{2028}'), "{text}");
        assert!(text.len() < 5000);
    }
}
