//! Messages between a server and a program: text before an aggregate, which is the body. The text
//! begins with the id of the request.

/// Begins the text of a message. The caller appends the rest.
pub(super) fn begin(text: &mut Vec<u8>, id: u64) {
    text.extend_from_slice(&id.to_ne_bytes());
}

/// Returns the id at the beginning of a text, and the rest; `None` if it is too short.
pub(super) fn split(text: &[u8]) -> Option<(u64, &[u8])> {
    let (id, rest) = text.split_first_chunk()?;
    Some((u64::from_ne_bytes(*id), rest))
}

/// The bytes of an id.
pub(super) const ID_BYTES: usize = size_of::<u64>();

/// Appends a variable of a request: the lengths of its name and value, 4 bytes each, both of them,
/// and a zero byte, so that the value is also a string of C.
pub(super) fn write_variable<'a>(
    out: &mut Vec<u8>,
    name: &[u8],
    value: impl Iterator<Item = &'a [u8]>,
) {
    let start = out.len();
    out.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    let value_start = out.len();
    value.for_each(|piece| out.extend_from_slice(piece));
    let value_bytes = (out.len() - value_start) as u32;
    out[start + 4..start + 8].copy_from_slice(&value_bytes.to_ne_bytes());
    out.push(0);
}

/// Returns the names and values of the variables in a text, up to the first one that is malformed.
/// Each value ends with a zero byte.
pub(super) fn variables(mut text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (lengths, rest) = text.split_first_chunk::<8>()?;
        let [name, value] = [&lengths[..4], &lengths[4..]]
            .map(|bytes| u32::from_ne_bytes(bytes.try_into().expect("4 bytes")) as usize);
        let (name, rest) = rest.split_at_checked(name)?;
        let (value, rest) = rest.split_at_checked(value.checked_add(1)?)?;
        text = rest;
        value.ends_with(&[0]).then_some((name, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_begins_with_an_id() {
        let mut text = Vec::new();
        begin(&mut text, 77);
        assert_eq!(split(&text), Some((77, &b""[..])));
        text.extend_from_slice(b"rest");
        assert_eq!(split(&text), Some((77, &b"rest"[..])));
        assert_eq!(split(&text[..ID_BYTES - 1]), None);
    }

    #[test]
    fn variables_are_read_up_to_a_malformed_one() {
        let mut text = Vec::new();
        write_variable(&mut text, b"A", [&b"b"[..], b"", b"cd"].into_iter());
        write_variable(&mut text, b"", std::iter::empty());
        write_variable(&mut text, b"EF", [&b"g"[..]].into_iter());
        let all: Vec<_> = variables(&text).collect();
        assert_eq!(all, [(&b"A"[..], &b"bcd\0"[..]), (b"", b"\0"), (b"EF", b"g\0")]);
        for length in 0..text.len() {
            assert!(variables(&text[..length]).eq(all.iter().copied().take(match length {
                0..13 => 0,
                13..22 => 1,
                _ => 2,
            })));
        }
    }
}
