//! Session tickets: sealed session state that clients keep and return.
//!
//! The owner makes the keys, rotates them, and passes them to the settings of each worker. A ticket
//! opens only for the service that sealed it, because each service derives its own keys. Rustls
//! resumes a session only for the name (SNI) that it began with.

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use rustls::crypto::SecureRandom;
use rustls::server::ProducesTickets;

use crate::clock::Clock;
use crate::error::{TlsError, TlsErrorKind};
use crate::provider::Provider;

/// The most ticket keys in use: the current one and two older ones.
pub const TICKET_KEYS_MAX: usize = 3;
/// How long a session can be resumed. Keys should be rotated at least twice in this time.
pub const TICKET_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The keys of tickets, at most [`TICKET_KEYS_MAX`]. The first one seals, all of them open. Without
/// keys no session is resumed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TicketKeys(Vec<TicketKey>);

#[derive(Clone, PartialEq, Eq)]
struct TicketKey {
    /// The name by which a ticket refers to its key. It is not secret.
    name: [u8; NAME_BYTES],
    secret: [u8; SECRET_BYTES],
}

/// Why a file of ticket keys cannot be used. The message completes a sentence that names the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TicketKeyError(String);

impl fmt::Display for TicketKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for TicketKeyError {}

const NAME_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
/// The bytes of a key in [`TicketKeys::to_bytes`].
const KEY_BYTES: usize = NAME_BYTES + SECRET_BYTES;
/// The bytes of a key in a file: a name of 16 bytes, and 32 or 64 secret bytes. nginx uses the same
/// files.
const FILE_KEY_BYTES: [usize; 2] = [48, 80];
/// The bytes of the time at which a ticket was sealed, in seconds since 1970.
const TIME_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

impl TicketKeys {
    /// Adds a random key, which seals from now on. The oldest key is dropped if there are too many.
    ///
    /// # Errors
    /// If the provider has no randomness. The keys are unchanged then.
    pub fn rotate(&mut self, provider: &Provider) -> Result<(), TlsError> {
        let mut key = TicketKey { name: [0; NAME_BYTES], secret: [0; SECRET_BYTES] };
        let random = provider.crypto().secure_random;
        let filled = random.fill(&mut key.name).and_then(|()| random.fill(&mut key.secret));
        filled.map_err(|_| TlsError::new(TlsErrorKind::Internal, "there is no randomness"))?;
        self.0.truncate(TICKET_KEYS_MAX - 1);
        self.0.insert(0, key);
        Ok(())
    }

    /// Appends the keys of a file. Each has 48 or 80 bytes: a name of 16 bytes, and a secret.
    ///
    /// # Errors
    /// If the size is no multiple of that of a key, if there are too many keys, or two with the
    /// same name. The keys are unchanged then.
    pub fn add_file(&mut self, file: &[u8]) -> Result<(), TicketKeyError> {
        // A size that is a multiple of both belongs to more keys than allowed.
        let count = |size: &usize| file.len() / size;
        let fits =
            |size: &usize| file.len().is_multiple_of(*size) && count(size) <= TICKET_KEYS_MAX;
        let size = FILE_KEY_BYTES.into_iter().find(fits).filter(|_| !file.is_empty());
        let Some(size) = size else {
            return Err(TicketKeyError(format!("has {} bytes", file.len())));
        };
        let mut keys = self.0.clone();
        for bytes in file.chunks_exact(size) {
            let (name, material) = bytes.split_first_chunk().expect("48 bytes contain a name");
            if keys.iter().any(|key| key.name == *name) {
                return Err(TicketKeyError("has a key whose name another key has".into()));
            }
            // Both sizes are condensed to the size of a secret (HKDF-Extract, RFC 5869).
            let salt = hmac::Key::new(hmac::HMAC_SHA256, b"millrace ticket key");
            let mut secret = [0; SECRET_BYTES];
            secret.copy_from_slice(hmac::sign(&salt, material).as_ref());
            keys.push(TicketKey { name: *name, secret });
        }
        if keys.len() > TICKET_KEYS_MAX {
            return Err(TicketKeyError("has too many keys together with the other files".into()));
        }
        self.0 = keys;
        Ok(())
    }

    /// Returns the keys as secret bytes, which another process passes to
    /// [`TicketKeys::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|key| key.name.into_iter().chain(key.secret)).collect()
    }

    /// Restores the keys from [`TicketKeys::to_bytes`]. `None` if other code wrote the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (keys, rest) = bytes.as_chunks::<KEY_BYTES>();
        if !rest.is_empty() || keys.len() > TICKET_KEYS_MAX {
            return None;
        }
        let key = |bytes: &[u8; KEY_BYTES]| {
            let (name, secret) = bytes.split_first_chunk()?;
            Some(TicketKey { name: *name, secret: *secret.first_chunk()? })
        };
        keys.iter().map(key).collect::<Option<_>>().map(Self)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for TicketKeys {
    /// Writes the number of keys, and nothing secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Seals and opens the tickets of a service.
pub(crate) struct Ticketer {
    random: &'static dyn SecureRandom,
    clock: Clock,
    /// Locked for each ticket. Each worker has settings of its own, so no thread waits for it;
    /// rustls requires that the ticketer can be shared.
    keys: Mutex<Vec<ServiceKey>>,
}

/// A ticket key of one service.
struct ServiceKey {
    name: [u8; NAME_BYTES],
    aead: LessSafeKey,
}

impl ServiceKey {
    /// Derives the key of a service (HKDF-Expand, RFC 5869).
    fn derive(key: &TicketKey, service: &str) -> Self {
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &key.secret);
        let info = [&b"ticket of service "[..], service.as_bytes()];
        let derived = secret.expand(&info, &AES_256_GCM).expect("HKDF yields 32 bytes");
        Self { name: key.name, aead: LessSafeKey::new(UnboundKey::from(derived)) }
    }
}

impl Ticketer {
    pub(crate) fn new(provider: &Provider, clock: &Clock) -> Self {
        let random = provider.crypto().secure_random;
        Self { random, clock: clock.clone(), keys: Mutex::default() }
    }

    /// Replaces the keys by those of the service `service`.
    pub(crate) fn set_keys(&self, keys: &TicketKeys, service: &str) {
        *self.keys() = keys.0.iter().map(|key| ServiceKey::derive(key, service)).collect();
    }

    fn keys(&self) -> MutexGuard<'_, Vec<ServiceKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticketer").field("keys", &self.keys().len()).finish_non_exhaustive()
    }
}

/// A ticket is the name of its key, a nonce, and the sealed time and session. Nonces are random:
/// with two tickets for each of 10,000 handshakes a second, a key has to be replaced after two days
/// (NIST SP 800-38D section 8.3: at most 2^32 random nonces).
impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        !self.keys().is_empty()
    }

    fn lifetime(&self) -> u32 {
        TICKET_LIFETIME.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys();
        let key = keys.first()?;
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let sealed_at = NAME_BYTES + NONCE_LEN;
        let size = sealed_at + TIME_BYTES + plain.len() + TAG_BYTES;
        let mut ticket = Vec::with_capacity(size);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&self.clock.time_of_day().as_secs().to_be_bytes());
        ticket.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = &mut ticket[sealed_at..];
        let tag = key.aead.seal_in_place_separate_tag(nonce, Aad::from(key.name), sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.keys();
        let key = keys.iter().find(|key| key.name == *name)?;
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let mut opened = sealed.to_vec();
        let plain = key.aead.open_in_place(nonce, Aad::from(*name), &mut opened).ok()?;
        let (time, plain) = plain.split_first_chunk()?;
        let age = self.clock.time_of_day().as_secs().saturating_sub(u64::from_be_bytes(*time));
        (age < TICKET_LIFETIME.as_secs()).then(|| plain.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Aead;

    fn provider() -> Provider {
        Provider::new(Aead::fastest())
    }

    fn ticketer(keys: &TicketKeys, service: &str) -> Ticketer {
        let ticketer = Ticketer::new(&provider(), &Clock::default());
        ticketer.set_keys(keys, service);
        ticketer
    }

    #[test]
    fn a_ticket_opens_only_whole_and_for_its_service() {
        let mut keys = TicketKeys::default();
        keys.rotate(&provider()).unwrap();
        let of_a = ticketer(&keys, "a");
        let ticket = of_a.encrypt(b"session").unwrap();
        assert_eq!(ticketer(&keys, "a").decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(ticketer(&keys, "b").decrypt(&ticket), None);
        assert_ne!(of_a.encrypt(b"session").unwrap(), ticket, "each ticket has its own nonce");
        for at in 0..ticket.len() {
            assert_eq!(of_a.decrypt(&ticket[..at]), None);
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(of_a.decrypt(&changed), None);
        }
    }

    #[test]
    fn a_ticket_opens_until_its_key_is_the_fourth_or_its_life_ends() {
        let mut keys = TicketKeys::default();
        assert!(!ticketer(&keys, "a").enabled());
        keys.rotate(&provider()).unwrap();
        let ticket = ticketer(&keys, "a").encrypt(b"session").unwrap();
        for _ in 1..TICKET_KEYS_MAX {
            keys.rotate(&provider()).unwrap();
            assert!(ticketer(&keys, "a").decrypt(&ticket).is_some());
        }
        let now = ticketer(&keys, "a");
        now.clock.set(TICKET_LIFETIME - Duration::from_secs(1));
        assert!(now.decrypt(&ticket).is_some());
        now.clock.set(TICKET_LIFETIME);
        assert_eq!(now.decrypt(&ticket), None);
        keys.rotate(&provider()).unwrap();
        assert_eq!(keys.len(), TICKET_KEYS_MAX);
        assert_eq!(ticketer(&keys, "a").decrypt(&ticket), None);
    }

    #[test]
    fn keys_survive_as_bytes() {
        let mut keys = TicketKeys::default();
        assert_eq!(TicketKeys::from_bytes(&keys.to_bytes()), Some(keys.clone()));
        for _ in 0..TICKET_KEYS_MAX {
            keys.rotate(&provider()).unwrap();
            assert_eq!(TicketKeys::from_bytes(&keys.to_bytes()), Some(keys.clone()));
        }
        let mut bytes = keys.to_bytes();
        assert_eq!(TicketKeys::from_bytes(&bytes[1..]), None);
        bytes.extend([0; KEY_BYTES]);
        assert_eq!(TicketKeys::from_bytes(&bytes), None);
        assert_eq!(format!("{keys:?}"), "TicketKeys { len: 3, .. }");
    }

    #[test]
    fn files_of_48_or_80_bytes_per_key_are_read() {
        let file = |size: usize| (0..size).map(|at| at as u8).collect::<Vec<u8>>();
        for (size, count) in [(48, 1), (80, 1), (96, 2), (160, 2), (144, 3), (240, 3)] {
            let mut keys = TicketKeys::default();
            keys.add_file(&file(size)).unwrap();
            assert_eq!(keys.len(), count, "{size}");
        }
        let refused = |keys: &TicketKeys, file: &[u8]| {
            let mut changed = keys.clone();
            let error = changed.add_file(file).unwrap_err().to_string();
            assert_eq!(changed, *keys);
            error
        };
        let mut keys = TicketKeys::default();
        for size in [0, 1, 47, 49, 79, 128, 192, 320] {
            assert_eq!(refused(&keys, &file(size)), format!("has {size} bytes"));
        }
        keys.add_file(&file(48)).unwrap();
        assert_eq!(refused(&keys, &file(80)), "has a key whose name another key has");
        keys.add_file(&[1; 80]).unwrap();
        keys.add_file(&[2; 48]).unwrap();
        let expected = "has too many keys together with the other files";
        assert_eq!(refused(&keys, &[3; 48]), expected);
        // The first file seals.
        let ticket = ticketer(&keys, "a").encrypt(b"session").unwrap();
        assert_eq!(ticket[..16], file(16));
    }
}
