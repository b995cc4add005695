//! Destinations for the text of a key: memory, or a hasher.

use std::hash::Hasher;

use siphasher::sip128::SipHasher13;

/// A destination for the text of a key.
pub(super) trait KeySink {
    fn put(&mut self, bytes: &[u8]);
}

impl KeySink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl KeySink for SipHasher13 {
    fn put(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }
}
