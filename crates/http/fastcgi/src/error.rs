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

/// Why records are not a request. It is always the fault of the server that sent them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    /// The version of a record is not 1.
    Version,
    /// A record has another request id than [`REQUEST_ID`](crate::REQUEST_ID).
    RequestId,
    /// A record of this type or length is not allowed here.
    Type,
    /// The role is not that of a responder.
    Role,
    /// The environment is too long or malformed.
    Environment,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version => "a FastCGI record has another version than 1",
            Self::RequestId => "a FastCGI record has another request id than 1",
            Self::Type => "a FastCGI record is not allowed at this place",
            Self::Role => "a FastCGI request has another role than responder",
            Self::Environment => "the environment of a FastCGI request is malformed or too long",
        })
    }
}

impl std::error::Error for RequestError {}

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
