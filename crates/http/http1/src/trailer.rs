//! The trailer lines of a chunked body: read strictly, and kept only where they are harmless.

use memchr::memchr;

use crate::error::{ChunkError, HeadError};
use crate::limits::{TRAILER_BYTES_MAX, TRAILERS_MAX};
use crate::line_parser::parse_field;
use crate::name::FieldName;

/// The trailer lines seen so far.
#[derive(Debug, Default)]
pub(crate) struct Trailers {
    /// The line that is not whole yet.
    line: Vec<u8>,
    /// What may be passed on, in canonical form.
    forwarded: Vec<u8>,
    /// Bytes of all lines, each as received or as it goes on, whichever is longer; at most
    /// [`TRAILER_BYTES_MAX`] while no error was given.
    bytes: usize,
    /// Whole lines, at most [`TRAILERS_MAX`].
    count: u16,
}

impl Trailers {
    /// Takes bytes up to the end of a line: gives how many, and whether the line is whole.
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
        // A space may be added: what passes here has to pass the next hop's bound as well.
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

    /// The lines that may be passed on.
    pub(crate) fn forwarded_lines(&self) -> &[u8] {
        &self.forwarded
    }
}

/// Whether a trailer may go on, RFC 9110 section 6.5.1. Every field that this crate knows frames,
/// routes, authenticates or controls something; so do the families of names below.
fn may_be_trailer(name: &[u8], known: FieldName) -> bool {
    const FAMILIES: [&str; 5] = ["access-control-", "content-", "if-", "proxy-", "sec-"];
    let is_of = |family: &&str| {
        name.get(..family.len()).is_some_and(|start| start.eq_ignore_ascii_case(family.as_bytes()))
    };
    known == FieldName::Other && !FAMILIES.iter().any(is_of)
}
