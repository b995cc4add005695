//! Conversion between objects in memory and responses on disk.

use std::sync::Arc;

use millrace_body::Body;
use millrace_disk::{ResponseId, StoredHeader, StoredResponse};
use millrace_http_cache::{
    CachedHeader, HashKey, Key, Meta, TagHash, VariantKey, VaryNames, tag_hash,
};

use crate::object::Object;

/// Returns the id of a variant among the responses of a key.
pub(super) fn id_of(key: Key, variant: Option<&VariantKey>) -> ResponseId {
    // 0 is the response that does not vary.
    ResponseId { key, variant: variant.map_or(0, |variant| variant.exact.max(1)) }
}

/// Returns the tag by which responses of a URL are purged if their keys have more than the URL. It
/// cannot collide with other tags, because those contain no line feed.
pub(super) fn url_tag(hash: &HashKey, url: &[u8]) -> TagHash {
    tag_hash(hash, None, &[b"\n", url].concat())
}

/// Returns the additional tag of a response on a disk, if its key has more than the URL.
fn url_tag_of(hash: &HashKey, name: &[u8]) -> Option<TagHash> {
    let end = name.iter().position(|byte| *byte == b'\n')?;
    Some(url_tag(hash, &name[..end]))
}

/// Converts an object for writing; `None` if it is not whole.
pub(super) fn to_disk(key: Key, object: &Object, hash: &HashKey) -> Option<StoredResponse> {
    let body = object.body.bytes().filter(|_| object.meta().stored_range.is_none())?.clone();
    let tags = match url_tag_of(hash, &object.name) {
        Some(tag) => object.tags.iter().copied().chain([tag]).collect(),
        None => object.tags.clone(),
    };
    Some(StoredResponse {
        id: id_of(key, object.variant.as_ref()),
        variant: object.variant,
        vary: object.stored.vary.as_ref().map(|names| names.as_bytes().into()),
        meta: object.meta().to_bytes(),
        header: object.header().into(),
        name: object.name.clone(),
        tags,
        body,
    })
}

/// Converts a response that was read; `None` if another version of millrace wrote it.
pub(super) fn from_disk(header: &StoredHeader, body: Arc<Body>, hash: &HashKey) -> Option<Object> {
    let meta = Meta::from_bytes(&header.meta, header.header.len())?;
    let vary = match &*header.vary {
        [] => None,
        names => Some(VaryNames::from_bytes(names)?),
    };
    if vary.is_some() != header.variant.is_some() || meta.stored_range.is_some() {
        return None;
    }
    let mut tags = &*header.tags;
    if let (Some((last, others)), Some(own)) = (tags.split_last(), url_tag_of(hash, &header.name))
        && *last == own
    {
        tags = others;
    }
    Some(Object {
        stored: CachedHeader { meta, head: header.header.to_vec(), vary },
        variant: header.variant,
        declared: Some(header.body_bytes),
        body,
        name: (*header.name).into(),
        tags: tags.into(),
        is_from_disk: true,
    })
}
