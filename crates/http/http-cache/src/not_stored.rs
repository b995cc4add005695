//! The reasons why a response is not stored.

/// The reason why a response is not stored. The response is forwarded in each case. The response
/// stored before is removed if [`NotStored::drops_stored`] returns true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStored {
    /// Responses to this method are not stored (RFC 9111 section 3).
    Method,
    /// The request had a body, which is in no key.
    RequestBody,
    /// The request had a field that may change the response and is in no key:
    /// [`CachePolicy::unkeyed`], an upgrade to another protocol, `If-Match`, or
    /// `If-Unmodified-Since`.
    ///
    /// [`CachePolicy::unkeyed`]: super::CachePolicy::unkeyed
    RequestField,
    /// The request has `no-store` (section 5.2.1.5).
    RequestNoStore,
    /// The response is interim, or concerns this one request only.
    Status,
    /// The response has `must-understand` and a status that is not understood (section 5.2.2.3).
    MustUnderstand,
    /// The response has `no-store` (section 5.2.2.5).
    NoStore,
    /// The response has `private` (section 5.2.2.7).
    Private,
    /// The request has credentials, and the response does not permit storing (section 3.5).
    Authorization,
    /// The response sets a cookie, and the route does not store such responses.
    SetCookie,
    /// The response depends on more than the request's fields (section 4.1).
    VaryAny,
    /// The response depends on too many fields.
    VaryTooMany,
    /// The range of a partial response is uncertain (section 3.3, RFC 9110 section 14.4).
    Range,
    /// The response is incomplete and cannot be completed (section 3.3).
    Incomplete,
    /// The response announces trailers, which are not stored.
    Trailer,
    /// The header had line ends or folded values that another implementation may read differently.
    Ambiguous,
    /// The response is not fresh, has no validator and may not be used stale; or nothing permits
    /// storing it: an explicit lifetime, `public`, or a heuristically cacheable status.
    Useless,
    /// The response is longer than the limit.
    TooLong,
}

impl NotStored {
    /// Returns whether the response stored under the same key must be removed, because a response
    /// with this status arrived and is not stored for this reason. It is removed if the new
    /// response describes the resource, rather than one request or a failure, and forbids caching
    /// or differs from the stored one.
    pub fn drops_stored(self, status: u16) -> bool {
        let is_of_resource = matches!(status, 200..=399 | 404 | 410);
        let is_final = matches!(
            self,
            Self::NoStore
                | Self::Private
                | Self::VaryAny
                | Self::VaryTooMany
                | Self::MustUnderstand
                | Self::Useless
        );
        is_of_resource && is_final
    }

    /// Returns whether the reason concerns only this request or the transfer of its response, so
    /// that the response to another request for the same key may be stored.
    pub fn concerns_request(self) -> bool {
        matches!(
            self,
            Self::Method
                | Self::RequestBody
                | Self::RequestField
                | Self::RequestNoStore
                | Self::Authorization
                | Self::Range
                | Self::Incomplete
        )
    }

    /// Returns a short name for the `detail` of `Cache-Status` and for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::RequestBody => "request-body",
            Self::RequestField => "request-field",
            Self::RequestNoStore => "request-no-store",
            Self::Status => "status",
            Self::MustUnderstand => "must-understand",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::VaryAny => "vary-any",
            Self::VaryTooMany => "vary-too-many",
            Self::Range => "range",
            Self::Incomplete => "incomplete",
            Self::Trailer => "trailer",
            Self::Ambiguous => "ambiguous",
            Self::Useless => "not-fresh",
            Self::TooLong => "size",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_drops_nothing() {
        assert!(NotStored::NoStore.drops_stored(200) && NotStored::Useless.drops_stored(404));
        for status in [400, 403, 429, 500, 503] {
            assert!(!NotStored::NoStore.drops_stored(status), "{status}");
        }
        for refusal in [NotStored::RequestNoStore, NotStored::Authorization, NotStored::Range] {
            assert!(!refusal.drops_stored(200), "{refusal:?}");
        }
    }
}
