//! Why a head, or a chunked body, is refused.

use std::fmt;

/// What is wrong with a head. All are the sender's fault, and none goes away with more bytes: the
/// connection cannot be used any further, because where the head ends is not certain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadError {
    /// The head is longer than [`HeadLimits::bytes_max`](crate::HeadLimits::bytes_max).
    BytesTooMany,
    /// It has more fields than [`HeadLimits::fields_max`](crate::HeadLimits::fields_max).
    FieldsTooMany,
    /// The target is longer than
    /// [`HeadLimits::target_bytes_max`](crate::HeadLimits::target_bytes_max).
    TargetTooLong,
    /// The method has more than 32 bytes.
    MethodTooLong,
    /// More than one empty line, or half a line end, before the request line.
    EmptyLine,
    /// A line ends in LF without CR.
    BareLf,
    /// A CR that no LF follows.
    BareCr,
    /// The method is empty or not a token.
    MethodInvalid,
    /// The target is empty, or has a byte that no target may have.
    TargetInvalid,
    /// More than one space, or a tab, between the parts of a request line.
    RequestLineSpaces,
    /// No version: HTTP/0.9.
    VersionMissing,
    /// The version is not `HTTP/`, a digit, a dot and a digit.
    VersionInvalid,
    /// A version in good form, but neither 1.0 nor 1.1.
    VersionUnsupported,
    /// The status is not three digits from 100 to 599, or no space follows it.
    StatusInvalid,
    /// The reason has a control byte.
    ReasonInvalid,
    /// A line that begins with a space or tab: a folded value, or a name that would be read as one.
    FoldedLine,
    /// A field line without a colon.
    ColonMissing,
    /// A field line that begins with its colon.
    NameEmpty,
    /// A space or tab between a field's name and its colon.
    SpaceBeforeColon,
    /// A field name with a byte that is not of a token.
    NameInvalid,
    /// A field value with a control byte.
    ValueInvalid,
    /// More than 32 options, or more than 32 empty members, in the `Connection` fields.
    ConnectionOptionsTooMany,
    /// More than 8 protocols, or more than 32 empty members, in the `Upgrade` fields of a head
    /// whose `Connection` has the option `upgrade`.
    UpgradeProtocolsTooMany,
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BytesTooMany => "the head is too long",
            Self::FieldsTooMany => "the head has too many fields",
            Self::TargetTooLong => "the request target is too long",
            Self::MethodTooLong => "the method is too long",
            Self::EmptyLine => "more than one empty line comes before the request",
            Self::BareLf => "a line of the head ends in LF without CR",
            Self::BareCr => "a line of the head has a CR without LF",
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

/// Why a chunked body is refused. The sender's fault; where the body ends is not certain, so the
/// connection is of no more use, and the message must not look whole to its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkError {
    /// No hex digit, or a byte after the digits that does not belong there.
    SizeInvalid,
    /// More than 16 digits, or 2^63 and more.
    SizeTooLong,
    /// An extension that is not a token with perhaps a token or quoted string as its value.
    ExtensionInvalid,
    /// Extensions of more than 256 bytes in a chunk, or 16 KiB in all.
    ExtensionsTooLong,
    /// The line of a size, or the last line, does not end in CR LF.
    LineEndInvalid,
    /// No CR LF where the data should end.
    DataEndInvalid,
    /// A trailer line is malformed.
    TrailerInvalid(HeadError),
    /// Trailer lines of more than 8 KiB.
    TrailersTooLong,
    /// More than 64 trailer lines.
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
