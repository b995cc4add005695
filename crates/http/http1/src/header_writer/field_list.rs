//! A [`HeaderWriter`] for tests, which does not write HTTP/1.

use super::HeaderWriter;
use crate::{FieldRun, Framing, Version};

/// A header as a list of names and values, the form that HTTP/2 and HTTP/3 encode (RFC 9113 section
/// 8.3, RFC 9114 section 4.3). Tests use it to show that no caller writes HTTP/1 text.
#[derive(Debug, Default)]
pub struct FieldList {
    fields: Vec<(String, String)>,
    /// The values that `field_with` wrote. They stay, because a later value may copy from them.
    values: Vec<u8>,
    has_ended: bool,
}

impl FieldList {
    /// Returns the fields in the order written, pseudo-header fields first.
    pub fn fields(&self) -> &[(String, String)] {
        &self.fields
    }

    /// Returns whether the header has ended.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        assert!(!self.has_ended, "a header ends once");
        let is_text = |bytes: &[u8]| !bytes.iter().any(|byte| b"\r\n\0".contains(byte));
        assert!(is_text(name) && is_text(value), "a field has no CR, LF or NUL");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.fields.push((text(&name.to_ascii_lowercase()), text(value)));
    }
}

impl HeaderWriter for FieldList {
    fn request(&mut self, method: &[u8], path: &[u8], authority: impl FnOnce(&mut Vec<u8>)) {
        assert!(self.fields.is_empty(), "a header begins once");
        self.push(b":method", method);
        self.push(b":path", path);
        self.field_with(b":authority", authority);
    }

    fn response(&mut self, status: u16, _reason: &[u8]) {
        assert!(self.fields.is_empty(), "a header begins once");
        self.number(b":status", status.into());
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.push(name, value);
    }

    fn number(&mut self, name: &[u8], number: u64) {
        self.push(name, number.to_string().as_bytes());
    }

    fn field_with<T>(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.values.len();
        let result = write(&mut self.values);
        let value = self.values[start..].to_vec();
        self.push(name, &value);
        result
    }

    fn field_run(&mut self, run: FieldRun<'_>) {
        run.fields().for_each(|(name, value)| self.push(name, value));
    }

    fn framing(&mut self, framing: Framing, _chunked: bool) {
        if let Framing::Length(length) = framing {
            self.number(b"content-length", length);
        }
    }

    fn persistence(&mut self, _peer: Version, _persistent: bool) {}

    fn upgrade<'p>(&mut self, _protocols: impl Iterator<Item = &'p [u8]>) {}

    fn accepts_trailers(&mut self) {
        self.push(b"te", b"trailers");
    }

    fn end(&mut self) {
        assert!(!self.has_ended, "a header ends once");
        self.has_ended = true;
    }
}
