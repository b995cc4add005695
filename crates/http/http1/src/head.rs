//! The common part of request and response headers: lines, fields, and the state of parsing a
//! header that arrives in pieces. Of the fields, only `Connection` and `Upgrade` are interpreted
//! here.

use std::ops::{Deref, Range};

use memchr::memchr;

use crate::connection::{ConnectionOptions, check_upgrade_protocols, mark_nominated};
use crate::error::HeadError;
use crate::field::FieldLine;
use crate::line_parser::{parse_field, parse_plain_field};
use crate::name::{FieldName, NameSet};

/// Limits on a header. Each has its own [`HeadError`].
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Maximum bytes, from the start line to the empty line, both included.
    pub bytes_max: usize,
    /// Maximum number of field lines.
    pub fields_max: usize,
    /// Maximum bytes of a request target whose non-ASCII bytes are percent-encoded. Ignored for
    /// responses.
    pub target_bytes_max: usize,
}

/// The progress of parsing a header that arrives in pieces.
///
/// The caller keeps one beside the receive buffer, passes it to each `parse` of the same growing
/// bytes, and replaces it with `HeadScan::default()` for the next header. It limits the cost of
/// parsing to a few passes over the bytes, however the header is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadScan {
    /// Offset of the start line: 2 after an empty line, otherwise 0.
    pub(crate) begin: u32,
    /// Offset of the first incomplete line: `begin <= line <= scanned`.
    pub(crate) line: u32,
    /// There is no LF between `line` and this offset.
    pub(crate) scanned: u32,
    /// Number of field lines before `line`.
    pub(crate) fields: u32,
    /// Whether the start line was parsed.
    pub(crate) has_start_line: bool,
    /// The parser for this header. Requests are always parsed by the strict one.
    pub(crate) mode: ParseMode,
    /// Whether the header is complete and had LF line ends or folded values.
    pub(crate) is_ambiguous: bool,
}

/// How a header is parsed, and how its lines end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ParseMode {
    /// By the strict parser, as the header arrives.
    #[default]
    Strict,
    /// Rewritten once the header is complete; all its lines end in CR LF.
    RewriteCrLf,
    /// Rewritten once the header is complete; all its lines end in LF alone.
    RewriteBareLf,
}

/// The header of a request or response, with a copy of its bytes.
///
/// Parsing again, and [`clear`](Self::clear), keep the allocated memory. The header dereferences to
/// its [`Fields`].
#[derive(Clone, Debug, Default)]
pub struct Head<L> {
    pub(crate) fields: Fields,
    pub(crate) line: L,
}

/// The parsed start line of a header; empty by default.
pub trait StartLine: Default {
    /// Parses the start line. Sets `scan.begin` if an empty line comes before it. Returns `false`
    /// if the line is not complete.
    fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<bool, HeadError>;

    /// Sets the values that depend on both the start line and the fields, such as the destination
    /// of a request. Called once the header is complete.
    fn finish(&mut self, fields: &mut Fields);
}

impl<L> Deref for Head<L> {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.fields
    }
}

impl<L: StartLine> Head<L> {
    /// Parses a header from the start of `input`, which is everything received since the end of the
    /// last message. One empty line before a request is skipped (RFC 9112 section 2.2).
    ///
    /// Returns the number of bytes of `input` that were used, or `None` if the header is not
    /// complete. Then call again with the same bytes and more, and the same `scan`. Unless `Some`
    /// is returned, the header is empty.
    ///
    /// # Errors
    /// Returns a [`HeadError`] at the latest when an invalid line is complete. The error is
    /// returned earlier if a limit is exceeded, or if no valid header can begin with the received
    /// bytes. Only the options of `Connection` and the protocols of `Upgrade` are counted later,
    /// when the header is complete. The error does not depend on how the input is split.
    pub fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        // The start line needs no clearing here: it is either parsed again or cleared below.
        self.fields.clear();
        let parsed = self.parse_whole(input, scan, limits);
        match parsed {
            Ok(Some(_)) => self.line.finish(&mut self.fields),
            // The bytes were not copied, so the parsed ranges must not be used.
            _ => self.clear(),
        }
        parsed
    }

    fn parse_whole(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        let is_resumed = scan.has_start_line;
        let Some(mut end) = self.parse_lines(input, scan, limits)? else { return Ok(None) };
        if is_resumed {
            // An earlier call parsed the first lines, perhaps into another header, so this header
            // lacks them. Parse the whole header again.
            self.fields.clear();
            *scan = HeadScan::default();
            end = self.parse_lines(input, scan, limits)?.expect("the header was complete before");
        }
        self.fields.finish(&input[scan.begin as usize..end])?;
        Ok(Some(end))
    }

    fn parse_lines(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        if !scan.has_start_line {
            if !self.line.parse(input, scan, limits)? {
                return Ok(None);
            }
            scan.has_start_line = true;
        }
        self.fields.parse_fields(input, scan, limits)
    }

    /// Clears the header, and keeps its memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.line = L::default();
    }
}

impl HeadScan {
    /// Returns whether the parsed header had LF line ends or folded values. Other implementations
    /// may interpret such a header differently. The response must not be stored, and its connection
    /// must not be reused.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Returns the input, cut at the byte limit of the header, if no byte of the next line was
    /// scanned. The fast parsers of complete, plain lines run only in this case, so they try each
    /// line at most once, even if it arrives in pieces.
    pub(crate) fn unscanned<'a>(&self, input: &'a [u8], limits: &HeadLimits) -> Option<&'a [u8]> {
        let end = input.len().min((self.begin as usize).saturating_add(limits.bytes_max));
        (self.scanned == self.line).then_some(&input[..end])
    }

    /// Records that the next line begins at offset `line`, and that none of it was scanned.
    pub(crate) fn advance_to(&mut self, line: usize) {
        self.line = line as u32;
        self.scanned = self.line;
    }

    /// Returns the next complete line without its line end, as a range of `input`, or `None` if the
    /// line is not complete. The line may still contain a CR, which its parser refuses.
    pub(crate) fn next_line(
        &mut self,
        input: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<Range<usize>>, HeadError> {
        let begin = self.begin as usize;
        let Some(found) = memchr(b'\n', &input[self.scanned as usize..]) else {
            self.scanned = input.len() as u32;
            let is_too_long = input.len() - begin > limits.bytes_max;
            return if is_too_long { Err(HeadError::BytesTooMany) } else { Ok(None) };
        };
        let line_feed = self.scanned as usize + found;
        if line_feed + 1 - begin > limits.bytes_max {
            return Err(HeadError::BytesTooMany);
        }
        let line = self.line as usize..line_feed;
        if input[line.clone()].last() != Some(&b'\r') {
            return Err(HeadError::BareLf);
        }
        self.advance_to(line_feed + 1);
        Ok(Some(line.start..line.end - 1))
    }
}

/// The fields of a header in order, and the bytes that they are ranges of.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The header in its strict form: as received, unless it had to be rewritten. In a request,
    /// bytes derived from it may follow, such as an encoded target.
    pub(crate) bytes: Vec<u8>,
    /// The length of the header at the start of `bytes`: `received <= bytes.len()`.
    pub(crate) received: usize,
    list: Vec<FieldLine>,
    /// The names of all fields in `list`.
    present: NameSet,
    /// The options of all `Connection` fields, once the header is complete.
    pub(crate) options: ConnectionOptions,
    /// Whether the `Upgrade` fields apply: `Connection` has the option `upgrade`, and each protocol
    /// is well-formed.
    pub(crate) offers_upgrade: bool,
}

impl Fields {
    /// Clears the fields, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.received = 0;
        self.list.clear();
        self.present = NameSet::default();
        self.options = ConnectionOptions::default();
        self.offers_upgrade = false;
    }

    /// Parses field lines up to the empty line. Returns the offset after the empty line, counted
    /// from the start of `input`. The list then has all fields only if this call began with the
    /// first field line.
    pub(crate) fn parse_fields(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        loop {
            if let Some(input) = scan.unscanned(input, limits)
                && self.parse_plain_fields(input, scan, limits)
            {
                return Ok(Some(scan.line as usize));
            }
            let Some(line) = scan.next_line(input, limits)? else { return Ok(None) };
            if line.is_empty() {
                return Ok(Some(scan.line as usize));
            }
            if scan.fields as usize >= limits.fields_max {
                return Err(HeadError::FieldsTooMany);
            }
            scan.fields += 1;
            let offset = line.start - scan.begin as usize;
            self.push(parse_field(&input[line], offset)?);
        }
    }

    /// Parses field lines while they are complete and plain, up to the limit. Returns whether the
    /// empty line was reached, and consumes it.
    fn parse_plain_fields(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> bool {
        let head = &input[scan.begin as usize..];
        let mut line = (scan.line - scan.begin) as usize;
        let mut left = limits.fields_max.saturating_sub(scan.fields as usize);
        let is_whole = loop {
            if head[line..].starts_with(b"\r\n") {
                line += 2;
                break true;
            }
            if left == 0 {
                break false;
            }
            let Some((field, next)) = parse_plain_field(head, line) else { break false };
            self.push(field);
            left -= 1;
            line = next;
        };
        scan.fields = (limits.fields_max - left) as u32;
        scan.advance_to(line + scan.begin as usize);
        is_whole
    }

    fn push(&mut self, field: FieldLine) {
        self.present.insert(field.known);
        self.list.push(field);
    }

    /// Copies the bytes that the fields are ranges of, and parses the fields that need a complete
    /// header.
    pub(crate) fn finish(&mut self, head: &[u8]) -> Result<(), HeadError> {
        self.bytes.extend_from_slice(head);
        self.received = head.len();
        if self.present.contains(FieldName::Connection) {
            self.options = ConnectionOptions::parse(self.values(FieldName::Connection))?;
            if self.options.others {
                mark_nominated(&self.bytes, &mut self.list);
            }
        }
        if self.options.upgrade && self.present.contains(FieldName::Upgrade) {
            self.offers_upgrade = check_upgrade_protocols(self.values(FieldName::Upgrade))?;
        }
        Ok(())
    }

    /// Returns the number of bytes that the header has allocated, used or not. Clearing keeps them.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.list.capacity() * size_of::<FieldLine>()
    }

    /// Returns all fields in the order received.
    pub fn fields(&self) -> &[FieldLine] {
        &self.list
    }

    /// Returns the name of a field of this header, as received.
    pub fn name_of(&self, field: &FieldLine) -> &[u8] {
        field.name.slice(&self.bytes)
    }

    /// Returns the value of a field of this header, without surrounding white space.
    pub fn value_of(&self, field: &FieldLine) -> &[u8] {
        field.value.slice(&self.bytes)
    }

    /// Returns the first field with this name. If there is none, the cost is one bit test.
    pub fn find(&self, name: FieldName) -> Option<&FieldLine> {
        self.fields_if_present(name).iter().find(|field| field.known == name)
    }

    /// Returns whether a field has one of these names. The cost does not depend on the number of
    /// fields.
    pub fn has_any(&self, names: &NameSet) -> bool {
        self.present.intersects(names)
    }

    /// Returns the values of all fields with this name, in order. If there are none, the cost is
    /// one bit test.
    pub fn values(&self, name: FieldName) -> impl Iterator<Item = &[u8]> {
        self.fields_of(name).map(|field| self.value_of(field))
    }

    /// Returns all fields with this name, in order.
    pub(crate) fn fields_of(&self, name: FieldName) -> impl Iterator<Item = &FieldLine> {
        self.fields_if_present(name).iter().filter(move |field| field.known == name)
    }

    /// Returns all fields if one has this name, otherwise none.
    fn fields_if_present(&self, name: FieldName) -> &[FieldLine] {
        if self.present.contains(name) { &self.list } else { &[] }
    }

    /// Returns the header in its strict form, from the start line to the empty line, both included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.received]
    }
}
