//! The compressed forms of stored responses: objects of the cache that threads make.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use millrace_files::{Coding, CompressionLevel, Errno};
use millrace_http_cache::{HashKey, Key as CacheKey, KeyHasher, Meta};
use millrace_store::{Cache, Object};

use crate::files::kept_bytes::{KeptBytes, Loaded};
use crate::files::threads::PendingWork;

/// The compressed forms that a worker has begun to make, by their keys in the cache.
#[derive(Debug, Default)]
pub(crate) struct DerivedForms(HashMap<CacheKey, Attempts, BuildHasherDefault<KeyHasher>>);

/// The attempts to make a form.
#[derive(Debug)]
struct Attempts {
    /// How many are left. The cache may admit a large object only at a later request.
    left: u8,
    running: Option<PendingWork<Loaded>>,
}

/// Returns whether the header of a compressed form was made of the present header of the object,
/// which changes when the response is validated or purged softly.
pub(crate) fn has_header_of(derived: &Object, object: &Object) -> bool {
    let of = |meta: &Meta| (meta.response_ms, meta.lifetime_s, meta.initial_age_s, meta.status);
    of(derived.meta()) == of(object.meta())
}

/// Returns the key of the form of an object whose body is whole. It is that of these bytes.
pub(super) fn key_of(hash: &HashKey, object: &Object, coding: Coding) -> Option<CacheKey> {
    let bytes = object.body.bytes()?;
    let first = bytes.slices().next()?.id();
    let mut text = b"coded ".to_vec();
    text.push(coding as u8);
    for number in [first.generation, first.offset, bytes.len()] {
        text.extend_from_slice(&number.to_ne_bytes());
    }
    Some(CacheKey::from_text(hash, &text))
}

/// Compresses the body of an object into the cache.
pub(super) fn make(
    cache: &Arc<Cache>,
    key: CacheKey,
    object: &Object,
    (coding, level): (Coding, CompressionLevel),
    now_ms: u64,
) -> Result<Loaded, Errno> {
    // Another worker may have made it.
    if let Some(found) = cache.find(key) {
        return Ok(Loaded::Kept(found));
    }
    let bytes = object.body.bytes().expect("only a whole body has a key");
    let parts: Vec<&[u8]> = bytes.slices().map(|slice| &**slice).collect();
    let compressed = coding.compress(&parts, level);
    if compressed.len() as u64 >= bytes.len() {
        return Ok(Loaded::Incompressible);
    }
    let name = [&object.name, coding.suffix().as_bytes()].concat().into();
    let kept = KeptBytes { key, header: object.stored.in_coding(coding.name()), name, now_ms };
    kept.store_copy(cache, &compressed, || Ok(true))
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
            Some(Some(Ok(Loaded::Incompressible))) => attempts.left = 0,
            Some(Some(_)) => {}
        }
        attempts.running = None;
        let begins = attempts.left > 0;
        attempts.left = attempts.left.saturating_sub(1);
        begins
    }

    pub(super) fn set_running(&mut self, key: CacheKey, running: Option<PendingWork<Loaded>>) {
        if let Some(attempts) = self.0.get_mut(&key) {
            attempts.running = running;
        }
    }
}

/// The most forms of a worker: about 300 KB.
const FORMS_MAX: usize = 4096;

/// How often a form is made, if the cache does not keep it.
const ATTEMPTS_MAX: u8 = 3;
