//! What the heads of requests and answers share: their lines, their fields, and where a head that
//! arrives in pieces was left. It never looks at what a field means.

use std::ops::Range;

use memchr::memchr;

use crate::class::trim;
use crate::fields::{are_upgrade_protocols, nominate};
use crate::line::{field, plain_field};
use crate::{ConnectionOptions, HeadError, Name, NameSet};

/// A range of a head's own bytes: `start + len <= bytes().len()`, as long as the head is not parsed
/// again or cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Where it begins.
    pub start: u32,
    /// How many bytes it has.
    pub len: u32,
}

impl Span {
    pub(crate) fn new(range: Range<usize>) -> Self {
        Self { start: range.start as u32, len: range.len() as u32 }
    }

    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.len as usize]
    }
}

/// One field line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// The name as received: a token.
    pub name: Span,
    /// The value without the spaces and tabs around it; may be empty. No control bytes but tabs.
    pub value: Span,
    /// The name by its meaning.
    pub known: Name,
    /// Whether its line was received in canonical form: after the colon one space, and nothing but
    /// the value before the line end.
    pub(crate) is_canonical: bool,
    /// Whether `Connection` names it, and it is not known: such a field is for the next hop only.
    /// Set once the head is whole.
    pub(crate) is_nominated: bool,
}

impl Field {
    /// Where the next line begins, if this one is canonical.
    pub(crate) fn canonical_end(&self) -> u32 {
        self.name.start + self.name.len + 2 + self.value.len + 2
    }
}

/// The most that a head may be. Every one of them is a refusal, with its own error.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes from the first of the start line to the end of the empty line.
    pub bytes_max: usize,
    /// Field lines.
    pub fields_max: usize,
    /// Bytes of a request target; of no meaning to answers.
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
    pub(crate) looked: u32,
    /// Field lines before `line`.
    pub(crate) fields: u32,
    /// Whether the start line was read.
    pub(crate) is_started: bool,
}

/// A head by its start line, for [`parse`].
pub(crate) trait Head {
    /// Forgets the message, keeps the memory.
    fn clear(&mut self);

    fn fields_mut(&mut self) -> &mut Fields;

    /// Reads the start line and sets `scan.begin`; gives `false` if the line is not whole yet.
    fn start(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<bool, HeadError>;
}

/// Reads a head from the start of `input`: see [`RequestHead::parse`](crate::RequestHead::parse).
pub(crate) fn parse(
    head: &mut impl Head,
    input: &[u8],
    scan: &mut HeadScan,
    limits: &HeadLimits,
) -> Result<Option<usize>, HeadError> {
    head.clear();
    let parsed = parse_whole(head, input, scan, limits);
    if !matches!(parsed, Ok(Some(_))) {
        // Ranges of a copy that was not taken must not be followed.
        head.clear();
    }
    parsed
}

fn parse_whole(
    head: &mut impl Head,
    input: &[u8],
    scan: &mut HeadScan,
    limits: &HeadLimits,
) -> Result<Option<usize>, HeadError> {
    let is_resumed = scan.is_started;
    let Some(mut end) = walk(head, input, scan, limits)? else { return Ok(None) };
    if is_resumed {
        // The lines before were read in an earlier call, perhaps into another head.
        head.clear();
        *scan = HeadScan::default();
        end = walk(head, input, scan, limits)?.expect("it was whole a moment ago");
    }
    head.fields_mut().finish(&input[scan.begin as usize..end])?;
    Ok(Some(end))
}

fn walk(
    head: &mut impl Head,
    input: &[u8],
    scan: &mut HeadScan,
    limits: &HeadLimits,
) -> Result<Option<usize>, HeadError> {
    if !scan.is_started {
        if !head.start(input, scan, limits)? {
            return Ok(None);
        }
        scan.is_started = true;
    }
    head.fields_mut().walk(input, scan, limits)
}

impl HeadScan {
    /// The input as far as a head may reach, if nothing of the next line was looked at. That is
    /// what the quick readers of whole, plain lines ask for first, so that a line which arrives in
    /// pieces is tried by them only once.
    pub(crate) fn untouched<'a>(&self, input: &'a [u8], limits: &HeadLimits) -> Option<&'a [u8]> {
        let end = input.len().min((self.begin as usize).saturating_add(limits.bytes_max));
        (self.looked == self.line).then_some(&input[..end])
    }

    /// A quick reader has read lines up to here.
    pub(crate) fn read_to(&mut self, line: usize) {
        self.line = line as u32;
        self.looked = self.line;
    }

    /// The next whole line without its line end, as a range of `input`; `None`: it is not there
    /// yet. The line may still have a CR inside, which its parser will refuse.
    pub(crate) fn next_line(
        &mut self,
        input: &[u8],
        limits: &HeadLimits,
    ) -> Result<Option<Range<usize>>, HeadError> {
        let begin = self.begin as usize;
        let Some(found) = memchr(b'\n', &input[self.looked as usize..]) else {
            self.looked = input.len() as u32;
            let is_too_long = input.len() - begin > limits.bytes_max;
            return if is_too_long { Err(HeadError::BytesTooMany) } else { Ok(None) };
        };
        let line_feed = self.looked as usize + found;
        if line_feed + 1 - begin > limits.bytes_max {
            return Err(HeadError::BytesTooMany);
        }
        let line = self.line as usize..line_feed;
        if input[line.clone()].last() != Some(&b'\r') {
            return Err(HeadError::BareLf);
        }
        self.read_to(line_feed + 1);
        Ok(Some(line.start..line.end - 1))
    }
}

/// The fields of a head, in their order, and the bytes that they are ranges of.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head as received; a request may keep a little of its own behind it.
    pub(crate) bytes: Vec<u8>,
    /// How many of `bytes` were received: `received <= bytes.len()`.
    pub(crate) received: usize,
    list: Vec<Field>,
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
    pub(crate) fn walk(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        loop {
            if let Some(input) = scan.untouched(input, limits)
                && self.walk_plain(input, scan, limits)
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
            self.push(field(&input[line], offset)?);
        }
    }

    /// Reads field lines while they are whole and plain, and as many as there may be. Gives whether
    /// the empty line came then, and was read.
    fn walk_plain(&mut self, input: &[u8], scan: &mut HeadScan, limits: &HeadLimits) -> bool {
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
            let Some((field, next)) = plain_field(head, line) else { break false };
            self.push(field);
            left -= 1;
            line = next;
        };
        scan.fields = (limits.fields_max - left) as u32;
        scan.read_to(line + scan.begin as usize);
        is_whole
    }

    fn push(&mut self, field: Field) {
        self.present.insert(field.known);
        self.list.push(field);
    }

    /// Takes the copy that the fields are ranges of, and reads what only whole heads show.
    pub(crate) fn finish(&mut self, head: &[u8]) -> Result<(), HeadError> {
        self.bytes.extend_from_slice(head);
        self.received = head.len();
        if self.present.has(Name::Connection) {
            self.options = ConnectionOptions::of(self)?;
            if self.options.others {
                nominate(&self.bytes, &mut self.list);
            }
        }
        if self.options.upgrade && self.present.has(Name::Upgrade) {
            self.offers_upgrade = are_upgrade_protocols(self)?;
        }
        Ok(())
    }

    /// The fields as they came.
    pub fn fields(&self) -> &[Field] {
        &self.list
    }

    /// A field's name, as received.
    pub fn name_of(&self, field: &Field) -> &[u8] {
        field.name.of(&self.bytes)
    }

    /// A field's value, trimmed.
    pub fn value_of(&self, field: &Field) -> &[u8] {
        field.value.of(&self.bytes)
    }

    /// The first field of this name. To find none costs one test.
    pub fn find(&self, name: Name) -> Option<&Field> {
        self.named(name).iter().find(|field| field.known == name)
    }

    /// Whether there is a field of one of these names. One test, however many fields there are.
    pub fn has_any(&self, names: &NameSet) -> bool {
        self.present.meets(names)
    }

    /// The values of all fields of this name, in their order. Where there are none, to find that
    /// costs one test.
    pub fn values(&self, name: Name) -> impl Iterator<Item = &[u8]> {
        self.fields_of(name).map(|field| self.value_of(field))
    }

    pub(crate) fn fields_of(&self, name: Name) -> impl Iterator<Item = &Field> {
        self.named(name).iter().filter(move |field| field.known == name)
    }

    /// All fields, or none where none has this name.
    fn named(&self, name: Name) -> &[Field] {
        if self.present.has(name) { &self.list } else { &[] }
    }

    /// The head as received, from its start line to the empty line, both included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.received]
    }
}

impl Fields {
    /// Everything that a reader can learn from the fields, for the fuzz bodies.
    pub(crate) fn fuzz_meaning(&self) -> String {
        let lines = self.list.iter().map(|field| {
            let (name, value) = (self.name_of(field), self.value_of(field));
            assert_eq!(field.known, Name::of(name));
            assert_eq!(value, trim(value));
            (name, value)
        });
        let (mut by_field, mut by_run) = (Vec::new(), Vec::new());
        for field in crate::forwarded_fields(self) {
            let (name, value) = (self.name_of(field), self.value_of(field));
            by_field.push((name, value));
        }
        crate::forwarded_runs(self, |_| true).for_each(|run| by_run.extend(run.fields()));
        assert_eq!(by_field, by_run);
        format!("{:?} {:?}", lines.collect::<Vec<_>>(), crate::connection_options(self))
    }

    /// The head with its fields in canonical form after `start`, for the fuzz bodies.
    pub(crate) fn fuzz_canonical(&self, mut start: Vec<u8>) -> Vec<u8> {
        for field in &self.list {
            for part in [self.name_of(field), b":", self.value_of(field), b"\r\n"] {
                start.extend_from_slice(part);
            }
        }
        start.extend_from_slice(b"\r\n");
        start
    }
}
