//! The fixed limits of the rules, and what happens beyond them.

/// The longest duration in seconds, 2^31 (RFC 9111 section 1.2.2). Longer ones are reduced to it.
pub(super) const DELTA_S_MAX: u32 = 1 << 31;

/// Maximum number of names in the `Vary` fields of a response. Each adds a search of the request's
/// head to every later lookup of that URI. Beyond: the response is not stored.
pub(super) const VARY_NAMES_MAX: usize = 16;

/// Maximum number of satisfiable ranges in a request. RFC 9110 section 14.2 lets a server ignore
/// more, and section 17.15 recommends it. Beyond: `Range` is ignored if the stored response is
/// complete; otherwise the request is forwarded.
pub(super) const RANGES_MAX: usize = 16;

/// Maximum number of tags of a response, of all kinds together. RFC 9875 section 2 requires at
/// least 32 groups. Further tags are ignored, so the response cannot be purged by them.
pub(super) const TAGS_MAX: usize = 128;

/// Maximum bytes of a tag. A response cannot be purged by a longer one.
pub(super) const TAG_BYTES_MAX: usize = 256;

/// Maximum bytes of an HTTP date. The longest form with the longest weekday has 33. Anything longer
/// than this limit is not a date.
pub(super) const DATE_BYTES_MAX: usize = 40;
