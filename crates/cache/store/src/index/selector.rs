//! Which of the stored answers an operator means.

use millrace_http_cache::{HashKey, TagHash, tag_hash, written_site, written_url};

/// Which of the stored answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// Those of a URL, as keys have it, whatever else is in their keys.
    Url(Vec<u8>),
    /// Those of all URLs that begin so.
    Prefix(Vec<u8>),
    /// Those that carry a tag.
    Tag(TagHash),
    /// All of them.
    All,
}

impl Selector {
    /// Those of a URL as people write it; `None`: it is none.
    pub fn url(text: &[u8]) -> Option<Self> {
        written_url(text).map(Self::Url)
    }

    /// Those of all URLs that begin so: with a whole host, and then with a part of a path.
    /// `None`: no URL does.
    pub fn prefix(text: &[u8]) -> Option<Self> {
        written_url(text).map(Self::Prefix)
    }

    /// Those with a member of `Surrogate-Key` or `Cache-Tag`.
    pub fn tag(hash: &HashKey, text: &[u8]) -> Self {
        Self::Tag(tag_hash(hash, None, text))
    }

    /// Those of a site with a member of `Cache-Groups`, RFC 9875; `None`: it is no site.
    pub fn group(hash: &HashKey, site: &[u8], text: &[u8]) -> Option<Self> {
        written_site(site).map(|site| Self::Tag(tag_hash(hash, Some(&site), text)))
    }

    /// Whether this is a site as [`Which::group`] takes it.
    pub fn is_site(site: &[u8]) -> bool {
        written_site(site).is_some()
    }

    /// Whether an answer with the text of this key and these tags is one of them.
    pub(super) fn matches(&self, name: &[u8], tags: &[TagHash]) -> bool {
        match self {
            // What else is in a key comes after the end of a line.
            Self::Url(url) => {
                name.strip_prefix(&url[..]).is_some_and(|rest| matches!(rest, [] | [b'\n', ..]))
            }
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::Tag(tag) => tags.contains(tag),
            Self::All => true,
        }
    }
}
