//! The decisions of a shared cache as pure functions: RFC 9111 with RFC 5861, 8246, 9211, 9213 and
//! 9875, and those conditional and range requests of RFC 9110 that a cache handles itself.
//!
//! For a request, [`bypass()`] determines whether the cache is used. [`Key`] and [`VaryNames`]
//! locate a stored response. [`reuse()`] determines whether it may be sent now, and
//! [`is_not_modified`] and [`select_ranges()`] in which form. If the request is forwarded,
//! [`write_validation`] writes its conditions, and [`store()`], [`freshen()`] or [`combine`] derive
//! the new stored header from the origin's response. The result is a [`CachedHeader`] with a
//! [`Meta`] of numbers, so that [`reuse()`] parses no text.
//!
//! No function performs I/O, reads a clock or keeps state between calls. Values named `*_ms` are
//! milliseconds since 1970. Values named `*_s` are seconds, the unit of HTTP: a duration, or the
//! time since 1970. The functions that a hit needs ([`bypass()`], [`Key::from_request`],
//! [`VaryNames::key`], [`reuse()`], [`is_not_modified`], [`select_ranges()`]) allocate nothing,
//! except for some fields that describe the client, such as `Forwarded`.
#![forbid(unsafe_code)]

mod cache_status;
mod cached_header;
mod conditions;
mod content_range;
mod date;
mod directives;
mod etag;
mod features;
mod field_lines;
mod field_names;
mod freshen;
mod freshness;
mod fuzz;
mod invalidate;
mod key;
mod key_sink;
mod limits;
mod lookup;
mod meta;
mod meta_codec;
mod multipart;
mod not_stored;
mod own_response;
mod partial;
mod policy;
mod ranges;
mod received;
mod reuse;
mod status;
mod store;
mod structured;
mod tags;
mod uri;
mod url_input;
mod validate;
mod vary;

#[cfg(test)]
mod test_messages;

pub use cache_status::{CacheStatus, Forward};
pub use cached_header::CachedHeader;
pub use conditions::{is_not_modified, is_precondition_met, write_not_modified};
pub use content_range::parse_content_range;
pub use date::{format_date, http_date};
pub use directives::{RequestDirectives, ResponseDirectives};
pub use etag::Etag;
pub use features::Features;
pub use field_lines::{StoredFieldLine, field_lines};
pub use freshen::{Freshened, SINGLE_CLIENT_FIELDS, freshen, freshen_by_head};
pub use fuzz::fuzz_rules;
pub use invalidate::invalidated_paths;
pub use key::{HashKey, Key, KeyHasher, KeyParts, Space, SpaceTag, UriOrigin};
pub use lookup::{Bypass, bypass};
pub use meta::{EtagSpan, Flags, Meta, StoredRange};
pub use meta_codec::META_BYTES;
pub use millrace_http1::Scheme;
pub use multipart::Multipart;
pub use not_stored::NotStored;
pub use own_response::OwnResponse;
pub use partial::{Remainder, combine, finish, is_same_strongly, remainder};
pub use policy::{CachePolicy, SetCookie, StatusTtl, Ttl, UnkeyedFields};
pub use ranges::{ByteRange, Ranges, Selection, select_ranges};
pub use received::{Receipt, ReceivedResponse};
pub use reuse::{Reuse, is_failure, reuse};
pub use store::{is_personal, may_collapse, store};
pub use tags::{
    Tag, TagHash, group_hash, group_invalidations, tag_hash, tag_hashes, tags, updated_tags,
};
pub use url_input::{normalise_url, parse_uri_origin};
pub use validate::write_validation;
pub use vary::{VariantKey, VaryNames};
