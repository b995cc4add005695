//! Messages between a server and a program: an id, text, and a body.

use crate::aggregate::Aggregate;
use crate::error::AllocError;
use crate::slab::Slab;

/// The bytes before the text: the id, and the length of the text, 8 each.
const HEAD_BYTES: usize = 16;

/// Begins a message in `out`. The caller appends the text.
pub(super) fn begin(out: &mut Vec<u8>, id: u64) {
    out.clear();
    out.extend_from_slice(&id.to_ne_bytes());
    out.extend_from_slice(&0_u64.to_ne_bytes());
}

/// Ends the message in `out`, to which the caller has appended the text, and adds the body.
pub(super) fn end(out: &mut [u8], body: Aggregate, slab: &Slab) -> Result<Aggregate, AllocError> {
    let text_bytes = (out.len() - HEAD_BYTES) as u64;
    out[8..HEAD_BYTES].copy_from_slice(&text_bytes.to_ne_bytes());
    let mut message = Aggregate::from_bytes(out, slab)?;
    message.concatenate(body);
    Ok(message)
}

/// A message that was received.
pub(super) struct Message {
    pub(super) id: u64,
    pub(super) text: Vec<u8>,
    pub(super) body: Aggregate,
}

impl Message {
    /// Returns `None` if `bytes` is no message, or its text is longer than `text_max`.
    pub(super) fn parse(mut bytes: Aggregate, text_max: usize) -> Option<Self> {
        let mut head = [[0; 8]; 2];
        bytes.read_at(0, head.as_flattened_mut())?;
        let [id, text_bytes] = head.map(u64::from_ne_bytes);
        let text_bytes = usize::try_from(text_bytes).ok().filter(|bytes| *bytes <= text_max)?;
        let mut text = vec![0; text_bytes];
        bytes.read_at(HEAD_BYTES as u64, &mut text)?;
        bytes.skip((HEAD_BYTES + text_bytes) as u64);
        Some(Self { id, text, body: bytes })
    }
}

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
    use crate::limits::SLAB_BYTES_MIN;

    #[test]
    fn messages_are_parsed_as_they_were_written() {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let mut out = vec![9; 100];
        for (text, body) in [("", ""), ("text", ""), ("", "body"), ("a text", "a body")] {
            begin(&mut out, 77);
            out.extend_from_slice(text.as_bytes());
            let body = Aggregate::from_bytes(body.as_bytes(), &slab).unwrap();
            let message = end(&mut out, body.clone(), &slab).unwrap();
            let parsed = Message::parse(message.clone(), text.len()).unwrap();
            assert_eq!((parsed.id, &parsed.text[..]), (77, text.as_bytes()));
            assert_eq!(parsed.body.to_vec(), body.to_vec());
            assert!(text.is_empty() || Message::parse(message.clone(), text.len() - 1).is_none());
            for length in 0..(HEAD_BYTES + text.len()) as u64 {
                assert!(Message::parse(message.slice(0..length), 100).is_none());
            }
        }
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
