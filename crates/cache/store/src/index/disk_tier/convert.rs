//! A stored answer as memory has it, and as a disk has it.

use std::sync::Arc;

use millrace_body::Body;
use millrace_disk::{ResponseId, StoredHeader, StoredResponse};
use millrace_http_cache::{HashKey, Key, Meta, Stored, TagHash, VariantKey, VaryNames, tag_hash};

use crate::object::Object;

/// Which of the answers under a key it is.
pub(super) fn id_of(key: Key, variant: Option<&VariantKey>) -> ResponseId {
    // 0 is the one of those that do not vary.
    ResponseId { key, variant: variant.map_or(0, |variant| variant.exact.max(1)) }
}

/// What answers of a URL are purged by where there is more in their keys: no tag of theirs has a
/// line end.
pub(super) fn url_tag(hash: &HashKey, url: &[u8]) -> TagHash {
    tag_hash(hash, None, &[b"\n", url].concat())
}

/// The tag that an answer has on a disk besides its own.
fn url_tag_of(hash: &HashKey, name: &[u8]) -> Option<TagHash> {
    let end = name.iter().position(|byte| *byte == b'\n')?;
    Some(url_tag(hash, &name[..end]))
}

/// What is written of an object; `None` where it is not whole.
pub(super) fn to_disk(key: Key, object: &Object, hash: &HashKey) -> Option<StoredResponse> {
    let body = object.body.bytes().filter(|_| object.meta().extent.is_none())?.clone();
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

/// What was read, with its body; `None` where nothing that we know wrote it.
pub(super) fn from_disk(head: &StoredHeader, body: Arc<Body>, hash: &HashKey) -> Option<Object> {
    let meta = Meta::from_bytes(&head.meta, head.header.len())?;
    let vary = match &*head.vary {
        [] => None,
        names => Some(VaryNames::from_bytes(names)?),
    };
    if vary.is_some() != head.variant.is_some() || meta.extent.is_some() {
        return None;
    }
    let mut tags = &*head.tags;
    if let (Some((last, others)), Some(own)) = (tags.split_last(), url_tag_of(hash, &head.name))
        && *last == own
    {
        tags = others;
    }
    Some(Object {
        stored: Stored { meta, head: head.header.to_vec(), vary },
        variant: head.variant,
        declared: Some(head.body_bytes),
        body,
        name: (*head.name).into(),
        tags: tags.into(),
        is_from_disk: true,
    })
}
