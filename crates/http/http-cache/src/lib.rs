//! The decisions of a shared cache as pure functions: RFC 9111 with 5861, 8246, 9211, 9213 and
//! 9875, and the conditions and ranges of RFC 9110 as far as a cache responses them itself.
//!
//! The way of a request: [`bypass()`] says whether the cache is asked at all, [`Key`] and
//! [`VaryNames`] find what is stored, [`reuse()`] says whether that may be the response now, and then
//! [`is_not_modified`] and [`ranges()`] say in what form. When the origin is asked,
//! [`write_validation`] writes the conditions, and [`store()`], [`freshen()`] or [`combine`] make of
//! its response what is kept: a [`Stored`] with a [`Meta`] of numbers, so that a hit parses no text of
//! a response.
//!
//! Nothing here does input or output, reads a clock, or keeps anything between two calls. Times of
//! day are milliseconds since 1970 (`*_ms`) where the difference of two is taken, and seconds
//! (`*_s`) where HTTP has seconds. What a hit needs ([`bypass()`], [`Key::of`], [`VaryNames::key`],
//! [`reuse()`], [`is_not_modified`], [`ranges()`]) allocates nothing.
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
pub use conditions::{is_not_modified, write_not_modified};
pub use content_range::parse_content_range;
pub use date::http_date;
pub use directives::{RequestDirectives, ResponseDirectives};
pub use etag::Etag;
pub use features::Features;
pub use field_lines::{StoredFieldLine, field_lines};
pub use freshen::{Freshened, SINGLE_CLIENT_FIELDS, freshen, freshen_by_head};
pub use fuzz::fuzz_rules;
pub use invalidate::invalidated_paths;
pub use key::{HashKey, Key, KeyHasher, KeyParts, Scheme, Space, SpaceTag, UriOrigin};
pub use lookup::{Bypass, bypass};
pub use meta::{EtagSpan, Flags, Meta, StoredRange};
pub use meta_codec::META_BYTES;
pub use multipart::Multipart;
pub use not_stored::NotStored;
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
