//! What is known of a stored response in numbers, so that a hit is decided without reading text.

/// Everything that decides about the reuse of a stored response. Made by [`store`], [`freshen`] and
/// [`combine`]; kept beside the head that it was made with, of which it knows some places.
///
/// [`store`]: super::store()
/// [`freshen`]: super::freshen()
/// [`combine`]: super::combine
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    /// When it was received, milliseconds since 1970.
    pub response_ms: u64,
    /// What it says of its own time, or else when it was received; seconds since 1970.
    pub date_s: u64,
    /// When it was modified, seconds since 1970.
    pub last_modified_s: Option<u64>,
    /// For how long it is fresh, RFC 9111 section 4.2.1.
    pub lifetime_s: u32,
    /// How old it was when it was received: `corrected_initial_age`, section 4.2.3.
    pub initial_age_s: u32,
    /// For how long after its lifetime it may be used while it is validated, RFC 5861 section 3.
    pub stale_while_revalidate_s: u32,
    /// For how long after its lifetime it may stand in for an error, RFC 5861 section 4.
    pub stale_if_error_s: u32,
    /// Its entity tag.
    pub etag: Option<EtagSpan>,
    /// Its status, 200 to 599.
    pub status: u16,
    /// The rest in bits.
    pub flags: Flags,
    /// Where in its head the field lines begin, after the status line.
    pub lines_at: u32,
    /// Which part of the representation it has; `None`: all.
    pub stored_range: Option<StoredRange>,
    /// A hash of the request's `Range` that it answered as it is; 0 for none.
    pub range_tag: u64,
}

/// Where in a stored head the entity tag is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EtagSpan {
    /// From the start of the head.
    pub start: u32,
    /// How many bytes, with quotes and `W/`.
    pub len: u32,
    /// Whether it is a strong validator.
    pub is_strong: bool,
}

/// A part of a representation, RFC 9110 section 14.4: `first <= last`, and `last` is before the
/// complete length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredRange {
    /// The position of its first byte.
    pub first: u64,
    /// The position of its last byte.
    pub last: u64,
    /// The length of the whole representation, where it is known.
    pub complete: Option<u64>,
}

/// What is yes or no about a stored response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(u8);

impl Flags {
    /// Must be validated at each use: `no-cache`, or it was invalidated.
    pub const NO_CACHE: Self = Self(1);
    /// Must not be used stale, RFC 9111 section 4.2.4.
    pub const NO_STALE: Self = Self(2);
    /// Does not change while it is fresh, RFC 8246.
    pub const IMMUTABLE: Self = Self(4);
    /// Its `Last-Modified` is a strong validator, RFC 9110 section 8.8.2.2.
    pub const MODIFIED_IS_STRONG: Self = Self(8);
    /// It names the fields that it depends on.
    pub const VARIES: Self = Self(16);

    /// It was received as HTTP/1.0, which Via tells whoever gets it (RFC 9110 section 7.6.3).
    pub const RECEIVED_AS_HTTP10: Self = Self(32);

    const ALL: u8 = 63;

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    /// Takes bits back; `None` where one has no meaning.
    pub(super) fn from_bits(bits: u8) -> Option<Self> {
        (bits & !Self::ALL == 0).then_some(Self(bits))
    }

    /// Whether all of these are set.
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets or leaves them.
    #[must_use]
    pub const fn set_if(self, flags: Self, is_set: bool) -> Self {
        if is_set { Self(self.0 | flags.0) } else { self }
    }
}

impl Meta {
    /// How old it is now in whole seconds, RFC 9111 section 4.2.3: what `Age` says.
    pub fn age_s(&self, now_ms: u64) -> u32 {
        let resident_s = now_ms.saturating_sub(self.response_ms) / 1000;
        u32::try_from(resident_s).unwrap_or(u32::MAX).saturating_add(self.initial_age_s)
    }

    /// For how many seconds it stays fresh; negative where it is stale: the `ttl` of RFC 9211.
    pub fn ttl_s(&self, now_ms: u64) -> i64 {
        i64::from(self.lifetime_s) - i64::from(self.age_s(now_ms))
    }

    /// Whether it is younger than its lifetime, RFC 9111 section 4.2.
    pub fn is_fresh(&self, now_ms: u64) -> bool {
        self.lifetime_s > self.age_s(now_ms)
    }

    /// Marks it as invalid, RFC 9111 section 4.4: nobody gets it before it was validated.
    pub fn invalidate(&mut self) {
        self.flags = self.flags.set_if(Flags::NO_CACHE, true).set_if(Flags::NO_STALE, true);
        self.stale_while_revalidate_s = 0;
        self.stale_if_error_s = 0;
    }

    /// Makes it stale from now on, as a soft purge does. It may be used stale where that was
    /// allowed, counted from now.
    pub fn expire(&mut self, now_ms: u64) {
        self.lifetime_s = self.lifetime_s.min(self.age_s(now_ms));
    }

    /// Whether it has anything to be validated by.
    pub fn has_validator(&self) -> bool {
        self.etag.is_some() || self.last_modified_s.is_some()
    }

    /// Whether the origin can say of a part whether it is of these very bytes.
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
        assert_eq!(meta.age_s(NOW_MS - 5000), 30, "a clock that went back");
        assert_eq!(meta.age_s(u64::MAX), u32::MAX);
        assert!(meta.is_fresh(NOW_MS + 29_999) && !meta.is_fresh(NOW_MS + 30_000));
        assert_eq!((meta.ttl_s(NOW_MS), meta.ttl_s(NOW_MS + 40_000)), (30, -10));
    }

    #[test]
    fn a_soft_purge_makes_stale_and_no_more() {
        let mut meta =
            stored_response("Cache-Control: max-age=60, stale-while-revalidate=9\r\n").meta;
        meta.expire(NOW_MS + 10_000);
        assert_eq!((meta.lifetime_s, meta.stale_while_revalidate_s), (10, 9));
        meta.expire(NOW_MS + 70_000);
        assert_eq!(meta.lifetime_s, 10);
    }
}
