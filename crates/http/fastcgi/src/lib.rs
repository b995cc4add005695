//! FastCGI 1.0, and the parts of CGI 1.1 (RFC 3875) that it shares: the records of a request and of
//! its response, the environment variables, and the response header.
//!
//! ```text
//!  RequestHead ── Environment (a HeaderWriter) ──> BEGIN_REQUEST, PARAMS … PARAMS(0), STDIN …
//!  STDOUT … END_REQUEST ── ResponseDecoder ──> payload ── convert_header ──> an HTTP/1.1 header
//! ```
//!
//! A FastCGI server reads requests with a [`RequestDecoder`].
//!
//! A connection carries one request at a time, whose id is always [`REQUEST_ID`]: most programs
//! refuse to multiplex. The crate does no I/O, reads no clock, and keeps at most
//! [`ERROR_BYTES_MAX`] bytes of what a program writes to its standard error.
#![forbid(unsafe_code)]

mod decoder;
mod environment;
mod error;
mod fuzz;
mod header;
mod limits;
mod record;
mod request_decoder;

pub use decoder::{DecodeProgress, ResponseDecoder, ResponsePart};
pub use environment::{AuthorizationFor, CGI_FOLDER_VARIABLE, Environment};
pub use error::{HeaderError, RecordError, RequestError};
pub use fuzz::{fuzz_header, fuzz_records, fuzz_request_records};
pub use header::{HeaderForm, convert_header, header_length};
pub use limits::{
    CONTENT_BYTES_MAX, ENVIRONMENT_BYTES_MAX, ERROR_BYTES_MAX, HEADER_LINES_MAX, VARIABLES_MAX,
};
pub use record::{
    OutputStream, RECORD_HEADER_BYTES, REQUEST_ID, write_abort, write_end, write_input_header,
    write_output_header, write_request,
};
pub use request_decoder::{RequestDecoder, RequestPart, Variables};
