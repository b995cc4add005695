//! The decisions of a shared cache as pure functions: RFC 9111 with 5861, 8246, 9211, 9213 and
//! 9875, and the conditions and ranges of RFC 9110 as far as a cache answers them itself.
//!
//! The way of a request: [`bypass()`] says whether the cache is asked at all, [`Key`] and
//! [`VaryNames`] find what is stored, [`reuse()`] says whether that may be the answer now, and then
//! [`is_not_modified`] and [`ranges()`] say in what form. When the origin is asked,
//! [`write_validation`] writes the conditions, and [`store()`], [`freshen()`] or [`combine`] make of
//! its answer what is kept: a [`Stored`] with a [`Meta`] of numbers, so that a hit parses no text of
//! an answer.
//!
//! Nothing here does input or output, reads a clock, or keeps anything between two calls. Times of
//! day are milliseconds since 1970 (`*_ms`) where the difference of two is taken, and seconds
//! (`*_s`) where HTTP has seconds. What a hit needs ([`bypass()`], [`Key::of`], [`VaryNames::key`],
//! [`reuse()`], [`is_not_modified`], [`ranges()`]) allocates nothing.
#![forbid(unsafe_code)]

mod cache_status;
mod conditions;
mod content_range;
mod date;
mod directives;
mod etag;
mod features;
mod freshen;
mod freshness;
mod fuzz;
mod invalidate;
mod key;
mod limits;
mod lookup;
mod meta;
mod meta_bytes;
mod multipart;
mod names;
mod partial;
mod policy;
mod ranges;
mod received;
mod refusal;
mod reuse;
mod sink;
mod status;
mod store;
mod stored;
mod stored_head;
mod structured;
mod tags;
mod uri;
mod validate;
mod vary;
mod written;

#[cfg(test)]
mod samples;

pub use cache_status::{CacheStatus, Forward};
pub use conditions::{is_not_modified, write_not_modified};
pub use content_range::extent_of;
pub use date::http_date;
pub use directives::{AnswerDirectives, RequestDirectives};
pub use etag::Etag;
pub use features::Features;
pub use freshen::{FOR_ONE_CLIENT, Freshened, freshen, freshen_by_head};
pub use fuzz::fuzz_rules;
pub use invalidate::invalidated;
pub use key::{HashKey, Key, KeyHasher, KeyParts, Scheme, Site, Space, SpaceTag};
pub use lookup::{Bypass, bypass};
pub use meta::{EtagAt, Extent, Flags, Meta};
pub use meta_bytes::META_BYTES;
pub use multipart::Multipart;
pub use partial::{Remainder, combine, finish, is_same_strongly, remainder};
pub use policy::{Policy, SetCookie, StatusTtl, Ttl, Unkeyed};
pub use ranges::{ByteRange, Ranges, Selection, ranges};
pub use received::{Receipt, Received};
pub use refusal::Refusal;
pub use reuse::{Reuse, is_failure, reuse};
pub use store::{is_personal, may_claim, store};
pub use stored::Stored;
pub use stored_head::{Line, lines};
pub use tags::{
    Tag, TagHash, group_hash, group_invalidations, tag_hash, tag_hashes, tags, updated_tags,
};
pub use validate::write_validation;
pub use vary::{VariantKey, VaryNames};
pub use written::{written_site, written_url};
