//! The trailer section of a chunked body (RFC 9112 section 7.1.2). It is parsed strictly, and only
//! harmless fields are forwarded.

use memchr::memchr;

use crate::error::{ChunkError, HeadError};
use crate::limits::{TRAILER_BYTES_MAX, TRAILERS_MAX};
use crate::line_parser::parse_field;
use crate::name::FieldName;

/// The trailer lines received so far.
#[derive(Debug, Default)]
pub(crate) struct Trailers {
    /// The current, incomplete line.
    line: Vec<u8>,
    /// The lines that may be forwarded, in canonical form.
    forwarded: Vec<u8>,
    /// Bytes of all lines, each in its received or its forwarded form, whichever is longer. At most
    /// [`TRAILER_BYTES_MAX`] unless an error was returned.
    bytes: usize,
    /// Number of complete lines, at most [`TRAILERS_MAX`].
    count: u16,
}

impl Trailers {
    /// Consumes bytes up to the end of a line. Returns their number, and whether the line is
    /// complete.
    pub(crate) fn push(&mut self, input: &[u8]) -> Result<(usize, bool), ChunkError> {
        let line_feed = memchr(b'\n', input);
        let used = line_feed.map_or(input.len(), |at| at + 1);
        self.bytes += used;
        if self.bytes > TRAILER_BYTES_MAX {
            return Err(ChunkError::TrailersTooLong);
        }
        self.line.extend_from_slice(&input[..used]);
        if line_feed.is_some() {
            self.finish_line()?;
            self.line.clear();
        }
        Ok((used, line_feed.is_some()))
    }

    fn finish_line(&mut self) -> Result<(), ChunkError> {
        if self.count == TRAILERS_MAX {
            return Err(ChunkError::TrailersTooMany);
        }
        self.count += 1;
        let invalid = ChunkError::TrailerInvalid;
        let line = self.line.strip_suffix(b"\r\n").ok_or(invalid(HeadError::BareLf))?;
        let field = parse_field(line, 0).map_err(invalid)?;
        let name = field.name.slice(line);
        let canonical = [name, b": ", field.value.slice(line), b"\r\n"];
        // The forwarded form may be one space longer. It counts too, so that a next hop with the
        // same limit accepts each line that is accepted here.
        let canonical_len: usize = canonical.iter().map(|part| part.len()).sum();
        self.bytes += canonical_len.saturating_sub(self.line.len());
        if self.bytes > TRAILER_BYTES_MAX {
            return Err(ChunkError::TrailersTooLong);
        }
        if may_be_trailer(name, field.known) {
            canonical.iter().for_each(|part| self.forwarded.extend_from_slice(part));
        }
        Ok(())
    }

    /// Returns the lines that may be forwarded.
    pub(crate) fn forwarded_lines(&self) -> &[u8] {
        &self.forwarded
    }
}

/// Returns whether a trailer may be forwarded (RFC 9110 section 6.5.1). Known names and names with
/// certain prefixes are not forwarded: such fields frame, route or authenticate a message, or
/// control its processing.
fn may_be_trailer(name: &[u8], known: FieldName) -> bool {
    const FAMILIES: [&str; 5] = ["access-control-", "content-", "if-", "proxy-", "sec-"];
    let is_of = |family: &&str| {
        name.get(..family.len()).is_some_and(|start| start.eq_ignore_ascii_case(family.as_bytes()))
    };
    known == FieldName::Other && !FAMILIES.iter().any(is_of)
}
