//! Tags by which stored responses are purged besides their URI: `Surrogate-Key` and `Cache-Tag` for
//! operators, and the groups of RFC 9875, which origins use too.

use std::hash::Hasher;
use std::sync::Arc;

use millrace_http1::{FieldName, RequestHead, ResponseHead, split_tokens};
use siphasher::sip128::Hasher128;

use super::field_lines::reparse_lines;
use super::key::{HashKey, Space, UriOrigin};
use super::key_sink::KeySink;
use super::limits::{TAG_BYTES_MAX, TAGS_MAX};
use super::structured::{combined, strings};

/// A tag of a response.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Tag {
    /// From `Surrogate-Key` or `Cache-Tag`: an operator's tag, in one name space for all origins.
    Key(Vec<u8>),
    /// From `Cache-Groups`: a group of its origin (RFC 9875 section 2.1). An operator may purge it
    /// by its name as well.
    Group(Vec<u8>),
}

impl Tag {
    /// Returns the tag as written in the field.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Key(text) | Self::Group(text) => text,
        }
    }
}

/// The hash of a tag, by which responses are located.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TagHash(pub u128);

/// Returns the distinct tags of a response: at most 128, of at most 256 bytes each. Others are
/// ignored.
///
/// Members are separated by white space in `Surrogate-Key`, and by commas in `Cache-Tag`.
/// `Cache-Groups` is a list of strings (RFC 9875 section 2), which is ignored as a whole if it is
/// malformed. Its groups come first, since the RFC guarantees 32 of them.
pub fn tags(response: &ResponseHead) -> Vec<Tag> {
    let mut tags: Vec<Tag> = Vec::new();
    // The elements of `tags` in sorted order: finding a duplicate costs a search among at most 128.
    let mut sorted: Vec<(bool, Vec<u8>)> = Vec::new();
    let mut add = |is_group: bool, text: &[u8]| {
        if !(1..=TAG_BYTES_MAX).contains(&text.len()) || tags.len() == TAGS_MAX {
            return;
        }
        let place =
            sorted.binary_search_by(|(kind, known)| (*kind, &known[..]).cmp(&(is_group, text)));
        if let Err(at) = place {
            sorted.insert(at, (is_group, text.to_vec()));
            tags.push(if is_group { Tag::Group(text.to_vec()) } else { Tag::Key(text.to_vec()) });
        }
    };
    let groups = parse_string_list(response, FieldName::CacheGroups);
    groups.iter().for_each(|group| add(true, group));
    for value in response.values(FieldName::SurrogateKey) {
        value.split(|byte| byte.is_ascii_whitespace()).for_each(|member| add(false, member));
    }
    for value in response.values(FieldName::CacheTag) {
        split_tokens(value).for_each(|member| add(false, member));
    }
    tags
}

/// Returns the hashes of a response's tags: one for each operator's tag, and two for each group. An
/// operator purges a group of an origin wherever it is stored ([`tag_hash`]); an origin invalidates
/// it in its own service only ([`group_hash`]). `site` is the origin in the cache key.
pub fn tag_hashes(
    hash: &HashKey,
    space: &Space,
    site: Option<&UriOrigin<'_>>,
    response: &ResponseHead,
) -> Arc<[TagHash]> {
    let hashes = |tag: Tag| match (&tag, site) {
        (Tag::Group(group), Some(site)) => {
            let of_service = group_hash(hash, space, site, group);
            [Some(tag_hash(hash, Some(site), group)), Some(of_service)]
        }
        (Tag::Key(text) | Tag::Group(text), _) => [Some(tag_hash(hash, None, text)), None],
    };
    tags(response).into_iter().flat_map(hashes).flatten().collect()
}

/// Returns the hashes of the tags of a stored response whose header `head` a later response has
/// updated; `None` if the later response has no tags.
pub fn updated_tags(
    hash: &HashKey,
    space: &Space,
    site: Option<&UriOrigin<'_>>,
    response: &ResponseHead,
    head: &[u8],
) -> Option<Arc<[TagHash]>> {
    let names = [FieldName::CacheGroups, FieldName::SurrogateKey, FieldName::CacheTag];
    let has_tags = names.into_iter().any(|name| response.find(name).is_some());
    has_tags.then(|| tag_hashes(hash, space, site, &reparse_lines(head)))
}

/// Returns the groups of the origin that a response invalidates (RFC 9875 section 3): with any
/// status, but not with a safe method. Responses that are invalidated in this way invalidate no
/// others.
pub fn group_invalidations(request: &RequestHead, response: &ResponseHead) -> Vec<Vec<u8>> {
    if request.method().is_safe() {
        return Vec::new();
    }
    let mut groups = parse_string_list(response, FieldName::CacheGroupInvalidation);
    groups.truncate(TAGS_MAX);
    groups
}

/// Returns the hash by which an operator locates responses. `site` is `None` for an operator's tag,
/// and the origin of the group for a group.
pub fn tag_hash(hash: &HashKey, site: Option<&UriOrigin<'_>>, text: &[u8]) -> TagHash {
    let mut sink = hash.hasher();
    sink.write_u8(u8::from(site.is_some()));
    if let Some(site) = site {
        site.put(&mut sink);
        sink.put(b"\n");
    }
    sink.put(text);
    TagHash(sink.finish128().as_u128())
}

/// Returns the hash by which an origin locates the responses of a group: those of the same origin
/// (RFC 9875 section 2.1) and the same service, because two services may use different servers for
/// one origin.
pub fn group_hash(hash: &HashKey, space: &Space, site: &UriOrigin<'_>, group: &[u8]) -> TagHash {
    let mut sink = hash.hasher();
    sink.write_u8(2);
    space.put(&mut sink);
    sink.put(b"\n");
    site.put(&mut sink);
    sink.put(b"\n");
    sink.put(group);
    TagHash(sink.finish128().as_u128())
}

fn parse_string_list(response: &ResponseHead, name: FieldName) -> Vec<Vec<u8>> {
    combined(response.values(name)).and_then(|value| strings(&value)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use millrace_http1::{Authority, Scheme};

    use super::super::test_messages::{HASH, request, response};
    use super::*;

    #[test]
    fn tags_are_read_and_bounded() {
        let key = |text: &str| Tag::Key(text.as_bytes().to_vec());
        let group = |text: &str| Tag::Group(text.as_bytes().to_vec());
        let fields = "Surrogate-Key: a  b\tc\r\nsurrogate-key: a\r\nCache-Tag: d e, f,, a\r\n\
                      Cache-Groups: \"a\";x, \"g h\"\r\nCache-Groups: \"i\"\r\n";
        let expected = ["a", "b", "c", "d e", "f"].map(key).to_vec();
        let expected = [["a", "g h", "i"].map(group).to_vec(), expected].concat();
        assert_eq!(tags(&response(200, fields)), expected);
        let long = format!("Cache-Tag: {}, b\r\n", "a".repeat(257));
        assert_eq!(tags(&response(200, &long)), [key("b")]);
        let many = (0..200).map(|at| format!("{at} ")).collect::<String>();
        assert_eq!(tags(&response(200, &format!("Surrogate-Key: {many}\r\n"))).len(), 128);
    }

    #[test]
    fn groups_are_a_list_or_nothing_rfc_9875_section_2() {
        for bad in ["a", "\"a\", b", "\"a", "1"] {
            assert!(tags(&response(200, &format!("Cache-Groups: {bad}\r\n"))).is_empty(), "{bad}");
        }
    }

    #[test]
    fn groups_are_invalidated_by_unsafe_methods_rfc_9875_section_3() {
        let response = response(200, "Cache-Group-Invalidation: \"a\", \"b\"\r\n");
        let of = |method: &str| {
            group_invalidations(&request(&format!("{method} / HTTP/1.1"), ""), &response)
        };
        assert_eq!(of("POST"), [b"a", b"b"]);
        assert!(of("GET").is_empty() && of("HEAD").is_empty());
    }

    #[test]
    fn groups_are_of_their_origin_rfc_9875_section_2_1() {
        let hash = |host: Option<&str>| {
            let site = host.map(|host| UriOrigin {
                scheme: Scheme::Http,
                authority: Authority::parse(host.as_bytes()).unwrap(),
            });
            tag_hash(&HASH, site.as_ref(), b"a")
        };
        assert_eq!(hash(Some("A.example:80")), hash(Some("a.example")));
        assert_ne!(hash(Some("a.example")), hash(Some("b.example")));
        assert_ne!(hash(Some("a.example")), hash(None));
    }

    #[test]
    fn a_group_is_invalidated_in_one_service_and_purged_in_all() {
        let response = response(200, "Cache-Groups: \"a\"\r\nCache-Tag: t\r\n");
        let authority = Authority::parse(b"example.com").unwrap();
        let site = UriOrigin { scheme: Scheme::Https, authority };
        let of = |space: &str| tag_hashes(&HASH, &Space::named(space), Some(&site), &response);
        let (one, other) = (of("one"), of("other"));
        assert_eq!((one.len(), one[0], one[2]), (3, other[0], other[2]));
        assert_ne!(one[1], other[1]);
        assert_eq!(one[0], tag_hash(&HASH, Some(&site), b"a"));
        assert_eq!(one[1], group_hash(&HASH, &Space::named("one"), &site, b"a"));
        let plain = UriOrigin { scheme: Scheme::Http, authority };
        assert_ne!(one[0], tag_hash(&HASH, Some(&plain), b"a"));
    }
}
