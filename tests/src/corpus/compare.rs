//! Comparison of a message with the expected one.

use super::literal::{ANY, escaped};
use crate::strict::{Field, Framing, Message};

/// Fields that the program adds itself. A case that names one of them states its value.
pub(crate) const ADDED_TO_REQUESTS: [&str; 6] =
    ["via", "forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "connection"];
pub(crate) const ADDED_TO_RESPONSES: [&str; 3] = ["via", "date", "connection"];

/// Fields whose position may change. RFC 9110 section 7.2 recommends Host first, and the program
/// writes hop-by-hop fields itself.
const MOVED: [&str; 3] = ["host", "te", "upgrade"];

/// Checks that a message is the expected one, apart from fields that the program adds.
pub(crate) fn same(expected: &Message, got: &Message, added: &[&str]) -> Result<(), String> {
    let starts = match (&expected.start, &got.start) {
        (a, b) if a == b => true,
        // The reason phrase has no meaning (RFC 9112 section 4) and may be replaced.
        _ => got.status() != 0 && got.status() == expected.status(),
    };
    if !starts {
        return Err(format!("{:?} instead of {:?}", got.start, expected.start));
    }
    // A response that ends with its connection may be forwarded in chunks. The connection then need
    // not close.
    let chunked = (expected.framing, got.framing) == (Framing::UntilClose, Framing::Chunked);
    for name in added {
        let named = expected.fields.iter().any(|field| field.is(name));
        if named && !(chunked && *name == "connection") {
            compare_values(name, &expected.fields, &got.fields)?;
        }
    }
    for name in MOVED {
        compare_values(name, &expected.fields, &got.fields)?;
    }
    let plain = |field: &&Field| {
        let own_place = added.iter().chain(&MOVED).all(|name| !field.is(name));
        own_place && !frames(field)
    };
    let expected_fields: Vec<_> = expected.fields.iter().filter(plain).collect();
    let got_fields: Vec<_> = got.fields.iter().filter(plain).collect();
    if expected_fields != got_fields {
        return Err(format!("fields {} instead of {}", list(&got_fields), list(&expected_fields)));
    }
    if expected.framing != got.framing && !chunked {
        return Err(format!("framing {:?} instead of {:?}", got.framing, expected.framing));
    }
    if expected.framing == Framing::None {
        compare_values("content-length", &expected.fields, &got.fields)?;
    }
    if expected.body != got.body {
        return Err(format!("body {} for {}", escaped(&got.body), escaped(&expected.body)));
    }
    if expected.trailers != got.trailers {
        return Err(format!("trailers {:?} instead of {:?}", got.trailers, expected.trailers));
    }
    Ok(())
}

fn frames(field: &Field) -> bool {
    field.is("content-length") || field.is("transfer-encoding")
}

fn compare_values(name: &str, expected: &[Field], got: &[Field]) -> Result<(), String> {
    let values = |fields: &[Field]| -> Vec<String> {
        let named = fields.iter().filter(|field| field.is(name));
        named.map(|field| escaped(&field.value)).collect()
    };
    let (mut expected, mut got) = (values(expected), values(got));
    if name == "connection" {
        // Connection options are case-insensitive.
        for value in expected.iter_mut().chain(&mut got) {
            value.make_ascii_lowercase();
        }
    }
    let any = escaped(ANY.as_bytes());
    let alike = |(expected, got): (&String, &String)| match expected.split_once(&any) {
        Some((before, after)) => {
            let rest = got.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            rest.is_some_and(|rest| !rest.is_empty())
        }
        None => expected == got,
    };
    if expected.len() == got.len() && expected.iter().zip(&got).all(alike) {
        Ok(())
    } else {
        Err(format!("{name}: {got:?} instead of {expected:?}"))
    }
}

fn list(fields: &[&Field]) -> String {
    let lines = fields.iter().map(|field| format!("{}: {}", field.name, escaped(&field.value)));
    format!("[{}]", lines.collect::<Vec<_>>().join("; "))
}
