//! The productions of Structured Fields (RFC 9651) that caches use: dictionaries of directives, and
//! lists of strings. The crate `sfparse` implements the grammar.

use std::borrow::Cow;

use millrace_http1::{FieldName, Fields};
use sfparse::{Parser, Value};

/// Combines all lines of a field into one value (RFC 9651 section 4.2); `None` if there is none.
pub(super) fn combined<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<Cow<'a, [u8]>> {
    let first = lines.next()?;
    let Some(second) = lines.next() else { return Some(Cow::Borrowed(first)) };
    let mut all = first.to_vec();
    for line in [second].into_iter().chain(lines) {
        all.extend_from_slice(b", ");
        all.extend_from_slice(line);
    }
    Some(Cow::Owned(all))
}

/// Returns the values of all fields with a name, which need not have a [`FieldName`] of its own. If
/// it has one and the head contains no such field, the cost is one bit test.
pub(super) fn lines_named<'a>(fields: &'a Fields, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    let known = FieldName::from_bytes(name);
    let all = if known == FieldName::Other || fields.find(known).is_some() {
        fields.fields()
    } else {
        &[]
    };
    let is_of_many = known.is_category();
    let is_named = move |field: &&millrace_http1::FieldLine| {
        field.known == known && (!is_of_many || fields.name_of(field).eq_ignore_ascii_case(name))
    };
    all.iter().filter(is_named).map(|field| fields.value_of(field))
}

/// The argument of a directive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DirectiveArgument<'a> {
    /// Absent; in a dictionary, true.
    None,
    /// A token in `Cache-Control`, or the content of a quoted string without escapes.
    Text(&'a [u8]),
    Number(i64),
    /// The Boolean false in a dictionary.
    False,
    /// Anything else: white space around the `=`, an unterminated string, escapes, or a type that
    /// no directive has.
    Odd,
}

/// Parses a dictionary and returns the members with these names, in the order of the names. If a
/// name occurs several times, its last member applies. Other members are parsed and dropped, so
/// that a dictionary of any size needs no memory. Returns `None` if the dictionary is malformed or
/// empty. A Token is [`Odd`](DirectiveArgument::Odd), because no directive has one.
pub(super) fn dictionary<'a, const COUNT: usize>(
    value: &'a [u8],
    names: &[&str; COUNT],
) -> Option<[Option<DirectiveArgument<'a>>; COUNT]> {
    let mut members = [None; COUNT];
    let mut parser = Parser::new(value);
    let mut is_empty = true;
    while let Some((name, member)) = parser.parse_dict().ok()? {
        is_empty = false;
        let Some(place) = names.iter().position(|known| *known == name) else { continue };
        members[place] = match member {
            Value::Integer(number) => Some(DirectiveArgument::Number(number)),
            Value::Bool(true) => Some(DirectiveArgument::None),
            Value::Bool(false) => Some(DirectiveArgument::False),
            Value::String { range, escape: false } => Some(DirectiveArgument::Text(&value[range])),
            _ => Some(DirectiveArgument::Odd),
        };
    }
    (!is_empty).then_some(members)
}

/// Parses a list of strings, with escapes decoded and parameters dropped; `None` for anything else.
pub(super) fn strings(value: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    let mut parser = Parser::new(value);
    while let Some(member) = parser.parse_list().ok()? {
        let Value::String { range, .. } = member else { return None };
        let mut string = Vec::with_capacity(range.len());
        let mut bytes = value[range].iter().copied();
        while let Some(byte) = bytes.next() {
            string.push(if byte == b'\\' { bytes.next()? } else { byte });
        }
        strings.push(string);
    }
    Some(strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dictionary_is_read_or_ignored_as_a_whole_rfc_9213_section_2_1() {
        const NAMES: [&str; 6] = ["max-age", "no-store", "private", "a", "d", "public"];
        let value = b"max-age=60;x=1, no-store, private=?0, a=\"b, c\", d=e, max-age=7, other";
        let expected = [
            Some(DirectiveArgument::Number(7)),
            Some(DirectiveArgument::None),
            Some(DirectiveArgument::False),
            Some(DirectiveArgument::Text(b"b, c")),
            Some(DirectiveArgument::Odd),
            None,
        ];
        assert_eq!(dictionary(value, &NAMES), Some(expected));
        let odd = dictionary(b"a=1.5, d=(x y), public=\"\\\"\"", &NAMES).unwrap();
        assert_eq!(odd[3..], [Some(DirectiveArgument::Odd); 3]);
        assert_eq!(dictionary(b"other", &NAMES), Some([None; 6]));
        for bad in ["", "max-age =60", "max-age= 60", "MAX-AGE=60", "max-age=60,", "max-age=60 b"] {
            assert_eq!(dictionary(bad.as_bytes(), &NAMES), None, "{bad}");
        }
    }

    #[test]
    fn a_list_of_strings_has_nothing_else() {
        let read = strings(br#""a", "b c";p=1, "\"\\""#).unwrap();
        assert_eq!(read, [&b"a"[..], b"b c", b"\"\\"]);
        assert_eq!(strings(b""), Some(Vec::new()));
        for bad in ["a", "\"a", "\"a\", 1", "(\"a\")", "\"a\","] {
            assert_eq!(strings(bad.as_bytes()), None, "{bad}");
        }
    }
}
