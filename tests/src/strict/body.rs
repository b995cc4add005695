//! Framing and content.

use super::{Ambiguity, Field, Framing, ambiguous, fields, line};

/// The content of a message, and where the message ends in the input.
pub(super) struct Content {
    pub(super) body: Vec<u8>,
    pub(super) trailers: Vec<Field>,
    pub(super) end: usize,
}

/// Returns the framing that the fields declare, if they do.
pub(super) fn framing(fields: &[Field]) -> Result<Option<Framing>, Ambiguity> {
    let all = |name: &str| fields.iter().filter(|field| field.is(name)).collect::<Vec<_>>();
    match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Ok(None),
        ([length], []) => match decimal(&length.value) {
            Some(length) => Ok(Some(Framing::Length(length))),
            None => ambiguous("a Content-Length that is not one plain number"),
        },
        ([], [coding]) if coding.value == b"chunked" => Ok(Some(Framing::Chunked)),
        ([], [_]) => ambiguous("a Transfer-Encoding other than `chunked`"),
        _ => ambiguous("more than one statement of where the message ends"),
    }
}

/// Parses a number that fits a signed 64-bit integer, in its only accepted spelling.
fn decimal(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let number = text.parse::<i64>().ok().and_then(|number| u64::try_from(number).ok())?;
    (number.to_string() == text).then_some(number)
}

/// Returns the content from `at`, if it is complete.
pub(super) fn take(
    input: &[u8],
    at: usize,
    framing: Framing,
    ended: bool,
) -> Result<Option<Content>, Ambiguity> {
    let plain = |end: usize| Content { body: input[at..end].to_owned(), trailers: Vec::new(), end };
    Ok(match framing {
        Framing::None => Some(plain(at)),
        Framing::Length(length) => usize::try_from(length)
            .ok()
            .and_then(|length| at.checked_add(length))
            .filter(|end| *end <= input.len())
            .map(plain),
        Framing::UntilClose => ended.then(|| plain(input.len())),
        Framing::Chunked => chunks(input, at)?,
    })
}

fn chunks(input: &[u8], mut at: usize) -> Result<Option<Content>, Ambiguity> {
    let mut body = Vec::new();
    loop {
        let Some((size, data)) = line(input, at)? else { return Ok(None) };
        let size = chunk_size(size)?;
        if size == 0 {
            let Some((trailers, end)) = fields::section(input, data)? else { return Ok(None) };
            fields::check_trailers(&trailers)?;
            return Ok(Some(Content { body, trailers, end }));
        }
        let Some(end) = data.checked_add(size) else {
            return ambiguous("a chunk size that overflows");
        };
        match input.get(end..).unwrap_or_default() {
            [] | [b'\r'] => return Ok(None),
            [b'\r', b'\n', ..] => {}
            _ => return ambiguous("no CR LF after the data of a chunk"),
        }
        body.extend_from_slice(&input[data..end]);
        at = end + 2;
    }
}

/// Parses a hexadecimal number in its only accepted spelling: no leading zero, no sign, no
/// extension, at most 16 digits.
fn chunk_size(line: &[u8]) -> Result<usize, Ambiguity> {
    let digits = !line.is_empty() && line.iter().all(u8::is_ascii_hexdigit);
    let canonical = line == b"0" || line.first() != Some(&b'0');
    let parsed = std::str::from_utf8(line).ok().and_then(|it| usize::from_str_radix(it, 16).ok());
    match parsed {
        Some(size) if digits && canonical => Ok(size),
        _ => ambiguous("a chunk size that is not plain hexadecimal"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ambiguity, Message, request};

    fn chunked(body: &str) -> Result<Option<Message>, Ambiguity> {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        request(format!("{head}{body}").as_bytes())
    }

    #[test]
    fn chunks_are_joined_and_the_next_message_left_alone() {
        let message = chunked("3\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nGET /").unwrap();
        let message = message.unwrap();
        assert_eq!(message.body, b"abc0123456789");
        assert_eq!(message.trailers.len(), 1);
        assert_eq!(chunked("3\r\nabc\r\n0\r\n\r"), Ok(None));
        assert_eq!(chunked("3\r\nabc"), Ok(None));
        assert_eq!(chunked("3\r\nabc\r"), Ok(None));
    }

    #[test]
    fn chunks_have_one_spelling() {
        for body in [
            "0x3\r\nabc\r\n",
            "03\r\nabc\r\n",
            "00\r\n\r\n",
            "+3\r\nabc\r\n",
            "3 \r\nabc\r\n",
            " 3\r\nabc\r\n",
            "3;a=b\r\nabc\r\n",
            "3_0\r\nabc\r\n",
            "\r\nabc\r\n",
            "-1\r\n",
            "3\nabc\r\n",
            "3\rabc\r\n",
            "3\r\nabcd",
            "3\r\nabc\n0\r\n\r\n",
            "3\r\nabc\rX",
            "11111111111111111\r\n",
            "ffffffffffffffff\r\n",
            "0\r\nContent-Length: 3\r\n\r\n",
            "0\r\nHost: b\r\n\r\n",
            "0\r\n folded\r\n\r\n",
            "0\r\nX : 1\r\n\r\n",
            "0\r\n\n",
        ] {
            assert!(chunked(body).is_err(), "{}", body.escape_debug());
        }
    }
}
