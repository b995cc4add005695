//! Metadata of a stored response in numbers, so that a hit is decided without parsing text.

/// The metadata that determines the reuse of a stored response. It is made by [`store`],
/// [`freshen`] and [`combine`], and belongs to the header that it was made with, because it
/// contains offsets in it.
///
/// [`store`]: super::store()
/// [`freshen`]: super::freshen()
/// [`combine`]: super::combine
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Time of receipt, milliseconds since 1970.
    pub response_ms: u64,
    /// The value of `Date`, or the time of receipt without a valid one; seconds since 1970.
    pub date_s: u64,
    /// Time of modification, seconds since 1970.
    pub last_modified_s: Option<u64>,
    /// Freshness lifetime in seconds (RFC 9111 section 4.2.1).
    pub lifetime_s: u32,
    /// Age at the time of receipt in seconds: `corrected_initial_age` (section 4.2.3).
    pub initial_age_s: u32,
    /// Seconds after the lifetime during which the response may be used while it is validated (RFC
    /// 5861 section 3).
    pub stale_while_revalidate_s: u32,
    /// Seconds after the lifetime during which the response may replace an error (RFC 5861 section
    /// 4).
    pub stale_if_error_s: u32,
    /// The position of the entity tag.
    pub etag: Option<EtagSpan>,
    /// The status, 200 to 599.
    pub status: u16,
    /// Further properties.
    pub flags: Flags,
    /// Offset of the field lines in the header, after the status line.
    pub lines_at: u32,
    /// The stored range of the representation; `None` if it is complete.
    pub stored_range: Option<StoredRange>,
    /// A hash of the request's `Range` that the stored range responded to; 0 if there is none.
    pub range_tag: u64,
}

/// The position of the entity tag in a stored header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EtagSpan {
    /// Offset from the start of the header.
    pub start: u32,
    /// Length in bytes, with quotes and `W/`.
    pub len: u32,
    /// Whether it is a strong validator.
    pub is_strong: bool,
}

/// A range of a representation (RFC 9110 section 14.4): `first <= last`, and `last` is below the
/// complete length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte.
    pub last: u64,
    /// Length of the whole representation, if it is known.
    pub complete: Option<u64>,
}

/// Boolean properties of a stored response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// It must be validated before each use: `no-cache`, or it was invalidated.
    pub const NO_CACHE: Self = Self(1);
    /// It must not be used stale (RFC 9111 section 4.2.4).
    pub const NO_STALE: Self = Self(2);
    /// It does not change while it is fresh (RFC 8246).
    pub const IMMUTABLE: Self = Self(4);
    /// Its `Last-Modified` is a strong validator (RFC 9110 section 8.8.2.2).
    pub const MODIFIED_IS_STRONG: Self = Self(8);
    /// It has a `Vary` field.
    pub const VARIES: Self = Self(16);

    /// It was received as HTTP/1.0, which `Via` reports to the recipient (RFC 9110 section 7.6.3).
    pub const RECEIVED_AS_HTTP10: Self = Self(32);

    /// This server made it as an origin server, so it was never received.
    pub const IS_OWN: Self = Self(64);

    const ALL: u8 = 127;

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// Creates flags from bits; `None` if a bit is undefined.
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        (bits & !Self::ALL == 0).then_some(Self(bits))
    }

    /// Returns whether all of these flags are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets these flags if `is_set`; otherwise returns the flags unchanged.
    #[must_use]
    pub const fn set_if(self, flags: Self, is_set: bool) -> Self {
        if is_set { Self(self.0 | flags.0) } else { self }
    }

    /// Clears these flags.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }
}

impl Meta {
    /// Returns the current age in whole seconds (RFC 9111 section 4.2.3), the value of `Age`.
    pub fn age_s(&self, now_ms: u64) -> u32 {
        let resident_s = now_ms.saturating_sub(self.response_ms) / 1000;
        u32::try_from(resident_s).unwrap_or(u32::MAX).saturating_add(self.initial_age_s)
    }

    /// Returns the remaining freshness in seconds; negative if the response is stale: the `ttl` of
    /// RFC 9211.
    pub fn ttl_s(&self, now_ms: u64) -> i64 {
        i64::from(self.lifetime_s) - i64::from(self.age_s(now_ms))
    }

    /// Returns whether the age is below the lifetime (RFC 9111 section 4.2).
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.lifetime_s > self.age_s(now_ms)
    }

    /// Invalidates the response (RFC 9111 section 4.4): it must be validated before it is used.
    pub fn invalidate(&mut self) {
        self.flags = self.flags.set_if(Flags::NO_CACHE, true).set_if(Flags::NO_STALE, true);
        self.stale_while_revalidate_s = 0;
        self.stale_if_error_s = 0;
    }

    /// Makes a fresh response stale from now on, as a soft purge does. If stale use was allowed, it
    /// is allowed for the same time, counted from now. A stale response does not change.
    pub fn expire(&mut self, now_ms: u64) {
        self.lifetime_s = self.lifetime_s.min(self.age_s(now_ms));
    }

    /// Returns whether the response has a validator.
    pub fn has_validator(&self) -> bool {
        self.etag.is_some() || self.last_modified_s.is_some()
    }

    /// Returns whether the response has a strong validator, by which the origin can confirm that a
    /// range belongs to the same bytes.
    pub fn has_strong_validator(&self) -> bool {
        match self.etag {
            Some(etag) => etag.is_strong,
            None => self.flags.contains(Flags::MODIFIED_IS_STRONG),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{DATE, NOW_MS, stored_response};

    #[test]
    fn age_grows_by_whole_seconds_section_4_2_3() {
        let meta = stored_response(&format!("{DATE}Cache-Control: max-age=60\r\nAge: 30\r\n")).meta;
        assert_eq!(meta.age_s(NOW_MS), 30);
        assert_eq!(meta.age_s(NOW_MS + 999), 30);
        assert_eq!(meta.age_s(NOW_MS + 3000), 33);
        assert_eq!(meta.age_s(NOW_MS - 5000), 30, "the clock was set back");
        assert_eq!(meta.age_s(u64::MAX), u32::MAX);
        assert!(meta.is_fresh(NOW_MS + 29_999) && !meta.is_fresh(NOW_MS + 30_000));
        assert_eq!((meta.ttl_s(NOW_MS), meta.ttl_s(NOW_MS + 40_000)), (30, -10));
    }

    #[test]
    fn a_soft_purge_only_makes_stale() {
        let mut meta =
            stored_response("Cache-Control: max-age=60, stale-while-revalidate=9\r\n").meta;
        meta.expire(NOW_MS + 10_000);
        assert_eq!((meta.lifetime_s, meta.stale_while_revalidate_s), (10, 9));
        meta.expire(NOW_MS + 70_000);
        assert_eq!(meta.lifetime_s, 10);
    }
}
