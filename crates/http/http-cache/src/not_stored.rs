//! Why a response is not stored.

/// Why a response is not stored. All of them are ordinary; what has to be done is to pass the response
/// on, and to drop what was stored before where [`Refusal::drops_stored`] says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotStored {
    /// The method's responses are not stored, RFC 9111 section 3.
    Method,
    /// The request had a body, which is in no key.
    RequestBody,
    /// The request had a field that changes its meaning and is in no key, [`Policy::unkeyed`].
    ///
    /// [`Policy::unkeyed`]: super::Policy::unkeyed
    RequestField,
    /// `no-store` in the request, section 5.2.1.5.
    RequestNoStore,
    /// The response is interim, or says something of this one request only.
    Status,
    /// `must-understand` with a status that is not understood, section 5.2.2.3.
    MustUnderstand,
    /// `no-store`, section 5.2.2.5.
    NoStore,
    /// `private`, section 5.2.2.7.
    Private,
    /// To a request with credentials, and nothing that allows it, section 3.5.
    Authorization,
    /// It sets a cookie, and the route does not keep such ones.
    SetCookie,
    /// It depends on more than the request's fields, section 4.1.
    VaryAny,
    /// It depends on more fields than are looked at.
    VaryTooMany,
    /// A part whose place is not certain, section 3.3 and RFC 9110 section 14.4.
    Range,
    /// It was cut short, and nothing would make the rest fit, section 3.3.
    Incomplete,
    /// It announces trailers, which are not stored.
    Trailer,
    /// Its header had line ends or folded values that another reader may take for something else.
    Ambiguous,
    /// It is not fresh, and could not be validated either.
    Useless,
    /// It is longer than what is kept.
    TooLong,
}

impl NotStored {
    /// Whether what is stored under the same key must not be used any more, after a response of this
    /// status that is not stored: it tells of the resource, and not of one request or a failure,
    /// and says that it is not to be cached, or is another one than what is stored.
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

    /// Whether it is about this one request or its response's arrival: another request for the same
    /// may well have a response that is stored.
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

    /// One word or two, for the `detail` of `Cache-Status` and for counters.
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
