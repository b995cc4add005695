//! Every bound that the rules keep by themselves, with what happens at it.

/// The longest time that is told apart, RFC 9111 section 1.2.2: 2^31 seconds. More is read as this.
pub(super) const DELTA_S_MAX: u32 = 1 << 31;

/// Names in the `Vary` fields of one response. Each costs every later lookup of that URI a search in
/// the request's head. Above: the response is not stored.
pub(super) const VARY_NAMES_MAX: usize = 16;

/// Ranges of one request that are answered. RFC 9110 section 14.2 lets a server ignore more, and
/// section 17.15 says why it should. Above: the whole representation.
pub(super) const RANGES_MAX: usize = 16;

/// Tags of one response, of all kinds together: RFC 9875 section 2 asks for 32 groups at least. What
/// is above cannot be purged by.
pub(super) const TAGS_MAX: usize = 128;

/// Bytes of one tag. A longer one cannot be purged by.
pub(super) const TAG_BYTES_MAX: usize = 256;

/// Bytes of an HTTP date, the longest of the three forms with its longest weekday, and room for a
/// careless space. A longer one is no date.
pub(super) const DATE_BYTES_MAX: usize = 40;
