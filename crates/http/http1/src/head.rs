//! What the heads of requests and responses share: their lines, their fields, and where a head that
//! arrives in pieces was left. It never looks at what a field means.

use std::ops::{Deref, Range};

use memchr::memchr;

use crate::connection::{ConnectionOptions, check_upgrade_protocols, mark_nominated};
use crate::error::HeadError;
use crate::field::FieldLine;
use crate::line_parser::{parse_field, parse_plain_field};
use crate::name::{FieldName, NameSet};

/// The most that a head may be. Every one of them is a refusal, with its own error.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes from the first of the start line to the end of the empty line.
    pub bytes_max: usize,
    /// Field lines.
    pub fields_max: usize,
    /// Bytes of a request target; of no meaning to responses.
    pub target_bytes_max: usize,
}

/// How far a head that is not whole yet was looked at. Its owner keeps it beside the bytes received
/// so far, hands it to each `parse` of the same growing bytes, and replaces it by the default for
/// the next head. It is what makes a head cost a few passes over its bytes, however it is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeadScan {
    /// Where the start line begins: after the empty line, if there was one. 0 or 2.
    pub(crate) begin: u32,
    /// Where the first line begins that is not whole: `begin <= line <= looked`.
    pub(crate) line: u32,
    /// No line ends between `line` and here.
    pub(crate) scanned: u32,
    /// Field lines before `line`.
    pub(crate) fields: u32,
    /// Whether the start line was read.
    pub(crate) has_start_line: bool,
    /// By which parser the head is read. Requests are always read by the strict one.
    pub(crate) mode: ParseMode,
    /// Whether the head is whole, and was read from LF line ends or folded values.
    pub(crate) is_ambiguous: bool,
}

/// How a head is read, and how its lines end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ParseMode {
    /// By the strict parser, as it arrives.
    #[default]
    Strict,
    /// To be rewritten when it is whole; all its lines end in CR LF.
    RewriteCrLf,
    /// To be rewritten when it is whole; all its lines end in LF alone.
    RewriteBareLf,
}

/// A head with its own copy of the bytes. Parsing again, or [`clear`](Self::clear), keeps the
/// memory. Its fields are reached through [`Fields`], to which it dereferences.
#[derive(Clone, Debug, Default)]
pub struct Head<L> {
    pub(crate) fields: Fields,
    pub(crate) line: L,
}

/// What the start line of a head says; empty by default.
pub trait StartLine: Default {
    /// Reads the line and sets `scan.begin`; gives `false` if the line is not whole yet.
    fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<bool, HeadError>;

    /// Takes in what the line means together with the fields, once the head is whole.
    fn finish(&mut self, fields: &mut Fields);
}

impl<L> Deref for Head<L> {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.fields
    }
}

impl<L: StartLine> Head<L> {
    /// Reads a head from the start of `input`, which is everything received since the last message
    /// ended. One empty line before a request is skipped, RFC 9112 section 2.2.
    ///
    /// Gives how many bytes of `input` were used, or `None` when the head is not whole: call again
    /// with the same bytes and more, and the same `scan`. Unless it gives `Some`, the head is empty
    /// and of no meaning.
    ///
    /// # Errors
    /// As soon as the line is whole that is wrong, and for methods and lengths as soon as the byte
    /// is there. The error does not depend on how the bytes were split.
    pub fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        // The line is read anew as a whole, or cleared below.
        self.fields.clear();
        let parsed = self.parse_whole(input, scan, limits);
        match parsed {
            Ok(Some(_)) => self.line.finish(&mut self.fields),
            // Ranges of a copy that was not taken must not be followed.
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
            // The lines before were read in an earlier call, perhaps into another head.
            self.fields.clear();
            *scan = HeadScan::default();
            end = self.parse_lines(input, scan, limits)?.expect("it was whole a moment ago");
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

    /// Forgets the message, keeps the memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.line = L::default();
    }
}

impl HeadScan {
    /// Whether the head that is whole now had LF line ends or folded values. Another reader may see
    /// another message in it: such a one is not stored, and its connection not used again.
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// The input as far as a head may reach, if nothing of the next line was looked at. That is
    /// what the quick readers of whole, plain lines ask for first, so that a line which arrives in
    /// pieces is tried by them only once.
    pub(crate) fn unscanned<'a>(&self, input: &'a [u8], limits: &HeadLimits) -> Option<&'a [u8]> {
        let end = input.len().min((self.begin as usize).saturating_add(limits.bytes_max));
        (self.scanned == self.line).then_some(&input[..end])
    }

    /// A quick reader has read lines up to here.
    pub(crate) fn advance_to(&mut self, line: usize) {
        self.line = line as u32;
        self.scanned = self.line;
    }

    /// The next whole line without its line end, as a range of `input`; `None`: it is not there
    /// yet. The line may still have a CR inside, which its parser will refuse.
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

/// The fields of a head, in their order, and the bytes that they are ranges of.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head in its strict form: as received, unless it had to be rewritten. A request may keep
    /// a little of its own behind it.
    pub(crate) bytes: Vec<u8>,
    /// How many of `bytes` are the head's: `received <= bytes.len()`.
    pub(crate) received: usize,
    list: Vec<FieldLine>,
    /// The names of all in `list`.
    present: NameSet,
    /// What those named `Connection` say, once the head is whole.
    pub(crate) options: ConnectionOptions,
    /// Whether those named `Upgrade` count: `Connection` has the option `upgrade`, and each
    /// protocol is well-formed.
    pub(crate) offers_upgrade: bool,
}

impl Fields {
    /// Forgets everything but the memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.received = 0;
        self.list.clear();
        self.present = NameSet::default();
        self.options = ConnectionOptions::default();
        self.offers_upgrade = false;
    }

    /// Reads field lines until the empty line. Gives the length of the head with it, counted from
    /// the start of `input`; then the fields are valid, if the walk began at the first one.
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

    /// Reads field lines while they are whole and plain, and as many as there may be. Gives whether
    /// the empty line came then, and was read.
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

    /// Takes the copy that the fields are ranges of, and reads what only whole heads show.
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

    /// Bytes of memory that the head has, used or not: clearing it keeps them.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.list.capacity() * size_of::<FieldLine>()
    }

    /// The fields as they came.
    pub fn fields(&self) -> &[FieldLine] {
        &self.list
    }

    /// A field's name, as received.
    pub fn name_of(&self, field: &FieldLine) -> &[u8] {
        field.name.slice(&self.bytes)
    }

    /// A field's value, trimmed.
    pub fn value_of(&self, field: &FieldLine) -> &[u8] {
        field.value.slice(&self.bytes)
    }

    /// The first field of this name. To find none costs one test.
    pub fn find(&self, name: FieldName) -> Option<&FieldLine> {
        self.fields_if_present(name).iter().find(|field| field.known == name)
    }

    /// Whether there is a field of one of these names. One test, however many fields there are.
    pub fn has_any(&self, names: &NameSet) -> bool {
        self.present.intersects(names)
    }

    /// The values of all fields of this name, in their order. Where there are none, to find that
    /// costs one test.
    pub fn values(&self, name: FieldName) -> impl Iterator<Item = &[u8]> {
        self.fields_of(name).map(|field| self.value_of(field))
    }

    pub(crate) fn fields_of(&self, name: FieldName) -> impl Iterator<Item = &FieldLine> {
        self.fields_if_present(name).iter().filter(move |field| field.known == name)
    }

    /// All fields, or none where none has this name.
    fn fields_if_present(&self, name: FieldName) -> &[FieldLine] {
        if self.present.contains(name) { &self.list } else { &[] }
    }

    /// The head as received, from its start line to the empty line, both included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.received]
    }
}
