//! What the verifier found right a moment ago: when a user begins, every worker asks for the same.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use millrace_engine::Instant;
use sha2::Sha256;

use super::expiring_cache::ExpiringCache;
use super::verifier::{VerifyOutcome, VerifyRequest, VerifyResult};

/// How long, and how many. Workers have memories of their own for everything beyond.
const MATCH_TTL: Duration = Duration::from_secs(60);
const MATCHES_MAX: usize = 1024;

/// Passwords that were right, as digests under a key of its own together with the hash that they
/// were compared with. What was wrong is not remembered: a question about a user who does not exist
/// must take as long as any.
pub struct PasswordCache {
    mac: Hmac<Sha256>,
    matches: ExpiringCache<()>,
}

impl PasswordCache {
    /// An empty one; `secret` is random.
    pub fn new(secret: [u8; 32]) -> Self {
        let mac = Hmac::new_from_slice(&secret).expect("a key may have any length");
        Self { mac, matches: ExpiringCache::default() }
    }

    /// The verdict. Takes as long as the hash, unless the same was right a moment ago.
    pub fn verify(&mut self, question: &VerifyRequest, now: Instant) -> VerifyResult {
        let mut mac = self.mac.clone();
        // No hash holds a zero.
        for part in [question.hash.text().as_bytes(), b"\0", &question.password] {
            mac.update(part);
        }
        let digest = mac.finalize().into_bytes().into();
        if !question.is_decoy && self.matches.get(&digest, now).is_some() {
            return question.result(VerifyOutcome::Match);
        }
        let verdict = question.verify();
        if verdict.outcome == VerifyOutcome::Match {
            self.matches.insert(digest, (), now + MATCH_TTL, MATCHES_MAX);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::PasswordHash;

    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_what_was_right_is_remembered_and_of_its_own_hash_alone() {
        let hash = |salt| {
            let text = bcrypt::hash_with_salt("secret", 4, [salt; 16]).unwrap().to_string();
            Arc::new(PasswordHash::parse(&text).unwrap())
        };
        let question = |hash: &Arc<PasswordHash>, password: &str, is_decoy| VerifyRequest {
            digest: [0; 32],
            client: None,
            hash: hash.clone(),
            password: password.into(),
            is_decoy,
        };
        let (mut memory, now) = (PasswordCache::new([7; 32]), Instant::default());
        let (first, second) = (hash(1), hash(2));
        for (hash, password, is_decoy, wanted, remembered) in [
            (&first, "secret", true, VerifyOutcome::Mismatch, 0),
            (&first, "wrong", false, VerifyOutcome::Mismatch, 0),
            (&first, "secret", false, VerifyOutcome::Match, 1),
            (&first, "secret", false, VerifyOutcome::Match, 1),
            (&first, "secret", true, VerifyOutcome::Mismatch, 1),
            (&second, "wrong", false, VerifyOutcome::Mismatch, 1),
            (&second, "secret", false, VerifyOutcome::Match, 2),
        ] {
            let verdict = memory.verify(&question(hash, password, is_decoy), now);
            assert_eq!((verdict.outcome, memory.matches.len()), (wanted, remembered));
        }
    }
}
