//! Errors of parsing headers and chunked bodies.

use std::fmt;

/// The reason why a header is refused.
///
/// The sender caused each of these errors, and no further input resolves them. The connection
/// cannot be used any longer, because the end of the header is unknown after most of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadError {
    /// The header is longer than [`HeadLimits::bytes_max`](crate::HeadLimits::bytes_max).
    BytesTooMany,
    /// The header has more fields than [`HeadLimits::fields_max`](crate::HeadLimits::fields_max).
    FieldsTooMany,
    /// The request target is longer than
    /// [`HeadLimits::target_bytes_max`](crate::HeadLimits::target_bytes_max).
    TargetTooLong,
    /// The method is longer than 32 bytes.
    MethodTooLong,
    /// Another CR or LF follows the one empty line that may come before the request line.
    EmptyLine,
    /// A line ends in LF without CR.
    BareLf,
    /// A CR is not followed by LF.
    BareCr,
    /// The method is empty or not a token, or no space follows it.
    MethodInvalid,
    /// The target is empty, or has a byte that no target may contain.
    TargetInvalid,
    /// The parts of the request line are separated by a tab or by more than one space, or white
    /// space follows the last part.
    RequestLineSpaces,
    /// The request line has no version (HTTP/0.9).
    VersionMissing,
    /// The version is not `HTTP/`, a digit, a dot and a digit.
    VersionInvalid,
    /// The version is well-formed, but neither 1.0 nor 1.1.
    VersionUnsupported,
    /// The status code is not three digits from 100 to 599, or neither a space nor the end of the
    /// line follows it.
    StatusInvalid,
    /// The reason phrase has a control byte.
    ReasonInvalid,
    /// A field line begins with a space or tab. It is a folded value, or other parsers would treat
    /// it as one.
    FoldedLine,
    /// A field line has no colon.
    ColonMissing,
    /// A field line begins with its colon.
    NameEmpty,
    /// A space or tab separates a field name from its colon.
    SpaceBeforeColon,
    /// A field name has a byte that is not allowed in a token.
    NameInvalid,
    /// A field value has a control byte.
    ValueInvalid,
    /// The `Connection` fields have more than 32 options or more than 32 empty members.
    ConnectionOptionsTooMany,
    /// The `Upgrade` fields have more than 8 protocols or more than 32 empty members. They are
    /// checked only if `Connection` has the option `upgrade`.
    UpgradeProtocolsTooMany,
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BytesTooMany => "the header is too long",
            Self::FieldsTooMany => "the header has too many fields",
            Self::TargetTooLong => "the request target is too long",
            Self::MethodTooLong => "the method is too long",
            Self::EmptyLine => "more than one empty line comes before the request",
            Self::BareLf => "a line ends in LF without CR",
            Self::BareCr => "a line has a CR without LF",
            Self::MethodInvalid => "the method is not a token",
            Self::TargetInvalid => "the request target has a byte that no target may have",
            Self::RequestLineSpaces => "the parts of the request line are not one space apart",
            Self::VersionMissing => "the request line has no HTTP version",
            Self::VersionInvalid => "the HTTP version is malformed",
            Self::VersionUnsupported => "the HTTP version is neither 1.0 nor 1.1",
            Self::StatusInvalid => "the status is not three digits from 100 to 599",
            Self::ReasonInvalid => "the reason phrase has a control byte",
            Self::FoldedLine => "a field line begins with white space",
            Self::ColonMissing => "a field line has no colon",
            Self::NameEmpty => "a field has no name",
            Self::SpaceBeforeColon => "white space comes before a field's colon",
            Self::NameInvalid => "a field name is not a token",
            Self::ValueInvalid => "a field value has a control byte",
            Self::ConnectionOptionsTooMany => "the Connection field has too many options",
            Self::UpgradeProtocolsTooMany => "the Upgrade field has too many protocols",
        })
    }
}

impl std::error::Error for HeadError {}

/// The reason why a chunked body is refused.
///
/// The sender caused the error. The end of the body is unknown, so the connection cannot be used
/// any longer. A proxy must not forward the body in a form that looks complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkError {
    /// A chunk size has no hexadecimal digit, or an invalid byte follows its digits.
    SizeInvalid,
    /// A chunk size has more than 16 digits, or is 2^63 or more.
    SizeTooLong,
    /// An extension is not a token with an optional token or quoted string as its value.
    ExtensionInvalid,
    /// The extensions have more than 256 bytes in a chunk, or more than 16 KiB in the body.
    ExtensionsTooLong,
    /// A size line, or the last line of the body, does not end in CR LF.
    LineEndInvalid,
    /// CR LF is missing after the data of a chunk.
    DataEndInvalid,
    /// A trailer line is malformed, for the reason given.
    TrailerInvalid(HeadError),
    /// The trailer lines have more than 8 KiB.
    TrailersTooLong,
    /// The body has more than 64 trailer lines.
    TrailersTooMany,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SizeInvalid => "a chunk size is not a hex number",
            Self::SizeTooLong => "a chunk size is too large",
            Self::ExtensionInvalid => "a chunk extension is malformed",
            Self::ExtensionsTooLong => "the chunk extensions are too long",
            Self::LineEndInvalid => "a chunk's line does not end in CR LF",
            Self::DataEndInvalid => "a chunk's data does not end where its size says",
            Self::TrailerInvalid(error) => return write!(f, "in the trailers: {error}"),
            Self::TrailersTooLong => "the trailers are too long",
            Self::TrailersTooMany => "there are too many trailers",
        })
    }
}

impl std::error::Error for ChunkError {}
