//! HTTP/1 as bytes in, meaning out: heads, fields, targets, body framing, the chunked coding, and
//! the PROXY protocol header that may come before them.
//!
//! The crate does no input or output and reads no clock. A head owns one copy of its bytes, and its
//! fields are ranges in it; nothing is allocated for a single field.
//!
//! Its law is RFC 9112 read strictly: bytes that two parsers could read as two different messages
//! are an error here. What that refuses although a grammar allows it is listed where it is decided:
//! [`RequestHead`], [`AnswerHead`], [`target`], [`framing`] and [`chunked`]. Two things are
//! rewritten before they are parsed, so that only the strict form goes on: response headers with
//! faults that origins have ([`AnswerHead::parse_lenient`]), and bytes from 0x80 in targets.
//!
//! The line splitting is our own and not a library's: heads arrive in pieces, each byte may be
//! looked at only a bounded number of times, and most of what a lenient tokenizer hides (bare LF,
//! repeated spaces, folded lines) has to be seen here to be refused.
#![forbid(unsafe_code)]

mod byte_class;
mod byte_search;
pub mod chunked;
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
pub mod target;
mod trailer;
mod upgrade;

#[cfg(any(test, feature = "corpus"))]
pub mod corpus;
#[cfg(test)]
mod test_heads;

pub use chunked::{ChunkedDecoder, DecodeProgress, fuzz_chunked, write_chunk_size};
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
pub use target::{Authority, Destination, Host, TargetError, TargetForm};
pub use upgrade::{is_upgrade_accepted, is_websocket_upgrade, upgrade_protocols};

/// The example of README.md, compiled as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Http1Readme;
