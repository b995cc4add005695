//! Selecting stored responses, for operators.

use millrace_http_cache::{HashKey, TagHash, normalise_url, parse_uri_origin, tag_hash};

/// A set of stored responses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The responses of a URL, which has the normal form of cache keys. The keys may have further
    /// parts.
    Url(Vec<u8>),
    /// Those whose URL begins with this.
    Prefix(Vec<u8>),
    /// Those with a tag.
    Tag(TagHash),
    /// All of them.
    All,
}

impl Selector {
    /// Selects a URL; `None` if the text is not a URL.
    pub fn url(text: &[u8]) -> Option<Self> {
        normalise_url(text).map(Self::Url)
    }

    /// Selects all URLs with a prefix: a whole host, optionally followed by the beginning of a
    /// path. `None` if no URL begins so.
    pub fn prefix(text: &[u8]) -> Option<Self> {
        normalise_url(text).map(Self::Prefix)
    }

    /// Selects the responses with a member of `Surrogate-Key` or `Cache-Tag`.
    pub fn tag(hash: &HashKey, text: &[u8]) -> Self {
        Self::Tag(tag_hash(hash, None, text))
    }

    /// Selects the responses of a site with a member of `Cache-Groups` (RFC 9875); `None` if the
    /// text is not a site.
    pub fn group(hash: &HashKey, site: &[u8], text: &[u8]) -> Option<Self> {
        parse_uri_origin(site).map(|site| Self::Tag(tag_hash(hash, Some(&site), text)))
    }

    /// Returns whether [`Selector::group`] accepts this site.
    pub fn is_site(site: &[u8]) -> bool {
        parse_uri_origin(site).is_some()
    }

    /// Returns whether a response with this key text and these tags is selected.
    pub(super) fn matches(&self, name: &[u8], tags: &[TagHash]) -> bool {
        match self {
            // A line feed separates the URL from the rest of a key.
            Self::Url(url) => {
                name.strip_prefix(&url[..]).is_some_and(|rest| matches!(rest, [] | [b'\n', ..]))
            }
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Tag(tag) => tags.contains(tag),
            Self::All => true,
        }
    }
}
