//! The errors of programs.

use std::fmt;

/// Why the records of a FastCGI program are not a response. It is always the program's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordError {
    /// The version of a record is not 1.
    Version,
    /// A record belongs to a request that was not sent.
    RequestId,
    /// A program never sends records of this type.
    Type,
    /// Output follows its end.
    OutputAfterEnd,
    /// An END_REQUEST record has fewer than 8 bytes.
    EndTooShort,
    /// The program refused the request: it does not multiplex requests.
    CannotMultiplex,
    /// The program refused the request: it is overloaded.
    Overloaded,
    /// The program refused the request: it is no responder.
    UnknownRole,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "a FastCGI record has another version than 1",
            Self::RequestId => "a FastCGI record has the id of another request",
            Self::Type => "a FastCGI record has a type that programs do not send",
            Self::OutputAfterEnd => "a FastCGI program sent output after the end of its output",
            Self::EndTooShort => "an END_REQUEST record is too short",
            Self::CannotMultiplex => "the FastCGI program cannot multiplex requests",
            Self::Overloaded => "the FastCGI program is overloaded",
            Self::UnknownRole => "the FastCGI program is no responder",
        })
    }
}

impl std::error::Error for RecordError {}

/// Why the header of a program's response is malformed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// A line is no field: it has no colon, or no valid name before it.
    Line,
    /// The value of `Status` does not begin with a status from 200 to 599, or there are several.
    Status,
    /// There are several `Location` fields.
    Location,
    /// There are more than [`HEADER_LINES_MAX`](crate::HEADER_LINES_MAX) lines.
    TooManyLines,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Line => "a line of the program's header is no field",
            Self::Status => "the Status of the program's header is no status from 200 to 599",
            Self::Location => "the program's header has several Location fields",
            Self::TooManyLines => "the program's header has too many lines",
        })
    }
}

impl std::error::Error for HeaderError {}
