//! The compressed forms of stored responses: objects of the cache that threads make.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use millrace_files::{Coding, CompressionLevel, Errno};
use millrace_http_cache::{CachedHeader, HashKey, Key as CacheKey, KeyHasher, Meta};
use millrace_store::{Cache, Object};

use crate::files::kept_bytes::{KeptBytes, Loaded};
use crate::files::threads::PendingWork;

/// The compressed forms that a worker has begun to make, by their keys in the cache.
#[derive(Debug, Default)]
pub(crate) struct DerivedForms(HashMap<CacheKey, Attempts, BuildHasherDefault<KeyHasher>>);

/// The attempts to make a form.
#[derive(Debug)]
struct Attempts {
    /// How many are left until the cache has kept the form. It may admit a large object only at a
    /// later request.
    left: u8,
    running: Option<PendingWork<Attempt>>,
}

/// The result of an attempt. It has no reference to the object, which would keep its memory after
/// it was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attempt {
    Kept,
    NotKept,
    /// The compressed bytes are not shorter.
    Incompressible,
}

/// Returns whether the header of a compressed form was made of the present header of the object,
/// which changes when the response is validated or purged softly.
pub(crate) fn has_header_of(derived: &Object, object: &Object) -> bool {
    let of = |meta: &Meta| (meta.response_ms, meta.lifetime_s, meta.initial_age_s, meta.status);
    of(derived.meta()) == of(object.meta())
}

/// Returns the key of the form of an object whose body is whole. It is that of these bytes.
pub(super) fn key_of(
    hash: &HashKey,
    object: &Object,
    (coding, level): (Coding, CompressionLevel),
) -> Option<CacheKey> {
    let bytes = object.body.bytes()?;
    let first = bytes.slices().next()?.id();
    let mut text = b"coded ".to_vec();
    text.extend_from_slice(&[coding as u8, level as u8]);
    for number in [first.generation, first.offset, bytes.len()] {
        text.extend_from_slice(&number.to_ne_bytes());
    }
    Some(CacheKey::from_text(hash, &text))
}

/// Returns the header of a form. The suffix of its entity tag names the level, too, because the
/// bytes depend on it.
pub(super) fn coded_header(
    stored: &CachedHeader,
    (coding, level): (Coding, CompressionLevel),
) -> CachedHeader {
    let name = coding.name();
    match level {
        CompressionLevel::Default => stored.in_coding(name, name),
        CompressionLevel::Fast => stored.in_coding(name, &format!("{name}-fast")),
        CompressionLevel::Best => stored.in_coding(name, &format!("{name}-best")),
    }
}

/// Compresses the body of an object into the cache.
pub(super) fn make(
    cache: &Arc<Cache>,
    key: CacheKey,
    object: &Object,
    (coding, level): (Coding, CompressionLevel),
    now_ms: u64,
) -> Result<Attempt, Errno> {
    // Another worker may have made it.
    if cache.find(key).is_some() {
        return Ok(Attempt::Kept);
    }
    let bytes = object.body.bytes().expect("only a whole body has a key");
    let parts: Vec<&[u8]> = bytes.slices().map(|slice| &**slice).collect();
    let compressed = coding.compress(&parts, level);
    if compressed.len() as u64 >= bytes.len() {
        return Ok(Attempt::Incompressible);
    }
    let name = [&object.name, coding.suffix().as_bytes()].concat().into();
    let kept =
        KeptBytes { key, header: coded_header(&object.stored, (coding, level)), name, now_ms };
    Ok(match kept.store_copy(cache, &compressed, || Ok(true))? {
        Loaded::Kept(_) => Attempt::Kept,
        Loaded::NotKept | Loaded::Incompressible => Attempt::NotKept,
    })
}

impl DerivedForms {
    /// Returns whether an attempt to make a form should begin now.
    pub(super) fn begin(&mut self, key: CacheKey) -> bool {
        if self.0.len() >= FORMS_MAX {
            self.0.clear();
        }
        let attempts = self.0.entry(key).or_insert(Attempts { left: ATTEMPTS_MAX, running: None });
        match attempts.running.as_ref().map(PendingWork::take) {
            None => {}
            Some(None) => return false,
            Some(Some(Ok(Attempt::Incompressible))) => attempts.left = 0,
            // It was evicted since.
            Some(Some(Ok(Attempt::Kept))) => attempts.left = ATTEMPTS_MAX,
            Some(Some(Ok(Attempt::NotKept) | Err(_))) => {}
        }
        attempts.running = None;
        attempts.left > 0
    }

    /// Notes that a thread makes the form.
    pub(super) fn set_running(&mut self, key: CacheKey, running: PendingWork<Attempt>) {
        if let Some(attempts) = self.0.get_mut(&key) {
            attempts.left -= 1;
            attempts.running = Some(running);
        }
    }
}

/// The most forms of a worker: about 300 KB.
const FORMS_MAX: usize = 4096;

/// How often a form is made, if the cache never keeps it.
const ATTEMPTS_MAX: u8 = 3;
