//! Field values of any size: the fields and their shapes.

use std::fmt::Write;

use millrace_config::options::{OptionRow, ValueType};
use millrace_http1::FieldName;

/// The structure of a field value. Quadratic work depends on the shape of a list: on empty members,
/// on members that all differ, and on other fields that the members name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldShape {
    /// `,,,,`
    Empty,
    /// `a,a,a`
    Same,
    /// `k0,k1,k2`
    Distinct,
    /// `"k0","k1"`
    Quoted,
    /// `k0=1,k1=1`
    Pairs,
    /// `k0;k1;k2`: one member with many parameters.
    Parameters,
    /// `k0;q=0.1,k1;q=0.1`
    Weighted,
    /// `k0 k1 k2`
    Blanks,
    /// `/../a/../a`
    Dots,
    /// `bytes=0-0,1-1,2-2`
    Ranges,
    /// Backslashes in an unterminated string.
    Open,
    /// A line for each member. The lines are long enough that no message has more than
    /// [`FIELDS_MAX`] of them.
    Lines,
    /// `k0,k1,k2` in half of the bytes, and fields with these names in the other half. The values
    /// of these fields have one byte: without any, a message would have more than [`FIELDS_MAX`]
    /// fields.
    Crossed,
    /// `,,,,` with one name in half of the bytes, and fields with other names in the other half.
    CrossedEmpty,
    /// As many members as the parser accepts. The other bytes have fields with these names and
    /// others.
    Bound,
    /// `no-cache="k0,k1"` in half of the bytes, and fields with these names in the other half.
    Argument,
}

impl FieldShape {
    /// All shapes.
    pub const ALL: [Self; 16] = [
        Self::Empty,
        Self::Same,
        Self::Distinct,
        Self::Quoted,
        Self::Pairs,
        Self::Parameters,
        Self::Weighted,
        Self::Blanks,
        Self::Dots,
        Self::Ranges,
        Self::Open,
        Self::Lines,
        Self::Crossed,
        Self::CrossedEmpty,
        Self::Bound,
        Self::Argument,
    ];

    /// Returns lines of the field `name`, at most `bytes` bytes in total with their line ends.
    pub(super) fn lines(self, name: &str, bytes: usize) -> String {
        let mut out = String::with_capacity(bytes);
        self.write(&mut out, name, bytes, bytes / 2);
        out
    }

    /// Writes lines up to `end`. A shape with two parts writes the first one up to `half`.
    fn write(self, out: &mut String, name: &str, end: usize, half: usize) {
        match self {
            Self::Empty => line(out, name, "", end, |out, _| out.push(',')),
            Self::Same => line(out, name, "", end, |out, _| out.push_str("a,")),
            Self::Distinct => line(out, name, "", end, |out, at| put(out, "", at, ",")),
            Self::Quoted => {
                line(out, name, "\"a\"", end, |out, at| put(out, ",\"", at, "\""));
            }
            Self::Pairs => line(out, name, "a=1", end, |out, at| put(out, ",", at, "=1")),
            Self::Parameters => line(out, name, "a", end, |out, at| put(out, ";", at, "")),
            Self::Weighted => {
                line(out, name, "a", end, |out, at| put(out, ",", at, ";q=0.1"));
            }
            Self::Blanks => line(out, name, "a", end, |out, at| put(out, " ", at, "")),
            Self::Dots => line(out, name, "/", end, |out, _| out.push_str("../a/")),
            Self::Ranges => line(out, name, "bytes=0-0", end, |out, at| {
                let _ = write!(out, ",{at}-{at}");
            }),
            Self::Open => line(out, name, "a=\"", end, |out, _| out.push_str("\\\"")),
            Self::Lines => {
                let mut at = 0;
                while out.len() + name.len() + 20 < end {
                    let _ = write!(out, "{name}: ");
                    put(out, "", at, "-long-token\r\n");
                    at += 1;
                }
            }
            Self::Crossed => {
                line(out, name, "", half, |out, at| put(out, "", at, ","));
                fields(out, end);
            }
            Self::CrossedEmpty => {
                line(out, name, "x", half, |out, _| out.push(','));
                fields(out, end);
            }
            Self::Bound => {
                let _ = write!(out, "{name}: k0");
                (1..members_at_bound(name)).for_each(|at| put(out, ",", at, ""));
                out.push_str("\r\n");
                let mut at = 0;
                while out.len() + 30 < end {
                    put(out, "", at, ": some-long-value\r\n");
                    at += 1;
                }
            }
            Self::Argument => {
                let _ = write!(out, "{name}: no-cache=\"a");
                let mut at = 0;
                while out.len() + 16 < half {
                    put(out, ",", at, "");
                    at += 1;
                }
                out.push_str("\"\r\n");
                fields(out, end);
            }
        }
    }
}

/// Appends one line whose value is `begin` and as many `member`s as fit before `end`.
fn line(
    out: &mut String,
    name: &str,
    begin: &str,
    end: usize,
    member: impl Fn(&mut String, usize),
) {
    let _ = write!(out, "{name}: {begin}");
    let mut at = 0;
    while out.len() + 16 < end {
        member(out, at);
        at += 1;
    }
    out.push_str("\r\n");
}

/// Returns the most members that a list may have without being refused, in every kind of message. A
/// request for an upgrade already has one protocol and one option of `Connection`.
fn members_at_bound(name: &str) -> usize {
    match name {
        "upgrade" => 7,
        "connection" => 31,
        _ => 16,
    }
}

/// Appends the member with this number.
fn put(out: &mut String, before: &str, number: usize, after: &str) {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    out.push_str(before);
    out.push('k');
    let mut left = number;
    loop {
        out.push(char::from(DIGITS[left % 36]));
        left /= 36;
        if left == 0 {
            break;
        }
    }
    out.push_str(after);
}

/// Appends short fields with the names of the members, up to `end`.
fn fields(out: &mut String, end: usize) {
    let mut at = 0;
    while out.len() + 16 < end {
        put(out, "", at, ": 0\r\n");
        at += 1;
    }
}

/// Limit of the fields in a header: the largest value that an operator can set. A message with more
/// fields would be refused early, and the cost of a refusal shows nothing.
pub(super) const FIELDS_MAX: usize = 4096;

/// The name that stands for the query of a request's target.
pub(super) const QUERY: &str = "(query)";

/// The name that stands for the path of a request's target.
pub(super) const PATH: &str = "(path)";

/// Returns the names of fields: all that the parser knows, those that options make the cache read,
/// one unknown name, one that begins with `x-forwarded-`, and [`QUERY`] and [`PATH`].
pub(super) fn names() -> Vec<String> {
    let known = FieldName::known_names().map(str::to_owned);
    let named = named_by_options().into_iter().map(|(_, _, name)| name);
    let others = ["x-unknown", PASSED, QUERY, PATH].map(str::to_owned);
    known.chain(named).chain(others).collect()
}

/// A field that the reverse proxy with routes forwards from untrusted clients.
pub(super) const PASSED: &str = "x-forwarded-unknown";

/// Returns the options that take a field name, each with its flag and such a name.
fn named_by_options() -> Vec<(&'static OptionRow, &'static str, String)> {
    let rows = OptionRow::TABLE.iter().filter(|row| row.is_of_command("boost"));
    rows.filter(|row| matches!(row.value_type, ValueType::FieldName | ValueType::FieldOrCookie))
        .filter_map(|row| Some((row, row.flag?, format!("x-of-{}", row.key))))
        .collect()
}

/// Returns options that name all fields of [`named_by_options`], and options that name cookies and
/// parameters that the shapes contain.
pub(super) fn options() -> Vec<String> {
    let mut words =
        ["--cache-key", "cookie:k*", "--cache-ignore-query", "k1*"].map(str::to_owned).to_vec();
    for (row, flag, name) in named_by_options() {
        let value =
            if row.value_type == ValueType::FieldOrCookie { format!("field:{name}") } else { name };
        words.extend([format!("--{flag}"), value]);
    }
    words
}
