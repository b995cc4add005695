//! A strict HTTP/1 parser and writer for proxies: headers, fields, request targets, body framing,
//! the chunked transfer coding, and the PROXY protocol header that may precede them.
//!
//! The crate does no I/O and reads no clock. A header is the start line of a message and its
//! fields. A [`Head`] owns one copy of its header, and its fields are ranges of that copy, so a
//! field needs no allocation of its own.
//!
//! The crate implements RFC 9112 strictly: bytes that two implementations could read as two
//! different messages are an error. Messages that are refused although a grammar allows them are
//! listed at [`RequestHead`], [`ResponseHead`], [`target`], [`framing`] and [`chunked`].
//!
//! Two kinds of deviation are accepted and rewritten to the strict form:
//! [`ResponseHead::parse_lenient`] rewrites response headers with common faults before it parses
//! them, and [`RequestHead`] percent-encodes non-ASCII bytes in the target. [`target`],
//! [`ResponseHead`] and [`response_framing`] list harmless deviations, which are accepted as they
//! are.
//!
//! ```
//! use millrace_http1::{FieldName, HeadLimits, HeadScan, RequestHead};
//!
//! let limits = HeadLimits { bytes_max: 16_384, fields_max: 100, target_bytes_max: 8_192 };
//! let input = b"GET /index.html HTTP/1.1\r\nHost: example.com\r\n\r\n";
//! let (mut head, mut scan) = (RequestHead::default(), HeadScan::default());
//! // The header arrives in pieces: call again with the same bytes and more.
//! assert_eq!(head.parse(&input[..20], &mut scan, &limits), Ok(None));
//! assert_eq!(head.parse(input, &mut scan, &limits), Ok(Some(input.len())));
//! assert_eq!(head.target(), b"/index.html");
//! assert_eq!(head.values(FieldName::Host).next(), Some(&b"example.com"[..]));
//! ```
//!
//! The crate splits lines itself and uses no general tokenizer. Headers arrive in pieces, and each
//! byte may be scanned only a bounded number of times. A lenient tokenizer would also hide the
//! forms that have to be refused: bare LF, repeated spaces and folded lines.
#![forbid(unsafe_code)]

mod byte_class;
mod byte_search;
pub mod chunked;
mod client_certificate;
mod comma_list;
mod connection;
mod error;
mod expectation;
mod field;
mod fields;
pub mod format;
pub mod framing;
mod fuzz;
mod head;
mod header_writer;
mod lenient;
mod limits;
mod line_parser;
mod method;
mod name;
mod origin_request;
pub mod path;
mod proxy_header;
mod request;
mod response;
mod scheme;
pub mod target;
mod trailer;
mod upgrade;

#[cfg(any(test, feature = "corpus"))]
pub mod corpus;
#[cfg(test)]
mod test_heads;

pub use chunked::{ChunkedDecoder, DecodeProgress, fuzz_chunked, write_chunk_size};
pub use client_certificate::ClientCertificate;
pub use comma_list::{has_token, parse_decimal, split_list, split_tokens};
pub use connection::ConnectionOptions;
pub use error::{ChunkError, HeadError};
pub use expectation::{Expectation, expectation};
pub use field::{FieldLine, Span};
pub use fields::{FieldRun, connection_options, forwarded_fields, forwarded_runs};
pub use framing::{Framing, FramingError, declared_length, request_framing, response_framing};
pub use fuzz::{fuzz_request_head, fuzz_response_head};
pub use head::{Fields, Head, HeadLimits, HeadScan};
#[cfg(any(test, feature = "corpus"))]
pub use header_writer::FieldList;
pub use header_writer::{HeaderWriter, Http1Header};
pub use method::{Method, Version};
pub use name::{FieldName, NameSet};
pub use origin_request::{
    FORWARDING_FIELDS, Forwarding, METHOD_OVERRIDES, OriginRequest, REMOVED_UNLESS_TRUSTED,
};
pub use proxy_header::{ProxyHeader, ProxyHeaderError, fuzz_proxy_header, parse_proxy_header};
pub use request::{RequestHead, destination};
pub use response::ResponseHead;
pub use scheme::Scheme;
pub use target::{Authority, Destination, Host, TargetError, TargetForm};
pub use upgrade::{is_upgrade_accepted, is_websocket_upgrade, upgrade_protocols};

/// The example of README.md, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Http1Readme;
