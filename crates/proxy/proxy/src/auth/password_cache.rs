//! A cache of right passwords at the verifier. When a user becomes active, every worker submits a
//! request for the same password.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use millrace_engine::Instant;
use sha2::Sha256;

use super::expiring_cache::ExpiringCache;
use super::verifier::{VerifyOutcome, VerifyRequest, VerifyResult};

/// How long a right password is cached. Workers have longer-lived caches of their own.
const MATCH_TTL: Duration = Duration::from_secs(60);
/// The most right passwords in the cache. Above it, the oldest are removed.
const MATCHES_MAX: usize = 1024;

/// A cache of right passwords. The key of an entry is a digest of the password and the hash with
/// which it was compared, under a secret of this cache. Wrong passwords are not cached, because
/// the time of a cached refusal could show whether the user exists.
pub struct PasswordCache {
    mac: Hmac<Sha256>,
    matches: ExpiringCache<()>,
}

impl PasswordCache {
    /// Creates an empty cache. `secret` is random.
    pub fn new(secret: [u8; 32]) -> Self {
        let mac = Hmac::new_from_slice(&secret).expect("a key may have any length");
        Self { mac, matches: ExpiringCache::default() }
    }

    /// Verifies a request. Takes as long as the slow hash, unless the same password was right
    /// within the last minute.
    pub fn verify(&mut self, request: &VerifyRequest, now: Instant) -> VerifyResult {
        let mut mac = self.mac.clone();
        // A zero separates the parts, because no hash contains one.
        for part in [request.hash.text().as_bytes(), b"\0", &request.password] {
            mac.update(part);
        }
        let digest = mac.finalize().into_bytes().into();
        if !request.is_decoy && self.matches.get(&digest, now).is_some() {
            return request.result(VerifyOutcome::Match);
        }
        let result = request.verify();
        if result.outcome == VerifyOutcome::Match {
            self.matches.insert(digest, (), now + MATCH_TTL, MATCHES_MAX);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::PasswordHash;

    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_right_passwords_are_cached_and_only_for_their_own_hash() {
        let hash = |salt| {
            let text = bcrypt::hash_with_salt("secret", 4, [salt; 16]).unwrap().to_string();
            Arc::new(PasswordHash::parse(&text).unwrap())
        };
        let request = |hash: &Arc<PasswordHash>, password: &str, is_decoy| VerifyRequest {
            digest: [0; 32],
            client: None,
            hash: hash.clone(),
            password: password.into(),
            is_decoy,
        };
        let (mut cache, now) = (PasswordCache::new([7; 32]), Instant::default());
        let (first, second) = (hash(1), hash(2));
        for (hash, password, is_decoy, wanted, cached) in [
            (&first, "secret", true, VerifyOutcome::Mismatch, 0),
            (&first, "wrong", false, VerifyOutcome::Mismatch, 0),
            (&first, "secret", false, VerifyOutcome::Match, 1),
            (&first, "secret", false, VerifyOutcome::Match, 1),
            (&first, "secret", true, VerifyOutcome::Mismatch, 1),
            (&second, "wrong", false, VerifyOutcome::Mismatch, 1),
            (&second, "secret", false, VerifyOutcome::Match, 2),
        ] {
            let result = cache.verify(&request(hash, password, is_decoy), now);
            assert_eq!((result.outcome, cache.matches.len()), (wanted, cached));
        }
    }
}
