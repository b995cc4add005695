//! The expectations of a message. [`crate::strict`] parses whole messages. Header sections alone
//! and truncated messages are compared here.

use std::borrow::Cow;
use std::io::Read;

use super::{Piece, Placeholders};
use crate::strict::{self, Field, Framing, Message, RequestContext};

/// An expected message.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its first line.
    pub start: ExpectedStart,
    /// How much of the message is expected.
    pub part: MessagePart,
    /// The expectations of its fields.
    pub checks: Vec<Check>,
    /// Its content; `None`: any.
    pub body: Option<Vec<Piece>>,
    /// Whether that is the content without its coding.
    pub is_decoded: bool,
}

/// The deviations from a script that the faults of a world may cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tolerance {
    /// Nothing: each expectation holds exactly.
    Exact,
    /// Cut connections, and responses that the proxy makes when clients and origins fail.
    Hostile,
    /// These, and responses that the proxy makes when files cannot be opened or read.
    HostileFiles,
    /// These, and responses with other files, because files are replaced. All bytes of such a file
    /// are equal.
    ReplacedFiles,
    /// Any response, because the bytes of files change while they are served.
    ChangedFiles,
}

impl Tolerance {
    /// Returns whether a response with this status may come instead of the expected one.
    fn allows(self, status: u16) -> bool {
        match self {
            Self::Exact | Self::Hostile => matches!(status, 408 | 502..=504),
            Self::HostileFiles => matches!(status, 403 | 408 | 500 | 502..=504),
            Self::ReplacedFiles | Self::ChangedFiles => true,
        }
    }

    /// Returns whether a 200 may have these bytes instead of the expected ones.
    fn allows_body(self, bytes: &[u8]) -> bool {
        match self {
            Self::Exact | Self::Hostile | Self::HostileFiles => false,
            Self::ReplacedFiles => bytes.windows(2).all(|two| two[0] == two[1]),
            Self::ChangedFiles => true,
        }
    }
}

/// How much of a message is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessagePart {
    /// The whole message.
    Whole,
    /// Only the header section. The next steps read the bytes that follow.
    Header,
    /// A beginning of the message, then FIN or a reset before its end.
    Truncated,
    /// A beginning of the message, then FIN before its end.
    FinTruncated,
}

/// A first line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExpectedStart {
    /// A request.
    Request {
        /// Exactly this method.
        method: String,
        /// Exactly this target, after replacing placeholders.
        target: String,
    },
    /// A response.
    Response {
        /// Exactly this status.
        status: u16,
        /// The method of the request, which decides the framing of the response.
        method: String,
        /// Whether the request was HTTP/1.0.
        old: bool,
    },
}

/// One expectation of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Check {
    /// The values of all fields of that name, joined by commas, are that value.
    Field(String, String),
    /// At least one field of that name.
    Has(String),
    /// No field of that name.
    Absent(String),
    /// Exactly one trailer of that name, with that value.
    Trailer(String, String),
    /// The framing: `length`, `chunked`, `close` or `none`.
    Framing(String),
}

/// The result of comparing the bytes so far with an expected message.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum MatchResult {
    /// The bytes match so far.
    More,
    /// The message matches and has this length in bytes.
    Matched(usize),
    /// The message is complete, but it is a response that a fault of the world may cause.
    OwnResponse,
    /// The bytes are another message, or no message.
    Failed(String),
}

impl Expected {
    /// Compares the bytes received so far with the expected message. `body` has the bytes of
    /// [`Expected::body`]. `ended` means that no more bytes will arrive.
    pub(super) fn match_bytes(
        &self,
        names: &Placeholders,
        body: Option<&[u8]>,
        input: &[u8],
        ended: bool,
        world: Tolerance,
    ) -> MatchResult {
        if self.part == MessagePart::Header {
            return self.match_header(names, input, ended, world);
        }
        // The strict parser restarts at each call. To avoid quadratic work it is not called while a
        // large body is certainly incomplete.
        let least = body.map_or(0, <[u8]>::len) * usize::from(!self.is_decoded);
        if !ended && input.len() > 8192 && input.len() < least {
            return MatchResult::More;
        }
        let parsed = match &self.start {
            ExpectedStart::Request { .. } => strict::request(input),
            ExpectedStart::Response { method, old, .. } => strict::response(
                input,
                &RequestContext { method: method.clone(), old: *old },
                ended,
            ),
        };
        // No response mixes the bytes of two files.
        let allows_body = |message: &Message| {
            let is_expected = body.is_none_or(|body| self.content(message) == body);
            message.status() != 200 || is_expected || world.allows_body(&message.body)
        };
        match parsed {
            Err(ambiguity) => MatchResult::Failed(format!("{ambiguity}: {}", excerpt(input))),
            Ok(None) if ended => MatchResult::Failed(format!("truncated: {}", excerpt(input))),
            Ok(None) => MatchResult::More,
            Ok(Some(message)) => {
                let error =
                    self.start_error(names, &message).or_else(|| self.error(names, body, &message));
                match error {
                    None => MatchResult::Matched(message.bytes),
                    Some(_) if world.allows(message.status()) && allows_body(&message) => {
                        MatchResult::OwnResponse
                    }
                    Some(error) => MatchResult::Failed(format!("{error}: {}", excerpt(input))),
                }
            }
        }
    }

    /// Checks that the status and the received part of the body may belong to the expected message.
    /// Also accepts a response that a fault of the world may cause.
    pub(super) fn match_truncated(
        &self,
        body: Option<&[u8]>,
        input: &[u8],
        world: Tolerance,
    ) -> Result<(), String> {
        let Some(header) = header_length(input) else { return Ok(()) };
        let text = String::from_utf8_lossy(&input[..header]).to_ascii_lowercase();
        let status = text.split(' ').nth(1).and_then(|word| word.parse::<u16>().ok());
        match (&self.start, status) {
            (ExpectedStart::Response { .. }, Some(status))
                if world.allows(status) && status != 200 =>
            {
                return Ok(());
            }
            (ExpectedStart::Response { status: wanted, .. }, Some(status))
                if *wanted != status && !world.allows(status) =>
            {
                return Err(format!("status {status} instead of {wanted}: {}", excerpt(input)));
            }
            _ => {}
        }
        let chunked = text.contains("\r\ntransfer-encoding: chunked\r\n");
        let received = if chunked { dechunk(&input[header..]) } else { input[header..].to_vec() };
        match body.filter(|_| !self.is_decoded) {
            Some(body) if !body.starts_with(&received) && !world.allows_body(&received) => {
                Err(format!("the truncated body differs from the expected one: {}", excerpt(input)))
            }
            _ => Ok(()),
        }
    }

    fn match_header(
        &self,
        names: &Placeholders,
        input: &[u8],
        ended: bool,
        world: Tolerance,
    ) -> MatchResult {
        let Some(length) = header_length(input) else {
            let error = || MatchResult::Failed(format!("no complete header: {}", excerpt(input)));
            return if ended { error() } else { MatchResult::More };
        };
        let text = String::from_utf8_lossy(&input[..length]);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let fields = lines.filter_map(|line| line.split_once(':')).map(|(name, value)| Field {
            name: name.to_owned(),
            value: value.trim().as_bytes().to_vec(),
        });
        let fields: Vec<Field> = fields.collect();
        let wanted = match &self.start {
            ExpectedStart::Request { method, target } => {
                format!("{method} {} HTTP/1.1", names.fill(target))
            }
            ExpectedStart::Response { status, .. } => format!("HTTP/1.1 {status} "),
        };
        let error = (!first.starts_with(&wanted))
            .then(|| format!("`{first}` instead of `{wanted}`"))
            .or_else(|| {
                self.checks.iter().find_map(|check| check.error(names, &fields, &[], None))
            });
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        match error {
            None => MatchResult::Matched(length),
            Some(_) if status.is_some_and(|status| world.allows(status)) => {
                MatchResult::OwnResponse
            }
            Some(error) => MatchResult::Failed(format!("{error}: {}", excerpt(input))),
        }
    }

    fn start_error(&self, names: &Placeholders, message: &Message) -> Option<String> {
        match &self.start {
            ExpectedStart::Request { method, target } => {
                let target = names.fill(target);
                let right = message.method() == method && message.target() == target;
                (!right).then(|| {
                    format!("{} {} for {method} {target}", message.method(), message.target())
                })
            }
            ExpectedStart::Response { status, .. } => (message.status() != *status)
                .then(|| format!("status {} instead of {status}", message.status())),
        }
    }

    fn error(
        &self,
        names: &Placeholders,
        body: Option<&[u8]>,
        message: &Message,
    ) -> Option<String> {
        let framing = Some(message.framing);
        let checks = self.checks.iter();
        let mut error = checks
            .filter_map(|check| check.error(names, &message.fields, &message.trailers, framing));
        if let Some(error) = error.next() {
            return Some(error);
        }
        let body = body?;
        let content = self.content(message);
        if content == body {
            return None;
        }
        let same = content.iter().zip(body).take_while(|(one, other)| one == other).count();
        Some(format!(
            "a body of {} bytes instead of {}, different from byte {same} on",
            content.len(),
            body.len()
        ))
    }

    /// Returns the content of a message, without its coding if that is expected. Content that
    /// cannot be decoded is empty.
    fn content<'a>(&self, message: &'a Message) -> Cow<'a, [u8]> {
        let is_gzip = |field: &Field| {
            field.name.eq_ignore_ascii_case("content-encoding") && field.value == b"gzip"
        };
        if !self.is_decoded || !message.fields.iter().any(is_gzip) {
            return Cow::Borrowed(&message.body);
        }
        let mut content = Vec::new();
        let decoded = flate2::read::GzDecoder::new(&*message.body).read_to_end(&mut content);
        Cow::Owned(decoded.map_or_else(|_| Vec::new(), |_| content))
    }
}

impl Check {
    fn error(
        &self,
        names: &Placeholders,
        fields: &[Field],
        trailers: &[Field],
        framing: Option<Framing>,
    ) -> Option<String> {
        let values = |fields: &[Field], name: &str| -> Vec<String> {
            let named = fields.iter().filter(|field| field.is(name));
            named.map(|field| String::from_utf8_lossy(&field.value).into_owned()).collect()
        };
        let right = match self {
            Self::Field(name, value) => values(fields, name).join(", ") == names.fill(value),
            Self::Trailer(name, value) => values(trailers, name) == [names.fill(value)],
            Self::Has(name) => !values(fields, name).is_empty(),
            Self::Absent(name) => values(fields, name).is_empty(),
            Self::Framing(word) => match framing {
                Some(Framing::None) => word == "none",
                Some(Framing::Length(_)) => word == "length",
                Some(Framing::Chunked) => word == "chunked",
                Some(Framing::UntilClose) => word == "close",
                None => true,
            },
        };
        (!right).then(|| format!("unmet: {self:?}"))
    }
}

/// Returns the length of the header at the beginning of `input`, including the empty line.
pub(super) fn header_length(input: &[u8]) -> Option<usize> {
    input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns the data of the chunks received so far.
fn dechunk(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(at) = input.windows(2).position(|two| two == b"\r\n") {
        let size = String::from_utf8_lossy(&input[..at]);
        let Ok(size) = usize::from_str_radix(&size, 16) else { break };
        let end = input.len().min(at + 2 + size);
        bytes.extend_from_slice(&input[at + 2..end]);
        input = input.get(end + 2..).unwrap_or_default();
    }
    bytes
}

/// Returns the beginning of `bytes` in readable form.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let more = if bytes.len() > 600 { "..." } else { "" };
    let beginning = &bytes[..bytes.len().min(600)];
    format!("{} bytes \"{}\"{more}", bytes.len(), beginning.escape_ascii())
}

/// Returns method and target of the request at the beginning of `input`, once its header is
/// complete.
///
/// # Errors
/// Returns the ambiguity that the strict parser finds.
pub(super) fn next_request(input: &[u8]) -> Result<Option<(String, String)>, String> {
    let Some(length) = header_length(input) else { return Ok(None) };
    if let Err(ambiguity) = strict::request(input) {
        return Err(format!("{ambiguity}: {}", excerpt(input)));
    }
    let header = String::from_utf8_lossy(&input[..length]);
    let mut words = header.split(' ');
    Ok(words.next().zip(words.next()).map(|(one, other)| (one.to_owned(), other.to_owned())))
}
